// Integer matmul with NEON's int8 matrix product. usmmla multiplies a 2 x 8 matrix of unsigned codes, two rows, by an
// 8 x 2 matrix of signed activations: the two planes of one token. So even a single token keeps it fully busy: GCC 12
// makes 57 instructions of a block of 256 weights, and 67 of it with sdot, which is half as wide.

#include "src/kernels/integer_matmul.hpp"
#include "src/kernels/integer_matmul_tiles.hpp"
#include "src/kernels/neon_base.hpp"

namespace samara::kernels::neon_i8mm {
namespace {

struct Set : NeonLanes {
    static constexpr int kUnitsForOne = 4;   // one stream through memory
    static constexpr int kUnitsForMany = 4;  // 4 units x 2 tokens: 16 sums, 8 registers of activations
    static constexpr int kMaxTokens = 2;

    /// Sums of four rows as usmmla leaves them: row, then plane.
    struct Rows {
        Int first, second;  // rows 0 and 1, rows 2 and 3
    };

    /// sum[u][t] = codes of unit u times q of token t over `blocks` blocks from column `col`.
    template <int kBits, int kUnits, int kTokens>
    [[gnu::always_inline]] static inline void dot(const std::byte* const (&codes)[kUnits], int blocks,
                                                  const tiles::TokenTile<kTokens>& x, int64_t col, int64_t prefetch,
                                                  Int (&sum)[kUnits][kTokens]) {
        Rows rows[kUnits][kTokens];
#pragma GCC unroll 4
        for (int u = 0; u < kUnits; ++u) {
#pragma GCC unroll 16
            for (int t = 0; t < kTokens; ++t) rows[u][t].first = rows[u][t].second = vdupq_n_s32(0);
        }
        int b = 0;
        for (; b + 2 <= blocks; b += 2) add_blocks<kBits, true>(codes, b, x, col, prefetch, rows);
        if constexpr (kBits == 2) {  // other layouts have an even number of blocks
            if (b < blocks) add_blocks<kBits, false>(codes, b, x, col, prefetch, rows);
        }
#pragma GCC unroll 4
        for (int u = 0; u < kUnits; ++u) {
#pragma GCC unroll 16
            for (int t = 0; t < kTokens; ++t) {
                sum[u][t] = join(vuzp1q_s32(rows[u][t].first, rows[u][t].second),
                                 vuzp2q_s32(rows[u][t].first, rows[u][t].second));
            }
        }
    }

    /// Adds blocks b and b + 1, or b alone when it is not a pair: zeros then stand for the other's codes, and the
    /// activations there are padding.
    template <int kBits, bool kPair, int kUnits, int kTokens>
    [[gnu::always_inline]] static inline void add_blocks(const std::byte* const (&codes)[kUnits], int b,
                                                         const tiles::TokenTile<kTokens>& x, int64_t col,
                                                         int64_t prefetch, Rows (&rows)[kUnits][kTokens]) {
        constexpr int kFields = 8 / kBits;  // codes in a byte
        int8x16_t planes[kTokens][kFields];
#pragma GCC unroll 16
        for (int t = 0; t < kTokens; ++t) {
            const uintptr_t at = x.high[t] + static_cast<uintptr_t>(col + int64_t{4} * kFields * b);
            load_planes<kBits>(at, at + static_cast<uintptr_t>(x.low), planes[t]);
        }
        __builtin_prefetch(codes[0] + int64_t{64} * b + prefetch);
        __builtin_prefetch(codes[0] + int64_t{64} * (b + 1) + prefetch);
        unrolled<kUnits>([&](auto u) __attribute__((always_inline)) {
            const std::byte* p = codes[u()] + int64_t{64} * b;
            const uint32x4_t left = vreinterpretq_u32_u8(load_codes(p));
            const uint32x4_t right = kPair ? vreinterpretq_u32_u8(load_codes(p + 64)) : vdupq_n_u32(0);
            const uint8x16_t first = vreinterpretq_u8_u32(vzip1q_u32(left, right));
            const uint8x16_t second = vreinterpretq_u8_u32(vzip2q_u32(left, right));
            unrolled<kFields>([&](auto f) __attribute__((always_inline)) {
                const uint8x16_t first_part = field<kBits, f()>(first);
                const uint8x16_t second_part = field<kBits, f()>(second);
#pragma GCC unroll 16
                for (int t = 0; t < kTokens; ++t) {
                    rows[u()][t].first = vusmmlaq_s32(rows[u()][t].first, first_part, planes[t][f()]);
                    rows[u()][t].second = vusmmlaq_s32(rows[u()][t].second, second_part, planes[t][f()]);
                }
            });
        });
    }

    /// One plane of two blocks of 2-bit codes: the columns of fields 0 and 1, those of fields 2 and 3.
    static int64x2x2_t load_pairs(uintptr_t plane) {
        const Int left = vreinterpretq_s32_s8(load_plane(plane));
        const Int right = vreinterpretq_s32_s8(load_plane(plane + 16));
        return {{vreinterpretq_s64_s32(vzip1q_s32(left, right)), vreinterpretq_s64_s32(vzip2q_s32(left, right))}};
    }

    /// planes[f]: 4 columns of the high plane for field f of the first block, 4 for the second, then the low plane's.
    template <int kBits>
    [[gnu::always_inline]] static inline void load_planes(uintptr_t high, uintptr_t low,
                                                          int8x16_t (&planes)[8 / kBits]) {
        if constexpr (kBits == 8) {
            planes[0] = vcombine_s8(vld1_s8(reinterpret_cast<const int8_t*>(high)),
                                    vld1_s8(reinterpret_cast<const int8_t*>(low)));
        } else if constexpr (kBits == 4) {
            const Int h = vreinterpretq_s32_s8(load_plane(high));
            const Int l = vreinterpretq_s32_s8(load_plane(low));
            planes[0] = vreinterpretq_s8_s32(vuzp1q_s32(h, l));
            planes[1] = vreinterpretq_s8_s32(vuzp2q_s32(h, l));
        } else {
            const int64x2x2_t h = load_pairs(high);
            const int64x2x2_t l = load_pairs(low);
            planes[0] = vreinterpretq_s8_s64(vzip1q_s64(h.val[0], l.val[0]));
            planes[1] = vreinterpretq_s8_s64(vzip2q_s64(h.val[0], l.val[0]));
            planes[2] = vreinterpretq_s8_s64(vzip1q_s64(h.val[1], l.val[1]));
            planes[3] = vreinterpretq_s8_s64(vzip2q_s64(h.val[1], l.val[1]));
        }
    }
};

}  // namespace

void integer_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                    float* out, int64_t out_stride) {
    tiles::integer_matmul<Set>(w, group_begin, group_end, a, tokens, n, out, out_stride);
}

}  // namespace samara::kernels::neon_i8mm
