#pragma once
// The one exponential, for 16 lanes.

#include <bit>
#include <cstdint>

namespace samara::kernels {
namespace {

/// exp(x): x = n*ln2 + r, |r| <= ln2/2; exp(r) = 1 + r + r^2 * Q(r), Q of degree 5; times 2^n through the exponent
/// bits. 0 below -87.33, +inf above 88.37; a NaN stays one. No intermediate is subnormal, so flush modes cannot matter.
/// Q interpolates (exp(r) - 1 - r)/r^2 at the 6 Chebyshev nodes of |r| <= 1.0005*ln2/2, computed with 60 digits and
/// rounded to float32: error of the polynomial 8e-10, the rest is rounding.
template <class V>
inline typename V::F exp16(typename V::F x) {
    using F = typename V::F;
    constexpr float kLowest = -87.33f;  // exp is still a normal number
    constexpr float kHighest = 88.72f;  // rounds to n = 128, whose exponent bits are those of infinity
    constexpr float kLog2E = 1.44269502f;
    constexpr float kLn2High = 0x1.62e4p-1f;  // 15 bits: n * kLn2High is exact
    constexpr float kLn2Low = 0x1.7f7d1cp-20f;
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even
    const F clamped = V::max(V::set(kLowest), V::min(V::set(kHighest), x));
    const F shifted = V::fma(clamped, V::set(kLog2E), V::set(kRound));
    const F n = V::sub(shifted, V::set(kRound));
    F r = V::fma(n, V::set(-kLn2High), clamped);
    r = V::fma(n, V::set(-kLn2Low), r);
    F p = V::set(0x1.a12528p-13f);
    p = V::fma(p, r, V::set(0x1.6d4362p-10f));
    p = V::fma(p, r, V::set(0x1.1110ep-7f));
    p = V::fma(p, r, V::set(0x1.5554e8p-5f));
    p = V::fma(p, r, V::set(0x1.555556p-3f));
    p = V::fma(p, r, V::set(0.5f));
    p = V::fma(p, V::mul(r, r), r);
    p = V::add(p, V::set(1.0f));
    // The low bits of `shifted` hold n; 127 + n is the biased exponent of 2^n.
    constexpr int32_t kOne = std::bit_cast<int32_t>(1.0f);
    const F power = V::from_bits(V::add_int(V::template shift_left<23>(V::bits(shifted)), V::set_int(kOne)));
    return V::select_less(x, V::set(kLowest), V::zero(), V::mul(p, power));
}

}  // namespace
}  // namespace samara::kernels
