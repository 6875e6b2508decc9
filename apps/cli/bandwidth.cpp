#include "apps/cli/bandwidth.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <span>

#include "src/platform/mapped_file.hpp"
#include "src/platform/memory_block.hpp"
#include "src/platform/thread_pool.hpp"

namespace samara::cli {
namespace {

constexpr uint64_t kBytes = uint64_t{1} << 30;
constexpr uint64_t kPiece = uint64_t{1} << 20;

// Eight independent sums keep several loads in flight; the prefetch distance is that of the ternary kernels.
uint64_t read_all(std::span<const std::byte> bytes) {
    uint64_t sums[8] = {};
    const std::byte* p = bytes.data();
    for (size_t i = 0; i + 64 <= bytes.size(); i += 64) {
        __builtin_prefetch(p + i + 4096);
        uint64_t words[8];
        std::memcpy(words, p + i, 64);
        for (int k = 0; k < 8; ++k) sums[k] += words[k];
    }
    uint64_t sum = 0;
    for (const uint64_t s : sums) sum += s;
    return sum;
}

}  // namespace

double measure_bandwidth(const std::string& path, bool mapped, int threads, int rounds) {
    MappedFile file;
    platform::MemoryBlock block;
    std::span<const std::byte> bytes;
    if (mapped) {
        file = MappedFile::open(path);
        bytes = file.bytes().first(std::min<uint64_t>(file.size(), kBytes));
    } else {
        block = platform::MemoryBlock(kBytes, "bandwidth measurement");
        std::memset(block.data(), 1, kBytes);
        bytes = {block.data(), kBytes};
    }
    platform::ThreadPool pool(threads);
    const auto pieces = static_cast<int>((bytes.size() + kPiece - 1) / kPiece);
    const auto repeats = static_cast<int>((kBytes + bytes.size() - 1) / bytes.size());
    std::atomic<uint64_t> sum{0};  // keeps the reads from being optimised away
    double best = 0;
    for (int round = 0; round <= rounds; ++round) {  // round 0 brings the pages in
        const auto start = std::chrono::steady_clock::now();
        pool.run(pieces * repeats, [&](int task, int) {
            const uint64_t begin = static_cast<uint64_t>(task % pieces) * kPiece;
            sum += read_all(bytes.subspan(begin, std::min<uint64_t>(kPiece, bytes.size() - begin)));
        });
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (round > 0) best = std::max(best, static_cast<double>(bytes.size()) * repeats / seconds);
    }
    return sum == 1 ? 0 : best;
}

}  // namespace samara::cli
