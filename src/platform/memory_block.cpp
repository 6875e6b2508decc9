#include "src/platform/memory_block.hpp"

#include <sys/mman.h>

#include <string>

#include "src/platform/error.hpp"

namespace samara::platform {

MemoryBlock::MemoryBlock(uint64_t bytes, const char* what) : bytes_(bytes) {
    if (bytes == 0) return;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED) {
        throw Error(ErrorCode::kMemory,
                    std::string(what) + ": the system refused " + std::to_string(bytes) + " bytes of memory");
    }
    data_ = static_cast<std::byte*>(p);
#ifdef MADV_HUGEPAGE
    madvise(p, bytes, MADV_HUGEPAGE);  // advice: a refusal changes speed, not results
#endif
}

MemoryBlock::~MemoryBlock() {
    if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace samara::platform
