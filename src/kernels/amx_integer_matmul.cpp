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
constexpr int kMaxTokenTiles = 3;    // 3 x 2 row groups of sums, one A and one B fill the eight registers
constexpr int kMinTokens = 4;        // fewer leave most of a tile empty: AVX-512 is faster
constexpr int kPlaneTiles = 3 * 64;  // 192 KiB on the stack: 24 tokens of 4096 columns
constexpr int kSlots = 2;            // codes of the step that is multiplied and of the next
// Two tiles of tokens take their columns in panels of about this many tiles, so that a panel's activations stay in the
// first-level cache while a block of row groups passes and their sums wait in the second. Three tiles do so many
// products for each load that it does not pay.
constexpr int kPanelTiles = 16;
constexpr int kBlockGroups = 16;
// Weights are fetched this many row groups ahead. Not two or four: groups of 2 KiB would then be fetched in pairs from
// one page, which costs a quarter of the speed.
constexpr int kPrefetchGroups = 3;

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

/// Sums of the row groups that share a panel. A group's tiles follow each other.
using Sums = Tile[kBlockGroups * kMaxTokenTiles];

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
[[gnu::always_inline]] inline void load_sums(const Tile* sums) {
    [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
        (load<static_cast<int>(kIndex)>(sums[kIndex]), ...);
    }(std::make_index_sequence<kTokenTiles * kGroups>());
}

template <int kTokenTiles, int kGroups>
[[gnu::always_inline]] inline void store_sums(Tile* sums) {
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

__m512i sums_at(const Tile* tiles, int row) {
    return _mm512_loadu_si512(tiles[row / kTileRows].bytes[row % kTileRows]);
}

/// Writes the outputs of kGroups row groups for `count` tokens, whose sums are rows [0, count) and [count, 2*count) of
/// each group's tiles.
template <int kGroups>
void finish(const Call& call, int group, int first, int count, int token_tiles, const Tile* sums) {
    for (int i = 0; i < count; ++i) {
        const int64_t token = call.token(first + i);
        float* out = call.out + (first + i) * call.out_stride;
        for (int g = 0; g < kGroups; ++g) {
            const int row = (group + g) * kRowGroup;
            const Tile* tiles = sums + g * token_tiles;
            const __m512i q = _mm512_add_epi32(_mm512_slli_epi32(sums_at(tiles, i), 8), sums_at(tiles, count + i));
            const __m512 value = _mm512_cvtepi32_ps(_mm512_sub_epi32(q, _mm512_set1_epi32(call.a.sum[token])));
            const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(call.a.scale[token]), _mm512_loadu_ps(call.scales + row));
            const __m512 result = _mm512_mul_ps(value, scale);
            if (row + kRowGroup <= call.w.rows) {
                _mm512_storeu_ps(out + row, result);
            } else {
                float values[kRowGroup];
                _mm512_storeu_ps(values, result);
                std::memcpy(out + row, values, sizeof(float) * static_cast<size_t>(call.w.rows - row));
            }
        }
    }
}

/// Adds row groups [group, group + kGroups) times the tokens whose planes were copied, over steps [begin, end), to
/// `sums`.
template <int kTokenTiles, int kGroups>
[[gnu::noinline]] void multiply(const Call& call, int group, int begin, int end, int64_t prefetch, const Planes& planes,
                                Tile* sums) {
    Tile codes[kSlots][kGroups];
    if (end * kBlocksPerTile > call.blocks) std::memset(codes, 0, sizeof codes);
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
    if (begin == 0) {
        zero_sums<kTokenTiles, kGroups>();
    } else {
        load_sums<kTokenTiles, kGroups>(sums);
    }
    unpack_step(begin);
    for (int k = begin; k < end; ++k) {
        if (k + 1 < end) unpack_step(k + 1);
        multiply_tiles<kTokenTiles, kGroups>(planes.tile + k * kTokenTiles, codes[k % kSlots]);
    }
    store_sums<kTokenTiles, kGroups>(sums);
}

/// Row groups [group_begin, group_end), at most kBlockGroups, times the tokens [first, first + count).
template <int kTokenTiles>
void block_of_groups(const Call& call, int group_begin, int group_end, int first, int count, const Planes& planes) {
    const int64_t prefetch = first == 0 ? kPrefetchGroups * call.group_bytes : 0;  // the first pass fetches
    Sums sums;
    const int panels = kTokenTiles > 2 ? 1 : std::max(1, call.steps * kTokenTiles / kPanelTiles);
    for (int panel = 0; panel < panels; ++panel) {
        const int begin = call.steps * panel / panels;
        const int end = call.steps * (panel + 1) / panels;
        const auto some = [&](auto groups, int group) {
            Tile* at = sums + (panels == 1 ? 0 : (group - group_begin) * kTokenTiles);
            multiply<kTokenTiles, groups()>(call, group, begin, end, prefetch, planes, at);
            if (panel + 1 == panels) finish<groups()>(call, group, first, count, kTokenTiles, at);
        };
        int group = group_begin;
        for (; group + 2 <= group_end; group += 2) some(std::integral_constant<int, 2>(), group);
        if (group < group_end) some(std::integral_constant<int, 1>(), group);
    }
}

template <int kTokenTiles>
void all_groups(const Call& call, int group_begin, int group_end, int first, int count, Planes& planes) {
    copy_planes(call, first, count, kTokenTiles, planes);
    for (int group = group_begin; group < group_end; group += kBlockGroups)
        block_of_groups<kTokenTiles>(call, group, std::min(group + kBlockGroups, group_end), first, count, planes);
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
