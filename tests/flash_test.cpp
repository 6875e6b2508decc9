// The approximate head: what it reads is exact, what it leaves out is said, and a damaged index is refused.

#include "src/model/flash.hpp"

#include <cmath>
#include <fstream>
#include <numeric>
#include <random>

#include "src/formats/flash_index.hpp"
#include "src/formats/packed.hpp"
#include "src/formats/repack.hpp"
#include "tests/engine_models.hpp"

namespace samara {
namespace {

using kernels::Matrix;
using testing::error_of;
using testing::prompt;
using testing::synthetic_model;

/// A head whose rows lie around a few directions, its index, and one token that points along one of them.
class FlashHead : public ::testing::Test {
  protected:
    static constexpr int kVocab = 5003, kCols = 512, kDirections = 40;

    FlashHead() {
        std::normal_distribution<float> normal;
        for (float& d : directions_) d = normal(random_);
        for (int r = 0; r < kVocab; ++r) {
            const int direction = static_cast<int>(random_() % kDirections);
            for (int c = 0; c < kCols; ++c) weights_.push_back(directions_[at(direction, c)] + 0.5F * normal(random_));
        }
        source_.name = "output.weight";
        source_.type = formats::TensorType::kF32;
        source_.shape = {kCols, kVocab};
        source_.data = std::as_bytes(std::span(weights_));
        const std::vector<int32_t> control{17, 4000};
        index_ = formats::build_flash_index(source_, control, [] {});
        for (const int32_t id : index_.order) {
            const auto row = std::span(weights_).subspan(at(id, 0), kCols);
            rows_.insert(rows_.end(), row.begin(), row.end());
        }
        flash_.rows = matrix(rows_.data(), kVocab);
        flash_.centroids = matrix(index_.centroids.data(), static_cast<int>(index_.centroids.size() / kCols));
        flash_.always = index_.always;
        flash_.order = index_.order;
        flash_.row_of.resize(kVocab);
        for (int32_t row = 0; row < kVocab; ++row) flash_.row_of[static_cast<size_t>(index_.order[at(row)])] = row;
        memory::Arena count;
        model::ActivationBuffer().take(count, 1, kCols, 1);
        arena_ = std::make_unique<memory::Arena>(count.used());
        x_.take(*arena_, 1, kCols, 1);
    }

    static size_t at(int row) { return static_cast<size_t>(row); }
    static size_t at(int row, int col) { return static_cast<size_t>(row) * kCols + static_cast<size_t>(col); }
    static Matrix matrix(const float* data, int rows) {
        return {.layout = kernels::Layout::kFloat32,
                .rows = rows,
                .cols = kCols,
                .data = reinterpret_cast<const std::byte*>(data)};
    }

    void point_along(int direction, const kernels::KernelTable& table) {
        std::normal_distribution<float> normal;
        for (int c = 0; c < kCols; ++c) x_.row(0)[c] = directions_[at(direction, c)] + 0.2F * normal(random_);
        ASSERT_TRUE(x_.quantise(table, 0));
    }

    std::vector<float> all_logits(const kernels::KernelTable& table) {
        std::vector<float> logits(kVocab);
        const Matrix whole = matrix(weights_.data(), kVocab);
        table.matmul(whole, 0, (kVocab + 15) / 16, x_.view(1), nullptr, 1, logits.data(), kVocab);
        return logits;
    }

