// How fast the integer matmuls read weights, beside a plain streaming read by the same threads in the same run.
//
// Decode: `n1` in names. `cache` multiplies one expert's matrix again and again; `memory` walks 640 MB of them.
// Prefill: other n. Counters: Gw/s = 1e9 weights x tokens a second; GB/s = 1e9 bytes of the matrix a second; of_read =
// GB/s over the streaming read's. Each is the best window of a run, since other work on the machine can only slow it.

#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/kernels/kernels.hpp"

namespace samara::kernels {
namespace {

using Matmul = decltype(KernelTable::matmul);

constexpr size_t kBufferBytes = size_t{640} << 20;
constexpr int64_t kWindowBytes = 64 << 20;
constexpr int64_t kMaxCols = 4096;

/// CPU time of this thread: waits for memory count, other programs' turns do not.
double thread_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Weights for every layout: any two or four of these bytes are a float of ordinary size, so no operation is slow.
const std::byte* weights() {
    struct Free {
        void operator()(std::byte* p) const { std::free(p); }
    };
    static const std::unique_ptr<std::byte[], Free> buffer = [] {
        std::unique_ptr<std::byte[], Free> data(static_cast<std::byte*>(std::aligned_alloc(4096, kBufferBytes)));
        uint64_t state = 1;
        for (size_t i = 0; i < kBufferBytes; ++i) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            data[i] = static_cast<std::byte>(0x3c + (state >> 62) % 3);
        }
        return data;
    }();
    return buffer.get();
}

uint64_t sum_words(const std::byte* begin, int64_t bytes) {
    const auto* words = reinterpret_cast<const uint64_t*>(begin);
    uint64_t sum = 0;
    for (int64_t i = 0; i < bytes / 8; ++i) sum += words[i];
    return sum;
}

/// Bytes a second of `threads` threads that each read their share of the buffer in order: best of some windows.
double streaming_read(int threads) {
    static std::mutex mutex;
    static std::map<int, double> known;
    const std::lock_guard lock(mutex);
    if (known.contains(threads)) return known[threads];
    std::vector<double> rate(static_cast<size_t>(threads));
    std::vector<std::thread> readers;
    for (int i = 0; i < threads; ++i) {
        readers.emplace_back([i, threads, &rate] {
            const int64_t share = static_cast<int64_t>(kBufferBytes) / threads;
            for (int pass = 0; pass < 6; ++pass) {
                for (int64_t at = 0; at + kWindowBytes <= share; at += kWindowBytes) {
                    const double start = thread_seconds();
                    benchmark::DoNotOptimize(sum_words(weights() + i * share + at, kWindowBytes));
                    auto& best = rate[static_cast<size_t>(i)];
                    best = std::max(best, static_cast<double>(kWindowBytes) / (thread_seconds() - start));
                }
            }
        });
    }
    for (auto& reader : readers) reader.join();
    double total = 0;
    for (const double r : rate) total += r;
    return known[threads] = total;
}

/// Tokens with plausible values; sums are of no interest here.
struct Tokens {
    explicit Tokens(int n)
        : q(static_cast<size_t>(n * kMaxCols), int16_t{-259}),
          high(q.size(), int8_t{-1}),
          low(q.size(), int8_t{-3}),
          sums(q.size() / 16, 16 * -259),
          scale(static_cast<size_t>(n), 1e-4f),
          sum(static_cast<size_t>(n), -259) {
        view = {.n = n,
                .stride = kMaxCols,
                .q = q.data(),
                .high = high.data(),
                .low = low.data(),
                .scale = scale.data(),
                .sum = sum.data(),
                .sums16 = sums.data()};
    }
    std::vector<int16_t> q;
    std::vector<int8_t> high, low;
    std::vector<int32_t> sums;
    std::vector<float> scale;
    std::vector<int32_t> sum;
    Activations view;
};

struct Case {
    Matmul matmul;
    Matrix matrix;
    int n;
    bool memory;
};

void run(benchmark::State& state, const Case& c) {
    const int threads = state.threads();
    const int thread = state.thread_index();
    const int groups = c.matrix.rows / kRowGroup;
    const int begin = groups * thread / threads;
    const int end = groups * (thread + 1) / threads;
    const int64_t bytes = round_up(matrix_bytes(c.matrix), 64);
    const int64_t matrices = c.memory ? static_cast<int64_t>(kBufferBytes) / bytes : 1;
    const int64_t window = c.memory ? std::max<int64_t>(1, kWindowBytes / bytes) : 16;

    Tokens tokens(c.n);
    tokens.view.cols = c.matrix.cols;
    std::vector<float> out(static_cast<size_t>(c.n) * static_cast<size_t>(c.matrix.rows));
    Matrix w = c.matrix;
    int64_t next = 0;
    double best = 1e30;
    for (auto _ : state) {
        const double start = thread_seconds();
        for (int64_t i = 0; i < window; ++i) {
            w.data = weights() + next * bytes;
            next = (next + 1) % matrices;
            c.matmul(w, begin, end, tokens.view, nullptr, c.n, out.data(), c.matrix.rows);
        }
        best = std::min(best, (thread_seconds() - start) / static_cast<double>(window));
        benchmark::ClobberMemory();
    }
    const double share = static_cast<double>(end - begin) / groups;
    const double bytes_per_second = share * static_cast<double>(bytes) / best;
    state.counters["Gw/s"] = share * c.matrix.rows * c.matrix.cols * c.n / best / 1e9;
    state.counters["GB/s"] = bytes_per_second / 1e9;
    if (c.memory) state.counters["of_read"] = bytes_per_second / streaming_read(threads);
}

void report_read(benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(streaming_read(static_cast<int>(state.range(0))));
    state.counters["GB/s"] = streaming_read(static_cast<int>(state.range(0))) / 1e9;
}

struct NamedMatrix {
    const char* name;
    Matrix matrix;
};

const NamedMatrix kMatrices[] = {
    {"ternary_k2048", {.layout = Layout::kTernary, .rows = 1024, .cols = 2048}},
    {"ternary_k512", {.layout = Layout::kTernary, .rows = 2048, .cols = 512}},
    {"ternary_dense_k2048", {.layout = Layout::kTernaryDense, .rows = 1024, .cols = 2048}},
    {"ternary_dense_k512", {.layout = Layout::kTernaryDense, .rows = 2048, .cols = 512}},
    {"ternary_blocks_k2048", {.layout = Layout::kTernaryBlocks, .rows = 1024, .cols = 2048}},
    {"nibble_k_k2048", {.layout = Layout::kNibbleK, .rows = 512, .cols = 2048}},
    {"nibble32_k576", {.layout = Layout::kNibble, .group = 32, .rows = 1536, .cols = 576}},
    {"byte32_k576", {.layout = Layout::kByte, .group = 32, .offset = 128, .rows = 1536, .cols = 576}},
    {"byte16_k2048", {.layout = Layout::kByte, .group = 16, .offset = 32, .rows = 512, .cols = 2048}},
};

void add_case(const std::string& set, const NamedMatrix& m, const Case& c) {
    const std::string name = set + "/" + m.name + "/n" + std::to_string(c.n) + (c.memory ? "/memory" : "/cache");
    auto* b = benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) { run(state, c); });
    b->UseRealTime()->MinTime(0.3)->Threads(1);
    if (c.memory) b->Threads(2);
}

void add_set(const std::string& set, Matmul matmul) {
    for (const NamedMatrix& m : kMatrices) {
        for (const int n : {1, 2, 4, 16, 33, 128}) add_case(set, m, {matmul, m.matrix, n, false});
        for (const int n : {1, 2, 16}) add_case(set, m, {matmul, m.matrix, n, true});
    }
}

}  // namespace
}  // namespace samara::kernels

int main(int argc, char** argv) {
    using namespace samara::kernels;
    weights();
    benchmark::RegisterBenchmark("streaming_read", report_read)->Arg(1)->Arg(2)->Iterations(1);
    for (const Isa isa : supported_isas()) {
        if (isa != Isa::kScalar) add_set(std::string(isa_name(isa)), kernel_table(isa).matmul);
    }
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
}
