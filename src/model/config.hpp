#pragma once
// The numbers that shape a model, read from GGUF metadata and checked. One struct serves both architectures: `maple`
// (ternary mixture of experts) and dense `llama`.

#include <cstdint>
#include <string>
#include <vector>

#include "src/formats/checkpoint.hpp"

namespace samara::model {

struct ModelConfig {
    std::string architecture;  // "maple" or "llama"
    std::string name;          // general.name, may be empty
    int layers = 0;
    int hidden = 0;    // residual width
    int heads = 0;     // query heads
    int kv_heads = 0;  // divides heads
    int head_dim = 0;
    int vocab = 0;
    int64_t context = 0;   // positions the model was trained for
    int ffn = 0;           // width of one expert, or of the dense feed-forward
    int experts = 0;       // 0: dense
    int experts_used = 0;  // per token
    float norm_epsilon = 0;
    bool qk_norm = false;           // RMSNorm of each query and key head, before RoPE
    int window = 0;                 // keys a sliding layer sees, the current one included; 0: no sliding layer
    std::vector<bool> sliding;      // one a layer
    std::vector<float> clamp;       // one a layer: silu(min(gate, clamp)) * clamp(up, -clamp, clamp); +inf: none
    int rope_dims = 0;              // leading dims of a head that rotate
    bool rope_interleaved = false;  // pairs (2i, 2i+1) instead of (i, i + rope_dims/2)
    bool rope_on_full = true;       // false: full layers have no position encoding when sliding layers exist
    double rope_theta = 0;          // sliding layers (and full ones where they rotate)
    bool tied_head = false;         // output.weight absent: the head is the embedding

    int q_rows() const { return heads * head_dim; }
    int kv_rows() const { return kv_heads * head_dim; }
    bool rotates(int layer) const { return rope_on_full || sliding[static_cast<size_t>(layer)]; }
    uint64_t parameters() const;            // all weights
    uint64_t parameters_per_token() const;  // weights one token meets (embedding row aside)
};

/// Reads and checks the config. Throws Error(kUnsupported) for another architecture or an unknown feature (RoPE
/// scaling, biases), Error(kFormat) for absent or impossible values; messages name the file and the key.
ModelConfig read_config(const formats::Checkpoint& checkpoint);

}  // namespace samara::model