    std::mt19937 random_{5};
    std::vector<float> directions_ = std::vector<float>(at(kDirections, 0)), weights_, rows_;
    formats::Tensor source_;
    formats::FlashIndex index_;
    model::FlashWeights flash_;
    std::unique_ptr<memory::Arena> arena_;
    model::ActivationBuffer x_;
};

TEST_F(FlashHead, GivesExactLogitsOfTheTokensItReadsOnEverySetAndThreadCount) {
    std::vector<std::vector<int32_t>> ids;
    const std::vector<int32_t> also{5, 4999};
    for (const auto isa : kernels::supported_isas()) {
        const auto& table = kernels::kernel_table(isa);
        for (const int threads : {1, 2}) {
            random_.seed(9);
            platform::ThreadPool pool(threads);
            model::FlashHead head(flash_, table, pool);
            std::vector<int32_t> found;
            for (int step = 0; step < 20; ++step) {
                point_along(step, table);
                const std::vector<float> logits = all_logits(table);
                model::TopLogits top;
                top.k = 20;
                if (step % 2 == 0) top.also = also;
                ASSERT_TRUE(head.run(x_, top));
                ASSERT_EQ(top.ids.size(), step % 2 == 0 ? 22U : 20U);
                for (size_t i = 0; i < top.ids.size(); ++i) EXPECT_EQ(top.logits[i], logits[at(top.ids[i])]);
                found.insert(found.end(), top.ids.begin(), top.ids.end());
                head.compare(logits);
            }
            ids.push_back(found);
            EXPECT_EQ(ids.back(), ids.front()) << table.name << ", " << threads << " threads";
            EXPECT_EQ(head.counts().steps, 20U);
            EXPECT_EQ(head.counts().compared, 20U);
            EXPECT_GE(head.counts().best, 19U);  // the head has the clusters that the index looks for
            EXPECT_GE(head.counts().top20, 380U);
            EXPECT_LT(head.bytes_per_step(), uint64_t{4} * kVocab * kCols / 3);
        }
    }
}

TEST_F(FlashHead, ReadsTheWholeHeadWhereItHasTooFewTokens) {
    platform::ThreadPool pool(1);
    const auto& table = kernels::kernel_table(kernels::supported_isas().front());
    model::FlashHead head(flash_, table, pool);
    point_along(0, table);
    model::TopLogits top;
    top.k = kVocab / 2;
    EXPECT_FALSE(head.run(x_, top));
}

TEST_F(FlashHead, IndexHoldsEveryTokenOnceAndControlTokensFirst) {
    std::vector<int32_t> sorted = index_.order, all(kVocab);
    std::iota(all.begin(), all.end(), 0);
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, all);
    EXPECT_EQ(index_.always, 1);
    for (const int32_t id : {17, 4000}) {
        EXPECT_LT(flash_.row_of[at(id)], formats::kFlashClusterRows);
    }
}

TEST_F(FlashHead, IndexIsMadeOfDamagedRows) {
    for (size_t i = 0; i < weights_.size(); i += 1009) weights_[i] = std::nanf("");
    const formats::FlashIndex index = formats::build_flash_index(source_, {}, [] {});
    std::vector<int32_t> sorted = index.order, all(kVocab);
    std::iota(all.begin(), all.end(), 0);
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, all);
    EXPECT_EQ(index.always, 0);
}

TEST_F(FlashHead, IndexRefusesControlTokensOutsideTheVocabulary) {
    const std::vector<int32_t> control{kVocab};
    EXPECT_EQ(error_of([&] { formats::build_flash_index(source_, control, [] {}); }).code(),
              ErrorCode::kInvalidArgument);
}

/// A packed model with an index, and a copy of it whose bytes a test may change.
std::string packed_model(const std::string& preset, const std::string& type) {
    const std::string path = testing::temporary_folder() + "/flash-" + preset + ".gguf";
    if (!std::filesystem::exists(path)) {
        formats::Source source;
        source.path = synthetic_model(preset, type);
        formats::pack(*formats::Checkpoint::open(source), path, formats::Ternarise::kLossless, {},
                      formats::HeadLayout::kWhole, formats::TernaryLayout::kTwoBit, true);
    }
    return path;
}

std::unique_ptr<Engine> load(const std::string& path, const std::string& head, const std::string& isa = "auto",
                             int threads = 2) {
    LoadOptions o;
    o.path = path;
    o.threads = threads;
    o.isa = isa;
    o.head = head;
    o.context_tokens = 256;
    return Engine::load(o);
}

