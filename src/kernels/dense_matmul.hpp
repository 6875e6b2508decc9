#pragma once
// Matmul of Layout::kTernaryDense through Layout::kTernary: some row groups are unpacked to the stack and multiplied
// there. With many tokens this costs almost nothing; with one it is how sets without a kernel of their own do it.

#include <algorithm>
#include <cstring>

#include "src/kernels/dense_layout.hpp"
#include "src/kernels/kernels.hpp"

namespace samara::kernels {
namespace {  // code for one instruction set must never be linked into another's place

/// KernelTable::matmul for kTernaryDense. kUnpack unpacks like unpack_dense_group, kMatmul multiplies kTernary.
template <auto kUnpack, auto kMatmul>
[[gnu::noinline]] void dense_through_two_bits(const Matrix& w, int group_begin, int group_end, const Activations& a,
                                              const int32_t* tokens, int n, float* out, int64_t out_stride) {
    constexpr int64_t kScaleBytes = kRowGroup * 4;
    constexpr int64_t kScratch = kMaxIntegerCols * 4 + kScaleBytes;  // a row group of the widest matrix
    alignas(64) std::byte scratch[kScratch];
    Matrix part{.layout = Layout::kTernary, .rows = kRowGroup, .cols = w.cols, .data = scratch};
    const int64_t group_bytes = row_group_bytes(part);
    const int64_t dense_bytes = row_group_bytes(w);
    const int64_t groups = round_up(w.rows, kRowGroup) / kRowGroup;
    const int most = static_cast<int>(kScratch / (group_bytes + kScaleBytes));
    for (int group = group_begin; group < group_end; group += most) {
        const int count = std::min(most, group_end - group);
        for (int g = 0; g < count; ++g) kUnpack(w.data + (group + g) * dense_bytes, w.cols, scratch + g * group_bytes);
        std::memcpy(scratch + count * group_bytes, w.data + groups * dense_bytes + group * kScaleBytes,
                    static_cast<size_t>(count * kScaleBytes));
        part.rows = std::min(count * kRowGroup, w.rows - group * kRowGroup);
        kMatmul(part, 0, count, a, tokens, n, out + int64_t{group} * kRowGroup, out_stride);
    }
}

}  // namespace
}  // namespace samara::kernels
