#pragma once
// Writes a GGUF v3 file front to back: header and metadata first, then tensor data in the order of declaration.
// The bytes go to a temporary file in the target's folder, which takes the target's name only when everything is on
// disk; a writer destroyed earlier removes it, so that a failed or cancelled job leaves nothing behind.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/formats/checkpoint.hpp"

namespace samara::formats {

/// Use: set() and declare() in any order, begin(), then for each tensor in order write() pieces until its bytes are
/// complete, then finish(). Calls out of order throw Error(kInternal); the system's refusals throw Error(kIo).
class GgufWriter {
  public:
    static constexpr uint32_t kDefaultAlignment = 32;

    /// Creates the temporary file at once, so that an unwritable folder is known before any work is done.
    /// `alignment` is a power of two, at least 8; general.alignment is written when it is not GGUF's default.
    explicit GgufWriter(std::string path, uint32_t alignment = kDefaultAlignment);
    ~GgufWriter();
    GgufWriter(const GgufWriter&) = delete;
    GgufWriter& operator=(const GgufWriter&) = delete;

    /// Adds a metadata pair; keys keep the order of their first set(), a later value replaces an earlier one.
    /// general.alignment is the constructor's and is ignored here, so that a source's metadata can be copied whole.
    void set(std::string key, MetaValue value);
    /// Copies every pair of `metadata`.
    void set_all(const Metadata& metadata);

    /// Declares a tensor (GGUF order: shape[0] is contiguous). Throws Error(kInvalidArgument) for a type GGUF does not
    /// have, a shape of 0 or more than 4 extents, a zero extent, an overflowing product, or a row that is not a whole
    /// number of blocks.
    void declare(std::string name, TensorType type, std::vector<uint64_t> shape);

    /// Writes the header. From here on only replace(), write() and finish() are allowed.
    void begin();

    /// Bytes of the next tensors, in order. A piece may be of any size but belongs to one tensor: the first piece of a
    /// tensor is only taken when the one before is complete, and a piece that overruns its tensor is refused.
    void write(std::string_view tensor, std::span<const std::byte> bytes);

    /// Overwrites a metadata value after begin() with one of the same type and encoded size (a hash of the data, say).
    void replace(std::string_view key, const MetaValue& value);

    /// Checks that every tensor is complete, syncs the file and renames it to the target path.
    void finish();

    /// Whole file in bytes; known after begin().
    uint64_t file_bytes() const { return file_bytes_; }
    /// First byte of a declared tensor in the file; known after begin().
    uint64_t tensor_offset(std::string_view tensor) const;
    const std::string& path() const { return path_; }

  private:
    struct Pair {
        std::string key;
        MetaValue value;
        uint64_t value_offset = 0;  // of the encoded value (after its type), in the file
        uint64_t value_bytes = 0;
    };
    struct Declared {
        std::string name;
        TensorType type;
        std::vector<uint64_t> shape;
        uint64_t bytes = 0;
        uint64_t offset = 0;  // from the start of the data section
    };

    void append(std::span<const std::byte> bytes);
    void append_zeros(uint64_t count);
    void flush();
    void write_at_end(std::span<const std::byte> bytes);
    void reserve_space();
    [[noreturn]] void fail_io(const std::string& action) const;
    const Declared& find_declared(std::string_view tensor) const;

    std::string path_;
    std::string temporary_;
    int fd_ = -1;
    uint32_t alignment_;
    std::vector<Pair> pairs_;
    std::vector<Declared> tensors_;
    std::vector<std::byte> buffer_;
    uint64_t flushed_ = 0;     // bytes already handed to the system
    uint64_t data_begin_ = 0;  // first byte of the data section
    uint64_t file_bytes_ = 0;
    size_t current_ = 0;          // tensor being written
    uint64_t current_bytes_ = 0;  // of it, taken so far
    bool begun_ = false;
    bool finished_ = false;
};

}  // namespace samara::formats
