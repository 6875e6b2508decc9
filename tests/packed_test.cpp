#include "src/formats/packed.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "src/formats/crc32c.hpp"
#include "src/formats/gguf_writer.hpp"
#include "src/formats/packed_keys.hpp"
#include "src/platform/half.hpp"
#include "src/platform/sha256.hpp"

namespace samara::formats {
namespace {

using kernels::Layout;
using kernels::Matrix;

/// A checkpoint in memory.
class FakeCheckpoint : public Checkpoint {
  public:
    explicit FakeCheckpoint(std::string file = "fake.gguf") : metadata_(std::move(file)) {
        metadata_.set("general.architecture", std::string("maple"));
        metadata_.set("maple.embedding_length", uint32_t{256});
        metadata_.set("maple.attention.head_count", uint32_t{4});
        metadata_.set("maple.attention.head_count_kv", uint32_t{2});
        metadata_.set("maple.attention.key_length", uint32_t{64});
        metadata_.set("maple.attention.value_length", uint32_t{64});
        metadata_.set("split.count", uint16_t{1});
    }

    const Metadata& metadata() const override { return metadata_; }
    const std::vector<Tensor>& tensors() const override { return tensors_; }
    std::string format() const override { return "fake"; }
    uint64_t file_bytes() const override { return 0; }
    void drop(std::span<const std::byte>) const override {}

    Metadata& meta() { return metadata_; }
    std::vector<std::byte>& bytes_of(size_t tensor) { return data_[tensor]; }

    Tensor& add(const std::string& name, TensorType type, std::vector<uint64_t> shape) {
        Tensor tensor;
        tensor.name = name;
        tensor.type = type;
        tensor.shape = std::move(shape);
        const TypeTraits& traits = *type_traits(type);
        data_.emplace_back(tensor.elements() / traits.block_weights * traits.block_bytes);
        tensor.data = data_.back();
        tensors_.push_back(std::move(tensor));
        fill(tensors_.back(), data_.back());
        return tensors_.back();
    }

    /// BF16 numbers for the scales or biases of a MLX tensor.
    std::span<const std::byte> numbers(size_t count, const std::function<float(size_t)>& value) {
        auto& bytes = data_.emplace_back(2 * count);
        for (size_t i = 0; i < count; ++i) {
            const uint16_t bits = float_to_bf16(value(i));
            std::memcpy(&bytes[2 * i], &bits, 2);
        }
        return bytes;
    }

  private:
    /// Random codes under sane scales. Float values are no ternary rows; TQ2_0 has one scale a tensor.
    void fill(const Tensor& tensor, std::vector<std::byte>& bytes) {
        for (std::byte& b : bytes) b = static_cast<std::byte>(random_());
        const uint32_t block = type_traits(tensor.type)->block_bytes;
        const auto half = [&](size_t at, float value) {
            const uint16_t bits = float_to_half(value);
            for (size_t i = at; i + 2 <= bytes.size(); i += block) std::memcpy(&bytes[i], &bits, 2);
        };
        switch (tensor.type) {
            case TensorType::kTQ2_0:
                for (std::byte& b : bytes) b &= std::byte{0xaa};  // codes 0 and 2
                return half(64, 0.0625f);
            case TensorType::kQ8_0:
                return half(0, 0.01f);
            case TensorType::kQ4_K:
                return half(0, 0.01f), half(2, 0.02f);
            case TensorType::kMlx2Row:
                for (std::byte& b : bytes) b &= std::byte{0xaa};
                return;
            case TensorType::kF32:
                for (size_t i = 0; i < bytes.size(); i += 4) {
                    const float value = static_cast<float>(random_() % 2000) / 1000.0f - 1.0f;
                    std::memcpy(&bytes[i], &value, 4);
                }
                return;
            case TensorType::kBF16:
                for (size_t i = 0; i < bytes.size(); i += 2) {
                    const uint16_t value = float_to_bf16(static_cast<float>(random_() % 2000) / 1000.0f - 1.0f);
                    std::memcpy(&bytes[i], &value, 2);
                }
                return;
            default:
                return;
        }
    }

    Metadata metadata_;
    std::vector<Tensor> tensors_;
    std::deque<std::vector<std::byte>> data_;
    std::mt19937 random_{1};
};

/// A folder that vanishes with the test.
struct Folder {
    std::string path;
    Folder() {
        std::string name = (std::filesystem::temp_directory_path() / "samara-packed-XXXXXX").string();
        path = ::mkdtemp(name.data());
    }
    ~Folder() { std::filesystem::remove_all(path); }
    Folder(const Folder&) = delete;
    std::string file(const std::string& name) const { return path + "/" + name; }
    size_t files() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path), {})); }
};

