#pragma once
// The 16-lane interface (vec_scalar.hpp states it) on AVX2 with FMA and F16C: two registers.

#include <cstdint>

#include "src/kernels/x86.hpp"

namespace samara::kernels {
namespace {

struct Avx2Vec {
    struct F {
        __m256 low;
        __m256 high;
    };
    struct I {
        __m256i low;
        __m256i high;
    };

    // 16 registers: eight hold sums, the rest operands.
    static constexpr int kScoreHeads = 4;
    static constexpr int kScoreKeys = 1;
    static constexpr int kValueHeads = 4;
    static constexpr int kValueChunks = 1;
    static constexpr int kRowVectors = 1;
    static constexpr int kRowKeys = 2;
    static constexpr int kMatmulRows = 2;
    static constexpr int kMatmulTokens = 2;
    static constexpr int kSingleRows = 4;

    static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
    static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
    static F load_i16(const int16_t* p) {
        return {_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(load128(p))),
                _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(load128(p + 8)))};
    }
    static F load_i8(const int8_t* p) {
        const __m128i bytes = load128(p);
        return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
    }
    static F load_half(const uint16_t* p) { return {_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128(p + 8))}; }
    static F load_bf16(const uint16_t* p) { return {bf16_to_ps(load128(p)), bf16_to_ps(load128(p + 8))}; }
    static void store(float* p, F a) {
        _mm256_storeu_ps(p, a.low);
        _mm256_storeu_ps(p + 8, a.high);
    }

    static F add(F a, F b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
    static F sub(F a, F b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
    static F mul(F a, F b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
    static F div(F a, F b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
    static F neg(F a) {
        const __m256 sign = _mm256_set1_ps(-0.0f);
        return {_mm256_xor_ps(a.low, sign), _mm256_xor_ps(a.high, sign)};
    }
    static F fma(F a, F b, F c) {
        return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
    }
    static F min(F a, F b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
    static F max(F a, F b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
    static F select_less(F a, F b, F x, F y) {
        return {_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
                _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
    }

    static float tree_sum(F a) {
        const __m256 eight = _mm256_add_ps(a.low, a.high);
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    static F tree_sum16(const F* a) { return {tree_sum8(a), tree_sum8(a + 8)}; }
    static float max_lane(F a) {
        const __m256 eight = _mm256_max_ps(a.low, a.high);
        const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
    }

    static I bits(F a) { return {_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)}; }
    static F from_bits(I a) { return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)}; }
    static I set_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
    static I add_int(I a, I b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
    static I sub_int(I a, I b) { return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)}; }
    static I and_int(I a, I b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
    static I max_int(I a, I b) { return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)}; }
    template <int kBits>
    static I shift_left(I a) {
        return {_mm256_slli_epi32(a.low, kBits), _mm256_slli_epi32(a.high, kBits)};
    }
    template <int kBits>
    static I shift_right(I a) {
        return {_mm256_srai_epi32(a.low, kBits), _mm256_srai_epi32(a.high, kBits)};
    }
    static I round_to_int(F a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }
    static int32_t sum_int(I a) {
        const __m256i eight = _mm256_add_epi32(a.low, a.high);
        __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
    }
    static int32_t max_lane_int(I a) {
        const __m256i eight = _mm256_max_epi32(a.low, a.high);
        __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
        four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
    }
    static void store_i16(int16_t* p, I a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pack_i16(a)); }
    static void store_i8(int8_t* p, I a) {
        const __m256i words = pack_i16(a);
        const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
    }

  private:
    static __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
    static __m256 bf16_to_ps(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
    static __m256i pack_i16(I a) {  // packs work in 128-bit halves; the permutation restores the order
        return _mm256_permute4x64_epi64(_mm256_packs_epi32(a.low, a.high), 0xd8);
    }
    /// Tree sums of a[0..8). Each step adds the halves of two vectors and keeps both results in one.
    static __m256 tree_sum8(const F* a) {
        const auto fours = [&](int i) {  // four sums of a[i], four of a[i + 4]
            const __m256 x = _mm256_add_ps(a[i].low, a[i].high);
            const __m256 y = _mm256_add_ps(a[i + 4].low, a[i + 4].high);
            return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
        };
        const auto twos = [&](int i) {
            const __m256d x = _mm256_castps_pd(fours(i));
            const __m256d y = _mm256_castps_pd(fours(i + 1));
            return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)),
                                 _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
        };
        const __m256 x = twos(0);
        const __m256 y = twos(2);
        return _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x88), _mm256_shuffle_ps(x, y, 0xdd));
    }
};

}  // namespace
}  // namespace samara::kernels
