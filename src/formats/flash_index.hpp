#pragma once
// The index of an approximate head (`--head flash`): the vocabulary in clusters of rows that point alike, made when a
// model is packed. docs/decisions/flash-head.md says why it is made this way.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "src/formats/checkpoint.hpp"

namespace samara::formats {

inline constexpr int kFlashClusterRows = 128;

struct FlashIndex {
    std::vector<int32_t> order;    // (vocab): token ids, cluster by cluster; only the last cluster may be shorter
    std::vector<float> centroids;  // (clusters, cols): each cluster's mean row, rounded to bfloat16
    int always = 0;                // leading clusters that every step reads: they hold the `control` tokens
};

/// Clusters the rows of `head` (cols, vocab). The same bits on every machine: float32 in one order. `step` is called
/// now and then and may throw to cancel. Throws Error(kInvalidArgument) for a control token outside the vocabulary.
FlashIndex build_flash_index(const Tensor& head, std::span<const int32_t> control, const std::function<void()>& step);

/// Ids of the tokens that end, begin or structure a text: control and user-defined tokens and those that the
/// tokenizer's keys name, ascending.
std::vector<int32_t> control_tokens(const Metadata& metadata, int64_t vocab);

}  // namespace samara::formats
