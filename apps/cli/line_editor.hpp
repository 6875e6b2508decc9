#pragma once
// A line typed on a terminal: edited, with history. Plain lines where standard input is no terminal.

#include <memory>
#include <string>

namespace samara::cli {

class LineEditor {
  public:
    enum class Result { kLine, kEnd, kInterrupted };

    LineEditor();
    ~LineEditor();
    LineEditor(const LineEditor&) = delete;
    LineEditor& operator=(const LineEditor&) = delete;

    /// Reads one line without its end. kEnd: Ctrl-D, the end of the input, or a request to terminate. kInterrupted:
    /// Ctrl-C; `line` is empty.
    Result read(const char* prompt, std::string& line);

  private:
    struct Terminal;
    std::unique_ptr<Terminal> terminal_;  // null where standard input is no terminal
};

}  // namespace samara::cli
