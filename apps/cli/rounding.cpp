#include "apps/cli/rounding.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/platform/half.hpp"

namespace samara::cli {
namespace {

constexpr float kLargestHalf = 65504;
constexpr int kBlock = 256;

// A kernel is a plain function: what it depends on stands here.
kernels::KernelTable table;
const kernels::KernelTable* base = nullptr;
Rounding mode = Rounding::kNone;

void round_to_half(const float* x, int cols, float* out) {
    for (int i = 0; i < cols; ++i) {
        out[i] = half_to_float(float_to_half(std::clamp(x[i], -kLargestHalf, kLargestHalf)));
    }
}

void round_to_eight_bits(const float* x, int cols, float* out) {
    const int block = cols % kBlock == 0 ? kBlock : cols;
    for (int begin = 0; begin < cols; begin += block) {
        float largest = 0;
        for (int i = begin; i < begin + block; ++i) largest = std::max(largest, std::fabs(x[i]));
        const float scale = largest / 127;
        for (int i = begin; i < begin + block; ++i) out[i] = scale > 0 ? std::nearbyint(x[i] / scale) * scale : 0;
    }
}

bool quantise(const float* x, int cols, int64_t stride, const kernels::QuantisedRow& out) {
    const bool key_or_value = out.high == nullptr;
    const bool finite = std::all_of(x, x + cols, [](float v) { return std::isfinite(v); });
    if (mode == Rounding::kNone || key_or_value || !finite) return base->quantise(x, cols, stride, out);
    thread_local std::vector<float> rounded;
    rounded.resize(static_cast<size_t>(cols));
    (mode == Rounding::kHalf ? round_to_half : round_to_eight_bits)(x, cols, rounded.data());
    return base->quantise(rounded.data(), cols, stride, out);
}

// What was rounded away stays away.
void remainder(const float* x, const int16_t* q, float scale, int n, float* out) {
    if (mode == Rounding::kNone) return base->remainder(x, q, scale, n, out);
    std::fill_n(out, n, 0.0F);
}

}  // namespace

const kernels::KernelTable& rounding_kernels(kernels::Isa isa) {
    base = &kernels::kernel_table(isa);
    table = *base;
    table.quantise = quantise;
    table.remainder = remainder;
    return table;
}

void set_rounding(Rounding rounding) { mode = rounding; }

}  // namespace samara::cli
