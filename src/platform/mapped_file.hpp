#pragma once
// A read-only memory map of a file, or of a byte range of an open descriptor (an Android asset inside its APK).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace samara {

/// Owns one MAP_SHARED mapping. The bytes are valid for the object's lifetime, also when the descriptor is closed
/// meanwhile; a file that someone truncates while it is mapped faults on access, as every mapping does.
class MappedFile {
  public:
    /// Maps all of `path`. Throws Error(kIo) naming it when it cannot be opened, is no regular file, is empty, or
    /// cannot be mapped.
    static MappedFile open(const std::string& path);
    /// Maps `length` bytes (0: to the end) of `fd` from byte `offset`, which needs no alignment. `name` is for
    /// messages. The descriptor stays the caller's. Throws Error(kIo) when the range is outside the file.
    static MappedFile from_descriptor(int fd, uint64_t offset, uint64_t length, const std::string& name);

    MappedFile() = default;
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;
    ~MappedFile();

    std::span<const std::byte> bytes() const { return bytes_; }
    uint64_t size() const { return bytes_.size(); }
    const std::string& name() const { return name_; }
    bool contains(std::span<const std::byte> part) const;

    /// Lets go of the pages that lie wholly inside `part` (they are read again if touched). `part` is inside bytes().
    void drop(std::span<const std::byte> part) const;
    /// Starts reading `part` from storage in the background.
    void will_need(std::span<const std::byte> part) const;

  private:
    void unmap() noexcept;

    std::string name_;
    void* base_ = nullptr;              // page-aligned start of the mapping
    size_t mapped_length_ = 0;          // bytes mapped from base_
    std::span<const std::byte> bytes_;  // the part the caller asked for
};

}  // namespace samara