std::unique_ptr<Checkpoint> open(const std::string& path) {
    Source source;
    source.path = path;
    return Checkpoint::open(source);
}

/// A small model with everything that a packed file treats apart.
std::unique_ptr<FakeCheckpoint> small_model() {
    auto model = std::make_unique<FakeCheckpoint>();
    model->add("token_embd.weight", TensorType::kQ8_0, {256, 40});
    model->add("output_norm.weight", TensorType::kBF16, {256});
    model->add("output.weight", TensorType::kQ4_K, {256, 40});
    model->add("blk.0.attn_qkv.weight", TensorType::kTQ2_0, {256, 512});
    model->add("blk.0.ffn_gate_inp.weight", TensorType::kF32, {256, 3});
    model->add("blk.0.ffn_gate_up_exps.weight", TensorType::kTQ2_0, {256, 256, 3});
    model->add("blk.0.ffn_down_exps.weight", TensorType::kTQ2_0, {256, 256, 3});
    return model;
}

uint32_t bits_without_zero_sign(float x) { return x == 0 ? 0 : std::bit_cast<uint32_t>(x); }

void expect_same_weights(const Slice& slice, const Matrix& m) {
    ASSERT_EQ(static_cast<uint64_t>(m.rows), slice.rows);
    ASSERT_EQ(static_cast<uint64_t>(m.cols), slice.tensor->cols());
    std::vector<float> expected(slice.tensor->cols()), found(slice.tensor->cols());
    for (uint64_t row = 0; row < slice.rows; ++row) {
        dequantise_row(*slice.tensor, slice.expert, slice.row_begin + row, expected.data());
        dequantise_matrix_row(m, static_cast<int>(row), found.data());
        for (size_t c = 0; c < found.size(); ++c) {
            ASSERT_EQ(bits_without_zero_sign(expected[c]), bits_without_zero_sign(found[c]))
                << slice.tensor->name << " row " << row << " column " << c;
        }
    }
}

void expect_matrix(const Checkpoint& packed, const Checkpoint& source, const std::string& name) {
    SCOPED_TRACE(name);
    expect_same_weights(*find_slice(source, name), packed_matrix(packed, name));
}

void expect_experts(const Checkpoint& packed, const Checkpoint& source, int layer) {
    const PackedExperts experts = packed_experts(packed, layer);
    const std::string prefix = "blk." + std::to_string(layer) + ".ffn_";
    for (int e = 0; e < experts.count; ++e) {
        const std::byte* record = experts.data + static_cast<uint64_t>(e) * experts.layout.bytes;
        const auto expect_part = [&](const char* part, Matrix m, uint64_t offset) {
            m.data = record + offset;
            expect_same_weights(*find_slice(source, prefix + part + "_exps.weight", static_cast<uint64_t>(e)), m);
        };
        expect_part("gate", experts.layout.gate, experts.layout.gate_offset);
        expect_part("up", experts.layout.up, experts.layout.up_offset);
        expect_part("down", experts.layout.down, experts.layout.down_offset);
        uint32_t stored = 0;
        std::memcpy(&stored, record + experts.layout.bytes - 4, 4);
        EXPECT_EQ(crc32c({record, experts.layout.bytes - 4}), stored);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(record) % 4096, 0u);
    }
}

