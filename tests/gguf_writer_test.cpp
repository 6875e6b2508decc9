#include "src/formats/gguf_writer.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "src/formats/quantise.hpp"
#include "src/platform/half.hpp"

namespace samara::formats {
namespace {

namespace fs = std::filesystem;

// A folder of its own for every test, removed with everything in it.
class GgufWriterTest : public ::testing::Test {
  protected:
    GgufWriterTest() {
        std::string pattern = (fs::temp_directory_path() / "samara-writer-XXXXXX").string();
        folder_ = ::mkdtemp(pattern.data());
    }
    ~GgufWriterTest() override { fs::remove_all(folder_); }

    std::string path(const std::string& name = "model.gguf") const { return (folder_ / name).string(); }
    size_t files() const {
        return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
    }

    fs::path folder_;
};

std::vector<std::byte> counting_bytes(size_t n) {
    std::vector<std::byte> bytes(n);
    for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
    return bytes;
}

ErrorCode code_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.code();
    }
    ADD_FAILURE() << "no error";
    return ErrorCode::kInternal;
}

TEST_F(GgufWriterTest, metadata_and_tensors_come_back_as_written) {
    GgufWriter writer(path());
    writer.set("general.architecture", std::string("maple"));
    writer.set("a.u8", uint8_t{200});
    writer.set("a.i8", int8_t{-3});
    writer.set("a.u16", uint16_t{60000});
    writer.set("a.i16", int16_t{-30000});
    writer.set("a.u32", uint32_t{4000000000});
    writer.set("a.i32", int32_t{-2000000000});
    writer.set("a.u64", uint64_t{1} << 63);
    writer.set("a.i64", -(int64_t{1} << 62));
    writer.set("a.f32", 1.5f);
    writer.set("a.f64", 0.1);
    writer.set("a.bool", true);
    writer.set("a.bools", std::make_shared<const MetaArray>(MetaArray{7, std::vector<bool>{true, false, true}}));
    writer.set("a.texts", std::make_shared<const MetaArray>(MetaArray{8, std::vector<std::string>{"x", "", "é\n"}}));
    writer.set("a.floats", std::make_shared<const MetaArray>(MetaArray{6, std::vector<float>{0.5f, -2.0f}}));
    writer.declare("first", TensorType::kF32, {3});
    writer.declare("second", TensorType::kQ8_0, {64, 2, 3});
    writer.begin();
    const auto first = counting_bytes(12);
    const auto second = counting_bytes(34 * 2 * 2 * 3);
    writer.write("first", first);
    writer.write("second", std::span(second).first(100));
    writer.write("second", std::span(second).subspan(100));
    writer.finish();
    EXPECT_EQ(fs::file_size(path()), writer.file_bytes());

    const auto checkpoint = Checkpoint::open({.path = path()});
    const Metadata& meta = checkpoint->metadata();
    EXPECT_EQ(std::get<uint8_t>(*meta.find("a.u8")), 200);
    EXPECT_EQ(std::get<int8_t>(*meta.find("a.i8")), -3);
    EXPECT_EQ(std::get<uint16_t>(*meta.find("a.u16")), 60000);
    EXPECT_EQ(std::get<int16_t>(*meta.find("a.i16")), -30000);
    EXPECT_EQ(std::get<uint32_t>(*meta.find("a.u32")), 4000000000u);
    EXPECT_EQ(std::get<int32_t>(*meta.find("a.i32")), -2000000000);
    EXPECT_EQ(std::get<uint64_t>(*meta.find("a.u64")), uint64_t{1} << 63);
    EXPECT_EQ(std::get<int64_t>(*meta.find("a.i64")), -(int64_t{1} << 62));
    EXPECT_EQ(std::get<float>(*meta.find("a.f32")), 1.5f);
    EXPECT_EQ(std::get<double>(*meta.find("a.f64")), 0.1);
    EXPECT_TRUE(meta.get_bool("a.bool"));
    EXPECT_EQ(meta.get_ints("a.bools"), (std::vector<int64_t>{1, 0, 1}));
    EXPECT_EQ(meta.get_strings("a.texts"), (std::vector<std::string>{"x", "", "é\n"}));
    EXPECT_EQ(meta.get_floats("a.floats"), (std::vector<double>{0.5, -2.0}));
    const Tensor& tensor = checkpoint->get("second");
    EXPECT_EQ(tensor.type, TensorType::kQ8_0);
    EXPECT_EQ(tensor.shape, (std::vector<uint64_t>{64, 2, 3}));
    ASSERT_EQ(tensor.data.size(), second.size());
    EXPECT_EQ(std::memcmp(tensor.data.data(), second.data(), second.size()), 0);
    EXPECT_EQ(std::memcmp(checkpoint->get("first").data.data(), first.data(), first.size()), 0);
}

