#include "src/formats/quantise.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "src/platform/half.hpp"

namespace samara::formats {
namespace {

constexpr size_t kSuper = 256;  // weights in a block of the K and ternary types
constexpr size_t kSub = 32;     // weights that share a scale and a minimum in Q4_K, and a block of Q8_0 and Q4_1
constexpr size_t kSubs = kSuper / kSub;

void store_half(std::byte* out, float value) {
    const uint16_t bits = float_to_half(value);
    std::memcpy(out, &bits, sizeof bits);
}

// Nearest integer of a value known to lie within int; halves go up. Fixed arithmetic: no rounding mode involved.
int round_up_half(float value) { return static_cast<int>(std::floor(value + 0.5f)); }

void quantise_q8_0(const float* x, std::byte* out) {
    float absmax = 0;
    for (size_t i = 0; i < kSub; ++i) absmax = std::max(absmax, std::fabs(x[i]));
    const float scale = absmax / 127.0f;
    const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
    store_half(out, scale);
    for (size_t i = 0; i < kSub; ++i) {
        out[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::clamp(round_up_half(x[i] * inverse), -127, 127)));
    }
}

// weight = scale * q + minimum, q in 0..15; low nibbles hold the first half of the block.
void quantise_q4_1(const float* x, std::byte* out) {
    const auto [low, high] = std::minmax_element(x, x + kSub);
    const float minimum = *low;
    const float scale = (*high - minimum) / 15.0f;
    const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
    store_half(out, scale);
    store_half(out + 2, minimum);
    const auto level = [&](float v) { return std::clamp(round_up_half((v - minimum) * inverse), 0, 15); };
    for (size_t i = 0; i < kSub / 2; ++i) {
        out[4 + i] = static_cast<std::byte>(level(x[i]) | level(x[i + kSub / 2]) << 4);
    }
}

// One sub-block of Q4_K as reals: weight = scale * q - offset, offset >= 0.
struct Affine {
    float scale = 0;
    float offset = 0;
};

int affine_level(float v, const Affine& a, float inverse) {
    return std::clamp(static_cast<int>((v + a.offset) * inverse + 0.5f), 0, 15);
}

float affine_error(const float* x, const Affine& a) {
    const float inverse = a.scale > 0 ? 1.0f / a.scale : 0.0f;
    float error = 0;
    for (size_t i = 0; i < kSub; ++i) {
        const float d = a.scale * static_cast<float>(affine_level(x[i], a, inverse)) - a.offset - x[i];
        error += d * d;
    }
    return error;
}

// The range of the sub-block, then one least-squares fit of scale and offset to the levels it gave, kept when better.
Affine fit_affine(const float* x) {
    float low = 0, high = 0;
    for (size_t i = 0; i < kSub; ++i) {
        low = std::min(low, x[i]);
        high = std::max(high, x[i]);
    }
    const Affine range{(high - low) / 15.0f, -low};
    if (range.scale <= 0) return range;
    const float inverse = 1.0f / range.scale;
    float sum_q = 0, sum_qq = 0, sum_x = 0, sum_qx = 0;
    for (size_t i = 0; i < kSub; ++i) {
        const auto q = static_cast<float>(affine_level(x[i], range, inverse));
        sum_q += q, sum_qq += q * q, sum_x += x[i], sum_qx += q * x[i];
    }
    const auto n = static_cast<float>(kSub);
    const float determinant = n * sum_qq - sum_q * sum_q;
    if (determinant <= 0) return range;
    Affine fit{(n * sum_qx - sum_q * sum_x) / determinant, -(sum_qq * sum_x - sum_q * sum_qx) / determinant};
    if (fit.offset < 0) fit = {sum_qq > 0 ? sum_qx / sum_qq : 0.0f, 0.0f};
    return fit.scale > 0 && affine_error(x, fit) < affine_error(x, range) ? fit : range;
}

// Six-bit scales and minima share twelve bytes: the low four of indices 4..7 in the last four bytes, their top two
// bits above the six of indices 0..3.
void pack_scales(const std::array<int, kSubs>& scales, const std::array<int, kSubs>& minima, std::byte* out) {
    for (size_t i = 0; i < 4; ++i) {
        out[i] = static_cast<std::byte>(scales[i] | (scales[i + 4] >> 4) << 6);
        out[4 + i] = static_cast<std::byte>(minima[i] | (minima[i + 4] >> 4) << 6);
        out[8 + i] = static_cast<std::byte>((scales[i + 4] & 15) | (minima[i + 4] & 15) << 4);
    }
}

void quantise_q4_k(const float* x, std::byte* out) {
    std::array<Affine, kSubs> fits;
    float max_scale = 0, max_offset = 0;
    for (size_t s = 0; s < kSubs; ++s) {
        fits[s] = fit_affine(x + s * kSub);
        max_scale = std::max(max_scale, fits[s].scale);
        max_offset = std::max(max_offset, fits[s].offset);
    }
    store_half(out, max_scale / 63.0f);
    store_half(out + 2, max_offset / 63.0f);
    const float d = half_to_float(load_u16(out));
    const float dmin = half_to_float(load_u16(out + 2));
    const auto six_bits = [](float value, float unit) {
        return unit > 0 ? std::clamp(round_up_half(value / unit), 0, 63) : 0;
    };
    std::array<int, kSubs> scales, minima;
    for (size_t s = 0; s < kSubs; ++s) {
        scales[s] = six_bits(fits[s].scale, d);
        minima[s] = six_bits(fits[s].offset, dmin);
    }
    pack_scales(scales, minima, out + 4);
    // Levels are chosen against the scales that were stored. Two sub-blocks share 32 bytes: low and high nibbles.
    for (size_t s = 0; s < kSubs; s += 2) {
        std::array<Affine, 2> stored;
        std::array<float, 2> inverse;
        for (size_t h = 0; h < 2; ++h) {
            stored[h] = {d * static_cast<float>(scales[s + h]), dmin * static_cast<float>(minima[s + h])};
            inverse[h] = stored[h].scale > 0 ? 1.0f / stored[h].scale : 0.0f;
        }
        for (size_t i = 0; i < kSub; ++i) {
            out[16 + s / 2 * kSub + i] =
                static_cast<std::byte>(affine_level(x[s * kSub + i], stored[0], inverse[0]) |
                                       affine_level(x[(s + 1) * kSub + i], stored[1], inverse[1]) << 4);
        }
    }
}

// 128 weights in 32 bytes: bits 2p of byte m hold weight 32p + m.
void pack_tq2_block(const uint8_t* codes, std::byte* out) {
    for (size_t half = 0; half < 2; ++half) {
        const uint8_t* c = codes + half * 128;
        for (size_t m = 0; m < 32; ++m) {
            out[half * 32 + m] = static_cast<std::byte>(c[m] | c[32 + m] << 2 | c[64 + m] << 4 | c[96 + m] << 6);
        }
    }
}

// TQ1_0 keeps five trits in a byte as a fraction of 243, first trit most significant, rounded up to 256ths: the reader
// multiplies by powers of three and takes the carry.
std::byte trit_byte(unsigned value) { return static_cast<std::byte>((value * 256 + 242) / 243); }

void pack_tq1_block(const uint8_t* codes, std::byte* out) {
    const auto five = [&](const uint8_t* c, size_t stride, std::byte* to) {
        for (size_t m = 0; m < stride; ++m) {
            unsigned value = 0;
            for (size_t t = 0; t < 5; ++t) value = value * 3 + c[t * stride + m];
            to[m] = trit_byte(value);
        }
    };
    five(codes, 32, out);
    five(codes + 160, 16, out + 32);
    for (size_t m = 0; m < 4; ++m) {
        unsigned value = 0;
        for (size_t t = 0; t < 4; ++t) value = value * 3 + codes[240 + t * 4 + m];
        out[48 + m] = trit_byte(value * 3);
    }
}

void check_sizes(TensorType type, size_t weights, size_t out) {
    const TypeTraits* traits = type_traits(type);
    if (weights % traits->block_weights != 0 || out != quantised_bytes(type, weights)) {
        throw Error(ErrorCode::kInvalidArgument, "quantise: " + std::to_string(weights) + " weights to " +
                                                     std::to_string(out) + " bytes of " + std::string(traits->name) +
                                                     "; blocks are " + std::to_string(traits->block_weights) +
                                                     " weights in " + std::to_string(traits->block_bytes) + " bytes");
    }
}

[[noreturn]] void fail_type(TensorType type) {
    const TypeTraits* traits = type_traits(type);
    throw Error(ErrorCode::kInvalidArgument,
                "quantise: cannot write " +
                    (traits ? std::string(traits->name) : "type " + std::to_string(static_cast<uint32_t>(type))));
}

}  // namespace