template <typename Action>
void expect_error(ErrorCode code, const std::string& part, const Action& action) {
    try {
        action();
        ADD_FAILURE() << "no error; expected one with: " << part;
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
}

TEST(Packed, keeps_every_weight_and_the_metadata) {
    const Folder folder;
    const auto source = small_model();
    const std::string path = folder.file("packed.gguf");
    const PackReport report = pack(*source, path, Ternarise::kLossless, {});
    EXPECT_EQ(report.ternary_matrices, 12u);  // q, k, v and three matrices of three experts
    EXPECT_EQ(report.other_matrices, 2u);     // head and router
    EXPECT_EQ(report.output_bytes, std::filesystem::file_size(path));
    EXPECT_EQ(folder.files(), 1u);

    const auto packed = open(path);
    ASSERT_TRUE(is_packed(*packed));
    EXPECT_FALSE(is_packed(*source));
    EXPECT_EQ(packed->metadata().get_uint("maple.attention.head_count"), 4u);
    EXPECT_FALSE(packed->metadata().has("split.count"));
    for (const char* name : {"output.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight",
                             "blk.0.ffn_gate_inp.weight"}) {
        expect_matrix(*packed, *source, name);
    }
    expect_experts(*packed, *source, 0);
    EXPECT_EQ(packed_matrix(*packed, "output.weight").layout, Layout::kNibbleK);
    EXPECT_EQ(packed_matrix(*packed, "blk.0.attn_v.weight").layout, Layout::kTernary);
    const Tensor& embedding = packed->get("token_embd.weight");
    EXPECT_EQ(embedding.type, TensorType::kQ8_0);
    EXPECT_TRUE(std::ranges::equal(embedding.data, source->get("token_embd.weight").data));
    EXPECT_EQ(packed->get("output_norm.weight").type, TensorType::kF32);
    EXPECT_TRUE(verify_packed(*packed, {}).empty());
}

std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(Packed, is_the_same_file_every_time) {
    const Folder folder;
    pack(*small_model(), folder.file("a"), Ternarise::kLossless, {});
    pack(*small_model(), folder.file("b"), Ternarise::kLossless, {});
    EXPECT_TRUE(read(folder.file("a")) == read(folder.file("b")));
}

TEST(Packed, holds_dense_ternary_weights_and_a_split_head) {
    const Folder folder;
    const auto source = small_model();
    pack(*source, folder.file("packed.gguf"), Ternarise::kLossless, {}, HeadLayout::kSplit, TernaryLayout::kDense);
    const auto packed = open(folder.file("packed.gguf"));
    for (const char* name : {"blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"}) {
        EXPECT_EQ(packed_matrix(*packed, name).layout, Layout::kTernaryDense);
        expect_matrix(*packed, *source, name);
    }
    EXPECT_EQ(packed_experts(*packed, 0).layout.down.layout, Layout::kTernaryDense);
    expect_experts(*packed, *source, 0);
    EXPECT_EQ(packed_matrix(*packed, "output.weight").layout, Layout::kNibbleKSplit);
    EXPECT_EQ(packed_matrix(*packed, "blk.0.ffn_gate_inp.weight").layout, Layout::kFloat32);
    EXPECT_TRUE(verify_packed(*packed, {}).empty());
}

TEST(Packed, says_how_each_kind_of_weight_lies) {
    const Folder folder;
    pack(*small_model(), folder.file("packed.gguf"), Ternarise::kLossless, {}, HeadLayout::kSplit,
         TernaryLayout::kDense);
    const auto packed = open(folder.file("packed.gguf"));
    const std::vector<PackedLayout> layouts = packed_layouts(*packed);
    const auto expect = [&](size_t i, const char* kind, Layout layout, uint64_t matrices, uint64_t weights) {
        ASSERT_LT(i, layouts.size());
        EXPECT_EQ(layouts[i].kind, kind);
        EXPECT_EQ(layouts[i].layout, layout) << kind;
        EXPECT_EQ(layouts[i].matrices, matrices) << kind;
        EXPECT_EQ(layouts[i].weights, weights) << kind;
    };
    expect(0, "attention", Layout::kTernaryDense, 3, 256u * 512u);
    expect(1, "router", Layout::kFloat32, 1, 256u * 3u);
    expect(2, "experts", Layout::kTernaryDense, 9, 9u * 128u * 256u + 3u * 128u * 256u);
    expect(3, "head", Layout::kNibbleKSplit, 1, 256u * 40u);
    EXPECT_EQ(layouts.size(), 4u);
    EXPECT_EQ(layouts[1].bytes, 4u * 256u * 3u);
}

TEST(Packed, anew_is_the_file_that_packing_the_source_so_gives) {
    const Folder folder;
    const auto source = small_model();
    struct Choice {
        HeadLayout head;
        TernaryLayout ternary;
    };
    const Choice choices[] = {{HeadLayout::kWhole, TernaryLayout::kTwoBit},
                              {HeadLayout::kWhole, TernaryLayout::kDense},
                              {HeadLayout::kSplit, TernaryLayout::kTwoBit},
                              {HeadLayout::kSplit, TernaryLayout::kDense}};
    const auto name = [&](size_t i) { return folder.file("packed" + std::to_string(i) + ".gguf"); };
    for (size_t i = 0; i < std::size(choices); ++i) {
        pack(*source, name(i), Ternarise::kLossless, {}, choices[i].head, choices[i].ternary);
    }
    for (size_t from = 0; from < std::size(choices); ++from) {
        const auto packed = open(name(from));
        for (size_t to = 0; to < std::size(choices); ++to) {
            const auto again = [&] {
                return pack(*packed, folder.file("again.gguf"), Ternarise::kLossless, {}, choices[to].head,
                            choices[to].ternary);
            };
            if (from == to) {
                expect_error(ErrorCode::kInvalidArgument, "packed file already", again);
                continue;
            }
            const PackReport report = again();
            EXPECT_EQ(report.ternary_matrices, 12u);
            EXPECT_EQ(report.other_matrices, 2u);
            EXPECT_TRUE(read(folder.file("again.gguf")) == read(name(to))) << from << " to " << to;
        }
    }
}

TEST(Packed, anew_keeps_a_head_that_is_the_embedding) {
    const Folder folder;
    for (const TensorType type : {TensorType::kBF16, TensorType::kQ8_0, TensorType::kMlx4Group}) {
        FakeCheckpoint source;
        Tensor& embedding = source.add("token_embd.weight", type, {256, 24});
        if (type == TensorType::kMlx4Group) {
            embedding.scales = source.numbers(96, [](size_t i) { return 0.01f * static_cast<float>(i); });
            embedding.biases = source.numbers(96, [](size_t i) { return -0.5f * static_cast<float>(i); });
        }
        source.add("blk.0.attn_output.weight", TensorType::kTQ2_0, {256, 48});
        pack(source, folder.file("plain.gguf"), Ternarise::kLossless, {});
        pack(source, folder.file("dense.gguf"), Ternarise::kLossless, {}, HeadLayout::kWhole, TernaryLayout::kDense);
        pack(*open(folder.file("dense.gguf")), folder.file("again.gguf"), Ternarise::kLossless, {});
        EXPECT_TRUE(read(folder.file("again.gguf")) == read(folder.file("plain.gguf")));
    }
}

TEST(Packed, anew_keeps_the_flash_index) {
    const Folder folder;
    FakeCheckpoint source;
    source.add("token_embd.weight", TensorType::kBF16, {256, 1000});
    source.add("output.weight", TensorType::kQ4_K, {256, 1000});
    source.add("blk.0.attn_output.weight", TensorType::kTQ2_0, {256, 48});
    source.meta().set("tokenizer.ggml.eos_token_id", uint32_t{700});
    const auto whole = HeadLayout::kWhole;
    pack(source, folder.file("plain.gguf"), Ternarise::kLossless, {}, whole, TernaryLayout::kTwoBit, true);
    pack(source, folder.file("dense.gguf"), Ternarise::kLossless, {}, HeadLayout::kSplit, TernaryLayout::kDense, true);
    pack(*open(folder.file("dense.gguf")), folder.file("again.gguf"), Ternarise::kLossless, {});
    EXPECT_TRUE(read(folder.file("again.gguf")) == read(folder.file("plain.gguf")));

    const auto packed = open(folder.file("dense.gguf"));
    EXPECT_TRUE(verify_packed(*packed, {}).empty());
    EXPECT_EQ(packed->metadata().get_uint(packed_keys::kFlashAlways), 1u);
    const Matrix rows = packed_matrix(*packed, "flash.rows"), head = packed_matrix(*packed, "output.weight");
    EXPECT_EQ(rows.layout, Layout::kNibbleK);
    EXPECT_EQ(head.layout, Layout::kNibbleKSplit);
    EXPECT_EQ(packed_matrix(*packed, "flash.centroids").rows, 8);
    const auto order = packed->get("samara.flash.order").data;
    std::vector<float> row(256), expected(256);
    for (int r = 0; r < 1000; ++r) {
        int32_t id = 0;
        std::memcpy(&id, &order[4 * static_cast<size_t>(r)], 4);
        if (r == 127) {
            EXPECT_EQ(id, 700) << "the first cluster holds the control token after the lowest ids";
        }
        dequantise_matrix_row(rows, r, row.data());
        dequantise_matrix_row(head, id, expected.data());
        ASSERT_EQ(row, expected) << "row " << r;
    }
    expect_error(ErrorCode::kInvalidArgument, "make the flash index from the model that it was packed from", [&] {
        pack(*packed, folder.file("more.gguf"), Ternarise::kLossless, {}, whole, TernaryLayout::kTwoBit, true);
    });
}

TEST(Packed, anew_leaves_nothing_behind_when_cancelled_at_any_step) {
    const Folder folder;
    pack(*small_model(), folder.file("dense.gguf"), Ternarise::kLossless, {}, HeadLayout::kWhole,
         TernaryLayout::kDense);
    const auto dense = open(folder.file("dense.gguf"));
    int steps = 0;
    pack(*dense, folder.file("whole.gguf"), Ternarise::kLossless, [&](uint64_t done, uint64_t total) {
        EXPECT_LE(done, total);
        return ++steps > 0;
    });
    ASSERT_GT(steps, 10);
    for (int stop = 1; stop <= steps; ++stop) {
        int step = 0;
        expect_error(ErrorCode::kCancelled, "cancelled", [&] {
            pack(*dense, folder.file("again.gguf"), Ternarise::kLossless,
                 [&](uint64_t, uint64_t) { return ++step < stop; });
        });
        EXPECT_EQ(folder.files(), 2u) << "after step " << stop;
    }
}

TEST(Packed, anew_refuses_what_it_cannot_keep) {
    const Folder folder;
    const auto source = small_model();
    source->bytes_of(3)[0] = std::byte{0xff};  // a damaged model: code 3 in the first row of Q
    const std::string path = folder.file("packed.gguf");
    EXPECT_GT(pack(*source, path, Ternarise::kLossless, {}).code3, 0u);
    const auto packed = open(path);
    const auto again = [&](const Checkpoint& from, Ternarise ternarise) {
        pack(from, folder.file("again.gguf"), ternarise, {}, HeadLayout::kWhole, TernaryLayout::kDense);
    };
    expect_error(ErrorCode::kFormat, "packed.gguf: tensor 'samara.blk.0.attn_q.weight', one of the rows from 0 on",
                 [&] { again(*packed, Ternarise::kLossless); });
    expect_error(ErrorCode::kInvalidArgument, "the model that it was packed from",
                 [&] { again(*packed, Ternarise::kForce); });

    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-20000, std::ios::end);
    file.put('?');
    file.close();
    expect_error(ErrorCode::kFormat, "'samara.blk.0.experts' is damaged",
                 [&] { again(*open(path), Ternarise::kLossless); });
    EXPECT_EQ(folder.files(), 1u);
}

