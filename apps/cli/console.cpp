#include "apps/cli/console.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "apps/cli/engine.hpp"
#include "src/platform/error.hpp"

namespace samara::cli {
namespace {

std::atomic<int> interrupts{0};
std::atomic<int> last_signal{0};
std::atomic<samara_session*> interrupted_session{nullptr};

// Async-signal-safe: samara_session_cancel stores one atomic flag.
void on_interrupt(int signal) {
    last_signal.store(signal);
    if (interrupts.fetch_add(1) > 0) _exit(130);
    samara_session_cancel(interrupted_session.load());
}

int terminal_width() {
    winsize size{};
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

bool colours(std::FILE* stream) {
    const char* no_color = std::getenv("NO_COLOR");
    const char* term = std::getenv("TERM");
    const bool dumb = term != nullptr && std::string_view(term) == "dumb";
    return isatty(fileno(stream)) == 1 && !dumb && (no_color == nullptr || *no_color == '\0');
}

ProgressBar::ProgressBar(std::string what, Unit unit)
    : what_(std::move(what)), unit_(unit), terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() { clear(); }

void ProgressBar::update(uint64_t done, uint64_t total) {
    const auto now = Clock::now();
    if (!terminal_ || now - start_ < std::chrono::milliseconds(500) || now - drawn_ < std::chrono::milliseconds(100))
        return;
    drawn_ = now;
    visible_ = true;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double share = total == 0 ? 0 : static_cast<double>(done) / static_cast<double>(total);
    const double rate = static_cast<double>(done) / seconds;
    std::string numbers;
    switch (unit_) {
        case Unit::kBytes:
            numbers = fmt::format("{} of {}, {}/s", format_bytes(static_cast<double>(done)),
                                  format_bytes(static_cast<double>(total)), format_bytes(rate));
            break;
        case Unit::kTokens:
            numbers = fmt::format("{} of {} tokens, {:.0f}/s", done, total, rate);
            break;
        case Unit::kSteps:
            numbers = fmt::format("{} of {}", done, total);
            break;
    }
    // A line that wraps could not be cleared: without room for a bar there is none, and the rest is cut, percentage
    // first.
    const int columns = terminal_width() - 1;
    const int room = std::min(30, columns - static_cast<int>(what_.size() + numbers.size()) - 10);
    std::string bar;
    if (room >= 5) {
        const int filled = std::clamp(static_cast<int>(share * room), 0, room);
        bar = fmt::format(" [{:.<{}}]", std::string(static_cast<size_t>(filled), '#'), room);
    }
    const std::string line = fmt::format("{:3.0f} % {}{} {}", share * 100, what_, bar, numbers);
    fmt::print(stderr, "\r\033[K{}", line.substr(0, static_cast<size_t>(std::max(columns, 0))));
    std::fflush(stderr);
}

void ProgressBar::clear() {
    if (visible_) fmt::print(stderr, "\r\033[K");
    visible_ = false;
}

InterruptGuard::InterruptGuard(samara_session* session) {
    interrupted_session.store(session);
    if (interrupted()) samara_session_cancel(session);  // Ctrl-C came before there was a session
    struct sigaction action{};
    action.sa_handler = on_interrupt;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, &old_interrupt_);
    sigaction(SIGTERM, &action, &old_terminate_);
}

InterruptGuard::~InterruptGuard() {
    interrupted_session.store(nullptr);
    if (interrupted()) return;  // the program is ending: another Ctrl-C still ends it with 130
    sigaction(SIGINT, &old_interrupt_, nullptr);
    sigaction(SIGTERM, &old_terminate_, nullptr);
}

bool interrupted() { return interrupts.load() > 0; }
bool terminated() { return interrupted() && last_signal.load() == SIGTERM; }
void clear_interrupt() { interrupts.store(0); }

std::string json_text(const nlohmann::json& value, int indent) {
    return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void print(std::string_view text) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
        throw Error(ErrorCode::kIo, std::string("standard output: ") + std::strerror(errno));
    }
}

}  // namespace samara::cli
