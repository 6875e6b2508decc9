#include "src/formats/flash_index.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "src/platform/half.hpp"

namespace samara::formats {
namespace {

constexpr size_t kSketch = 256;  // dimensions in which rows are compared
constexpr int kIterations = 6;   // of a cluster's division in two

/// A row's sketch: each column is added to, or taken from, one of kSketch sums. Distances survive it, nearly.
class Sketcher {
  public:
    explicit Sketcher(size_t cols) : places_(cols), signs_(cols) {
        for (size_t c = 0; c < cols; ++c) {
            uint64_t z = (c + 1) * 0x9e3779b97f4a7c15U;  // SplitMix64 of the column
            z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
            z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
            z ^= z >> 31;
            places_[c] = cols <= kSketch ? c : z % kSketch;
            signs_[c] = z >> 63 != 0 ? -1.0F : 1.0F;
        }
    }
    void sketch(const std::vector<float>& row, float* out) const {
        std::fill_n(out, kSketch, 0.0F);
        for (size_t c = 0; c < row.size(); ++c) out[places_[c]] += signs_[c] * row[c];
    }

  private:
    std::vector<size_t> places_;
    std::vector<float> signs_;
};

/// Divides rows in two by the direction in which their halves differ most, again and again, until kFlashClusterRows are
/// left. Halves are whole clusters, so that clusters are of one size.
class Divider {
  public:
    Divider(const std::vector<float>& sketches, const std::function<void()>& step) : sketches_(sketches), step_(step) {}

    void divide(std::span<int32_t> rows) {
        if (rows.size() <= kFlashClusterRows) return;
        step_();
        const size_t clusters = (rows.size() + kFlashClusterRows - 1) / kFlashClusterRows;
        const size_t half = (clusters + 1) / 2 * kFlashClusterRows;
        std::vector<float> direction = from_centre(rows);
        std::vector<std::pair<float, int32_t>> scored(rows.size());
        for (int i = 0; i < kIterations; ++i) {
            for (size_t r = 0; r < rows.size(); ++r) scored[r] = {score(direction, rows[r]), rows[r]};
            std::nth_element(scored.begin(), scored.begin() + static_cast<int64_t>(half) - 1, scored.end(),
                             [](const auto& a, const auto& b) {
                                 return a.first != b.first ? a.first > b.first : a.second < b.second;
                             });
            for (size_t r = 0; r < rows.size(); ++r) rows[r] = scored[r].second;
            std::sort(rows.begin(), rows.begin() + static_cast<int64_t>(half));  // the order of sums must not depend on
            std::sort(rows.begin() + static_cast<int64_t>(half), rows.end());    // nth_element's
            const std::vector<float> a = mean(rows.first(half)), b = mean(rows.subspan(half));
            for (size_t d = 0; d < kSketch; ++d) direction[d] = a[d] - b[d];
        }
        divide(rows.first(half));
        divide(rows.subspan(half));
    }

  private:
    const float* row(int32_t id) const { return sketches_.data() + static_cast<size_t>(id) * kSketch; }

    // Of a damaged row: the lowest.
    float score(const std::vector<float>& direction, int32_t id) const {
        const float product = dot(direction, row(id));
        return std::isnan(product) ? std::numeric_limits<float>::lowest() : product;
    }

    static float dot(const std::vector<float>& a, const float* b) {
        float sums[16] = {};
        for (size_t d = 0; d < kSketch; d += 16) {
            for (size_t i = 0; i < 16; ++i) sums[i] += a[d + i] * b[d + i];
        }
        for (size_t width = 8; width > 0; width /= 2) {
            for (size_t i = 0; i < width; ++i) sums[i] += sums[i + width];
        }
        return sums[0];
    }

    std::vector<float> mean(std::span<const int32_t> rows) const {
        std::vector<float> sum(kSketch);
        for (const int32_t id : rows) {
            for (size_t d = 0; d < kSketch; ++d) sum[d] += row(id)[d];
        }
        for (float& s : sum) s /= static_cast<float>(rows.size());
        return sum;
    }

    /// From the rows' mean to the row farthest from it.
    std::vector<float> from_centre(std::span<const int32_t> rows) const {
        const std::vector<float> centre = mean(rows);
        std::vector<float> best(kSketch), away(kSketch);
        float farthest = -1;
        for (const int32_t id : rows) {
            for (size_t d = 0; d < kSketch; ++d) away[d] = row(id)[d] - centre[d];
            const float distance = dot(away, away.data());
            if (distance > farthest) {
                farthest = distance;
                best = away;
            }
        }
        return best;
    }

