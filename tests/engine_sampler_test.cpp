// The sampler: reproducible draws from the distribution that its settings describe.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "samara/engine.hpp"

namespace samara {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Sampling settings(float temperature, uint64_t seed = 1) {
    Sampling s;
    s.temperature = temperature;
    s.seed = seed;
    return s;
}

std::vector<int32_t> draw(const Sampling& s, const std::vector<float>& logits, int count) {
    Sampler sampler(s);
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(sampler.choose(logits));
    return tokens;
}

std::map<int32_t, int> histogram(const Sampling& s, const std::vector<float>& logits, int count) {
    std::map<int32_t, int> counts;
    for (const int32_t t : draw(s, logits, count)) ++counts[t];
    return counts;
}

// Pearson's statistic of the draws against softmax(logits / temperature) over `allowed`.
double chi_square(const std::map<int32_t, int>& counts, const std::vector<float>& logits,
                  const std::vector<int32_t>& allowed, double temperature, int draws) {
    double total = 0;
    for (const int32_t id : allowed) total += std::exp(logits[static_cast<size_t>(id)] / temperature);
    double statistic = 0;
    for (const int32_t id : allowed) {
        const double expected = draws * std::exp(logits[static_cast<size_t>(id)] / temperature) / total;
        const auto found = counts.find(id);
        const double difference = (found == counts.end() ? 0 : found->second) - expected;
        statistic += difference * difference / expected;
    }
    return statistic;
}

TEST(Sampler, GreedyTakesTheLargestAndTiesGoToTheLowerId) {
    EXPECT_EQ(draw(settings(0), {1, 5, 5, 2}, 1)[0], 1);
    EXPECT_EQ(draw(settings(0), {-0.0F, 0.0F}, 1)[0], 0);
    EXPECT_EQ(draw(settings(0), {-3}, 1)[0], 0);
    Sampling one = settings(2);
    one.top_k = 1;
    EXPECT_EQ(draw(one, {1, 5, 5, 2}, 50), std::vector<int32_t>(50, 1));
}

TEST(Sampler, EqualSeedsGiveEqualChoicesAndOthersDiffer) {
    const std::vector<float> logits(50, 0.0F);
    EXPECT_EQ(draw(settings(1, 7), logits, 100), draw(settings(1, 7), logits, 100));
    EXPECT_NE(draw(settings(1, 7), logits, 100), draw(settings(1, 8), logits, 100));
}

// The generator, the exponential and the order of sums are all ours: these never change on any machine.
TEST(Sampler, TheChoicesOfASeedAreFixed) {
    std::vector<float> logits;
    for (int i = 0; i < 40; ++i) logits.push_back(static_cast<float>(i % 7) * 0.5F);
    Sampling s = settings(0.8F, 42);
    s.top_k = 20;
    s.top_p = 0.9F;
    EXPECT_EQ(draw(s, logits, 12), (std::vector<int32_t>{18, 12, 20, 6, 6, 20, 20, 13, 20, 27, 20, 19}));
}

TEST(Sampler, DrawsFollowTheSoftmax) {
    const std::vector<float> logits{0, 1, 2, -1, 0.5F};
    for (const float temperature : {0.5F, 1.0F, 3.0F}) {
        const auto counts = histogram(settings(temperature, 3), logits, 20000);
        // 18.47 is the 99.9 % point for four degrees of freedom; the seed is fixed, so the outcome is too.
        EXPECT_LT(chi_square(counts, logits, {0, 1, 2, 3, 4}, temperature, 20000), 18.47);
    }
}

TEST(Sampler, TopKKeepsTheLargestWithTiesToTheLowerId) {
    const std::vector<float> logits{1, 3, 1, 2, 1};
    Sampling s = settings(1);
    s.top_k = 3;
    const auto counts = histogram(s, logits, 20000);
    EXPECT_EQ(counts.size(), 3U);
    EXPECT_LT(chi_square(counts, logits, {1, 3, 0}, 1, 20000), 13.82);  // 99.9 %, two degrees of freedom
    s.top_k = 100;
    EXPECT_EQ(histogram(s, logits, 5000).size(), 5U);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesItsShare) {
    std::vector<float> logits{std::log(0.1F), std::log(0.5F), std::log(0.15F), std::log(0.25F)};
    Sampling s = settings(1);
    s.top_p = 0.7F;
    const auto counts = histogram(s, logits, 20000);
    EXPECT_EQ(counts.size(), 2U);
    EXPECT_LT(chi_square(counts, logits, {1, 3}, 1, 20000), 10.83);  // 99.9 %, one degree of freedom
    s.top_p = 1e-6F;
    EXPECT_EQ(draw(s, logits, 20), std::vector<int32_t>(20, 1));
    s.top_p = 0.9999F;
    EXPECT_EQ(histogram(s, logits, 5000).size(), 4U);
}

TEST(Sampler, MinPDropsWhatIsImprobableBesideTheBest) {
    const std::vector<float> logits{0, std::log(0.5F), std::log(0.05F)};
    Sampling s = settings(1);
    s.min_p = 0.1F;
    EXPECT_EQ(histogram(s, logits, 5000).size(), 2U);
    s.min_p = 0.999F;
    EXPECT_EQ(draw(s, logits, 20), std::vector<int32_t>(20, 0));
}

TEST(Sampler, PenaltiesReachTheRecentTokensOnly) {
    Sampling s = settings(0);
    s.presence_penalty = 2;
    s.penalty_last = 2;
    // 5 is largest; every choice loses 2 while it is one of the last two.
    EXPECT_EQ(draw(s, {5, 4, 3.5F}, 5), (std::vector<int32_t>{0, 1, 2, 0, 1}));
    Sampling r = settings(0);
    r.repetition_penalty = 2;
    Sampler positive(r);
    positive.accept(0);
    positive.accept(0);  // twice counts once
    EXPECT_EQ(positive.choose(std::vector<float>{5, 2}), 0);
    Sampler negative(r);
    negative.accept(0);
    EXPECT_EQ(negative.choose(std::vector<float>{-1, -1.5F}), 1);
}

TEST(Sampler, TokensOutsideTheVocabularyAreNoMatterForPenalties) {
    Sampling s = settings(0);
    s.presence_penalty = 1;
    Sampler sampler(s);
    for (const int32_t t : {-1, 3, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()})
        sampler.accept(t);
    EXPECT_EQ(sampler.choose(std::vector<float>{1, 2, 3}), 2);
}

TEST(Sampler, LogitsThatAreNotFiniteAreNeverAChoiceUnlessInfinite) {
    for (const float temperature : {0.0F, 1.0F}) {
        for (const int top_k : {0, 2}) {
            for (const float top_p : {1.0F, 0.5F}) {
                Sampling s = settings(temperature);
                s.top_k = top_k;
                s.top_p = top_p;
                s.min_p = 0.01F;
                EXPECT_EQ(draw(s, {kNan, 1, kNan, -kInfinity, kNan}, 30), std::vector<int32_t>(30, 1));
                EXPECT_EQ(draw(s, {1, kInfinity, kNan, 2}, 30), std::vector<int32_t>(30, 1));
                for (const float bad : {kNan, kInfinity, -kInfinity}) {
                    for (const int32_t t : draw(s, std::vector<float>(100, bad), 30)) {
                        EXPECT_TRUE(t >= 0 && t < 100);
                    }
                }
            }
        }
    }
}

TEST(Sampler, ATokenOfProbabilityZeroIsNeverDrawn) {
    std::vector<float> logits(64, -kInfinity);
    logits[10] = 0;
    logits[20] = 0;
    const auto counts = histogram(settings(1, 5), logits, 20000);
    EXPECT_EQ(counts.size(), 2U);
}

TEST(Sampler, GoesBackToAMarkAndDrawsTheSameAgain) {
    Sampling s = settings(1);
    s.repetition_penalty = 2;
    s.penalty_last = 5;  // so that the ring is both filling and full
    const std::vector<float> logits = {1, 2, 3, 2, 1, 2, 3};
    Sampler sampler(s);
    for (int start = 0; start < 12; ++start) {
        std::vector<Sampler::Mark> marks;
        std::vector<int32_t> tokens;
        for (int i = 0; i < 3; ++i) {
            marks.push_back(sampler.mark());
            tokens.push_back(sampler.choose(logits));
        }
        for (size_t i = marks.size(); i-- > 0;) sampler.go_back(marks[i]);
        for (const int32_t token : tokens) EXPECT_EQ(sampler.choose(logits), token);
        for (size_t i = marks.size(); i-- > 1;) sampler.go_back(marks[i]);
        sampler.go_back(sampler.mark());  // with nothing chosen since
    }
    EXPECT_EQ(sampler.penalised().size(), 5U);
}

TEST(Sampler, SettingsOutOfRangeNameTheSetting) {
    const auto refused = [](const char* name, auto&& change) {
        Sampling s;
        change(s);
        try {
            Sampler sampler(s);
            ADD_FAILURE() << name << ": expected an error";
        } catch (const Error& e) {
            EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
            EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
        }
    };
    for (const float bad : {-1.0F, kNan, kInfinity}) refused("temperature", [&](Sampling& s) { s.temperature = bad; });
    for (const float bad : {0.0F, -1.0F, 1.5F, kNan}) refused("top_p", [&](Sampling& s) { s.top_p = bad; });
    for (const float bad : {-0.1F, 1.0F, kNan}) refused("min_p", [&](Sampling& s) { s.min_p = bad; });
    for (const float bad : {0.0F, -1.0F, kNan, kInfinity})
        refused("repetition_penalty", [&](Sampling& s) { s.repetition_penalty = bad; });
    for (const float bad : {kNan, kInfinity})
        refused("presence_penalty", [&](Sampling& s) { s.presence_penalty = bad; });
    refused("top_k", [](Sampling& s) { s.top_k = -1; });
    refused("penalty_last", [](Sampling& s) { s.penalty_last = 0; });
}

}  // namespace
}  // namespace samara
