// Every set gives the bits of the scalar set, and the scalar set is what docs/numerics.md says it is.

#include "src/kernels/kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "src/platform/error.hpp"
#include "src/platform/half.hpp"

namespace samara::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const std::vector<float> kExtremes{0.0f,      -0.0f,    1e-45f,   -1e-45f, 1e-40f,      1.17549435e-38f, 9.99e-31f,
                                   1.01e-30f, -1e-30f,  1e-20f,   1.0f,    -1.0f,       1e10f,           -1e18f,
                                   3.4e37f,   -3.4e37f, 32639.0f, 0.5f,    1.00000012f, -65504.0f};

const KernelTable& scalar_set() { return kernel_table(Isa::kScalar); }

/// The sets to hold against the scalar one.
std::vector<const KernelTable*> other_sets() {
    std::vector<const KernelTable*> sets;
    for (const Isa isa : supported_isas())
        if (isa != Isa::kScalar) sets.push_back(&kernel_table(isa));
    return sets;
}

class Random {
  public:
    explicit Random(uint32_t seed) : engine_(seed) {}
    int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
    float normal(float scale = 1.0f) { return std::normal_distribution<float>(0.0f, scale)(engine_); }
    std::vector<float> normals(int n, float scale = 1.0f) {
        std::vector<float> v(static_cast<size_t>(n));
        for (float& x : v) x = normal(scale);
        return v;
    }
    /// Mostly normal, some from kExtremes.
    std::vector<float> rough(int n, float scale = 1.0f) {
        std::vector<float> v = normals(n, scale);
        for (float& x : v)
            if (between(0, 3) == 0)
                x = kExtremes[static_cast<size_t>(between(0, static_cast<int>(kExtremes.size()) - 1))];
        return v;
    }
    std::vector<int16_t> words(int n) {
        std::vector<int16_t> v(static_cast<size_t>(n));
        for (int16_t& x : v)
            x = static_cast<int16_t>(between(0, 9) == 0 ? between(0, 1) * 65278 - 32639 : between(-32639, 32639));
        return v;
    }

  private:
    std::mt19937 engine_;
};

template <class T>
::testing::AssertionResult same_bits(const std::vector<T>& expected, const std::vector<T>& found) {
    if (expected.size() != found.size()) return ::testing::AssertionFailure() << "sizes differ";
    for (size_t i = 0; i < expected.size(); ++i) {
        if (std::memcmp(&expected[i], &found[i], sizeof(T)) == 0) continue;
        if (expected[i] != expected[i] && found[i] != found[i]) continue;  // one NaN is as good as another
        return ::testing::AssertionFailure() << "at " << i << " expected " << +expected[i] << ", found " << +found[i];
    }
    return ::testing::AssertionSuccess();
}

std::vector<int> lengths() {
    std::vector<int> n(70);
    std::iota(n.begin(), n.end(), 1);
    n.insert(n.end(), {127, 128, 576, 2048, 2049});
    return n;
}

// ---- exp

TEST(Exp, HasRelativeErrorBelow2em7From87Below0To88) {
    double worst = 0;
    for (int64_t i = 0; i <= 4'000'000; ++i) {
        const float x = static_cast<float>(-87.0 + 175.0 * static_cast<double>(i) / 4e6);
        float y = 0;
        scalar_set().exp(&x, 1, &y);
        const long double exact = std::exp(static_cast<long double>(x));
        worst = std::max(worst, static_cast<double>(std::abs((static_cast<long double>(y) - exact) / exact)));
    }
    RecordProperty("max_relative_error", std::to_string(worst));
    std::printf("exp: max relative error %.3g\n", worst);
    EXPECT_LT(worst, 2e-7);
}

TEST(Exp, IsExactAtZeroZeroFarBelowAndInfiniteFarAbove) {
    const std::vector<float> x{0.0f, -0.0f, 1e-45f, -87.34f, -1000.0f, -3e38f, -kInfinity, 89.0f, 3e38f, kInfinity};
    std::vector<float> y(x.size());
    scalar_set().exp(x.data(), static_cast<int>(x.size()), y.data());
    EXPECT_TRUE(same_bits({1.0f, 1.0f, 1.0f, 0.0f, 0.0f, 0.0f, 0.0f, kInfinity, kInfinity, kInfinity}, y));
}

TEST(Exp, GivesNoSubnormalResult) {
    for (float x = -87.5f; x < -87.2f; x = std::nextafter(x, 0.0f)) {
        float y = 0;
        scalar_set().exp(&x, 1, &y);
        ASSERT_TRUE(y == 0.0f || y >= std::numeric_limits<float>::min()) << x;
    }
}

TEST(Exp, EverySetGivesTheScalarBitsOnAllKindsOfFloats) {
    std::vector<float> x;
    for (uint64_t bits = 0; bits < (1ull << 32); bits += 4099) {
        const float value = std::bit_cast<float>(static_cast<uint32_t>(bits));
        if (value == value) x.push_back(value);
    }
    std::vector<float> expected(x.size());
    scalar_set().exp(x.data(), static_cast<int>(x.size()), expected.data());
    for (const KernelTable* set : other_sets()) {
        std::vector<float> found(x.size());
        set->exp(x.data(), static_cast<int>(x.size()), found.data());
        EXPECT_TRUE(same_bits(expected, found)) << set->name;
    }
}

