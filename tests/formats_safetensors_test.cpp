// Safetensors of Maple under GGUF names. Files are made by hand; tests/damaged covers what must be refused.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "src/formats/checkpoint.hpp"
#include "src/formats/maple_names.hpp"
#include "src/formats/safetensors_reader.hpp"
#include "src/platform/half.hpp"

namespace samara::formats {
namespace {

constexpr const char* kConfig = R"({"model_type": "maple", "num_hidden_layers": 2, "hidden_size": 128,
    "intermediate_size": 4096, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
    "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"], "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 256,
    "rms_norm_eps": 1e-06, "vocab_size": 3, "max_position_embeddings": 99, "swiglu_limit": null,
    "eos_token_id": [2, 1]})";

/// Collects tensors and gives the file's bytes.
class Shard {
  public:
    Shard& add(const std::string& name, const std::string& dtype, const std::vector<uint64_t>& shape,
               const std::string& data) {
        header_ += header_.empty() ? "{" : ",";
        header_ += "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[";
        for (size_t i = 0; i < shape.size(); ++i) header_ += (i == 0 ? "" : ",") + std::to_string(shape[i]);
        header_ += "],\"data_offsets\":[" + std::to_string(data_.size()) + ",";
        data_ += data;
        header_ += std::to_string(data_.size()) + "]}";
        return *this;
    }
    std::string bytes() const {
        const std::string header = header_ + "}";
        const uint64_t length = header.size();
        return std::string(reinterpret_cast<const char*>(&length), 8) + header + data_;
    }

  private:
    std::string header_;
    std::string data_;
};

std::string bf16s(const std::vector<float>& values) {
    std::string out;
    for (const float value : values) {
        const uint16_t bits = float_to_bf16(value);
        out.append(reinterpret_cast<const char*>(&bits), 2);
    }
    return out;
}

class SafetensorsTest : public testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = (std::filesystem::temp_directory_path() / "samara-XXXXXX").string();
        folder_ = mkdtemp(pattern.data());
        write("config.json", kConfig);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    void write(const std::string& name, const std::string& data) {
        std::ofstream(folder_ / name, std::ios::binary) << data;
    }
    std::unique_ptr<Checkpoint> open() { return Checkpoint::open({.path = folder_.string()}); }

    std::filesystem::path folder_;
};

std::vector<float> row_of(const Tensor& tensor, uint64_t expert, uint64_t row) {
    std::vector<float> out(tensor.cols());
    dequantise_row(tensor, expert, row, out.data());
    return out;
}

TEST_F(SafetensorsTest, the_config_becomes_gguf_keys) {
    write("model.safetensors", Shard().add("model.norm.weight", "BF16", {128}, std::string(256, '\0')).bytes());
    const auto checkpoint = open();
    const Metadata& m = checkpoint->metadata();
    EXPECT_EQ(m.get_string("general.architecture"), "maple");
    EXPECT_EQ(m.get_uint("maple.block_count"), 2u);
    EXPECT_EQ(m.get_uint("maple.context_length"), 99u);
    EXPECT_EQ(m.get_uint("maple.attention.key_length"), 64u);
    EXPECT_EQ(m.get_uint("maple.rope.dimension_count"), 32u);
    EXPECT_EQ(m.get_float("maple.rope.freq_base"), 10000.0);
    EXPECT_FLOAT_EQ(static_cast<float>(m.get_float("maple.attention.layer_norm_rms_epsilon")), 1e-6f);
    EXPECT_EQ(m.get_ints("maple.attention.sliding_window_pattern"), (std::vector<int64_t>{1, 0}));
    EXPECT_EQ(m.get_uint("maple.expert_feed_forward_length"), 256u);
    EXPECT_FALSE(m.has("maple.swiglu_clamp_exp"));
    EXPECT_EQ(m.get_uint("tokenizer.ggml.eos_token_id"), 2u);
    EXPECT_EQ(m.get_uint("tokenizer.ggml.eot_token_id"), 1u);
}

TEST_F(SafetensorsTest, mlx_rows_of_two_bit_codes_carry_their_row_alpha) {
    // Row 0: codes 0,1,2,3 in turn; row 1: all 2.
    std::string words;
    for (int i = 0; i < 32; ++i) words += static_cast<char>(0xe4);
    words += std::string(32, static_cast<char>(0xaa));
    write("model.safetensors", Shard()
                                   .add("model.layers.1.self_attn.k_proj.weight", "U32", {2, 8}, words)
                                   .add("model.layers.1.self_attn.k_proj.row_alpha", "BF16", {2}, bf16s({0.5f, -2.0f}))
                                   .add("lm_head_flash.anything", "U8", {1}, "x")
                                   .bytes());
    const auto checkpoint = open();
    EXPECT_EQ(checkpoint->format(), "safetensors (MLX 2-bit)");
    ASSERT_EQ(checkpoint->tensors().size(), 1u);
    const Tensor& k = checkpoint->get("blk.1.attn_k.weight");
    EXPECT_EQ(k.type, TensorType::kMlx2Row);
    EXPECT_EQ(k.shape, (std::vector<uint64_t>{128, 2}));
    const std::vector<float> first = row_of(k, 0, 0);
    for (size_t i = 0; i < 128; ++i) EXPECT_EQ(first[i], 0.5f * (static_cast<float>(i % 4) - 1.0f));
    EXPECT_EQ(row_of(k, 0, 1), std::vector<float>(128, -2.0f));
}

