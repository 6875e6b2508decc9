#pragma once
// Float32 weights to the block formats of GGML (the layouts are those of ggml's quants; see dequantise_row for the way
// back). Used where Samara makes weights itself: synthetic models and tests. Plain float32 arithmetic in a fixed order,
// so that the same weights give the same bytes on every machine.

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/formats/checkpoint.hpp"

namespace samara::formats {

/// Bytes of `weights` elements of `type`; `weights` is a whole number of blocks.
size_t quantised_bytes(TensorType type, size_t weights);

/// Writes finite `weights` as F32, F16, BF16, Q8_0, Q4_1 or Q4_K to out[quantised_bytes(type, weights.size())].
/// Throws Error(kInvalidArgument) for another type, a partial block or an out of another size.
void quantise(TensorType type, std::span<const float> weights, std::span<std::byte> out);

/// Writes ternary codes {0, 1, 2} (weight = scale * (code - 1)) as TQ1_0 or TQ2_0, the same scale in every block.
/// `scale` must be a value that F16 holds. Throws Error(kInvalidArgument) as above.
void pack_ternary(TensorType type, std::span<const uint8_t> codes, float scale, std::span<std::byte> out);

}  // namespace samara::formats
