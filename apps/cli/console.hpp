#pragma once
// The terminal: progress bars, dimmed text, and Ctrl-C.

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "samara/samara.h"

namespace samara::cli {

/// True when `stream` is a terminal that knows escape sequences and NO_COLOR is not set.
bool colours(std::FILE* stream);

/// A bar on standard error that appears once the work has taken half a second, on a terminal only. Clears itself, and
/// never takes more than a line.
class ProgressBar {
  public:
    enum class Unit { kBytes, kTokens, kSteps };
    ProgressBar(std::string what, Unit unit);
    ~ProgressBar();
    ProgressBar(const ProgressBar&) = delete;
    ProgressBar& operator=(const ProgressBar&) = delete;
    void update(uint64_t done, uint64_t total);
    void clear();

  private:
    using Clock = std::chrono::steady_clock;
    std::string what_;
    Unit unit_;
    bool terminal_;
    Clock::time_point start_ = Clock::now();
    Clock::time_point drawn_{};
    bool visible_ = false;
};

/// Ctrl-C: the first one cancels `session` (may be null) and makes interrupted() true, the second one ends the program.
/// Afterwards it does again what it did before.
class InterruptGuard {
  public:
    explicit InterruptGuard(samara_session* session = nullptr);
    ~InterruptGuard();
    InterruptGuard(const InterruptGuard&) = delete;
    InterruptGuard& operator=(const InterruptGuard&) = delete;

  private:
    struct sigaction old_interrupt_{}, old_terminate_{};
};
bool interrupted();
/// True when it was not Ctrl-C but a request to end (SIGTERM).
bool terminated();
void clear_interrupt();

/// Writes to standard output; throws Error(kIo) when it is closed or full.
void print(std::string_view text);

/// JSON and a line's end. Names that are not UTF-8 (of files, in files) are still printed, with U+FFFD for what is not.
std::string json_text(const nlohmann::json& value, int indent = -1);

}  // namespace samara::cli
