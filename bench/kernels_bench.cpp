// Float kernels at Maple's shapes, per set: attention of 4 query heads over blocks of one KV head, the BF16 router, and
// the vector kernels. Every line carries a rate to hold against a limit: GFLOP/s against the FMA units, GB/s against
// memory.
//   kernels_bench --benchmark_filter=attend

#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "src/kernels/kernels.hpp"
#include "src/memory/arena.hpp"

namespace samara::kernels {
namespace {

std::vector<float> normals(size_t n, float scale = 1.0f) {
    std::mt19937 engine(1);
    std::normal_distribution<float> draw(0.0f, scale);
    std::vector<float> v(n);
    for (float& x : v) x = draw(engine);
    return v;
}

void attend(benchmark::State& state, Isa isa, int heads, int head_dim) {
    const KernelTable& set = kernel_table(isa);
    const auto positions = static_cast<int>(state.range(0));  // of context: 64 stay in L1, 4096 in L2
    const auto dim = static_cast<size_t>(head_dim);
    std::vector<int16_t> k(static_cast<size_t>(positions) * dim);
    std::mt19937 engine(2);
    for (int16_t& x : k) x = static_cast<int16_t>(engine() % 65279 - 32639);
    const std::vector<int16_t> v = k;
    const std::vector<float> scales(static_cast<size_t>(positions), 1e-5f);
    const std::vector<float> q = normals(static_cast<size_t>(heads) * dim);
    std::vector<float> max(16), sum(16), out(16 * dim);
    const float scale = 0.088f;
    for (auto _ : state) {
        for (int at = 0; at < positions; at += kKeyBlock) {
            const auto row = static_cast<size_t>(at);
            set.attend_block(q.data(), heads, head_dim, scale,
                             {k.data() + row * dim, v.data() + row * dim, scales.data() + row, scales.data() + row, 0},
                             0, kKeyBlock, {max.data(), sum.data(), out.data()});
            benchmark::DoNotOptimize(out.data());
        }
    }
    const double flops = 4.0 * heads * head_dim * positions;  // two multiply-adds a head, key and dimension
    state.counters["GFLOP/s"] = benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
    state.counters["GB/s"] =
        benchmark::Counter(4.0 * head_dim * positions * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

// A prompt's attention: 64 query rows together, as 16 tokens of 4 heads are.
void attend_together(benchmark::State& state, Isa isa, int head_dim) {
    const KernelTable& set = kernel_table(isa);
    const auto positions = static_cast<int>(state.range(0));
    const auto dim = static_cast<size_t>(head_dim);
    std::vector<int16_t> k(static_cast<size_t>(positions) * dim);
    std::mt19937 engine(2);
    for (int16_t& x : k) x = static_cast<int16_t>(engine() % 65279 - 32639);
    const std::vector<int16_t> v = k;
    const std::vector<float> scales(static_cast<size_t>(positions), 1e-5f);
    memory::Arena arena(size_t{1} << 20);  // aligned, as in the forward pass
    const std::vector<float> normal = normals(kQueryRows * dim);
    auto* q = arena.take<float>(static_cast<int64_t>(normal.size()));
    std::copy(normal.begin(), normal.end(), q);
    auto* begin = arena.take<float>(kQueryRows);
    auto* end = arena.take<float>(kQueryRows);
    std::fill_n(end, kQueryRows, static_cast<float>(kKeyBlock));
    const QueryRows rows{kQueryRows,
                         q,
                         begin,
                         end,
                         arena.take<float>(kQueryRows),
                         arena.take<float>(kQueryRows),
                         arena.take<float>(int64_t{kQueryRows} * head_dim),
                         arena.take<float>(attend_rows_scratch(head_dim))};
    for (auto _ : state) {
        for (int at = 0; at < positions; at += kKeyBlock) {
            const auto row = static_cast<size_t>(at);
            set.attend_rows(rows, head_dim, 0.088f,
                            {k.data() + row * dim, v.data() + row * dim, scales.data() + row, scales.data() + row, 0},
                            0, kKeyBlock);
            benchmark::DoNotOptimize(rows.out);
        }
    }
    const double flops = 4.0 * kQueryRows * head_dim * positions;
    state.counters["GFLOP/s"] = benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void router(benchmark::State& state, Isa isa, Layout layout) {
    const KernelTable& set = kernel_table(isa);
    constexpr int kRows = 256;
    constexpr int kCols = 2048;
    constexpr int kMatrices = 24;  // layers, so that decode reads weights from beyond L2
    const auto n = static_cast<int>(state.range(0));
    const size_t bytes = layout == Layout::kFloat32 ? 4 : 2;
    const std::vector<uint16_t> weights(bytes / 2 * kMatrices * kRows * kCols, 0x3c01);
    const std::vector<float> x = normals(static_cast<size_t>(n) * kCols);
    std::vector<float> out(static_cast<size_t>(n) * kRows);
    Activations a;
    a.n = n;
    a.cols = kCols;
    a.stride = kCols;
    a.x = x.data();
    size_t layer = 0;
    for (auto _ : state) {
        const uint16_t* data = weights.data() + layer * (bytes / 2 * kRows * kCols);
        const Matrix w{layout, 0, 0, kRows, kCols, reinterpret_cast<const std::byte*>(data)};
        set.matmul(w, 0, kRows / kRowGroup, a, nullptr, n, out.data(), kRows);
        benchmark::DoNotOptimize(out.data());
        layer = (layer + 1) % kMatrices;
    }
    const double cells = static_cast<double>(kRows) * kCols;
    state.counters["GFLOP/s"] = benchmark::Counter(2 * cells * n * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
    state.counters["GB/s"] =
        benchmark::Counter(cells * static_cast<double>(bytes) * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void vectors(benchmark::State& state, Isa isa, const std::string& kernel) {
    const KernelTable& set = kernel_table(isa);
    constexpr int kSize = 2048;
    const std::vector<float> x = normals(kSize);
    const std::vector<float> y = normals(kSize);
    std::vector<float> out(kSize);
    std::vector<int16_t> q(kSize);
    std::vector<int8_t> high(kSize), low(kSize);
    std::vector<int32_t> sums(kSize / 16);
    float scale = 0;
    int32_t sum = 0;
    for (auto _ : state) {
        if (kernel == "quantise") {
            set.quantise(x.data(), kSize, kSize, {q.data(), high.data(), low.data(), sums.data(), &scale, &sum});
        } else if (kernel == "rms_norm") {
            set.rms_norm(x.data(), y.data(), kSize, 1e-6f, out.data());
        } else if (kernel == "swiglu") {
            set.swiglu(x.data(), y.data(), kSize, 7.0f, out.data());
        } else {
            set.exp(x.data(), kSize, out.data());
        }
        benchmark::DoNotOptimize(out.data());
        benchmark::ClobberMemory();
    }
    state.counters["Gelements/s"] = benchmark::Counter(kSize * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
    for (const Isa isa : supported_isas()) {
        const std::string name(isa_name(isa));
        for (const auto& [heads, dim] : {std::pair{4, 128}, {3, 64}}) {
            const std::string shape = "/heads" + std::to_string(heads) + "/dim" + std::to_string(dim);
            benchmark::RegisterBenchmark(("attend/" + name + shape).c_str(), attend, isa, heads, dim)
                ->Arg(64)
                ->Arg(4096);
        }
        benchmark::RegisterBenchmark(("attend_rows/" + name + "/dim128").c_str(), attend_together, isa, 128)
            ->Arg(64)
            ->Arg(2048);
        benchmark::RegisterBenchmark(("router_bf16/" + name).c_str(), router, isa, Layout::kBfloat16)->Arg(1)->Arg(512);
        benchmark::RegisterBenchmark(("router_f16/" + name).c_str(), router, isa, Layout::kFloat16)->Arg(1)->Arg(512);
        benchmark::RegisterBenchmark(("router_f32/" + name).c_str(), router, isa, Layout::kFloat32)->Arg(1)->Arg(512);
        for (const char* kernel : {"quantise", "rms_norm", "swiglu", "exp"})
            benchmark::RegisterBenchmark((std::string(kernel) + "/" + name).c_str(), vectors, isa, std::string(kernel));
    }
}

}  // namespace
}  // namespace samara::kernels

int main(int argc, char** argv) {
    samara::kernels::register_all();
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
}
