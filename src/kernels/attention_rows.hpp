#pragma once
// Attention of many query rows over one block of 64 keys: a prompt's tokens share the block's keys and values, which
// become floats once. A lane is a row, so that the partial sums of a score, the tree over them, the exponentials and
// their sum are all whole vectors. The bits are those of attend_block and merge_blocks: each score has the 16 partial
// sums of dot order and their tree, each output its keys in ascending order. Keys that a row does not see weigh +0,
// which changes neither a sum nor an output: both start at +0 and so are never -0.

#include <cstdint>
#include <limits>
#include <type_traits>

#include "src/kernels/attention.hpp"
#include "src/kernels/exponential.hpp"
#include "src/kernels/kernels.hpp"

namespace samara::kernels {
namespace {

/// Partial sums `partial` and `partial` + 8, added, of kVectors x 16 rows against kRowKeys keys. out is (keys,
/// kQueryRows).
template <class V, int kVectors>
inline void partial_scores(const float* q, const float* keys, int head_dim, int partial, float* out) {
    typename V::F acc[2][kVectors][V::kRowKeys];
#pragma GCC unroll 16
    for (int half = 0; half < 2; ++half)
#pragma GCC unroll 16
        for (int g = 0; g < kVectors; ++g)
#pragma GCC unroll 16
            for (int j = 0; j < V::kRowKeys; ++j) acc[half][g][j] = V::zero();
    const int64_t half_q = int64_t{head_dim} / 2 * kQueryRows;
    q += partial * (head_dim / 16) * kQueryRows;
    for (int d = partial; d < head_dim; d += 16, q += kQueryRows) {
#pragma GCC unroll 16
        for (int half = 0; half < 2; ++half) {
            typename V::F rows[kVectors];
#pragma GCC unroll 16
            for (int g = 0; g < kVectors; ++g) rows[g] = V::load(q + half * half_q + 16 * g);
#pragma GCC unroll 16
            for (int j = 0; j < V::kRowKeys; ++j) {
                const auto key = V::set(keys[j * head_dim + d + 8 * half]);
#pragma GCC unroll 16
                for (int g = 0; g < kVectors; ++g) acc[half][g][j] = V::fma(rows[g], key, acc[half][g][j]);
            }
        }
    }
#pragma GCC unroll 16
    for (int j = 0; j < V::kRowKeys; ++j) {
#pragma GCC unroll 16
        for (int g = 0; g < kVectors; ++g) V::store(out + j * kQueryRows + 16 * g, V::add(acc[0][g][j], acc[1][g][j]));
    }
}

/// The partial sums partial, partial + kStep, partial + 2*kStep, ... below 16, added as dot order's tree adds them.
template <class V, int kVectors, int kStep>
inline void tree_scores(const float* q, const float* keys, int head_dim, int partial, float* out) {
    if constexpr (kStep == 8) {
        partial_scores<V, kVectors>(q, keys, head_dim, partial, out);
    } else {
        alignas(64) float other[V::kRowKeys * kQueryRows];
        tree_scores<V, kVectors, 2 * kStep>(q, keys, head_dim, partial, out);
        tree_scores<V, kVectors, 2 * kStep>(q, keys, head_dim, partial + kStep, other);
        for (int j = 0; j < V::kRowKeys; ++j) {
            for (int r = j * kQueryRows; r < j * kQueryRows + 16 * kVectors; r += 16)
                V::store(out + r, V::add(V::load(out + r), V::load(other + r)));
        }
    }
}

/// What a row's earlier keys and this block's are multiplied by when they merge.
struct MergeFactors {
    alignas(64) float keep[kQueryRows];
    alignas(64) float take[kQueryRows];
};

/// Turns the scores (keys, kQueryRows) of 16 rows from row `at` on into weights of values, merges the rows' maxima and
/// sums, and gives the factors for their outputs.
template <class V>
inline void weigh_rows(const QueryRows& rows, int at, float scale, const KvBlock& block, int begin, int end,
                       float* scores, MergeFactors& factors) {
    const auto none = V::set(-std::numeric_limits<float>::infinity());
    // In place of the maximum of no keys, so that exp gives 0 and not exp(-inf + inf).
    const auto base = [&](auto max) {
        return V::select_less(max, V::set(std::numeric_limits<float>::lowest()), V::zero(), max);
    };
    const auto first = V::load(rows.begin + at);
    const auto last = V::load(rows.end + at);
    auto top = none;
    for (int j = begin; j < end; ++j) {
        float* p = scores + j * kQueryRows + at;
        const auto key = V::set(static_cast<float>(j));
        auto score = V::mul(V::load(p), V::set(block.k_scale[j] * scale));
        score = V::select_less(key, first, none, V::select_less(key, last, score, none));
        V::store(p, score);
        top = V::max(top, score);
    }
    top = V::add(top, V::zero());  // +0 whichever zero came first
    const auto top_base = base(top);
    auto sum = V::zero();
    for (int j = begin; j < end; ++j) {
        float* p = scores + j * kQueryRows + at;
        const auto weight = exp16<V>(V::sub(V::load(p), top_base));
        sum = V::add(sum, weight);
        V::store(p, V::mul(weight, V::set(block.v_scale[j])));
    }
    const auto before = V::load(rows.max + at);
    const auto max = V::max(before, top);
    const auto keep = exp16<V>(V::sub(before, base(max)));
    const auto take = exp16<V>(V::sub(top, base(max)));
    V::store(rows.max + at, max);
    V::store(rows.sum + at, V::fma(V::load(rows.sum + at), keep, V::mul(sum, take)));
    V::store(factors.keep + at, keep);
    V::store(factors.take + at, take);
}

/// v is (64, 16*kChunks).
/// out[h] = out[h]*keep[h] + take[h] * (sum over keys of w[h]*v), 16*kChunks columns of kValueHeads rows.
template <class V, int kChunks>
inline void value_rows(const float* w, const float* v, int head_dim, int begin, int end, const float* keep,
                       const float* take, float* out) {
    typename V::F acc[V::kValueHeads][kChunks];
#pragma GCC unroll 16
    for (int h = 0; h < V::kValueHeads; ++h)
#pragma GCC unroll 16
        for (int c = 0; c < kChunks; ++c) acc[h][c] = V::zero();
    for (int j = begin; j < end; ++j) {
        typename V::F value[kChunks];
#pragma GCC unroll 16
        for (int c = 0; c < kChunks; ++c) value[c] = V::load(v + (j * kChunks + c) * 16);
#pragma GCC unroll 16
        for (int h = 0; h < V::kValueHeads; ++h) {
            const auto weight = V::set(w[j * kQueryRows + h]);
#pragma GCC unroll 16
            for (int c = 0; c < kChunks; ++c) acc[h][c] = V::fma(weight, value[c], acc[h][c]);
        }
    }
#pragma GCC unroll 16
    for (int h = 0; h < V::kValueHeads; ++h) {
        for (int c = 0; c < kChunks; ++c) {
            float* at = out + h * head_dim + 16 * c;
            V::store(at, V::fma(V::load(at), V::set(keep[h]), V::mul(acc[h][c], V::set(take[h]))));
        }
    }
}

template <class V, class Integer>
void attend_rows_of(const QueryRows& rows, int head_dim, float scale, const KvBlock& block, int begin, int end) {
    static_assert(16 * V::kValueChunks <= 64 && kQueryRows % (16 * V::kRowVectors) == 0 &&
                  kKeyBlock % V::kRowKeys == 0);
    constexpr int kWide = 16 * V::kValueChunks;
    float* keys = rows.scratch;                            // (64, head_dim)
    float* values = keys + kKeyBlock * int64_t{head_dim};  // (64, kWide): some columns of the values
    float* scores = values + kKeyBlock * kWide;
    const int first = begin / V::kRowKeys * V::kRowKeys;
    const int last = (end + V::kRowKeys - 1) / V::kRowKeys * V::kRowKeys;
    for (int i = first * head_dim; i < last * head_dim; i += 16)
        V::store(keys + i, load_integers<V>(static_cast<const Integer*>(block.k) + i));

    const int padded = (rows.count + 15) / 16 * 16;
    const auto score = [&](auto vectors, int r) {
        for (int j = first; j < last; j += V::kRowKeys) {
            tree_scores<V, vectors(), 1>(rows.q + r, keys + j * head_dim, head_dim, 0, scores + j * kQueryRows + r);
        }
        return 16 * vectors();
    };
    for (int r = 0; r < padded;) {
        r += r + 16 * V::kRowVectors <= padded ? score(std::integral_constant<int, V::kRowVectors>{}, r)
                                               : score(std::integral_constant<int, 1>{}, r);
    }

    MergeFactors factors;
    for (int r = 0; r < padded; r += 16) weigh_rows<V>(rows, r, scale, block, begin, end, scores, factors);

    const auto add_values = [&](auto chunks, int d) {
        for (int j = begin; j < end; ++j) {
            for (int c = 0; c < 16 * chunks(); c += 16)
                V::store(values + j * 16 * chunks() + c,
                         load_integers<V>(static_cast<const Integer*>(block.v) + j * head_dim + d + c));
        }
        for (int h = 0; h < rows.count; h += V::kValueHeads) {
            value_rows<V, chunks()>(scores + h, values, head_dim, begin, end, factors.keep + h, factors.take + h,
                                    rows.out + int64_t{h} * head_dim + d);
        }
    };
    int d = 0;
    for (; d + kWide <= head_dim; d += kWide) add_values(std::integral_constant<int, V::kValueChunks>{}, d);
    for (; d < head_dim; d += 16) add_values(std::integral_constant<int, 1>{}, d);
}

template <class V>
void attend_rows(const QueryRows& rows, int head_dim, float scale, const KvBlock& block, int begin, int end) {
    const auto attend = block.type == KvType::kInt8 ? attend_rows_of<V, int8_t> : attend_rows_of<V, int16_t>;
    attend(rows, head_dim, scale, block, begin, end);
}

}  // namespace
}  // namespace samara::kernels
