#pragma once
// What a synthetic model is made of: one recipe a tensor, which makes any row of it from (seed, name, row) alone.
// The draws are the same for every storage type, so that files of different types hold the same model as far as the
// types allow: projections and router exactly, embedding and head up to their quantisation.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/formats/checkpoint.hpp"
#include "src/synth/preset.hpp"

namespace samara::synth {

enum class Draw {
    kTernary,  // balanced codes -1, 0, 1 times one scale a row, uniform about `scale` by `spread` of it
    kBell,     // bell-shaped with deviation `scale`
    kUniform,  // `scale` times a uniform about 1 by `spread`: weights of norms
};

struct TensorRecipe {
    std::string name;
    formats::TensorType type = formats::TensorType::kF32;
    std::vector<uint64_t> shape;  // GGUF order; rows and experts are all counted as rows
    Draw draw = Draw::kBell;
    float scale = 1;
    float spread = 0;
    bool round_to_bf16 = false;
    std::vector<float> row_factor = {};     // multiplies row r of each expert; empty: 1
    std::vector<float> column_factor = {};  // multiplies column c; empty: 1. Not for kTernary

    uint64_t cols() const { return shape[0]; }
    uint64_t rows() const;  // of all experts together
    size_t row_bytes() const;
};

/// Recipes in file order. `outliers` hidden channels, chosen by the seed, carry residual values 20 to 50 times larger.
/// Throws Error(kInvalidArgument) for a type the preset does not come in, or more outliers than an eighth of the
/// channels.
std::vector<TensorRecipe> tensor_recipes(const Preset& preset, formats::TensorType type, uint64_t seed,
                                         uint32_t outliers);

/// Makes row `row` (0 <= row < rows()) in the recipe's type: out[row_bytes()]. `scratch` is resized as needed.
void make_row(const TensorRecipe& recipe, uint64_t seed, uint64_t row, std::vector<float>& scratch,
              std::span<std::byte> out);

}  // namespace samara::synth
