// Ternary matmul for many tokens with AMX int8 tiles; everything else is AVX-512's.
//
// Operand A holds activations: the high planes of some tokens, a row each, and then their low planes. Operand B holds
// the codes of one row group: a block of the layout, unpacked, is four of its rows. One product of two registers is
// 16 planes x 16 rows x 64 columns. The loop over columns keeps kTokenTiles x kGroups sums in registers and unpacks the
// next columns' codes while it multiplies the last ones'.

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/kernels/amx_tiles.hpp"
#include "src/kernels/integer_matmul.hpp"
#include "src/kernels/x86.hpp"

namespace samara::kernels::amx {
namespace {

constexpr int kTileCols = 64;
constexpr int kTileRows = 16;
constexpr int kBlockBytes = 64;
constexpr int kBlockCols = 16;
constexpr int kBlocksPerTile = kTileCols / kBlockCols;
constexpr int kMaxGroups = 2;
constexpr int kMaxTokenTiles = 3;  // 3 x 2 sums, one A and one B fill the eight registers
constexpr int kSums = kMaxTokenTiles * kMaxGroups;
constexpr int kMinTokens = 4;        // fewer leave most of a tile empty: AVX-512 is faster
constexpr int kPlaneTiles = 3 * 64;  // 192 KiB on the stack: 24 tokens of 4096 columns
constexpr int kAhead = 1;            // steps that unpacking is ahead of multiplying
constexpr int64_t kMinPrefetch = 8192;

/// Some tokens' planes as operand A: (steps of 64 columns, token tiles).
struct Planes {
    Tile tile[kPlaneTiles];
};

/// The matmul of one call.
struct Call {
    const Matrix& w;
    const Activations& a;
    const int32_t* tokens;
    float* out;
    int64_t out_stride;
    int64_t group_bytes;
    const float* scales;  // (padded rows)
    int blocks;           // of a row group
    int steps;            // of 64 columns, the last perhaps in part

