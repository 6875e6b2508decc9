#pragma once
// Keys and values of all sequences of an engine: pages of 64 positions of one layer, with reference counts. `fork`
// shares pages, writing copies a shared page first, `truncate` drops them. Full layers keep every position; sliding
// layers keep the window and a rewind span before it.

#include <cstdint>
#include <vector>

#include "src/kernels/kernels.hpp"
#include "src/platform/memory_block.hpp"

namespace samara::memory {

struct KvShape {
    int kv_heads = 0;
    int head_dim = 0;
    std::vector<bool> sliding;  // one a layer
    int window = 0;             // keys a sliding layer sees, the current one included
    int rewind_span = 0;        // positions before the window that sliding layers keep for steps back
    int max_step = 0;           // positions added in one step at most
    int64_t context = 0;        // positions a sequence may have
    kernels::KvType type = kernels::KvType::kInt16;

    int layers() const { return static_cast<int>(sliding.size()); }
    uint64_t vector_bytes() const;  // of one key or value and its scale
    uint64_t page_bytes() const;
    /// Pages one sequence of `context` positions can hold at the same time, all layers together.
    int64_t pages_per_sequence() const;
    /// Bytes of a pool for `sequences` sequences. Throws Error(kMemory) when no machine could address them.
    uint64_t pool_bytes(int sequences) const;
    /// Bytes that attention reads for one token at `position`, all layers together.
    uint64_t bytes_read_at(int64_t position) const;
};

/// The pages of an engine: room for `sequences` sequences, reserved at once, touched when used. Not thread-safe.
class KvPool {
  public:
    KvPool(KvShape shape, int sequences);
    const KvShape& shape() const { return shape_; }
    uint64_t bytes() const { return memory_.bytes(); }

    int32_t allocate();  // a page with one reference; Error(kInternal) when none is left: callers reserve by sequence
    void retain(int32_t page) { ++references_[static_cast<size_t>(page)]; }
    void release(int32_t page);
    bool shared(int32_t page) const { return references_[static_cast<size_t>(page)] > 1; }
    void copy(int32_t from, int32_t to);

    /// Where KV head `head` of `page` lies. The pointers are valid for the life of the pool.
    kernels::KvBlock block(int32_t page, int head) const;
    struct Slot {  // one position of one head, to write
        void* k;   // (head_dim), of the shape's type
        void* v;
        float* k_scale;
        float* v_scale;
    };
    Slot slot(int32_t page, int head, int index);

  private:
    std::byte* page_data(int32_t page) const {
        return memory_.data() + static_cast<uint64_t>(page) * shape_.page_bytes();
    }
    KvShape shape_;
    platform::MemoryBlock memory_;
    std::vector<int32_t> references_;
    std::vector<int32_t> free_;
};

/// The page tables of one sequence. The pool must outlive it.
class KvSequence {
  public:
    explicit KvSequence(KvPool& pool);
    ~KvSequence() { clear(); }
    KvSequence(const KvSequence&) = delete;
    KvSequence& operator=(const KvSequence&) = delete;

    int64_t length() const { return length_; }
    kernels::KvType type() const { return pool_.shape().type; }

    /// Makes pages for positions [length, length + n) exist and be this sequence's own. The length does not change.
    void reserve(int n);
    /// Ends a step: the n reserved positions now count; sliding layers drop what neither window nor span needs.
    void commit(int n);
    /// Keeps the first `length` positions. False, and nothing kept at all, when a sliding layer no longer has the keys
    /// that position `length` would see: the caller then processes those tokens again.
    bool truncate(int64_t length);
    /// Makes this empty sequence an equal of `other`, sharing its pages.
    void share(const KvSequence& other);
    void clear();

    /// KV head `head` of `layer`, keys [64*block, 64*block + 64).
    kernels::KvBlock block(int layer, int head, int64_t block) const;
    KvPool::Slot slot(int layer, int head, int64_t position);

  private:
    std::vector<int32_t>& table(int layer) { return tables_[static_cast<size_t>(layer)]; }
    void release_below(int layer, int64_t block);
    int64_t first_kept(int layer) const { return first_block_[static_cast<size_t>(layer)] * kernels::kKeyBlock; }

    KvPool& pool_;
    int64_t length_ = 0;
    std::vector<std::vector<int32_t>> tables_;  // (layer, block): page, or -1
    std::vector<int64_t> first_block_;          // (layer): blocks before it are dropped
    std::vector<int64_t> end_block_;            // (layer): blocks from here on do not exist
};

}  // namespace samara::memory
