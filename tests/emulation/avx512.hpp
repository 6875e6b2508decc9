#pragma once
// The AVX-512 intrinsics that src/kernels uses, on AVX2, FMA and F16C, for the tests: a 512-bit vector is two 256-bit
// halves. Semantics are those of Intel's intrinsics guide. An intrinsic that is not here fails to compile, so nothing
// is skipped silently: add it below. (SIMDe's AVX-512 types are GCC's 512-bit vectors, on which GCC 12 without
// -mavx512f stops with an internal error.)

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace samara::kernels::emulation {

struct Floats {
    __m256 half[2];
};
struct Doubles {
    __m256d half[2];
};
struct Ints {
    __m256i half[2];
};

inline __m128i low(__m256i a) { return _mm256_castsi256_si128(a); }
inline __m128i high(__m256i a) { return _mm256_extracti128_si256(a, 1); }

/// The same 64 bytes as another type.
template <class To, class From>
inline To cast(From a) {
    static_assert(sizeof(To) == sizeof(From));
    To r;
    std::memcpy(&r, &a, sizeof r);
    return r;
}

inline Floats add_ps(Floats a, Floats b) {
    return {_mm256_add_ps(a.half[0], b.half[0]), _mm256_add_ps(a.half[1], b.half[1])};
}
inline Floats sub_ps(Floats a, Floats b) {
    return {_mm256_sub_ps(a.half[0], b.half[0]), _mm256_sub_ps(a.half[1], b.half[1])};
}
inline Floats mul_ps(Floats a, Floats b) {
    return {_mm256_mul_ps(a.half[0], b.half[0]), _mm256_mul_ps(a.half[1], b.half[1])};
}
inline Floats div_ps(Floats a, Floats b) {
    return {_mm256_div_ps(a.half[0], b.half[0]), _mm256_div_ps(a.half[1], b.half[1])};
}
inline Floats min_ps(Floats a, Floats b) {
    return {_mm256_min_ps(a.half[0], b.half[0]), _mm256_min_ps(a.half[1], b.half[1])};
}
inline Floats max_ps(Floats a, Floats b) {
    return {_mm256_max_ps(a.half[0], b.half[0]), _mm256_max_ps(a.half[1], b.half[1])};
}
inline Floats fmadd_ps(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.half[0], b.half[0], c.half[0]), _mm256_fmadd_ps(a.half[1], b.half[1], c.half[1])};
}
inline Floats fnmadd_ps(Floats a, Floats b, Floats c) {
    return {_mm256_fnmadd_ps(a.half[0], b.half[0], c.half[0]), _mm256_fnmadd_ps(a.half[1], b.half[1], c.half[1])};
}
inline Ints add_epi32(Ints a, Ints b) {
    return {_mm256_add_epi32(a.half[0], b.half[0]), _mm256_add_epi32(a.half[1], b.half[1])};
}
inline Ints sub_epi32(Ints a, Ints b) {
    return {_mm256_sub_epi32(a.half[0], b.half[0]), _mm256_sub_epi32(a.half[1], b.half[1])};
}
inline Ints max_epi32(Ints a, Ints b) {
    return {_mm256_max_epi32(a.half[0], b.half[0]), _mm256_max_epi32(a.half[1], b.half[1])};
}
inline Ints and_si512(Ints a, Ints b) {
    return {_mm256_and_si256(a.half[0], b.half[0]), _mm256_and_si256(a.half[1], b.half[1])};
}
inline Ints or_si512(Ints a, Ints b) {
    return {_mm256_or_si256(a.half[0], b.half[0]), _mm256_or_si256(a.half[1], b.half[1])};
}
inline Ints xor_si512(Ints a, Ints b) {
    return {_mm256_xor_si256(a.half[0], b.half[0]), _mm256_xor_si256(a.half[1], b.half[1])};
}
inline Ints slli_epi32(Ints a, int bits) {
    return {_mm256_slli_epi32(a.half[0], bits), _mm256_slli_epi32(a.half[1], bits)};
}
inline Ints srai_epi32(Ints a, int bits) {
    return {_mm256_srai_epi32(a.half[0], bits), _mm256_srai_epi32(a.half[1], bits)};
}
inline Ints srli_epi32(Ints a, int bits) {
    return {_mm256_srli_epi32(a.half[0], bits), _mm256_srli_epi32(a.half[1], bits)};
}
inline Ints srli_epi16(Ints a, int bits) {
    return {_mm256_srli_epi16(a.half[0], bits), _mm256_srli_epi16(a.half[1], bits)};
}
inline Ints slli_epi16(Ints a, int bits) {
    return {_mm256_slli_epi16(a.half[0], bits), _mm256_slli_epi16(a.half[1], bits)};
}
inline Doubles unpacklo_pd(Doubles a, Doubles b) {
    return {_mm256_unpacklo_pd(a.half[0], b.half[0]), _mm256_unpacklo_pd(a.half[1], b.half[1])};
}
inline Doubles unpackhi_pd(Doubles a, Doubles b) {
    return {_mm256_unpackhi_pd(a.half[0], b.half[0]), _mm256_unpackhi_pd(a.half[1], b.half[1])};
}