// ---- quantise

struct Quantised {
    bool finite = false;
    std::vector<int16_t> q;
    std::vector<int8_t> high;
    std::vector<int8_t> low;
    std::vector<int32_t> sums16;
    float scale = -1;
    int32_t sum = -1;
};

Quantised quantise(const KernelTable& set, const std::vector<float>& x, int64_t stride) {
    const auto size = static_cast<size_t>(stride);
    Quantised r{false, std::vector<int16_t>(size, 99), std::vector<int8_t>(size, 99), std::vector<int8_t>(size, 99),
                std::vector<int32_t>(size / 16, 99)};
    r.finite = set.quantise(x.data(), static_cast<int>(x.size()), stride,
                            {r.q.data(), r.high.data(), r.low.data(), r.sums16.data(), &r.scale, &r.sum});
    return r;
}

TEST(Quantise, PlanesAndSumsSayTheSameAsQAndPaddingIsZero) {
    Random random(1);
    for (const int n : lengths()) {
        const std::vector<float> x = random.normals(n, 3.0f);
        const Quantised r = quantise(scalar_set(), x, round_up(n, 256));
        ASSERT_TRUE(r.finite);
        int64_t total = 0;
        int largest = 0;
        for (size_t i = 0; i < r.q.size(); ++i) {
            ASSERT_EQ(256 * r.high[i] + r.low[i], r.q[i]);
            ASSERT_TRUE(i < x.size() || r.q[i] == 0);
            if (i < x.size()) {
                ASSERT_NEAR(r.q[i] * static_cast<double>(r.scale), x[i], 0.505 * static_cast<double>(r.scale));
            }
            total += r.q[i];
            largest = std::max(largest, std::abs(static_cast<int>(r.q[i])));
        }
        EXPECT_EQ(largest, kActivationMax);
        EXPECT_EQ(total, r.sum);
        for (size_t g = 0; g < r.sums16.size(); ++g)
            ASSERT_EQ(std::accumulate(r.q.begin() + 16 * g, r.q.begin() + 16 * (g + 1), 0), r.sums16[g]);
    }
}

TEST(Quantise, RoundsTiesToEven) {
    const std::vector<float> x{32639.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 3.4999f, -32639.0f};
    for (const Isa isa : supported_isas()) {
        const Quantised r = quantise(kernel_table(isa), x, 16);
        EXPECT_TRUE(same_bits({32639, 0, 2, 2, 0, -2, -2, 3, -32639, 0, 0, 0, 0, 0, 0, 0}, r.q)) << isa_name(isa);
        EXPECT_EQ(r.scale, 1.0f);
        EXPECT_EQ(r.high[0], 127);
        EXPECT_EQ(r.low[0], 127);
        EXPECT_EQ(r.high[8], -127);
        EXPECT_EQ(r.low[8], -127);
    }
}

TEST(Quantise, TakesVectorsBelow1em30AsZeroAndReachesTheMaximumAbove) {
    for (const Isa isa : supported_isas()) {
        const Quantised tiny = quantise(kernel_table(isa), {9.99e-31f, -1e-45f, 0.0f}, 16);
        EXPECT_TRUE(tiny.finite);
        EXPECT_EQ(tiny.scale, 0.0f);
        EXPECT_EQ(tiny.sum, 0);
        EXPECT_TRUE(same_bits(std::vector<int16_t>(16, 0), tiny.q));
        for (const float largest : {1.01e-30f, 1e-20f, 1.0f, 3e38f, std::numeric_limits<float>::max()}) {
            const Quantised r = quantise(kernel_table(isa), {0.0f, -largest}, 16);
            EXPECT_TRUE(r.finite);
            EXPECT_EQ(r.q[1], -kActivationMax);
        }
    }
}

TEST(Quantise, RefusesANonFiniteValueAtAnyPosition) {
    for (const Isa isa : supported_isas()) {
        for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
            for (int at = 0; at < 37; ++at) {
                std::vector<float> x(37, 1.0f);
                x[static_cast<size_t>(at)] = bad;
                EXPECT_FALSE(quantise(kernel_table(isa), x, 256).finite) << isa_name(isa) << " at " << at;
            }
        }
    }
}

TEST(Quantise, WritesNothingBeyondARowWithoutPaddingAndAcceptsNoPlanesAndNoSums) {
    Random random(2);
    for (const Isa isa : supported_isas()) {
        for (const int n : {1, 15, 16, 17, 40, 128}) {
            const std::vector<float> x = random.normals(n);
            std::vector<int16_t> q(static_cast<size_t>(n) + 32, 77);
            float scale = 0;
            ASSERT_TRUE(
                kernel_table(isa).quantise(x.data(), n, n, {q.data(), nullptr, nullptr, nullptr, &scale, nullptr}));
            EXPECT_TRUE(std::all_of(q.begin() + n, q.end(), [](int16_t w) { return w == 77; })) << isa_name(isa) << n;
            const Quantised full = quantise(kernel_table(isa), x, 256);
            EXPECT_TRUE(std::equal(q.begin(), q.begin() + n, full.q.begin()));
        }
    }
}

