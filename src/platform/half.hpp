#pragma once
// Scalar conversions between float32 and the two 16-bit float formats. Exact where exactness is possible (16 to 32
// bits, subnormals, infinities), round-half-to-even the other way. They never depend on the CPU's rounding or flush
// modes.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace samara {

/// BF16 is the upper half of a float32.
constexpr float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

/// Nearest BF16, ties to even. A NaN stays a (quiet) NaN.
constexpr uint16_t float_to_bf16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// IEEE binary16 to float32, exact. A NaN comes out quiet, its payload kept.
constexpr float half_to_float(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fu;
    const uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0x1f) {
        const uint32_t quiet = mantissa != 0 ? 0x00400000u : 0u;
        return std::bit_cast<float>(sign | 0x7f800000u | quiet | (mantissa << 13));
    }
    if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    if (mantissa == 0) return std::bit_cast<float>(sign);
    // Subnormal: mantissa * 2^-24, which every float32 holds as a normal number. Shift the leading one to bit 10.
    const uint32_t shift = static_cast<uint32_t>(std::countl_zero(mantissa)) - 21u;
    return std::bit_cast<float>(sign | ((113u - shift) << 23) | (((mantissa << shift) & 0x3ffu) << 13));
}

/// Nearest IEEE binary16, ties to even; beyond 65520 becomes infinity. A NaN stays a (quiet) NaN.
constexpr uint16_t float_to_half(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above
    if (magnitude >= 0x38800000u) {                                              // a normal half: 2^-14 and above
        const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
        return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
    }
    if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);  // below 2^-25
    // A subnormal half counts units of 2^-24.
    const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t shift = 126u - (magnitude >> 23);  // 14 to 24
    const uint32_t kept = significand >> shift;
    const uint32_t rest = significand & ((1u << shift) - 1u);
    const uint32_t half_unit = 1u << (shift - 1u);
    const bool up = rest > half_unit || (rest == half_unit && (kept & 1u) != 0);
    return static_cast<uint16_t>(sign | (kept + (up ? 1u : 0u)));
}

/// Reads a little-endian 16-bit value at any alignment.
inline uint16_t load_u16(const std::byte* bytes) {
    uint16_t value = 0;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

}  // namespace samara
