#pragma once
// A persistent pool for very short parallel regions (microseconds): workers take tasks one by one, so that fast and
// slow cores share the work as it comes. Idle workers spin briefly, then park.

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace samara::platform {

/// Number of CPUs this process may run on, at least 1.
int available_cpus();

/// Lets the CPU rest for an instant; after some thousand calls of one wait, `spins`, lets other threads run.
void rest(int spins);

/// Waits for something that another thread does within microseconds.
template <class Done>
void spin_until(Done&& done) {
    for (int spins = 0; !done(); ++spins) rest(spins);
}

class ThreadPool {
  public:
    /// `threads` >= 1 counts the calling thread: threads - 1 workers are started.
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return static_cast<int>(workers_.size()) + 1; }

    /// Calls body(task, thread) once for every task in [0, tasks), thread in [0, size()), and returns when all are
    /// done. The first exception a task throws is rethrown here after the region. One region at a time; not re-entrant.
    template <class Body>
    void run(int tasks, Body&& body) {
        using Plain = std::remove_reference_t<Body>;
        run_region(
            tasks, [](void* b, int task, int thread) { (*static_cast<Plain*>(b))(task, thread); },
            const_cast<void*>(static_cast<const void*>(&body)));
    }

  private:
    using Entry = void (*)(void* body, int task, int thread);
    void run_region(int tasks, Entry entry, void* body);
    void work(uint32_t epoch, int thread);
    void worker_loop(int thread);

    // The epoch and the number of tasks left share one word, so that a worker that comes late to a finished region
    // cannot take a task of the following one.
    std::atomic<uint64_t> ticket_{0};
    std::atomic<uint32_t> epoch_{0};
    std::atomic<int> tasks_{0};
    std::atomic<int> done_{0};
    std::atomic<Entry> entry_{nullptr};
    std::atomic<void*> body_{nullptr};
    std::atomic<int> sleepers_{0};
    std::atomic<bool> stop_{false};
    std::mutex failure_mutex_;
    std::exception_ptr failure_;
    std::vector<std::thread> workers_;
};

}  // namespace samara::platform
