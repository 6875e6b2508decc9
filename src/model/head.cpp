#include "src/model/head.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace samara::model {
namespace {

using kernels::kRowGroup;
using kernels::Layout;
using kernels::Matrix;

constexpr int kTaskGroups = 128;  // row groups of a stretch
constexpr int kTaskRows = kTaskGroups * kRowGroup;
constexpr int kBestOfTask = 8;   // rows of a stretch that may set the bound
constexpr int kBoundRows = 384;  // rows refined to set the bound, at least
constexpr int kMaxSurvivors = 4096;
constexpr float kNever = -std::numeric_limits<float>::infinity();

int padded_rows(int rows) { return static_cast<int>(kernels::round_up(rows, kRowGroup)); }
constexpr size_t at(int index) { return static_cast<size_t>(index); }
int task_count(int rows) { return (padded_rows(rows) + kTaskRows - 1) / kTaskRows; }

float kth_largest(std::vector<float>& values, int count, int k) {
    std::nth_element(values.begin(), values.begin() + k - 1, values.begin() + count, std::greater<>());
    return values[at(k - 1)];
}

// Adds each of top.also once, in ascending order, to the ids chosen among the others.
void add_others(TopLogits& top) {
    const auto first = static_cast<int64_t>(top.ids.size());
    for (const int32_t id : top.also) {
        if (std::find(top.ids.begin() + first, top.ids.end(), id) == top.ids.end()) top.ids.push_back(id);
    }
    std::sort(top.ids.begin() + first, top.ids.end());
}

}  // namespace

void TopLogits::reserve(int top, int others) {
    const auto n = static_cast<size_t>(top) + static_cast<size_t>(others);
    ids.reserve(n);
    logits.reserve(n);
}

namespace {

/// choose_top over the rows row(0) to row(count - 1): logits[r] is that of token(r), and row_of is token's inverse.
template <class Row, class Token, class RowOf>
void choose_top_of(std::span<const float> logits, size_t count, Row row, Token token, RowOf row_of, TopLogits& top) {
    const auto better = [&](int32_t a, int32_t b) {
        const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
        return x != y ? x > y : token(a) < token(b);
    };
    const auto k = static_cast<size_t>(top.k);
    const auto excluded = [&](int32_t id) { return std::find(top.also.begin(), top.also.end(), id) != top.also.end(); };
    // A heap of the best rows so far, the worst of them on top.
    top.ids.clear();
    for (size_t n = 0; n < count; ++n) {
        const int32_t r = row(n);
        if (top.ids.size() == k && !better(r, top.ids.front())) continue;
        if (excluded(token(r))) continue;
        if (top.ids.size() == k) {
            std::pop_heap(top.ids.begin(), top.ids.end(), better);
            top.ids.pop_back();
        }
        top.ids.push_back(r);
        std::push_heap(top.ids.begin(), top.ids.end(), better);
    }
    std::sort_heap(top.ids.begin(), top.ids.end(), better);
    for (int32_t& r : top.ids) r = token(r);
    add_others(top);
    top.logits.clear();
    for (const int32_t id : top.ids) top.logits.push_back(logits[static_cast<size_t>(row_of(id))]);
}

}  // namespace

void choose_top(std::span<const float> logits, TopLogits& top) {
    const auto same = [](int32_t id) { return id; };
    choose_top_of(logits, logits.size(), [](size_t n) { return static_cast<int32_t>(n); }, same, same, top);
}

void choose_top(std::span<const float> logits, std::span<const int32_t> rows, std::span<const int32_t> order,
                std::span<const int32_t> row_of, TopLogits& top) {
    choose_top_of(
        logits, rows.size(), [&](size_t n) { return rows[n]; },
        [&](int32_t row) { return order[static_cast<size_t>(row)]; },
        [&](int32_t id) { return row_of[static_cast<size_t>(id)]; }, top);
}

ScreenedHead::ScreenedHead(const Matrix& head, const kernels::KernelTable& kernels, platform::ThreadPool& pool)
    : head_(head), kernels_(kernels), pool_(pool) {
    if (head.layout != Layout::kNibbleKSplit) return;
    screen_ = kernels::screen_kernels(kernels.name);
    if (screen_ == nullptr) return;
    const auto rows = static_cast<size_t>(padded_rows(head.rows));
    x_.reserve(head.cols);
    tasks_.resize(static_cast<size_t>(task_count(head.rows)));
    value_.resize(rows);
    norm_.resize(rows);
    rows_.resize(rows);
    refined_.resize(rows);
    const size_t best = std::max(tasks_.size() * kBestOfTask, static_cast<size_t>(kMaxSurvivors));
    best_.resize(best);
    scores_.resize(best);
    groups_.reserve(kMaxSurvivors);
    // Two sums of 2 fma a group, each rounded by at most 2^-24 of a partial sum; a group's term is at most
    // 15 * sqrt(32) times what it adds to the norm, and the norm at least a share 1/sqrt(groups) of their sum.
    const int64_t group_count = kernels::padded_cols(head) / 32;
    const auto groups = static_cast<float>(group_count);
    rounding_ = 2 * 2 * groups * 0x1p-24F * 85 * std::sqrt(groups);
}

