// The paged key/value cache against a naive model: every position a sequence may still read holds what was written
// for it, and no sequence ever needs more pages than its share.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>

#include "src/memory/kv_cache.hpp"
#include "src/platform/error.hpp"

namespace samara::memory {
namespace {

constexpr int kPage = kernels::kKeyBlock;

KvShape shape(int window = 70, int rewind = 40, int max_step = 50, int64_t context = 1000) {
    KvShape s;
    s.kv_heads = 2;
    s.head_dim = 16;
    s.sliding = {true, false, true};
    s.window = window;
    s.rewind_span = rewind;
    s.max_step = max_step;
    s.context = context;
    return s;
}

/// Pages not in use, found by taking them all.
int64_t free_pages(KvPool& pool) {
    std::vector<int32_t> taken;
    for (;;) {
        try {
            taken.push_back(pool.allocate());
        } catch (const Error&) {
            break;
        }
    }
    for (const int32_t page : taken) pool.release(page);
    return static_cast<int64_t>(taken.size());
}

/// A sequence and what its positions should hold.
struct Checked {
    explicit Checked(KvPool& pool) : kv(pool) {}

    void add(int n, int16_t first_value) {
        kv.reserve(n);
        for (int i = 0; i < n; ++i) {
            const auto value = static_cast<int16_t>(first_value + i);
            for (int layer = 0; layer < 3; ++layer) {
                for (int head = 0; head < 2; ++head) {
                    const KvPool::Slot slot = kv.slot(layer, head, kv.length() + i);
                    put(slot.k, 0, value);
                    put(slot.k, 15, value + layer);
                    put(slot.v, 0, value + head);
                    *slot.k_scale = value;
                    *slot.v_scale = -value;
                }
            }
            values.push_back(value);
        }
        kv.commit(n);
        longest = std::max(longest, kv.length());
    }

    /// Checks every position that the next token sees.
    void check() const {
        ASSERT_EQ(kv.length(), static_cast<int64_t>(values.size()));
        for (int layer = 0; layer < 3; ++layer) {
            const int64_t first = layer == 1 ? 0 : std::max<int64_t>(0, kv.length() - 69);
            for (int64_t p = first; p < kv.length(); ++p) {
                const int16_t value = values[static_cast<size_t>(p)];
                for (int head = 0; head < 2; ++head) {
                    const kernels::KvBlock b = kv.block(layer, head, p / kPage);
                    const int64_t at = p % kPage;
                    ASSERT_EQ(get(b.k, at * 16), kept(value)) << "layer " << layer << " position " << p;
                    ASSERT_EQ(get(b.k, at * 16 + 15), kept(value + layer));
                    ASSERT_EQ(get(b.v, at * 16), kept(value + head));
                    ASSERT_EQ(b.k_scale[at], value);
                    ASSERT_EQ(b.v_scale[at], -value);
                }
            }
        }
    }

    bool bytes() const { return kv.type() == kernels::KvType::kInt8; }
    int kept(int value) const { return bytes() ? static_cast<int8_t>(value) : static_cast<int16_t>(value); }
    void put(void* vector, int at, int value) const {
        if (bytes()) {
            static_cast<int8_t*>(vector)[at] = static_cast<int8_t>(value);
        } else {
            static_cast<int16_t*>(vector)[at] = static_cast<int16_t>(value);
        }
    }
    int get(const void* vectors, int64_t at) const {
        return bytes() ? static_cast<const int8_t*>(vectors)[at] : static_cast<const int16_t*>(vectors)[at];
    }

    KvSequence kv;
    std::vector<int16_t> values;
    int64_t longest = 0;  // since it was last empty: steps back count from here
};

TEST(KvCache, AllPagesComeBack) {
    KvPool pool(shape(), 3);
    const int64_t all = free_pages(pool);
    EXPECT_EQ(all, 3 * shape().pages_per_sequence());
    {
        Checked a(pool);
        for (int i = 0; i < 20; ++i) a.add(50, 1);
        Checked b(pool);
        b.kv.share(a.kv);
        b.kv.truncate(980);
        b.kv.reserve(10);  // reserved, never committed
        EXPECT_LT(free_pages(pool), all);
    }
    EXPECT_EQ(free_pages(pool), all);
}

TEST(KvCache, ASharedPageIsCopiedWhenEitherWrites) {
    KvPool pool(shape(), 2);
    Checked a(pool);
    a.add(30, 100);
    Checked b(pool);
    b.kv.share(a.kv);
    b.values = a.values;
    const int64_t before = free_pages(pool);
    b.add(10, 500);
    EXPECT_EQ(before - free_pages(pool), 3);  // one page a layer
    a.add(10, 900);
    EXPECT_EQ(before - free_pages(pool), 3);  // a is the only holder of its page again
    a.check();
    b.check();
}

TEST(KvCache, SlidingLayersDropWhatNeitherWindowNorSpanNeeds) {
    KvPool pool(shape(), 1);
    const int64_t all = free_pages(pool);
    Checked a(pool);
    for (int i = 0; i < 20; ++i) a.add(50, static_cast<int16_t>(i * 50));
    a.check();
    // Full: 16 pages. Sliding: positions 891 (1000 - 40 - 69) onwards, pages 13 to 15, twice.
    EXPECT_EQ(all - free_pages(pool), 16 + 2 * 3);
}

TEST(KvCache, TruncateReachesAsFarAsTheSpanAndNoFarther) {
    for (const int64_t length : {960, 961, 999, 1000}) {
        KvPool pool(shape(), 1);
        Checked a(pool);
        for (int i = 0; i < 20; ++i) a.add(50, static_cast<int16_t>(i * 50));
        EXPECT_TRUE(a.kv.truncate(length));
        a.values.resize(static_cast<size_t>(length));
        a.check();
    }
    KvPool pool(shape(), 1);
    const int64_t all = free_pages(pool);
    Checked a(pool);
    for (int i = 0; i < 20; ++i) a.add(50, static_cast<int16_t>(i * 50));
    EXPECT_FALSE(a.kv.truncate(800));
    EXPECT_EQ(a.kv.length(), 0);
    EXPECT_EQ(free_pages(pool), all);
}

TEST(KvCache, APositionBeyondTheContextIsRefused) {
    KvPool pool(shape(70, 40, 50, 100), 1);
    Checked a(pool);
    a.add(50, 1);
    a.add(50, 1);
    try {
        a.kv.reserve(1);
        FAIL() << "expected an error";
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kContextFull);
    }
    a.check();
}

TEST(KvCache, ACacheBeyondAddressableMemoryIsRefused) {
    KvShape s = shape(70, 40, 50, 1 << 24);
    s.sliding.assign(1024, false);
    s.kv_heads = 1024;
    s.head_dim = 512;
    try {
        KvPool pool(s, 4096);
        FAIL() << "expected an error";
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kMemory);
    }
}

