// The GGUF reader on files made by hand here, byte by byte, so that reader and writer cannot share a mistake.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "src/formats/checkpoint.hpp"
#include "src/formats/gguf_reader.hpp"

namespace samara::formats {
namespace {

/// Appends little-endian values to a byte string.
struct Bytes {
    std::string data;

    template <typename T>
    Bytes& number(T value) {
        data.append(reinterpret_cast<const char*>(&value), sizeof value);
        return *this;
    }
    Bytes& text(std::string_view value) {
        number<uint64_t>(value.size());
        data += value;
        return *this;
    }
    Bytes& key(std::string_view name, uint32_t type) { return text(name).number(type); }
    Bytes& tensor(std::string_view name, std::vector<uint64_t> shape, uint32_t type, uint64_t offset) {
        text(name).number(static_cast<uint32_t>(shape.size()));
        for (const uint64_t extent : shape) number(extent);
        return number(type).number(offset);
    }
    Bytes& pad(size_t alignment) {
        data.resize((data.size() + alignment - 1) / alignment * alignment);
        return *this;
    }
    std::span<const std::byte> span() const { return std::as_bytes(std::span(data)); }
};

Bytes header(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    Bytes bytes;
    bytes.data = "GGUF";
    bytes.number(version).number(tensors).number(keys);
    return bytes;
}

/// The message of the Error that `action` throws; fails when it throws none, or one of another code.
template <typename Action>
std::string message_of(ErrorCode code, Action action) {
    try {
        action();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        return error.what();
    }
    ADD_FAILURE() << "no error";
    return {};
}

class TemporaryFolder {
  public:
    TemporaryFolder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "samara-XXXXXX").string();
        path_ = mkdtemp(pattern.data());
    }
    ~TemporaryFolder() { std::filesystem::remove_all(path_); }
    std::string write(const std::string& name, const std::string& data) const {
        std::ofstream(path_ / name, std::ios::binary) << data;
        return (path_ / name).string();
    }

  private:
    std::filesystem::path path_;
};

TEST(Gguf, every_metadata_type_is_read) {
    Bytes bytes = header(0, 15);
    bytes.key("u8", 0).number<uint8_t>(200).key("i8", 1).number<int8_t>(-3);
    bytes.key("u16", 2).number<uint16_t>(60000).key("i16", 3).number<int16_t>(-300);
    bytes.key("u32", 4).number<uint32_t>(4000000000u).key("i32", 5).number<int32_t>(-70000);
    bytes.key("f32", 6).number(1.5f).key("bool", 7).number<uint8_t>(1).key("text", 8).text("maple");
    bytes.key("u64", 10).number<uint64_t>(1ull << 40).key("i64", 11).number<int64_t>(-(1ll << 40));
    bytes.key("f64", 12).number(2.25);
    bytes.key("strings", 9).number<uint32_t>(8).number<uint64_t>(2).text("a").text("");
    bytes.key("bools", 9).number<uint32_t>(7).number<uint64_t>(2).number<uint8_t>(1).number<uint8_t>(0);
    bytes.key("nested", 9).number<uint32_t>(9).number<uint64_t>(2);
    bytes.number<uint32_t>(3).number<uint64_t>(2).number<int16_t>(5).number<int16_t>(-6);
    bytes.number<uint32_t>(8).number<uint64_t>(1).text("x");
    const GgufContents contents = parse_gguf(bytes.span(), "f");
    const Metadata& m = contents.metadata;
    EXPECT_EQ(m.get_uint("u8"), 200u);
    EXPECT_EQ(std::get<int8_t>(*m.find("i8")), -3);
    EXPECT_EQ(m.get_uint("u16"), 60000u);
    EXPECT_EQ(m.get_float("i16"), -300.0);
    EXPECT_EQ(m.get_uint("u32"), 4000000000u);
    EXPECT_EQ(m.get_float("i32"), -70000.0);
    EXPECT_EQ(m.get_float("f32"), 1.5);
    EXPECT_TRUE(m.get_bool("bool"));
    EXPECT_EQ(m.get_string("text"), "maple");
    EXPECT_EQ(m.get_uint("u64"), 1ull << 40);
    EXPECT_EQ(std::get<int64_t>(*m.find("i64")), -(1ll << 40));
    EXPECT_EQ(m.get_float("f64"), 2.25);
    EXPECT_EQ(m.get_strings("strings"), (std::vector<std::string>{"a", ""}));
    EXPECT_EQ(m.get_ints("bools"), (std::vector<int64_t>{1, 0}));
    const auto& nested = *std::get<std::shared_ptr<const MetaArray>>(*m.find("nested"));
    const auto& items = std::get<std::vector<MetaValue>>(nested.items);
    ASSERT_EQ(items.size(), 2u);
    const auto& inner = *std::get<std::shared_ptr<const MetaArray>>(items[0]);
    EXPECT_EQ(std::get<std::vector<int16_t>>(inner.items), (std::vector<int16_t>{5, -6}));
}

