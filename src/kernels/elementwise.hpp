#pragma once
// Kernels that walk one vector: quantisation, norm, sums, SwiGLU, exp and rotary positions. Written once over the
// 16-lane interface (vec_scalar.hpp); the last, partial vector is padded with zeros.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "src/kernels/exponential.hpp"
#include "src/kernels/kernels.hpp"

namespace samara::kernels {
namespace {

/// The first `count` < 16 elements of `p`, then zeros.
template <class V>
inline typename V::F load_part(const float* p, int count) {
    alignas(64) float padded[16] = {};
    std::memcpy(padded, p, sizeof(float) * static_cast<size_t>(count));
    return V::load(padded);
}

template <class V>
inline void store_part(float* p, int count, typename V::F a) {
    alignas(64) float full[16];
    V::store(full, a);
    std::memcpy(p, full, sizeof(float) * static_cast<size_t>(count));
}

/// Calls op(load, store, i) for each 16 elements; load(p) and store(p, v) at p + i leave out what is beyond n.
template <class V, class Op>
inline void for_each_vector(int n, Op op) {
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        op([i](const float* p) { return V::load(p + i); }, [i](float* p, typename V::F a) { V::store(p + i, a); });
    }
    if (i < n) {
        const int rest = n - i;
        op([i, rest](const float* p) { return load_part<V>(p + i, rest); },
           [i, rest](float* p, typename V::F a) { store_part<V>(p + i, rest, a); });
    }
}

/// Planes and sums of the 16 integers at column i.
template <class V>
inline void store_quantised(typename V::I q, int64_t i, const QuantisedRow& out) {
    V::store_i16(out.q + i, q);
    if (out.high != nullptr) {
        const auto high = V::template shift_right<8>(V::add_int(q, V::set_int(128)));
        V::store_i8(out.high + i, high);
        V::store_i8(out.low + i, V::sub_int(q, V::template shift_left<8>(high)));
    }
    if (out.sums16 != nullptr) out.sums16[i / 16] = V::sum_int(q);
}

constexpr float kZeroBelow = 1e-30f;  // smaller vectors would need a factor beyond float32

/// The largest magnitude, or NaN or infinity when any value is so.
template <class V>
float absmax_of(const float* x, int n) {
    const auto magnitude = V::set_int(0x7fffffff);
    auto max_bits = V::set_int(0);  // bits of non-negative floats order as the floats do, NaN above all
    int i = 0;
    for (; i + 16 <= n; i += 16) max_bits = V::max_int(max_bits, V::and_int(V::bits(V::load(x + i)), magnitude));
    if (i < n) max_bits = V::max_int(max_bits, V::and_int(V::bits(load_part<V>(x + i, n - i)), magnitude));
    return std::bit_cast<float>(V::max_lane_int(max_bits));
}

template <class V>
bool quantise_bytes(const float* x, int n, int8_t* q, float* scale) {
    constexpr float kByteMax = 127;
    const float absmax = absmax_of<V>(x, n);
    if (!(absmax <= std::numeric_limits<float>::max())) return false;
    const bool zero = absmax < kZeroBelow;
    *scale = zero ? 0.0f : absmax / kByteMax;
    const auto factor = V::set(zero ? 0.0f : kByteMax / absmax);
    for (int i = 0; i < n; i += 16) V::store_i8(q + i, V::round_to_int(V::mul(V::load(x + i), factor)));
    return true;
}

template <class V>
bool quantise(const float* x, int cols, int64_t stride, const QuantisedRow& out) {
    using I = typename V::I;
    const float absmax = absmax_of<V>(x, cols);
    if (!(absmax <= std::numeric_limits<float>::max())) return false;

    const bool zero = absmax < kZeroBelow;
    *out.scale = zero ? 0.0f : absmax / static_cast<float>(kActivationMax);
    const auto factor = V::set(zero ? 0.0f : static_cast<float>(kActivationMax) / absmax);
    I total = V::set_int(0);
    int64_t i = 0;
    for (; i + 16 <= cols; i += 16) {
        const I q = V::round_to_int(V::mul(V::load(x + i), factor));
        total = V::add_int(total, q);
        store_quantised<V>(q, i, out);
    }
    const int rest = static_cast<int>(cols - i);
    if (rest > 0) {
        const I q = V::round_to_int(V::mul(load_part<V>(x + i, rest), factor));
        total = V::add_int(total, q);
        // A row without padding (stride == cols) must not be written beyond its end.
        alignas(64) int16_t q_part[16];
        alignas(64) int8_t high[16];
        alignas(64) int8_t low[16];
        int32_t sum16 = 0;
        const bool planes = out.high != nullptr;
        store_quantised<V>(q, 0, {q_part, planes ? high : nullptr, low, &sum16, nullptr, nullptr});
        const size_t room = static_cast<size_t>(stride - i < 16 ? stride - i : 16);
        std::memcpy(out.q + i, q_part, 2 * room);
        if (planes) {
            std::memcpy(out.high + i, high, room);
            std::memcpy(out.low + i, low, room);
        }
        if (out.sums16 != nullptr) out.sums16[i / 16] = sum16;
        i += 16;
    }
    if (out.sum != nullptr) *out.sum = V::sum_int(total);
    if (i >= stride) return true;
    const size_t padding = static_cast<size_t>(stride - i);
    std::memset(out.q + i, 0, 2 * padding);
    if (out.high != nullptr) {
        std::memset(out.high + i, 0, padding);
        std::memset(out.low + i, 0, padding);
    }
    if (out.sums16 != nullptr) std::memset(out.sums16 + i / 16, 0, padding / 16 * sizeof(int32_t));
    return true;
}

template <class V>
void remainder(const float* x, const int16_t* q, float scale, int n, float* out) {
    const auto factor = V::set(-scale);
    for_each_vector<V>(n, [&](auto load, auto store) {
        store(out, V::fma(factor, V::load_i16(q), load(x)));
        q += 16;
    });
}

template <class V>
void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
    auto sums = V::zero();
    for_each_vector<V>(n, [&](auto load, auto) {
        const auto v = load(x);
        sums = V::fma(v, v, sums);
    });
    const float mean = V::tree_sum(sums) / static_cast<float>(n);
    const auto factor = V::set(1.0f / std::sqrt(mean + eps));
    for_each_vector<V>(n, [&](auto load, auto store) { store(out, V::mul(V::mul(load(x), factor), load(weight))); });
}