TEST(QuantiseBytes, IsTheFormulaOnEverySet) {
    Random random(21);
    for (const Isa isa : supported_isas()) {
        const KernelTable& set = kernel_table(isa);
        for (const int n : {16, 64, 80, 128}) {
            for (const float size : {1.0f, 1e-29f, 1e36f}) {
                const std::vector<float> x = random.normals(n, size);
                float absmax = 0;
                for (const float v : x) absmax = std::max(absmax, std::abs(v));
                std::vector<int8_t> q(static_cast<size_t>(n) + 16, 77);
                float scale = 0;
                ASSERT_TRUE(set.quantise_bytes(x.data(), n, q.data(), &scale));
                EXPECT_EQ(scale, absmax / 127);
                const float factor = 127 / absmax;
                for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(q[i], std::nearbyint(x[i] * factor)) << set.name;
                EXPECT_TRUE(std::all_of(q.begin() + n, q.end(), [](int8_t b) { return b == 77; })) << set.name;
            }
        }
        std::vector<int8_t> q(16, 77);
        float scale = 1;
        EXPECT_TRUE(set.quantise_bytes(std::vector<float>(16, 1e-31f).data(), 16, q.data(), &scale));
        EXPECT_TRUE(same_bits(std::vector<int8_t>(16, 0), q));
        EXPECT_EQ(scale, 0.0f);
        for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
            std::vector<float> x(16, 1.0f);
            x[9] = bad;
            EXPECT_FALSE(set.quantise_bytes(x.data(), 16, q.data(), &scale)) << set.name;
        }
    }
}

TEST(Quantise, EverySetGivesTheScalarBits) {
    Random random(3);
    for (const KernelTable* set : other_sets()) {
        for (const int n : lengths()) {
            for (const float scale : {1.0f, 1e-29f, 1e36f}) {
                const std::vector<float> x = scale == 1.0f ? random.rough(n) : random.normals(n, scale);
                const Quantised expected = quantise(scalar_set(), x, round_up(n, 256));
                const Quantised found = quantise(*set, x, round_up(n, 256));
                ASSERT_TRUE(same_bits(expected.q, found.q)) << set->name << " n " << n;
                ASSERT_TRUE(same_bits(expected.high, found.high));
                ASSERT_TRUE(same_bits(expected.low, found.low));
                ASSERT_TRUE(same_bits(expected.sums16, found.sums16));
                ASSERT_TRUE(same_bits<float>({expected.scale}, {found.scale}));
                ASSERT_EQ(expected.sum, found.sum);
            }
        }
    }
}

TEST(Remainder, IsWhatQuantisationRoundedAwayWithEverySetTheSameBits) {
    Random random(5);
    for (const int n : lengths()) {
        for (const float scale : {1.0f, 1e-29f, 1e36f}) {
            const std::vector<float> x = scale == 1.0f ? random.rough(n) : random.normals(n, scale);
            const Quantised r = quantise(scalar_set(), x, round_up(n, 256));
            std::vector<float> expected(x.size());
            for (size_t i = 0; i < x.size(); ++i) expected[i] = std::fma(-r.scale, static_cast<float>(r.q[i]), x[i]);
            for (const Isa isa : supported_isas()) {
                std::vector<float> found(x.size() + 1, 77.0f);
                kernel_table(isa).remainder(x.data(), r.q.data(), r.scale, n, found.data());
                EXPECT_EQ(found.back(), 77.0f);
                found.pop_back();
                ASSERT_TRUE(same_bits(expected, found)) << isa_name(isa) << " n " << n;
                for (const float left : found) ASSERT_LE(std::abs(left), r.scale * 0.51f);
            }
        }
    }
}

// ---- dot order and the vectors' kernels

TEST(Dot, IsSixteenStridedFusedSumsThenTheTree) {
    Random random(4);
    for (const int n : lengths()) {
        const std::vector<float> a = random.normals(n);
        const std::vector<float> b = random.normals(n);
        float sums[16] = {};
        for (int i = 0; i < n; ++i)
            sums[i % 16] = std::fma(a[static_cast<size_t>(i)], b[static_cast<size_t>(i)], sums[i % 16]);
        for (int width = 8; width >= 1; width /= 2)
            for (int i = 0; i < width; ++i) sums[i] = sums[i] + sums[i + width];
        ASSERT_TRUE(same_bits<float>({sums[0]}, {dot_definition(a.data(), b.data(), n)})) << n;
    }
}

TEST(RmsNorm, DividesByTheRootOfTheMeanSquare) {
    Random random(5);
    const std::vector<float> x = random.normals(2048, 5.0f);
    const std::vector<float> weight = random.normals(2048);
    std::vector<float> out(2048);
    scalar_set().rms_norm(x.data(), weight.data(), 2048, 1e-6f, out.data());
    double squares = 0;
    for (const float v : x) squares += static_cast<double>(v) * v;
    for (size_t i = 0; i < x.size(); ++i)
        ASSERT_NEAR(out[i], x[i] / std::sqrt(squares / 2048 + 1e-6) * weight[i], 2e-6);
}