TEST_F(GgufWriterTest, tensors_start_at_multiples_of_the_alignment) {
    GgufWriter writer(path(), 16384);
    writer.declare("a", TensorType::kI8, {5});
    writer.declare("b", TensorType::kI8, {7});
    writer.begin();
    EXPECT_EQ(writer.tensor_offset("a") % 16384, 0u);
    EXPECT_EQ(writer.tensor_offset("b"), writer.tensor_offset("a") + 16384);
    writer.write("a", counting_bytes(5));
    writer.write("b", counting_bytes(7));
    writer.finish();
    EXPECT_EQ(Checkpoint::open({.path = path()})->metadata().get_uint("general.alignment"), 16384u);
}

TEST_F(GgufWriterTest, an_unfinished_file_leaves_nothing_behind_and_an_older_file_untouched) {
    std::ofstream(path()) << "older";
    {
        GgufWriter writer(path());
        writer.declare("a", TensorType::kF32, {4});
        writer.begin();
        writer.write("a", counting_bytes(8));
        EXPECT_EQ(files(), 2u);
        EXPECT_EQ(code_of([&] { writer.finish(); }), ErrorCode::kInternal);
    }
    EXPECT_EQ(files(), 1u);
    std::string text;
    std::ifstream(path()) >> text;
    EXPECT_EQ(text, "older");
}

TEST_F(GgufWriterTest, data_of_the_wrong_tensor_or_size_is_refused) {
    GgufWriter writer(path());
    writer.declare("a", TensorType::kF32, {4});
    writer.declare("b", TensorType::kF32, {4});
    writer.begin();
    EXPECT_EQ(code_of([&] { writer.write("b", counting_bytes(16)); }), ErrorCode::kInternal);
    EXPECT_EQ(code_of([&] { writer.write("a", counting_bytes(17)); }), ErrorCode::kInternal);
    writer.write("a", counting_bytes(8));
    EXPECT_EQ(code_of([&] { writer.write("b", counting_bytes(16)); }), ErrorCode::kInternal);
}

