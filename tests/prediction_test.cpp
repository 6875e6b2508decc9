// The arithmetic of `samara plan`, and the sanity of its table.

#include "apps/cli/prediction.hpp"

#include <gtest/gtest.h>

#include "src/platform/error.hpp"

namespace samara::cli {
namespace {

constexpr uint64_t kMega = 1'000'000;

ModelNeeds needs() {
    return {.attention = 60 * kMega,
            .experts = 150 * kMega,
            .router = 25 * kMega,
            .head = 175 * kMega,
            .embedding = kMega,
            .kv = 39 * kMega,
            .projection_weights = 850 * kMega,
            .weight_bytes = 5000 * kMega,
            .memory = 5500 * kMega};
}

Device device() {
    Device d;
    d.bandwidth = {40e9, 80e9};
    d.reachable = {0.5, 1};
    d.ram = 8000 * kMega;
    d.app_share = {0.5, 0.75};
    d.int8_ops = 2e12;
    return d;
}

TEST(Prediction, DecodeIsTheReachableBandwidthTimesTheEfficiencyOverTheBytesOfAToken) {
    ASSERT_EQ(needs().bytes_per_token(), 450 * kMega);
    const Prediction p = predict(device(), needs(), 1);
    EXPECT_NEAR(p.decode_tps.low, 40e9 * 0.5 * kDecodeEfficiency.low / 450e6, 1e-9);
    EXPECT_NEAR(p.decode_tps.high, 80e9 * kDecodeEfficiency.high / 450e6, 1e-9);
}

TEST(Prediction, ALongPromptTakesWhatItsOperationsTake) {
    const Prediction p = predict(device(), needs(), 4096);
    const double ops = 4096.0 * 4 * 850e6;
    ASSERT_TRUE(p.first_token_seconds && p.prefill_tps);
    EXPECT_NEAR(p.first_token_seconds->low, ops / (2e12 * kPromptEfficiency.high), 1e-9);
    EXPECT_NEAR(p.first_token_seconds->high, ops / (2e12 * kPromptEfficiency.low), 1e-9);
    EXPECT_NEAR(p.prefill_tps->low * p.first_token_seconds->high, 4096, 1e-6);
    EXPECT_NEAR(p.prefill_tps->high * p.first_token_seconds->low, 4096, 1e-6);
}

TEST(Prediction, AShortPromptTakesWhatReadingTakesAndOneTokenIsADecodeStep) {
    Device d = device();
    d.int8_ops = 1e15;
    EXPECT_NEAR(predict(d, needs(), 512).first_token_seconds->low, 5e9 / (80e9 * kDecodeEfficiency.high), 1e-9);
    EXPECT_NEAR(predict(d, needs(), 513).first_token_seconds->low, 10e9 / (80e9 * kDecodeEfficiency.high), 1e-9);
    const Prediction one = predict(d, needs(), 1);
    EXPECT_NEAR(one.first_token_seconds->low, 1 / one.decode_tps.high, 1e-12);
}

TEST(Prediction, SaysNothingOfAPromptWhereTheProcessorIsUnknown) {
    Device d = device();
    d.int8_ops = 0;
    const Prediction p = predict(d, needs(), 512);
    EXPECT_FALSE(p.first_token_seconds);
    EXPECT_FALSE(p.prefill_tps);
    EXPECT_GT(p.decode_tps.low, 0);
}

TEST(Prediction, MemoryFitsWithinTheSmallerSharePerhapsWithinTheLargerAndElseNot) {
    ModelNeeds n = needs();
    for (const auto& [memory, fit] : {std::pair{4000 * kMega, Fit::kYes},
                                      {4000 * kMega + 1, Fit::kPerhaps},
                                      {6000 * kMega, Fit::kPerhaps},
                                      {6000 * kMega + 1, Fit::kNo}}) {
        n.memory = memory;
        EXPECT_EQ(predict(device(), n, 1).fit, fit) << memory;
    }
}

TEST(Devices, HaveOrderedRangesAndSources) {
    EXPECT_GE(known_devices().size(), 4u);
    for (const Device& d : known_devices()) {
        for (const Range& r : {d.bandwidth, d.reachable, d.app_share}) EXPECT_LE(r.low, r.high) << d.name;
        EXPECT_GT(d.reachable.low, 0) << d.name;
        EXPECT_LE(d.reachable.high, 1) << d.name;
        EXPECT_LE(d.app_share.high, 1) << d.name;
        EXPECT_FALSE(d.bandwidth_source.empty() || d.ram_source.empty() || d.cpu_source.empty()) << d.name;
        EXPECT_EQ(&find_device(d.name), &d);
    }
    EXPECT_NEAR(find_device("iphone-17-pro").bandwidth.low, 76.8e9, 1);
    EXPECT_NEAR(find_device("iphone-16-pro").bandwidth.high, 60e9, 1);
    EXPECT_NEAR(find_device("galaxy-s25").bandwidth.high, 84.8e9, 1);
    EXPECT_THROW(find_device("iphone"), Error);
    EXPECT_THROW(find_device(""), Error);
}

TEST(Devices, ThisOneHasTheMeasuredBandwidthAndSomeRam) {
    const Device d = this_device(20e9);
    EXPECT_EQ(d.bandwidth.low, 20e9);
    EXPECT_EQ(d.bandwidth.high, 20e9);
    EXPECT_GT(d.ram, uint64_t{1} << 28);
}

}  // namespace
}  // namespace samara::cli