// Random adds, forks, steps back and ends over five sequences in a pool of exactly five shares.
void random_operations(const KvShape& s, uint32_t seed, int operations) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    constexpr size_t kSequences = 5;
    KvPool pool(s, kSequences);
    const int64_t all = free_pages(pool);
    std::vector<std::unique_ptr<Checked>> sequences;
    for (size_t i = 0; i < kSequences; ++i) sequences.push_back(std::make_unique<Checked>(pool));
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    for (int op = 0; op < operations; ++op) {
        auto& a = sequences[static_cast<size_t>(below(kSequences))];
        const int64_t kind = below(10);
        if (kind < 6) {  // mostly grow, often by whole steps
            const int64_t room = s.context - a->kv.length();
            const int64_t n = std::min(room, below(2) == 0 ? s.max_step : 1 + below(s.max_step));
            if (n > 0) a->add(static_cast<int>(n), static_cast<int16_t>(below(20000)));
        } else if (kind == 6) {  // a step that failed after its pages were reserved
            a->kv.reserve(static_cast<int>(std::min<int64_t>(s.max_step, s.context - a->kv.length())));
        } else if (kind == 7) {
            auto& b = sequences[static_cast<size_t>(below(kSequences))];
            if (a == b) continue;
            b->kv.share(a->kv);
            b->values = a->values;
            b->longest = a->longest;
        } else if (kind == 8) {
            const int64_t length = std::max<int64_t>(0, a->kv.length() - below(2 * s.rewind_span + kPage));
            const bool kept = a->kv.truncate(length);
            ASSERT_TRUE(kept || a->longest - length > s.rewind_span);
            a->values.resize(kept ? static_cast<size_t>(length) : 0);
            if (!kept) a->longest = 0;
        } else if (below(20) == 0) {
            a->kv.clear();
            a->values.clear();
            a->longest = 0;
        }
        a->check();
        if (::testing::Test::HasFatalFailure()) return;
    }
    for (const auto& q : sequences) q->check();
    sequences.clear();
    EXPECT_EQ(free_pages(pool), all);
}

TEST(KvCache, AnyOrderOfOperationsKeepsEverySequenceRightAndWithinItsShare) {
    for (uint32_t seed = 1; seed <= 20; ++seed) {
        random_operations(shape(), seed, 400);
        random_operations(shape(70, 0, 1), seed, 400);
        random_operations(shape(70, 64, 64), seed, 400);
        random_operations(shape(70, 57, 129, 640), seed, 400);
        KvShape bytes = shape();
        bytes.type = kernels::KvType::kInt8;
        random_operations(bytes, seed, 400);
        if (HasFatalFailure()) return;
    }
}

// The share of a sequence is what one sequence can hold at most, to the page.
TEST(KvCache, OneSequenceNeverHoldsMoreThanItsShare) {
    for (const int max_step : {1, 2, 63, 64, 65, 200}) {
        for (const int rewind : {0, 1, 63, 64, 100}) {
            KvPool pool(shape(70, rewind, max_step), 1);
            Checked a(pool);
            std::mt19937 random(1);
            for (int i = 0; i < 200 && a.kv.length() < 1000; ++i) {
                const auto n = std::min<int64_t>(1000 - a.kv.length(), 1 + static_cast<int64_t>(random() % max_step));
                a.add(static_cast<int>(n), 1);  // throws when the pool is empty
                if (random() % 4 == 0 && a.kv.length() > rewind) {
                    a.kv.truncate(a.kv.length() - rewind);
                    a.values.resize(static_cast<size_t>(a.kv.length()));
                }
            }
            a.check();
        }
    }
}

}  // namespace
}  // namespace samara::memory
