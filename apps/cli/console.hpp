#pragma once
// The terminal: progress bars, dimmed text, and Ctrl-C.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "samara/samara.h"

namespace samara::cli {

/// True when `stream` is a terminal and NO_COLOR is not set.
bool colours(std::FILE* stream);

/// A bar on standard error that appears once the work has taken half a second, on a terminal only. Clears itself.
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
class InterruptGuard {
  public:
    explicit InterruptGuard(samara_session* session = nullptr);
    ~InterruptGuard();
    InterruptGuard(const InterruptGuard&) = delete;
    InterruptGuard& operator=(const InterruptGuard&) = delete;
};
bool interrupted();
void clear_interrupt();

/// Writes to standard output; throws Error(kIo) when it is closed or full.
void print(std::string_view text);

}  // namespace samara::cli
