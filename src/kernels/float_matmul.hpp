#pragma once
// Matmul of the row-major float layouts in dot order, written once over the 16-lane interface. Sixteen rows' partial
// sums wait in an array and are summed by one transposing tree.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "src/kernels/kernels.hpp"

namespace samara::kernels {
namespace {

template <class V>
struct Float32Weights {
    using Element = float;
    static typename V::F load(const float* p) { return V::load(p); }
};
template <class V>
struct HalfWeights {
    using Element = uint16_t;
    static typename V::F load(const uint16_t* p) { return V::load_half(p); }
};
template <class V>
struct BfloatWeights {
    using Element = uint16_t;
    static typename V::F load(const uint16_t* p) { return V::load_bf16(p); }
};

/// Loads the first `count` <= 16 elements, then zeros, so that nothing beyond a row is read.
template <class V, class W>
inline typename V::F load_weights_part(const typename W::Element* p, int count) {
    alignas(64) typename W::Element padded[16] = {};
    std::memcpy(padded, p, sizeof(padded[0]) * static_cast<size_t>(count));
    return W::load(padded);
}

/// Partial sums of kRows rows and kTokens tokens. `sums` is (tokens, 16 rows).
template <class V, class W, int kRows, int kTokens>
inline void dot_tile(const typename W::Element* const* rows, const float* const* x, int cols, typename V::F* sums) {
    typename V::F acc[kRows][kTokens];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
        for (int t = 0; t < kTokens; ++t) acc[r][t] = V::zero();
    const auto step = [&](auto load_row, auto load_x) {
        typename V::F xs[kTokens];
#pragma GCC unroll 16
        for (int t = 0; t < kTokens; ++t) xs[t] = load_x(x[t]);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            const auto weights = load_row(rows[r]);
#pragma GCC unroll 16
            for (int t = 0; t < kTokens; ++t) acc[r][t] = V::fma(weights, xs[t], acc[r][t]);
        }
    };
    int col = 0;
    for (; col + 16 <= cols; col += 16)
        step([col](const auto* row) { return W::load(row + col); }, [col](const float* p) { return V::load(p + col); });
    if (col < cols) {
        const int rest = cols - col;
        step([col, rest](const auto* row) { return load_weights_part<V, W>(row + col, rest); },
             [col, rest](const float* p) { return load_weights_part<V, Float32Weights<V>>(p + col, rest); });
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
        for (int t = 0; t < kTokens; ++t) sums[t * 16 + r] = acc[r][t];
}

/// One row group (16 rows; those beyond the matrix repeat its last) times kTokens tokens.
template <class V, class W, int kRows, int kTokens>
inline void dot_group(const typename W::Element* const* rows, const float* const* x, int cols, int count, float* out,
                      int64_t out_stride) {
    typename V::F sums[kTokens * 16];
    for (int r = 0; r < 16; r += kRows) dot_tile<V, W, kRows, kTokens>(rows + r, x, cols, sums + r);
    for (int t = 0; t < kTokens; ++t) {
        alignas(64) float results[16];
        V::store(results, V::tree_sum16(sums + t * 16));
        std::memcpy(out + t * out_stride, results, sizeof(float) * static_cast<size_t>(count));
    }
}

template <class V, class W>
void float_matmul_as(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens,
                     int n, float* out, int64_t out_stride) {
    using Element = typename W::Element;
    const auto* weights = reinterpret_cast<const Element*>(w.data);
    const auto token_at = [&](int i) { return a.x + (tokens != nullptr ? tokens[i] : i) * a.stride; };
    for (int group = group_begin; group < group_end; ++group) {
        const int first = group * kRowGroup;
        const int count = std::min(kRowGroup, w.rows - first);
        const Element* rows[kRowGroup];
        for (int r = 0; r < kRowGroup; ++r) rows[r] = weights + int64_t{first + std::min(r, count - 1)} * w.cols;
        int i = 0;
        for (; i + V::kMatmulTokens <= n; i += V::kMatmulTokens) {
            const float* x[V::kMatmulTokens];
            for (int t = 0; t < V::kMatmulTokens; ++t) x[t] = token_at(i + t);
            dot_group<V, W, V::kMatmulRows, V::kMatmulTokens>(rows, x, w.cols, count, out + i * out_stride + first,
                                                              out_stride);
        }
        for (; i < n; ++i) {
            const float* x[1] = {token_at(i)};
            dot_group<V, W, V::kSingleRows, 1>(rows, x, w.cols, count, out + i * out_stride + first, out_stride);
        }
    }
}

template <class V>
void float_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                  float* out, int64_t out_stride) {
    switch (w.layout) {
        case Layout::kFloat16:
            return float_matmul_as<V, HalfWeights<V>>(w, group_begin, group_end, a, tokens, n, out, out_stride);
        case Layout::kBfloat16:
            return float_matmul_as<V, BfloatWeights<V>>(w, group_begin, group_end, a, tokens, n, out, out_stride);
        default:
            return float_matmul_as<V, Float32Weights<V>>(w, group_begin, group_end, a, tokens, n, out, out_stride);
    }
}

}  // namespace
}  // namespace samara::kernels