TEST(Swiglu, ClampsTheGateAboveAndTheOtherOnBothSides) {
    const std::vector<float> gate{9.0f, 7.0f, -9.0f, 1.0f, -200.0f, 0.0f};
    const std::vector<float> up{1.0f, 20.0f, -20.0f, 0.5f, 7.0f, 3.0f};
    std::vector<float> out(6);
    scalar_set().swiglu(gate.data(), up.data(), 6, 7.0f, out.data());
    for (size_t i = 0; i < 6; ++i) {
        const double g = std::min(7.0f, gate[i]);
        const double u = std::clamp(up[i], -7.0f, 7.0f);
        EXPECT_NEAR(out[i], g / (1 + std::exp(-g)) * u, 1e-5) << i;
    }
    scalar_set().swiglu(gate.data(), up.data(), 1, kInfinity, out.data());
    EXPECT_NEAR(out[0], 9.0 / (1 + std::exp(-9.0)), 1e-5);
}

TEST(Swiglu, KeepsANanSoThatTheNextQuantisationNamesIt) {
    for (const Isa isa : supported_isas()) {
        const std::vector<float> gate{kNan, 1.0f};
        const std::vector<float> up{1.0f, kNan};
        std::vector<float> out(2);
        kernel_table(isa).swiglu(gate.data(), up.data(), 2, 7.0f, out.data());
        EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1])) << isa_name(isa);
    }
}

TEST(Rope, TurnsEachPairByItsAngle) {
    const std::vector<double> frequencies = rope_inverse_frequencies(10000.0, 64);
    std::vector<float> cosines(32);
    std::vector<float> sines(32);
    rope_angles(1234, frequencies, cosines.data(), sines.data());
    Random random(6);
    const std::vector<float> x = random.normals(64);
    for (const bool interleaved : {false, true}) {
        std::vector<float> turned = x;
        scalar_set().rope(turned.data(), cosines.data(), sines.data(), 32, interleaved);
        for (size_t i = 0; i < 32; ++i) {
            const size_t a = interleaved ? 2 * i : i;
            const size_t b = interleaved ? 2 * i + 1 : i + 32;
            const double angle = 1234 * std::pow(10000.0, -2.0 * static_cast<double>(i) / 64);
            EXPECT_NEAR(turned[a], x[a] * std::cos(angle) - x[b] * std::sin(angle), 1e-6);
            EXPECT_NEAR(turned[b], x[b] * std::cos(angle) + x[a] * std::sin(angle), 1e-6);
        }
    }
}

TEST(Vectors, EverySetGivesTheScalarBitsAtAnyLengthAndAlignment) {
    Random random(7);
    for (const KernelTable* set : other_sets()) {
        for (const int n : lengths()) {
            // One element in, so that no vector is aligned; one beyond, which must stay.
            const int room = n + 2;
            const std::vector<float> x = random.rough(room);
            const std::vector<float> y = random.rough(room);
            const auto both = [&](auto call) {
                std::vector<float> expected = y;
                std::vector<float> found = y;
                call(scalar_set(), expected.data() + 1);
                call(*set, found.data() + 1);
                EXPECT_TRUE(same_bits(expected, found)) << set->name << " n " << n;
                EXPECT_TRUE(same_bits<float>({y.front(), y.back()}, {found.front(), found.back()}));
            };
            const float* in = x.data() + 1;
            both([&](const KernelTable& k, float* out) { k.add(in, n, out); });
            both([&](const KernelTable& k, float* out) { k.add_scaled(in, 0.3f, n, out); });
            both([&](const KernelTable& k, float* out) { k.exp(in, n, out); });
            both([&](const KernelTable& k, float* out) { k.rms_norm(in, y.data() + 1, n, 1e-6f, out); });
            both([&](const KernelTable& k, float* out) { k.rms_norm(out, in, n, 1e-6f, out); });
            both([&](const KernelTable& k, float* out) { k.swiglu(in, y.data() + 1, n, 7.0f, out); });
            both([&](const KernelTable& k, float* out) { k.swiglu(in, out, n, kInfinity, out); });
            both([&](const KernelTable& k, float* out) { k.rope(out, in, in, n / 2, false); });
            both([&](const KernelTable& k, float* out) { k.rope(out, in, in, n / 2, true); });
        }
    }
}

// ---- rotary tables

TEST(RopeTable, AnglesAreWithin1em9OfLibmBeforeRoundingUpToPosition262144) {
    for (const double theta : {10000.0, 100000.0, 1e6, 5e5}) {
        const std::vector<double> frequencies = rope_inverse_frequencies(theta, 128);
        std::vector<float> cosines(64);
        std::vector<float> sines(64);
        for (int64_t position = 0; position <= 262144; position += position < 2000 ? 1 : 997) {
            rope_angles(position, frequencies, cosines.data(), sines.data());
            for (size_t i = 0; i < 64; ++i) {
                const long double exponent = -2.0L * static_cast<long double>(i) / 128.0L;
                const long double angle =
                    static_cast<long double>(position) * std::pow(static_cast<long double>(theta), exponent);
                // Half a unit in the last place of a float32 below 1 is at most 2^-25.
                const long double bound = 0x1p-25L + 1e-9L;
                ASSERT_LE(std::abs(static_cast<long double>(cosines[i]) - std::cos(angle)), bound)
                    << position << " " << i;
                ASSERT_LE(std::abs(static_cast<long double>(sines[i]) - std::sin(angle)), bound)
                    << position << " " << i;
            }
        }
    }
}