size_t quantised_bytes(TensorType type, size_t weights) {
    const TypeTraits* traits = type_traits(type);
    if (traits == nullptr) fail_type(type);
    return weights / traits->block_weights * traits->block_bytes;
}

void quantise(TensorType type, std::span<const float> weights, std::span<std::byte> out) {
    using BlockWriter = void (*)(const float*, std::byte*);
    BlockWriter writer = nullptr;
    switch (type) {
        case TensorType::kF32:
            writer = [](const float* x, std::byte* to) { std::memcpy(to, x, sizeof *x); };
            break;
        case TensorType::kF16:
            writer = [](const float* x, std::byte* to) { store_half(to, *x); };
            break;
        case TensorType::kBF16:
            writer = [](const float* x, std::byte* to) {
                const uint16_t bits = float_to_bf16(*x);
                std::memcpy(to, &bits, sizeof bits);
            };
            break;
        case TensorType::kQ8_0:
            writer = quantise_q8_0;
            break;
        case TensorType::kQ4_1:
            writer = quantise_q4_1;
            break;
        case TensorType::kQ4_K:
            writer = quantise_q4_k;
            break;
        default:
            fail_type(type);
    }
    check_sizes(type, weights.size(), out.size());
    const TypeTraits* traits = type_traits(type);
    const size_t blocks = weights.size() / traits->block_weights;
    for (size_t b = 0; b < blocks; ++b) {
        writer(weights.data() + b * traits->block_weights, out.data() + b * traits->block_bytes);
    }
}

void pack_ternary(TensorType type, std::span<const uint8_t> codes, float scale, std::span<std::byte> out) {
    if (type != TensorType::kTQ1_0 && type != TensorType::kTQ2_0) fail_type(type);
    check_sizes(type, codes.size(), out.size());
    if (half_to_float(float_to_half(scale)) != scale) {
        throw Error(ErrorCode::kInvalidArgument, "quantise: F16 does not hold the scale " + std::to_string(scale));
    }
    const TypeTraits* traits = type_traits(type);
    for (size_t b = 0; b < codes.size() / kSuper; ++b) {
        std::byte* block = out.data() + b * traits->block_bytes;
        if (type == TensorType::kTQ2_0) {
            pack_tq2_block(codes.data() + b * kSuper, block);
        } else {
            pack_tq1_block(codes.data() + b * kSuper, block);
        }
        store_half(block + traits->block_bytes - 2, scale);
    }
}

}  // namespace samara::formats