TEST_F(GgufWriterTest, impossible_declarations_are_refused) {
    GgufWriter writer(path());
    const auto declare = [&](TensorType type, std::vector<uint64_t> shape) {
        return code_of([&] { writer.declare("t", type, shape); });
    };
    EXPECT_EQ(declare(TensorType::kF32, {}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(declare(TensorType::kF32, {1, 1, 1, 1, 1}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(declare(TensorType::kF32, {4, 0}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(declare(TensorType::kQ8_0, {33}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(declare(TensorType::kF32, {uint64_t{1} << 40, uint64_t{1} << 40}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(declare(TensorType::kMlx2Row, {256}), ErrorCode::kInvalidArgument);
}

TEST_F(GgufWriterTest, a_value_is_replaced_in_place_only_by_one_of_its_size) {
    GgufWriter writer(path());
    writer.set("samara.hash", std::string(8, '0'));
    writer.declare("a", TensorType::kI8, {3});
    writer.begin();
    writer.write("a", counting_bytes(3));
    EXPECT_EQ(code_of([&] { writer.replace("samara.hash", std::string(9, 'x')); }), ErrorCode::kInternal);
    writer.replace("samara.hash", std::string("deadbeef"));
    writer.finish();
    EXPECT_EQ(Checkpoint::open({.path = path()})->metadata().get_string("samara.hash"), "deadbeef");
}

TEST_F(GgufWriterTest, a_folder_that_does_not_exist_and_a_full_disk_are_io_errors) {
    EXPECT_EQ(code_of([&] { GgufWriter writer(path("no/such/folder.gguf")); }), ErrorCode::kIo);
    EXPECT_EQ(code_of([&] {
                  GgufWriter writer(path());
                  writer.declare("a", TensorType::kI8, {uint64_t{1} << 50});
                  writer.begin();
              }),
              ErrorCode::kIo);
    EXPECT_EQ(files(), 0u);
}

// -- quantisers -------------------------------------------------------------------------------------------------------

// Quantises a wave with a slowly growing size and reads it back through dequantise_row; rms error over rms.
double error_of(TensorType type) {
    std::vector<float> weights(1024), back(1024);
    for (size_t i = 0; i < weights.size(); ++i) {
        const auto t = static_cast<double>(i);
        weights[i] = static_cast<float>(std::sin(t * 0.7) * std::sin(t * 12.9898) * (0.1 + t / 700));
    }
    std::vector<std::byte> bytes(quantised_bytes(type, weights.size()));
    quantise(type, weights, bytes);
    Tensor tensor;
    tensor.name = "t", tensor.type = type, tensor.shape = {weights.size()}, tensor.data = bytes;
    dequantise_row(tensor, 0, 0, back.data());
    double error = 0, norm = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
        error += std::pow(double{back[i]} - double{weights[i]}, 2);
        norm += std::pow(double{weights[i]}, 2);
    }
    return std::sqrt(error / norm);
}

TEST(QuantiseTest, every_type_decodes_close_to_its_source) {
    EXPECT_EQ(error_of(TensorType::kF32), 0);
    EXPECT_LT(error_of(TensorType::kF16), 3e-4);
    EXPECT_LT(error_of(TensorType::kBF16), 3e-3);
    EXPECT_LT(error_of(TensorType::kQ8_0), 6e-3);
    EXPECT_LT(error_of(TensorType::kQ4_1), 0.08);
    EXPECT_LT(error_of(TensorType::kQ4_K), 0.08);
}

TEST(QuantiseTest, blocks_of_zeros_decode_to_zeros) {
    const std::vector<float> zeros(256, 0.0f);
    for (const TensorType type : {TensorType::kQ8_0, TensorType::kQ4_1, TensorType::kQ4_K}) {
        std::vector<std::byte> bytes(quantised_bytes(type, zeros.size()));
        quantise(type, zeros, bytes);
        Tensor tensor;
        tensor.name = "t", tensor.type = type, tensor.shape = {zeros.size()}, tensor.data = bytes;
        std::vector<float> back(zeros.size(), 1.0f);
        dequantise_row(tensor, 0, 0, back.data());
        EXPECT_EQ(back, zeros);
    }
}

TEST(QuantiseTest, ternary_codes_come_back_exactly_in_both_types) {
    std::vector<uint8_t> codes(1024);
    uint32_t state = 12345;
    for (uint8_t& code : codes) {
        state = state * 1664525u + 1013904223u;
        code = static_cast<uint8_t>((state >> 24) % 3);
    }
    for (const TensorType type : {TensorType::kTQ1_0, TensorType::kTQ2_0}) {
        std::vector<std::byte> bytes(quantised_bytes(type, codes.size()));
        pack_ternary(type, codes, 0.0390625f, bytes);
        Tensor tensor;
        tensor.name = "t", tensor.type = type, tensor.shape = {codes.size()}, tensor.data = bytes;
        std::vector<float> back(codes.size());
        dequantise_row(tensor, 0, 0, back.data());
        for (size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(back[i], 0.0390625f * static_cast<float>(codes[i] - 1));
    }
}

TEST(QuantiseTest, a_scale_that_f16_does_not_hold_or_a_partial_block_is_refused) {
    const std::vector<uint8_t> codes(256, 1);
    std::vector<std::byte> bytes(66);
    EXPECT_EQ(code_of([&] { pack_ternary(TensorType::kTQ2_0, codes, 0.1f, bytes); }), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of([&] { pack_ternary(TensorType::kTQ2_0, std::span(codes).first(255), 0.5f, bytes); }),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of([&] { quantise(TensorType::kQ6_K, std::vector<float>(256), bytes); }),
              ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace samara::formats
