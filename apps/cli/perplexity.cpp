// samara perplexity: how well a model predicts a text. Mean negative log-likelihood over positions 1..n-1 of each
// window, exponentiated; windows do not overlap and start from an empty context.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/cli/commands.hpp"
#include "apps/cli/console.hpp"
#include "apps/cli/files.hpp"
#include "apps/cli/measure.hpp"
#include "apps/cli/text.hpp"
#include "src/platform/error.hpp"

namespace samara::cli {
namespace {

struct Options {
    LoadFlags load;
    std::string file, tokens;
    uint32_t window = 0;
    bool json = false;
};

struct Scores {
    std::span<const int32_t> window;
    uint32_t vocab = 0;
    double nll = 0;  // sum of -log p(next token)
    uint64_t scored = 0;
    uint64_t begin = 0, total = 0;  // where the window lies in the text, for the bar
    ProgressBar bar{"scoring", ProgressBar::Unit::kTokens};
};

void score(uint32_t, uint32_t token, const float* logits, void* user) {
    auto& s = *static_cast<Scores*>(user);
    if (token + 1 >= s.window.size()) return;
    s.nll += negative_log_likelihood({logits, s.vocab}, s.window[token + 1]);
    ++s.scored;
}

void run(Options o) {
    if (o.load.context == 0 && o.window != 0) o.load.context = o.window;
    const EngineHandle engine = load_engine(o.load);
    const samara_model_info info = model_info(engine.get());
    const std::vector<int32_t> tokens =
        o.tokens.empty() ? Tokenizer(engine.get()).encode(read_text(o.file), false, true) : read_token_file(o.tokens);
    if (tokens.size() < 2)
        throw Error(ErrorCode::kInvalidArgument, "perplexity: expected a text of at least two tokens");
    const auto window =
        static_cast<size_t>(o.window == 0 ? info.context_tokens : std::min<uint64_t>(o.window, info.context_tokens));
    const SessionHandle session = create_session(engine.get());
    const InterruptGuard guard(session.get());
    Scores scores;
    scores.total = tokens.size();
    scores.vocab = info.vocab;
    for (size_t begin = 0; begin + 1 < tokens.size(); begin += window) {
        scores.begin = begin;
        scores.window = std::span(tokens).subspan(begin, std::min(window, tokens.size() - begin));
        check(samara_session_truncate(session.get(), 0, nullptr));
        samara_step_input input{};
        input.struct_size = sizeof input;
        input.session = session.get();
        input.tokens = scores.window.data();
        input.count = static_cast<uint32_t>(scores.window.size());
        input.logits = SAMARA_LOGITS_ALL;
        samara_step_params step{};
        step.struct_size = sizeof step;
        step.inputs = &input;
        step.input_count = 1;
        step.on_logits = score;
        step.on_progress = [](uint64_t done, uint64_t, void* user) {
            auto& s = *static_cast<Scores*>(user);
            s.bar.update(s.begin + done, s.total);
            return 1;
        };
        step.user = &scores;
        check(samara_step(engine.get(), &step));
    }
    scores.bar.clear();
    const double mean = scores.nll / static_cast<double>(scores.scored);
    if (o.json) {
        print(json_text({{"perplexity", std::exp(mean)},
                         {"nll", mean},
                         {"tokens", tokens.size()},
                         {"scored", scores.scored},
                         {"window", window}}));
    } else {
        print(fmt::format("perplexity {:.4f} over {} tokens (windows of {})\n", std::exp(mean), scores.scored, window));
    }
}

}  // namespace

void add_perplexity(CLI::App& app) {
    auto* command = app.add_subcommand("perplexity", "Measure how well a model predicts a text");
    auto o = std::make_shared<Options>();
    add_load_flags(*command, o->load);
    auto* input = command->add_option_group("input");
    input->add_option("-f,--file", o->file, "Text file; - is standard input");
    input->add_option("--tokens", o->tokens, "File of token ids instead");
    input->require_option(1);
    command->add_option("--window", o->window, "Tokens of a window; 0: the context")->check(CLI::Range(2U, 1U << 24));
    command->add_flag("--json", o->json, "Print the result as one JSON object");
    command->footer(
        "The windows do not overlap, and each starts from an empty context.\n"
        "Example:\n"
        "  samara perplexity -m smollm2 -f README.md --window 512");
    command->callback([o] { run(*o); });
}

}  // namespace samara::cli
