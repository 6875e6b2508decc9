#pragma once
// Page-aligned anonymous memory, zeroed, returned to the system when dropped. Pages cost nothing until touched.

#include <cstddef>
#include <cstdint>
#include <utility>

namespace samara::platform {

class MemoryBlock {
  public:
    MemoryBlock() = default;
    /// Throws Error(kMemory) naming `what` and the size when the system refuses. Asks for huge pages.
    MemoryBlock(uint64_t bytes, const char* what);
    ~MemoryBlock();
    MemoryBlock(MemoryBlock&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    MemoryBlock& operator=(MemoryBlock&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }

    std::byte* data() const { return data_; }
    uint64_t bytes() const { return bytes_; }

  private:
    std::byte* data_ = nullptr;
    uint64_t bytes_ = 0;
};

}  // namespace samara::platform
