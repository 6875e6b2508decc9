#pragma once
// What several commands measure alike.

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

namespace samara::cli {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start);

/// Of at least one value; the upper one of the two in the middle.
double median(std::vector<double> values);

/// Token ids for measuring speed. Any do: the work of a token does not depend on its text, and the experts of random
/// ids spread over all of them.
std::vector<int32_t> random_prompt(uint32_t count, uint32_t vocab);

/// The most memory this process has held, file pages included.
uint64_t peak_rss_bytes();

/// -log of the probability that softmax over `logits` gives `token`; the sum is in double.
double negative_log_likelihood(std::span<const float> logits, int32_t token);

}  // namespace samara::cli
