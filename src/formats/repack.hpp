#pragma once
// From a checkpoint's tensors to the layouts the kernels multiply (src/kernels/matrix.hpp). The loader and `samara
// pack` share these functions, so that a plain file and its packed form give the same bits by construction.

#include <functional>
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

/// How projections that are not ternary are treated.
enum class Ternarise {
    kLossless,  // float rows holding only {-a, 0, +a} become ternary, anything else keeps its type
    kForce,     // every projection becomes ternary: a = mean of |w| over the row, code = round(w/a) clamped; error
                // reported
};

/// How ternary weights with one scale a row are packed.
enum class TernaryLayout {
    kTwoBit,  // kTernary: fast on every CPU
    kDense,   // kTernaryDense: a sixth fewer bytes, fast with AVX-512 VBMI only
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
/// checks, one scale a row, router values that BF16 holds. Every value of a float tensor is checked, quantised types'
/// scales when they are repacked. Throws Error(kFormat) naming tensor and position for a scale or weight that is not
/// finite, and Error(kUnsupported) for a type without a layout.
kernels::Matrix choose_layout(const Slice& slice, Role role, Ternarise ternarise = Ternarise::kLossless);

/// kNibbleKSplit for a kNibbleK matrix that may be split, else the layout as it is.
kernels::Matrix split_layout(const kernels::Matrix& m);

/// kTernaryDense for a kTernary matrix when `ternary` says so, else the layout as it is. Dense layouts have no place
/// for the code 3 of a damaged file: repack throws Error(kFormat) for it.
kernels::Matrix packed_ternary(const kernels::Matrix& m, TernaryLayout ternary);

/// The one layout that holds every slice: the experts of a layer share it. The slices are non-empty, of one tensor and
/// of one size.
/// `after_slice` is called when a slice has been read (to count progress, drop its pages, or cancel by throwing).
kernels::Matrix choose_layout(std::span<const Slice> slices, Role role, Ternarise ternarise = Ternarise::kLossless,
                              const std::function<void(const Slice&)>& after_slice = {});

struct RepackReport {
    uint64_t code3 = 0;        // ternary codes outside {0,1,2}: a damaged file; kept as they are
    double squared_error = 0;  // of forced ternarisation, sum over weights
    double squared_norm = 0;   // of the source weights, when ternarised by force
};

/// Writes the blob of `layout` (from choose_layout) to out, which has matrix_bytes(layout) bytes. Thread-safe.
RepackReport repack(const Slice& slice, const kernels::Matrix& layout, std::span<std::byte> out);

/// Writes weight row `row` of an interleaved or float matrix as float32 to out[cols] (embedding look-up, tests). The
/// value is the same, bit for bit, as dequantise_row of the tensor that was repacked; only the sign of a zero may
/// differ (a stored -0, or code zero times a negative scale).
void dequantise_matrix_row(const kernels::Matrix& m, int row, float* out);

/// The rows that make up weight `name` of expert `expert`, also when the file holds it fused: attn_q, attn_k and attn_v
/// inside attn_qkv, ffn_gate_exps and ffn_up_exps inside ffn_gate_up_exps (gate first). std::nullopt when the
/// checkpoint has neither. Throws Error(kFormat) when a fused tensor's rows do not match the head counts.
std::optional<Slice> find_slice(const Checkpoint& checkpoint, const std::string& name, uint64_t expert = 0);

}  // namespace samara::formats
