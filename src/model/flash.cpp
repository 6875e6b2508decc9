#include "src/model/flash.hpp"

#include <algorithm>
#include <cmath>

#include "src/formats/flash_index.hpp"

namespace samara::model {
namespace {

using formats::kFlashClusterRows;
using kernels::kRowGroup;

constexpr float kProbedShare = 0.14F;  // of the clusters; docs/decisions/flash-head.md has the agreement of others
constexpr int kLeastProbed = 8;
constexpr int kClusterGroups = kFlashClusterRows / kRowGroup;
constexpr size_t kTop = 20;  // best tokens that a comparison looks for

int row_groups(int rows) { return (rows + kRowGroup - 1) / kRowGroup; }
constexpr size_t at(int index) { return static_cast<size_t>(index); }

}  // namespace

FlashHead::FlashHead(const FlashWeights& weights, const kernels::KernelTable& kernels, platform::ThreadPool& pool)
    : weights_(weights), kernels_(kernels), pool_(pool) {
    const int clusters = weights.centroids.rows;
    const int chosen = std::max(kLeastProbed, static_cast<int>(kProbedShare * static_cast<float>(clusters)));
    probes_ = std::min(clusters - weights.always, chosen);
    const auto group_bytes = static_cast<uint64_t>(kernels::row_group_bytes(weights.rows));
    bytes_ = static_cast<uint64_t>(kernels::matrix_bytes(weights.centroids)) +
             static_cast<uint64_t>(probes_ + weights.always) * kClusterGroups * group_bytes;
    scores_.resize(at(clusters));
    clusters_.resize(at(clusters));
    read_.resize(at(clusters));
    rows_.resize(at(weights.rows.rows));
    second_rows_.resize(at(weights.rows.rows));
    read_rows_.reserve(at(weights.rows.rows));
    best_.k = kTop;
    best_.reserve(kTop, 0);
}

uint64_t FlashHead::scratch_bytes(int vocab) {
    const uint64_t clusters = static_cast<uint64_t>(vocab) / kFlashClusterRows + 1;
    return static_cast<uint64_t>(vocab) * 20 + clusters * 9 + kTop * 8;  // with the order in FlashWeights
}

bool FlashHead::run(const ActivationBuffer& x, TopLogits& top) {
    ++counts_.steps;
    choose_clusters(x);
    const int chosen = weights_.always + probes_;
    const int groups = row_groups(weights_.rows.rows);
    pool_.run(chosen, [&](int task, int) {
        const int begin = clusters_[at(task)] * kClusterGroups;
        multiply_groups(begin, std::min(begin + kClusterGroups, groups), x);
    });
    read_rows_.clear();
    for (const int32_t cluster : std::span(clusters_).first(at(chosen))) {
        const int begin = cluster * kFlashClusterRows;
        for (int row = begin; row < std::min(begin + kFlashClusterRows, weights_.rows.rows); ++row)
            read_rows_.push_back(row);
    }
    if (read_rows_.size() < at(top.k) + top.also.size()) return false;
    for (const int32_t id : top.also) {
        if (is_read(id)) continue;
        const int row = weights_.row_of[at(id)];
        multiply_groups(row / kRowGroup, row / kRowGroup + 1, x);
    }
    choose_top(rows_, read_rows_, weights_.order, weights_.row_of, top);
    return true;
}

// Puts those that are always read first, then the best, equal ones in ascending order.
void FlashHead::choose_clusters(const ActivationBuffer& x) {
    const kernels::Matrix& w = weights_.centroids;
    constexpr int kGroups = 4;  // a task's
    const int groups = row_groups(w.rows);
    pool_.run((groups + kGroups - 1) / kGroups, [&](int task, int) {
        const int begin = task * kGroups;
        kernels_.matmul(w, begin, std::min(begin + kGroups, groups), x.view(1), nullptr, 1, scores_.data(), w.rows);
    });
    for (int c = 0; c < w.rows; ++c) clusters_[at(c)] = c;
    const auto others = clusters_.begin() + weights_.always;
    const auto chosen = others + probes_;
    // A score that is not a number is worse than any other.
    const auto better = [&](int32_t a, int32_t b) {
        const float s = scores_[at(a)], t = scores_[at(b)];
        if (std::isnan(s) || std::isnan(t)) return std::isnan(s) == std::isnan(t) ? a < b : std::isnan(t);
        return s != t ? s > t : a < b;
    };
    if (chosen != clusters_.end()) std::nth_element(others, chosen, clusters_.end(), better);
    std::sort(others, chosen);  // memory is read in order
    std::fill(read_.begin(), read_.end(), false);
    for (auto c = clusters_.begin(); c != chosen; ++c) read_[at(*c)] = true;
}

bool FlashHead::is_read(int32_t id) const { return read_[at(weights_.row_of[at(id)] / kFlashClusterRows)]; }

// Logits of the index's row groups [begin, end), to rows_.
void FlashHead::multiply_groups(int begin, int end, const ActivationBuffer& x) {
    const kernels::Matrix& w = weights_.rows;
    kernels_.matmul(w, begin, end, x.view(1), nullptr, 1, rows_.data(), w.rows);
    if (x.terms == 1 || kernels::is_float_layout(w.layout)) return;
    kernels_.matmul(w, begin, end, x.view(1, 1), nullptr, 1, second_rows_.data(), w.rows);
    const int first = begin * kRowGroup;
    kernels_.add(second_rows_.data() + first, std::min(end * kRowGroup, w.rows) - first, rows_.data() + first);
}

void FlashHead::compare(std::span<const float> all) {
    ++counts_.compared;
    choose_top(all, best_);
    counts_.best += is_read(best_.ids.front()) ? 1 : 0;
    counts_.top20 += static_cast<uint64_t>(
        std::count_if(best_.ids.begin(), best_.ids.end(), [&](int32_t id) { return is_read(id); }));
}

}  // namespace samara::model
