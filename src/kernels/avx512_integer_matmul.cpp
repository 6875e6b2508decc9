// Integer matmul with AVX-512 VNNI. vpdpbusd multiplies 4 unsigned codes a row by 4 signed bytes of one plane of the
// activations, which are broadcast to all 16 rows, and adds them to the row's int32.

#include "src/kernels/integer_matmul.hpp"
#include "src/kernels/integer_matmul_tiles.hpp"
#include "src/kernels/lanes_avx512.hpp"

namespace samara::kernels::avx512 {
namespace {

struct Set : Avx512Lanes {
    static constexpr int kUnitsForOne = 1;  // one stream through memory
    static constexpr int kUnitsForMany = 2;
    static constexpr int kMaxTokens = 6;        // 2 units x 6 tokens x 2 planes: 24 accumulators
    static constexpr int64_t kPrefetch = 8192;  // into L2: 10 to 25 % faster here than into L1

    static Int set1(int32_t x) { return _mm512_set1_epi32(x); }
    using Avx512Lanes::set1;
    static Int sub(Int a, Int b) { return _mm512_sub_epi32(a, b); }

    /// sum[u][t] = codes of unit u times q of token t over `blocks` blocks from column `col`.
    template <int kBits, int kUnits, int kTokens>
    [[gnu::always_inline]] static inline void dot(const std::byte* const (&codes)[kUnits], int blocks,
                                                  const tiles::TokenTile<kTokens>& x, int64_t col, int64_t prefetch,
                                                  Int (&sum)[kUnits][kTokens]) {
        constexpr int kFields = 8 / kBits;  // codes in a byte
        // One token: each field keeps its place in the byte and an accumulator of its own, shifted once at the end.
        // More tokens share the shifted codes and need the registers.
        constexpr bool kInPlace = kTokens == 1;
        constexpr int kSums = kInPlace ? kFields : 1;
        Int high[kSums][kUnits][kTokens], low[kSums][kUnits][kTokens];
#pragma GCC unroll 4
        for (int s = 0; s < kSums; ++s) {
#pragma GCC unroll 4
            for (int u = 0; u < kUnits; ++u) {
#pragma GCC unroll 16
                for (int t = 0; t < kTokens; ++t) high[s][u][t] = low[s][u][t] = _mm512_setzero_si512();
            }
        }
        const Int mask = _mm512_set1_epi8(static_cast<char>((1 << kBits) - 1));
        for (int b = 0; b < blocks; ++b) {
            Int block[kUnits];
#pragma GCC unroll 4
            for (int u = 0; u < kUnits; ++u) {
                const std::byte* p = codes[u] + int64_t{64} * b;
                block[u] = _mm512_loadu_si512(p);
                _mm_prefetch(reinterpret_cast<const char*>(p) + prefetch, _MM_HINT_T1);
            }
            const intptr_t at = col + int64_t{4} * kFields * b;
#pragma GCC unroll 4
            for (int f = 0; f < kFields; ++f) {
                Int field[kUnits];
#pragma GCC unroll 4
                for (int u = 0; u < kUnits; ++u) {
                    field[u] =
                        kBits == 8 ? block[u]
                        : kInPlace
                            ? _mm512_and_si512(block[u],
                                               _mm512_set1_epi8(static_cast<char>(((1 << kBits) - 1) << (kBits * f))))
                            : _mm512_and_si512(f == 0 ? block[u] : _mm512_srli_epi16(block[u], kBits * f), mask);
                }
                const int s = kInPlace ? f : 0;
#pragma GCC unroll 16
                for (int t = 0; t < kTokens; ++t) {
                    const Int x_high = broadcast4(x.high[t] + at + 4 * f);
                    const Int x_low = broadcast4(x.high[t] + (at + x.low) + 4 * f);
#pragma GCC unroll 4
                    for (int u = 0; u < kUnits; ++u) {
                        high[s][u][t] = _mm512_dpbusd_epi32(high[s][u][t], field[u], x_high);
                        low[s][u][t] = _mm512_dpbusd_epi32(low[s][u][t], field[u], x_low);
                        pin(high[s][u][t], low[s][u][t]);
                    }
                }
            }
        }
#pragma GCC unroll 4
        for (int u = 0; u < kUnits; ++u) {
#pragma GCC unroll 16
            for (int t = 0; t < kTokens; ++t) {
                Int h = high[0][u][t], l = low[0][u][t];
#pragma GCC unroll 4
                for (int s = 1; s < kSums; ++s) {
                    h = _mm512_add_epi32(h, _mm512_srai_epi32(high[s][u][t], kBits * s));
                    l = _mm512_add_epi32(l, _mm512_srai_epi32(low[s][u][t], kBits * s));
                }
                sum[u][t] = _mm512_add_epi32(_mm512_slli_epi32(h, 8), l);
            }
        }
    }
};

}  // namespace

void integer_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                    float* out, int64_t out_stride) {
    tiles::integer_matmul<Set>(w, group_begin, group_end, a, tokens, n, out, out_stride);
}

}  // namespace samara::kernels::avx512
