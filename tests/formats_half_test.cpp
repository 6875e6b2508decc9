// Conversions of 16-bit floats, over every value.

#include <gtest/gtest.h>

#include <cmath>

#include "src/platform/half.hpp"

namespace samara {
namespace {

/// The definition of IEEE binary16, in double.
double half_value(uint32_t bits) {
    const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
    const int exponent = static_cast<int>(bits >> 10 & 31u);
    const int mantissa = static_cast<int>(bits & 1023u);
    if (exponent == 0) return sign * std::ldexp(mantissa, -24);
    return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

bool is_half_nan(uint32_t bits) { return (bits & 0x7fffu) > 0x7c00u; }

TEST(Half, every_half_becomes_the_float_of_its_value) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        const float value = half_to_float(static_cast<uint16_t>(bits));
        if (is_half_nan(bits)) {
            ASSERT_TRUE(std::isnan(value)) << bits;
        } else if ((bits & 0x7fffu) == 0x7c00u) {
            ASSERT_TRUE(std::isinf(value)) << bits;
        } else {
            ASSERT_EQ(static_cast<double>(value), half_value(bits)) << bits;
        }
        ASSERT_EQ(std::signbit(value), bits >= 0x8000u) << bits;
    }
}

TEST(Half, every_half_survives_the_way_there_and_back) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        const uint16_t back = float_to_half(half_to_float(static_cast<uint16_t>(bits)));
        if (is_half_nan(bits)) {
            ASSERT_TRUE(is_half_nan(back)) << bits;
        } else {
            ASSERT_EQ(back, bits);
        }
    }
}

TEST(Half, floats_between_two_halves_round_to_the_nearest_and_ties_to_even) {
    for (uint32_t bits = 0; bits < 0x7bffu; ++bits) {
        const double low = half_value(bits);
        const double high = half_value(bits + 1);
        const auto middle = static_cast<float>((low + high) / 2);  // exact: it has 12 significant bits
        const uint32_t even = (bits & 1u) == 0 ? bits : bits + 1;
        ASSERT_EQ(float_to_half(middle), even) << bits;
        ASSERT_EQ(float_to_half(std::nextafter(middle, 0.0f)), bits) << bits;
        ASSERT_EQ(float_to_half(std::nextafter(middle, INFINITY)), bits + 1) << bits;
        ASSERT_EQ(float_to_half(-middle), even | 0x8000u) << bits;
    }
}

TEST(Half, floats_beyond_the_largest_half_become_infinite) {
    EXPECT_EQ(float_to_half(65504.0f), 0x7bffu);
    EXPECT_EQ(float_to_half(std::nextafter(65520.0f, 0.0f)), 0x7bffu);
    EXPECT_EQ(float_to_half(65520.0f), 0x7c00u);
    EXPECT_EQ(float_to_half(-1e30f), 0xfc00u);
    EXPECT_EQ(float_to_half(-INFINITY), 0xfc00u);
    EXPECT_EQ(float_to_half(std::ldexp(1.0f, -26)), 0u);
    EXPECT_EQ(float_to_half(-1e-45f), 0x8000u);
}

TEST(Bf16, every_bf16_survives_and_halfway_floats_go_to_even) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        const float value = bf16_to_float(static_cast<uint16_t>(bits));
        if (std::isnan(value)) {
            ASSERT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value)))) << bits;
            continue;
        }
        ASSERT_EQ(float_to_bf16(value), bits);
        if (std::isinf(value)) continue;
        const float halfway = std::bit_cast<float>(bits << 16 | 0x8000u);
        ASSERT_EQ(float_to_bf16(halfway), (bits & 1u) == 0 ? bits : bits + 1) << bits;
        ASSERT_EQ(float_to_bf16(std::bit_cast<float>(bits << 16 | 0x8001u)), bits + 1) << bits;
        ASSERT_EQ(float_to_bf16(std::bit_cast<float>(bits << 16 | 0x7fffu)), bits) << bits;
    }
}

TEST(Bf16, a_nan_whose_payload_lies_in_the_low_half_stays_a_nan) {
    EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace samara