TEST(Packed, writes_a_large_matrix_in_pieces_as_repack_writes_it_whole) {
    const Folder folder;
    FakeCheckpoint source;
    source.add("output.weight", TensorType::kQ8_0, {1024, 8200});
    source.add("token_embd.weight", TensorType::kBF16, {8, 8});
    pack(source, folder.file("packed.gguf"), Ternarise::kLossless, {});
    const auto packed = open(folder.file("packed.gguf"));
    const Matrix found = packed_matrix(*packed, "output.weight");
    const Slice slice{.tensor = &source.tensors()[0], .rows = 8200};
    const Matrix layout = choose_layout(slice, Role::kHead);
    std::vector<std::byte> whole(static_cast<size_t>(kernels::matrix_bytes(layout)));
    repack(slice, layout, whole);
    EXPECT_EQ(std::memcmp(whole.data(), found.data, whole.size()), 0);
}

TEST(Packed, holds_mlx_models) {
    const Folder folder;
    FakeCheckpoint source;
    for (const char* name : {"token_embd.weight", "output.weight"}) {
        Tensor& tensor = source.add(name, TensorType::kMlx4Group, {128, 33});
        tensor.scales = source.numbers(66, [](size_t i) { return 0.01f * static_cast<float>(i); });
        tensor.biases = source.numbers(66, [](size_t i) { return -0.5f * static_cast<float>(i); });
    }
    for (const char* part : {"gate", "up", "down"}) {
        Tensor& tensor =
            source.add(std::string("blk.2.ffn_") + part + "_exps.weight", TensorType::kMlx2Row, {64, 64, 2});
        tensor.scales = source.numbers(128, [](size_t i) { return 0.25f * static_cast<float>(i); });
    }
    pack(source, folder.file("packed.gguf"), Ternarise::kLossless, {});
    const auto packed = open(folder.file("packed.gguf"));
    EXPECT_EQ(packed->find("token_embd.weight"), nullptr);
    EXPECT_EQ(packed_matrix(*packed, "token_embd.weight").layout, Layout::kNibble);
    expect_matrix(*packed, source, "token_embd.weight");
    expect_matrix(*packed, source, "output.weight");
    expect_experts(*packed, source, 2);
}