    int64_t token(int i) const { return tokens != nullptr ? tokens[i] : i; }
};

/// Row `row` of `token_tiles` stacked tiles takes 64 columns a step. Activations are padded with zeros to 256 columns.
void copy_plane(const int8_t* plane, int steps, int token_tiles, int row, Planes& planes) {
    Tile* to = planes.tile + row / kTileRows;
    for (int k = 0; k < steps; ++k, to += token_tiles, plane += kTileCols)
        _mm512_storeu_si512(to->bytes[row % kTileRows], _mm512_loadu_si512(plane));
}

/// Rows that no token has keep what they held: their sums are never read.
void copy_planes(const Call& call, int first, int count, int token_tiles, Planes& planes) {
    for (int i = 0; i < count; ++i) {
        const int64_t at = call.token(first + i) * call.a.stride;
        copy_plane(call.a.high + at, call.steps, token_tiles, i, planes);
        copy_plane(call.a.low + at, call.steps, token_tiles, count + i, planes);
    }
}

/// Unpacks `blocks` <= 4 blocks. The rows of absent ones keep what they held: they meet activations of zero.
[[gnu::always_inline]] inline void unpack(const std::byte* codes, int blocks, int64_t prefetch, Tile& to) {
    const __m512i mask = _mm512_set1_epi8(3);
#pragma GCC unroll 4
    for (int b = 0; b < blocks; ++b) {
        const std::byte* p = codes + b * kBlockBytes;
        const __m512i block = _mm512_loadu_si512(p);
        _mm_prefetch(reinterpret_cast<const char*>(p) + prefetch, _MM_HINT_T1);
        _mm512_storeu_si512(to.bytes[4 * b], _mm512_and_si512(block, mask));
        _mm512_storeu_si512(to.bytes[4 * b + 1], _mm512_and_si512(_mm512_srli_epi16(block, 2), mask));
        _mm512_storeu_si512(to.bytes[4 * b + 2], _mm512_and_si512(_mm512_srli_epi16(block, 4), mask));
        _mm512_storeu_si512(to.bytes[4 * b + 3], _mm512_and_si512(_mm512_srli_epi16(block, 6), mask));
    }
}

template <int kTokenTiles, int kGroups>
[[gnu::always_inline]] inline void zero_sums() {
    [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
        (zero<static_cast<int>(kIndex)>(), ...);
    }(std::make_index_sequence<kTokenTiles * kGroups>());
}

template <int kTokenTiles, int kGroups>
[[gnu::always_inline]] inline void store_sums(Tile (&sums)[kSums]) {
    [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
        (store<static_cast<int>(kIndex)>(sums[kIndex]), ...);
    }(std::make_index_sequence<kTokenTiles * kGroups>());
}

/// sum[g * kTokenTiles + t] += a[t] * b[g]. Two token tiles stay in registers for both groups; three do not fit.
template <int kTokenTiles, int kGroups>
[[gnu::always_inline]] inline void multiply_tiles(const Tile* a, const Tile* b) {
    if constexpr (kTokenTiles <= 2) {
        load<4>(a[0]);
        if constexpr (kTokenTiles == 2) load<5>(a[1]);
        load<6>(b[0]);
        dot_signed_unsigned<0, 4, 6>();
        if constexpr (kTokenTiles == 2) dot_signed_unsigned<1, 5, 6>();
        if constexpr (kGroups == 2) {
            load<7>(b[1]);
            dot_signed_unsigned<kTokenTiles, 4, 7>();
            if constexpr (kTokenTiles == 2) dot_signed_unsigned<3, 5, 7>();
        }
    } else {
        load<6>(b[0]);
        load<7>(a[0]);
        dot_signed_unsigned<0, 7, 6>();
        load<7>(a[1]);
        dot_signed_unsigned<1, 7, 6>();
        load<7>(a[2]);
        dot_signed_unsigned<2, 7, 6>();
        if constexpr (kGroups == 2) {
            load<6>(b[1]);
            dot_signed_unsigned<5, 7, 6>();
            load<7>(a[1]);
            dot_signed_unsigned<4, 7, 6>();
            load<7>(a[0]);
            dot_signed_unsigned<3, 7, 6>();
        }
    }
}

/// Writes the outputs of one row group for `count` tokens, whose sums are rows [0, count) and [count, 2*count) of
/// `sums`.
void finish(const Call& call, int group, int first, int count, const Tile* sums) {
    const int row = group * kRowGroup;
    const __m512 row_scale = _mm512_loadu_ps(call.scales + row);
    const auto sum = [sums](int i) { return _mm512_loadu_si512(sums[i / kTileRows].bytes[i % kTileRows]); };
    for (int i = 0; i < count; ++i) {
        const int64_t token = call.token(first + i);
        const __m512i q = _mm512_add_epi32(_mm512_slli_epi32(sum(i), 8), sum(count + i));
        const __m512 value = _mm512_cvtepi32_ps(_mm512_sub_epi32(q, _mm512_set1_epi32(call.a.sum[token])));
        const __m512 result = _mm512_mul_ps(value, _mm512_mul_ps(_mm512_set1_ps(call.a.scale[token]), row_scale));
        float* out = call.out + (first + i) * call.out_stride + row;
        if (row + kRowGroup <= call.w.rows) {
            _mm512_storeu_ps(out, result);
        } else {
            float values[kRowGroup];
            _mm512_storeu_ps(values, result);
            std::memcpy(out, values, sizeof(float) * static_cast<size_t>(call.w.rows - row));
        }
    }
}

/// Row groups [group, group + kGroups) times the tokens [first, first + count) whose planes were copied.
template <int kTokenTiles, int kGroups>
[[gnu::noinline]] void multiply(const Call& call, int group, int first, int count, int64_t prefetch,
                                const Planes& planes) {
    constexpr int kSlots = kAhead + 1;
    Tile codes[kSlots][kGroups];
    if (call.steps < kSlots || call.blocks % kBlocksPerTile != 0) std::memset(codes, 0, sizeof codes);
    const std::byte* from = call.w.data + group * call.group_bytes;
    const auto unpack_step = [&](int k) {
        const int blocks = call.blocks - k * kBlocksPerTile;
        for (int g = 0; g < kGroups; ++g) {
            const std::byte* p = from + g * call.group_bytes + int64_t{k} * kBlocksPerTile * kBlockBytes;
            if (blocks >= kBlocksPerTile) {
                unpack(p, kBlocksPerTile, prefetch, codes[k % kSlots][g]);
            } else {
                unpack(p, blocks, prefetch, codes[k % kSlots][g]);
            }
        }
    };
    zero_sums<kTokenTiles, kGroups>();
    for (int k = 0; k < std::min(kAhead, call.steps); ++k) unpack_step(k);
    for (int k = 0; k < call.steps; ++k) {
        if (k + kAhead < call.steps) unpack_step(k + kAhead);
        multiply_tiles<kTokenTiles, kGroups>(planes.tile + k * kTokenTiles, codes[k % kSlots]);
    }
    Tile sums[kSums];
    store_sums<kTokenTiles, kGroups>(sums);
    for (int g = 0; g < kGroups; ++g) finish(call, group + g, first, count, sums + g * kTokenTiles);
}

template <int kTokenTiles>
void all_groups(const Call& call, int group_begin, int group_end, int first, int count, Planes& planes) {
    copy_planes(call, first, count, kTokenTiles, planes);
    // The first pass over the weights fetches the next row groups.
    const int64_t prefetch = first == 0 ? std::max(kMinPrefetch, kMaxGroups * call.group_bytes) : 0;
    int group = group_begin;
    for (; group + kMaxGroups <= group_end; group += kMaxGroups)
        multiply<kTokenTiles, kMaxGroups>(call, group, first, count, prefetch, planes);
    if (group < group_end) multiply<kTokenTiles, 1>(call, group, first, count, prefetch, planes);
}

void ternary(const Call& call, int group_begin, int group_end, int n) {
    static constexpr Config kConfig;
    Planes planes;
    const int tiles = std::min(kMaxTokenTiles, kPlaneTiles / call.steps);
    const int most = tiles * kTileRows / 2;
    configure(kConfig);
    for (int first = 0; first < n; first += most) {
        const int count = std::min(most, n - first);
        const auto run = 2 * count <= kTileRows       ? all_groups<1>
                         : 2 * count <= 2 * kTileRows ? all_groups<2>
                                                      : all_groups<3>;
        run(call, group_begin, group_end, first, count, planes);
    }
    release();
}

}  // namespace

void integer_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                    float* out, int64_t out_stride) {
    const int64_t blocks = padded_cols(w) / kBlockCols;
    const int64_t steps = (blocks + kBlocksPerTile - 1) / kBlocksPerTile;
    if (w.layout != Layout::kTernary || n < kMinTokens || steps > kPlaneTiles) {
        return avx512::integer_matmul(w, group_begin, group_end, a, tokens, n, out, out_stride);
    }
    const int64_t group_bytes = row_group_bytes(w);
    const int64_t groups = round_up(w.rows, kRowGroup) / kRowGroup;
    const Call call{.w = w,
                    .a = a,
                    .tokens = tokens,
                    .out = out,
                    .out_stride = out_stride,
                    .group_bytes = group_bytes,
                    .scales = reinterpret_cast<const float*>(w.data + groups * group_bytes),
                    .blocks = static_cast<int>(blocks),
                    .steps = static_cast<int>(steps)};
    ternary(call, group_begin, group_end, n);
}

}  // namespace samara::kernels::amx
