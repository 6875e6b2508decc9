#pragma once
// A row group of a kNibbleKSplit matrix back in kNibbleK's form, which is how everything but the screen reads it: the
// full evaluation of a split head therefore has kNibbleK's bits by construction. Included by files compiled for one
// instruction set each.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/kernels/kernels.hpp"

namespace samara::kernels {
namespace {

/// Writes row group `group` of `w` to out[row_group_bytes of kNibbleK], 64-byte aligned.
inline void join_row_group(const Matrix& w, int group, std::byte* out) {
    constexpr int kHeader = 320;
    const SplitPlanes planes = split_planes(w);
    const std::byte* high = w.data + group * row_group_bytes(w);
    const std::byte* third = w.data + planes.third + int64_t{group} * kRowGroup * planes.third_row;
    const std::byte* last = w.data + planes.last + int64_t{group} * kRowGroup * planes.last_row;
    for (int64_t record = 0; record < planes.records; ++record) {
        std::memcpy(out, high, kHeader);
        high += kHeader;
        out += kHeader;
        for (int g = 0; g < 8; ++g, high += 128, out += 256) {
            uint32_t bit1[kRowGroup], bit0[kRowGroup], top[2][kRowGroup], block[4][kRowGroup];
            const int64_t at = record * 32 + 4 * g;
            for (int r = 0; r < kRowGroup; ++r) {
                std::memcpy(&bit1[r], third + r * planes.third_row + at, 4);
                std::memcpy(&bit0[r], last + r * planes.last_row + at, 4);
            }
            std::memcpy(top, high, sizeof top);
            constexpr uint32_t kOnes = 0x01010101;
            for (int b = 0; b < 4; ++b) {
                const uint32_t* two = top[b / 2];
                for (int r = 0; r < kRowGroup; ++r) {
                    const uint32_t codes = two[r] >> (4 * (b % 2));
                    const uint32_t t = bit1[r] >> (2 * b), l = bit0[r] >> (2 * b);
                    const uint32_t even = (codes & 0x03030303) << 2 | (t & kOnes) << 1 | (l & kOnes);
                    const uint32_t odd = (codes & 0x0c0c0c0c) | (t & 2 * kOnes) | (l >> 1 & kOnes);
                    block[b][r] = even | odd << 4;
                }
            }
            std::memcpy(out, block, sizeof block);
        }
    }
}

/// KernelTable::matmul for kNibbleKSplit through kMatmul for kNibbleK.
template <auto kMatmul>
[[gnu::noinline]] void split_through_nibble_k(const Matrix& w, int group_begin, int group_end, const Activations& a,
                                              const int32_t* tokens, int n, float* out, int64_t out_stride) {
    alignas(64) std::byte scratch[kMaxSplitCols / 256 * 2368];
    for (int group = group_begin; group < group_end; ++group) {
        join_row_group(w, group, scratch);
        const int first = group * kRowGroup;
        const Matrix part{.layout = Layout::kNibbleK,
                          .rows = w.rows - first < kRowGroup ? w.rows - first : kRowGroup,
                          .cols = w.cols,
                          .data = scratch};
        kMatmul(part, 0, 1, a, tokens, n, out + first, out_stride);
    }
}

}  // namespace
}  // namespace samara::kernels
