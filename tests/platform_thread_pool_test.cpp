// The pool of threads for very short regions. Worth running with -DSAMARA_SANITIZE=thread.

#include <gtest/gtest.h>

#include <chrono>

#include "src/platform/error.hpp"
#include "src/platform/thread_pool.hpp"

namespace samara::platform {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceInRegionsOfEverySize) {
    for (const int threads : {1, 2, 3, 8}) {  // also more than there are CPUs
        ThreadPool pool(threads);
        EXPECT_EQ(pool.size(), threads);
        std::vector<int> counts(64);  // plain: a task that ran twice, or late, is a race for the sanitizer too
        for (int region = 0; region < 20000 / threads; ++region) {
            const int tasks = region * 7 % 64;
            std::fill(counts.begin(), counts.end(), 0);
            pool.run(tasks, [&](int task, int thread) {
                counts[static_cast<size_t>(task)] += 1 + (thread < 0 || thread >= threads ? 100 : 0);
            });
            for (int t = 0; t < 64; ++t) ASSERT_EQ(counts[static_cast<size_t>(t)], t < tasks ? 1 : 0) << region;
        }
    }
}

// A worker that wakes late for a small region must not take a task of the larger one that is being set up.
TEST(ThreadPool, ALateWorkerTakesNoTaskOfTheNextRegion) {
    ThreadPool pool(4);
    std::atomic<int> total{0};
    for (int region = 0; region < 20000; ++region) {
        const int tasks = region % 2 == 0 ? 2 : 40;
        total = 0;
        pool.run(tasks, [&](int, int) { total.fetch_add(1, std::memory_order_relaxed); });
        ASSERT_EQ(total.load(), tasks);
    }
}

TEST(ThreadPool, NoTwoTasksShareAThreadNumberAtATime) {
    ThreadPool pool(3);
    std::atomic<int> busy[3] = {};
    std::atomic<int> clashes{0};
    for (int region = 0; region < 200; ++region) {
        pool.run(20, [&](int, int thread) {
            clashes += busy[thread].fetch_add(1) != 0;
            for (int i = 0; i < 200; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
            busy[thread].fetch_sub(1);
        });
    }
    EXPECT_EQ(clashes.load(), 0);
}

TEST(ThreadPool, SeesWhatTheCallerWroteAndTheCallerSeesWhatTasksWrote) {
    ThreadPool pool(4);
    std::vector<int64_t> in(32), out(32);
    for (int64_t region = 0; region < 2000; ++region) {
        for (size_t i = 0; i < in.size(); ++i) in[i] = region * 100 + static_cast<int64_t>(i);
        pool.run(32, [&](int t, int) { out[static_cast<size_t>(t)] = 2 * in[static_cast<size_t>(t)]; });
        for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i], 2 * in[i]);
    }
}

TEST(ThreadPool, ATasksExceptionReachesTheCallerAndThePoolGoesOn) {
    for (const int threads : {1, 2, 5}) {
        ThreadPool pool(threads);
        for (int round = 0; round < 200; ++round) {
            const auto throwing = [&](int task, int) {
                if (task % 3 == 1) throw Error(ErrorCode::kNumeric, "task");
            };
            try {
                pool.run(10, throwing);
                FAIL() << "expected an error";
            } catch (const Error& e) {
                EXPECT_EQ(e.code(), ErrorCode::kNumeric);
            }
            std::atomic<int> ran{0};
            pool.run(10, [&](int, int) { ++ran; });
            ASSERT_EQ(ran.load(), 10);
        }
    }
}

TEST(ThreadPool, EndsWhileItsThreadsSpinOrAreParkedOrNeverWorked) {
    for (int i = 0; i < 50; ++i) ThreadPool pool(4);
    for (int i = 0; i < 50; ++i) {
        ThreadPool pool(4);
        pool.run(8, [](int, int) {});
    }
    ThreadPool parked(4);
    parked.run(8, [](int, int) {});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than a worker spins; either way must end well
    parked.run(8, [](int, int) {});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

TEST(ThreadPool, FewerThanOneThreadIsRefused) {
    EXPECT_THROW(ThreadPool pool(0), Error);
    EXPECT_GE(available_cpus(), 1);
}

}  // namespace
}  // namespace samara::platform
