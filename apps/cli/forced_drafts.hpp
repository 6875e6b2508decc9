#pragma once
// What a step costs that carries drafted tokens: `samara bench --force-draft`.

#include <cstdint>
#include <span>
#include <vector>

#include "apps/cli/engine.hpp"

namespace samara::cli {

/// Steps of 1 + draft tokens, every draft right.
struct ForcedDraft {
    uint32_t draft = 0;
    double tokens_per_second = 0;
    double bytes_per_step = 0;
    double experts_per_layer = 0;  // different ones a step read; 0: a dense model
};

/// Generates `count` tokens after `prompt` by plain greedy decoding, then times the same tokens in steps with drafts of
/// 0 to `most` tokens, in turn, and takes the medians of `rounds`. Throws Error(kInternal) when a step's logits would
/// have chosen another token.
std::vector<ForcedDraft> measure_forced_drafts(samara_engine* engine, std::span<const int32_t> prompt, uint32_t count,
                                               uint32_t most, uint32_t rounds);

}  // namespace samara::cli