TEST(Packed, holds_experts_that_were_stored_one_by_one) {
    const Folder folder;
    FakeCheckpoint source;
    source.add("token_embd.weight", TensorType::kBF16, {32, 8});
    for (const char* part : {"gate", "up", "down"}) {
        Tensor& tensor = source.add(std::string("blk.0.ffn_") + part + "_exps.weight", TensorType::kBF16, {32, 32, 3});
        for (size_t e = 0; e < 3; ++e) tensor.pieces.push_back(tensor.data.subspan(e * 2048, 2048));
        tensor.data = {};
    }
    pack(source, folder.file("packed.gguf"), Ternarise::kLossless, {});
    const auto packed = open(folder.file("packed.gguf"));
    EXPECT_EQ(packed_experts(*packed, 0).layout.up.layout, Layout::kBfloat16);
    expect_experts(*packed, source, 0);
}

TEST(Packed, stores_a_tied_head_once_when_it_is_floats_and_packed_when_not) {
    const Folder folder;
    for (const TensorType type : {TensorType::kBF16, TensorType::kQ8_0}) {
        FakeCheckpoint source;
        source.add("token_embd.weight", type, {64, 24});
        pack(source, folder.file("packed.gguf"), Ternarise::kLossless, {});
        const auto packed = open(folder.file("packed.gguf"));
        EXPECT_EQ(packed->tensors().size(), type == TensorType::kBF16 ? 1u : 2u);
        expect_same_weights({.tensor = &source.tensors()[0], .rows = 24}, packed_matrix(*packed, "output.weight"));
    }
}