TEST(Gguf, look_ups_of_another_kind_name_file_key_expected_and_found) {
    Bytes bytes = header(0, 2);
    bytes.key("text", 8).text("oak").key("minus", 5).number<int32_t>(-1);
    const Metadata m = parse_gguf(bytes.span(), "model.gguf").metadata;
    EXPECT_EQ(message_of(ErrorCode::kFormat, [&] { m.get_uint("text"); }),
              "model.gguf: key 'text': expected an integer of at least 0, found string 'oak'");
    EXPECT_EQ(message_of(ErrorCode::kFormat, [&] { m.get_uint("minus", 1, 8); }),
              "model.gguf: key 'minus': expected an integer between 1 and 8, found integer -1");
    EXPECT_EQ(message_of(ErrorCode::kFormat, [&] { m.get_bool("absent"); }), "model.gguf: key 'absent' is missing");
    EXPECT_EQ(m.get_uint_or("absent", 7), 7u);
    message_of(ErrorCode::kFormat, [&] { m.get_uint_or("text", 7); });
}

TEST(Gguf, tensors_of_versions_2_and_3_point_at_their_data_under_the_files_alignment) {
    for (const uint32_t version : {2u, 3u}) {
        Bytes bytes = header(2, 1, version);
        bytes.key("general.alignment", 4).number<uint32_t>(64);
        bytes.tensor("b", {2, 2}, 0, 64).tensor("a", {3}, 24, 0).pad(64);
        const size_t start = bytes.data.size();
        bytes.data += "xyz";
        bytes.pad(64).number(1.0f).number(2.0f).number(3.0f).number(4.0f);
        const GgufContents contents = parse_gguf(bytes.span(), "f");
        EXPECT_EQ(contents.version, version);
        ASSERT_EQ(contents.tensors.size(), 2u);
        const Tensor& b = contents.tensors[0];
        EXPECT_EQ(b.data.data(), bytes.span().data() + start + 64);
        EXPECT_EQ(b.rows(), 2u);
        float row[2];
        dequantise_row(b, 0, 1, row);
        EXPECT_EQ(row[0], 3.0f);
        EXPECT_EQ(row[1], 4.0f);
        EXPECT_EQ(std::memcmp(contents.tensors[1].data.data(), "xyz", 3), 0);
    }
}

TEST(Gguf, a_model_is_read_from_a_descriptor_at_an_offset_that_is_no_page) {
    Bytes bytes = header(1, 0);
    bytes.tensor("t", {1}, 0, 0).pad(32).number(7.0f);
    TemporaryFolder folder;
    const std::string path = folder.write("asset", std::string(1001, 'x') + bytes.data + "trailing");
    const int fd = open(path.c_str(), O_RDONLY);
    const auto checkpoint =
        Checkpoint::open({.path = "inside.apk", .fd = fd, .offset = 1001, .length = bytes.data.size()});
    close(fd);
    float value = 0;
    dequantise_row(checkpoint->get("t"), 0, 0, &value);
    EXPECT_EQ(value, 7.0f);
    EXPECT_EQ(checkpoint->file_bytes(), bytes.data.size());
    EXPECT_EQ(checkpoint->find("u"), nullptr);
    EXPECT_EQ(message_of(ErrorCode::kFormat, [&] { checkpoint->get("u"); }), "inside.apk: tensor 'u' is missing");
}

