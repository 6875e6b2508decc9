#include "apps/cli/prediction.hpp"

#include <algorithm>

namespace samara::cli {

Prediction predict(const Device& device, const ModelNeeds& needs, uint64_t prompt) {
    const auto bytes = static_cast<double>(needs.bytes_per_token());
    const Range reads{device.bandwidth.low * device.reachable.low * kDecodeEfficiency.low,
                      device.bandwidth.high * device.reachable.high * kDecodeEfficiency.high};
    Prediction p;
    p.decode_tps = {reads.low / bytes, reads.high / bytes};

    if (device.int8_ops > 0) {
        const auto tokens = static_cast<double>(prompt);
        const double ops = tokens * static_cast<double>(kOpsPerWeight * needs.projection_weights);
        const uint64_t chunks = (prompt + kPromptChunk - 1) / kPromptChunk;
        // A prompt takes as long as the slower of computing it and of reading the weights, once a chunk (but no more
        // than its tokens would read one by one).
        const double read = std::min(static_cast<double>(chunks * needs.weight_bytes), tokens * bytes);
        const auto seconds = [&](double share, double rate) {
            return std::max(ops / (device.int8_ops * share), read / rate);
        };
        const double longest = seconds(kPromptEfficiency.low, reads.low);
        const double shortest = seconds(kPromptEfficiency.high, reads.high);
        p.first_token_seconds = {shortest, longest};
        p.prefill_tps = {tokens / longest, tokens / shortest};
    }

    const auto ram = static_cast<double>(device.ram), memory = static_cast<double>(needs.memory);
    p.fit = memory <= ram * device.app_share.low    ? Fit::kYes
            : memory <= ram * device.app_share.high ? Fit::kPerhaps
                                                    : Fit::kNo;
    return p;
}

}  // namespace samara::cli
