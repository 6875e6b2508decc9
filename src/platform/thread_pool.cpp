#include "src/platform/thread_pool.hpp"

#if defined(__linux__)
#include <sched.h>
#endif

#include "src/platform/error.hpp"

namespace samara::platform {
namespace {

// About 50 microseconds on current x86: longer than the gap between two regions of a decode step, short enough that an
// idle engine costs nothing.
constexpr int kSpins = 1500;

void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

void rest(int spins) {
    if (spins < kSpins) {
        pause_cpu();
    } else {
        std::this_thread::yield();
    }
}

int available_cpus() {
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
    const unsigned n = std::thread::hardware_concurrency();
    return n == 0 ? 1 : static_cast<int>(n);
}

ThreadPool::ThreadPool(int threads) {
    if (threads < 1) throw Error(ErrorCode::kInvalidArgument, "threads: expected at least 1");
    workers_.reserve(static_cast<size_t>(threads - 1));
    for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { worker_loop(t); });
}

ThreadPool::~ThreadPool() {
    stop_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
    for (std::thread& w : workers_) w.join();
}

void ThreadPool::run_region(int tasks, Entry entry, void* body) {
    if (tasks <= 0) return;
    if (workers_.empty() || tasks == 1) {
        for (int t = 0; t < tasks; ++t) entry(body, t, 0);
        return;
    }
    entry_.store(entry, std::memory_order_relaxed);
    body_.store(body, std::memory_order_relaxed);
    tasks_.store(tasks, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
    ticket_.store(uint64_t{epoch} << 32 | static_cast<uint32_t>(tasks), std::memory_order_release);
    epoch_.store(epoch);
    if (sleepers_.load() > 0) epoch_.notify_all();

    work(epoch, 0);
    spin_until([&] { return done_.load(std::memory_order_acquire) >= tasks; });
    std::exception_ptr failure;
    {
        const std::lock_guard lock(failure_mutex_);
        std::swap(failure, failure_);
    }
    if (failure) std::rethrow_exception(failure);
}

void ThreadPool::work(uint32_t epoch, int thread) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    for (;;) {
        const auto left = static_cast<int>(ticket & 0xffffffffU);
        if ((ticket >> 32) != epoch || left == 0) return;
        if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
            continue;
        }
        // A task was taken, so the region lasts until it is counted as done: only now are these values sure to be its.
        const Entry entry = entry_.load(std::memory_order_relaxed);
        void* const body = body_.load(std::memory_order_relaxed);
        const int task = tasks_.load(std::memory_order_relaxed) - left;
        try {
            entry(body, task, thread);
        } catch (...) {
            const std::lock_guard lock(failure_mutex_);
            if (!failure_) failure_ = std::current_exception();
        }
        done_.fetch_add(1, std::memory_order_acq_rel);
        ticket = ticket_.load(std::memory_order_acquire);
    }
}

void ThreadPool::worker_loop(int thread) {
    uint32_t seen = 0;
    for (;;) {
        uint32_t epoch = epoch_.load(std::memory_order_acquire);
        for (int spins = 0; epoch == seen && spins < kSpins; ++spins) {
            pause_cpu();
            epoch = epoch_.load(std::memory_order_acquire);
        }
        if (epoch == seen) {
            sleepers_.fetch_add(1);
            epoch_.wait(seen);
            sleepers_.fetch_sub(1);
            continue;
        }
        if (stop_.load(std::memory_order_acquire)) return;
        seen = epoch;
        work(epoch, thread);
    }
}

}  // namespace samara::platform
