// Layout::kTernaryDense with AVX-512 VBMI. Three permutations make 64 fields of 5 bits into 64 bytes of three codes,
// as bit pairs: vpermb brings 5 bytes to each 8, vpmultishiftqb a field to each byte, vpermb looks its codes up. From
// there on it is kTernary's kernel, with three fields a byte instead of four.

#include <utility>

#include "src/kernels/dense_matmul.hpp"
#include "src/kernels/integer_matmul.hpp"
#include "src/kernels/integer_matmul_tiles.hpp"
#include "src/kernels/lanes_avx512.hpp"

namespace samara::kernels {
namespace {

constexpr int kMaxTokens = 4;            // 6 sums each; beyond, unpacking to kTernary is as fast
constexpr int kFields = kDenseCols / 4;  // codes in a byte
constexpr int64_t kFar = 4096;           // into L2
constexpr int64_t kNear = 1024;          // from there into L1
constexpr int64_t kUnpackAhead = 16384;  // multiplying what was unpacked takes longer than reading it

struct Controls {
    alignas(64) uint8_t spread[64];  // byte 8q+i from byte 5q+i
    alignas(64) uint8_t shift[64];   // byte 8q+i from bit 5i of word q
    alignas(64) uint8_t codes[64];   // bit pairs of a field; twice, since an index has 6 bits and a field 5
};
constexpr Controls kControls = [] {
    Controls c{};
    for (unsigned i = 0; i < 64; ++i) {
        const unsigned field = i % 32;
        c.spread[i] = static_cast<uint8_t>(5 * (i / 8) + i % 8);
        c.shift[i] = static_cast<uint8_t>(5 * (i % 8));
        c.codes[i] = static_cast<uint8_t>(field % 3 | field / 3 % 3 << 2 | field / 9 << 4);
    }
    return c;
}();

struct Decoder {
    __m512i spread = _mm512_loadu_si512(kControls.spread);
    __m512i shift = _mm512_loadu_si512(kControls.shift);
    __m512i codes = _mm512_loadu_si512(kControls.codes);

    /// Reads 64 bytes, of which the first 40 count: behind the last block lie the scales.
    [[gnu::always_inline]] __m512i decode(const std::byte* block) const {
        const __m512i words = _mm512_permutexvar_epi8(spread, _mm512_loadu_si512(block));
        return _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(shift, words), codes);
    }
};

/// Sums of row groups' fields times one plane of the activations, each field in its place in the byte.
template <int kGroups, int kTokens>
using Sums = __m512i[kFields][kGroups][kTokens];

template <int kCount, int kGroups, int kTokens>
[[gnu::always_inline]] inline void add(const __m512i (&block)[kGroups], const tiles::TokenTile<kTokens>& x,
                                       intptr_t col, Sums<kGroups, kTokens>& high, Sums<kGroups, kTokens>& low) {
#pragma GCC unroll 3
    for (int f = 0; f < kCount; ++f) {
        __m512i field[kGroups];
#pragma GCC unroll 2
        for (int g = 0; g < kGroups; ++g)
            field[g] = _mm512_and_si512(block[g], _mm512_set1_epi8(static_cast<char>(3 << (2 * f))));
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) {
            const __m512i x_high = Avx512Lanes::broadcast4(x.high[t] + col + 4 * f);
            const __m512i x_low = Avx512Lanes::broadcast4(x.high[t] + (col + x.low) + 4 * f);
#pragma GCC unroll 2
            for (int g = 0; g < kGroups; ++g) {
                high[f][g][t] = _mm512_dpbusd_epi32(high[f][g][t], field[g], x_high);
                low[f][g][t] = _mm512_dpbusd_epi32(low[f][g][t], field[g], x_low);
                Avx512Lanes::pin(high[f][g][t], low[f][g][t]);
            }
        }
    }
}

