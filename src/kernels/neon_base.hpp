#pragma once
// What the integer matmuls of the NEON sets share: four rows of a block, a quarter of its 64 bytes, are one register,
// and their results another. See integer_matmul_tiles.hpp for what a set must bring.

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace samara::kernels {
namespace {

/// Calls op with each constant 0 .. kCount - 1: lane numbers must be constants. Lambdas that hold inner loops carry
/// always_inline, in the one spelling that GCC and clang both take in that place.
template <int kCount, class Op>
[[gnu::always_inline]] inline void unrolled(Op op) {
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
        (op(std::integral_constant<int, kIndex>()), ...);
    }(std::make_integer_sequence<int, kCount>());
}

struct NeonLanes {
    using Float = float32x4_t;
    using Int = int32x4_t;
    static constexpr int kLanes = 4;
    static constexpr int64_t kPrefetch = 2048;

    static Float zero() { return vdupq_n_f32(0); }
    static Float set1(float x) { return vdupq_n_f32(x); }
    static Int set1(int32_t x) { return vdupq_n_s32(x); }
    static Float load(const float* p) { return vld1q_f32(p); }
    static Float load_half(const std::byte* p) {
        return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(reinterpret_cast<const uint8_t*>(p))));
    }
    static Float load_u8(const std::byte* p) {
        uint32_t four = 0;
        std::memcpy(&four, p, sizeof four);
        const uint16x8_t words = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
        return vcvtq_f32_u32(vmovl_u16(vget_low_u16(words)));
    }
    static void store(float* p, Float x) { vst1q_f32(p, x); }
    static Int sub(Int a, Int b) { return vsubq_s32(a, b); }
    static Float to_float(Int x) { return vcvtq_f32_s32(x); }
    static Float mul(Float a, Float b) { return vmulq_f32(a, b); }
    static Float fma(Float a, Float b, Float c) { return vfmaq_f32(c, a, b); }
    static Float neg_fma(Float a, Float b, Float c) { return vfmsq_f32(c, a, b); }

    static uint8x16_t load_codes(const std::byte* p) { return vld1q_u8(reinterpret_cast<const uint8_t*>(p)); }
    static int8x16_t load_plane(uintptr_t address) { return vld1q_s8(reinterpret_cast<const int8_t*>(address)); }

    /// Field kField of every byte: its bits kBits*kField and up. The first needs no shift and the last no mask.
    template <int kBits, int kField>
    [[gnu::always_inline]] static inline uint8x16_t field(uint8x16_t codes) {
        if constexpr (kField > 0) codes = vshrq_n_u8(codes, kBits * kField);
        if constexpr (kBits * (kField + 1) < 8) codes = vandq_u8(codes, vdupq_n_u8((1 << kBits) - 1));
        return codes;
    }

    /// 256*high + low, modulo 2^32.
    static Int join(Int high, Int low) { return vaddq_s32(vshlq_n_s32(high, 8), low); }
};

}  // namespace
}  // namespace samara::kernels
