#pragma once
// What the vector sets share of the integer matmul: the walk over rows, tokens and groups, and the float arithmetic
// that ends a group. A set brings the integer dot products and its vector type.
//
// The work is cut into tiles of kUnits x kTokens. A unit is kLanes rows that lie side by side in a block: a whole row
// group for AVX-512, half of one for AVX2, a quarter for NEON. With one token a set may use other units than with many
// (see Set).
//
// Everything is a template over a Set that is local to one source file, so that code compiled for one set can never be
// linked into another.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "src/kernels/kernels.hpp"

namespace samara::kernels::tiles {
namespace {  // code for one instruction set must never be linked into another's place

/// The tokens of one tile. Planes are addresses, not pointers: a token's low plane lies `low` bytes after its high
/// plane, whatever arrays they are in, which halves the address registers an inner loop needs.
template <int kTokens>
struct TokenTile {
    uintptr_t high[kTokens];         // int8 (stride)
    intptr_t low;                    // bytes from high to low plane
    const int16_t* q[kTokens];       // (stride)
    const int32_t* sums16[kTokens];  // (stride / 16)
    int32_t sum[kTokens];
    float scale[kTokens];
};

template <int kTokens>
TokenTile<kTokens> gather(const Activations& a, const int32_t* tokens, int first) {
    TokenTile<kTokens> tile;
    tile.low = static_cast<intptr_t>(reinterpret_cast<uintptr_t>(a.low) - reinterpret_cast<uintptr_t>(a.high));
    for (int i = 0; i < kTokens; ++i) {
        const int64_t t = tokens != nullptr ? tokens[first + i] : first + i;
        tile.high[i] = reinterpret_cast<uintptr_t>(a.high + t * a.stride);
        tile.q[i] = a.q + t * a.stride;
        tile.sums16[i] = a.sums16 + t * (a.stride / 16);
        tile.sum[i] = a.sum[t];
        tile.scale[i] = a.scale[t];
    }
    return tile;
}

/// Where the codes, scales and groups of a layout lie. kCols: columns of a group, or 0 when a row has one scale.
template <Layout kLayout, int kCols>
struct Shape {
    static constexpr bool kIsByte = kLayout == Layout::kByte;
    static constexpr bool kIsTernary = kLayout == Layout::kTernary || kLayout == Layout::kTernaryBlocks;
    static constexpr int kBits = kIsTernary ? 2 : kIsByte ? 8 : 4;
    static constexpr int kBlockCols = 32 / kBits;  // columns in a block of 64 bytes
    static constexpr int kBlocks = kCols / kBlockCols;
    static constexpr int kHeader = kIsTernary ? 0 : 128;  // scale[16], min[16]
    static constexpr int64_t kGroupBytes = kHeader + int64_t{64} * kBlocks;
};

// kNibbleK's record of 256 columns.
inline constexpr int kRecordBytes = 2368;
inline constexpr int kRecordMin = 32;
inline constexpr int kRecordScaleCodes = 64;
inline constexpr int kRecordMinCodes = 192;
inline constexpr int kRecordBlocks = 320;

/// Multiplies units [unit, unit + kUnits) by one tile of tokens; first_out is the output of the first token.
template <class Set, Layout kLayout, int kCols, int kUnits, int kTokens>
class Tile {
  public:
    using S = Shape<kLayout, kCols>;
    using Float = typename Set::Float;
    using Int = typename Set::Int;

    Tile(const Matrix& w, int64_t group_bytes, int unit, const TokenTile<kTokens>& x, int64_t prefetch)
        : w_(w), x_(x), prefetch_(prefetch), unit_(unit) {
        for (int u = 0; u < kUnits; ++u) {
            const int row = (unit + u) * Set::kLanes;
            lane_[u] = row % kRowGroup;
            group_[u] = w.data + row / kRowGroup * group_bytes;
            for (int t = 0; t < kTokens; ++t) total_[u][t] = Set::zero();
        }
        if constexpr (S::kIsTernary) {
            const int64_t groups = round_up(w.rows, kRowGroup) / kRowGroup;
            scales_ = reinterpret_cast<const float*>(w.data + groups * group_bytes);
        }
    }

    [[gnu::always_inline]] inline void run(float* first_out, int64_t out_stride) {
        if constexpr (kLayout == Layout::kTernary) {
            whole_rows();
        } else {
            if constexpr (kLayout == Layout::kTernaryBlocks) {
                ternary_blocks();
            } else if constexpr (kLayout == Layout::kNibbleK) {
                records();
            } else {
                groups();
            }
            for (int t = 0; t < kTokens; ++t) {
                const Float scale = Set::set1(x_.scale[t]);
                for (int u = 0; u < kUnits; ++u) total_[u][t] = Set::mul(total_[u][t], scale);
            }
        }
        store(first_out, out_stride);
    }

