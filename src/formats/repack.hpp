#pragma once
// From a checkpoint's tensors to the layouts the kernels multiply (src/kernels/matrix.hpp). The loader and `samara
// pack` share these functions, so that a plain file and its packed form give the same bits by construction.

#include <optional>
#include <span>

#include "src/formats/checkpoint.hpp"
#include "src/kernels/matrix.hpp"

namespace samara::formats {

/// What a tensor is for decides its layout.
enum class Role {
    kProjection,  // attention and expert projections: ternary when the weights are (losslessly), else the type's layout
    kHead,        // the vocabulary projection: the type's layout; never ternarised
    kRouter,      // BF16 where every value fits, else F32 (F16 sources too: F32)
};

/// How floating-point projections that are not ternary are treated.
enum class Ternarise {
    kLossless,  // rows holding only {-a, 0, +a} become ternary, anything else keeps its type
    kForce,     // every projection becomes ternary: a = mean of |w| over the row, code = round(w/a) clamped; error reported
};

/// Rows that `repack` lays one below the other, for example gate and up of one expert or the pieces of a fused tensor:
/// expert `expert` of `tensor`, rows [row_begin, row_begin + rows).
struct Slice {
    const Tensor* tensor = nullptr;
    uint64_t expert = 0;
    uint64_t row_begin = 0;
    uint64_t rows = 0;
};

/// The layout `slice` gets in `role` (data == nullptr). Reads the weights where the answer depends on them: ternary
/// checks, one scale a row, router values that BF16 holds. Throws Error(kFormat) naming the tensor for non-finite or
/// negative-zero-sized scales, and Error(kUnsupported) for a type without a layout.
kernels::Matrix choose_layout(const Slice& slice, Role role, Ternarise ternarise = Ternarise::kLossless);

struct RepackReport {
    uint64_t code3 = 0;        // ternary codes outside {0,1,2}: a damaged file; kept as they are
    double squared_error = 0;  // of forced ternarisation, sum over weights
    double squared_norm = 0;   // of the source weights, when ternarised by force
};

/// Writes the blob of `layout` (from choose_layout) to out, which has matrix_bytes(layout) bytes.
RepackReport repack(const Slice& slice, const kernels::Matrix& layout, std::span<std::byte> out);

/// Writes weight row `row` of an interleaved or float matrix as float32 to out[cols] (embedding look-up, tests). The
/// value is the same, bit for bit, as dequantise_row of the tensor that was repacked.
void dequantise_matrix_row(const kernels::Matrix& m, int row, float* out);

}  // namespace samara::formats
