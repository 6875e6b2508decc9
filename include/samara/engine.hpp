#pragma once
// The C++ interface: an Engine holds one model, a Session one sequence. include/samara/samara.h is the same in C and
// documents the semantics; this header states types and ownership. Functions throw samara::Error.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/platform/error.hpp"

namespace samara {

namespace formats {
class Checkpoint;
class Metadata;
}  // namespace formats
namespace kernels {
enum class Isa;
struct KernelTable;
}  // namespace kernels

struct LoadOptions {
    std::string path;
    int descriptor = -1;  // >= 0: read from it instead of opening path
    uint64_t offset = 0, length = 0;
    std::string isa = "auto";     // with "auto", a dense packed file is refused where it would run slowly
    int threads = 0;              // 0: all CPUs this process may use
    uint64_t memory_budget = 0;   // bytes, 0: none
    uint64_t context_tokens = 0;  // 0: the smaller of 4096 and the model's context
    int max_sessions = 4;
    int max_step_tokens = 512;
    int rewind_span = 1024;
    // How `generate` reads the vocabulary head: "full", "screened", "checked", "flash" or "flash-checked".
    std::string head = "full";
    std::string kv = "int16";    // keys and values are kept as "int16", or as "int8" in half the memory
    bool metadata_only = false;  // headers and metadata, no weights: such an engine makes no sessions
    std::function<bool(uint64_t done, uint64_t total)> progress;  // false cancels
    const kernels::KernelTable* kernels = nullptr;  // in place of isa's own, to measure what a changed kernel does
};

struct MemoryPlan {
    uint64_t weights_mapped = 0, weights_owned = 0, kv_cache = 0, scratch = 0;
    uint64_t total() const { return weights_mapped + weights_owned + kv_cache + scratch; }
};

struct ModelInfo {
    std::string architecture, name, format, isa;
    int threads = 0;
    int layers = 0, hidden = 0, vocab = 0, experts = 0, experts_used = 0, sliding_window = 0;
    uint64_t context_tokens = 0, trained_context = 0;
    uint64_t parameters = 0, parameters_per_token = 0, file_bytes = 0;
    MemoryPlan memory;
    uint64_t bytes_attention = 0, bytes_experts = 0, bytes_router = 0, bytes_head = 0, bytes_embedding = 0;
};

/// kTop: no logits but the best tokens after the last one, StepInput::top of them.
enum class LogitsWanted { kLast, kNone, kAll, kTop };

inline constexpr int kMaxTopTokens = 256;

/// The best tokens and their exact logits, and those of other tokens that were asked for; valid as logits are.
struct TopTokens {
    std::span<const int32_t> ids;  // the best first, then the others
    std::span<const float> logits;
};

/// How often an approximate head read the tokens that the whole head finds best; see samara_flash_agreement.
struct FlashAgreement {
    uint64_t steps = 0, compared = 0, best = 0, top20 = 0;
};

/// Wall time of all steps so far by part, in seconds; the parts are ModelInfo's bytes_*, and kv attends to the cache.
struct StepSeconds {
    double attention = 0, kv = 0, router = 0, experts = 0, head = 0;
};

class Session;

struct StepInput {
    Session* session = nullptr;
    std::span<const int32_t> tokens;
    LogitsWanted logits = LogitsWanted::kLast;
    uint16_t* experts = nullptr;         // optional out: (tokens, layers, experts_used)
    int top = 0;                         // kTop: 1 to kMaxTopTokens
    std::span<const int32_t> also = {};  // kTop: ids, at most kMaxTopTokens, whose logits are given whatever they are
};

struct StepParams {
    std::span<const StepInput> inputs;
    int chunk = 0;  // 0: max_step_tokens
    std::function<void(int input, int token, std::span<const float> logits)> on_logits;
    std::function<bool(uint64_t done, uint64_t total)> on_progress;
};

class Engine {
  public:
    static MemoryPlan plan(const LoadOptions& options);
    static std::unique_ptr<Engine> load(const LoadOptions& options);
    ~Engine();

    const ModelInfo& info() const;
    const formats::Metadata& metadata() const;
    uint64_t kv_bytes(uint64_t position) const;  // KV read by one token at `position`
    uint64_t head_bytes() const;  // of the head read by a step of one token: the mean so far where it is screened
    StepSeconds step_seconds() const;
    bool reads_part_of_head() const;  // kTop reads the head in part
    bool approximates_head() const;   // kTop sees only the tokens that an approximate head reads
    FlashAgreement flash_agreement() const;
    /// Tokens after the first of a step that Session::truncate takes back without computing anything again: bounded by
    /// max_step_tokens and, where layers slide, by rewind_span.
    int max_draft() const;