uint64_t ScreenedHead::scratch_bytes(int vocab, int hidden, int max_others) {
    const auto rows = static_cast<uint64_t>(padded_rows(vocab));
    const auto best = std::max<uint64_t>(static_cast<uint64_t>(task_count(vocab)) * kBestOfTask, kMaxSurvivors);
    const auto cols = static_cast<uint64_t>(kernels::round_up(hidden, 512));
    return rows * 16 + best * 8 + kMaxSurvivors * 4 + cols * 3 +
           static_cast<uint64_t>(task_count(vocab)) * sizeof(Task) + static_cast<uint64_t>(max_others) * 8;
}

int ScreenedHead::begin(int task) const { return task * kTaskRows; }
int ScreenedHead::end(int task) const { return std::min(head_.rows, (task + 1) * kTaskRows); }
float ScreenedHead::rounding(int32_t row) const { return rounding_ * norm_[static_cast<size_t>(row)]; }

bool ScreenedHead::run(const kernels::Activations& a, float* logits, TopLogits& top) {
    ++counts_.steps;
    x_.fill(a, screen_->lanes);
    const int tasks = static_cast<int>(tasks_.size());
    pool_.run(tasks, [&](int task, int) { approximate(task); });
    const bool bad = std::any_of(tasks_.begin(), tasks_.end(), [](const Task& t) { return t.bad; });
    if (bad || top.k < 1 || top.k > kMaxTop || top.k + static_cast<int>(top.also.size()) > head_.rows / 2) {
        ++counts_.fallbacks;
        return false;
    }
    for (const int32_t id : top.also) value_[static_cast<size_t>(id)] = kNever;  // computed whatever they are
    const float bound = lower_bound(top.k);
    pool_.run(tasks, [&](int task, int) { refine(task, bound); });

    int count = 0;
    for (int task = 0; task < tasks; ++task) {
        const Task& t = tasks_[static_cast<size_t>(task)];
        counts_.third_rows += static_cast<uint64_t>(t.third);
        counts_.last_rows += static_cast<uint64_t>(t.last);
        if (count + t.kept > kMaxSurvivors) {
            ++counts_.fallbacks;
            return false;
        }
        std::copy_n(rows_.begin() + begin(task), t.kept, best_.begin() + count);
        std::copy_n(refined_.begin() + begin(task), t.kept, scores_.begin() + count);
        count += t.kept;
    }
    // Once more, with the bound that all of them give.
    if (count > top.k) {
        for (int i = 0; i < count; ++i) refined_[at(i)] = scores_[at(i)] - rounding(best_[at(i)]);
        const float last_bound = kth_largest(refined_, count, top.k);
        int kept = 0;
        for (int i = 0; i < count; ++i) {
            const int32_t row = best_[at(i)];
            best_[at(kept)] = row;
            kept += scores_[at(i)] + rounding(row) >= last_bound ? 1 : 0;
        }
        count = kept;
    }
    exact(a, {best_.data(), static_cast<size_t>(count)}, logits, top);
    count_bytes();
    return true;
}

// Approximates a stretch, and notes which of its rows look best.
void ScreenedHead::approximate(int task) {
    Task& t = tasks_[at(task)];
    t = {};
    screen_->approximate(head_, begin(task) / kRowGroup, (end(task) + kRowGroup - 1) / kRowGroup, x_, value_.data(),
                         norm_.data());
    int32_t* ids = best_.data() + task * kBestOfTask;
    float* scores = scores_.data() + task * kBestOfTask;
    std::fill_n(scores, kBestOfTask, kNever);
    bool finite = true;
    for (int row = begin(task); row < end(task); ++row) {
        const float v = value_[at(row)];
        finite = finite && std::abs(v) + norm_[at(row)] <= std::numeric_limits<float>::max() / 64;
        if (!(v > scores[kBestOfTask - 1])) continue;
        int place = kBestOfTask - 1;
        for (; place > 0 && scores[place - 1] < v; --place) {
            scores[place] = scores[place - 1];
            ids[place] = ids[place - 1];
        }
        scores[place] = v;
        ids[place] = row;
    }
    t.bad = !finite;
}

