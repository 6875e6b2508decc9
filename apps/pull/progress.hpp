#pragma once
// What `samara pull` tells its user while it works: a bar on a terminal, plain lines elsewhere, JSON lines for a
// program.

#include <chrono>
#include <cstdint>
#include <string>

namespace samara::pull {

enum class ReportStyle { kBar, kLines, kJson };

/// kJson when asked for; else kBar when standard error is a terminal.
ReportStyle report_style(bool json);

/// Bars and lines go to standard error; JSON objects, one a line, each with "event", to standard output.
class Reporter {
  public:
    explicit Reporter(ReportStyle style) : style_(style) {}

    /// A file of `total` bytes begins (or continues: `have` bytes are here already).
    void start(const std::string& file, uint64_t have, uint64_t total);
    /// `have` bytes are here; shows at most a few times a second.
    void advance(uint64_t have);
    /// The same for reading the file again to check its hash.
    void start_verify(const std::string& file, uint64_t total);
    void retry(const std::string& reason, int attempt, int attempts, double wait_seconds);
    /// Something the user should know and need not act on.
    void note(const std::string& text);
    /// `fresh` is false when the file was there already.
    void done(const std::string& path, uint64_t bytes, const std::string& sha256, bool fresh);
    void error(const std::string& message, bool cancelled);

  private:
    using Clock = std::chrono::steady_clock;
    void begin(const std::string& phase, const std::string& file, uint64_t have, uint64_t total);
    void draw(Clock::time_point now);
    void clear_bar();

    ReportStyle style_;
    std::string phase_, file_;
    uint64_t have_ = 0, total_ = 0;
    uint64_t first_ = 0;         // bytes that were here when the phase began
    uint64_t line_percent_ = 0;  // next percentage that gets a line of its own
    Clock::time_point began_, drawn_;
    bool bar_shown_ = false;
};

/// Printable text only: control characters of a server's message must not reach a terminal.
std::string printable(const std::string& text);

}  // namespace samara::pull
