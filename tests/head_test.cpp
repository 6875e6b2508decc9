#include "src/model/head.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "samara/engine.hpp"
#include "src/formats/quantise.hpp"
#include "src/formats/repack.hpp"
#include "src/model/forward.hpp"

namespace samara {
namespace {

using formats::TensorType;
using kernels::Layout;
using kernels::Matrix;

/// A random Q4_K head in both layouts.
struct Heads {
    std::vector<std::byte> source, whole_blob, split_blob;
    formats::Tensor tensor;
    Matrix whole, split;

    Heads(int rows, int cols) {
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        std::vector<float> weights(static_cast<size_t>(rows) * static_cast<size_t>(cols));
        for (float& w : weights) w = normal(random);
        source.resize(formats::quantised_bytes(TensorType::kQ4_K, weights.size()));
        formats::quantise(TensorType::kQ4_K, weights, source);
        tensor.name = "output.weight";
        tensor.type = TensorType::kQ4_K;
        tensor.shape = {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)};
        tensor.data = source;
        const formats::Slice slice{.tensor = &tensor, .rows = static_cast<uint64_t>(rows)};
        whole = formats::choose_layout(slice, formats::Role::kHead);
        split = formats::split_layout(whole);
        repack(slice, whole, whole_blob);
        repack(slice, split, split_blob);
    }

    static void repack(const formats::Slice& slice, Matrix& m, std::vector<std::byte>& blob) {
        const auto bytes = static_cast<size_t>(kernels::matrix_bytes(m));
        blob.resize(bytes + 64);
        const size_t skip = (64 - reinterpret_cast<uintptr_t>(blob.data()) % 64) % 64;
        formats::repack(slice, m, {blob.data() + skip, bytes});
        m.data = blob.data() + skip;
    }
};

/// One token's activations: normal values, or those of one row so that its logit stands out.
struct Token {
    memory::Arena arena;
    model::ActivationBuffer buffer;

    explicit Token(int cols) : arena(bytes(cols)) { buffer.take(arena, 1, cols, 1); }
    static uint64_t bytes(int cols) {
        memory::Arena count;
        model::ActivationBuffer().take(count, 1, cols, 1);
        return count.used();
    }
    void fill(const kernels::KernelTable& table, uint32_t seed) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        for (int c = 0; c < buffer.cols; ++c) buffer.row(0)[c] = normal(random);
        buffer.quantise(table, 0);
    }
};

const int kCols[] = {256, 512, 768, 2048};

std::vector<float> all_logits(const kernels::KernelTable& table, const Matrix& w, const kernels::Activations& a) {
    std::vector<float> logits(static_cast<size_t>(w.rows));
    const int groups = (w.rows + kernels::kRowGroup - 1) / kernels::kRowGroup;
    table.matmul(w, 0, groups, a, nullptr, 1, logits.data(), w.rows);
    return logits;
}

TEST(Head, SplitHeadGivesTheBitsOfTheWholeOne) {
    for (const int cols : kCols) {
        const Heads heads(100, cols);
        ASSERT_EQ(heads.split.layout, Layout::kNibbleKSplit);
        for (const auto isa : kernels::supported_isas()) {
            const auto& table = kernels::kernel_table(isa);
            Token token(cols);
            token.fill(table, 1);
            EXPECT_EQ(all_logits(table, heads.whole, token.buffer.view(1)),
                      all_logits(table, heads.split, token.buffer.view(1)))
                << table.name << ", " << cols << " columns";
        }
    }
}

TEST(Head, SplitRowsDequantiseToTheWholeOnes) {
    const Heads heads(50, 768);
    for (int row = 0; row < 50; ++row) {
        std::vector<float> whole(768), split(768);
        formats::dequantise_matrix_row(heads.whole, row, whole.data());
        formats::dequantise_matrix_row(heads.split, row, split.data());
        EXPECT_EQ(whole, split) << "row " << row;
    }
}

