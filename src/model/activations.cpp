#include "src/model/activations.hpp"

#include <span>

namespace samara::model {

void ActivationBuffer::take(memory::Arena& arena, int64_t rows, int columns, int term_count) {
    cols = columns;
    stride = kernels::round_up(columns, 256);
    terms = term_count;
    for (int i = 0; i < terms; ++i) {
        term[i] = {arena.take<float>(rows * stride),
                   arena.take<int16_t>(rows * stride),
                   arena.take<int8_t>(rows * stride),
                   arena.take<int8_t>(rows * stride),
                   arena.take<int32_t>(rows * stride / 16),
                   arena.take<float>(rows),
                   arena.take<int32_t>(rows)};
    }
}

kernels::Activations ActivationBuffer::view(int n, int which) const {
    const Term& t = term[which];
    return {n, cols, stride, t.x, t.q, t.high, t.low, t.scale, t.sum, t.sums16};
}

bool ActivationBuffer::quantise(const kernels::KernelTable& kernels, int64_t i) const {
    for (const Term& t : std::span(term, static_cast<size_t>(terms))) {
        const kernels::QuantisedRow row{t.q + i * stride,   t.high + i * stride,
                                        t.low + i * stride, t.sums16 + i * (stride / 16),
                                        t.scale + i,        t.sum + i};
        if (!kernels.quantise(t.x + i * stride, cols, stride, row)) return false;
        if (&t != &term[terms - 1])
            kernels.remainder(t.x + i * stride, row.q, *row.scale, cols, (&t)[1].x + i * stride);
    }
    return true;
}

kernels::Activations rows_of(kernels::Activations a, int64_t first, int count) {
    a.n = count;
    a.x += first * a.stride;
    a.q += first * a.stride;
    a.high += first * a.stride;
    a.low += first * a.stride;
    a.sums16 += first * (a.stride / 16);
    a.scale += first;
    a.sum += first;
    return a;
}

}  // namespace samara::model
