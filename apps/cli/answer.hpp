#pragma once
// One answer of a model, streamed: prompt in, reasoning and text out. `run` and `chat` share it.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/engine.hpp"
#include "apps/cli/text.hpp"

namespace samara::cli {

struct SamplingFlags {
    float temperature = -1;  // below 0: the architecture's default, as for top_k and top_p
    int top_k = -1;
    float top_p = -1;
    float min_p = 0;
    float repetition_penalty = 1;
    float presence_penalty = 0;
    uint64_t seed = 0;
    uint32_t max_tokens = 0;  // 0: until the context is full
    std::vector<std::string> stop;
    SpeculationFlags speculation;
};
void add_sampling_flags(CLI::App& command, SamplingFlags& flags);
SamplerHandle create_sampler(const SamplingFlags& flags, const samara_model_info& info);

/// Text between <think> and </think> is reasoning; everything else is the answer. Tags may arrive in pieces.
class ReasoningSplitter {
  public:
    using Sink = std::function<void(std::string_view text, bool reasoning)>;
    /// `inside`: the prompt already opened a reasoning block.
    ReasoningSplitter(bool inside, Sink sink) : inside_(inside), sink_(std::move(sink)) {}
    void push(std::string_view text);
    void finish();

  private:
    void pass(size_t count);
    bool inside_;
    Sink sink_;
    std::string held_;
};

struct Answer {
    std::string text, reasoning;
    samara_stop_reason reason = SAMARA_STOP_LIMIT;
    uint32_t prompt_tokens = 0;  // of the whole prompt
    uint32_t reused_tokens = 0;  // of it, already in the session
    uint32_t tokens = 0;         // generated
    uint32_t steps = 0, drafted = 0, accepted = 0;
    double prefill_seconds = 0, decode_seconds = 0;
};

/// Makes the session hold `prompt` (keeping what it shares with it) and generates. `sink` sees the text as it comes.
Answer answer(samara_engine* engine, samara_session* session, samara_sampler* sampler, const Tokenizer& tokenizer,
              std::span<const int32_t> prompt, const SamplingFlags& flags, const ReasoningSplitter::Sink& sink);

/// A sink that prints to standard output: reasoning dimmed on a terminal, between its tags elsewhere.
ReasoningSplitter::Sink terminal_sink();

/// Says on standard error why an answer ended, where that is not the ordinary way. `info` names the context.
void explain_stop(const Answer& answer, const samara_model_info& info);
const char* stop_name(samara_stop_reason reason);

}  // namespace samara::cli