// A value that the k-th best logit reaches: what the k-th best of some promising rows surely has.
float ScreenedHead::lower_bound(int k) {
    // Indices of candidates first: ids and values move together.
    const int candidates = static_cast<int>(tasks_.size()) * kBestOfTask;
    int count = 0;
    for (int i = 0; i < candidates; ++i) {
        const bool use = scores_[at(i)] > kNever && value_[at(best_[at(i)])] > kNever;
        best_[at(count)] = best_[at(i)];
        count += use ? 1 : 0;
    }
    if (count < k) return kNever;
    const int wanted = std::min(count, std::max(kBoundRows, 4 * k));
    std::nth_element(best_.begin(), best_.begin() + wanted - 1, best_.begin() + count,
                     [&](int32_t a, int32_t b) { return value_[at(a)] > value_[at(b)]; });
    constexpr int kRows = 32;  // a task's
    pool_.run((wanted + kRows - 1) / kRows, [&](int task, int) {
        const int first = task * kRows;
        screen_->refine(head_, best_.data() + first, std::min(kRows, wanted - first), true, x_, value_.data(),
                        scores_.data() + first);
    });
    counts_.last_rows += static_cast<uint64_t>(wanted);
    for (int i = 0; i < wanted; ++i) scores_[at(i)] -= rounding(best_[at(i)]);
    return kth_largest(scores_, wanted, k);
}

// Drops the rows of a stretch that cannot reach `bound`, bit by bit.
void ScreenedHead::refine(int task, float bound) {
    Task& t = tasks_[at(task)];
    int32_t* rows = rows_.data() + begin(task);
    float* values = refined_.data() + begin(task);
    const float after_two = kScreenDeviations * std::sqrt(kernels::kVarianceAfterTwoBits) + rounding_;
    const float after_three = kScreenDeviations * std::sqrt(kernels::kVarianceAfterThreeBits) + rounding_;
    int n = 0;
    for (int row = begin(task); row < end(task); ++row) {
        const float v = value_[at(row)];
        rows[n] = row;
        n += v > kNever && v + after_two * norm_[at(row)] >= bound ? 1 : 0;
    }
    const auto keep = [&](float widths) {
        int kept = 0;
        for (int i = 0; i < n; ++i) {
            rows[kept] = rows[i];
            values[kept] = values[i];
            kept += values[i] + widths * norm_[at(rows[i])] >= bound ? 1 : 0;
        }
        return kept;
    };
    t.third = n;
    screen_->refine(head_, rows, n, false, x_, value_.data(), values);
    n = keep(after_three);
    t.last = n;
    screen_->refine(head_, rows, n, true, x_, value_.data(), values);
    t.kept = keep(rounding_);
}

// The logits of `rows` and of the ids wanted anyway, by the definition.
void ScreenedHead::exact(const kernels::Activations& a, std::span<int32_t> rows, float* logits, TopLogits& top) {
    groups_.clear();
    for (const int32_t row : rows) groups_.push_back(row / kRowGroup);
    for (const int32_t row : top.also) groups_.push_back(row / kRowGroup);
    std::sort(groups_.begin(), groups_.end());
    groups_.erase(std::unique(groups_.begin(), groups_.end()), groups_.end());
    pool_.run(static_cast<int>(groups_.size()), [&](int i, int) {
        kernels_.matmul(head_, groups_[at(i)], groups_[at(i)] + 1, a, nullptr, 1, logits, head_.rows);
    });
    counts_.exact_rows += rows.size() + top.also.size();
    std::sort(rows.begin(), rows.end(),
              [&](int32_t x, int32_t y) { return logits[x] != logits[y] ? logits[x] > logits[y] : x < y; });
    top.ids.assign(rows.begin(), rows.begin() + std::min<int64_t>(top.k, static_cast<int64_t>(rows.size())));
    add_others(top);
    top.logits.clear();
    for (const int32_t id : top.ids) top.logits.push_back(logits[id]);
}

void ScreenedHead::count_bytes() {
    const kernels::SplitPlanes planes = kernels::split_planes(head_);
    uint64_t third = 0, last = 0;
    for (const Task& t : tasks_) {
        third += static_cast<uint64_t>(t.third);
        last += static_cast<uint64_t>(t.last);
    }
    counts_.bytes += static_cast<uint64_t>(planes.third) + third * static_cast<uint64_t>(planes.third_row) +
                     last * static_cast<uint64_t>(planes.last_row) +
                     groups_.size() * static_cast<uint64_t>(planes.records) * 2368;
}

}  // namespace samara::model
