#include "src/memory/kv_cache.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "src/platform/error.hpp"

namespace samara::memory {
namespace {

constexpr int64_t kPage = kernels::kKeyBlock;

int64_t blocks_for(int64_t positions) { return (positions + kPage - 1) / kPage; }

}  // namespace

uint64_t KvShape::vector_bytes() const {
    return static_cast<uint64_t>(head_dim) * static_cast<uint64_t>(kernels::kv_bytes(type)) + sizeof(float);
}

uint64_t KvShape::page_bytes() const {
    const uint64_t bytes = static_cast<uint64_t>(kv_heads) * kPage * 2 * vector_bytes();
    return (bytes + 63) / 64 * 64;
}

int64_t KvShape::pages_per_sequence() const {
    const int64_t full = blocks_for(context);
    // The kept stretch may start and end inside a page.
    const int64_t kept = std::min(full, blocks_for(int64_t{window} + rewind_span + max_step) + 2);
    int64_t pages = 0;
    for (const bool s : sliding) pages += s ? kept : full;
    return pages;
}

uint64_t KvShape::pool_bytes(int sequences) const {
    constexpr auto kMost = uint64_t{1} << 47;  // a process's half of the address space on 64-bit systems
    const auto pages = static_cast<uint64_t>(pages_per_sequence()) * static_cast<uint64_t>(sequences);
    if (pages > static_cast<uint64_t>(std::numeric_limits<int32_t>::max()) || pages > kMost / page_bytes()) {
        throw Error(ErrorCode::kMemory, "KV cache: " + std::to_string(sequences) + " sessions of " +
                                            std::to_string(context) + " positions are more than a process can address");
    }
    return pages * page_bytes();
}

uint64_t KvShape::bytes_read_at(int64_t position) const {
    const uint64_t per_key = static_cast<uint64_t>(kv_heads) * 2 * vector_bytes();
    uint64_t keys = 0;
    for (const bool s : sliding) {
        keys += static_cast<uint64_t>(s ? std::min<int64_t>(window, position + 1) : position + 1);
    }
    return keys * per_key;
}

KvPool::KvPool(KvShape shape, int sequences) : shape_(std::move(shape)) {
    memory_ = platform::MemoryBlock(shape_.pool_bytes(sequences), "KV cache");
    const int64_t pages = shape_.pages_per_sequence() * sequences;
    references_.assign(static_cast<size_t>(pages), 0);
    free_.reserve(static_cast<size_t>(pages));
    for (int64_t p = pages - 1; p >= 0; --p) free_.push_back(static_cast<int32_t>(p));
}

int32_t KvPool::allocate() {
    if (free_.empty())
        throw Error(ErrorCode::kInternal, "KV cache: no page left although every sequence has its share");
    const int32_t page = free_.back();
    free_.pop_back();
    references_[static_cast<size_t>(page)] = 1;
    return page;
}

void KvPool::release(int32_t page) {
    if (--references_[static_cast<size_t>(page)] == 0) free_.push_back(page);
}

void KvPool::copy(int32_t from, int32_t to) { std::memcpy(page_data(to), page_data(from), shape_.page_bytes()); }

// A page: for each KV head k (64, head_dim), v (64, head_dim), k_scale (64), v_scale (64).
kernels::KvBlock KvPool::block(int32_t page, int head) const {
    const int64_t bytes = kPage * shape_.head_dim * kernels::kv_bytes(shape_.type);  // of all keys, or all values
    const std::byte* k = page_data(page) + head * kPage * 2 * static_cast<int64_t>(shape_.vector_bytes());
    const auto* scales = reinterpret_cast<const float*>(k + 2 * bytes);
    return {k, k + bytes, scales, scales + kPage, 0, shape_.type};
}

KvPool::Slot KvPool::slot(int32_t page, int head, int index) {
    const kernels::KvBlock b = block(page, head);
    const int64_t at = int64_t{index} * shape_.head_dim * kernels::kv_bytes(shape_.type);
    const auto own = [](const void* p, int64_t bytes) {
        return const_cast<std::byte*>(static_cast<const std::byte*>(p)) + bytes;
    };
    return {own(b.k, at), own(b.v, at), const_cast<float*>(b.k_scale) + index, const_cast<float*>(b.v_scale) + index};
}

KvSequence::KvSequence(KvPool& pool) : pool_(pool) {
    const auto layers = static_cast<size_t>(pool.shape().layers());
    tables_.resize(layers);
    for (auto& t : tables_) t.assign(static_cast<size_t>(blocks_for(pool.shape().context)), -1);
    first_block_.assign(layers, 0);
    end_block_.assign(layers, 0);
}

void KvSequence::reserve(int n) {
    if (length_ + n > pool_.shape().context) {
        throw Error(ErrorCode::kContextFull, "context full: " + std::to_string(length_) + " positions used and " +
                                                 std::to_string(n) + " asked for, of " +
                                                 std::to_string(pool_.shape().context));
    }
    const int64_t last = blocks_for(length_ + n);
    for (int l = 0; l < pool_.shape().layers(); ++l) {
        auto& end = end_block_[static_cast<size_t>(l)];
        for (int64_t b = length_ / kPage; b < last; ++b) {
            int32_t& page = table(l)[static_cast<size_t>(b)];
            if (b >= end) {
                page = pool_.allocate();
                end = b + 1;
            } else if (pool_.shared(page)) {
                const int32_t own = pool_.allocate();
                pool_.copy(page, own);
                pool_.release(page);
                page = own;
            }
        }
    }
}

void KvSequence::commit(int n) {
    length_ += n;
    const KvShape& s = pool_.shape();
    const int64_t first_needed = length_ - s.rewind_span - (s.window - 1);
    if (first_needed <= 0) return;
    for (int l = 0; l < s.layers(); ++l) {
        if (s.sliding[static_cast<size_t>(l)]) release_below(l, first_needed / kPage);
    }
}

void KvSequence::release_below(int layer, int64_t block) {
    auto& first = first_block_[static_cast<size_t>(layer)];
    for (; first < block; ++first) {
        int32_t& page = table(layer)[static_cast<size_t>(first)];
        pool_.release(page);
        page = -1;
    }
}

bool KvSequence::truncate(int64_t length) {
    const KvShape& s = pool_.shape();
    const int64_t first_needed = std::max<int64_t>(0, length - (s.window - 1));
    for (int l = 0; l < s.layers(); ++l) {
        if (s.sliding[static_cast<size_t>(l)] && first_kept(l) > first_needed) {
            clear();
            return false;
        }
    }
    for (int l = 0; l < s.layers(); ++l) {
        auto& end = end_block_[static_cast<size_t>(l)];
        while (end > blocks_for(length)) {
            int32_t& page = table(l)[static_cast<size_t>(--end)];
            pool_.release(page);
            page = -1;
        }
    }
    length_ = length;
    return true;
}

void KvSequence::share(const KvSequence& other) {
    clear();
    for (size_t l = 0; l < tables_.size(); ++l) {
        for (int64_t b = other.first_block_[l]; b < other.end_block_[l]; ++b) {
            tables_[l][static_cast<size_t>(b)] = other.tables_[l][static_cast<size_t>(b)];
            pool_.retain(tables_[l][static_cast<size_t>(b)]);
        }
    }
    first_block_ = other.first_block_;
    end_block_ = other.end_block_;
    length_ = other.length_;
}

void KvSequence::clear() {
    for (size_t l = 0; l < tables_.size(); ++l) {
        for (int64_t b = first_block_[l]; b < end_block_[l]; ++b) {
            pool_.release(tables_[l][static_cast<size_t>(b)]);
            tables_[l][static_cast<size_t>(b)] = -1;
        }
        first_block_[l] = end_block_[l] = 0;
    }
    length_ = 0;
}

kernels::KvBlock KvSequence::block(int layer, int head, int64_t block) const {
    return pool_.block(tables_[static_cast<size_t>(layer)][static_cast<size_t>(block)], head);
}

KvPool::Slot KvSequence::slot(int layer, int head, int64_t position) {
    return pool_.slot(table(layer)[static_cast<size_t>(position / kPage)], head, static_cast<int>(position % kPage));
}

}  // namespace samara::memory
