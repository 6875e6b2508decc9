// Rotary frequencies and angles in double precision from additions, multiplications and divisions alone, so that every
// machine and C library has the same tables. Series are Taylor's, cut where the next term is below 1e-17.

#include <bit>
#include <cstdint>

#include "src/kernels/kernels.hpp"

namespace samara::kernels {
namespace {

// 2*pi/4 and ln 2 split so that a product with an integer below 2^20 is exact in every part but the last.
constexpr double kHalfPi[] = {0x1.921fb544p+0, 0x1.0b4611a6p-34, 0x1.3198a2e037073p-69};
constexpr double kLn2[] = {0x1.62e42feep-1, 0x1.a39ef35793c76p-33};
constexpr double kLn2Nearest = 0x1.62e42fefa39efp-1;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
constexpr double kInverseLn2 = 0x1.71547652b82fep+0;

/// Nearest integer for |x| < 2^51, ties to even.
double nearest(double x) {
    constexpr double kRound = 0x1.8p52;
    return (x + kRound) - kRound;
}

/// sum of r^(first + 2i) * (-1)^i / (first + 2i)!, from the smallest term up.
double alternating_series(double r, int first, int terms) {
    const double square = r * r;
    double sum = 1.0;
    for (int i = terms; i > 0; --i) sum = 1.0 - square / ((first + 2 * i - 1) * (first + 2 * i)) * sum;
    return first == 0 ? sum : sum * r;
}

double natural_log(double x) {
    constexpr double kSqrt2 = 1.4142135623730951;
    const uint64_t bits = std::bit_cast<uint64_t>(x);
    int exponent = static_cast<int>(bits >> 52) - 1023;
    double m = std::bit_cast<double>((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m > kSqrt2) {
        m /= 2;
        ++exponent;
    }
    // ln m = 2 * artanh(s), |s| < 0.1716.
    const double s = (m - 1) / (m + 1);
    const double square = s * s;
    double sum = 0;
    for (int i = 12; i > 0; --i) sum = (sum + 1.0 / (2 * i + 1)) * square;
    return exponent * kLn2Nearest + (2 * s + 2 * s * sum);
}

double exponential(double x) {
    const double n = nearest(x * kInverseLn2);
    const double r = (x - n * kLn2[0]) - n * kLn2[1];
    double sum = 1.0;
    for (int i = 14; i > 0; --i) sum = 1.0 + r / i * sum;
    const int64_t exponent = static_cast<int64_t>(n) + 1023;
    return sum * std::bit_cast<double>(static_cast<uint64_t>(exponent) << 52);
}

}  // namespace

std::vector<double> rope_inverse_frequencies(double theta, int dims) {
    std::vector<double> frequencies(static_cast<size_t>(dims / 2));
    const double log_theta = natural_log(theta);
    for (int i = 0; i < dims / 2; ++i) frequencies[static_cast<size_t>(i)] = exponential(-(2.0 * i / dims) * log_theta);
    return frequencies;
}

void rope_angles(int64_t position, std::span<const double> inverse_frequencies, float* cos, float* sin) {
    for (size_t i = 0; i < inverse_frequencies.size(); ++i) {
        const double angle = static_cast<double>(position) * inverse_frequencies[i];
        const double n = nearest(angle * kTwoOverPi);
        const double r = ((angle - n * kHalfPi[0]) - n * kHalfPi[1]) - n * kHalfPi[2];
        const double sine = alternating_series(r, 1, 8);
        const double cosine = alternating_series(r, 0, 9);
        switch (static_cast<int64_t>(n) & 3) {
            case 0:
                cos[i] = static_cast<float>(cosine), sin[i] = static_cast<float>(sine);
                break;
            case 1:
                cos[i] = static_cast<float>(-sine), sin[i] = static_cast<float>(cosine);
                break;
            case 2:
                cos[i] = static_cast<float>(-cosine), sin[i] = static_cast<float>(-sine);
                break;
            default:
                cos[i] = static_cast<float>(sine), sin[i] = static_cast<float>(-cosine);
                break;
        }
    }
}

}  // namespace samara::kernels
