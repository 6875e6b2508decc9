#pragma once
// The vectors that enter matmuls.

#include <cstdint>

#include "src/kernels/kernels.hpp"
#include "src/memory/arena.hpp"

namespace samara::model {

/// Activations of up to `rows` vectors of `cols` values: floats, and the 16-bit integers they are quantised to. In a
/// dense model a second term is quantised from what the first rounds away (docs/decisions/two-terms.md).
struct ActivationBuffer {
    struct Term {
        float* x = nullptr;         // (rows, stride)
        int16_t* q = nullptr;       // (rows, stride)
        int8_t* high = nullptr;     // (rows, stride)
        int8_t* low = nullptr;      // (rows, stride)
        int32_t* sums16 = nullptr;  // (rows, stride/16)
        float* scale = nullptr;     // (rows)
        int32_t* sum = nullptr;     // (rows)
    };
    int cols = 0;
    int64_t stride = 0;  // cols rounded up to 256
    int terms = 1;
    Term term[2];

    void take(memory::Arena& arena, int64_t rows, int columns, int terms);
    float* row(int64_t i) const { return term[0].x + i * stride; }
    kernels::Activations view(int n, int which = 0) const;
    /// Quantises row i. False when a value is not finite.
    bool quantise(const kernels::KernelTable& kernels, int64_t i) const;
};

/// Rows [first, first + count) of `a`.
kernels::Activations rows_of(kernels::Activations a, int64_t first, int count);

}  // namespace samara::model