/// sum[g][t] = codes of the row group that lies g*apart bytes after `codes` times q of token t.
template <int kGroups, int kTokens>
[[gnu::always_inline]] inline void multiply(const std::byte* codes, int64_t apart, int cols,
                                            const tiles::TokenTile<kTokens>& x, __m512i (&sum)[kGroups][kTokens]) {
    const Decoder decoder;
    Sums<kGroups, kTokens> high, low;
#pragma GCC unroll 3
    for (int f = 0; f < kFields; ++f) {
#pragma GCC unroll 2
        for (int g = 0; g < kGroups; ++g) {
#pragma GCC unroll 4
            for (int t = 0; t < kTokens; ++t) high[f][g][t] = low[f][g][t] = _mm512_setzero_si512();
        }
    }
    const int whole_blocks = cols / kDenseCols;
    for (int b = 0; b < whole_blocks; ++b) {
        __m512i block[kGroups];
#pragma GCC unroll 2
        for (int g = 0; g < kGroups; ++g) {
            const std::byte* p = codes + g * apart + int64_t{kDenseBlockBytes} * b;
            block[g] = decoder.decode(p);
            _mm_prefetch(reinterpret_cast<const char*>(p) + kFar, _MM_HINT_T1);
            _mm_prefetch(reinterpret_cast<const char*>(p) + kNear, _MM_HINT_T0);
        }
        add<3>(block, x, intptr_t{kDenseCols} * b, high, low);
    }
    // Activations are padded to a multiple of 4 columns, not of 12.
    const int rest = cols % kDenseCols;
    if (rest != 0) {
        __m512i block[kGroups];
#pragma GCC unroll 2
        for (int g = 0; g < kGroups; ++g)
            block[g] = decoder.decode(codes + g * apart + int64_t{kDenseBlockBytes} * whole_blocks);
        const intptr_t col = intptr_t{kDenseCols} * whole_blocks;
        if (rest > 8) {
            add<3>(block, x, col, high, low);
        } else if (rest > 4) {
            add<2>(block, x, col, high, low);
        } else {
            add<1>(block, x, col, high, low);
        }
    }
#pragma GCC unroll 2
    for (int g = 0; g < kGroups; ++g) {
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) {
            __m512i h = high[0][g][t], l = low[0][g][t];
#pragma GCC unroll 3
            for (int f = 1; f < kFields; ++f) {
                h = _mm512_add_epi32(h, _mm512_srai_epi32(high[f][g][t], 2 * f));
                l = _mm512_add_epi32(l, _mm512_srai_epi32(low[f][g][t], 2 * f));
            }
            sum[g][t] = _mm512_add_epi32(_mm512_slli_epi32(h, 8), l);
        }
    }
}

/// Row groups group + g*apart.
template <int kGroups, int kTokens>
[[gnu::always_inline]] inline void some_groups(const Matrix& w, int group, int apart,
                                               const tiles::TokenTile<kTokens>& x, float* out, int64_t out_stride) {
    const int64_t group_bytes = row_group_bytes(w);
    const int64_t groups = round_up(w.rows, kRowGroup) / kRowGroup;
    const auto* scales = reinterpret_cast<const float*>(w.data + groups * group_bytes);
    __m512i sums[kGroups][kTokens];
    multiply<kGroups>(w.data + group * group_bytes, apart * group_bytes, w.cols, x, sums);
    for (int g = 0; g < kGroups; ++g) {
        const int row = (group + g * apart) * kRowGroup;
        const __m512 row_scale = _mm512_loadu_ps(scales + row);
        for (int t = 0; t < kTokens; ++t) {
            const __m512i sum = _mm512_sub_epi32(sums[g][t], _mm512_set1_epi32(x.sum[t]));
            const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(x.scale[t]), row_scale);
            const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
            float* to = out + t * out_stride + row;
            if (row + kRowGroup <= w.rows) {
                _mm512_storeu_ps(to, value);
            } else {
                float values[kRowGroup];
                _mm512_storeu_ps(values, value);
                std::memcpy(to, values, sizeof(float) * static_cast<size_t>(w.rows - row));
            }
        }
    }
}

