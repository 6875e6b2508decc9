#pragma once
// An approximate vocabulary head: clusters of rows made when the model was packed (src/formats/flash_index.hpp). A step
// multiplies the clusters' mean rows, then the rows of the best clusters and of those that hold the control tokens;
// every other token counts as absent. The logits of the tokens it gives are exact.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/kernels/kernels.hpp"
#include "src/model/activations.hpp"
#include "src/model/head.hpp"
#include "src/model/weights.hpp"
#include "src/platform/thread_pool.hpp"

namespace samara::model {

/// How often the approximate head was right, of the steps that were compared with the whole head.
struct FlashCounts {
    uint64_t steps = 0;     // in all
    uint64_t compared = 0;  // of them, with HeadMode::kFlashChecked
    uint64_t best = 0;      // compared steps whose best token was read
    uint64_t top20 = 0;     // of the 20 best tokens of each compared step, how many were read
};

class FlashHead {
  public:
    /// References must outlive the object. All memory is taken here.
    FlashHead(const FlashWeights& weights, const kernels::KernelTable& kernels, platform::ThreadPool& pool);

    static uint64_t scratch_bytes(int vocab);

    /// Fills `top` for row 0 of `x`. False when the clusters read hold fewer than top.k
    /// other tokens: read the head whole.
    bool run(const ActivationBuffer& x, TopLogits& top);

    /// Compares the last run with all logits.
    void compare(std::span<const float> all);

    uint64_t bytes_per_step() const { return bytes_; }
    const FlashCounts& counts() const { return counts_; }

  private:
    bool is_read(int32_t id) const;
    void choose_clusters(const ActivationBuffer& x);
    void multiply_groups(int begin, int end, const ActivationBuffer& x);

    const FlashWeights& weights_;
    const kernels::KernelTable& kernels_;
    platform::ThreadPool& pool_;
    int probes_;                      // clusters read beside those that are always read
    uint64_t bytes_;                  // of a step
    std::vector<float> scores_;       // (clusters)
    std::vector<int32_t> clusters_;   // (clusters): the best first
    std::vector<bool> read_;          // (clusters), of the last run
    std::vector<float> rows_;         // (vocab): logits by row of the index
    std::vector<float> second_rows_;  // (vocab): of a second term
    std::vector<int32_t> read_rows_;
    TopLogits best_;  // of all logits, to compare
    FlashCounts counts_;
};

}  // namespace samara::model
