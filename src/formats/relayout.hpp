#pragma once
// A packed file packed anew: other layouts for the same weights, without the model that it was packed from. The file
// that comes out is the one that packing that model with the same choices gives.

#include <cstddef>
#include <span>
#include <string>

#include "src/formats/packed_plan.hpp"

namespace samara::formats {

/// What packing `packed`, a packed file, with these choices holds: its tensors in order. Throws what packed_matrix and
/// packed_experts throw, and Error(kInvalidArgument) when the file has these layouts already.
PackedPlan plan_relayout(const Checkpoint& packed, HeadLayout head, TernaryLayout ternary);

/// Writes `from` to out[matrix_bytes(to)] in the layout of `to`, which has the same shape and either the same layout or
/// the other one of kTernary and kTernaryDense, or of kNibbleK and kNibbleKSplit. Throws Error(kFormat), naming
/// `tensor`, for a code 3, which kTernaryDense cannot hold.
void relayout(const kernels::Matrix& from, const kernels::Matrix& to, const std::string& tensor,
              std::span<std::byte> out);

}  // namespace samara::formats
