#pragma once
// The 16-lane interface (vec_scalar.hpp states it) on NEON of 64-bit Arm: four registers. Every such CPU has what is
// used here: fused multiply-add, conversions that round half to even, and half to float.

#include <arm_neon.h>

#include <cstdint>

namespace samara::kernels {
namespace {

struct NeonVec {
    struct F {
        float32x4_t a, b, c, d;  // lanes 0-3, 4-7, 8-11, 12-15
    };
    struct I {
        int32x4_t a, b, c, d;
    };

    // 32 registers: sixteen hold sums, the rest operands.
    static constexpr int kScoreHeads = 2;
    static constexpr int kScoreKeys = 2;
    static constexpr int kValueHeads = 4;
    static constexpr int kValueChunks = 1;
    static constexpr int kRowVectors = 1;
    static constexpr int kRowKeys = 2;
    static constexpr int kMatmulRows = 2;
    static constexpr int kMatmulTokens = 2;
    static constexpr int kSingleRows = 4;

    static F zero() { return set(0.0f); }
    static F set(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x)}; }
    static F load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
    static F load_i16(const int16_t* p) {
        const auto widen = [](int16x4_t x) { return vcvtq_f32_s32(vmovl_s16(x)); };
        const int16x8_t low = vld1q_s16(p);
        const int16x8_t high = vld1q_s16(p + 8);
        return {widen(vget_low_s16(low)), widen(vget_high_s16(low)), widen(vget_low_s16(high)),
                widen(vget_high_s16(high))};
    }
    static F load_i8(const int8_t* p) {
        const auto widen = [](int16x4_t x) { return vcvtq_f32_s32(vmovl_s16(x)); };
        const int8x16_t bytes = vld1q_s8(p);
        const int16x8_t low = vmovl_s8(vget_low_s8(bytes));
        const int16x8_t high = vmovl_s8(vget_high_s8(bytes));
        return {widen(vget_low_s16(low)), widen(vget_high_s16(low)), widen(vget_low_s16(high)),
                widen(vget_high_s16(high))};
    }
    static F load_half(const uint16_t* p) {
        const float16x8_t low = vreinterpretq_f16_u16(vld1q_u16(p));
        const float16x8_t high = vreinterpretq_f16_u16(vld1q_u16(p + 8));
        return {vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low), vcvt_f32_f16(vget_low_f16(high)),
                vcvt_high_f32_f16(high)};
    }
    static F load_bf16(const uint16_t* p) {  // zeros below each element
        const uint16x8_t none = vdupq_n_u16(0);
        const uint16x8_t low = vld1q_u16(p);
        const uint16x8_t high = vld1q_u16(p + 8);
        return {vreinterpretq_f32_u16(vzip1q_u16(none, low)), vreinterpretq_f32_u16(vzip2q_u16(none, low)),
                vreinterpretq_f32_u16(vzip1q_u16(none, high)), vreinterpretq_f32_u16(vzip2q_u16(none, high))};
    }
    static void store(float* p, F x) {
        vst1q_f32(p, x.a);
        vst1q_f32(p + 4, x.b);
        vst1q_f32(p + 8, x.c);
        vst1q_f32(p + 12, x.d);
    }

    static F add(F x, F y) {
        return each(x, y, [](float32x4_t s, float32x4_t t) { return vaddq_f32(s, t); });
    }
    static F sub(F x, F y) {
        return each(x, y, [](float32x4_t s, float32x4_t t) { return vsubq_f32(s, t); });
    }
    static F mul(F x, F y) {
        return each(x, y, [](float32x4_t s, float32x4_t t) { return vmulq_f32(s, t); });
    }
    static F div(F x, F y) {
        return each(x, y, [](float32x4_t s, float32x4_t t) { return vdivq_f32(s, t); });
    }
    static F neg(F x) { return {vnegq_f32(x.a), vnegq_f32(x.b), vnegq_f32(x.c), vnegq_f32(x.d)}; }
    static F fma(F x, F y, F z) {
        return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
    }
    // Not vminq and vmaxq, which let every NaN through.
    static F min(F x, F y) { return select_less(x, y, x, y); }
    static F max(F x, F y) { return select_less(y, x, x, y); }
    static F select_less(F x, F y, F less, F otherwise) {
        return {
            vbslq_f32(vcltq_f32(x.a, y.a), less.a, otherwise.a), vbslq_f32(vcltq_f32(x.b, y.b), less.b, otherwise.b),
            vbslq_f32(vcltq_f32(x.c, y.c), less.c, otherwise.c), vbslq_f32(vcltq_f32(x.d, y.d), less.d, otherwise.d)};
    }

    static float tree_sum(F x) {
        const float32x4_t four = fours(x);
        return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
    }
    static F tree_sum16(const F* x) { return {tree_sum4(x), tree_sum4(x + 4), tree_sum4(x + 8), tree_sum4(x + 12)}; }
    static float max_lane(F x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.a, x.b), vmaxq_f32(x.c, x.d))); }

    static I bits(F x) {
        return {vreinterpretq_s32_f32(x.a), vreinterpretq_s32_f32(x.b), vreinterpretq_s32_f32(x.c),
                vreinterpretq_s32_f32(x.d)};
    }
    static F from_bits(I x) {
        return {vreinterpretq_f32_s32(x.a), vreinterpretq_f32_s32(x.b), vreinterpretq_f32_s32(x.c),
                vreinterpretq_f32_s32(x.d)};
    }
    static I set_int(int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x)}; }
    static I add_int(I x, I y) {
        return each(x, y, [](int32x4_t s, int32x4_t t) { return vaddq_s32(s, t); });
    }
    static I sub_int(I x, I y) {
        return each(x, y, [](int32x4_t s, int32x4_t t) { return vsubq_s32(s, t); });
    }
    static I and_int(I x, I y) {
        return each(x, y, [](int32x4_t s, int32x4_t t) { return vandq_s32(s, t); });
    }
    static I max_int(I x, I y) {
        return each(x, y, [](int32x4_t s, int32x4_t t) { return vmaxq_s32(s, t); });
    }
    template <int kBits>
    static I shift_left(I x) {
        return {vshlq_n_s32(x.a, kBits), vshlq_n_s32(x.b, kBits), vshlq_n_s32(x.c, kBits), vshlq_n_s32(x.d, kBits)};
    }
    template <int kBits>
    static I shift_right(I x) {
        return {vshrq_n_s32(x.a, kBits), vshrq_n_s32(x.b, kBits), vshrq_n_s32(x.c, kBits), vshrq_n_s32(x.d, kBits)};
    }
    static I round_to_int(F x) {
        return {vcvtnq_s32_f32(x.a), vcvtnq_s32_f32(x.b), vcvtnq_s32_f32(x.c), vcvtnq_s32_f32(x.d)};
    }
    static int32_t sum_int(I x) { return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d))); }
    static int32_t max_lane_int(I x) { return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.a, x.b), vmaxq_s32(x.c, x.d))); }
    static void store_i16(int16_t* p, I x) {
        vst1q_s16(p, narrow(x.a, x.b));
        vst1q_s16(p + 8, narrow(x.c, x.d));
    }
    static void store_i8(int8_t* p, I x) {
        vst1q_s8(p, vcombine_s8(vmovn_s16(narrow(x.a, x.b)), vmovn_s16(narrow(x.c, x.d))));
    }

  private:
    template <class V, class Op>
    [[gnu::always_inline]] static inline V each(V x, V y, Op op) {
        return {op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)};
    }
    static int16x8_t narrow(int32x4_t x, int32x4_t y) { return vcombine_s16(vmovn_s32(x), vmovn_s32(y)); }
    /// The tree's first two steps: four sums.
    static float32x4_t fours(F x) { return vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d)); }
    /// Tree sums of x[0..4). Each step adds the halves of two vectors and keeps both results in one.
    static float32x4_t tree_sum4(const F* x) {
        const auto twos = [&](int i) {
            const float64x2_t s = vreinterpretq_f64_f32(fours(x[i]));
            const float64x2_t t = vreinterpretq_f64_f32(fours(x[i + 1]));
            return vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(s, t)), vreinterpretq_f32_f64(vzip2q_f64(s, t)));
        };
        return vpaddq_f32(twos(0), twos(2));
    }
};

}  // namespace
}  // namespace samara::kernels
