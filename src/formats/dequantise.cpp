// Block formulas of GGML's reference, one function a type, each with the reference's order of float32 roundings.

#include <cstring>
#include <string>

#include "src/formats/checkpoint.hpp"
#include "src/formats/text.hpp"
#include "src/platform/half.hpp"

namespace samara::formats {
namespace {

uint8_t u8(const std::byte* bytes, size_t i) { return std::to_integer<uint8_t>(bytes[i]); }
int8_t i8(const std::byte* bytes, size_t i) { return static_cast<int8_t>(u8(bytes, i)); }
float half_at(const std::byte* bytes) { return half_to_float(load_u16(bytes)); }
uint32_t load_u32(const std::byte* bytes) {
    uint32_t value = 0;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

template <typename T>
void number_block(const std::byte* block, float* out) {
    T value;
    std::memcpy(&value, block, sizeof value);
    *out = static_cast<float>(value);
}

void f16_block(const std::byte* block, float* out) { *out = half_at(block); }
void bf16_block(const std::byte* block, float* out) { *out = bf16_to_float(load_u16(block)); }

// d, then 16 bytes: low nibbles are weights 0..15, high nibbles 16..31.
void q4_0_block(const std::byte* block, float* out) {
    const float d = half_at(block);
    for (size_t i = 0; i < 32; ++i) {
        const int code = (u8(block, 2 + i % 16) >> (i / 16 * 4)) & 15;
        out[i] = d * static_cast<float>(code - 8);
    }
}

void q4_1_block(const std::byte* block, float* out) {
    const float d = half_at(block);
    const float m = half_at(block + 2);
    for (size_t i = 0; i < 32; ++i) {
        const int code = (u8(block, 4 + i % 16) >> (i / 16 * 4)) & 15;
        out[i] = d * static_cast<float>(code) + m;
    }
}

// As Q4, with a word of fifth bits before the nibbles.
int q5_code(const std::byte* fifth_bits, size_t i) {
    const int low = (u8(fifth_bits, 4 + i % 16) >> (i / 16 * 4)) & 15;
    return low | static_cast<int>((load_u32(fifth_bits) >> i & 1u) << 4);
}

void q5_0_block(const std::byte* block, float* out) {
    const float d = half_at(block);
    for (size_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(q5_code(block + 2, i) - 16);
}

void q5_1_block(const std::byte* block, float* out) {
    const float d = half_at(block);
    const float m = half_at(block + 2);
    for (size_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(q5_code(block + 4, i)) + m;
}

void q8_0_block(const std::byte* block, float* out) {
    const float d = half_at(block);
    for (size_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(i8(block, 2 + i));
}

// Eight 6-bit scales and eight 6-bit minimums in 12 bytes.
int k_scale(const std::byte* scales, size_t j) {
    if (j < 4) return u8(scales, j) & 63;
    return (u8(scales, j + 4) & 15) | ((u8(scales, j - 4) >> 2) & 48);
}
int k_minimum(const std::byte* scales, size_t j) {
    if (j < 4) return u8(scales, j + 4) & 63;
    return (u8(scales, j + 4) >> 4) | ((u8(scales, j) >> 2) & 48);
}

// d, dmin, scales[12], then four groups of 32 bytes: low nibbles are one sub-block of 32, high nibbles the next.
void q4_k_block(const std::byte* block, float* out) {
    const float d = half_at(block);
    const float dmin = half_at(block + 2);
    for (size_t j = 0; j < 8; ++j) {
        const float scale = d * static_cast<float>(k_scale(block + 4, j));
        const float minimum = dmin * static_cast<float>(k_minimum(block + 4, j));
        for (size_t i = 0; i < 32; ++i) {
            const int code = (u8(block, 16 + j / 2 * 32 + i) >> (j % 2 * 4)) & 15;
            out[j * 32 + i] = scale * static_cast<float>(code) - minimum;
        }
    }
}

// As Q4_K, with 32 bytes of fifth bits before the nibbles: bit j of byte i belongs to weight i of sub-block j.
void q5_k_block(const std::byte* block, float* out) {
    const float d = half_at(block);
    const float dmin = half_at(block + 2);
    for (size_t j = 0; j < 8; ++j) {
        const float scale = d * static_cast<float>(k_scale(block + 4, j));
        const float minimum = dmin * static_cast<float>(k_minimum(block + 4, j));
        for (size_t i = 0; i < 32; ++i) {
            const int low = (u8(block, 48 + j / 2 * 32 + i) >> (j % 2 * 4)) & 15;
            const int code = low | ((u8(block, 16 + i) >> j & 1) << 4);
            out[j * 32 + i] = scale * static_cast<float>(code) - minimum;
        }
    }
}

// ql[128], qh[64], 16 int8 scales, d. In each half of 128 weights, quarter k of 32 has its low bits in nibble k/2 of
// 32 ql bytes and its high bits in bit pair k of 32 qh bytes.
void q6_k_block(const std::byte* block, float* out) {
    const float d = half_at(block + 208);
    for (size_t i = 0; i < 256; ++i) {
        const size_t half = i / 128;
        const size_t quarter = i / 32 % 4;
        const size_t lane = i % 32;
        const int low = (u8(block, half * 64 + quarter % 2 * 32 + lane) >> (quarter / 2 * 4)) & 15;
        const int high = (u8(block, 128 + half * 32 + lane) >> (quarter * 2)) & 3;
        const float scale = d * static_cast<float>(i8(block, 192 + i / 16));
        out[i] = scale * static_cast<float>((low | high << 4) - 32);
    }
}

// Five trits a byte as a fraction of 256: multiplying by 3^n (mod 256) brings trit n to the top. 32 bytes hold weights
// 0..159, 16 bytes 160..239, and 4 bytes, four trits each, the last 16.
void tq1_0_block(const std::byte* block, float* out) {
    constexpr uint8_t kPowers[] = {1, 3, 9, 27, 81};
    const float d = half_at(block + 52);
    const auto group = [&](size_t first_byte, size_t bytes, size_t trits, float* to) {
        for (size_t n = 0; n < trits; ++n) {
            for (size_t i = 0; i < bytes; ++i) {
                const auto fraction = static_cast<uint8_t>(u8(block, first_byte + i) * kPowers[n]);
                to[n * bytes + i] = d * static_cast<float>((fraction * 3 >> 8) - 1);
            }
        }
    };
    group(0, 32, 5, out);
    group(32, 16, 5, out + 160);
    group(48, 4, 4, out + 240);
}

// Two halves of 128 weights in 32 bytes each: bit pair k of byte i is weight 32k + i.
void tq2_0_block(const std::byte* block, float* out) {
    const float d = half_at(block + 64);
    for (size_t i = 0; i < 256; ++i) {
        const int code = (u8(block, i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2)) & 3;
        out[i] = d * static_cast<float>(code - 1);
    }
}

using BlockFunction = void (*)(const std::byte* block, float* out);

BlockFunction block_function(TensorType type) {
    switch (type) {
        case TensorType::kF32:
            return number_block<float>;
        case TensorType::kF64:
            return number_block<double>;
        case TensorType::kI8:
            return number_block<int8_t>;
        case TensorType::kI16:
            return number_block<int16_t>;
        case TensorType::kI32:
            return number_block<int32_t>;
        case TensorType::kI64:
            return number_block<int64_t>;
        case TensorType::kF16:
            return f16_block;
        case TensorType::kBF16:
            return bf16_block;
        case TensorType::kQ4_0:
            return q4_0_block;
        case TensorType::kQ4_1:
            return q4_1_block;
        case TensorType::kQ5_0:
            return q5_0_block;
        case TensorType::kQ5_1:
            return q5_1_block;
        case TensorType::kQ8_0:
            return q8_0_block;
        case TensorType::kQ4_K:
            return q4_k_block;
        case TensorType::kQ5_K:
            return q5_k_block;
        case TensorType::kQ6_K:
            return q6_k_block;
        case TensorType::kTQ1_0:
            return tq1_0_block;
        case TensorType::kTQ2_0:
            return tq2_0_block;
        case TensorType::kMlx2Row:
        case TensorType::kMlx2Group:
        case TensorType::kMlx4Group:
            return nullptr;
    }
    return nullptr;
}

template <uint32_t kBits>
uint32_t mlx_code(const std::byte* words, uint64_t i) {
    constexpr uint64_t kPerWord = 32 / kBits;
    return load_u32(words + i / kPerWord * 4) >> (i % kPerWord * kBits) & ((1u << kBits) - 1u);
}

void mlx_row(const Tensor& tensor, uint64_t row, const std::byte* words, float* out) {
    const float alpha = bf16_to_float(load_u16(tensor.scales.data() + row * 2));
    for (uint64_t i = 0; i < tensor.cols(); ++i) {
        out[i] = alpha * static_cast<float>(static_cast<int>(mlx_code<2>(words, i)) - 1);
    }
}

template <uint32_t kBits, uint64_t kGroup>
void mlx_groups(const Tensor& tensor, uint64_t row, const std::byte* words, float* out) {
    const uint64_t first = row * (tensor.cols() / kGroup);
    for (uint64_t i = 0; i < tensor.cols(); ++i) {
        const uint64_t group = (first + i / kGroup) * 2;
        const float scale = bf16_to_float(load_u16(tensor.scales.data() + group));
        const float bias = bf16_to_float(load_u16(tensor.biases.data() + group));
        out[i] = scale * static_cast<float>(mlx_code<kBits>(words, i)) + bias;
    }
}

}  // namespace

void dequantise_row(const Tensor& tensor, uint64_t expert, uint64_t row, float* out) {
    const TypeTraits* traits = type_traits(tensor.type);
    if (traits == nullptr || row >= tensor.rows() || expert >= tensor.experts()) {
        throw Error(ErrorCode::kInternal, "tensor " + in_quotes(tensor.name) + ": no row " + std::to_string(row) +
                                              " of expert " + std::to_string(expert) + " in shape " +
                                              shape_text(tensor.shape));
    }
    const uint64_t blocks = tensor.cols() / traits->block_weights;
    const uint64_t stacked_row = expert * tensor.rows() + row;
    const std::byte* block = tensor.pieces.empty() ? tensor.data.data() + stacked_row * blocks * traits->block_bytes
                                                   : tensor.pieces[expert].data() + row * blocks * traits->block_bytes;
    switch (tensor.type) {
        case TensorType::kMlx2Row:
            return mlx_row(tensor, stacked_row, block, out);
        case TensorType::kMlx2Group:
            return mlx_groups<2, 128>(tensor, stacked_row, block, out);
        case TensorType::kMlx4Group:
            return mlx_groups<4, 64>(tensor, stacked_row, block, out);
        default:
            break;
    }
    const BlockFunction dequantise = block_function(tensor.type);
    for (uint64_t b = 0; b < blocks; ++b) {
        dequantise(block + b * traits->block_bytes, out + b * traits->block_weights);
    }
}

}  // namespace samara::formats
