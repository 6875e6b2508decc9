#include "apps/cli/measure.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>

namespace samara::cli {

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

std::vector<int32_t> random_prompt(uint32_t count, uint32_t vocab) {
    std::vector<int32_t> tokens(count);
    uint64_t state = 20260801;
    for (int32_t& t : tokens) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        t = static_cast<int32_t>((state >> 33) % vocab);
    }
    return tokens;
}

uint64_t peak_rss_bytes() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

double negative_log_likelihood(std::span<const float> logits, int32_t token) {
    const float top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
    return std::log(sum) + top - logits[static_cast<size_t>(token)];
}

}  // namespace samara::cli
