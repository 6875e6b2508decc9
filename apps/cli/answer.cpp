#include "apps/cli/answer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "apps/cli/commands.hpp"
#include "apps/cli/console.hpp"
#include "apps/cli/measure.hpp"
#include "src/platform/error.hpp"

namespace samara::cli {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

// What the models' authors use; see their model cards.
struct Defaults {
    float temperature;
    int top_k;
    float top_p;
};
Defaults defaults_for(const samara_model_info& info) {
    if (std::string_view(info.architecture) == "maple") return {1.0F, 20, 0.95F};
    return {0.2F, 0, 0.9F};
}

bool ends_inside_reasoning(const Tokenizer& tokenizer, std::span<const int32_t> prompt) {
    const size_t tail = std::min<size_t>(prompt.size(), 8);
    const std::string text = tokenizer.decode(prompt.last(tail), false);
    const size_t open = text.rfind(kOpen);
    return open != std::string::npos && text.find(kClose, open) == std::string::npos;
}

// The callbacks' state: exceptions must not cross the C interface.
struct Stream {
    Decoder* decoder;
    ReasoningSplitter* splitter;
    std::exception_ptr failure;
};

size_t detokenize(int32_t token, char* buffer, size_t capacity, void* user) {
    auto& stream = *static_cast<Stream*>(user);
    try {
        const std::string text = stream.decoder->push(token);
        const size_t n = std::min(capacity, text.size());
        std::copy_n(text.data(), n, buffer);
        return n;
    } catch (...) {
        stream.failure = std::current_exception();
        return 0;
    }
}

int on_token(int32_t, const char* text, size_t length, void* user) {
    auto& stream = *static_cast<Stream*>(user);
    try {
        if (!stream.failure) stream.splitter->push({text, length});
    } catch (...) {
        stream.failure = std::current_exception();
    }
    return stream.failure ? 0 : 1;
}

}  // namespace

void add_sampling_flags(CLI::App& command, SamplingFlags& f) {
    command.add_option("--temperature", f.temperature, "0: greedy (default: 1.0 for maple, 0.2 otherwise)")
        ->check(CLI::Range(0.0, 100.0));
    command.add_option("--top-k", f.top_k, "Keep the k most probable tokens; 0: all (default: 20 for maple)")
        ->check(CLI::Range(0, 1 << 24));
    command.add_option("--top-p", f.top_p, "Keep the most probable tokens of this total (default: 0.95, 0.9)")
        ->check(CLI::Range(1e-6, 1.0));
    command.add_option("--min-p", f.min_p, "Drop tokens below this share of the best one's probability")
        ->check(CLI::Range(0.0, 0.999));
    command.add_option("--repeat-penalty", f.repetition_penalty, "Divides the logits of recent tokens")
        ->check(CLI::Range(0.01, 100.0));
    command.add_option("--presence-penalty", f.presence_penalty, "Is subtracted from the logits of recent tokens")
        ->check(CLI::Range(-100.0, 100.0));
    command.add_option("--seed", f.seed, "Equal seeds give equal answers")->check(whole_number)->capture_default_str();
    command.add_option("-n,--max-tokens", f.max_tokens, "Tokens to generate at most; 0: until the context is full")
        ->check(CLI::Range(0U, 1U << 24));
    // Not a vector option: that would take "[a,b]" apart and swallow the words that follow.
    command
        .add_option_function<std::string>(
            "--stop", [&f](const std::string& text) { f.stop.push_back(text); },
            "End the answer before this text (may be given several times)")
        ->check([](const std::string& text) { return text.empty() ? "expected a text, found none" : ""; })
        ->trigger_on_parse();
    add_speculation_flags(command, f.speculation);
}

SamplerHandle create_sampler(const SamplingFlags& f, const samara_model_info& info) {
    const Defaults d = defaults_for(info);
    samara_sampling s{};
    s.struct_size = sizeof s;
    s.temperature = f.temperature < 0 ? d.temperature : f.temperature;
    s.top_k = static_cast<uint32_t>(f.top_k < 0 ? d.top_k : f.top_k);
    s.top_p = f.top_p < 0 ? d.top_p : f.top_p;
    s.min_p = f.min_p;
    s.repetition_penalty = f.repetition_penalty;
    s.presence_penalty = f.presence_penalty;
    s.seed = f.seed;
    samara_sampler* sampler = nullptr;
    check(samara_sampler_create(&s, &sampler));
    return SamplerHandle(sampler);
}

void ReasoningSplitter::pass(size_t count) {
    if (count > 0) sink_(std::string_view(held_).substr(0, count), inside_);
    held_.erase(0, count);
}

