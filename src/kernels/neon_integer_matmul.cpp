// Integer matmul with NEON alone, for CPUs without dot product. smlal multiplies codes by signed bytes of one plane of
// the activations and adds to int16, which is widened to int32 before it can overflow, whatever the codes. 8-bit codes
// would overflow int16 at once: they are widened first and meet the 16-bit activations whole.

#include "src/kernels/integer_matmul.hpp"
#include "src/kernels/integer_matmul_tiles.hpp"
#include "src/kernels/neon_base.hpp"

namespace samara::kernels::neon {
namespace {

struct Set : NeonLanes {
    static constexpr int kUnitsForOne = 4;   // whole blocks share the broadcasts
    static constexpr int kUnitsForMany = 2;  // 2 units x 2 tokens x 2 planes x 2 halves: 16 of 32 registers; a third
    static constexpr int kMaxTokens = 2;     // token is one too many for GCC, which then spills them

    /// sum[u][t] = codes of unit u times q of token t over `blocks` blocks from column `col`.
    template <int kBits, int kUnits, int kTokens>
    [[gnu::always_inline]] static inline void dot(const std::byte* const (&codes)[kUnits], int blocks,
                                                  const tiles::TokenTile<kTokens>& x, int64_t col, int64_t prefetch,
                                                  Int (&sum)[kUnits][kTokens]) {
        if constexpr (kBits == 8) {
            dot_bytes(codes, blocks, x, col, prefetch, sum);
        } else {
            dot_planes<kBits>(codes, blocks, x, col, prefetch, sum);
        }
    }

    /// Products of two rows (4 columns each) a register.
    struct Products {
        int16x8_t first, second;  // rows 0 and 1, rows 2 and 3

        [[gnu::always_inline]] inline void clear() { first = second = vdupq_n_s16(0); }
        [[gnu::always_inline]] inline void add(int8x16_t codes, int8x16_t x) {
            first = vmlal_s8(first, vget_low_s8(codes), vget_low_s8(x));
            second = vmlal_high_s8(second, codes, x);
        }
        [[gnu::always_inline]] inline Int rows() const { return vpaddq_s32(vpaddlq_s16(first), vpaddlq_s16(second)); }
    };

    static int8x16_t broadcast4(uintptr_t address) {
        int32_t bytes;
        std::memcpy(&bytes, reinterpret_cast<const void*>(address), sizeof(bytes));
        return vreinterpretq_s8_s32(vdupq_n_s32(bytes));
    }

    template <int kBits, int kUnits, int kTokens>
    [[gnu::always_inline]] static inline void dot_planes(const std::byte* const (&codes)[kUnits], int blocks,
                                                         const tiles::TokenTile<kTokens>& x, int64_t col,
                                                         int64_t prefetch, Int (&sum)[kUnits][kTokens]) {
        constexpr int kFields = 8 / kBits;  // codes in a byte
        constexpr int kMax = (1 << kBits) - 1;
        constexpr int kAdds = 32767 / (kMax * 128);  // 85 for 2 bits, 17 for 4 bits
        constexpr int kBlocksPerWiden = kAdds / kFields;
        for (int u = 0; u < kUnits; ++u) {
            for (int t = 0; t < kTokens; ++t) sum[u][t] = vdupq_n_s32(0);
        }
        for (int begin = 0; begin < blocks; begin += kBlocksPerWiden) {
            const int end = begin + kBlocksPerWiden < blocks ? begin + kBlocksPerWiden : blocks;
            Products high[kUnits][kTokens], low[kUnits][kTokens];
#pragma GCC unroll 4
            for (int u = 0; u < kUnits; ++u) {
#pragma GCC unroll 16
                for (int t = 0; t < kTokens; ++t) {
                    high[u][t].clear();
                    low[u][t].clear();
                }
            }
            for (int b = begin; b < end; ++b) {
                uint8x16_t block[kUnits];
#pragma GCC unroll 4
                for (int u = 0; u < kUnits; ++u) block[u] = load_codes(codes[u] + int64_t{64} * b);
                __builtin_prefetch(codes[0] + int64_t{64} * b + prefetch);
                const intptr_t at = col + int64_t{4} * kFields * b;
                unrolled<kFields>([&](auto f) __attribute__((always_inline)) {
                    int8x16_t part[kUnits];
#pragma GCC unroll 4
                    for (int u = 0; u < kUnits; ++u) part[u] = vreinterpretq_s8_u8(field<kBits, f()>(block[u]));
#pragma GCC unroll 16
                    for (int t = 0; t < kTokens; ++t) {
                        const int8x16_t x_high = broadcast4(x.high[t] + at + 4 * f());
                        const int8x16_t x_low = broadcast4(x.high[t] + (at + x.low) + 4 * f());
#pragma GCC unroll 4
                        for (int u = 0; u < kUnits; ++u) {
                            high[u][t].add(part[u], x_high);
                            low[u][t].add(part[u], x_low);
                        }
                    }
                });
            }
#pragma GCC unroll 4
            for (int u = 0; u < kUnits; ++u) {
#pragma GCC unroll 16
                for (int t = 0; t < kTokens; ++t) {
                    sum[u][t] = vaddq_s32(sum[u][t], join(high[u][t].rows(), low[u][t].rows()));
                }
            }
        }
    }

    template <int kUnits, int kTokens>
    [[gnu::always_inline]] static inline void dot_bytes(const std::byte* const (&codes)[kUnits], int blocks,
                                                        const tiles::TokenTile<kTokens>& x, int64_t col,
                                                        int64_t prefetch, Int (&sum)[kUnits][kTokens]) {
        Int row[kUnits][kTokens][kLanes];  // 4 columns a row
#pragma GCC unroll 4
        for (int u = 0; u < kUnits; ++u) {
#pragma GCC unroll 16
            for (int t = 0; t < kTokens; ++t)
                unrolled<kLanes>([&](auto r) __attribute__((always_inline)) { row[u][t][r()] = vdupq_n_s32(0); });
        }
        for (int b = 0; b < blocks; ++b) {
            __builtin_prefetch(codes[0] + int64_t{64} * b + prefetch);
#pragma GCC unroll 4
            for (int u = 0; u < kUnits; ++u) {
                const uint8x16_t block = load_codes(codes[u] + int64_t{64} * b);
                const int16x8_t first = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(block)));
                const int16x8_t second = vreinterpretq_s16_u16(vmovl_high_u8(block));
#pragma GCC unroll 16
                for (int t = 0; t < kTokens; ++t) {
                    const int16x4_t q = vld1_s16(x.q[t] + col + 4 * b);
                    row[u][t][0] = vmlal_s16(row[u][t][0], vget_low_s16(first), q);
                    row[u][t][1] = vmlal_s16(row[u][t][1], vget_high_s16(first), q);
                    row[u][t][2] = vmlal_s16(row[u][t][2], vget_low_s16(second), q);
                    row[u][t][3] = vmlal_s16(row[u][t][3], vget_high_s16(second), q);
                }
            }
        }
        for (int u = 0; u < kUnits; ++u) {
            for (int t = 0; t < kTokens; ++t) {
                const Int(&r)[kLanes] = row[u][t];
                sum[u][t] = vpaddq_s32(vpaddq_s32(r[0], r[1]), vpaddq_s32(r[2], r[3]));
            }
        }
    }
};

}  // namespace

void integer_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                    float* out, int64_t out_stride) {
    tiles::integer_matmul<Set>(w, group_begin, group_end, a, tokens, n, out, out_stride);
}

}  // namespace samara::kernels::neon