TEST(RopeTable, FrequenciesAreWithin1em15OfLibm) {
    for (const double theta : {2.0, 10000.0, 100000.0, 1e6, 1.5e7}) {
        const std::vector<double> frequencies = rope_inverse_frequencies(theta, 96);
        ASSERT_EQ(frequencies.size(), 48u);
        EXPECT_EQ(frequencies[0], 1.0);
        for (size_t i = 0; i < 48; ++i) {
            const long double exact = std::pow(static_cast<long double>(theta), -static_cast<long double>(i) / 48.0L);
            EXPECT_NEAR(static_cast<double>(frequencies[i] / exact), 1.0, 5e-15);
        }
    }
}

// ---- attention

struct AttentionCase {
    int heads;
    int head_dim;
    int begin;
    int end;
    float scale;
    std::vector<float> q;
    std::vector<int16_t> k;
    std::vector<int16_t> v;
    std::vector<float> k_scale;
    std::vector<float> v_scale;
    KvType type = KvType::kInt16;
    std::vector<int8_t> bytes = {};  // k, then v, where the type is 8 bits

    KvBlock block() const {
        if (type == KvType::kInt16) return {k.data(), v.data(), k_scale.data(), v_scale.data(), 0, type};
        return {bytes.data(), bytes.data() + k.size(), k_scale.data(), v_scale.data(), 0, type};
    }
};

AttentionCase attention_case(Random& random, int heads, int head_dim, int begin, int end,
                             KvType type = KvType::kInt16) {
    AttentionCase c{heads,
                    head_dim,
                    begin,
                    end,
                    1.0f / std::sqrt(static_cast<float>(head_dim)),
                    random.normals(heads * head_dim, 2.0f),
                    random.words(64 * head_dim),
                    random.words(64 * head_dim),
                    std::vector<float>(64, kNan),
                    std::vector<float>(64, kNan)};
    for (int j = begin; j < end; ++j) {
        const auto at = static_cast<size_t>(j);
        c.k_scale[at] = random.between(0, 7) == 0 ? 0.0f : std::abs(random.normal(3e-5f));
        c.v_scale[at] = random.between(0, 7) == 0 ? 1e-41f : std::abs(random.normal(3e-5f));
    }
    if (type == KvType::kInt8) {
        c.type = type;
        for (std::vector<int16_t>* words : {&c.k, &c.v}) {
            for (int16_t& w : *words) {
                w = static_cast<int16_t>(w % 128);
                c.bytes.push_back(static_cast<int8_t>(w));
            }
        }
        for (float& scale : c.k_scale) scale *= 256;
    }
    return c;
}

struct Attention {
    std::vector<float> max;
    std::vector<float> sum;
    std::vector<float> out;
    BlockResult view() { return {max.data(), sum.data(), out.data()}; }
};

Attention attend(const KernelTable& set, const AttentionCase& c) {
    const auto heads = static_cast<size_t>(c.heads);
    Attention r{std::vector<float>(heads, 9), std::vector<float>(heads, 9),
                std::vector<float>(heads * static_cast<size_t>(c.head_dim), 9)};
    set.attend_block(c.q.data(), c.heads, c.head_dim, c.scale, c.block(), c.begin, c.end, r.view());
    return r;
}

/// The formulas of docs/numerics.md, one operation after the other.
Attention attend_by_definition(const AttentionCase& c) {
    Attention r;
    const int dim = c.head_dim;
    for (int h = 0; h < c.heads; ++h) {
        std::vector<float> p;
        for (int j = c.begin; j < c.end; ++j) {
            const std::vector<float> key(c.k.begin() + j * dim, c.k.begin() + (j + 1) * dim);
            p.push_back(dot_definition(c.q.data() + h * dim, key.data(), dim) *
                        (c.k_scale[static_cast<size_t>(j)] * c.scale));
        }
        const float max = *std::max_element(p.begin(), p.end()) + 0.0f;
        for (float& s : p) s -= max;
        scalar_set().exp(p.data(), static_cast<int>(p.size()), p.data());
        float sum = 0;
        std::vector<float> out(static_cast<size_t>(dim), 0.0f);
        for (int j = c.begin; j < c.end; ++j) {
            const float weight = p[static_cast<size_t>(j - c.begin)];
            sum += weight;
            const float scaled = weight * c.v_scale[static_cast<size_t>(j)];
            for (int d = 0; d < dim; ++d)
                out[static_cast<size_t>(d)] = std::fma(
                    scaled, static_cast<float>(c.v[static_cast<size_t>(j * dim + d)]), out[static_cast<size_t>(d)]);
        }
        r.max.push_back(max);
        r.sum.push_back(sum);
        r.out.insert(r.out.end(), out.begin(), out.end());
    }
    return r;
}

void expect_same(const Attention& expected, const Attention& found, const std::string& what) {
    EXPECT_TRUE(same_bits(expected.max, found.max)) << what;
    EXPECT_TRUE(same_bits(expected.sum, found.sum)) << what;
    EXPECT_TRUE(same_bits(expected.out, found.out)) << what;
    for (const float x : found.out) ASSERT_TRUE(std::isfinite(x)) << what;
}