  private:
    [[gnu::always_inline]] inline void dot(int64_t offset, int blocks, int64_t col, Int (&sum)[kUnits][kTokens]) const {
        const std::byte* codes[kUnits];
        for (int u = 0; u < kUnits; ++u) codes[u] = group_[u] + offset + 4 * lane_[u];
        Set::template dot<S::kBits>(codes, blocks, x_, col, prefetch_, sum);
    }

    [[gnu::always_inline]] inline void whole_rows() {
        Int sum[kUnits][kTokens];
        dot(0, static_cast<int>(round_up(w_.cols, 16) / 16), 0, sum);
        for (int u = 0; u < kUnits; ++u) {
            const Float row_scale = Set::load(scales_ + (unit_ + u) * Set::kLanes);
            for (int t = 0; t < kTokens; ++t) {
                const Float value = Set::to_float(Set::sub(sum[u][t], Set::set1(x_.sum[t])));
                total_[u][t] = Set::mul(value, Set::mul(Set::set1(x_.scale[t]), row_scale));
            }
        }
    }

    [[gnu::always_inline]] inline void ternary_blocks() {
        const int64_t count = round_up(w_.cols, 256) / 256;
        for (int64_t g = 0; g < count; ++g) {
            Int sum[kUnits][kTokens];
            dot(g * S::kGroupBytes, S::kBlocks, g * kCols, sum);
            for (int u = 0; u < kUnits; ++u) {
                const int64_t group = (unit_ + u) * Set::kLanes / kRowGroup;
                const Float scale = Set::load(scales_ + (group * count + g) * kRowGroup + lane_[u]);
                for (int t = 0; t < kTokens; ++t) {
                    const Int value = Set::sub(sum[u][t], Set::set1(group_sum(t, g)));
                    total_[u][t] = Set::fma(scale, Set::to_float(value), total_[u][t]);
                }
            }
        }
    }

    [[gnu::always_inline]] inline void groups() {
        const int64_t count = round_up(w_.cols, kCols) / kCols;
        const int32_t code_zero = w_.offset;
        for (int64_t g = 0; g < count; ++g) {
            Int sum[kUnits][kTokens];
            dot(g * S::kGroupBytes + S::kHeader, S::kBlocks, g * kCols, sum);
            int32_t gsum[kTokens];
            for (int t = 0; t < kTokens; ++t) gsum[t] = group_sum(t, g);
            for (int u = 0; u < kUnits; ++u) {
                const auto* header = reinterpret_cast<const float*>(group_[u] + g * S::kGroupBytes) + lane_[u];
                const Float scale = Set::load(header);
                const Float min = Set::load(header + kRowGroup);
                for (int t = 0; t < kTokens; ++t) {
                    const Int value = Set::sub(sum[u][t], Set::set1(code_zero * gsum[t]));
                    const Float total = Set::fma(scale, Set::to_float(value), total_[u][t]);
                    total_[u][t] = Set::fma(min, Set::set1(static_cast<float>(gsum[t])), total);
                }
            }
        }
    }

    [[gnu::always_inline]] inline void records() {
        const int64_t count = round_up(w_.cols, 256) / 256;
        for (int64_t record = 0; record < count; ++record) {
            const int64_t at = record * kRecordBytes;
            Float d[kUnits], dmin[kUnits];
            for (int u = 0; u < kUnits; ++u) {
                const std::byte* half = group_[u] + at + 2 * lane_[u];
                d[u] = Set::load_half(half);
                dmin[u] = Set::load_half(half + kRecordMin);
            }
            for (int g = 0; g < 256 / kCols; ++g) {
                Int sum[kUnits][kTokens];
                dot(at + kRecordBlocks + g * 64 * S::kBlocks, S::kBlocks, record * 256 + g * kCols, sum);
                int32_t gsum[kTokens];
                for (int t = 0; t < kTokens; ++t) gsum[t] = group_sum(t, record * (256 / kCols) + g);
                for (int u = 0; u < kUnits; ++u) {
                    const std::byte* codes = group_[u] + at + g * kRowGroup + lane_[u];
                    const Float scale = Set::mul(d[u], Set::load_u8(codes + kRecordScaleCodes));
                    const Float min = Set::mul(dmin[u], Set::load_u8(codes + kRecordMinCodes));
                    for (int t = 0; t < kTokens; ++t) {
                        const Float total = Set::fma(scale, Set::to_float(sum[u][t]), total_[u][t]);
                        total_[u][t] = Set::neg_fma(min, Set::set1(static_cast<float>(gsum[t])), total);
                    }
                }
            }
        }
    }

    /// Sum of q over group g of kCols columns. Wraps like every other integer here.
    int32_t group_sum(int t, int64_t g) const {
        const int32_t* sums = x_.sums16[t] + g * (kCols / 16);
        uint32_t sum = 0;
        for (int i = 0; i < kCols / 16; ++i) sum += static_cast<uint32_t>(sums[i]);
        return static_cast<int32_t>(sum);
    }