TEST(Head, RefinedToAllBitsIsTheLogitUpToRounding) {
    for (const int cols : kCols) {
        const Heads heads(100, cols);
        for (const auto isa : kernels::supported_isas()) {
            const auto* screen = kernels::screen_kernels(kernels::isa_name(isa));
            if (screen == nullptr) continue;
            Token token(cols);
            token.fill(kernels::kernel_table(isa), 2);
            const auto a = token.buffer.view(1);
            const std::vector<float> logits = all_logits(kernels::kernel_table(isa), heads.whole, a);
            kernels::ScreenInput x;
            x.reserve(cols);
            x.fill(a, screen->lanes);
            std::vector<float> value(112), norm(112), third(100), all(100);
            std::vector<int32_t> rows(100);
            for (int r = 0; r < 100; ++r) rows[static_cast<size_t>(r)] = r;
            screen->approximate(heads.split, 0, 7, x, value.data(), norm.data());
            screen->refine(heads.split, rows.data(), 100, false, x, value.data(), third.data());
            screen->refine(heads.split, rows.data(), 100, true, x, value.data(), all.data());
            double two_bits = 0, three_bits = 0;
            for (size_t r = 0; r < 100; ++r) {
                EXPECT_NEAR(all[r], logits[r], 1e-4F * norm[r]) << kernels::isa_name(isa) << ", row " << r;
                two_bits += std::pow((logits[r] - value[r]) / norm[r], 2.0) / 100;
                three_bits += std::pow((logits[r] - third[r]) / norm[r], 2.0) / 100;
            }
            EXPECT_NEAR(two_bits, kernels::kVarianceAfterTwoBits, 0.6);
            EXPECT_NEAR(three_bits, kernels::kVarianceAfterThreeBits, 0.12);
        }
    }
}

TEST(Head, ScreenGivesWhatTheWholeHeadGives) {
    for (const int cols : kCols) {
        constexpr int kRows = 20011;
        const Heads heads(kRows, cols);
        for (const auto isa : kernels::supported_isas()) {
            const auto& table = kernels::kernel_table(isa);
            platform::ThreadPool pool(2);
            model::ScreenedHead screen(heads.split, table, pool);
            if (!screen.possible()) continue;
            Token token(cols);
            std::vector<float> scratch(kRows);
            const std::vector<int32_t> also{5, 20000, 5, 17};
            for (uint32_t step = 0; step < 20; ++step) {
                token.fill(table, 100 + step);
                const auto a = token.buffer.view(1);
                const std::vector<float> logits = all_logits(table, heads.whole, a);
                model::TopLogits found, expected;
                found.k = expected.k = step % 3 == 0 ? 1 : 20;
                if (step % 2 == 0) found.also = expected.also = also;
                ASSERT_TRUE(screen.run(a, scratch.data(), found));
                model::choose_top(logits, expected);
                EXPECT_EQ(found.ids, expected.ids) << table.name << ", " << cols << " columns, step " << step;
                EXPECT_EQ(found.logits, expected.logits);
            }
            EXPECT_LT(screen.counts().last_rows, 20U * kRows / 2);  // it does leave weights out
        }
    }
}

TEST(Head, TopOfAllLogitsIsInOrderWithoutTheOthers) {
    const std::vector<float> logits{1, 5, 5, 3, 9, 2};
    const std::vector<int32_t> also{4, 0, 4};
    model::TopLogits top;
    top.k = 3;
    top.also = also;
    model::choose_top(logits, top);
    EXPECT_EQ(top.ids, (std::vector<int32_t>{1, 2, 3, 0, 4}));
    EXPECT_EQ(top.logits, (std::vector<float>{5, 5, 3, 1, 9}));
}

TEST(Head, SamplerChoosesTheSameFromTheBestTokens) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (const Sampling& s :
         {Sampling{}, Sampling{.temperature = 1, .top_k = 20, .top_p = 0.9F, .seed = 4},
          Sampling{.temperature = 1, .top_k = 5, .min_p = 0.1F, .repetition_penalty = 1.5F, .seed = 5},
          Sampling{.temperature = 0, .repetition_penalty = 1.5F, .presence_penalty = -1}}) {
        Sampler whole(s), best(s);
        for (int step = 0; step < 200; ++step) {
            std::vector<float> logits(300);
            for (float& l : logits) l = 3 * normal(random);
            model::TopLogits top;
            top.k = best.top_needed();
            ASSERT_GT(top.k, 0);
            top.also = best.penalised();
            model::choose_top(logits, top);
            ASSERT_EQ(whole.choose(logits), best.choose(TopTokens{top.ids, top.logits})) << "step " << step;
        }
    }
}

TEST(Head, SamplerWithoutTopKNeedsAllLogits) {
    EXPECT_EQ(Sampler({.temperature = 1, .top_p = 0.9F}).top_needed(), 0);
    EXPECT_EQ(Sampler({.temperature = 1, .top_k = 1000}).top_needed(), 0);
}

}  // namespace
}  // namespace samara
