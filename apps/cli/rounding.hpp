#pragma once
// Other engines round the vectors that enter a matrix multiplication. What that changes is measured by doing it: a
// kernel table that rounds each vector before it is quantised, as tools/reference/model.py does in float64.

#include "src/kernels/kernels.hpp"

namespace samara::cli {

enum class Rounding {
    kNone,
    kHalf,      // to IEEE half
    kEightBit,  // to 8-bit integers with one scale for 256 values (for the vector where 256 does not divide it)
};

/// The kernels of `isa`, but with what set_rounding says before `quantise`. Keys and values stay as they are, and so do
/// the vectors that meet float weights (the router's among them). The table lives for ever; one at a time is in use.
/// Throws what kernel_table throws.
const kernels::KernelTable& rounding_kernels(kernels::Isa isa);

/// Takes effect with the next step; no step may be running.
void set_rounding(Rounding rounding);

}  // namespace samara::cli
