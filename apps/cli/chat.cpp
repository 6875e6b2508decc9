// samara chat: a conversation. The session keeps the keys and values of everything said, so each turn reads only what
// is new.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/cli/answer.hpp"
#include "apps/cli/commands.hpp"
#include "apps/cli/console.hpp"
#include "apps/cli/files.hpp"
#include "apps/cli/line_editor.hpp"
#include "apps/pull/progress.hpp"
#include "src/platform/error.hpp"

namespace samara::cli {
namespace {

struct Options {
    LoadFlags load;
    SamplingFlags sampling;
    std::string system;
    bool no_think = false;
};

constexpr const char* kHelp =
    "/help         this list\n"
    "/reset        forget the conversation, keep the system message\n"
    "/system TEXT  set the system message and start anew; without TEXT: show it\n"
    "/save FILE    write the conversation as JSON\n"
    "/load FILE    read a conversation written by /save\n"
    "/stats        tokens, speeds and context of the last answer\n"
    "/quit         leave (or Ctrl-D)\n"
    "Ctrl-C stops an answer. A line that ends in \\ goes on in the next.\n";

// A message: a line, or several when all but the last end in a backslash.
LineEditor::Result read_message(LineEditor& editor, std::string& message) {
    message.clear();
    std::string line;
    for (const char* prompt = "> ";; prompt = ". ") {
        const LineEditor::Result result = editor.read(prompt, line);
        if (result == LineEditor::Result::kInterrupted) message.clear();
        if (result != LineEditor::Result::kLine) return message.empty() ? result : LineEditor::Result::kLine;
        if (!line.ends_with('\\')) break;
        line.back() = '\n';
        message += line;
    }
    message += line;
    return LineEditor::Result::kLine;
}

class Chat {
  public:
    explicit Chat(const Options& o)
        : options_(o),
          engine_(load_engine(o.load)),
          info_(model_info(engine_.get())),
          tokenizer_(engine_.get()),
          session_(create_session(engine_.get())),
          sampler_(create_sampler(o.sampling, info_)) {
        if (!tokenizer_.has_chat_template()) {
            throw Error(ErrorCode::kUnsupported, o.load.model + ": no chat template in the model file; see run --raw");
        }
        reset(o.system);
    }

    void loop() {
        fmt::print(stderr, "{} ({} parameters, {} per token). /help lists the commands.\n",
                   *info_.name != '\0' ? pull::printable(info_.name) : options_.load.model,
                   format_count(info_.parameters), format_count(info_.parameters_per_token));
        LineEditor editor;
        std::string line;
        for (;;) {
            const LineEditor::Result result = read_message(editor, line);
            if (result == LineEditor::Result::kEnd || line == "/quit") break;
            if (result == LineEditor::Result::kInterrupted) fmt::print(stderr, "(Ctrl-D or /quit leaves)\n");
            if (line.empty()) continue;
            samara_session_resume(session_.get());
            const InterruptGuard guard(session_.get());
            attempt(line);
            if (terminated()) return;
            clear_interrupt();
        }
    }

  private:
    // What goes wrong with one line is said and does not end the conversation, unless nobody can read the answers.
    void attempt(const std::string& line) {
        try {
            line[0] == '/' ? command(line) : say(line);
        } catch (const Error& e) {
            if (std::ferror(stdout) != 0 || e.code() == ErrorCode::kInternal) throw;
            const bool cancelled = e.code() == ErrorCode::kCancelled;
            fmt::print(stderr, "samara: {}{}\n", cancelled ? "stopped" : e.what(),
                       e.code() == ErrorCode::kContextFull ? "; /reset forgets the conversation" : "");
        }
    }

    void reset(const std::string& system) {
        system_ = system;
        messages_ = nlohmann::json::array();
        if (!system.empty()) messages_.push_back({{"role", "system"}, {"content", system}});
    }