TEST(Attention, EverySetFollowsTheFormulasAndIgnoresWhatLiesOutsideTheKeys) {
    Random random(8);
    for (const Isa isa : supported_isas()) {
        for (const int head_dim : {16, 48, 64, 80, 128, 256, 512}) {
            for (const int heads : {1, 2, 3, 4, 5, 7, 16, 17}) {
                for (const auto& [begin, end] :
                     {std::pair{0, 64}, {0, 1}, {63, 64}, {5, 6}, {0, 17}, {15, 33}, {16, 32}, {31, 64}}) {
                    const KvType type = (begin + end) % 2 == 0 ? KvType::kInt16 : KvType::kInt8;
                    const AttentionCase c = attention_case(random, heads, head_dim, begin, end, type);
                    expect_same(attend_by_definition(c), attend(kernel_table(isa), c),
                                std::string(isa_name(isa)) + " heads " + std::to_string(heads) + " dim " +
                                    std::to_string(head_dim) + " keys " + std::to_string(begin) + "-" +
                                    std::to_string(end));
                }
            }
        }
    }
}

TEST(Attention, TakesScoresFarApartAndLargestKeysWithoutNan) {
    Random random(9);
    for (const Isa isa : supported_isas()) {
        AttentionCase c = attention_case(random, 4, 128, 0, 64);
        for (int j = 0; j < 64; ++j) c.k_scale[static_cast<size_t>(j)] = j % 2 == 0 ? 1e3f : 1e-38f;
        std::fill(c.k.begin(), c.k.end(), static_cast<int16_t>(-32639));
        expect_same(attend_by_definition(c), attend(kernel_table(isa), c), std::string(isa_name(isa)));
    }
}

TEST(Attention, ANonFiniteQueryReachesTheOutputSoThatTheNextQuantisationNamesIt) {
    Random random(10);
    for (const Isa isa : supported_isas()) {
        AttentionCase c = attention_case(random, 1, 64, 0, 20);
        c.q[3] = kNan;
        const Attention r = attend(kernel_table(isa), c);
        EXPECT_TRUE(std::isnan(r.out[0])) << isa_name(isa);
    }
}

TEST(Attention, MergedBlocksGiveTheSoftmaxOverAllKeysAndEverySetGivesTheScalarBits) {
    Random random(11);
    for (const auto& [heads, dim] : {std::pair{4, 128}, {3, 64}, {5, 48}}) {
        const AttentionCase first = attention_case(random, heads, dim, 10, 64);
        AttentionCase second = attention_case(random, heads, dim, 0, 37);
        second.q = first.q;
        std::vector<std::vector<float>> outs;
        for (const Isa isa : supported_isas()) {
            const KernelTable& set = kernel_table(isa);
            Attention acc = attend(set, first);
            Attention next = attend(set, second);
            set.merge_blocks(acc.view(), next.view(), heads, dim);
            std::vector<float> out(static_cast<size_t>(heads * dim));
            set.finish_attention(acc.view(), heads, dim, out.data());
            outs.push_back(out);
            EXPECT_TRUE(same_bits(outs[0], out)) << set.name;
        }
        for (int h = 0; h < heads; ++h) {
            std::vector<double> score;
            std::vector<std::vector<double>> value;
            for (const AttentionCase* c : {&first, &std::as_const(second)}) {
                for (int j = c->begin; j < c->end; ++j) {
                    double dot = 0;
                    std::vector<double> row;
                    for (int d = 0; d < dim; ++d) {
                        const auto at = static_cast<size_t>(j * dim + d);
                        dot += static_cast<double>(c->q[static_cast<size_t>(h * dim + d)]) * c->k[at];
                        row.push_back(static_cast<double>(c->v_scale[static_cast<size_t>(j)]) * c->v[at]);
                    }
                    score.push_back(dot * c->k_scale[static_cast<size_t>(j)] * c->scale);
                    value.push_back(row);
                }
            }
            const double max = *std::max_element(score.begin(), score.end());
            double sum = 0;
            for (const double s : score) sum += std::exp(s - max);
            for (int d = 0; d < dim; ++d) {
                double out = 0;
                for (size_t j = 0; j < score.size(); ++j)
                    out += std::exp(score[j] - max) / sum * value[j][static_cast<size_t>(d)];
                ASSERT_NEAR(outs[0][static_cast<size_t>(h * dim + d)], out, 1e-5);
            }
        }
    }
}

TEST(Attention, AnAccumulatorOfMinusInfinityAndZerosMergesToTheNextBlock) {
    Random random(12);
    const AttentionCase c = attention_case(random, 4, 64, 0, 64);
    for (const Isa isa : supported_isas()) {
        Attention next = attend(kernel_table(isa), c);
        Attention acc{std::vector<float>(4, -kInfinity), std::vector<float>(4, 0.0f), std::vector<float>(256, 0.0f)};
        kernel_table(isa).merge_blocks(acc.view(), next.view(), 4, 64);
        EXPECT_EQ(acc.max, next.max);
        EXPECT_EQ(acc.sum, next.sum);
        EXPECT_EQ(acc.out, next.out);
    }
}

