#pragma once
// The 16-lane interface (vec_scalar.hpp states it) on AVX-512 (F, BW, DQ, VL): one register.

#include <cstdint>

#include "src/kernels/x86.hpp"

namespace samara::kernels {
namespace {

struct Avx512Vec {
    struct F {
        __m512 v;
    };
    struct I {
        __m512i v;
    };

    // 32 registers: sixteen hold sums, the rest operands.
    static constexpr int kScoreHeads = 4;
    static constexpr int kScoreKeys = 4;
    static constexpr int kValueHeads = 4;
    static constexpr int kValueChunks = 4;
    static constexpr int kRowVectors = 2;
    static constexpr int kRowKeys = 4;
    static constexpr int kMatmulRows = 4;
    static constexpr int kMatmulTokens = 4;
    static constexpr int kSingleRows = 8;

    static F zero() { return {_mm512_setzero_ps()}; }
    static F set(float x) { return {_mm512_set1_ps(x)}; }
    static F load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static F load_i16(const int16_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(load256(p)))}; }
    static F load_i8(const int8_t* p) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
    }
    static F load_half(const uint16_t* p) { return {_mm512_cvtph_ps(load256(p))}; }
    static F load_bf16(const uint16_t* p) {
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(p)), 16))};
    }
    static void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }

    static F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
    static F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
    static F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
    static F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
    static F neg(F a) { return from_bits({_mm512_xor_si512(bits(a).v, _mm512_set1_epi32(INT32_MIN))}); }
    static F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
    static F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
    static F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
    static F select_less(F a, F b, F x, F y) {
        return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
    }

    static float tree_sum(F a) {
        const __m256 eight = _mm256_add_ps(low_half(a.v), high_half(a.v));
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    /// Each step adds the halves of two vectors and keeps both results in one.
    static F tree_sum16(const F* a) {
        const auto eights = [&](int i, int j) {
            return _mm512_add_ps(_mm512_shuffle_f32x4(a[i].v, a[j].v, 0x44),
                                 _mm512_shuffle_f32x4(a[i].v, a[j].v, 0xee));
        };
        const auto fours = [&](int i) {  // of a[i], a[i + 4], a[i + 8], a[i + 12]
            const __m512 x = eights(i, i + 4);
            const __m512 y = eights(i + 8, i + 12);
            return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
        };
        const auto twos = [&](int i) {
            const __m512d x = _mm512_castps_pd(fours(i));
            const __m512d y = _mm512_castps_pd(fours(i + 1));
            return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                                 _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
        };
        const __m512 x = twos(0);
        const __m512 y = twos(2);
        return {_mm512_add_ps(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xdd))};
    }
    static float max_lane(F a) {
        const __m256 eight = _mm256_max_ps(low_half(a.v), high_half(a.v));
        const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
    }

    static I bits(F a) { return {_mm512_castps_si512(a.v)}; }
    static F from_bits(I a) { return {_mm512_castsi512_ps(a.v)}; }
    static I set_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
    static I add_int(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
    static I sub_int(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
    static I and_int(I a, I b) { return {_mm512_and_si512(a.v, b.v)}; }
    static I max_int(I a, I b) { return {_mm512_max_epi32(a.v, b.v)}; }
    template <int kBits>
    static I shift_left(I a) {
        return {_mm512_slli_epi32(a.v, kBits)};
    }
    template <int kBits>
    static I shift_right(I a) {
        return {_mm512_srai_epi32(a.v, kBits)};
    }
    static I round_to_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }
    static int32_t sum_int(I a) {
        const __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(a.v), _mm512_extracti64x4_epi64(a.v, 1));
        __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
    }
    static int32_t max_lane_int(I a) {
        const __m256i eight = _mm256_max_epi32(_mm512_castsi512_si256(a.v), _mm512_extracti64x4_epi64(a.v, 1));
        __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
        four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
    }
    static void store_i16(int16_t* p, I a) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
    }
    static void store_i8(int8_t* p, I a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v)); }

  private:
    static __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
    static __m256 low_half(__m512 a) { return _mm512_castps512_ps256(a); }
    static __m256 high_half(__m512 a) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)); }
};

}  // namespace
}  // namespace samara::kernels
