#pragma once
// The 16-lane vector interface as an array: the definition, and what runs where there is no other set. A NEON version
// holds four registers. Kernels are templates over a class with exactly these members; the classes live in an anonymous
// namespace, so that code compiled for one instruction set can never be linked into another's place.
//
// Semantics every set must keep: min(a, b) is a < b ? a : b and max(a, b) is a > b ? a : b, lane by lane (so a NaN in b
// survives and a NaN in a does not); fma rounds once; conversions to integer are given integral values in range.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "src/platform/half.hpp"

namespace samara::kernels {
namespace {

struct ScalarVec {
    struct F {
        float lane[16];
    };
    struct I {
        int32_t lane[16];
    };

    // Shapes of the register tiles; see attention.hpp, attention_rows.hpp and float_matmul.hpp.
    static constexpr int kScoreHeads = 1;
    static constexpr int kScoreKeys = 1;
    static constexpr int kValueHeads = 1;
    static constexpr int kValueChunks = 1;
    static constexpr int kRowVectors = 1;
    static constexpr int kRowKeys = 1;
    static constexpr int kMatmulRows = 1;
    static constexpr int kMatmulTokens = 1;
    static constexpr int kSingleRows = 1;

    template <class Op>
    static F map(Op op) {
        F r;
        for (int i = 0; i < 16; ++i) r.lane[i] = op(i);
        return r;
    }
    template <class Op>
    static I map_int(Op op) {
        I r;
        for (int i = 0; i < 16; ++i) r.lane[i] = op(i);
        return r;
    }

    static F zero() { return set(0.0f); }
    static F set(float x) {
        return map([&](int) { return x; });
    }
    static F load(const float* p) {
        return map([&](int i) { return p[i]; });
    }
    static F load_i16(const int16_t* p) {
        return map([&](int i) { return static_cast<float>(p[i]); });
    }
    static F load_i8(const int8_t* p) {
        return map([&](int i) { return static_cast<float>(p[i]); });
    }
    static F load_half(const uint16_t* p) {
        return map([&](int i) { return half_to_float(p[i]); });
    }
    static F load_bf16(const uint16_t* p) {
        return map([&](int i) { return bf16_to_float(p[i]); });
    }
    static void store(float* p, F a) { std::copy_n(a.lane, 16, p); }

    static F add(F a, F b) {
        return map([&](int i) { return a.lane[i] + b.lane[i]; });
    }
    static F sub(F a, F b) {
        return map([&](int i) { return a.lane[i] - b.lane[i]; });
    }
    static F mul(F a, F b) {
        return map([&](int i) { return a.lane[i] * b.lane[i]; });
    }
    static F div(F a, F b) {
        return map([&](int i) { return a.lane[i] / b.lane[i]; });
    }
    static F neg(F a) {
        return map([&](int i) { return -a.lane[i]; });
    }
    static F fma(F a, F b, F c) {
        return map([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
    }
    static F min(F a, F b) {
        return map([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static F max(F a, F b) {
        return map([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    /// a < b ? x : y in each lane.
    static F select_less(F a, F b, F x, F y) {
        return map([&](int i) { return a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i]; });
    }

    /// Lanes i + i+8, then +4, +2, +1: the tree of the dot order.
    static float tree_sum(F a) {
        for (int width = 8; width > 0; width /= 2)
            for (int i = 0; i < width; ++i) a.lane[i] += a.lane[i + width];
        return a.lane[0];
    }
    /// Lane j of the result is tree_sum(a[j]).
    static F tree_sum16(const F* a) {
        return map([&](int i) { return tree_sum(a[i]); });
    }
    static float max_lane(F a) { return *std::max_element(a.lane, a.lane + 16); }

    static I bits(F a) { return std::bit_cast<I>(a); }
    static F from_bits(I a) { return std::bit_cast<F>(a); }
    static I set_int(int32_t x) {
        return map_int([&](int) { return x; });
    }
    static I add_int(I a, I b) {
        return map_int([&](int i) { return wrap(bits_of(a.lane[i]) + bits_of(b.lane[i])); });
    }
    static I sub_int(I a, I b) {
        return map_int([&](int i) { return wrap(bits_of(a.lane[i]) - bits_of(b.lane[i])); });
    }
    static I and_int(I a, I b) {
        return map_int([&](int i) { return a.lane[i] & b.lane[i]; });
    }
    static I max_int(I a, I b) {
        return map_int([&](int i) { return std::max(a.lane[i], b.lane[i]); });
    }
    template <int kBits>
    static I shift_left(I a) {
        return map_int([&](int i) { return wrap(bits_of(a.lane[i]) << kBits); });
    }
    template <int kBits>
    static I shift_right(I a) {  // keeps the sign
        return map_int([&](int i) { return a.lane[i] >> kBits; });
    }
    /// Nearest integer, ties to even, of values that int32 holds.
    static I round_to_int(F a) {
        return map_int([&](int i) { return static_cast<int32_t>(std::nearbyint(a.lane[i])); });
    }
    static int32_t sum_int(I a) {
        uint32_t sum = 0;
        for (const int32_t x : a.lane) sum += bits_of(x);
        return wrap(sum);
    }
    static int32_t max_lane_int(I a) { return *std::max_element(a.lane, a.lane + 16); }
    /// Low 16 or 8 bits of lanes that fit them.
    static void store_i16(int16_t* p, I a) {
        for (int i = 0; i < 16; ++i) p[i] = static_cast<int16_t>(a.lane[i]);
    }
    static void store_i8(int8_t* p, I a) {
        for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.lane[i]);
    }

  private:
    static uint32_t bits_of(int32_t x) { return static_cast<uint32_t>(x); }
    static int32_t wrap(uint32_t x) { return static_cast<int32_t>(x); }
};

}  // namespace
}  // namespace samara::kernels