/// With one token, memory is the limit: the two halves of the row groups are two streams, which together come a fifth
/// faster than one.
template <int kTokens>
[[gnu::noinline]] void all_groups(const Matrix& w, int group_begin, int group_end, const Activations& a,
                                  const int32_t* tokens, float* out, int64_t out_stride) {
    constexpr int kStreams = kTokens == 1 ? 2 : 1;
    const tiles::TokenTile<kTokens> x = tiles::gather<kTokens>(a, tokens, 0);
    const int apart = (group_end - group_begin) / kStreams;
    for (int group = group_begin; group < group_begin + apart; ++group)
        some_groups<kStreams>(w, group, apart, x, out, out_stride);
    for (int group = group_begin + kStreams * apart; group < group_end; ++group)
        some_groups<1>(w, group, 0, x, out, out_stride);
}

/// unpack_dense_group with these instructions. Four dense blocks of three quads are three blocks of four.
void unpack(const std::byte* dense, int cols, std::byte* blocks) {
    const Decoder decoder;
    const int in_blocks = (cols + kDenseCols - 1) / kDenseCols;
    const int out_blocks = (cols + 15) / 16;
    const __m512i one = _mm512_set1_epi8(3), two = _mm512_set1_epi8(15);
    const auto decode = [&](int b) {
        const std::byte* p = dense + int64_t{kDenseBlockBytes} * b;
        _mm_prefetch(reinterpret_cast<const char*>(p) + kUnpackAhead, _MM_HINT_T1);
        return b < in_blocks ? decoder.decode(p) : _mm512_setzero_si512();
    };
    for (int in = 0, out = 0; out < out_blocks; in += 4, out += 3) {
        const __m512i d0 = decode(in), d1 = decode(in + 1), d2 = decode(in + 2), d3 = decode(in + 3);
        const __m512i to[3] = {
            _mm512_or_si512(d0, _mm512_slli_epi16(_mm512_and_si512(d1, one), 6)),
            _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(d1, 2), two),
                            _mm512_slli_epi16(_mm512_and_si512(d2, two), 4)),
            _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(d2, 4), one), _mm512_slli_epi16(d3, 2)),
        };
        const int count = std::min(3, out_blocks - out);
        for (int b = 0; b < count; ++b) _mm512_storeu_si512(blocks + int64_t{64} * (out + b), to[b]);
    }
}

template <int... kIndex>
void few_tokens(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                float* out, int64_t out_stride, std::integer_sequence<int, kIndex...>) {
    ((n == kIndex + 1 ? all_groups<kIndex + 1>(w, group_begin, group_end, a, tokens, out, out_stride) : void()), ...);
}

template <auto kMatmul>
void dense_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                  float* out, int64_t out_stride) {
    if (n <= kMaxTokens) {
        few_tokens(w, group_begin, group_end, a, tokens, n, out, out_stride,
                   std::make_integer_sequence<int, kMaxTokens>());
    } else {
        dense_through_two_bits<unpack, kMatmul>(w, group_begin, group_end, a, tokens, n, out, out_stride);
    }
}

}  // namespace

void avx512::dense_matmul_vbmi(const Matrix& w, int group_begin, int group_end, const Activations& a,
                               const int32_t* tokens, int n, float* out, int64_t out_stride) {
    dense_matmul<avx512::integer_matmul>(w, group_begin, group_end, a, tokens, n, out, out_stride);
}

void amx::dense_matmul_vbmi(const Matrix& w, int group_begin, int group_end, const Activations& a,
                            const int32_t* tokens, int n, float* out, int64_t out_stride) {
    dense_matmul<amx::integer_matmul>(w, group_begin, group_end, a, tokens, n, out, out_stride);
}

}  // namespace samara::kernels