TEST(Attention, RowsTogetherGiveTheBitsOfEachRowAloneWhateverKeysEachSees) {
    Random random(13);
    constexpr int kBlocks = 3;
    for (const Isa isa : supported_isas()) {
        const KernelTable& set = kernel_table(isa);
        for (const auto& [heads, dim, tokens, window] : {std::tuple{4, 128, 16, 1000},
                                                         {4, 128, 16, 70},
                                                         {1, 16, 64, 5},
                                                         {3, 80, 21, 64},
                                                         {5, 48, 12, 130},
                                                         {9, 64, 1, 1000},
                                                         {16, 256, 4, 65},
                                                         {64, 16, 1, 1000}}) {
            const int rows = heads * tokens;
            for (const int position : {0, 3, 57, 64, kBlocks * 64 - tokens}) {  // of the first token
                const int first = std::max(0, position - window + 1);
                const int last = position + tokens;
                std::vector<AttentionCase> blocks;
                for (int b = 0; b < kBlocks; ++b) {
                    blocks.push_back(attention_case(random, heads, dim, std::clamp(first - 64 * b, 0, 64),
                                                    std::clamp(last - 64 * b, 0, 64),
                                                    position % 2 == 0 ? KvType::kInt16 : KvType::kInt8));
                }
                const std::vector<float> q = random.normals(rows * dim, 2.0f);
                std::vector<float> transposed(static_cast<size_t>(dim * kQueryRows), 0.0f);
                for (int r = 0; r < rows; ++r)
                    for (int d = 0; d < dim; ++d)
                        transposed[static_cast<size_t>((d % 16 * (dim / 16) + d / 16) * kQueryRows + r)] =
                            q[static_cast<size_t>(r * dim + d)];
                Attention found{std::vector<float>(kQueryRows, -kInfinity), std::vector<float>(kQueryRows, 0.0f),
                                std::vector<float>(static_cast<size_t>(kQueryRows * dim), 0.0f)};
                std::vector<float> begin(kQueryRows, 0.0f);
                std::vector<float> end(kQueryRows, 0.0f);
                std::vector<float> scratch(static_cast<size_t>(attend_rows_scratch(dim)), kNan);
                std::vector<Attention> expected(static_cast<size_t>(tokens));
                for (int b = 0; b < kBlocks; ++b) {
                    AttentionCase& c = blocks[static_cast<size_t>(b)];
                    if (c.begin == c.end) continue;
                    for (int t = 0; t < tokens; ++t) {
                        AttentionCase one = c;
                        one.q.assign(q.begin() + t * heads * dim, q.begin() + (t + 1) * heads * dim);
                        one.begin = std::clamp(position + t - window + 1 - 64 * b, 0, 64);
                        one.end = std::clamp(position + t + 1 - 64 * b, 0, 64);
                        for (int r = t * heads; r < (t + 1) * heads; ++r) {
                            begin[static_cast<size_t>(r)] = static_cast<float>(one.begin);
                            end[static_cast<size_t>(r)] = static_cast<float>(one.end);
                        }
                        if (one.begin >= one.end) continue;
                        Attention next = attend(scalar_set(), one);
                        Attention& acc = expected[static_cast<size_t>(t)];
                        if (acc.max.empty()) {
                            acc = next;
                        } else {
                            scalar_set().merge_blocks(acc.view(), next.view(), heads, dim);
                        }
                    }
                    set.attend_rows({rows, transposed.data(), begin.data(), end.data(), found.max.data(),
                                     found.sum.data(), found.out.data(), scratch.data()},
                                    dim, c.scale, c.block(), c.begin, c.end);
                }
                for (int t = 0; t < tokens; ++t) {
                    const int r = t * heads;
                    const Attention part{{found.max.begin() + r, found.max.begin() + r + heads},
                                         {found.sum.begin() + r, found.sum.begin() + r + heads},
                                         {found.out.begin() + r * dim, found.out.begin() + (r + heads) * dim}};
                    expect_same(expected[static_cast<size_t>(t)], part,
                                std::string(set.name) + " heads " + std::to_string(heads) + " dim " +
                                    std::to_string(dim) + " token " + std::to_string(position + t));
                }
            }
        }
    }
}

// ---- float matmul

struct FloatWeights {
    std::vector<std::byte> data;
    std::vector<float> values;
};

FloatWeights float_weights(Random& random, Layout layout, int rows, int cols) {
    FloatWeights w;
    const std::vector<float> wanted = random.normals(rows * cols);
    w.data.resize(wanted.size() * (layout == Layout::kFloat32 ? 4 : 2));
    for (size_t i = 0; i < wanted.size(); ++i) {
        // Some 16-bit patterns that are subnormal or the largest.
        const bool odd = random.between(0, 15) == 0;
        if (layout == Layout::kFloat32) {
            const float value = odd ? 1e-41f : wanted[i];
            std::memcpy(&w.data[4 * i], &value, 4);
            w.values.push_back(value);
        } else {
            const bool half = layout == Layout::kFloat16;
            const uint16_t bits = odd    ? (half ? 0x8013 : 0x0007)
                                  : half ? float_to_half(wanted[i])
                                         : float_to_bf16(wanted[i]);
            std::memcpy(&w.data[2 * i], &bits, 2);
            w.values.push_back(half ? half_to_float(bits) : bf16_to_float(bits));
        }
    }
    return w;
}

