#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include "src/platform/error.hpp"
#include "src/platform/mapped_file.hpp"

namespace samara {
namespace {

class MappedFileTest : public testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = (std::filesystem::temp_directory_path() / "samara-XXXXXX").string();
        folder_ = mkdtemp(pattern.data());
        path_ = (folder_ / "data").string();
        for (int i = 0; i < 20000; ++i) content_ += static_cast<char>(i * 7 + i / 256);
        std::ofstream(path_, std::ios::binary) << content_;
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    static std::string text(std::span<const std::byte> bytes) {
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
    template <typename Action>
    static std::string io_error(Action action) {
        try {
            action();
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kIo);
            return error.what();
        }
        ADD_FAILURE() << "no error";
        return {};
    }

    std::filesystem::path folder_;
    std::string path_;
    std::string content_;
};

TEST_F(MappedFileTest, a_whole_file_is_mapped) {
    const MappedFile file = MappedFile::open(path_);
    EXPECT_EQ(text(file.bytes()), content_);
    EXPECT_EQ(file.name(), path_);
}

TEST_F(MappedFileTest, a_range_starts_at_any_byte) {
    const int fd = open(path_.c_str(), O_RDONLY);
    for (const uint64_t offset : {0, 1, 4095, 4096, 4097, 19999}) {
        const MappedFile file = MappedFile::from_descriptor(fd, offset, 0, "f");
        EXPECT_EQ(text(file.bytes()), content_.substr(offset)) << offset;
    }
    EXPECT_EQ(text(MappedFile::from_descriptor(fd, 5000, 10, "f").bytes()), content_.substr(5000, 10));
    close(fd);
}

TEST_F(MappedFileTest, a_range_outside_the_file_is_refused) {
    const int fd = open(path_.c_str(), O_RDONLY);
    EXPECT_EQ(io_error([&] { MappedFile::from_descriptor(fd, 20000, 0, "f"); }),
              "f: offset 20000 is past the end; the file has 20000 bytes");
    EXPECT_EQ(io_error([&] { MappedFile::from_descriptor(fd, 5, 19996, "f"); }),
              "f: 19996 bytes from offset 5 were asked for; the file has 20000 bytes");
    io_error([&] { MappedFile::from_descriptor(fd, 8, UINT64_MAX - 4, "f"); });
    close(fd);
}

TEST_F(MappedFileTest, what_is_no_file_with_content_is_refused_by_name) {
    const std::string absent = (folder_ / "absent").string();
    EXPECT_EQ(io_error([&] { MappedFile::open(absent); }),
              absent + ": cannot open the file: No such file or directory");
    EXPECT_EQ(io_error([&] { MappedFile::open(folder_.string()); }), folder_.string() + ": not a regular file");
    const std::string fifo = (folder_ / "fifo").string();
    ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
    EXPECT_EQ(io_error([&] { MappedFile::open(fifo); }), fifo + ": not a regular file");
    const std::string empty = (folder_ / "empty").string();
    std::ofstream{empty};
    EXPECT_EQ(io_error([&] { MappedFile::open(empty); }), empty + ": the file is empty");
}

TEST_F(MappedFileTest, dropped_pages_come_back_with_the_same_bytes) {
    const MappedFile file = MappedFile::open(path_);
    EXPECT_EQ(text(file.bytes()), content_);
    file.drop(file.bytes().subspan(100, 15000));
    file.will_need(file.bytes().subspan(100, 15000));
    file.drop(file.bytes().subspan(10, 0));
    EXPECT_EQ(text(file.bytes()), content_);
}

TEST_F(MappedFileTest, a_moved_mapping_has_one_owner) {
    MappedFile first = MappedFile::open(path_);
    const auto bytes = first.bytes();
    MappedFile second = std::move(first);
    EXPECT_EQ(second.bytes().data(), bytes.data());
    EXPECT_EQ(first.size(), 0u);
    EXPECT_FALSE(first.contains(bytes));
    EXPECT_TRUE(second.contains(bytes.subspan(7)));
    MappedFile third;
    third = std::move(second);
    EXPECT_EQ(text(third.bytes()), content_);
}

}  // namespace
}  // namespace samara