    const std::vector<float>& sketches_;
    const std::function<void()>& step_;
};

/// The control tokens first, and the lowest other ids to fill their last cluster; then the others, ascending.
std::vector<int32_t> control_first(std::span<const int32_t> control, int64_t vocab, int& always) {
    std::vector<bool> leads(static_cast<size_t>(vocab));
    for (const int32_t id : control) {
        if (id < 0 || id >= vocab) {
            throw Error(ErrorCode::kInvalidArgument,
                        "control token " + std::to_string(id) + ": expected 0 to " + std::to_string(vocab - 1));
        }
        leads[static_cast<size_t>(id)] = true;
    }
    int64_t count = std::count(leads.begin(), leads.end(), true);
    always = static_cast<int>((count + kFlashClusterRows - 1) / kFlashClusterRows);
    for (size_t id = 0; id < leads.size() && count < int64_t{always} * kFlashClusterRows; ++id) {
        count += leads[id] ? 0 : 1;
        leads[id] = true;
    }
    std::vector<int32_t> order;
    order.reserve(leads.size());
    for (const bool first : {true, false}) {
        for (size_t id = 0; id < leads.size(); ++id) {
            if (leads[id] == first) order.push_back(static_cast<int32_t>(id));
        }
    }
    return order;
}

}  // namespace

FlashIndex build_flash_index(const Tensor& head, std::span<const int32_t> control, const std::function<void()>& step) {
    const auto vocab = static_cast<int64_t>(head.rows());
    const size_t cols = head.cols();
    FlashIndex index;
    index.order = control_first(control, vocab, index.always);
    std::vector<float> row(cols);
    {
        const Sketcher sketcher(cols);
        std::vector<float> sketches(static_cast<size_t>(vocab) * kSketch);
        for (uint64_t r = 0; r < head.rows(); ++r) {
            if (r % 4096 == 0) step();
            dequantise_row(head, 0, r, row.data());
            sketcher.sketch(row, sketches.data() + r * kSketch);
        }
        const auto led = std::min(index.order.size(), static_cast<size_t>(index.always) * kFlashClusterRows);
        Divider(sketches, step).divide(std::span(index.order).subspan(led));
    }
    const size_t clusters = (index.order.size() + kFlashClusterRows - 1) / kFlashClusterRows;
    index.centroids.resize(clusters * cols);
    for (size_t c = 0; c < clusters; ++c) {
        if (c % 32 == 0) step();
        float* mean = index.centroids.data() + c * cols;
        const size_t begin = c * kFlashClusterRows, end = std::min(begin + kFlashClusterRows, index.order.size());
        for (size_t i = begin; i < end; ++i) {
            dequantise_row(head, 0, static_cast<uint64_t>(index.order[i]), row.data());
            for (size_t d = 0; d < cols; ++d) mean[d] += row[d];
        }
        for (size_t d = 0; d < cols; ++d)
            mean[d] = bf16_to_float(float_to_bf16(mean[d] / static_cast<float>(end - begin)));
    }
    return index;
}

std::vector<int32_t> control_tokens(const Metadata& metadata, int64_t vocab) {
    constexpr int64_t kControl = 3, kUserDefined = 4;  // of tokenizer.ggml.token_type
    std::vector<int32_t> ids;
    const auto add = [&](int64_t id) {
        if (id >= 0 && id < vocab) ids.push_back(static_cast<int32_t>(id));
    };
    if (metadata.has("tokenizer.ggml.token_type")) {
        const std::vector<int64_t> types = metadata.get_ints("tokenizer.ggml.token_type");
        for (size_t id = 0; id < types.size(); ++id) {
            if (types[id] == kControl || types[id] == kUserDefined) add(static_cast<int64_t>(id));
        }
    }
    for (const char* key : {"bos", "eos", "eot", "eom", "unknown", "padding"}) {
        const std::string name = std::string("tokenizer.ggml.") + key + "_token_id";
        if (metadata.has(name)) add(static_cast<int64_t>(metadata.get_uint(name)));
    }
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
}

}  // namespace samara::formats
