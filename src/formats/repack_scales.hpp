#pragma once
// Scales of one source row, and what they say about the layout it needs. Choosing a layout (repack_layout.cpp) and
// filling it (repack.cpp) must see a row alike.

#include <cstdint>
#include <optional>
#include <vector>

#include "src/formats/repack.hpp"
#include "src/formats/repack_rows.hpp"

namespace samara::formats {

/// Row `row` of `slice`, counted from the slice's first.
SourceRow row_of(const Slice& slice, uint64_t row);

/// Throws Error(kFormat) naming tensor, expert, row and column.
[[noreturn]] void not_finite(const Slice& slice, uint64_t row, uint64_t col, const char* what, float value);

/// Scales and minima of one row, checked.
struct RowScales {
    uint64_t group = 0;  // columns that share a scale
    std::vector<float> scale, min;

    /// Throws Error(kFormat) for a value that is not finite.
    void read(const Slice& slice, uint64_t row);
};

/// The one scale that explains a whole ternary row, if there is one. Groups of zeros fit any scale: quantisers give
/// them scale 0. `codes` is scratch.
std::optional<float> common_scale(const SourceRow& source, const RowScales& scales, std::vector<uint8_t>& codes);

/// Layouts a ternary type may need, each holding everything that the ones before it hold.
enum class TernaryFit { kRowScale, kBlockScale, kGroupScale, kAffine };

/// What row `row` needs; leaves its scales in `scales`. `codes` is scratch.
TernaryFit fit_row(const Slice& slice, uint64_t row, RowScales& scales, std::vector<uint8_t>& codes);

/// `m` in another layout.
inline kernels::Matrix with(kernels::Matrix m, kernels::Layout layout, int group = 0, int offset = 0) {
    m.layout = layout;
    m.group = static_cast<uint8_t>(group);
    m.offset = static_cast<uint8_t>(offset);
    return m;
}

}  // namespace samara::formats
