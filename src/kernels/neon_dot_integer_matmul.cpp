// Integer matmul with NEON's dot product. sdot multiplies 4 codes a row by 4 signed bytes of one plane of the
// activations, which one lane of a register holds for all rows, and adds them to the row's int32.

#include "src/kernels/integer_matmul.hpp"
#include "src/kernels/integer_matmul_tiles.hpp"
#include "src/kernels/neon_base.hpp"

namespace samara::kernels::neon_dot {
namespace {

struct Set : NeonLanes {
    static constexpr int kUnitsForOne = 4;   // one stream through memory
    static constexpr int kUnitsForMany = 2;  // 2 units x 4 tokens x 2 planes: 16 sums, 8 registers of activations
    static constexpr int kMaxTokens = 4;

    /// sum[u][t] = codes of unit u times q of token t over `blocks` blocks from column `col`.
    template <int kBits, int kUnits, int kTokens>
    [[gnu::always_inline]] static inline void dot(const std::byte* const (&codes)[kUnits], int blocks,
                                                  const tiles::TokenTile<kTokens>& x, int64_t col, int64_t prefetch,
                                                  Int (&sum)[kUnits][kTokens]) {
        constexpr int kFields = 8 / kBits;    // codes in a byte
        constexpr int kBlocks = 4 / kFields;  // blocks that meet 16 columns; divides `blocks` in every layout
        Int high[kUnits][kTokens], low[kUnits][kTokens];
#pragma GCC unroll 4
        for (int u = 0; u < kUnits; ++u) {
#pragma GCC unroll 16
            for (int t = 0; t < kTokens; ++t) high[u][t] = low[u][t] = vdupq_n_s32(0);
        }
        for (int b = 0; b < blocks; b += kBlocks) {
            const intptr_t at = col + int64_t{4} * kFields * b;
            int8x16_t x_high[kTokens], x_low[kTokens];
#pragma GCC unroll 16
            for (int t = 0; t < kTokens; ++t) {
                x_high[t] = load_plane(x.high[t] + at);
                x_low[t] = load_plane(x.high[t] + (at + x.low));
            }
            unrolled<kBlocks>([&](auto i) __attribute__((always_inline)) {
                __builtin_prefetch(codes[0] + int64_t{64} * (b + i()) + prefetch);
#pragma GCC unroll 4
                for (int u = 0; u < kUnits; ++u) {
                    uint8x16_t block = load_codes(codes[u] + int64_t{64} * (b + i()));
                    if constexpr (kBits == 8) block = veorq_u8(block, vdupq_n_u8(128));  // code - 128, signed
                    unrolled<kFields>([&](auto f) __attribute__((always_inline)) {
                        constexpr int kLane = i() * kFields + f();
                        const int8x16_t part = vreinterpretq_s8_u8(field<kBits, f()>(block));
#pragma GCC unroll 16
                        for (int t = 0; t < kTokens; ++t) {
                            high[u][t] = vdotq_laneq_s32(high[u][t], part, x_high[t], kLane);
                            low[u][t] = vdotq_laneq_s32(low[u][t], part, x_low[t], kLane);
                        }
                    });
                }
            });
        }
#pragma GCC unroll 16
        for (int t = 0; t < kTokens; ++t) {
            [[maybe_unused]] const Int half_range = vdupq_n_s32(half_range_sum<kBits>(x.sums16[t], blocks, col));
#pragma GCC unroll 4
            for (int u = 0; u < kUnits; ++u) {
                sum[u][t] = join(high[u][t], low[u][t]);
                if constexpr (kBits == 8) sum[u][t] = vaddq_s32(sum[u][t], half_range);
            }
        }
    }

    /// What 8-bit codes lost by becoming signed: 128 times the sum of q. 0 for narrower codes.
    template <int kBits>
    static int32_t half_range_sum([[maybe_unused]] const int32_t* sums16, [[maybe_unused]] int blocks,
                                  [[maybe_unused]] int64_t col) {
        uint32_t sum = 0;
        if constexpr (kBits == 8) {
            for (int i = 0; i < blocks / 4; ++i) sum += static_cast<uint32_t>(sums16[col / 16 + i]);
        }
        return static_cast<int32_t>(sum * 128);
    }
};

}  // namespace

void integer_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                    float* out, int64_t out_stride) {
    tiles::integer_matmul<Set>(w, group_begin, group_end, a, tokens, n, out, out_stride);
}

}  // namespace samara::kernels::neon_dot
