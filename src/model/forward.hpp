#pragma once
// One forward pass over tokens of one or several sequences, from token ids to logits.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "src/kernels/kernels.hpp"
#include "src/memory/arena.hpp"
#include "src/memory/kv_cache.hpp"
#include "src/model/activations.hpp"
#include "src/model/config.hpp"
#include "src/model/flash.hpp"
#include "src/model/head.hpp"
#include "src/model/weights.hpp"
#include "src/platform/thread_pool.hpp"

namespace samara::model {

/// Tokens that one sequence adds in a step, at positions kv->length() onwards. The pages must be reserved.
struct SequenceInput {
    memory::KvSequence* kv = nullptr;
    std::span<const int32_t> tokens;               // each in [0, vocab)
    int logits_from = 0;                           // logits for tokens[logits_from..]; tokens.size(): none
    uint16_t* experts = nullptr;                   // optional out: (tokens, layers, experts_used) in router-rank order
    TopLogits* top = nullptr;                      // optional: filled for the last token, whose logits no one sees then
    const std::atomic<bool>* cancelled = nullptr;  // optional: set by any thread to stop the run
};

/// Receives the logits of token `token` of input `input`: vocab floats, valid during the call.
using LogitsSink = std::function<void(int input, int token, std::span<const float> logits)>;

/// Every buffer of a step, for at most `max_tokens` tokens.
struct StepBuffers {
    float* residual = nullptr;        // (tokens, hidden)
    ActivationBuffer normed;          // (tokens, hidden): input of QKV, router and experts
    float* qkv = nullptr;             // (tokens, q_rows + 2*kv_rows)
    ActivationBuffer attended;        // (tokens, q_rows)
    float* projected = nullptr;       // (tokens, hidden)
    float* router_logits = nullptr;   // (tokens, experts)
    uint16_t* chosen = nullptr;       // (tokens, used)
    float* weights = nullptr;         // (tokens, used)
    int32_t* slot_token = nullptr;    // (tokens*used): token of each slot, slots sorted by expert
    int32_t* slot_of = nullptr;       // (tokens, used): slot of each choice
    int32_t* expert_begin = nullptr;  // (experts + 1): first slot of each expert
    int32_t* active = nullptr;        // (experts): experts with at least one slot
    float* gate = nullptr;            // (slots, ffn)
    float* up = nullptr;              // (slots, ffn)
    ActivationBuffer expert_hidden;   // (slots, ffn)
    float* expert_out = nullptr;      // (slots, hidden)
    float* cos = nullptr;             // (tokens, rope_dims/2)
    float* sin = nullptr;             // (tokens, rope_dims/2)
    float* block_out = nullptr;       // (block_results, group, head_dim + 2): attention blocks before merging
    float* query_rows = nullptr;      // (threads, query_rows_size): kernels::QueryRows' arrays
    float* second_out = nullptr;      // products of second terms: (tokens, outputs) of the largest; null with one term
    ActivationBuffer head_input;      // (kHeadTile, hidden)
    float* logits = nullptr;          // (kHeadTile, vocab)

    void take(memory::Arena& arena, const ModelConfig& config, int max_tokens, int threads);
};

/// Wall time by part, in seconds; the parts are those whose bytes are counted (kv: attending to the cache), each with
/// the vector work that leads to it.
struct PartSeconds {
    double attention = 0, kv = 0, router = 0, experts = 0, head = 0;
};

inline constexpr int kHeadTile = 16;  // tokens whose logits are computed together

class Forward {
  public:
    /// References must outlive the object. Takes all scratch memory at once; `run` allocates nothing.
    Forward(const ModelConfig& config, const Weights& weights, const kernels::KernelTable& kernels,
            platform::ThreadPool& pool, int max_tokens, HeadMode head = HeadMode::kFull);

    /// Scratch bytes that an object for these numbers takes.
    static uint64_t scratch_bytes(const ModelConfig& config, int max_tokens, int threads,
                                  HeadMode head = HeadMode::kFull);

    /// Computes all inputs (together at most max_tokens tokens) and writes their keys and values; lengths are the
    /// caller's to commit. Throws Error(kNumeric) naming the layer, Error(kCancelled) when an input is cancelled.
    void run(std::span<const SequenceInput> inputs, const LogitsSink& sink);

    /// What the screened head has done so far; null when the head is always read whole.
    const ScreenCounts* screen_counts() const { return screen_ ? &screen_->counts() : nullptr; }

    /// What the approximate head has done so far; null when the head is not so.
    const FlashHead* flash() const { return flash_ ? &*flash_ : nullptr; }

    /// Where the time of all runs so far went.
    const PartSeconds& seconds() const { return seconds_; }

  private:
    struct Token {  // one row of the step
        int32_t id;
        int input;
        int64_t position;
    };
    struct QueryGroup {  // tokens of one input whose queries walk the keys together
        int first;       // row of the step
        int count;
    };
    struct Product {  // out (tokens, stride) = activations times w
        const kernels::Matrix* w;
        float* out;
        int64_t stride;
    };

    void gather(std::span<const SequenceInput> inputs);
    void embed();
    void attention(int layer, std::span<const SequenceInput> inputs);
    void position_and_store(int layer, int t, std::span<const SequenceInput> inputs);
    void attend(int layer, const QueryGroup& group, int kv_head, int thread, std::span<const SequenceInput> inputs);
    void attend_token(int layer, int t, int kv_head, int thread, std::span<const SequenceInput> inputs);
    void attend_in_pieces(int layer, std::span<const SequenceInput> inputs);
    void attend_block(int layer, int t, int kv_head, int64_t block, bool fetch_next,
                      std::span<const SequenceInput> inputs, const kernels::BlockResult& out);
    kernels::BlockResult block_result(int64_t index) const;
    int64_t first_key(int layer, int64_t position) const;
    void experts(int layer, std::span<const SequenceInput> inputs);
    void dense(int layer);
    void choose_experts(int layer, std::span<const SequenceInput> inputs);
    void sort_slots();
    void norm(const float* weight);
    bool activate(int row, int layer);
    void add_projected();
    void logits(std::span<const SequenceInput> inputs, const LogitsSink& sink);
    void top_logits(TopLogits& top);
    TopLogits* wanted_top(std::span<const SequenceInput> inputs, int row) const;
    void check_screen(const TopLogits& top);
    void lap(double& part);

    template <class Body>
    void each_row(int rows, Body&& body);
    template <size_t N>
    void multiply(const ActivationBuffer& buffer, int n, const Product (&products)[N]);
    void quantise_rows(const ActivationBuffer& buffer, int rows, int layer, const char* where);

    const ModelConfig& config_;
    const Weights& weights_;
    const kernels::KernelTable& kernels_;
    platform::ThreadPool& pool_;
    memory::Arena arena_;
    StepBuffers b_;
    std::vector<double> inverse_frequencies_;
    std::vector<Token> tokens_;        // capacity max_tokens
    std::vector<QueryGroup> queries_;  // capacity max_tokens
    std::vector<int> wanted_;          // rows of the step whose logits are wanted, capacity max_tokens
    // (experts): for each active expert, parts of gate and up that are left, and 1 until its hidden vectors are made
    std::unique_ptr<std::atomic<int>[]> unhidden_;
    int n_ = 0;  // rows of this step
    HeadMode head_mode_;
    std::optional<ScreenedHead> screen_;
    std::optional<FlashHead> flash_;
    TopLogits checked_;  // what the whole head gives, to compare
    PartSeconds seconds_;
    std::chrono::steady_clock::time_point lap_start_;
};

}  // namespace samara::model
