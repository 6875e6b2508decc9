// The definition of the integer matmuls: one row and one token at a time, codes read one by one from the interleaved
// layout. Slow on purpose: every other set must give these bits.

#include <cmath>
#include <cstring>

#include "src/kernels/dense_layout.hpp"
#include "src/kernels/integer_matmul.hpp"
#include "src/platform/half.hpp"

namespace samara::kernels::scalar {
namespace {

constexpr int kScaleBytes = kRowGroup * 4;  // float32[16]
constexpr int kBlock = 64;                  // bytes of one interleaved block

float read_float(const std::byte* floats, int lane) {
    float value = 0;
    std::memcpy(&value, floats + 4 * lane, sizeof value);
    return value;
}

int read_byte(const std::byte* bytes, int index) { return std::to_integer<int>(bytes[index]); }

int ternary_code(const std::byte* codes, int lane, int64_t col) {
    const int in_block = static_cast<int>(col % 16);
    return read_byte(codes + col / 16 * kBlock, 4 * lane + in_block % 4) >> (2 * (in_block / 4)) & 3;
}

int dense_code(const std::byte* codes, int lane, int64_t col) {
    constexpr int kDivisors[] = {1, 3, 9};
    const int in_block = static_cast<int>(col % kDenseCols);
    const int byte = 4 * lane + in_block % 4;
    const std::byte* word = codes + col / kDenseCols * kDenseBlockBytes + byte / 8 * 5;
    const int bit = 5 * (byte % 8);
    const int field = (read_byte(word, (bit + 4) / 8) << 8 | read_byte(word, bit / 8)) >> bit % 8 & 31;
    const int quotient = field / kDivisors[in_block / 4];
    return in_block < 8 ? quotient % 3 : quotient;
}

int nibble_code(const std::byte* codes, int lane, int64_t col) {
    const int in_block = static_cast<int>(col % 8);
    return read_byte(codes + col / 8 * kBlock, 4 * lane + in_block % 4) >> (4 * (in_block / 4)) & 15;
}

int byte_code(const std::byte* codes, int lane, int64_t col) {
    return read_byte(codes + col / 4 * kBlock, 4 * lane + static_cast<int>(col % 4));
}

/// Sums over a run of columns: code*q and q. int32 that wraps, so that damaged codes have one answer too.
struct Sums {
    uint32_t products = 0;
    uint32_t activations = 0;
};

template <int (*kCode)(const std::byte*, int, int64_t)>
Sums sum_columns(const std::byte* codes, int lane, const int16_t* q, int64_t count) {
    Sums sums;
    for (int64_t col = 0; col < count; ++col) {
        sums.products += static_cast<uint32_t>(kCode(codes, lane, col) * q[col]);
        sums.activations += static_cast<uint32_t>(q[col]);
    }
    return sums;
}

float to_float(uint32_t wrapped) { return static_cast<float>(static_cast<int32_t>(wrapped)); }

template <int (*kCode)(const std::byte*, int, int64_t)>
float ternary_row(const Matrix& w, int group, int lane, const int16_t* q, float scale) {
    const int64_t row_groups = round_up(w.rows, kRowGroup) / kRowGroup;
    const std::byte* codes = w.data + group * row_group_bytes(w);
    const float row_scale = read_float(w.data + row_groups * row_group_bytes(w) + group * kScaleBytes, lane);
    const Sums sums = sum_columns<kCode>(codes, lane, q, padded_cols(w));
    return to_float(sums.products - sums.activations) * (scale * row_scale);
}

float ternary_blocks_row(const Matrix& w, int group, int lane, const int16_t* q, float scale) {
    const int64_t row_groups = round_up(w.rows, kRowGroup) / kRowGroup;
    const int64_t blocks = padded_cols(w) / 256;
    const std::byte* codes = w.data + group * row_group_bytes(w);
    const std::byte* scales = w.data + row_groups * row_group_bytes(w) + group * blocks * kScaleBytes;
    float total = 0;
    for (int64_t b = 0; b < blocks; ++b) {
        const Sums sums = sum_columns<ternary_code>(codes + b * 16 * kBlock, lane, q + b * 256, 256);
        total = std::fma(read_float(scales + b * kScaleBytes, lane), to_float(sums.products - sums.activations), total);
    }
    return total * scale;
}

template <int (*kCode)(const std::byte*, int, int64_t), int kColumnsPerBlock>
float affine_row(const Matrix& w, int group, int lane, const int16_t* q, float scale) {
    const int64_t record = 2 * kScaleBytes + w.group / kColumnsPerBlock * kBlock;
    const std::byte* at = w.data + group * row_group_bytes(w);
    float total = 0;
    for (int64_t col = 0; col < padded_cols(w); col += w.group, at += record) {
        const Sums sums = sum_columns<kCode>(at + 2 * kScaleBytes, lane, q + col, w.group);
        total = std::fma(read_float(at, lane), to_float(sums.products - w.offset * sums.activations), total);
        total = std::fma(read_float(at + kScaleBytes, lane), to_float(sums.activations), total);
    }
    return total * scale;
}

float nibble_k_row(const Matrix& w, int group, int lane, const int16_t* q, float scale) {
    constexpr int kRecord = 2368;
    constexpr int kMins = 64 + 8 * kRowGroup;  // m[8][16] after d, dmin and sc[8][16]
    constexpr int kCodes = kMins + 8 * kRowGroup;
    const std::byte* at = w.data + group * row_group_bytes(w);
    float total = 0;
    for (int64_t col = 0; col < padded_cols(w); col += 256, at += kRecord) {
        const float d = half_to_float(load_u16(at + 2 * lane));
        const float dmin = half_to_float(load_u16(at + 2 * (kRowGroup + lane)));
        for (int g = 0; g < 8; ++g) {
            const Sums sums = sum_columns<nibble_code>(at + kCodes + g * 4 * kBlock, lane, q + col + g * 32, 32);
            const float s = d * static_cast<float>(read_byte(at + 64, g * kRowGroup + lane));
            const float m = dmin * static_cast<float>(read_byte(at + kMins, g * kRowGroup + lane));
            total = std::fma(s, to_float(sums.products), total);
            total = std::fma(-m, to_float(sums.activations), total);
        }
    }
    return total * scale;
}

float one_row(const Matrix& w, int group, int lane, const int16_t* q, float scale) {
    switch (w.layout) {
        case Layout::kTernary:
            return ternary_row<ternary_code>(w, group, lane, q, scale);
        case Layout::kTernaryDense:
            return ternary_row<dense_code>(w, group, lane, q, scale);
        case Layout::kTernaryBlocks:
            return ternary_blocks_row(w, group, lane, q, scale);
        case Layout::kNibble:
            return affine_row<nibble_code, 8>(w, group, lane, q, scale);
        case Layout::kNibbleK:
            return nibble_k_row(w, group, lane, q, scale);
        default:
            return affine_row<byte_code, 4>(w, group, lane, q, scale);
    }
}

}  // namespace

void integer_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                    float* out, int64_t out_stride) {
    for (int group = group_begin; group < group_end; ++group) {
        for (int i = 0; i < n; ++i) {
            const int64_t t = tokens != nullptr ? tokens[i] : i;
            for (int lane = 0; lane < kRowGroup && group * kRowGroup + lane < w.rows; ++lane) {
                out[i * out_stride + group * kRowGroup + lane] =
                    one_row(w, group, lane, a.q + t * a.stride, a.scale[t]);
            }
        }
    }
}

}  // namespace samara::kernels::scalar