void ReasoningSplitter::push(std::string_view text) {
    held_ += text;
    for (;;) {
        const std::string_view tag = inside_ ? kClose : kOpen;
        const size_t at = held_.find(tag);
        if (at == std::string::npos) break;
        pass(at);
        held_.erase(0, tag.size());
        inside_ = !inside_;
    }
    // An end that may be the start of a tag waits for the next piece.
    const std::string_view tag = inside_ ? kClose : kOpen;
    size_t keep = std::min(held_.size(), tag.size() - 1);
    while (keep > 0 && !tag.starts_with(std::string_view(held_).substr(held_.size() - keep))) --keep;
    pass(held_.size() - keep);
}

void ReasoningSplitter::finish() { pass(held_.size()); }

Answer answer(samara_engine* engine, samara_session* session, samara_sampler* sampler, const Tokenizer& tokenizer,
              std::span<const int32_t> prompt, const SamplingFlags& flags, const ReasoningSplitter::Sink& sink) {
    if (prompt.empty()) throw Error(ErrorCode::kInvalidArgument, "the prompt is empty");
    Answer a;
    a.prompt_tokens = static_cast<uint32_t>(prompt.size());
    const std::span have(samara_session_tokens(session), samara_session_length(session));
    // At least the last token is processed again: its logits start the answer.
    const auto shared = static_cast<size_t>(
        std::mismatch(have.begin(), have.end(), prompt.begin(), prompt.end() - 1).first - have.begin());
    check(samara_session_truncate(session, shared, nullptr));
    a.reused_tokens = static_cast<uint32_t>(shared);
    auto start = std::chrono::steady_clock::now();
    const samara_model_info info = model_info(engine);
    if (prompt.size() > info.context_tokens) {
        throw Error(ErrorCode::kContextFull,
                    fmt::format("the prompt has {} tokens, more than the context of {} (raise --context, up to {})",
                                prompt.size(), info.context_tokens, info.trained_context));
    }
    prefill(engine, session, prompt.subspan(shared), true);
    a.prefill_seconds = seconds_since(start);
    for (const int32_t token : prompt) samara_sampler_accept(sampler, token);

    ReasoningSplitter splitter(ends_inside_reasoning(tokenizer, prompt), [&](std::string_view text, bool reasoning) {
        (reasoning ? a.reasoning : a.text) += text;
        sink(text, reasoning);
    });
    Decoder decoder(tokenizer, false);
    Stream stream{&decoder, &splitter, nullptr};
    const std::vector<int32_t> ends = tokenizer.end_tokens();
    std::vector<const char*> stops;
    stops.reserve(flags.stop.size());
    for (const std::string& s : flags.stop) stops.push_back(s.c_str());
    samara_generate_params p{};
    p.struct_size = sizeof p;
    p.sampler = sampler;
    p.max_tokens = flags.max_tokens;
    p.end_tokens = ends.data();
    p.end_token_count = static_cast<uint32_t>(ends.size());
    p.stop_strings = stops.data();
    p.stop_string_count = static_cast<uint32_t>(stops.size());
    p.detokenize = detokenize;
    p.on_token = on_token;
    p.user = &stream;
    flags.speculation.apply(p);
    samara_generate_result result{};
    result.struct_size = sizeof result;
    start = std::chrono::steady_clock::now();
    check(samara_generate(session, &p, &result));
    a.decode_seconds = seconds_since(start);
    if (stream.failure) std::rethrow_exception(stream.failure);
    splitter.finish();
    a.reason = result.reason;
    a.tokens = result.tokens;
    a.steps = result.steps;
    a.drafted = result.drafted;
    a.accepted = result.accepted;
    return a;
}

ReasoningSplitter::Sink terminal_sink() {
    return [dim = colours(stdout), was_reasoning = false](std::string_view text, bool reasoning) mutable {
        // Where it cannot be dimmed, its tags keep reasoning apart. Each piece ends undimmed: a program that stops here
        // must not leave the terminal dimmed.
        if (!dim && reasoning != was_reasoning) print(reasoning ? kOpen : kClose);
        was_reasoning = reasoning;
        print(dim && reasoning ? fmt::format("\033[2m{}\033[0m", text) : std::string(text));
    };
}

void explain_stop(const Answer& a, const samara_model_info& info) {
    if (a.reason == SAMARA_STOP_CONTEXT_FULL) {
        fmt::print(stderr, "samara: the answer was cut: the context of {} tokens is full (raise --context, up to {})\n",
                   info.context_tokens, info.trained_context);
    }
    if (a.reason == SAMARA_STOP_CANCELLED) fmt::print(stderr, "samara: stopped\n");
}

const char* stop_name(samara_stop_reason reason) {
    switch (reason) {
        case SAMARA_STOP_LIMIT:
            return "max_tokens";
        case SAMARA_STOP_END_TOKEN:
            return "end";
        case SAMARA_STOP_STRING:
            return "stop";
        case SAMARA_STOP_CONTEXT_FULL:
            return "context_full";
        case SAMARA_STOP_CALLBACK:
            return "callback";
        case SAMARA_STOP_CANCELLED:
            return "cancelled";
    }
    return "unknown";
}

}  // namespace samara::cli
