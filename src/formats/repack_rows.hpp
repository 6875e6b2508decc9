#pragma once
// One row of a checkpoint tensor taken apart: codes, scales and minima before they are interleaved (repack.cpp).
// value = scale*(code - zero) + min for every quantised type, scale and min shared by `native_group` columns.

#include <cstddef>
#include <cstdint>
#include <string>

#include "src/formats/checkpoint.hpp"

namespace samara::formats {

/// Where one row's bytes lie. scales and biases are for MLX types only.
struct SourceRow {
    TensorType type = TensorType::kF32;
    uint64_t cols = 0;
    const std::byte* codes = nullptr;
    const std::byte* scales = nullptr;
    const std::byte* biases = nullptr;
};

/// Locates row `row` of expert `expert`. Throws Error(kInternal) when the row is outside the shape and Error(kFormat)
/// when the tensor has fewer bytes than its shape needs.
SourceRow source_row(const Tensor& tensor, uint64_t expert, uint64_t row);

/// Columns that share a scale: 16, 32, 64, 128 or 256; `cols` for one scale a row; 0 for float types.
uint64_t native_group(TensorType type, uint64_t cols);

constexpr bool is_float_type(TensorType type) {
    return type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBF16;
}
constexpr bool is_ternary_type(TensorType type) {
    return type == TensorType::kTQ1_0 || type == TensorType::kTQ2_0 || type == TensorType::kMlx2Row ||
           type == TensorType::kMlx2Group;
}

/// Writes the unsigned codes of a quantised row to codes[cols]: 0..3 for ternary types, 0..15 for 4-bit types, 0..255
/// else (Q8_0 moved up by 128, so that its code 128 means zero).
void read_codes(const SourceRow& row, uint8_t* codes);

/// Writes float32 scale and min of each native group, rounded as GGML's reference rounds them. min may be null.
void read_scales(const SourceRow& row, float* scale, float* min);

/// Two-level scales of one Q4_K or Q5_K block of 256 weights.
struct KScales {
    uint16_t d = 0, dmin = 0;  // half bits
    uint8_t sc[8] = {}, m[8] = {};
};
KScales read_k_scales(const std::byte* block);

/// Writes the weights of a float row as float32 to out[cols].
void read_floats(const SourceRow& row, float* out);

/// A float row seen as ternary: found when every value is 0 or one magnitude.
struct FloatRow {
    bool finite = false;
    bool ternary = false;
    float magnitude = 0;  // of the non-zero values of a ternary row
};
FloatRow inspect_floats(const SourceRow& row);
/// Codes {0,1,2} of a row that inspect_floats calls ternary.
void read_float_codes(const SourceRow& row, uint8_t* codes);

/// "tensor 'blk.0.attn_q.weight', expert 3, row 17" for messages.
std::string describe_row(const Tensor& tensor, uint64_t expert, uint64_t row);

}  // namespace samara::formats