    /// Sessions must be freed before the engine. Throws Error(kMemory) when max_sessions are alive.
    std::unique_ptr<Session> create_session();
    void step(const StepParams& params);

  private:
    friend class Session;
    struct State;
    explicit Engine(std::unique_ptr<State> state);
    static void describe(State& s, kernels::Isa isa);
    static void load_weights(State& s, std::unique_ptr<formats::Checkpoint> checkpoint,
                             const kernels::KernelTable& table);
    std::unique_ptr<State> state_;
};

class Session {
  public:
    ~Session();
    std::unique_ptr<Session> fork() const;
    std::span<const int32_t> tokens() const;
    /// Returns how many tokens the next step must process again (0 nearly always).
    uint64_t truncate(uint64_t length);
    /// Logits after the last token. Throws Error(kInvalidArgument) when the last step asked for none.
    std::span<const float> logits() const;
    bool has_logits() const;
    /// What the last step was asked for with LogitsWanted::kTop. Throws Error(kInvalidArgument) when it was not.
    TopTokens top() const;
    bool has_top() const;
    /// Adds a token without computing it: the next step does. For a token that was shown before a step was cancelled.
    void append_pending(int32_t token);
    void cancel();  // from any thread
    void resume();
    bool cancelled() const;
    Engine& engine() const;

  private:
    friend class Engine;
    struct State;
    explicit Session(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

struct Sampling {
    float temperature = 0;  // 0: greedy
    int top_k = 0;
    float top_p = 1, min_p = 0;
    float repetition_penalty = 1, presence_penalty = 0;
    int penalty_last = 64;
    uint64_t seed = 0;
};

/// Chooses tokens; reproducible on every machine (own exponential, own generator).
class Sampler {
  public:
    /// Throws Error(kInvalidArgument) naming the setting out of range.
    explicit Sampler(const Sampling& sampling);
    void accept(int32_t token);
    int32_t choose(std::span<const float> logits);  // the choice is accepted; allocates only when vocab grows
    /// The same choice from the top_needed() best tokens and those of penalised().
    int32_t choose(const TopTokens& top);
    /// How many of the best tokens decide, the penalised ones aside; 0: all.
    int top_needed() const;
    /// The tokens whose logits penalties change; may repeat.
    std::span<const int32_t> penalised() const;

    /// What one token more (`choose` or `accept`) changes.
    struct Mark {
        uint64_t state[4];
        size_t recent, next_recent;
        int32_t replaced;
    };
    Mark mark() const;
    /// Goes back to `mark`, since when at most one token was chosen or accepted. Several: the latest mark first.
    void go_back(const Mark& mark);

  private:
    struct Candidate {
        float logit;
        int32_t id;
        float weight;
    };
    int32_t choose_from_candidates();
    bool penalises() const;
    Candidate* find(int32_t token);
    void penalise();
    void keep_top_k();
    size_t keep_top_p();
    double uniform();  // in [0, 1)

    Sampling sampling_;
    uint64_t state_[4];
    std::vector<int32_t> recent_;  // ring of the last penalty_last tokens
    size_t next_recent_ = 0;
    std::vector<Candidate> candidates_;
    size_t vocab_ = 0;  // candidates there are in all
    std::vector<float> scratch_;
};

/// Drafts tokens where the text repeats itself, computes them in one step, and keeps those that are the sampler's own
/// choices: the tokens are those of plain decoding. kAuto drafts where it is expected to be faster; kAlways wherever
/// the text repeats, at full length.
enum class Speculation { kAuto, kOff, kAlways };

inline constexpr int kMaxDraft = 15;  // a step of 16 tokens
inline constexpr int kDefaultDraft = 8;

enum class StopReason { kLimit, kEndToken, kStopString, kContextFull, kCallback, kCancelled };

struct GenerateParams {
    Sampler* sampler = nullptr;
    uint32_t max_tokens = 0;  // 0: until the context is full
    std::vector<int32_t> end_tokens;
    std::vector<std::string> stop_strings;
    std::function<std::string(int32_t token)> detokenize;  // -1 ends the stream
    std::function<bool(int32_t token, std::string_view text)> on_token;
    Speculation speculation = Speculation::kAuto;
    int max_draft = 0;  // tokens drafted for a step at most, up to kMaxDraft; 0: kDefaultDraft
};

struct GenerateResult {
    StopReason reason = StopReason::kLimit;
    uint32_t tokens = 0;
    uint32_t stop_string = 0;
    double seconds = 0;
    uint32_t steps = 0;                  // passes over the weights
    uint32_t drafted = 0, accepted = 0;  // tokens, of all drafts
};

GenerateResult generate(Session& session, const GenerateParams& params);

}  // namespace samara