TEST(Packed, makes_everything_ternary_by_force_and_reports_the_error) {
    const Folder folder;
    FakeCheckpoint source;
    source.add("token_embd.weight", TensorType::kBF16, {64, 24});
    source.add("blk.0.attn_output.weight", TensorType::kBF16, {64, 64});
    const PackReport kept = pack(source, folder.file("kept.gguf"), Ternarise::kLossless, {});
    EXPECT_EQ(kept.ternary_matrices, 0u);
    EXPECT_EQ(kept.ternary_nrmse, 0.0);
    const PackReport forced = pack(source, folder.file("forced.gguf"), Ternarise::kForce, {});
    EXPECT_EQ(forced.ternary_matrices, 1u);
    const auto packed = open(folder.file("forced.gguf"));
    EXPECT_EQ(packed->metadata().get_string("samara.packed.ternarise"), "forced");
    const Matrix m = packed_matrix(*packed, "blk.0.attn_output.weight");
    double error = 0, norm = 0;
    std::vector<float> expected(64), found(64);
    for (int row = 0; row < 64; ++row) {
        dequantise_row(source.tensors()[1], 0, static_cast<uint64_t>(row), expected.data());
        dequantise_matrix_row(m, row, found.data());
        for (size_t c = 0; c < 64; ++c) {
            error += std::pow(static_cast<double>(expected[c]) - found[c], 2);
            norm += std::pow(static_cast<double>(expected[c]), 2);
        }
    }
    EXPECT_NEAR(forced.ternary_nrmse, std::sqrt(error / norm), 1e-9);
}

TEST(Packed, leaves_nothing_behind_when_cancelled_at_any_step) {
    const Folder folder;
    const auto source = small_model();
    int steps = 0;
    pack(*source, folder.file("whole.gguf"), Ternarise::kLossless, [&](uint64_t done, uint64_t total) {
        EXPECT_LE(done, total);
        return ++steps > 0;
    });
    ASSERT_GT(steps, 10);
    for (int stop = 1; stop <= steps; ++stop) {
        int step = 0;
        expect_error(ErrorCode::kCancelled, "cancelled", [&] {
            pack(*source, folder.file("packed.gguf"), Ternarise::kLossless,
                 [&](uint64_t, uint64_t) { return ++step < stop; });
        });
        EXPECT_EQ(folder.files(), 1u) << "after step " << stop;
    }
}

TEST(Packed, leaves_an_older_file_alone_when_it_fails) {
    const Folder folder;
    const auto source = small_model();
    const uint16_t infinity = 0x7c00;
    std::memcpy(&source->bytes_of(6)[64], &infinity, 2);
    std::ofstream(folder.file("packed.gguf")) << "older";
    expect_error(ErrorCode::kFormat, "'blk.0.ffn_down_exps.weight', expert 0, row 0",
                 [&] { pack(*source, folder.file("packed.gguf"), Ternarise::kLossless, {}); });
    EXPECT_EQ(folder.files(), 1u);
    EXPECT_EQ(std::filesystem::file_size(folder.file("packed.gguf")), 5u);
}

TEST(Packed, refuses_to_write_over_its_own_source_under_any_name) {
    const Folder folder;
    const std::string path = folder.file("model.gguf");
    {
        GgufWriter writer(path);
        writer.set("general.architecture", std::string("maple"));
        writer.declare("token_embd.weight", TensorType::kF32, {4, 4});
        writer.begin();
        writer.write("token_embd.weight", std::vector<std::byte>(64));
        writer.finish();
    }
    std::filesystem::create_hard_link(path, folder.file("link.gguf"));
    std::filesystem::create_symlink(path, folder.file("symlink.gguf"));
    const auto source = open(path);
    for (const char* name : {"model.gguf", "link.gguf", "symlink.gguf"}) {
        expect_error(ErrorCode::kInvalidArgument, "another name",
                     [&] { pack(*source, folder.file(name), Ternarise::kLossless, {}); });
    }
    EXPECT_EQ(folder.files(), 3u);
}

