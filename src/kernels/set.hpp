#pragma once
// Builds one instruction set's table from the kernels written over the 16-lane interface.

#include "src/kernels/attention.hpp"
#include "src/kernels/attention_rows.hpp"
#include "src/kernels/dense_matmul.hpp"
#include "src/kernels/elementwise.hpp"
#include "src/kernels/float_matmul.hpp"
#include "src/kernels/integer_matmul.hpp"
#include "src/kernels/kernels.hpp"
#include "src/kernels/screen_join.hpp"
#include "src/kernels/tables.hpp"

namespace samara::kernels {
namespace {

template <class V, auto kIntegerMatmul, auto kDenseMatmul>
void matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
            float* out, int64_t out_stride) {
    if (w.layout == Layout::kNibbleKSplit) {
        return split_through_nibble_k<kIntegerMatmul>(w, group_begin, group_end, a, tokens, n, out, out_stride);
    }
    const auto multiply = is_float_layout(w.layout)           ? float_matmul<V>
                          : w.layout == Layout::kTernaryDense ? kDenseMatmul
                                                              : kIntegerMatmul;
    multiply(w, group_begin, group_end, a, tokens, n, out, out_stride);
}

template <class V, auto kIntegerMatmul, auto kDenseMatmul = dense_through_two_bits<unpack_dense_group, kIntegerMatmul>>
constexpr KernelTable make_table(std::string_view name) {
    KernelTable table;
    table.name = name;
    table.matmul = matmul<V, kIntegerMatmul, kDenseMatmul>;
    table.quantise = quantise<V>;
    table.quantise_bytes = quantise_bytes<V>;
    table.remainder = remainder<V>;
    table.rms_norm = rms_norm<V>;
    table.add = add<V>;
    table.add_scaled = add_scaled<V>;
    table.swiglu = swiglu<V>;
    table.rope = rope<V>;
    table.attend_block = attend_block<V>;
    table.attend_rows = attend_rows<V>;
    table.merge_blocks = merge_blocks<V>;
    table.finish_attention = finish_attention<V>;
    table.exp = exp_all<V>;
    return table;
}

}  // namespace

}  // namespace samara::kernels
