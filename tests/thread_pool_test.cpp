#include "src/platform/thread_pool.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <stdexcept>

#include "src/platform/error.hpp"

namespace samara::platform {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceAndItsWritesAreSeenAfterTheRegion) {
    for (const int threads : {1, 2, 4}) {
        ThreadPool pool(threads);
        ASSERT_EQ(pool.size(), threads);
        for (int region = 0; region < 2000; ++region) {
            const int tasks = region % 37;
            std::vector<int> runs(static_cast<size_t>(tasks));  // plain ints: a race would show under ThreadSanitizer
            pool.run(tasks, [&](int task, int thread) {
                if (thread >= 0 && thread < threads) ++runs[static_cast<size_t>(task)];
            });
            ASSERT_EQ(runs, std::vector<int>(static_cast<size_t>(tasks), 1))
                << threads << " threads, region " << region;
        }
    }
}

TEST(ThreadPool, OneThreadsTasksNeverOverlap) {
    ThreadPool pool(3);
    std::vector<int64_t> sums(3);
    for (int region = 0; region < 200; ++region) {
        pool.run(100, [&](int task, int thread) { sums[static_cast<size_t>(thread)] += task; });
    }
    EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), int64_t{200} * 4950);
}

TEST(ThreadPool, WorksAfterItsWorkersHaveParked) {
    ThreadPool pool(2);
    int tasks_run = 0;
    for (int region = 0; region < 3; ++region) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than they spin on most machines
        std::atomic<int> count{0};
        pool.run(8, [&](int, int) { ++count; });
        tasks_run += count;
    }
    EXPECT_EQ(tasks_run, 24);
}

TEST(ThreadPool, RethrowsATasksExceptionAndStaysUsable) {
    for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        EXPECT_THROW(pool.run(20,
                              [](int task, int) {
                                  if (task == 7) throw std::out_of_range("seven");
                              }),
                     std::out_of_range);
        std::vector<int> runs(20);
        pool.run(20, [&](int task, int) { ++runs[static_cast<size_t>(task)]; });
        EXPECT_EQ(runs, std::vector<int>(20, 1));
    }
}

TEST(ThreadPool, RefusesFewerThanOneThread) {
    EXPECT_THROW(ThreadPool(0), Error);
    EXPECT_THROW(ThreadPool(-1), Error);
}

TEST(ThreadPool, ThisProcessMayUseACpu) { EXPECT_GE(available_cpus(), 1); }

}  // namespace
}  // namespace samara::platform
