#pragma once
// What the AVX2 kernels of integer layouts share: 8 rows, half a row group, to a register. In an unnamed namespace, as
// is everything that a set's files include: no code may be shared between sets (tests/emulation/no_shared_code.cmake).

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/kernels/x86.hpp"

namespace samara::kernels {
namespace {

struct Avx2Lanes {
    using Float = __m256;
    using Int = __m256i;
    static constexpr int kLanes = 8;

    static Float zero() { return _mm256_setzero_ps(); }
    static Float set1(float x) { return _mm256_set1_ps(x); }
    static Float load(const float* p) { return _mm256_loadu_ps(p); }
    static Float load_half(const std::byte* p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static Float load_u8(const std::byte* p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    static void store(float* p, Float x) { _mm256_storeu_ps(p, x); }
    static Float to_float(Int x) { return _mm256_cvtepi32_ps(x); }
    static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
    static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
    static Float neg_fma(Float a, Float b, Float c) { return _mm256_fnmadd_ps(a, b, c); }

    /// The 4 bytes at `p` in every lane.
    static Int broadcast4(const void* p) {
        int32_t bytes;
        std::memcpy(&bytes, p, sizeof(bytes));
        return _mm256_set1_epi32(bytes);
    }
    static Int broadcast4(uintptr_t address) { return broadcast4(reinterpret_cast<const void*>(address)); }
};

}  // namespace
}  // namespace samara::kernels