TEST(Packed, says_which_folder_cannot_be_written) {
    expect_error(ErrorCode::kIo, "/no/such/folder",
                 [] { pack(*small_model(), "/no/such/folder/packed.gguf", Ternarise::kLossless, {}); });
}

TEST(Packed, refuses_fused_rows_that_do_not_match_the_head_counts) {
    const Folder folder;
    const auto source = small_model();
    source->meta().set("maple.attention.head_count_kv", uint32_t{3});
    expect_error(ErrorCode::kFormat, "'blk.0.attn_qkv.weight' has 512 rows, 640",
                 [&] { pack(*source, folder.file("packed.gguf"), Ternarise::kLossless, {}); });
}

TEST(Packed, names_each_damaged_section_and_expert) {
    const Folder folder;
    const std::string path = folder.file("packed.gguf");
    pack(*small_model(), path, Ternarise::kLossless, {});
    uint64_t offset = 0;
    {
        const auto packed = open(path);
        const auto bytes = packed_experts(*packed, 0).layout.bytes;
        const auto size = std::filesystem::file_size(path);
        offset = size - 2 * bytes + 100;  // expert 1 of 3, at the end of the file
    }
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(offset));
    const char flipped = static_cast<char>(file.get() ^ 4);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(flipped);
    file.close();
    const auto packed = open(path);
    const std::vector<std::string> messages = verify_packed(*packed, {});
    ASSERT_EQ(messages.size(), 2u);
    EXPECT_NE(messages[0].find("'samara.blk.0.experts' is damaged: SHA-256"), std::string::npos) << messages[0];
    EXPECT_NE(messages[1].find("CRC32C of expert 1"), std::string::npos) << messages[1];
    expect_error(ErrorCode::kCancelled, "cancelled",
                 [&] { verify_packed(*packed, [](uint64_t, uint64_t) { return false; }); });
    expect_error(ErrorCode::kInvalidArgument, "no packed file", [] { verify_packed(*small_model(), {}); });
}

/// A packed file's metadata over its tensors, to be changed by a test.
class Tampered : public Checkpoint {
  public:
    explicit Tampered(std::unique_ptr<Checkpoint> packed) : packed_(std::move(packed)), metadata_("tampered.gguf") {
        for (const auto& [key, value] : packed_->metadata().entries()) metadata_.set(key, value);
        tensors_ = packed_->tensors();
    }
    const Metadata& metadata() const override { return metadata_; }
    const std::vector<Tensor>& tensors() const override { return tensors_; }
    std::string format() const override { return packed_->format(); }
    uint64_t file_bytes() const override { return packed_->file_bytes(); }
    void drop(std::span<const std::byte>) const override {}

    void set_number(std::string_view key, size_t index, uint64_t value) {
        auto array = std::make_shared<MetaArray>();
        array->gguf_type = 10;
        std::vector<uint64_t> items;
        for (const int64_t old : metadata_.get_ints(key)) items.push_back(static_cast<uint64_t>(old));
        items.at(index) = value;
        array->items = std::move(items);
        metadata_.set(std::string(key), std::shared_ptr<const MetaArray>(std::move(array)));
    }
    Metadata& meta() { return metadata_; }
    std::vector<Tensor>& tensors() { return tensors_; }

  private:
    std::unique_ptr<Checkpoint> packed_;
    Metadata metadata_;
    std::vector<Tensor> tensors_;
};

TEST(Packed, refuses_versions_it_does_not_know) {
    const Folder folder;
    pack(*small_model(), folder.file("packed.gguf"), Ternarise::kLossless, {});
    for (const char* key : {"samara.packed.version", "samara.numerics.version"}) {
        Tampered tampered(open(folder.file("packed.gguf")));
        tampered.meta().set(key, uint32_t{1000});
        expect_error(ErrorCode::kUnsupported, "version 1000", [&] { is_packed(tampered); });
    }
}

