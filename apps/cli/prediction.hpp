#pragma once
// The arithmetic of `samara plan`: from bytes, bandwidth and measured efficiency to tokens a second.

#include <cstdint>
#include <optional>

#include "apps/cli/devices.hpp"

namespace samara::cli {

/// What one model asks of a machine, at one context length.
struct ModelNeeds {
    uint64_t attention = 0, experts = 0, router = 0, head = 0, embedding = 0, kv = 0;  // bytes a token reads
    uint64_t projection_weights = 0;  // that a token meets outside router and head
    uint64_t weight_bytes = 0;        // of all weights: what a chunk of a prompt may read
    uint64_t memory = 0;              // planned, all together

    uint64_t bytes_per_token() const { return attention + experts + router + head + embedding + kv; }
};

/// Decode at a context reads bytes_per_token(); this share of the reachable bandwidth was used here: the lowest and the
/// highest of the runs in docs/figures and the README.
inline constexpr Range kDecodeEfficiency{0.76, 0.92};

/// A weight meets an activation of 16 bits in two products of 8 bits, each a multiplication and an addition. Of the
/// rate that SMMLA could have, a matmul reaches this share: an assumption, for no phone has been measured.
inline constexpr uint64_t kOpsPerWeight = 4;
inline constexpr Range kPromptEfficiency{0.15, 0.5};
inline constexpr uint64_t kPromptChunk = 512;  // tokens that share one reading of the weights

enum class Fit { kYes, kPerhaps, kNo };

struct Prediction {
    Range decode_tps;
    std::optional<Range> prefill_tps, first_token_seconds;  // where the processor's speed is known; the model is loaded
    Fit fit = Fit::kNo;
};

/// `prompt` tokens (at least 1) before the first answer token.
Prediction predict(const Device& device, const ModelNeeds& needs, uint64_t prompt);

}  // namespace samara::cli
