#include "src/formats/repack_rows.hpp"

#include <bit>
#include <cstring>

#include "src/platform/half.hpp"

namespace samara::formats {
namespace {

const uint8_t* bytes_of(const std::byte* data) { return reinterpret_cast<const uint8_t*>(data); }
float load_half(const std::byte* data) { return half_to_float(load_u16(data)); }
float load_bf16(const std::byte* data) { return bf16_to_float(load_u16(data)); }

/// TQ1_0: five trits a byte (base 3 scaled to 256, the first trit topmost), 48 bytes, then four trits in each of 4.
template <int kBytes, int kTrits>
void trits(const uint8_t* qs, uint8_t* codes) {
    for (int m = 0; m < kBytes; ++m) {
        uint8_t rest = qs[m];
        for (int n = 0; n < kTrits; ++n) {
            codes[n * kBytes + m] = static_cast<uint8_t>((rest * 3) >> 8);
            rest = static_cast<uint8_t>(rest * 3);
        }
    }
}

void codes_tq1(const uint8_t* block, uint8_t* codes) {
    trits<32, 5>(block, codes);
    trits<16, 5>(block + 32, codes + 160);
    trits<4, 4>(block + 48, codes + 240);
}

void codes_tq2(const uint8_t* block, uint8_t* codes) {
    for (int half = 0; half < 2; ++half) {
        for (int l = 0; l < 4; ++l) {
            for (int m = 0; m < 32; ++m) codes[half * 128 + l * 32 + m] = (block[half * 32 + m] >> (2 * l)) & 3;
        }
    }
}

/// Q4_0, Q4_1, Q5_0, Q5_1: column m in the low nibble of byte m, column 16 + m in the high one.
void nibbles32(const uint8_t* qs, uint8_t* codes) {
    for (int m = 0; m < 16; ++m) {
        codes[m] = qs[m] & 15;
        codes[16 + m] = qs[m] >> 4;
    }
}

void fifth_bits32(const uint8_t* qh, uint8_t* codes) {
    uint32_t bits = 0;
    std::memcpy(&bits, qh, sizeof bits);
    for (int m = 0; m < 32; ++m) codes[m] |= static_cast<uint8_t>(((bits >> m) & 1u) << 4);
}

/// Q4_K and Q5_K: 64 columns in 32 bytes, the first 32 in the low nibbles.
void nibbles_k(const uint8_t* qs, uint8_t* codes) {
    for (int part = 0; part < 4; ++part) {
        for (int m = 0; m < 32; ++m) {
            codes[part * 64 + m] = qs[part * 32 + m] & 15;
            codes[part * 64 + 32 + m] = qs[part * 32 + m] >> 4;
        }
    }
}

void codes_q5k(const uint8_t* block, uint8_t* codes) {
    const uint8_t* qh = block + 16;
    nibbles_k(block + 48, codes);
    for (int part = 0; part < 8; ++part) {
        for (int m = 0; m < 32; ++m) codes[part * 32 + m] |= static_cast<uint8_t>(((qh[m] >> part) & 1) << 4);
    }
}

void codes_q6k(const uint8_t* block, uint8_t* codes) {
    const uint8_t* ql = block;
    const uint8_t* qh = block + 128;
    for (int half = 0; half < 2; ++half, ql += 64, qh += 32, codes += 128) {
        for (int m = 0; m < 32; ++m) {
            codes[m] = static_cast<uint8_t>((ql[m] & 15) | ((qh[m] & 3) << 4));
            codes[m + 32] = static_cast<uint8_t>((ql[m + 32] & 15) | (((qh[m] >> 2) & 3) << 4));
            codes[m + 64] = static_cast<uint8_t>((ql[m] >> 4) | (((qh[m] >> 4) & 3) << 4));
            codes[m + 96] = static_cast<uint8_t>((ql[m + 32] >> 4) | (((qh[m] >> 6) & 3) << 4));
        }
    }
}

void codes_q8(const uint8_t* block, uint8_t* codes) {
    for (int m = 0; m < 32; ++m) codes[m] = block[2 + m] ^ 0x80;
}

void codes_q4(const uint8_t* block, uint8_t* codes, int header) { nibbles32(block + header, codes); }

void codes_q5(const uint8_t* block, uint8_t* codes, int header) {
    nibbles32(block + header + 4, codes);
    fifth_bits32(block + header, codes);
}

void codes_mlx2(const uint8_t* word, uint8_t* codes) {
    for (int m = 0; m < 16; ++m) codes[m] = (word[m / 4] >> (2 * (m % 4))) & 3;
}

void codes_mlx4(const uint8_t* word, uint8_t* codes) {
    for (int m = 0; m < 8; ++m) codes[m] = (word[m / 2] >> (4 * (m % 2))) & 15;
}

/// Runs `block` over the blocks of a row, through a local copy: the compiler then knows that nothing overlaps.
template <int kWeights, int kBytes, typename Block>
void each_block(const SourceRow& row, uint8_t* codes, const Block& block) {
    const std::byte* from = row.codes;
    for (uint64_t c = 0; c < row.cols; c += kWeights, from += kBytes) {
        uint8_t in[kBytes];
        uint8_t out[kWeights];
        std::memcpy(in, from, kBytes);
        block(in, out);
        std::memcpy(codes + c, out, kWeights);
    }
}

/// Scales and minima of one block. Products are exact or rounded once, in GGML's order.
void scales_block(TensorType type, const std::byte* block, float* scale, float* min) {
    switch (type) {
        case TensorType::kTQ1_0:
            scale[0] = load_half(block + 52);
            return;
        case TensorType::kTQ2_0:
            scale[0] = load_half(block + 64);
            return;
        case TensorType::kQ4_0:
            scale[0] = load_half(block);
            min[0] = -8.0f * scale[0];
            return;
        case TensorType::kQ5_0:
        case TensorType::kQ8_0:
            scale[0] = load_half(block);
            return;
        case TensorType::kQ4_1:
        case TensorType::kQ5_1:
            scale[0] = load_half(block);
            min[0] = load_half(block + 2);
            return;
        case TensorType::kQ4_K:
        case TensorType::kQ5_K: {
            const KScales k = read_k_scales(block);
            const float d = half_to_float(k.d);
            const float dmin = half_to_float(k.dmin);
            for (int g = 0; g < 8; ++g) {
                scale[g] = d * static_cast<float>(k.sc[g]);
                min[g] = -(dmin * static_cast<float>(k.m[g]));
            }
            return;
        }
        case TensorType::kQ6_K: {
            const float d = load_half(block + 208);
            for (int g = 0; g < 16; ++g) {
                scale[g] = d * static_cast<float>(static_cast<int8_t>(bytes_of(block)[192 + g]));
            }
            return;
        }
        default:
            throw Error(ErrorCode::kInternal, "read_scales: not a quantised type");
    }
}

template <typename Bits>
FloatRow inspect_bits(const std::byte* data, uint64_t cols, Bits infinity) {
    const auto sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
    const auto load = [data](uint64_t i) {
        Bits bits = 0;
        std::memcpy(&bits, data + i * sizeof(Bits), sizeof bits);
        return bits;
    };
    Bits largest = 0;
    for (uint64_t i = 0; i < cols; ++i) {
        const auto magnitude = static_cast<Bits>(load(i) & static_cast<Bits>(~sign));
        largest = magnitude > largest ? magnitude : largest;
    }
    Bits others = 0;
    for (uint64_t i = 0; i < cols; ++i) {
        const auto magnitude = static_cast<Bits>(load(i) & static_cast<Bits>(~sign));
        others |= static_cast<Bits>((magnitude != 0) & (magnitude != largest));
    }
    FloatRow found;
    found.finite = largest < infinity;
    found.ternary = found.finite && others == 0;
    if constexpr (sizeof(Bits) == 4) {
        found.magnitude = std::bit_cast<float>(largest);
    } else {
        found.magnitude = infinity == 0x7c00 ? half_to_float(largest) : bf16_to_float(largest);
    }
    return found;
}

template <typename Bits>
void codes_of_bits(const std::byte* data, uint64_t cols, uint8_t* codes) {
    for (uint64_t i = 0; i < cols; ++i) {
        Bits bits = 0;
        std::memcpy(&bits, data + i * sizeof(Bits), sizeof bits);
        const bool negative = bits >> (8 * sizeof(Bits) - 1) != 0;
        const bool zero = static_cast<Bits>(bits << 1) == 0;
        codes[i] = zero ? 1 : (negative ? 0 : 2);
    }
}

}  // namespace

SourceRow source_row(const Tensor& tensor, uint64_t expert, uint64_t row) {
    const uint64_t cols = tensor.cols();
    const uint64_t rows = tensor.rows();
    if (row >= rows || expert >= tensor.experts()) {
        throw Error(ErrorCode::kInternal, describe_row(tensor, expert, row) + ": outside the tensor's shape");
    }
    const TypeTraits* traits = type_traits(tensor.type);
    const uint64_t group = native_group(tensor.type, cols);
    if (traits == nullptr || cols % traits->block_weights != 0 || (group != 0 && cols % group != 0)) {
        throw Error(ErrorCode::kFormat, "tensor '" + tensor.name + "': rows of " + std::to_string(cols) +
                                            " weights are not whole blocks of its type");
    }
    const uint64_t row_bytes = cols / traits->block_weights * traits->block_bytes;
    const auto part = [&](std::span<const std::byte> bytes, uint64_t index, uint64_t size, const char* what) {
        if (bytes.size() / size <= index) {
            throw Error(ErrorCode::kFormat, describe_row(tensor, expert, row) + ": " + what + " ends after " +
                                                std::to_string(bytes.size()) + " bytes, " +
                                                std::to_string((index + 1) * size) + " expected");
        }
        return bytes.data() + index * size;
    };
    SourceRow found{.type = tensor.type, .cols = cols};
    const uint64_t index = expert * rows + row;
    if (tensor.pieces.empty()) {
        found.codes = part(tensor.data, index, row_bytes, "data");
    } else if (expert < tensor.pieces.size()) {
        found.codes = part(tensor.pieces[expert], row, row_bytes, "data");
    } else {
        throw Error(ErrorCode::kFormat, describe_row(tensor, expert, row) + ": the file holds " +
                                            std::to_string(tensor.pieces.size()) + " experts");
    }
    if (tensor.type >= TensorType::kMlx2Row) {
        const uint64_t scale_bytes = cols / group * 2;
        found.scales = part(tensor.scales, index, scale_bytes, "scales");
        if (tensor.type != TensorType::kMlx2Row) found.biases = part(tensor.biases, index, scale_bytes, "biases");
    }
    return found;
}

uint64_t native_group(TensorType type, uint64_t cols) {
    switch (type) {
        case TensorType::kTQ1_0:
        case TensorType::kTQ2_0:
            return 256;
        case TensorType::kQ6_K:
            return 16;
        case TensorType::kQ4_0:
        case TensorType::kQ4_1:
        case TensorType::kQ5_0:
        case TensorType::kQ5_1:
        case TensorType::kQ8_0:
        case TensorType::kQ4_K:
        case TensorType::kQ5_K:
            return 32;
        case TensorType::kMlx2Row:
            return cols;
        case TensorType::kMlx2Group:
            return 128;
        case TensorType::kMlx4Group:
            return 64;
        default:
            return 0;
    }
}

void read_codes(const SourceRow& row, uint8_t* codes) {
    switch (row.type) {
        case TensorType::kTQ1_0:
            return each_block<256, 54>(row, codes, codes_tq1);
        case TensorType::kTQ2_0:
            return each_block<256, 66>(row, codes, codes_tq2);
        case TensorType::kQ4_0:
            return each_block<32, 18>(row, codes, [](const uint8_t* in, uint8_t* out) { codes_q4(in, out, 2); });
        case TensorType::kQ4_1:
            return each_block<32, 20>(row, codes, [](const uint8_t* in, uint8_t* out) { codes_q4(in, out, 4); });
        case TensorType::kQ5_0:
            return each_block<32, 22>(row, codes, [](const uint8_t* in, uint8_t* out) { codes_q5(in, out, 2); });
        case TensorType::kQ5_1:
            return each_block<32, 24>(row, codes, [](const uint8_t* in, uint8_t* out) { codes_q5(in, out, 4); });
        case TensorType::kQ8_0:
            return each_block<32, 34>(row, codes, codes_q8);
        case TensorType::kQ4_K:
            return each_block<256, 144>(row, codes, [](const uint8_t* in, uint8_t* out) { nibbles_k(in + 16, out); });
        case TensorType::kQ5_K:
            return each_block<256, 176>(row, codes, codes_q5k);
        case TensorType::kQ6_K:
            return each_block<256, 210>(row, codes, codes_q6k);
        case TensorType::kMlx2Row:
        case TensorType::kMlx2Group:
            return each_block<16, 4>(row, codes, codes_mlx2);
        case TensorType::kMlx4Group:
            return each_block<8, 4>(row, codes, codes_mlx4);
        default:
            throw Error(ErrorCode::kInternal, "read_codes: not a quantised type");
    }
}

void read_scales(const SourceRow& row, float* scale, float* min) {
    const uint64_t group = native_group(row.type, row.cols);
    if (row.scales != nullptr) {
        for (uint64_t g = 0; g < row.cols / group; ++g) {
            scale[g] = load_bf16(row.scales + 2 * g);
            if (min != nullptr) min[g] = row.biases != nullptr ? load_bf16(row.biases + 2 * g) : 0.0f;
        }
        return;
    }
    const TypeTraits& traits = *type_traits(row.type);
    const uint64_t groups_per_block = traits.block_weights / group;
    const std::byte* block = row.codes;
    for (uint64_t g = 0; g < row.cols / group; g += groups_per_block, block += traits.block_bytes) {
        float minima[16] = {};
        scales_block(row.type, block, scale + g, minima);
        if (min != nullptr) std::memcpy(min + g, minima, groups_per_block * sizeof(float));
    }
}

KScales read_k_scales(const std::byte* block) {
    KScales k;
    k.d = load_u16(block);
    k.dmin = load_u16(block + 2);
    const uint8_t* packed = bytes_of(block) + 4;  // eight pairs of 6 bits: low bits first, high bits on top of them
    for (int g = 0; g < 4; ++g) {
        k.sc[g] = packed[g] & 63;
        k.m[g] = packed[4 + g] & 63;
        k.sc[4 + g] = static_cast<uint8_t>((packed[8 + g] & 15) | ((packed[g] >> 6) << 4));
        k.m[4 + g] = static_cast<uint8_t>((packed[8 + g] >> 4) | ((packed[4 + g] >> 6) << 4));
    }
    return k;
}

void read_floats(const SourceRow& row, float* out) {
    switch (row.type) {
        case TensorType::kF32:
            std::memcpy(out, row.codes, row.cols * sizeof(float));
            return;
        case TensorType::kF16:
            for (uint64_t i = 0; i < row.cols; ++i) out[i] = load_half(row.codes + 2 * i);
            return;
        case TensorType::kBF16:
            for (uint64_t i = 0; i < row.cols; ++i) out[i] = load_bf16(row.codes + 2 * i);
            return;
        default:
            throw Error(ErrorCode::kInternal, "read_floats: not a float type");
    }
}

FloatRow inspect_floats(const SourceRow& row) {
    switch (row.type) {
        case TensorType::kF32:
            return inspect_bits<uint32_t>(row.codes, row.cols, 0x7f800000u);
        case TensorType::kF16:
            return inspect_bits<uint16_t>(row.codes, row.cols, 0x7c00u);
        case TensorType::kBF16:
            return inspect_bits<uint16_t>(row.codes, row.cols, 0x7f80u);
        default:
            throw Error(ErrorCode::kInternal, "inspect_floats: not a float type");
    }
}

void read_float_codes(const SourceRow& row, uint8_t* codes) {
    if (row.type == TensorType::kF32) {
        codes_of_bits<uint32_t>(row.codes, row.cols, codes);
    } else {
        codes_of_bits<uint16_t>(row.codes, row.cols, codes);
    }
}

std::string describe_row(const Tensor& tensor, uint64_t expert, uint64_t row) {
    std::string text = "tensor '" + tensor.name + "'";
    if (tensor.experts() > 1) text += ", expert " + std::to_string(expert);
    return text + ", row " + std::to_string(row);
}

}  // namespace samara::formats