template <class V>
void add(const float* x, int n, float* out) {
    for_each_vector<V>(n, [&](auto load, auto store) { store(out, V::add(load(out), load(x))); });
}

template <class V>
void add_scaled(const float* x, float weight, int n, float* out) {
    const auto w = V::set(weight);
    for_each_vector<V>(n, [&](auto load, auto store) { store(out, V::fma(w, load(x), load(out))); });
}

template <class V>
void swiglu(const float* gate, const float* up, int n, float limit, float* out) {
    const auto highest = V::set(limit);
    const auto lowest = V::set(-limit);
    const auto one = V::set(1.0f);
    for_each_vector<V>(n, [&](auto load, auto store) {
        const auto g = V::min(highest, load(gate));
        const auto u = V::max(lowest, V::min(highest, load(up)));
        const auto silu = V::div(g, V::add(one, exp16<V>(V::neg(g))));
        store(out, V::mul(silu, u));
    });
}

template <class V>
void exp_all(const float* x, int n, float* out) {
    for_each_vector<V>(n, [&](auto load, auto store) { store(out, exp16<V>(load(x))); });
}

template <class V>
void rope(float* x, const float* cos, const float* sin, int pairs, bool interleaved) {
    if (interleaved) {
        for (int i = 0; i < pairs; ++i) {
            const float a = x[2 * i];
            const float b = x[2 * i + 1];
            x[2 * i] = std::fma(a, cos[i], -(b * sin[i]));
            x[2 * i + 1] = std::fma(b, cos[i], a * sin[i]);
        }
        return;
    }
    float* upper = x + pairs;
    for_each_vector<V>(pairs, [&](auto load, auto store) {
        const auto a = load(x);
        const auto b = load(upper);
        const auto c = load(cos);
        const auto s = load(sin);
        store(x, V::fma(a, c, V::neg(V::mul(b, s))));
        store(upper, V::fma(b, c, V::mul(a, s)));
    });
}

}  // namespace
}  // namespace samara::kernels