TEST(Packed, refuses_every_number_that_does_not_fit_the_tensor) {
    const Folder folder;
    pack(*small_model(), folder.file("packed.gguf"), Ternarise::kLossless, {});
    const std::string first = "output.weight";
    {
        const Tampered untouched(open(folder.file("packed.gguf")));
        EXPECT_EQ(untouched.metadata().get_strings("samara.matrix.names")[0], first);
        EXPECT_NO_THROW(packed_matrix(untouched, first));
        EXPECT_NO_THROW(packed_experts(untouched, 0));
    }
    const uint64_t values[] = {3, 200, 1u << 28, uint64_t{1} << 40, UINT64_MAX >> 1};
    for (size_t index = 0; index < packed_keys::kShapeNumbers; ++index) {
        for (const uint64_t value : values) {
            if (index == 4 && value <= 256) continue;  // columns are padded to 256: the same size
            Tampered tampered(open(folder.file("packed.gguf")));
            tampered.set_number("samara.matrix.shapes", index, value);
            expect_error(ErrorCode::kFormat, "packed matrix 'output.weight'", [&] { packed_matrix(tampered, first); });
        }
    }
    for (size_t index = 1; index < packed_keys::kExpertNumbers; ++index) {
        for (const uint64_t value : values) {
            Tampered tampered(open(folder.file("packed.gguf")));
            if (static_cast<uint64_t>(tampered.metadata().get_ints("samara.experts.layouts")[index]) == value) continue;
            tampered.set_number("samara.experts.layouts", index, value);
            expect_error(ErrorCode::kFormat, "experts of layer 0", [&] { packed_experts(tampered, 0); });
        }
    }
}

TEST(Packed, refuses_tensors_of_another_type_size_or_alignment) {
    const Folder folder;
    pack(*small_model(), folder.file("packed.gguf"), Ternarise::kLossless, {});
    const auto change = [&](const std::string& name, const std::function<void(Tensor&)>& apply) {
        auto tampered = std::make_unique<Tampered>(open(folder.file("packed.gguf")));
        for (Tensor& tensor : tampered->tensors()) {
            if (tensor.name == name) apply(tensor);
        }
        return tampered;
    };
    for (const char* name : {"samara.output.weight", "samara.blk.0.experts"}) {
        const auto read = [&](const Checkpoint& c) {
            packed_matrix(c, "output.weight");
            packed_experts(c, 0);
        };
        const auto shorter = change(name, [](Tensor& t) { t.data = t.data.first(t.data.size() - 1); });
        expect_error(ErrorCode::kFormat, name, [&] { read(*shorter); });
        const auto other = change(name, [](Tensor& t) { t.type = TensorType::kF32; });
        expect_error(ErrorCode::kFormat, name, [&] { read(*other); });
        const auto missing = change(name, [](Tensor& t) { t.name = "gone"; });
        expect_error(ErrorCode::kFormat, name, [&] { read(*missing); });
        const auto moved = change(name, [](Tensor& t) { t.data = {t.data.data() - 32, t.data.size()}; });
        expect_error(ErrorCode::kUnsupported, "multiple of 64", [&] { read(*moved); });
    }
}

TEST(ExpertLayout, of_the_20b_model_takes_49_pages_of_16_kib) {
    const Matrix inward{
        .layout = Layout::kTernary, .group = 0, .offset = 0, .rows = 512, .cols = 2048, .data = nullptr};
    const Matrix outward{
        .layout = Layout::kTernary, .group = 0, .offset = 0, .rows = 2048, .cols = 512, .data = nullptr};
    const ExpertLayout layout = expert_layout(inward, inward, outward);
    EXPECT_EQ(layout.up_offset, 264192u);
    EXPECT_EQ(layout.down_offset, 528384u);
    EXPECT_EQ(layout.bytes, 49u * 16384u);
}

TEST(Crc32c, equals_the_published_check_value_and_its_portable_form) {
    const std::string digits = "123456789";
    EXPECT_EQ(crc32c(std::as_bytes(std::span(digits))), 0xe3069283u);
    std::vector<std::byte> bytes(20000);
    std::mt19937 random(2);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    for (const size_t size : {0, 1, 7, 8, 3071, 3072, 3073, 6150, 9999, 20000}) {
        const auto part = std::span(bytes).first(size);
        EXPECT_EQ(crc32c(part), crc32c_portable(part)) << size;
        const auto head = part.first(size / 3);
        EXPECT_EQ(crc32c(part.subspan(size / 3), crc32c(head)), crc32c(part)) << size;
    }
}

TEST(Sha256, equals_the_published_value_in_one_piece_or_several) {
    const std::string text = "abc";
    const std::string expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    EXPECT_EQ(platform::sha256(std::as_bytes(std::span(text))), expected);
    platform::Sha256 hash;
    for (const char& c : text) hash.update(std::as_bytes(std::span(&c, 1)));
    EXPECT_EQ(hash.finish(), expected);
    hash.update(std::as_bytes(std::span(text)));
    EXPECT_EQ(hash.finish(), expected);  // starts anew after finish
}

}  // namespace
}  // namespace samara::formats