    [[gnu::always_inline]] inline void store(float* first_out, int64_t out_stride) const {
        for (int u = 0; u < kUnits; ++u) {
            const int row = (unit_ + u) * Set::kLanes;
            for (int t = 0; t < kTokens; ++t) {
                float* out = first_out + t * out_stride + row;
                if (row + Set::kLanes <= w_.rows) {
                    Set::store(out, total_[u][t]);
                } else if (row < w_.rows) {
                    float values[Set::kLanes];
                    Set::store(values, total_[u][t]);
                    std::memcpy(out, values, sizeof(float) * static_cast<size_t>(w_.rows - row));
                }
            }
        }
    }

    const Matrix& w_;
    const TokenTile<kTokens>& x_;
    int64_t prefetch_;
    int unit_;
    int lane_[kUnits];
    const std::byte* group_[kUnits];
    const float* scales_ = nullptr;
    Float total_[kUnits][kTokens];
};

/// One call of KernelTable::matmul, its layout known.
template <class Set, Layout kLayout, int kCols>
struct Walk {
    const Matrix& w;
    int unit_begin;
    int unit_end;
    const Activations& a;
    const int32_t* tokens;
    int n;
    float* out;
    int64_t out_stride;
    int64_t group_bytes;

    void run() const {
        if (n == 1) {
            for_units<Set::kUnitsForOne>(
                [this](auto units, int unit) { this->template tile<units(), 1>(unit, 0, Set::kPrefetch); });
        } else {
            for_units<Set::kUnitsForMany>([this](auto units, int unit) { this->template all_tokens<units()>(unit); });
        }
    }

    /// Calls body for every step of kUnits units, then for the units that are left over, one by one.
    template <int kUnits>
    void for_units(auto body) const {
        int unit = unit_begin;
        for (; unit + kUnits <= unit_end; unit += kUnits) body(std::integral_constant<int, kUnits>(), unit);
        for (; unit < unit_end; ++unit) body(std::integral_constant<int, 1>(), unit);
    }

    /// Cuts n tokens into the fewest tiles, as even as can be. The first pass over the weights fetches the next units'.
    template <int kUnits>
    void all_tokens(int unit) const {
        const int tiles = (n + Set::kMaxTokens - 1) / Set::kMaxTokens;
        const int64_t next_units = kUnits * Set::kLanes * group_bytes / kRowGroup;
        for (int i = 0, first = 0; i < tiles; ++i) {
            const int count = n / tiles + (i < n % tiles ? 1 : 0);
            dispatch<kUnits>(unit, first, count, i == 0 ? next_units : 0,
                             std::make_integer_sequence<int, Set::kMaxTokens>());
            first += count;
        }
    }

    template <int kUnits, int... kIndex>
    void dispatch(int unit, int first, int count, int64_t prefetch, std::integer_sequence<int, kIndex...>) const {
        ((count == kIndex + 1 ? tile<kUnits, kIndex + 1>(unit, first, prefetch) : void()), ...);
    }

    template <int kUnits, int kTokens>
    [[gnu::noinline]] void tile(int unit, int first, int64_t prefetch) const {
        const TokenTile<kTokens> x = gather<kTokens>(a, tokens, first);
        Tile<Set, kLayout, kCols, kUnits, kTokens>(w, group_bytes, unit, x, prefetch)
            .run(out + first * out_stride, out_stride);
    }
};

/// KernelTable::matmul for the integer layouts.
template <class Set>
void integer_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                    float* out, int64_t out_stride) {
    constexpr int kUnitsPerGroup = kRowGroup / Set::kLanes;
    const auto walk = [&]<Layout kLayout, int kCols>() {
        Walk<Set, kLayout, kCols>{w,
                                  group_begin * kUnitsPerGroup,
                                  group_end * kUnitsPerGroup,
                                  a,
                                  tokens,
                                  n,
                                  out,
                                  out_stride,
                                  row_group_bytes(w)}
            .run();
    };
    switch (w.layout) {
        case Layout::kTernary:
            return walk.template operator()<Layout::kTernary, 0>();
        case Layout::kTernaryBlocks:
            return walk.template operator()<Layout::kTernaryBlocks, 256>();
        case Layout::kNibble:
            return w.group == 32 ? walk.template operator()<Layout::kNibble, 32>()
                                 : walk.template operator()<Layout::kNibble, 64>();
        case Layout::kNibbleK:
            return walk.template operator()<Layout::kNibbleK, 32>();
        case Layout::kByte:
            return w.group == 16 ? walk.template operator()<Layout::kByte, 16>()
                                 : walk.template operator()<Layout::kByte, 32>();
        default:
            return;
    }
}

}  // namespace
}  // namespace samara::kernels::tiles
