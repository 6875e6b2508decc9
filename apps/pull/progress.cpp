#include "apps/pull/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/pull/catalog.hpp"

namespace samara::pull {
namespace {

using Json = nlohmann::ordered_json;

constexpr auto kBarInterval = std::chrono::milliseconds(200);
constexpr auto kJsonInterval = std::chrono::milliseconds(1000);
constexpr uint64_t kLinePercents = 5;

void print_json(const Json& event) {
    const std::string line = event.dump(-1, ' ', false, Json::error_handler_t::replace);
    std::fprintf(stdout, "%s\n", line.c_str());
    std::fflush(stdout);
}

void print_line(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

std::string human_time(double seconds) {
    const auto total = static_cast<long>(seconds + 0.5);
    if (total < 60) return fmt::format("{} s", total);
    if (total < 3600) return fmt::format("{} min {:02} s", total / 60, total % 60);
    return fmt::format("{} h {:02} min", total / 3600, total / 60 % 60);
}

size_t terminal_columns() {
    winsize size{};
    const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return known ? size.ws_col : 80;
}

std::string bar_of(double fraction, size_t width) {
    const auto full = static_cast<size_t>(fraction * static_cast<double>(width));
    std::string bar;
    for (size_t i = 0; i < width; ++i) bar += i < full ? "█" : "░";
    return bar;
}

}  // namespace

std::string printable(const std::string& text) {
    std::string out;
    for (const char c : text) {
        const bool visible = static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
        if (visible || c == '\n') out += c;
    }
    return out;
}

ReportStyle report_style(bool json) {
    if (json) return ReportStyle::kJson;
    return isatty(STDERR_FILENO) != 0 ? ReportStyle::kBar : ReportStyle::kLines;
}

void Reporter::begin(const std::string& phase, const std::string& file, uint64_t have, uint64_t total) {
    clear_bar();
    phase_ = phase;
    file_ = file;
    have_ = first_ = have;
    total_ = total;
    began_ = Clock::now();
    drawn_ = Clock::time_point{};
    line_percent_ = 0;
    if (style_ == ReportStyle::kJson) {
        print_json({{"event", phase}, {"file", file}, {"bytes", have}, {"total_bytes", total}});
    } else if (style_ == ReportStyle::kLines) {
        const std::string from = have > 0 ? fmt::format(", {} of them here already", human_bytes(have)) : "";
        print_line(fmt::format("{} {}: {}{}", phase, file, human_bytes(total), from));
        line_percent_ = (total > 0 ? have * 100 / total : 0) / kLinePercents * kLinePercents + kLinePercents;
    }
}

void Reporter::start(const std::string& file, uint64_t have, uint64_t total) { begin("download", file, have, total); }

void Reporter::start_verify(const std::string& file, uint64_t total) { begin("verify", file, 0, total); }

void Reporter::advance(uint64_t have) {
    have_ = have;
    const auto now = Clock::now();
    if (style_ == ReportStyle::kLines) {
        const uint64_t percent = total_ > 0 ? have_ * 100 / total_ : 100;
        if (percent < line_percent_) return;
        line_percent_ = percent / kLinePercents * kLinePercents + kLinePercents;
    } else if (now - drawn_ < (style_ == ReportStyle::kBar ? kBarInterval : kJsonInterval)) {
        return;
    }
    draw(now);
}

void Reporter::draw(Clock::time_point now) {
    drawn_ = now;
    const double seconds = std::chrono::duration<double>(now - began_).count();
    const double speed = seconds > 0.05 && have_ >= first_ ? static_cast<double>(have_ - first_) / seconds : 0;
    const double fraction = total_ > 0 ? static_cast<double>(have_) / static_cast<double>(total_) : 1;
    if (style_ == ReportStyle::kJson) {
        print_json({{"event", "progress"},
                    {"phase", phase_},
                    {"file", file_},
                    {"bytes", have_},
                    {"total_bytes", total_},
                    {"bytes_per_second", static_cast<uint64_t>(speed)}});
        return;
    }
    std::string tail = fmt::format("{:3.0f} %  {} of {}", fraction * 100, human_bytes(have_), human_bytes(total_));
    if (speed > 0) {
        tail += fmt::format("  {}/s  {}", human_bytes(static_cast<uint64_t>(speed)),
                            human_time(static_cast<double>(total_ - std::min(have_, total_)) / speed));
    }
    if (style_ == ReportStyle::kLines) {
        print_line(fmt::format("{} {}", phase_, tail));
        return;
    }
    const size_t columns = terminal_columns();
    const size_t used = phase_.size() + tail.size() + 4;
    const size_t width = columns > used + 5 ? std::min<size_t>(columns - used, 40) : 0;
    std::fprintf(stderr, "\r\033[K%s %s %s", phase_.c_str(), bar_of(fraction, width).c_str(),
                 tail.substr(0, columns > phase_.size() + 3 ? columns - phase_.size() - 3 : 0).c_str());
    std::fflush(stderr);
    bar_shown_ = true;
}

void Reporter::clear_bar() {
    if (!bar_shown_) return;
    std::fprintf(stderr, "\r\033[K");
    std::fflush(stderr);
    bar_shown_ = false;
}

void Reporter::retry(const std::string& reason, int attempt, int attempts, double wait_seconds) {
    clear_bar();
    if (style_ == ReportStyle::kJson) {
        print_json({{"event", "retry"}, {"reason", reason}, {"attempt", attempt}, {"wait_seconds", wait_seconds}});
    } else {
        print_line(fmt::format("{}; try {} of {} in {:.3g} s", printable(reason), attempt, attempts, wait_seconds));
    }
}

void Reporter::note(const std::string& text) {
    clear_bar();
    if (style_ == ReportStyle::kJson) {
        print_json({{"event", "note"}, {"text", text}});
    } else {
        print_line(printable(text));
    }
}

void Reporter::done(const std::string& path, uint64_t bytes, const std::string& sha256, bool fresh) {
    clear_bar();
    if (style_ == ReportStyle::kJson) {
        print_json({{"event", "done"}, {"path", path}, {"bytes", bytes}, {"sha256", sha256}, {"downloaded", fresh}});
        return;
    }
    print_line(fmt::format("{}, SHA-256 {}", fresh ? "complete" : "already here", sha256));
    std::fprintf(stdout, "%s\n", path.c_str());
    std::fflush(stdout);
}

void Reporter::error(const std::string& message, bool cancelled) {
    clear_bar();
    if (style_ == ReportStyle::kJson) {
        print_json({{"event", cancelled ? "cancelled" : "error"}, {"message", message}});
    } else {
        print_line(fmt::format("samara pull: {}", printable(message)));
    }
}

}  // namespace samara::pull
