#pragma once
// Attention of the query heads that share one KV head, over one block of 64 keys. Written once over the 16-lane
// interface. Scores are register tiles of heads x keys, each score 16 partial sums and one tree; values are register
// tiles of heads x 16 outputs, keys in ascending order.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "src/kernels/exponential.hpp"
#include "src/kernels/kernels.hpp"

namespace samara::kernels {
namespace {

constexpr int kHeadsAtOnce = 16;  // query heads that share one pass over the keys
constexpr int kLineBytes = 64;

template <class V>
[[gnu::always_inline]] inline typename V::F load_integers(const int16_t* p) {
    return V::load_i16(p);
}
template <class V>
[[gnu::always_inline]] inline typename V::F load_integers(const int8_t* p) {
    return V::load_i8(p);
}

/// Brings the line `bytes` after `p` into the second-level cache: keys and values come in pieces that are too short for
/// the hardware's own prefetching.
[[gnu::always_inline]] inline void fetch_ahead(const void* p, int64_t bytes) {
    __builtin_prefetch(static_cast<const char*>(p) + bytes, 0, 2);
}

/// Partial sums of kHeads x kKeys scores. `sums` is (heads, 16 keys). `next`: see KvBlock.
template <class V, int kHeads, int kKeys, class Integer>
inline void score_tile(const float* q, const Integer* keys, int head_dim, int64_t next, typename V::F* sums) {
    typename V::F acc[kHeads][kKeys];
#pragma GCC unroll 16
    for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 16
        for (int j = 0; j < kKeys; ++j) acc[h][j] = V::zero();
    for (int d = 0; d < head_dim; d += 16) {
        typename V::F k[kKeys];
#pragma GCC unroll 16
        for (int j = 0; j < kKeys; ++j) k[j] = load_integers<V>(keys + j * head_dim + d);
        if (d % (kLineBytes / static_cast<int>(sizeof(Integer))) == 0) {
#pragma GCC unroll 16
            for (int j = 0; j < kKeys; ++j) fetch_ahead(keys + j * head_dim + d, next);
        }
#pragma GCC unroll 16
        for (int h = 0; h < kHeads; ++h) {
            const auto qh = V::load(q + h * head_dim + d);
#pragma GCC unroll 16
            for (int j = 0; j < kKeys; ++j) acc[h][j] = V::fma(qh, k[j], acc[h][j]);
        }
    }
#pragma GCC unroll 16
    for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 16
        for (int j = 0; j < kKeys; ++j) sums[h * 16 + j] = acc[h][j];
}

/// Scores of kHeads heads against 16 keys, not yet scaled by the key. scores is (heads, 64).
template <class V, int kHeads, class Integer>
inline void score_heads(const float* q, const Integer* keys, int head_dim, int64_t next, typename V::F key_scale,
                        float* scores) {
    typename V::F sums[kHeads * 16];
    for (int j = 0; j < 16; j += V::kScoreKeys)
        score_tile<V, kHeads, V::kScoreKeys>(q, keys + j * head_dim, head_dim, next, sums + j);
    for (int h = 0; h < kHeads; ++h) V::store(scores + h * kKeyBlock, V::mul(V::tree_sum16(sums + h * 16), key_scale));
}

/// out[h][0..16*kChunks) = sum over keys [begin, end) of w[h][j] * v[j]. w is (heads, 64).
template <class V, int kHeads, int kChunks, class Integer>
inline void value_tile(const float* w, const Integer* v, int head_dim, int begin, int end, int64_t next, float* out) {
    typename V::F acc[kHeads][kChunks];
#pragma GCC unroll 16
    for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 16
        for (int c = 0; c < kChunks; ++c) acc[h][c] = V::zero();
    for (int j = begin; j < end; ++j) {
        typename V::F value[kChunks];
#pragma GCC unroll 16
        for (int c = 0; c < kChunks; ++c) value[c] = load_integers<V>(v + j * head_dim + 16 * c);
#pragma GCC unroll 16
        for (int c = 0; c < kChunks; c += kLineBytes / (16 * static_cast<int>(sizeof(Integer))))
            fetch_ahead(v + j * head_dim + 16 * c, next);
#pragma GCC unroll 16
        for (int h = 0; h < kHeads; ++h) {
            const auto weight = V::set(w[h * kKeyBlock + j]);
#pragma GCC unroll 16
            for (int c = 0; c < kChunks; ++c) acc[h][c] = V::fma(weight, value[c], acc[h][c]);
        }
    }
#pragma GCC unroll 16
    for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 16
        for (int c = 0; c < kChunks; ++c) V::store(out + h * head_dim + 16 * c, acc[h][c]);
}

template <class V, int kHeads, class Integer>
inline void value_heads(const float* w, const Integer* v, int head_dim, int begin, int end, int64_t next, float* out) {
    constexpr int kWide = 16 * V::kValueChunks;
    int d = 0;
    for (; d + kWide <= head_dim; d += kWide)
        value_tile<V, kHeads, V::kValueChunks>(w, v + d, head_dim, begin, end, next, out + d);
    for (; d < head_dim; d += 16) value_tile<V, kHeads, 1>(w, v + d, head_dim, begin, end, next, out + d);
}

/// Calls op(size as a constant, first head) over `heads` in tiles of at most kTile.
template <int kTile, class Op>
inline void for_head_tiles(int heads, Op op) {
    int h = 0;
    for (; h + kTile <= heads; h += kTile) op(std::integral_constant<int, kTile>{}, h);
    if constexpr (kTile > 1) {
        if (h < heads) for_head_tiles<kTile - 1>(heads - h, [&](auto size, int first) { op(size, h + first); });
    }
}

/// attend_block for at most kHeadsAtOnce heads, of a block of `Integer`s.
template <class V, class Integer>
inline void attend_heads(const float* q, int heads, int head_dim, float scale, const KvBlock& block, int begin, int end,
                         const BlockResult& out) {
    alignas(64) float p[kHeadsAtOnce * kKeyBlock];  // scores, then exp, then exp times the value's scale
    const auto* keys = static_cast<const Integer*>(block.k);
    const auto* values = static_cast<const Integer*>(block.v);
    const int first = begin / 16 * 16;
    const auto scales = V::set(scale);
    for (int group = first; group < end; group += 16) {
        const auto key_scale = V::mul(V::load(block.k_scale + group), scales);
        for_head_tiles<V::kScoreHeads>(heads, [&](auto size, int h) {
            score_heads<V, size>(q + h * head_dim, keys + group * head_dim, head_dim, block.next, key_scale,
                                 p + h * kKeyBlock + group);
        });
    }
    const int last = (end + 15) / 16 * 16;
    float sums[kHeadsAtOnce] = {};
    for (int h = 0; h < heads; ++h) {
        float* row = p + h * kKeyBlock;
        // Positions outside [begin, end) may hold anything: their scores never count.
        std::fill(row + first, row + begin, -std::numeric_limits<float>::infinity());
        std::fill(row + end, row + last, -std::numeric_limits<float>::infinity());
        auto top = V::load(row + first);
        for (int j = first + 16; j < last; j += 16) top = V::max(top, V::load(row + j));
        out.max[h] = V::max_lane(top) + 0.0f;  // +0 whichever zero came first
        const auto max = V::set(out.max[h]);
        for (int j = first; j < last; j += 16) V::store(row + j, exp16<V>(V::sub(V::load(row + j), max)));
    }
    for (int j = begin; j < end; ++j)
        for (int h = 0; h < heads; ++h) sums[h] += p[h * kKeyBlock + j];
    std::copy_n(sums, heads, out.sum);
    for (int j = first; j < last; j += 16) {
        const auto value_scale = V::load(block.v_scale + j);
        for (int h = 0; h < heads; ++h) {
            float* at = p + h * kKeyBlock + j;
            V::store(at, V::mul(V::load(at), value_scale));
        }
    }
    for_head_tiles<V::kValueHeads>(heads, [&](auto size, int h) {
        value_heads<V, size>(p + h * kKeyBlock, values, head_dim, begin, end, block.next, out.out + h * head_dim);
    });
}

template <class V>
void attend_block(const float* q, int heads, int head_dim, float scale, const KvBlock& block, int begin, int end,
                  const BlockResult& out) {
    const auto attend = block.type == KvType::kInt8 ? attend_heads<V, int8_t> : attend_heads<V, int16_t>;
    for (int h = 0; h < heads; h += kHeadsAtOnce) {
        const BlockResult part{out.max + h, out.sum + h, out.out + h * head_dim};
        attend(q + h * head_dim, std::min(kHeadsAtOnce, heads - h), head_dim, scale, block, begin, end, part);
    }
}

template <class V>
void merge_blocks(const BlockResult& acc, const BlockResult& next, int heads, int head_dim) {
    for (int h = 0; h < heads; ++h) {
        const float max = std::max(acc.max[h], next.max[h]);
        alignas(64) float factors[16] = {acc.max[h] - max, next.max[h] - max};
        V::store(factors, exp16<V>(V::load(factors)));
        acc.max[h] = max;
        acc.sum[h] = std::fma(acc.sum[h], factors[0], next.sum[h] * factors[1]);
        const auto keep = V::set(factors[0]);
        const auto take = V::set(factors[1]);
        for (int d = h * head_dim; d < (h + 1) * head_dim; d += 16) {
            const auto added = V::mul(V::load(next.out + d), take);
            V::store(acc.out + d, V::fma(V::load(acc.out + d), keep, added));
        }
    }
}

template <class V>
void finish_attention(const BlockResult& acc, int heads, int head_dim, float* out) {
    for (int h = 0; h < heads; ++h) {
        const auto sum = V::set(acc.sum[h]);
        for (int d = h * head_dim; d < (h + 1) * head_dim; d += 16)
            V::store(out + d, V::div(V::load(acc.out + d), sum));
    }
}

}  // namespace
}  // namespace samara::kernels
