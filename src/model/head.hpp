#pragma once
// The vocabulary head read in part: the k best tokens and their exact logits, without reading every weight.
//
// Every row is approximated from the top two bits of its codes. The rows that look best are refined to all of their
// bits, which gives a bound that the k-th best logit reaches. A row whose approximation lies more than nine standard
// deviations of what it leaves out below that bound is dropped; the others get their third bits, are judged again, get
// their last bits, and those that remain (k and a few) are computed by the definition, KernelTable::matmul. So the
// logits given are exact, and a wrong set of tokens needs a row nine standard deviations off: about 1e-19 a row if what
// is left out is random, 1e-14 a step for 150,000 rows.

#include <cstdint>
#include <span>
#include <vector>

#include "src/kernels/kernels.hpp"
#include "src/kernels/screen.hpp"
#include "src/platform/thread_pool.hpp"

namespace samara::model {

enum class HeadMode {
    kFull,          // always whole: the definition
    kScreened,      // in part where the layout, the instruction set and the request allow it
    kChecked,       // both, compared: a difference is an Error(kInternal)
    kFlash,         // approximate: src/model/flash.hpp
    kFlashChecked,  // the same, counting how often it finds the whole head's best tokens
};

/// A request for the best tokens after the last one of a sequence, and its answer.
struct TopLogits {
    int k = 0;                      // 1 to kMaxTop
    std::span<const int32_t> also;  // ids whose logits are wanted whatever they are; may repeat
    // The k best of the other ids (larger logit first, then smaller id), then each of `also` once, ascending.
    std::vector<int32_t> ids;
    std::vector<float> logits;  // exact

    void reserve(int top, int others);
};

inline constexpr int kMaxTop = 256;
inline constexpr float kScreenDeviations = 9.0F;

/// Fills `top` from all logits.
void choose_top(std::span<const float> logits, TopLogits& top);
/// The same, where logits[r] is that of token order[r], order[row_of[id]] == id, and all rows but `rows` and those of
/// top.also are absent: their logits are not looked at.
void choose_top(std::span<const float> logits, std::span<const int32_t> rows, std::span<const int32_t> order,
                std::span<const int32_t> row_of, TopLogits& top);

/// What the screen did, in sums over its steps.
struct ScreenCounts {
    uint64_t steps = 0;
    uint64_t fallbacks = 0;   // steps that read the head whole after all
    uint64_t third_rows = 0;  // rows whose third bits were read
    uint64_t last_rows = 0;   // rows whose last bits were read
    uint64_t exact_rows = 0;  // rows computed by the definition
    uint64_t bytes = 0;       // read
};

class ScreenedHead {
  public:
    /// References must outlive the object. All memory is taken here.
    ScreenedHead(const kernels::Matrix& head, const kernels::KernelTable& kernels, platform::ThreadPool& pool);

    static uint64_t scratch_bytes(int vocab, int hidden, int max_others);
    /// False when this head or instruction set has no screen: read it whole.
    bool possible() const { return screen_ != nullptr; }

    /// Fills `top`, using logits[vocab] as scratch. False when the screen does not help (values that are not finite, or
    /// too many rows left): read the head whole.
    bool run(const kernels::Activations& a, float* logits, TopLogits& top);

    const ScreenCounts& counts() const { return counts_; }

  private:
    struct Task {       // one stretch of rows
        int kept = 0;   // rows refined to the last bit, at the stretch's beginning of rows_ and refined_
        int third = 0;  // rows whose third bits were read
        int last = 0;   // rows whose last bits were read
        bool bad = false;
    };

    void approximate(int task);
    float lower_bound(int k);
    void refine(int task, float bound);
    void exact(const kernels::Activations& a, std::span<int32_t> rows, float* logits, TopLogits& top);
    void count_bytes();
    int begin(int task) const;
    int end(int task) const;
    float rounding(int32_t row) const;

    const kernels::Matrix& head_;
    const kernels::KernelTable& kernels_;
    platform::ThreadPool& pool_;
    const kernels::ScreenKernels* screen_ = nullptr;
    float rounding_ = 0;  // of a row's norm
    kernels::ScreenInput x_;
    std::vector<Task> tasks_;
    std::vector<float> value_;    // (padded rows): approximation
    std::vector<float> norm_;     // (padded rows)
    std::vector<int32_t> rows_;   // (padded rows): rows in play, a stretch in its own place
    std::vector<float> refined_;  // (padded rows): their values
    std::vector<int32_t> best_;   // (tasks, kBestOfTask) rows that look best, then survivors
    std::vector<float> scores_;   // their values
    std::vector<int32_t> groups_;
    ScreenCounts counts_;
};

}  // namespace samara::model