TEST(FloatMatmul, EverySetGivesTheDotOrderForAnyShapeTokensAndRowRange) {
    Random random(13);
    const auto stride_of = [](int cols) { return static_cast<int>(round_up(cols, 256)); };
    for (const Layout layout : {Layout::kFloat32, Layout::kFloat16, Layout::kBfloat16}) {
        for (const int cols : {1, 15, 16, 17, 33, 64, 576}) {
            for (const int rows : {1, 15, 16, 17, 47}) {
                const FloatWeights w = float_weights(random, layout, rows, cols);
                const Matrix matrix{layout, 0, 0, rows, cols, w.data.data()};
                const int stored = 9;
                const std::vector<float> x = random.normals(stored * stride_of(cols));
                Activations a;
                a.n = stored;
                a.cols = cols;
                a.stride = stride_of(cols);
                a.x = x.data();
                for (const int n : {1, 2, 3, 4, 7, 9}) {
                    std::vector<int32_t> tokens(static_cast<size_t>(n));
                    for (int32_t& t : tokens) t = random.between(0, stored - 1);
                    const bool listed = random.between(0, 1) == 1;
                    const int groups = (rows + 15) / 16;
                    const int begin = random.between(0, groups - 1);
                    const int out_stride = rows + 3;
                    std::vector<float> expected(static_cast<size_t>(n * out_stride), 7.0f);
                    for (int i = 0; i < n; ++i) {
                        const int t = listed ? tokens[static_cast<size_t>(i)] : i;
                        for (int r = 16 * begin; r < rows; ++r)
                            expected[static_cast<size_t>(i * out_stride + r)] =
                                dot_definition(w.values.data() + r * cols, x.data() + t * a.stride, cols);
                    }
                    for (const Isa isa : supported_isas()) {
                        std::vector<float> found(expected.size(), 7.0f);
                        kernel_table(isa).matmul(matrix, begin, groups, a, listed ? tokens.data() : nullptr, n,
                                                 found.data(), out_stride);
                        ASSERT_TRUE(same_bits(expected, found))
                            << isa_name(isa) << " layout " << static_cast<int>(layout) << " rows " << rows << " cols "
                            << cols << " n " << n;
                    }
                }
            }
        }
    }
}

// ---- routing

TEST(Route, ChoosesTheLargestInOrderWithTiesToTheLowerIndexAndWeightsThatSumToOne) {
    Random random(14);
    for (int repeat = 0; repeat < 200; ++repeat) {
        const int experts = random.between(1, 256);
        const int k = random.between(1, std::min(experts, 8));
        std::vector<float> logits(static_cast<size_t>(experts));
        for (float& l : logits) l = repeat % 2 == 0 ? random.normal() : static_cast<float>(random.between(-3, 3));
        std::vector<int> order(static_cast<size_t>(experts));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int a, int b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
        std::vector<uint16_t> chosen(static_cast<size_t>(k));
        std::vector<float> weights(static_cast<size_t>(k));
        route(logits.data(), experts, k, chosen.data(), weights.data());
        double total = 0;
        for (int i = 0; i < k; ++i)
            total += std::exp(static_cast<double>(logits[static_cast<size_t>(order[static_cast<size_t>(i)])]));
        for (size_t i = 0; i < chosen.size(); ++i) {
            ASSERT_EQ(chosen[i], order[i]);
            ASSERT_NEAR(weights[i], std::exp(static_cast<double>(logits[chosen[i]])) / total, 1e-6);
        }
    }
}

// ---- dispatch

TEST(Dispatch, NamesAndSetsMatchAndAutoIsTheFastest) {
    EXPECT_EQ(supported_isas().front(), Isa::kScalar);
    EXPECT_EQ(parse_isa("auto"), supported_isas().back());
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx, Isa::kNeon, Isa::kNeonDot, Isa::kNeonI8mm})
        EXPECT_EQ(parse_isa(isa_name(isa)), isa);
    for (const Isa isa : supported_isas()) EXPECT_EQ(kernel_table(isa).name, isa_name(isa));
}

TEST(Dispatch, AnUnknownNameIsAnErrorThatSaysWhatIsExpected) {
    try {
        parse_isa("sse9");
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
        EXPECT_NE(std::string(e.what()).find("sse9"), std::string::npos);
        EXPECT_NE(std::string(e.what()).find("avx512"), std::string::npos);
    }
}

TEST(Dispatch, ASetTheCpuLacksIsAnErrorThatNamesIt) {
    const std::vector<Isa> supported = supported_isas();
    for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAmx, Isa::kNeon, Isa::kNeonDot, Isa::kNeonI8mm}) {
        if (std::find(supported.begin(), supported.end(), isa) != supported.end()) {
            EXPECT_NO_THROW(kernel_table(isa));
            continue;
        }
        try {
            kernel_table(isa);
            FAIL() << "no error";
        } catch (const Error& e) {
            EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
            EXPECT_NE(std::string(e.what()).find(isa_name(isa)), std::string::npos);
        }
    }
}

}  // namespace
}  // namespace samara::kernels
