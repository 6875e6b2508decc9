#pragma once
// A model's weights in the kernels' layouts: mapped in place from a packed file, or repacked tensor by tensor from any
// other checkpoint.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/formats/checkpoint.hpp"
#include "src/kernels/matrix.hpp"
#include "src/model/config.hpp"
#include "src/platform/memory_block.hpp"
#include "src/platform/thread_pool.hpp"

namespace samara::model {

struct FeedForward {           // one expert, or the dense feed-forward
    kernels::Matrix gate, up;  // (ffn, hidden)
    kernels::Matrix down;      // (hidden, ffn)
};

struct LayerWeights {
    const float* attn_norm = nullptr;  // (hidden)
    kernels::Matrix wq;                // (heads * head_dim, hidden)
    kernels::Matrix wk, wv;            // (kv_heads * head_dim, hidden)
    kernels::Matrix wo;                // (hidden, heads * head_dim)
    const float* q_norm = nullptr;     // (head_dim), null without QK norm
    const float* k_norm = nullptr;     // (head_dim)
    const float* ffn_norm = nullptr;   // (hidden)
    kernels::Matrix router;            // (experts, hidden), no data in a dense layer
    std::vector<FeedForward> experts;  // (experts), or the one dense feed-forward
};

/// The index of an approximate head (src/formats/flash_index.hpp).
struct FlashWeights {
    kernels::Matrix rows;         // (vocab, hidden): the head's rows, cluster by cluster
    kernels::Matrix centroids;    // (clusters, hidden)
    int always = 0;               // leading clusters that every step reads
    std::vector<int32_t> order;   // (vocab): the token of each row
    std::vector<int32_t> row_of;  // (vocab): the row of each token
};

/// Bytes that one token's forward pass reads, by part; KV and embedding row aside.
struct BytesPerToken {
    uint64_t attention = 0;
    uint64_t experts = 0;  // or the dense feed-forward
    uint64_t router = 0;
    uint64_t head = 0;
};

/// What a load will hold: `mapped` bytes stay in the file's pages, `owned` bytes are this process's own memory.
struct WeightsPlan {
    uint64_t mapped = 0;
    uint64_t owned = 0;
};

/// Progress in bytes; return false to cancel.
using Progress = std::function<bool(uint64_t done, uint64_t total)>;

class Weights {
  public:
    /// Estimates from shapes and types; reads weights only where the layout depends on them.
    static WeightsPlan plan(const formats::Checkpoint& checkpoint, const ModelConfig& config, bool split_head = false);

    /// Takes the checkpoint and keeps it mapped. Throws Error(kFormat) for missing tensors or wrong shapes,
    /// Error(kMemory) as soon as more than `budget` bytes would be needed (0: no budget), Error(kCancelled).
    /// split_head: the head in layout kNibbleKSplit where its type can be (a packed file's is copied unless it is so).
    static Weights load(std::unique_ptr<formats::Checkpoint> checkpoint, const ModelConfig& config,
                        platform::ThreadPool& pool, uint64_t budget, const Progress& progress, bool split_head = false);

    const formats::Checkpoint& checkpoint() const { return *checkpoint_; }
    BytesPerToken bytes_per_token(const ModelConfig& config) const;
    uint64_t owned_bytes() const { return owned_; }
    bool packed() const { return packed_; }

    /// Writes the embedding of `token` to out[hidden] as float32.
    void embed(int32_t token, float* out) const;

    std::vector<LayerWeights> layers;
    const float* output_norm = nullptr;  // (hidden)
    kernels::Matrix head;                // (vocab, hidden)
    FlashWeights flash;                  // loaded when asked for

    /// Takes the flash index of a packed file. Throws Error(kInvalidArgument) when the file has none, Error(kFormat)
    /// when it is damaged.
    void load_flash(const ModelConfig& config);

  private:
    friend class WeightsLoader;
    std::unique_ptr<formats::Checkpoint> checkpoint_;
    std::vector<platform::MemoryBlock> blocks_;
    std::vector<std::vector<float>> vectors_;
    const formats::Tensor* embedding_ = nullptr;  // raw rows of the file, or
    kernels::Matrix embedding_matrix_;            // a packed matrix
    uint64_t owned_ = 0;
    bool packed_ = false;
};

}  // namespace samara::model