std::vector<int32_t> answer(Engine& engine, Sampling sampling) {
    const auto session = engine.create_session();
    testing::add(*session, prompt(10, engine.info().vocab));
    Sampler sampler(sampling);
    GenerateParams params;
    params.sampler = &sampler;
    params.max_tokens = 40;
    generate(*session, params);
    return {session->tokens().begin(), session->tokens().end()};
}

TEST(EngineFlash, AnswersEquallyOnEverySetAndThreadCount) {
    for (const auto& [preset, type] : {std::pair{"maple-tiny", "tq2_0"}, std::pair{"llama-tiny", "q8_0"}}) {
        const std::string path = packed_model(preset, type);
        for (const Sampling& sampling : {Sampling{}, Sampling{.temperature = 1, .top_k = 20, .seed = 3}}) {
            const auto expected = answer(*load(path, "flash", "scalar", 1), sampling);
            for (const auto isa : kernels::supported_isas()) {
                const std::string name(kernels::isa_name(isa));
                EXPECT_EQ(answer(*load(path, "flash", name), sampling), expected) << preset << ", " << name;
            }
            EXPECT_EQ(answer(*load(path, "flash-checked"), sampling), expected) << preset;
        }
    }
}

TEST(EngineFlash, SaysHowOftenItAgrees) {
    const auto engine = load(packed_model("maple-tiny", "tq2_0"), "flash-checked");
    EXPECT_TRUE(engine->approximates_head());
    answer(*engine, {});
    const FlashAgreement a = engine->flash_agreement();
    EXPECT_EQ(a.steps, 39U);  // the first token comes from the prompt's step
    EXPECT_EQ(a.compared, 39U);
    EXPECT_LE(a.best, a.compared);
    EXPECT_LE(a.top20, 20 * a.compared);
    EXPECT_LT(engine->head_bytes(), engine->info().bytes_head);
    const auto plain = load(packed_model("maple-tiny", "tq2_0"), "full");
    answer(*plain, {});
    EXPECT_EQ(plain->flash_agreement().steps, 0U);
}

TEST(EngineFlash, WholeHeadIsWhatItIsWithoutAnIndex) {
    const std::string& source = synthetic_model("maple-tiny", "tq2_0");
    EXPECT_EQ(answer(*load(packed_model("maple-tiny", "tq2_0"), "full"), {}), answer(*load(source, "full"), {}));
}

TEST(EngineFlash, NeedsAnIndex) {
    const Error error = error_of([] { load(synthetic_model("maple-tiny", "tq2_0"), "flash"); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("--flash-index"), std::string::npos) << error.what();
}

TEST(EngineFlash, RefusesAnOrderThatIsNoPermutation) {
    const std::string path = testing::temporary_folder() + "/damaged.gguf";
    std::filesystem::copy_file(packed_model("maple-tiny", "tq2_0"), path);
    formats::Source source;
    source.path = path;
    uint64_t offset = 0;
    {
        const auto checkpoint = formats::Checkpoint::open(source);
        const std::span<const std::byte> order = checkpoint->get("samara.flash.order").data;
        std::ifstream file(path, std::ios::binary);
        const std::string bytes(std::istreambuf_iterator<char>(file), {});
        offset = bytes.find(std::string(reinterpret_cast<const char*>(order.data()), order.size()));
    }
    for (const char* four : {"\xff\xff\xff\xff", "\x05\x00\x00\x00"}) {
        std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
        file.seekp(static_cast<std::streamoff>(offset));
        for (int i = 0; i < 2; ++i) file.write(four, 4);
        file.close();
        const Error error = error_of([&] { load(path, "flash"); });
        EXPECT_EQ(error.code(), ErrorCode::kFormat);
        EXPECT_NE(std::string(error.what()).find("damaged.gguf: flash index: order: row "), std::string::npos)
            << error.what();
        EXPECT_NO_THROW(load(path, "full"));  // which does not look at it
    }
}

}  // namespace
}  // namespace samara
