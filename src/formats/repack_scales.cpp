#include "src/formats/repack_scales.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace samara::formats {

SourceRow row_of(const Slice& slice, uint64_t row) {
    return source_row(*slice.tensor, slice.expert, slice.row_begin + row);
}

void not_finite(const Slice& slice, uint64_t row, uint64_t col, const char* what, float value) {
    throw Error(ErrorCode::kFormat, describe_row(*slice.tensor, slice.expert, slice.row_begin + row) + ", column " +
                                        std::to_string(col) + ": " + what + " is " + std::to_string(value) +
                                        ", a finite number expected");
}

void RowScales::read(const Slice& slice, uint64_t row) {
    const SourceRow source = row_of(slice, row);
    group = native_group(source.type, source.cols);
    scale.resize(source.cols / group);
    min.resize(scale.size());
    read_scales(source, scale.data(), min.data());
    for (size_t g = 0; g < scale.size(); ++g) {
        if (!std::isfinite(scale[g])) not_finite(slice, row, g * group, "scale", scale[g]);
        if (!std::isfinite(min[g])) not_finite(slice, row, g * group, "minimum", min[g]);
    }
}

std::optional<float> common_scale(const SourceRow& source, const RowScales& scales, std::vector<uint8_t>& codes) {
    const std::vector<float>& s = scales.scale;
    if (std::all_of(s.begin(), s.end(), [&](float x) { return x == s[0]; })) return s[0];
    codes.resize(source.cols);
    read_codes(source, codes.data());
    std::optional<float> common;
    for (size_t g = 0; g < s.size(); ++g) {
        const auto begin = codes.begin() + static_cast<ptrdiff_t>(g * scales.group);
        const auto end = begin + static_cast<ptrdiff_t>(scales.group);
        if (std::all_of(begin, end, [](uint8_t c) { return c == 1; })) continue;
        if (common && *common != s[g]) return std::nullopt;
        common = s[g];
    }
    return common ? common : s[0];
}

TernaryFit fit_row(const Slice& slice, uint64_t row, RowScales& scales, std::vector<uint8_t>& codes) {
    const SourceRow source = row_of(slice, row);
    scales.read(slice, row);
    if (source.type == TensorType::kMlx2Group) {
        for (size_t g = 0; g < scales.scale.size(); ++g) {
            if (scales.min[g] != -scales.scale[g]) return TernaryFit::kAffine;
        }
    }
    if (common_scale(source, scales, codes)) return TernaryFit::kRowScale;
    if (scales.group == 256) return TernaryFit::kBlockScale;
    for (size_t g = 0; g + 1 < scales.scale.size(); g += 2) {  // pairs of 128 columns
        if (scales.scale[g] != scales.scale[g + 1]) return TernaryFit::kGroupScale;
    }
    return TernaryFit::kBlockScale;
}

}  // namespace samara::formats
