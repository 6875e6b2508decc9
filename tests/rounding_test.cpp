// `samara verify` imitates engines that round activations: the rounding is what it says, and nothing else changes.

#include "apps/cli/rounding.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "src/platform/half.hpp"

namespace samara::cli {
namespace {

/// One quantised vector.
struct Row {
    std::vector<int16_t> q;
    std::vector<int8_t> high, low;
    std::vector<int32_t> sums16;
    float scale = 0;
    int32_t sum = 0;
    bool finite = false;

    bool operator==(const Row&) const = default;
};

Row quantised(const kernels::KernelTable& kernels, const std::vector<float>& x, bool planes = true) {
    const auto stride = static_cast<size_t>(kernels::round_up(static_cast<int64_t>(x.size()), 256));
    Row r;
    r.q.resize(stride);
    r.high.resize(stride);
    r.low.resize(stride);
    r.sums16.resize(stride / 16);
    kernels::QuantisedRow out{.q = r.q.data(), .scale = &r.scale, .sum = &r.sum};
    if (planes) {
        out.high = r.high.data();
        out.low = r.low.data();
        out.sums16 = r.sums16.data();
    }
    r.finite = kernels.quantise(x.data(), static_cast<int>(x.size()), static_cast<int64_t>(stride), out);
    return r;
}

class RoundingTest : public ::testing::Test {
  protected:
    void TearDown() override { set_rounding(Rounding::kNone); }

    static std::vector<float> random_vector(size_t cols) {
        std::mt19937 random(5);
        std::normal_distribution<float> normal;
        std::vector<float> x(cols);
        for (float& v : x) v = normal(random);
        x[3] = 40;  // an outlier, which makes a coarse scale
        return x;
    }

    const kernels::KernelTable& plain = kernels::kernel_table(kernels::Isa::kScalar);
    const kernels::KernelTable& rounding = rounding_kernels(kernels::Isa::kScalar);
};

TEST_F(RoundingTest, NoneGivesTheSetsOwnBits) {
    const auto x = random_vector(768);
    EXPECT_EQ(quantised(rounding, x), quantised(plain, x));
}

TEST_F(RoundingTest, HalfGivesTheBitsOfAVectorOfHalves) {
    auto x = random_vector(576);
    x[7] = 1e6F;  // beyond the largest half: that one
    set_rounding(Rounding::kHalf);
    const Row found = quantised(rounding, x);
    for (float& v : x) v = half_to_float(float_to_half(std::min(v, 65504.0F)));
    EXPECT_EQ(found, quantised(plain, x));
}

TEST_F(RoundingTest, EightBitHasOneScaleFor256ValuesOrForAVectorThat256DoesNotDivide) {
    set_rounding(Rounding::kEightBit);
    for (const size_t cols : {size_t{512}, size_t{576}}) {
        auto x = random_vector(cols);
        const Row found = quantised(rounding, x);
        const size_t block = cols == 512 ? 256 : cols;
        for (size_t begin = 0; begin < cols; begin += block) {
            float largest = 0;
            for (size_t i = begin; i < begin + block; ++i) largest = std::max(largest, std::fabs(x[i]));
            for (size_t i = begin; i < begin + block; ++i) {
                const float before = x[i];
                x[i] = std::nearbyint(x[i] / (largest / 127)) * (largest / 127);
                ASSERT_LE(std::fabs(x[i] - before), largest / 127 * 0.501F);
            }
        }
        EXPECT_EQ(found, quantised(plain, x)) << cols;
    }
}

TEST_F(RoundingTest, LeavesKeysAndValuesAndZerosAlone) {
    const auto x = random_vector(128);
    const std::vector<float> zeros(256);
    for (const Rounding r : {Rounding::kHalf, Rounding::kEightBit}) {
        set_rounding(r);
        EXPECT_EQ(quantised(rounding, x, false), quantised(plain, x, false));
        EXPECT_EQ(quantised(rounding, zeros), quantised(plain, zeros));
    }
}

TEST_F(RoundingTest, StillRefusesWhatIsNotFinite) {
    set_rounding(Rounding::kHalf);
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        auto x = random_vector(256);
        x[100] = bad;
        EXPECT_FALSE(quantised(rounding, x).finite);
    }
}

}  // namespace
}  // namespace samara::cli