std::string split_file(int number, const std::string& tensor, float value) {
    Bytes bytes = header(1, 3);
    bytes.key("split.no", 2).number<uint16_t>(static_cast<uint16_t>(number));
    bytes.key("split.count", 2).number<uint16_t>(2).key("split.tensors.count", 5).number<int32_t>(2);
    bytes.tensor(tensor, {1}, 0, 0).pad(32).number(value);
    return bytes.data;
}

TEST(Gguf, a_split_set_is_one_checkpoint) {
    TemporaryFolder folder;
    const std::string first = folder.write("m-00001-of-00002.gguf", split_file(0, "a", 1.0f));
    folder.write("m-00002-of-00002.gguf", split_file(1, "b", 2.0f));
    const auto checkpoint = Checkpoint::open({.path = first});
    float value = 0;
    dequantise_row(checkpoint->get("b"), 0, 0, &value);
    EXPECT_EQ(value, 2.0f);
    checkpoint->drop(checkpoint->get("b").data);
    dequantise_row(checkpoint->get("b"), 0, 0, &value);
    EXPECT_EQ(value, 2.0f) << "dropped pages are read again";
}

TEST(Gguf, names_from_a_hostile_file_are_printed_safely) {
    Bytes bytes = header(2, 0);
    const std::string name = "\x1b[31m\n" + std::string(100, 'n');
    bytes.tensor(name, {1}, 0, 0).tensor(name, {1}, 0, 32);
    const std::string message = message_of(ErrorCode::kFormat, [&] { parse_gguf(bytes.span(), "f"); });
    EXPECT_EQ(message, "f: tensor '\\x1b[31m\\x0a" + std::string(74, 'n') + "...' appears twice");
}

TEST(Gguf, a_type_that_exists_but_is_not_read_is_named) {
    Bytes bytes = header(1, 0);
    bytes.tensor("t", {256}, 10, 0).pad(32);
    bytes.data.resize(4096);
    const std::string message = message_of(ErrorCode::kUnsupported, [&] { parse_gguf(bytes.span(), "f"); });
    EXPECT_NE(message.find("type Q2_K is not supported"), std::string::npos) << message;
}

TEST(Gguf, a_big_endian_file_is_called_one) {
    Bytes bytes = header(0, 0, 0x03000000);
    const std::string message = message_of(ErrorCode::kUnsupported, [&] { parse_gguf(bytes.span(), "f"); });
    EXPECT_NE(message.find("big-endian"), std::string::npos) << message;
}

TEST(Gguf, every_truncation_of_a_file_is_refused) {
    Bytes bytes = header(2, 3);
    bytes.key("a", 8).text("value").key("b", 9).number<uint32_t>(8).number<uint64_t>(2).text("x").text("yy");
    bytes.key("c", 7).number<uint8_t>(0).tensor("s", {4}, 0, 0).tensor("t", {2, 3}, 0, 32).pad(32);
    bytes.data.resize(bytes.data.size() + 32 + 24);
    parse_gguf(bytes.span(), "f");
    for (size_t length = 0; length < bytes.data.size(); ++length) {
        message_of(ErrorCode::kFormat, [&] { parse_gguf(bytes.span().first(length), "f"); });
    }
}

TEST(Tensor, experts_stored_one_by_one_dequantise_as_stacked_ones) {
    const float weights[] = {1, 2, 3, 4, 5, 6, 7, 8};
    const auto bytes = std::as_bytes(std::span(weights));
    Tensor stacked{.name = "t",
                   .type = TensorType::kF32,
                   .shape = {2, 2, 2},
                   .data = bytes,
                   .scales = {},
                   .biases = {},
                   .pieces = {}};
    Tensor pieces = stacked;
    pieces.data = {};
    pieces.pieces = {bytes.first(16), bytes.last(16)};
    float row[2];
    for (const Tensor* tensor : {&stacked, &pieces}) {
        dequantise_row(*tensor, 1, 0, row);
        EXPECT_EQ(row[0], 5.0f);
        EXPECT_EQ(row[1], 6.0f);
        message_of(ErrorCode::kInternal, [&] { dequantise_row(*tensor, 2, 0, row); });
        message_of(ErrorCode::kInternal, [&] { dequantise_row(*tensor, 0, 2, row); });
    }
}

}  // namespace
}  // namespace samara::formats
