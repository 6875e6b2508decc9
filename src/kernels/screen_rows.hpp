#pragma once
// The screen over a vector type. A set brings its lanes and the products; everything is local to one source file, so
// that code compiled for one set can never be linked into another.

#include <cstring>

#include "src/kernels/screen.hpp"
#include "src/kernels/x86.hpp"

namespace samara::kernels {
namespace {

/// The high plane: a lane is a row.
template <class Set>
void approximate(const Matrix& w, int group_begin, int group_end, const ScreenInput& x, float* value, float* norm) {
    using Float = typename Set::Float;
    using Int = typename Set::Int;
    constexpr int kUnits = kRowGroup / Set::kLanes;
    constexpr int kHeader = 320;
    const int64_t records = padded_cols(w) / 256;
    const Float scale = Set::set1(x.scale);
    for (int group = group_begin; group < group_end; ++group) {
        const std::byte* at = w.data + group * row_group_bytes(w);
        Float total[kUnits], square[kUnits];
        for (int u = 0; u < kUnits; ++u) total[u] = square[u] = Set::zero();
        const int8_t* high = x.a->high;
        const int8_t* low = x.a->low;
        const float* sums = x.sums.data();
        const float* squares = x.squares.data();
        for (int64_t record = 0; record < records; ++record, at += 1344) {
            Float d[kUnits], dmin[kUnits];
#pragma GCC unroll 2
            for (int u = 0; u < kUnits; ++u) {
                d[u] = Set::load_half(at + 2 * u * Set::kLanes);
                dmin[u] = Set::load_half(at + 32 + 2 * u * Set::kLanes);
            }
            for (int g = 0; g < 8; ++g, high += 32, low += 32, ++sums, ++squares) {
                Int sum_high[kUnits], sum_low[kUnits];
#pragma GCC unroll 2
                for (int u = 0; u < kUnits; ++u) sum_high[u] = sum_low[u] = Set::zero_int();
#pragma GCC unroll 2
                for (int b = 0; b < 2; ++b) {
                    const std::byte* codes = at + kHeader + g * 128 + b * 64;
                    Set::prefetch(codes);
                    Int block[kUnits];
#pragma GCC unroll 2
                    for (int u = 0; u < kUnits; ++u) block[u] = Set::load_int(codes + 4 * u * Set::kLanes);
#pragma GCC unroll 4
                    for (int f = 0; f < 4; ++f) {
                        const Int x_high = Set::broadcast4(high + 16 * b + 4 * f);
                        const Int x_low = Set::broadcast4(low + 16 * b + 4 * f);
#pragma GCC unroll 2
                        for (int u = 0; u < kUnits; ++u) {
                            const Int field = Set::template field<2>(block[u], 2 * f);
                            sum_high[u] = Set::accumulate(sum_high[u], field, x_high);
                            sum_low[u] = Set::accumulate(sum_low[u], field, x_low);
                        }
                    }
                }
                const Float four = Set::set1(4.0F), q_sum = Set::set1(*sums), low_mean = Set::set1(1.5F * *sums),
                            q_square = Set::set1(*squares);
#pragma GCC unroll 2
                for (int u = 0; u < kUnits; ++u) {
                    const std::byte* codes = at + 64 + g * kRowGroup + u * Set::kLanes;
                    const Float s = Set::mul(d[u], Set::load_u8(codes));
                    const Float m = Set::mul(dmin[u], Set::load_u8(codes + 128));
                    const Float known = Set::fma(four, Set::to_float(Set::finish(sum_high[u], sum_low[u])), low_mean);
                    total[u] = Set::neg_fma(m, q_sum, Set::fma(s, known, total[u]));
                    square[u] = Set::fma(Set::mul(s, s), q_square, square[u]);
                }
            }
        }
        for (int u = 0; u < kUnits; ++u) {
            const int row = group * kRowGroup + u * Set::kLanes;
            Set::store(value + row, Set::mul(total[u], scale));
            Set::store(norm + row, Set::mul(Set::sqrt(square[u]), scale));
        }
    }
}

/// The row-wise planes: a lane is a group of 32 columns.
template <class Set, bool kAllBits>
void refine_rows(const Matrix& w, const int32_t* rows, int n, const ScreenInput& x, const float* approximation,
                 float* value) {
    using Float = typename Set::Float;
    using Int = typename Set::Int;
    constexpr int kAhead = 12;  // rows fetched before they are needed
    constexpr int kChunkBytes = 4 * Set::kLanes;
    const SplitPlanes planes = split_planes(w);
    const int chunks = static_cast<int>(planes.pairs * 16 / Set::kLanes);
    const std::byte* third = w.data + planes.third;
    const std::byte* last = w.data + planes.last;
    const auto fetch = [&](int64_t row) {
        for (int64_t at = 0; at < planes.third_row; at += 64) Set::fetch(third + row * planes.third_row + at);
        if constexpr (kAllBits) {
            for (int64_t at = 0; at < planes.last_row; at += 64) Set::fetch(last + row * planes.last_row + at);
        }
    };
    for (int i = 0; i < n && i < kAhead; ++i) fetch(rows[i]);
    for (int i = 0; i < n; ++i) {
        if (i + kAhead < n) fetch(rows[i + kAhead]);
        const std::byte* bits = third + rows[i] * planes.third_row;
        const std::byte* last_bits = last + rows[i] * planes.last_row;
        const std::byte* scales = bits + planes.pairs * 64;
        const std::byte* d = scales + planes.pairs * 16;
        Float total = Set::zero();
        for (int c = 0; c < chunks; ++c) {
            const Int upper = Set::load_int(bits + c * kChunkBytes);
            Int lower = Set::zero_int();
            if constexpr (kAllBits) lower = Set::load_int(last_bits + c * kChunkBytes);
            Int sum_high = Set::zero_int(), sum_low = Set::zero_int();
            const int8_t* high = x.high.data() + c * 8 * kChunkBytes;
            const int8_t* low = x.low.data() + c * 8 * kChunkBytes;
#pragma GCC unroll 8
            for (int s = 0; s < 8; ++s) {
                Int code = Set::template field<1>(upper, s);
                if constexpr (kAllBits) code = Set::double_and_add(code, Set::template field<1>(lower, s));
                sum_high = Set::accumulate(sum_high, code, Set::load_int(high + s * kChunkBytes));
                sum_low = Set::accumulate(sum_low, code, Set::load_int(low + s * kChunkBytes));
            }
            const Float sum = Set::to_float(Set::finish(sum_high, sum_low));
            const Float q_sum = Set::load(x.sums.data() + c * Set::kLanes);
            // What is known now, less what the approximation took for it.
            const Float gain = kAllBits ? Set::neg_fma(Set::set1(1.5F), q_sum, sum)
                                        : Set::neg_fma(Set::set1(1.0F), q_sum, Set::mul(Set::set1(2.0F), sum));
            total = Set::fma(Set::row_scales(scales + c * Set::kLanes, d + c * Set::kLanes / 4), gain, total);
        }
        value[i] = approximation[rows[i]] + x.scale * Set::sum(total);
    }
}

template <class Set>
void refine(const Matrix& w, const int32_t* rows, int n, bool all_bits, const ScreenInput& x,
            const float* approximation, float* value) {
    (all_bits ? refine_rows<Set, true> : refine_rows<Set, false>)(w, rows, n, x, approximation, value);
}

}  // namespace
}  // namespace samara::kernels
