#include "src/synth/synth.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "src/platform/half.hpp"

namespace samara::synth {
namespace {

namespace fs = std::filesystem;
using formats::Checkpoint;
using formats::Tensor;
using formats::TensorType;

class SynthTest : public ::testing::Test {
  protected:
    SynthTest() {
        std::string pattern = (fs::temp_directory_path() / "samara-synth-XXXXXX").string();
        folder_ = ::mkdtemp(pattern.data());
    }
    ~SynthTest() override { fs::remove_all(folder_); }

    std::string write(const std::string& name, const Options& options, std::string_view preset = "maple-tiny") const {
        const std::string path = (folder_ / name).string();
        write_model(preset, options, path, {});
        return path;
    }
    fs::path folder_;
};

std::string bytes_of(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
}

std::vector<float> row_of(const Checkpoint& checkpoint, std::string_view name, uint64_t row, uint64_t expert = 0) {
    const Tensor& tensor = checkpoint.get(name);
    std::vector<float> values(tensor.cols());
    formats::dequantise_row(tensor, expert, row, values.data());
    return values;
}

double rms(const std::vector<float>& values) {
    double sum = 0;
    for (const float v : values) sum += double{v} * double{v};
    return std::sqrt(sum / static_cast<double>(values.size()));
}

TEST_F(SynthTest, the_seed_decides_every_byte_and_the_thread_count_none) {
    const std::string one = bytes_of(write("a", {.seed = 7, .threads = 1}));
    EXPECT_EQ(one, bytes_of(write("b", {.seed = 7, .threads = 3})));
    EXPECT_NE(one, bytes_of(write("c", {.seed = 8})));
}

TEST_F(SynthTest, ternary_codes_are_balanced_about_zero) {
    const auto checkpoint = Checkpoint::open({.path = write("m", {})});
    for (const char* name : {"blk.0.attn_q.weight", "blk.3.ffn_gate_exps.weight", "blk.7.ffn_down_exps.weight"}) {
        std::array<double, 3> counts{};
        const Tensor& tensor = checkpoint->get(name);
        for (uint64_t e = 0; e < tensor.experts(); ++e) {
            for (uint64_t r = 0; r < tensor.rows(); ++r) {
                for (const float v : row_of(*checkpoint, name, r, e)) counts[v < 0 ? 0 : v > 0 ? 2 : 1] += 1;
            }
        }
        for (const double count : counts) {
            EXPECT_NEAR(count / static_cast<double>(tensor.elements()), 1.0 / 3, 0.01) << name;
        }
    }
}

TEST_F(SynthTest, projections_and_router_are_the_same_numbers_in_every_type) {
    const auto reference = Checkpoint::open({.path = write("tq2", {.type = TensorType::kTQ2_0, .outliers = 16})});
    for (const TensorType type : {TensorType::kTQ1_0, TensorType::kF16, TensorType::kF32}) {
        const auto other = Checkpoint::open({.path = write("other", {.type = type, .outliers = 16})});
        for (const char* name : {"blk.1.attn_output.weight", "blk.4.ffn_up_exps.weight", "blk.4.ffn_gate_inp.weight"}) {
            const Tensor& tensor = reference->get(name);
            const uint64_t expert = tensor.experts() - 1;
            for (uint64_t r = 0; r < tensor.rows(); ++r) {
                ASSERT_EQ(row_of(*reference, name, r, expert), row_of(*other, name, r, expert)) << name << " " << r;
            }
        }
    }
}

TEST_F(SynthTest, row_scales_and_router_values_are_held_by_bf16) {
    const auto checkpoint = Checkpoint::open({.path = write("m", {.type = TensorType::kF32, .outliers = 16})});
    for (const char* name : {"blk.2.ffn_gate_inp.weight", "blk.2.attn_output.weight", "blk.2.attn_v.weight"}) {
        for (uint64_t r = 0; r < checkpoint->get(name).rows(); ++r) {
            for (const float v : row_of(*checkpoint, name, r)) ASSERT_EQ(bf16_to_float(float_to_bf16(v)), v) << name;
        }
    }
}

TEST_F(SynthTest, the_embedding_has_unit_scale_and_the_outliers_asked_for) {
    constexpr uint32_t kOutliers = 24;
    const auto checkpoint = Checkpoint::open({.path = write("m", {.type = TensorType::kF32, .outliers = kOutliers})});
    const Tensor& embedding = checkpoint->get("token_embd.weight");
    std::vector<std::vector<float>> channels(embedding.cols());
    for (uint64_t r = 0; r < embedding.rows(); ++r) {
        const std::vector<float> row = row_of(*checkpoint, "token_embd.weight", r);
        for (size_t c = 0; c < row.size(); ++c) channels[c].push_back(row[c]);
    }
    uint32_t outliers = 0;
    for (const auto& channel : channels) {
        const double size = rms(channel);
        if (size > 10) {
            ++outliers;
            EXPECT_GT(size, 18);
            EXPECT_LT(size, 55);
        } else {
            EXPECT_NEAR(size, 1, 0.1);
        }
    }
    EXPECT_EQ(outliers, kOutliers);
}

TEST_F(SynthTest, the_maple_keys_describe_the_tensors) {
    const auto checkpoint = Checkpoint::open({.path = write("m", {})});
    const auto& meta = checkpoint->metadata();
    EXPECT_EQ(meta.get_string("general.architecture"), "maple");
    EXPECT_EQ(meta.get_ints("maple.attention.sliding_window_pattern"), (std::vector<int64_t>{1, 1, 1, 0, 1, 1, 1, 0}));
    EXPECT_EQ(meta.get_uint("maple.rope.dimension_count"), 64u);
    EXPECT_EQ(meta.get_float("maple.swiglu_clamp_exp"), 7.0);
    EXPECT_EQ(checkpoint->get("blk.7.ffn_down_exps.weight").shape, (std::vector<uint64_t>{256, 512, 64}));
    EXPECT_EQ(checkpoint->get("token_embd.weight").type, TensorType::kQ4_K);
    const auto& tokens = meta.get_strings("tokenizer.ggml.tokens");
    ASSERT_EQ(tokens.size(), meta.get_uint("maple.vocab_size"));
    EXPECT_EQ(tokens[meta.get_uint("tokenizer.ggml.eos_token_id")], "<|im_end|>");
    EXPECT_EQ(meta.get_ints("tokenizer.ggml.token_type").size(), tokens.size());
}

TEST_F(SynthTest, llama_tiny_comes_in_its_four_types) {
    for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_1}) {
        const auto checkpoint = Checkpoint::open({.path = write("l", {.type = type}, "llama-tiny")});
        EXPECT_EQ(checkpoint->get("blk.0.ffn_down.weight").type, type);
        EXPECT_NEAR(rms(row_of(*checkpoint, "blk.0.ffn_down.weight", 0)) * std::sqrt(768.0), 0.7, 0.1);
    }
}

TEST_F(SynthTest, wrong_options_are_refused_and_a_cancelled_job_leaves_nothing) {
    const auto code = [&](std::string_view preset, const Options& options, const Progress& progress = {}) {
        try {
            write_model(preset, options, (folder_ / "x").string(), progress);
        } catch (const Error& error) {
            return error.code();
        }
        ADD_FAILURE() << "no error";
        return ErrorCode::kInternal;
    };
    EXPECT_EQ(code("maple-huge", {}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code("maple-tiny", {.type = TensorType::kQ4_1}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code("llama-tiny", {.type = TensorType::kTQ2_0}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code("maple-tiny", {.outliers = 65}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code("maple-wide", {.tokenizer = (folder_ / "missing.json").string()}), ErrorCode::kIo);
    EXPECT_EQ(code("maple-tiny", {}, [](uint64_t, uint64_t) { return false; }), ErrorCode::kCancelled);
    EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace samara::synth