    void say(const std::string& text) {
        nlohmann::json asked = messages_;
        asked.push_back({{"role", "user"}, {"content", text}});
        const std::vector<int32_t> prompt = tokenizer_.encode_chat(asked, !options_.no_think);
        last_ = answer(engine_.get(), session_.get(), sampler_.get(), tokenizer_, prompt, options_.sampling,
                       terminal_sink());
        print(colours(stdout) ? "\033[0m\n" : "\n");
        explain_stop(last_, info_);
        asked.push_back({{"role", "assistant"}, {"content", last_.text}});
        messages_ = std::move(asked);
    }

    void command(const std::string& line) {
        const size_t space = line.find(' ');
        const std::string name = line.substr(0, space);
        const std::string argument = space == std::string::npos ? "" : line.substr(line.find_first_not_of(' ', space));
        if (name == "/help") {
            print(kHelp);
        } else if (name == "/reset") {
            reset(system_);
        } else if (name == "/system") {
            if (argument.empty()) {
                print(system_.empty() ? "(no system message)\n" : system_ + "\n");
            } else {
                reset(argument);
            }
        } else if (name == "/stats") {
            stats();
        } else if (name == "/save" || name == "/load") {
            if (argument.empty()) throw Error(ErrorCode::kInvalidArgument, name + ": expected a file name");
            name == "/save" ? save(argument) : load(argument);
        } else {
            throw Error(ErrorCode::kInvalidArgument, name + ": unknown command; /help lists them");
        }
    }

    void stats() {
        const auto rate = [](double n, double seconds) { return seconds > 0 ? n / seconds : 0.0; };
        const uint32_t fresh = last_.prompt_tokens - last_.reused_tokens;
        print(fmt::format(
            "prompt {} tokens ({} kept from before), {:.1f}/s; answer {} tokens, {:.1f}/s, {} steps, {} of {} drafted "
            "accepted; context {} of {}\n",
            last_.prompt_tokens, last_.reused_tokens, rate(fresh, last_.prefill_seconds), last_.tokens,
            rate(last_.tokens, last_.decode_seconds), last_.steps, last_.accepted, last_.drafted,
            samara_session_length(session_.get()), info_.context_tokens));
    }

    void save(const std::string& path) {
        const std::string text = json_text(messages_, 2);
        OutputFile file(path);
        file.write(std::as_bytes(std::span(text)));
        file.finish();
        print(fmt::format("{} messages written to {}\n", messages_.size(), path));
    }

    void load(const std::string& path) {
        const nlohmann::json read = nlohmann::json::parse(read_text(path), nullptr, false);
        const bool good = read.is_array() && std::all_of(read.begin(), read.end(), [](const nlohmann::json& m) {
                              return m.is_object() && m.contains("role") && m["role"].is_string() &&
                                     m.contains("content") && m["content"].is_string();
                          });
        if (!good) {
            throw Error(ErrorCode::kFormat,
                        path + ": expected a JSON array of objects with role and content, as /save writes");
        }
        const bool has_system = !read.empty() && read[0]["role"] == "system";
        system_ = has_system ? read[0]["content"].get<std::string>() : "";
        messages_ = read;
        print(fmt::format("{} messages read from {}\n", messages_.size(), path));
    }

    const Options& options_;
    EngineHandle engine_;
    samara_model_info info_;
    Tokenizer tokenizer_;
    SessionHandle session_;
    SamplerHandle sampler_;
    std::string system_;  // the system message; "" for none
    nlohmann::json messages_;
    Answer last_;
};

}  // namespace

void add_chat(CLI::App& app) {
    auto* command = app.add_subcommand("chat", "Talk with a model");
    auto o = std::make_shared<Options>();
    add_load_flags(*command, o->load);
    command->add_option("--system", o->system, "System message");
    command->add_flag("--no-think", o->no_think, "Ask the model to answer without reasoning");
    add_sampling_flags(*command, o->sampling);
    command->footer(
        "Ctrl-C stops an answer, Ctrl-D leaves; lines are edited with the arrow keys; /help lists the commands.\n"
        "Examples:\n"
        "  samara chat -m smollm2\n"
        "  samara chat -m maple-preview --system \"You translate into French.\" --no-think\n"
        "  printf 'Hello!\\n/stats\\n' | samara chat -m smollm2");
    command->callback([o] { Chat(*o).loop(); });
}

}  // namespace samara::cli
