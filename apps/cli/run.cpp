// samara run: one prompt, one streamed answer.

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>

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
    std::optional<std::string> prompt;
    std::string file, system;
    bool raw = false, no_think = false, json = false, stats = false;
};

std::string read_prompt(const Options& o) {
    if (o.prompt) return *o.prompt;
    if (!o.file.empty()) return read_text(o.file);
    if (isatty(STDIN_FILENO) == 1) {
        throw Error(ErrorCode::kInvalidArgument, "run: expected a prompt: -p TEXT, -f FILE, or text on standard input");
    }
    return read_text("-");
}

std::vector<int32_t> encode_prompt(const Options& o, const Tokenizer& tokenizer, const std::string& prompt) {
    if (o.raw) return tokenizer.encode(prompt, false, true);
    if (!tokenizer.has_chat_template()) {
        throw Error(ErrorCode::kUnsupported, o.load.model + ": no chat template in the model file; use --raw");
    }
    nlohmann::json messages = nlohmann::json::array();
    if (!o.system.empty()) messages.push_back({{"role", "system"}, {"content", o.system}});
    messages.push_back({{"role", "user"}, {"content", prompt}});
    return tokenizer.encode_chat(messages, !o.no_think);
}

double rate(uint32_t tokens, double seconds) { return seconds > 0 ? tokens / seconds : 0; }

void run(const Options& o) {
    const std::string prompt = read_prompt(o);
    if (prompt.empty()) throw Error(ErrorCode::kInvalidArgument, "run: the prompt is empty");
    const EngineHandle engine = load_engine(o.load);
    const samara_model_info info = model_info(engine.get());
    const Tokenizer tokenizer(engine.get());
    const std::vector<int32_t> tokens = encode_prompt(o, tokenizer, prompt);
    const SamplerHandle sampler = create_sampler(o.sampling, info);
    const SessionHandle session = create_session(engine.get());
    const InterruptGuard guard(session.get());

    const auto sink = o.json ? [](std::string_view, bool) {} : terminal_sink();
    const Answer a = answer(engine.get(), session.get(), sampler.get(), tokenizer, tokens, o.sampling, sink);
    if (o.json) {
        print(json_text({{"text", a.text},
                         {"reasoning", a.reasoning},
                         {"stop_reason", stop_name(a.reason)},
                         {"prompt_tokens", a.prompt_tokens},
                         {"tokens", a.tokens},
                         {"steps", a.steps},
                         {"drafted", a.drafted},
                         {"accepted", a.accepted},
                         {"prefill_tps", rate(a.prompt_tokens, a.prefill_seconds)},
                         {"decode_tps", rate(a.tokens, a.decode_seconds)},
                         {"flash_agreement", flash_agreement(engine.get())}}));
        return;
    }
    print(colours(stdout) ? "\033[0m\n" : "\n");
    explain_stop(a, info);
    if (o.stats) {
        fmt::print(stderr,
                   "{} prompt tokens at {:.1f}/s, {} generated at {:.1f}/s in {} steps; {} of {} drafted accepted\n",
                   a.prompt_tokens, rate(a.prompt_tokens, a.prefill_seconds), a.tokens,
                   rate(a.tokens, a.decode_seconds), a.steps, a.accepted, a.drafted);
        const nlohmann::json flash = flash_agreement(engine.get());
        if (!flash.is_null()) fmt::print(stderr, "{}", flash_text(flash));
    }
}

}  // namespace

void add_run(CLI::App& app) {
    auto* command = app.add_subcommand("run", "Answer one prompt");
    auto o = std::make_shared<Options>();
    add_load_flags(*command, o->load);
    auto* prompt = command->add_option("-p,--prompt", o->prompt, "The prompt");
    command->add_option("-f,--file", o->file, "Read the prompt from a file; - is standard input")->excludes(prompt);
    auto* system = command->add_option("--system", o->system, "System message");
    command->add_flag("--raw", o->raw, "Continue the text as it is, without the chat template")->excludes(system);
    command->add_flag("--no-think", o->no_think, "Ask the model to answer without reasoning");
    add_sampling_flags(*command, o->sampling);
    command->add_flag("--stats", o->stats, "Print speeds to standard error, and how often --head flash-checked agrees");
    command->add_flag("--json", o->json, "Print one JSON object with text and reasoning apart");
    command->footer(
        "The answer streams to standard output. Reasoning is dimmed on a terminal and stands between <think> tags\n"
        "elsewhere. Ctrl-C stops it (exit code 130). A full context ends the answer, with a note on standard error.\n"
        "Examples:\n"
        "  samara run -m smollm2 -p \"Why is the sky blue?\"\n"
        "  samara run -m M -f report.txt --system \"Summarise.\" --no-think\n"
        "  echo 'def fib(n):' | samara run -m M --raw --temperature 0 -n 64");
    command->callback([o] { run(*o); });
}

}  // namespace samara::cli
