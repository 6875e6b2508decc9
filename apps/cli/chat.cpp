// samara chat: a conversation. The session keeps the keys and values of everything said, so each turn reads only what
// is new.

#include <editline/readline.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/cli/answer.hpp"
#include "apps/cli/commands.hpp"
#include "apps/cli/console.hpp"
#include "apps/cli/files.hpp"
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

// A line from the person: edited on a terminal, plain otherwise. False at the end of input.
bool read_line(const char* prompt, std::string& line) {
    if (isatty(STDIN_FILENO) != 1) return static_cast<bool>(std::getline(std::cin, line));
    char* text = readline(prompt);
    if (text == nullptr) return false;
    line = text;
    if (!line.empty()) add_history(text);
    std::free(text);
    return true;
}

bool read_message(std::string& message) {
    message.clear();
    std::string line;
    for (const char* prompt = "> "; read_line(prompt, line); prompt = ". ") {
        if (line.empty() || line.back() != '\\') {
            message += line;
            return true;
        }
        line.back() = '\n';
        message += line;
    }
    return !message.empty();
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
        const InterruptGuard guard(session_.get());
        fmt::print(stderr, "{} ({} parameters, {} per token). /help lists the commands.\n",
                   *info_.name != '\0' ? info_.name : options_.load.model.c_str(), info_.parameters,
                   info_.parameters_per_token);
        std::string line;
        while (read_message(line)) {
            clear_interrupt();
            samara_session_resume(session_.get());
            try {
                if (line == "/quit") break;
                if (!line.empty() && line[0] == '/') {
                    command(line);
                } else if (!line.empty()) {
                    say(line);
                }
            } catch (const Error& e) {
                fmt::print(stderr, "samara: {}\n", e.what());
                if (e.code() == ErrorCode::kInternal || e.code() == ErrorCode::kIo) throw;
            }
        }
        clear_interrupt();
    }

  private:
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
            "prompt {} tokens ({} kept from before), {:.1f}/s; answer {} tokens, {:.1f}/s; context {} of {}\n",
            last_.prompt_tokens, last_.reused_tokens, rate(fresh, last_.prefill_seconds), last_.tokens,
            rate(last_.tokens, last_.decode_seconds), samara_session_length(session_.get()), info_.context_tokens));
    }

    void save(const std::string& path) {
        const std::string text = messages_.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
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
    std::string system_;
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
        "Examples:\n"
        "  samara chat -m smollm2\n"
        "  samara chat -m maple-preview --system \"You translate into French.\" --no-think\n"
        "  printf 'Hello!\\n/stats\\n' | samara chat -m smollm2");
    command->callback([o] { Chat(*o).loop(); });
}

}  // namespace samara::cli
