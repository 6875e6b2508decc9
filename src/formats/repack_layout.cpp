// Which layout a slice gets: what the weights allow, and what a caller asks for on top.

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "src/formats/repack.hpp"
#include "src/formats/repack_scales.hpp"
#include "src/kernels/screen.hpp"

namespace samara::formats {
namespace {

using kernels::Layout;
using kernels::Matrix;

bool holds_ternary(const Matrix& m) { return m.layout == Layout::kTernary || m.layout == Layout::kTernaryBlocks; }

Matrix layout_of_ternary(Matrix m, const Slice& slice) {
    auto worst = TernaryFit::kRowScale;
    RowScales scales;
    std::vector<uint8_t> codes;
    for (uint64_t row = 0; row < slice.rows; ++row) worst = std::max(worst, fit_row(slice, row, scales, codes));
    switch (worst) {
        case TernaryFit::kRowScale:
            return with(m, Layout::kTernary);
        case TernaryFit::kBlockScale:
            return with(m, Layout::kTernaryBlocks);
        case TernaryFit::kGroupScale:
            return with(m, Layout::kByte, 32, 1);
        default:
            return with(m, Layout::kByte, 32, 0);
    }
}

Matrix layout_of_floats(Matrix m, const Slice& slice, bool ternary) {
    for (uint64_t row = 0; row < slice.rows; ++row) {
        const SourceRow source = row_of(slice, row);
        const FloatRow found = inspect_floats(source);
        ternary = ternary && found.ternary;
        if (found.finite) continue;
        std::vector<float> values(source.cols);
        read_floats(source, values.data());
        const auto bad = std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
        not_finite(slice, row, static_cast<uint64_t>(bad - values.begin()), "weight", *bad);
    }
    if (ternary) return with(m, Layout::kTernary);
    switch (slice.tensor->type) {
        case TensorType::kF32:
            return with(m, Layout::kFloat32);
        case TensorType::kF16:
            return with(m, Layout::kFloat16);
        default:
            return with(m, Layout::kBfloat16);
    }
}

Matrix layout_of_router(Matrix m, const Slice& slice) {
    std::vector<float> values(static_cast<size_t>(m.cols));
    uint32_t low_bits = 0;
    for (uint64_t row = 0; row < slice.rows; ++row) {
        dequantise_row(*slice.tensor, slice.expert, slice.row_begin + row, values.data());
        for (size_t c = 0; c < values.size(); ++c) {
            if (!std::isfinite(values[c])) not_finite(slice, row, c, "weight", values[c]);
            low_bits |= std::bit_cast<uint32_t>(values[c]) & 0xffffu;
        }
    }
    return with(m, low_bits == 0 ? Layout::kBfloat16 : Layout::kFloat32);
}

Matrix layout_of_type(Matrix m, TensorType type, const std::string& name) {
    switch (type) {
        case TensorType::kQ4_0:
        case TensorType::kQ4_1:
            return with(m, Layout::kNibble, 32);
        case TensorType::kMlx4Group:
            return with(m, Layout::kNibble, 64);
        case TensorType::kQ4_K:
            return with(m, Layout::kNibbleK);
        case TensorType::kQ5_0:
            return with(m, Layout::kByte, 32, 16);
        case TensorType::kQ5_1:
        case TensorType::kQ5_K:
            return with(m, Layout::kByte, 32);
        case TensorType::kQ6_K:
            return with(m, Layout::kByte, 16, 32);
        case TensorType::kQ8_0:
            return with(m, Layout::kByte, 32, 128);
        default: {
            const TypeTraits* traits = type_traits(type);
            const std::string found =
                traits != nullptr ? std::string(traits->name) : "number " + std::to_string(static_cast<uint32_t>(type));
            throw Error(ErrorCode::kUnsupported,
                        "tensor '" + name + "': type " + found +
                            " cannot be multiplied; a float, Q4 to Q8, TQ or MLX type expected");
        }
    }
}

Matrix lossless_layout(const Slice& slice, Role role) {
    const Tensor& tensor = *slice.tensor;
    constexpr uint64_t kMost = 1u << 27;  // keeps every size in matrix.hpp far from overflow
    if (slice.rows == 0 || slice.rows > kMost || tensor.cols() > kMost) {
        throw Error(ErrorCode::kUnsupported, "tensor '" + tensor.name + "': " + std::to_string(slice.rows) + " x " +
                                                 std::to_string(tensor.cols()) + " weights, at most 2^27 each way");
    }
    Matrix m;
    m.rows = static_cast<int>(slice.rows);
    m.cols = static_cast<int>(tensor.cols());
    if (role == Role::kRouter) return layout_of_router(m, slice);
    if (is_float_type(tensor.type)) return layout_of_floats(m, slice, role == Role::kProjection);
    if (is_ternary_type(tensor.type)) return layout_of_ternary(m, slice);
    return layout_of_type(m, tensor.type, tensor.name);
}

/// Orders the layouts that slices of one tensor can get: a wider one holds what a narrower one holds.
int width(const Matrix& m) {
    switch (m.layout) {
        case Layout::kTernary:
            return 0;
        case Layout::kTernaryBlocks:
            return 1;
        case Layout::kByte:
            return m.offset != 0 ? 2 : 3;
        case Layout::kFloat32:
            return 3;
        default:
            return 2;
    }
}

}  // namespace

Matrix packed_ternary(const Matrix& m, TernaryLayout ternary) {
    const bool dense = ternary == TernaryLayout::kDense && m.layout == Layout::kTernary;
    return dense ? with(m, Layout::kTernaryDense) : m;
}

Matrix split_layout(const Matrix& m) {
    const bool can = m.layout == Layout::kNibbleK && m.cols <= kernels::kMaxSplitCols;
    return can ? with(m, Layout::kNibbleKSplit) : m;
}

Matrix choose_layout(const Slice& slice, Role role, Ternarise ternarise) {
    return choose_layout(std::span(&slice, 1), role, ternarise);
}

Matrix choose_layout(std::span<const Slice> slices, Role role, Ternarise ternarise,
                     const std::function<void(const Slice&)>& after_slice) {
    Matrix widest = lossless_layout(slices[0], role);
    if (after_slice) after_slice(slices[0]);
    for (const Slice& slice : slices.subspan(1)) {
        const Matrix next = lossless_layout(slice, role);
        if (width(next) > width(widest)) widest = next;
        if (after_slice) after_slice(slice);
    }
    const bool force = role == Role::kProjection && ternarise == Ternarise::kForce && !holds_ternary(widest);
    return force ? with(widest, Layout::kTernary) : widest;
}

}  // namespace samara::formats