inline Floats setzero_ps() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Ints setzero_si512() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Floats set1_ps(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Ints set1_epi32(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Ints set1_epi8(int8_t x) { return {_mm256_set1_epi8(x), _mm256_set1_epi8(x)}; }
inline Floats loadu_ps(const void* p) {
    Floats r;
    std::memcpy(&r, p, sizeof r);
    return r;
}
inline Ints loadu_si512(const void* p) {
    Ints r;
    std::memcpy(&r, p, sizeof r);
    return r;
}
inline void storeu_ps(void* p, Floats a) { std::memcpy(p, &a, sizeof a); }
inline void storeu_si512(void* p, Ints a) { std::memcpy(p, &a, sizeof a); }

inline Ints cvtepi16_epi32(__m256i a) { return {_mm256_cvtepi16_epi32(low(a)), _mm256_cvtepi16_epi32(high(a))}; }
inline Ints cvtepu16_epi32(__m256i a) { return {_mm256_cvtepu16_epi32(low(a)), _mm256_cvtepu16_epi32(high(a))}; }
inline Ints cvtepi8_epi32(__m128i a) { return {_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_srli_si128(a, 8))}; }
inline Ints cvtepu8_epi32(__m128i a) { return {_mm256_cvtepu8_epi32(a), _mm256_cvtepu8_epi32(_mm_srli_si128(a, 8))}; }
inline Floats cvtepi32_ps(Ints a) { return {_mm256_cvtepi32_ps(a.half[0]), _mm256_cvtepi32_ps(a.half[1])}; }
inline Ints cvtps_epi32(Floats a) { return {_mm256_cvtps_epi32(a.half[0]), _mm256_cvtps_epi32(a.half[1])}; }
inline Floats cvtph_ps(__m256i a) { return {_mm256_cvtph_ps(low(a)), _mm256_cvtph_ps(high(a))}; }

/// Lanes cut to their low bits, into a vector of sixteen narrower ones.
template <class Narrow, class To>
inline To narrow(Ints a) {
    int32_t lanes[16];
    Narrow cut[16];
    storeu_si512(lanes, a);
    for (int i = 0; i < 16; ++i) cut[i] = static_cast<Narrow>(lanes[i]);
    To r;
    static_assert(sizeof r == sizeof cut);
    std::memcpy(&r, cut, sizeof r);
    return r;
}
inline __m256i cvtepi32_epi16(Ints a) { return narrow<int16_t, __m256i>(a); }
inline __m128i cvtepi32_epi8(Ints a) { return narrow<int8_t, __m128i>(a); }

inline Floats castsi512_ps(Ints a) { return cast<Floats>(a); }
inline Ints castps_si512(Floats a) { return cast<Ints>(a); }
inline Doubles castps_pd(Floats a) { return cast<Doubles>(a); }
inline Floats castpd_ps(Doubles a) { return cast<Floats>(a); }
inline __m256 castps512_ps256(Floats a) { return a.half[0]; }
inline __m256i castsi512_si256(Ints a) { return a.half[0]; }
inline __m256d extractf64x4_pd(Doubles a, int i) { return a.half[i]; }
inline __m256i extracti64x4_epi64(Ints a, int i) { return a.half[i]; }

/// Each half of the result takes two 128-bit quarters of one operand, chosen by two bits each.
inline Floats shuffle_f32x4(Floats a, Floats b, int control) {
    const Floats from[2] = {a, b};
    float r[16];
    for (int i = 0; i < 4; ++i)
        std::memcpy(r + 4 * i, reinterpret_cast<const float*>(&from[i / 2]) + 4 * (control >> (2 * i) & 3), 16);
    return loadu_ps(r);
}
/// In each quarter: two floats of a, two of b, chosen by two bits each.
inline Floats shuffle_ps(Floats a, Floats b, int control) {
    const Floats from[2] = {a, b};
    float r[16];
    for (int i = 0; i < 16; ++i)
        r[i] = reinterpret_cast<const float*>(&from[i % 4 / 2])[i / 4 * 4 + (control >> (2 * (i % 4)) & 3)];
    return loadu_ps(r);
}

inline uint16_t cmp_ps_mask(Floats a, Floats b, int predicate) {
    static_assert(_CMP_LT_OQ == 17);
    if (predicate != _CMP_LT_OQ) __builtin_trap();  // the only comparison in use
    const int first = _mm256_movemask_ps(_mm256_cmp_ps(a.half[0], b.half[0], _CMP_LT_OQ));
    const int second = _mm256_movemask_ps(_mm256_cmp_ps(a.half[1], b.half[1], _CMP_LT_OQ));
    return static_cast<uint16_t>(first | second << 8);
}
/// b where the mask's bit is set, else a.
inline Floats mask_blend_ps(uint16_t mask, Floats a, Floats b) {
    float x[16];
    float y[16];
    storeu_ps(x, a);
    storeu_ps(y, b);
    for (int i = 0; i < 16; ++i)
        if ((mask >> i & 1) != 0) x[i] = y[i];
    return loadu_ps(x);
}

/// To each int32 lane of `sum`: four unsigned bytes of a times four signed bytes of b, wrapping, no saturation.
inline __m256i dpbusd_half(__m256i sum, __m256i a, __m256i b) {
    // Even and odd bytes apart, so that no int16 pair sum saturates.
    const __m256i bytes = _mm256_set1_epi16(0xff);
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, bytes), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
inline Ints dpbusd_epi32(Ints sum, Ints a, Ints b) {
    return {dpbusd_half(sum.half[0], a.half[0], b.half[0]), dpbusd_half(sum.half[1], a.half[1], b.half[1])};
}

/// Byte i of the result is the byte of `a` that the low six bits of byte i of `index` number.
inline Ints permutexvar_epi8(Ints index, Ints a) {
    uint8_t from[64], at[64], to[64];
    storeu_si512(from, a);
    storeu_si512(at, index);
    for (int i = 0; i < 64; ++i) to[i] = from[at[i] & 63];
    return loadu_si512(to);
}
/// Byte i of each word of 64 bits is its 8 bits from the bit that byte i of `control` numbers, the word taken as a
/// ring.
inline Ints multishift_epi64_epi8(Ints control, Ints a) {
    uint64_t words[8];
    uint8_t shift[64], to[64];
    storeu_si512(words, a);
    storeu_si512(shift, control);
    for (int i = 0; i < 64; ++i) {
        const int bit = shift[i] & 63;
        const uint64_t word = words[i / 8];
        to[i] = static_cast<uint8_t>(bit == 0 ? word : word >> bit | word << (64 - bit));
    }
    return loadu_si512(to);
}

}  // namespace samara::kernels::emulation

