#pragma once
// Reading a vocabulary head in part. A head in layout kNibbleKSplit is first approximated from the top two bits of its
// codes; a code's low two bits count as their mean, and what that leaves out has a known standard deviation if they
// are uniform and independent. Rows that can still matter are then refined bit by bit. How rows are chosen is
// src/model/head.hpp's affair.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "src/kernels/kernels.hpp"

namespace samara::kernels {

/// One token's quantised activations as the screen reads them.
struct ScreenInput {
    const Activations* a = nullptr;  // of one token
    // 32 columns are a group; `lanes` groups a chunk. Byte 4l+j of step s of chunk c: column 32*(c*lanes + l) + 4s + j.
    std::vector<int8_t> high, low;  // (chunks, 8, 4*lanes), zero beyond the columns
    std::vector<float> sums;        // (groups, a multiple of 16): sum of q
    std::vector<float> squares;     // (groups, a multiple of 16): sum of q^2
    float scale = 0;

    /// Room for `cols` columns; `fill` then allocates nothing.
    void reserve(int cols);
    void fill(const Activations& activations, int lanes);
};

/// Variance of what is not yet known of a code, its unread bits being uniform.
inline constexpr float kVarianceAfterTwoBits = 1.25F;
inline constexpr float kVarianceAfterThreeBits = 0.25F;

struct ScreenKernels {
    int lanes;  // for ScreenInput::fill

    /// value[row] = logit with every code's low two bits replaced by 1.5, norm[row] = scale * sqrt(sum over groups of
    /// (group scale)^2 * sum of q^2): times the root of a variance it is a standard deviation. Rows of groups
    /// [group_begin, group_end), padding rows too.
    void (*approximate)(const Matrix& w, int group_begin, int group_end, const ScreenInput& x, float* value,
                        float* norm);
    /// value[i] = approximation[rows[i]] with the third bits known (all_bits: the last ones too). Rounding aside, all
    /// bits give the logit.
    void (*refine)(const Matrix& w, const int32_t* rows, int n, bool all_bits, const ScreenInput& x,
                   const float* approximation, float* value);
};

/// The kernels of a set by its name, or null: then heads are read whole. The caller has checked the CPU.
const ScreenKernels* screen_kernels(std::string_view isa);

/// Writes row group `group` of a kNibbleK blob (row_group_bytes of that layout) into the planes of `to` (kNibbleKSplit,
/// same shape), whose blob begins at `out`.
void split_row_group(const std::byte* nibble_k, const Matrix& to, int group, std::byte* out);

}  // namespace samara::kernels
