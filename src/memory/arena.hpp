#pragma once
// Scratch memory whose size is known before anything runs: the same layout function runs once over a counting arena
// and once over a real one.

#include <cstddef>
#include <cstdint>

#include "src/platform/memory_block.hpp"

namespace samara::memory {

class Arena {
  public:
    /// Counts only: take() returns nullptr.
    Arena() = default;
    /// Hands out `bytes` bytes. Throws Error(kMemory).
    explicit Arena(uint64_t bytes) : block_(bytes, "scratch buffers"), counting_(false) {}

    /// `count` elements at the next multiple of 64 bytes, zeroed. The arena owns them.
    template <class T>
    T* take(int64_t count) {
        used_ = (used_ + 63) / 64 * 64;
        std::byte* p = counting_ ? nullptr : block_.data() + used_;
        used_ += static_cast<uint64_t>(count) * sizeof(T);
        return reinterpret_cast<T*>(p);
    }

    uint64_t used() const { return used_; }

  private:
    platform::MemoryBlock block_;
    bool counting_ = true;
    uint64_t used_ = 0;
};

}  // namespace samara::memory
