#pragma once
// Layout::kTernaryDense seen from outside the vector kernels: from its 5-bit fields to the blocks of Layout::kTernary,
// which every set multiplies, and back.

#include <cstddef>
#include <cstdint>

namespace samara::kernels {

inline constexpr int kDenseCols = 12;        // columns in a block
inline constexpr int kDenseBlockBytes = 40;  // 64 fields of 5 bits

/// Unpacks one row group of `cols` columns: round_up(cols, 16) / 16 blocks of kTernary to `blocks`. Columns beyond
/// `cols` get some code; they meet activations of zero. Fields 27 to 31, which only a damaged file has, give the codes
/// of the definition: field % 3, field / 3 % 3, field / 9.
void unpack_dense_group(const std::byte* dense, int cols, std::byte* blocks);

/// The inverse: round_up(cols, 12) / 12 dense blocks, columns beyond `cols` with code 1. False when a code within
/// `cols` is 3, which has no dense form; `dense` is then unspecified.
bool pack_dense_group(const std::byte* blocks, int cols, std::byte* dense);

}  // namespace samara::kernels
