// On libedit, but with our own reading of characters and signals: libedit's own would pass a Ctrl-C on to the whole
// process group and go on reading with the terminal in the wrong mode.

#include "apps/cli/line_editor.hpp"

#include <histedit.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <iostream>
#include <utility>

namespace samara::cli {
namespace {

constexpr int kHistoryLines = 500;
constexpr int kPollMilliseconds = 200;  // a signal that comes just before poll() waits no longer than this
constexpr wchar_t kReplacement = 0xFFFD;

volatile sig_atomic_t interrupt_came = 0;
volatile sig_atomic_t terminate_came = 0;
volatile sig_atomic_t redraw_needed = 0;  // the terminal changed its size, or the program was in the background

void on_signal(int signal) {
    if (signal == SIGINT) interrupt_came = 1;
    if (signal == SIGTERM || signal == SIGHUP) terminate_came = 1;
    if (signal == SIGCONT || signal == SIGWINCH) redraw_needed = 1;
}

/// These signals are ours while this lives.
class SignalScope {
  public:
    SignalScope() {
        struct sigaction action{};
        action.sa_handler = on_signal;
        sigemptyset(&action.sa_mask);
        for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &old_[i]);
    }
    ~SignalScope() {
        for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &old_[i], nullptr);
    }
    SignalScope(const SignalScope&) = delete;
    SignalScope& operator=(const SignalScope&) = delete;

  private:
    static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGCONT, SIGWINCH};
    std::array<struct sigaction, kSignals.size()> old_{};
};

void redraw(EditLine* editor) {
    redraw_needed = 0;
    el_set(editor, EL_PREP_TERM, 0);
    el_set(editor, EL_PREP_TERM, 1);
    el_resize(editor);
    el_set(editor, EL_REFRESH);
}

/// One byte, or -1 at the end of the input or after a signal that ends the line.
int read_byte(EditLine* editor) {
    for (;;) {
        if (interrupt_came != 0 || terminate_came != 0) return -1;
        if (redraw_needed != 0) redraw(editor);
        pollfd input{STDIN_FILENO, POLLIN, 0};
        const int ready = poll(&input, 1, kPollMilliseconds);
        if (ready < 0 && errno != EINTR) return -1;
        if (ready <= 0) continue;
        unsigned char byte = 0;
        const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
        if (n == 1) return byte;
        if (n == 0 || (errno != EINTR && errno != EAGAIN)) return -1;
    }
}

/// libedit's source of characters: UTF-8, anything else becomes U+FFFD. Returns 1, or 0 at the end.
int read_character(EditLine* editor, wchar_t* character) {
    static int unread = -1;  // the byte that cut a character short
    const int first = unread >= 0 ? std::exchange(unread, -1) : read_byte(editor);
    if (first < 0) {
        *character = L'\n';  // what was typed so far is dropped by the caller
        return interrupt_came != 0 ? 1 : 0;
    }
    const int more = first < 0x80 ? 0 : first < 0xC2 ? -1 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : first < 0xF5 ? 3 : -1;
    uint32_t code = more <= 0 ? static_cast<uint32_t>(first) : static_cast<uint32_t>(first) & (0x3FU >> more);
    bool good = more >= 0;
    for (int i = 0; i < more && good; ++i) {
        const int next = read_byte(editor);
        good = next >= 0 && (next & 0xC0) == 0x80;
        if (!good) unread = next;
        code = code << 6U | (static_cast<uint32_t>(next) & 0x3FU);
    }
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    *character = good && !surrogate && code <= 0x10FFFF ? static_cast<wchar_t>(code) : kReplacement;
    return 1;
}

const char* current_prompt = "";  // libedit asks a function for it

char* prompt_text(EditLine*) { return const_cast<char*>(current_prompt); }

}  // namespace

struct LineEditor::Terminal {
    EditLine* editor = el_init("samara", stdin, stderr, stderr);  // standard output is the conversation's
    History* lines = history_init();
    HistEvent event{};

    Terminal() {
        history(lines, &event, H_SETSIZE, kHistoryLines);
        history(lines, &event, H_SETUNIQUE, 1);
        el_set(editor, EL_EDITOR, "emacs");
        el_set(editor, EL_SIGNAL, 0);
        el_set(editor, EL_PROMPT, prompt_text);
        el_set(editor, EL_HIST, history, lines);
        el_set(editor, EL_GETCFN, read_character);
    }
    ~Terminal() {
        el_end(editor);
        history_end(lines);
    }
    Terminal(const Terminal&) = delete;
    Terminal& operator=(const Terminal&) = delete;
};

LineEditor::LineEditor() {
    if (isatty(STDIN_FILENO) == 1) terminal_ = std::make_unique<Terminal>();
}
LineEditor::~LineEditor() = default;

LineEditor::Result LineEditor::read(const char* prompt, std::string& line) {
    line.clear();
    if (!terminal_) return std::getline(std::cin, line) ? Result::kLine : Result::kEnd;
    const SignalScope signals;
    interrupt_came = 0;
    current_prompt = prompt;
    int count = 0;
    const char* text = el_gets(terminal_->editor, &count);
    if (interrupt_came != 0) return Result::kInterrupted;
    if (terminate_came != 0 || text == nullptr || count <= 0) return Result::kEnd;
    line.assign(text, static_cast<size_t>(count));
    if (line.ends_with('\n')) line.pop_back();
    if (!line.empty()) history(terminal_->lines, &terminal_->event, H_ENTER, line.c_str());
    return Result::kLine;
}

}  // namespace samara::cli