TEST_F(SafetensorsTest, mlx_stacked_experts_with_group_scales_are_read_expert_by_expert) {
    // ffn_down of 2 experts, 1 row of 256 columns: two groups of 128.
    const std::string words = std::string(64, static_cast<char>(0x55)) + std::string(64, static_cast<char>(0xaa));
    const std::string name = "model.layers.0.mlp.switch_mlp.down_proj.";
    write("model.safetensors", Shard()
                                   .add(name + "weight", "U32", {2, 1, 16}, words)
                                   .add(name + "scales", "BF16", {2, 1, 2}, bf16s({1, 2, 3, 4}))
                                   .add(name + "biases", "BF16", {2, 1, 2}, bf16s({-1, -2, -3, -4}))
                                   .bytes());
    const auto checkpoint = open();
    const Tensor& down = checkpoint->get("blk.0.ffn_down_exps.weight");
    EXPECT_EQ(down.type, TensorType::kMlx2Group);
    EXPECT_EQ(down.shape, (std::vector<uint64_t>{256, 1, 2}));
    EXPECT_EQ(row_of(down, 0, 0), std::vector<float>(256, 0.0f));
    std::vector<float> expected(128, 3.0f);
    expected.resize(256, 4.0f);
    EXPECT_EQ(row_of(down, 1, 0), expected);
}

TEST_F(SafetensorsTest, mlx_embeddings_have_four_bits_in_groups_of_64) {
    std::string words(3 * 64, '\0');
    for (size_t i = 0; i < 64; ++i) words[64 + i] = static_cast<char>(0x10 * (i % 8 * 2 + 1) | i % 8 * 2);
    std::vector<float> scales(6, 1.0f);
    scales[3] = 0.25f;
    std::vector<float> biases(6, 0.0f);
    biases[3] = -8.0f;
    write("model.safetensors", Shard()
                                   .add("model.word_embeddings.weight", "U32", {3, 16}, words)
                                   .add("model.word_embeddings.scales", "BF16", {3, 2}, bf16s(scales))
                                   .add("model.word_embeddings.biases", "BF16", {3, 2}, bf16s(biases))
                                   .bytes());
    const auto checkpoint = open();
    const Tensor& embedding = checkpoint->get("token_embd.weight");
    EXPECT_EQ(embedding.type, TensorType::kMlx4Group);
    const std::vector<float> row = row_of(embedding, 0, 1);
    for (size_t i = 0; i < 128; ++i) {
        const auto code = static_cast<float>(i % 16);
        EXPECT_EQ(row[i], i < 64 ? code : 0.25f * code - 8.0f) << i;
    }
}

TEST_F(SafetensorsTest, hugging_face_shards_give_experts_as_pieces) {
    const std::string expert = "model.layers.0.mlp.experts.";
    const auto values = [](float value) { return bf16s(std::vector<float>(2 * 128, value)); };
    write("b.safetensors", Shard().add(expert + "1.up_proj.weight", "BF16", {2, 128}, values(1.0f)).bytes());
    write("a.safetensors", Shard()
                               .add(expert + "0.up_proj.weight", "BF16", {2, 128}, values(-0.5f))
                               .add("model.norm.weight", "BF16", {128}, values(2.0f).substr(0, 256))
                               .bytes());
    write("model.safetensors.index.json", R"({"metadata": {"total_size": 1}, "weight_map": {
        "model.layers.0.mlp.experts.1.up_proj.weight": "b.safetensors",
        "model.layers.0.mlp.experts.0.up_proj.weight": "a.safetensors", "model.norm.weight": "a.safetensors"}})");
    write("tokenizer.json", "{\"version\": \"1.0\"}");
    write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "no"},
        {"template": "{{ yes }}", "name": "default"}]})");
    const auto checkpoint = open();
    EXPECT_EQ(checkpoint->format(), "safetensors (Hugging Face BF16)");
    const Tensor& up = checkpoint->get("blk.0.ffn_up_exps.weight");
    EXPECT_EQ(up.shape, (std::vector<uint64_t>{128, 2, 2}));
    ASSERT_EQ(up.pieces.size(), 2u);
    EXPECT_EQ(row_of(up, 0, 1), std::vector<float>(128, -0.5f));
    EXPECT_EQ(row_of(up, 1, 0), std::vector<float>(128, 1.0f));
    EXPECT_EQ(checkpoint->metadata().get_string("samara.tokenizer_json"), "{\"version\": \"1.0\"}");
    EXPECT_EQ(checkpoint->metadata().get_string("tokenizer.chat_template"), "{{ yes }}");
    write("chat_template.jinja", "{{ newer }}");
    EXPECT_EQ(open()->metadata().get_string("tokenizer.chat_template"), "{{ newer }}");
}

TEST(Safetensors, every_truncation_is_refused) {
    const std::string whole = Shard().add("a", "F32", {2}, "12345678").add("b", "I8", {3}, "abc").bytes();
    const auto bytes = std::as_bytes(std::span(whole));
    EXPECT_EQ(parse_safetensors(bytes, "f").size(), 2u);
    for (size_t length = 0; length < whole.size(); ++length) {
        EXPECT_THROW(parse_safetensors(bytes.first(length), "f"), Error) << length;
    }
}

}  // namespace
}  // namespace samara::formats
