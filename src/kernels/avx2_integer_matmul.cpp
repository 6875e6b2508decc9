// Integer matmul with AVX2. vpmaddubsw multiplies unsigned codes by signed bytes of one plane of the activations and
// adds neighbours into int16; these are widened to int32 before they can overflow, whatever the codes. 8-bit codes
// would saturate int16 at once: they are widened first and meet the 16-bit activations whole.

#include "src/kernels/integer_matmul.hpp"
#include "src/kernels/integer_matmul_tiles.hpp"
#include "src/kernels/lanes_avx2.hpp"

namespace samara::kernels::avx2 {
namespace {

__m256i broadcast8(const int16_t* p) {
    int64_t four;
    std::memcpy(&four, p, sizeof(four));
    return _mm256_set1_epi64x(four);
}

__m256i load_codes(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

/// Makes the compiler finish two sums here, in the order of the source. Left alone, GCC delays the additions of a block
/// and spills the products it has to keep.
[[gnu::always_inline]] inline void pin(__m256i& a, __m256i& b) { asm("" : "+x"(a), "+x"(b)); }

struct Set : Avx2Lanes {
    static constexpr int kUnitsForOne = 2;   // both halves of a block share the broadcasts
    static constexpr int kUnitsForMany = 1;  // 5 tokens x 2 planes: 10 of 16 registers
    static constexpr int kMaxTokens = 5;
    static constexpr int64_t kPrefetch = 2048;

    static Int set1(int32_t x) { return _mm256_set1_epi32(x); }
    using Avx2Lanes::set1;
    static Int sub(Int a, Int b) { return _mm256_sub_epi32(a, b); }

    /// sum[u][t] = codes of unit u times q of token t over `blocks` blocks from column `col`. The prefetches stand in
    /// the loops themselves: GCC takes a function that only prefetches for one without effect and drops the call.
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

    template <int kBits, int kUnits, int kTokens>
    [[gnu::always_inline]] static inline void dot_planes(const std::byte* const (&codes)[kUnits], int blocks,
                                                         const tiles::TokenTile<kTokens>& x, int64_t col,
                                                         int64_t prefetch, Int (&sum)[kUnits][kTokens]) {
        constexpr int kFields = 8 / kBits;  // codes in a byte
        constexpr int kMax = (1 << kBits) - 1;
        constexpr int kAdds = 32767 / (2 * kMax * 128);  // 42 for 2 bits, 8 for 4 bits
        constexpr int kBlocksPerWiden = kAdds / kFields;
        const Int mask = _mm256_set1_epi8(kMax);
        for (int u = 0; u < kUnits; ++u) {
            for (int t = 0; t < kTokens; ++t) sum[u][t] = _mm256_setzero_si256();
        }
        for (int begin = 0; begin < blocks; begin += kBlocksPerWiden) {
            const int end = begin + kBlocksPerWiden < blocks ? begin + kBlocksPerWiden : blocks;
            Int high[kUnits][kTokens], low[kUnits][kTokens];
#pragma GCC unroll 4
            for (int u = 0; u < kUnits; ++u) {
#pragma GCC unroll 16
                for (int t = 0; t < kTokens; ++t) high[u][t] = low[u][t] = _mm256_setzero_si256();
            }
            for (int b = begin; b < end; ++b) {
                Int block[kUnits];
#pragma GCC unroll 4
                for (int u = 0; u < kUnits; ++u) block[u] = load_codes(codes[u] + int64_t{64} * b);
                _mm_prefetch(reinterpret_cast<const char*>(codes[0]) + int64_t{64} * b + prefetch, _MM_HINT_T0);
                const intptr_t at = col + int64_t{4} * kFields * b;
#pragma GCC unroll 4
                for (int f = 0; f < kFields; ++f) {
                    Int field[kUnits];
#pragma GCC unroll 4
                    for (int u = 0; u < kUnits; ++u) {
                        field[u] = _mm256_and_si256(f == 0 ? block[u] : _mm256_srli_epi16(block[u], kBits * f), mask);
                    }
#pragma GCC unroll 16
                    for (int t = 0; t < kTokens; ++t) {
                        const Int x_high = broadcast4(x.high[t] + at + 4 * f);
                        const Int x_low = broadcast4(x.high[t] + (at + x.low) + 4 * f);
#pragma GCC unroll 4
                        for (int u = 0; u < kUnits; ++u) {
                            high[u][t] = _mm256_add_epi16(high[u][t], _mm256_maddubs_epi16(field[u], x_high));
                            low[u][t] = _mm256_add_epi16(low[u][t], _mm256_maddubs_epi16(field[u], x_low));
                            pin(high[u][t], low[u][t]);
                        }
                    }
                }
            }
#pragma GCC unroll 4
            for (int u = 0; u < kUnits; ++u) {
#pragma GCC unroll 16
                for (int t = 0; t < kTokens; ++t) {
                    const Int wide_high = _mm256_madd_epi16(high[u][t], _mm256_set1_epi16(256));
                    const Int wide_low = _mm256_madd_epi16(low[u][t], _mm256_set1_epi16(1));
                    sum[u][t] = _mm256_add_epi32(sum[u][t], _mm256_add_epi32(wide_high, wide_low));
                }
            }
        }
    }

    template <int kUnits, int kTokens>
    [[gnu::always_inline]] static inline void dot_bytes(const std::byte* const (&codes)[kUnits], int blocks,
                                                        const tiles::TokenTile<kTokens>& x, int64_t col,
                                                        int64_t prefetch, Int (&sum)[kUnits][kTokens]) {
        // Unpacking leaves rows 0, 1 (4, 5) in `even` and 2, 3 (6, 7) in `odd`, two int32 a row; hadd puts them in
        // order.
        Int even[kUnits][kTokens], odd[kUnits][kTokens];
#pragma GCC unroll 4
        for (int u = 0; u < kUnits; ++u) {
#pragma GCC unroll 16
            for (int t = 0; t < kTokens; ++t) even[u][t] = odd[u][t] = _mm256_setzero_si256();
        }
        for (int b = 0; b < blocks; ++b) {
            _mm_prefetch(reinterpret_cast<const char*>(codes[0]) + int64_t{64} * b + prefetch, _MM_HINT_T0);
            Int first[kUnits], second[kUnits];
#pragma GCC unroll 4
            for (int u = 0; u < kUnits; ++u) {
                const Int block = load_codes(codes[u] + int64_t{64} * b);
                first[u] = _mm256_unpacklo_epi8(block, _mm256_setzero_si256());
                second[u] = _mm256_unpackhi_epi8(block, _mm256_setzero_si256());
            }
#pragma GCC unroll 16
            for (int t = 0; t < kTokens; ++t) {
                const Int q = broadcast8(x.q[t] + col + 4 * b);
#pragma GCC unroll 4
                for (int u = 0; u < kUnits; ++u) {
                    even[u][t] = _mm256_add_epi32(even[u][t], _mm256_madd_epi16(first[u], q));
                    odd[u][t] = _mm256_add_epi32(odd[u][t], _mm256_madd_epi16(second[u], q));
                    pin(even[u][t], odd[u][t]);
                }
            }
        }
        for (int u = 0; u < kUnits; ++u) {
            for (int t = 0; t < kTokens; ++t) sum[u][t] = _mm256_hadd_epi32(even[u][t], odd[u][t]);
        }
    }
};

}  // namespace

void integer_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                    float* out, int64_t out_stride) {
    tiles::integer_matmul<Set>(w, group_begin, group_end, a, tokens, n, out, out_stride);
}

}  // namespace samara::kernels::avx2
