#pragma once
// Files that commands read and write.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "src/formats/checkpoint.hpp"

namespace samara::cli {

/// A file that appears under its name only when finished: written beside it, renamed at the end, removed otherwise.
/// Something else that exists under the name (a device, a pipe) is written as it is.
class OutputFile {
  public:
    explicit OutputFile(std::string path);  // throws Error(kIo)
    ~OutputFile();
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;
    void write(std::span<const std::byte> bytes);
    void finish();

  private:
    [[noreturn]] void fail(const char* action) const;
    std::string path_, temporary_;
    std::FILE* file_ = nullptr;
};

/// Reads all of a file, or of standard input when `path` is "-". Refuses more than `limit` bytes.
std::string read_text(const std::string& path, uint64_t limit = uint64_t{64} << 20);

/// Decimal token ids separated by white space. Throws Error(kFormat) naming the file and the first bad word.
std::vector<int32_t> read_token_file(const std::string& path);

/// Reads all of a packed file and compares its checksums; a bar shows how far. Prints each one that does not match to
/// standard error, then throws Error(kFormat).
void check_checksums(const formats::Checkpoint& checkpoint);

}  // namespace samara::cli