// From here on the names mean the functions above. GCC declares some of the intrinsics as macros of its own.
#define __m512 samara::kernels::emulation::Floats
#define __m512d samara::kernels::emulation::Doubles
#define __m512i samara::kernels::emulation::Ints
#undef _mm512_add_ps
#define _mm512_add_ps samara::kernels::emulation::add_ps
#undef _mm512_sub_ps
#define _mm512_sub_ps samara::kernels::emulation::sub_ps
#undef _mm512_mul_ps
#define _mm512_mul_ps samara::kernels::emulation::mul_ps
#undef _mm512_div_ps
#define _mm512_div_ps samara::kernels::emulation::div_ps
#undef _mm512_min_ps
#define _mm512_min_ps samara::kernels::emulation::min_ps
#undef _mm512_max_ps
#define _mm512_max_ps samara::kernels::emulation::max_ps
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps samara::kernels::emulation::fmadd_ps
#undef _mm512_fnmadd_ps
#define _mm512_fnmadd_ps samara::kernels::emulation::fnmadd_ps
#undef _mm512_add_epi32
#define _mm512_add_epi32 samara::kernels::emulation::add_epi32
#undef _mm512_sub_epi32
#define _mm512_sub_epi32 samara::kernels::emulation::sub_epi32
#undef _mm512_max_epi32
#define _mm512_max_epi32 samara::kernels::emulation::max_epi32
#undef _mm512_and_si512
#define _mm512_and_si512 samara::kernels::emulation::and_si512
#undef _mm512_or_si512
#define _mm512_or_si512 samara::kernels::emulation::or_si512
#undef _mm512_xor_si512
#define _mm512_xor_si512 samara::kernels::emulation::xor_si512
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 samara::kernels::emulation::slli_epi32
#undef _mm512_srai_epi32
#define _mm512_srai_epi32 samara::kernels::emulation::srai_epi32
#undef _mm512_srli_epi32
#define _mm512_srli_epi32 samara::kernels::emulation::srli_epi32
#undef _mm512_srli_epi16
#define _mm512_srli_epi16 samara::kernels::emulation::srli_epi16
#undef _mm512_slli_epi16
#define _mm512_slli_epi16 samara::kernels::emulation::slli_epi16
#undef _mm512_unpacklo_pd
#define _mm512_unpacklo_pd samara::kernels::emulation::unpacklo_pd
#undef _mm512_unpackhi_pd
#define _mm512_unpackhi_pd samara::kernels::emulation::unpackhi_pd
#undef _mm512_setzero_ps
#define _mm512_setzero_ps samara::kernels::emulation::setzero_ps
#undef _mm512_setzero_si512
#define _mm512_setzero_si512 samara::kernels::emulation::setzero_si512
#undef _mm512_set1_ps
#define _mm512_set1_ps samara::kernels::emulation::set1_ps
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 samara::kernels::emulation::set1_epi32
#undef _mm512_set1_epi8
#define _mm512_set1_epi8 samara::kernels::emulation::set1_epi8
#undef _mm512_loadu_ps
#define _mm512_loadu_ps samara::kernels::emulation::loadu_ps
#undef _mm512_loadu_si512
#define _mm512_loadu_si512 samara::kernels::emulation::loadu_si512
#undef _mm512_storeu_ps
#define _mm512_storeu_ps samara::kernels::emulation::storeu_ps
#undef _mm512_storeu_si512
#define _mm512_storeu_si512 samara::kernels::emulation::storeu_si512
#undef _mm512_cvtepi16_epi32
#define _mm512_cvtepi16_epi32 samara::kernels::emulation::cvtepi16_epi32
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 samara::kernels::emulation::cvtepu16_epi32
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32 samara::kernels::emulation::cvtepi8_epi32
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 samara::kernels::emulation::cvtepu8_epi32
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps samara::kernels::emulation::cvtepi32_ps
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32 samara::kernels::emulation::cvtps_epi32
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps samara::kernels::emulation::cvtph_ps
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi16 samara::kernels::emulation::cvtepi32_epi16
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8 samara::kernels::emulation::cvtepi32_epi8
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps samara::kernels::emulation::castsi512_ps
#undef _mm512_castps_si512
#define _mm512_castps_si512 samara::kernels::emulation::castps_si512
#undef _mm512_castps_pd
#define _mm512_castps_pd samara::kernels::emulation::castps_pd
#undef _mm512_castpd_ps
#define _mm512_castpd_ps samara::kernels::emulation::castpd_ps
#undef _mm512_castps512_ps256
#define _mm512_castps512_ps256 samara::kernels::emulation::castps512_ps256
#undef _mm512_castsi512_si256
#define _mm512_castsi512_si256 samara::kernels::emulation::castsi512_si256
#undef _mm512_extractf64x4_pd
#define _mm512_extractf64x4_pd samara::kernels::emulation::extractf64x4_pd
#undef _mm512_extracti64x4_epi64
#define _mm512_extracti64x4_epi64 samara::kernels::emulation::extracti64x4_epi64
#undef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4 samara::kernels::emulation::shuffle_f32x4
#undef _mm512_shuffle_ps
#define _mm512_shuffle_ps samara::kernels::emulation::shuffle_ps
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask samara::kernels::emulation::cmp_ps_mask
#undef _mm512_mask_blend_ps
#define _mm512_mask_blend_ps samara::kernels::emulation::mask_blend_ps
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32 samara::kernels::emulation::dpbusd_epi32
#undef _mm512_permutexvar_epi8
#define _mm512_permutexvar_epi8 samara::kernels::emulation::permutexvar_epi8
#undef _mm512_multishift_epi64_epi8
#define _mm512_multishift_epi64_epi8 samara::kernels::emulation::multishift_epi64_epi8
