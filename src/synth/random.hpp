#pragma once
// Random numbers for synthetic weights: cheap, and the same on every machine (integers and exact float operations only,
// no libm). Every row of every tensor has its own stream, so that rows can be made in any order by any thread.

#include <bit>
#include <cstdint>
#include <string_view>

namespace samara::synth {

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that scatters every input bit.
constexpr uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/// xoshiro256++ (Blackman, Vigna 2019), seeded from (seed, tensor name, row).
class Stream {
  public:
    Stream(uint64_t seed, std::string_view name, uint64_t row) {
        uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
        for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
        uint64_t counter = mix(mix(seed) ^ hash) + row * kGolden;
        for (uint64_t& word : state_) word = mix(counter += mix(row + kGolden) | 1);
    }

    uint64_t next() {
        const uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
        const uint64_t shifted = state_[1] << 17;
        state_[2] ^= state_[0];
        state_[3] ^= state_[1];
        state_[1] ^= state_[2];
        state_[0] ^= state_[3];
        state_[2] ^= shifted;
        state_[3] = std::rotl(state_[3], 45);
        return result;
    }

    /// Uniform in [0, 1), a multiple of 2^-24.
    float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }

    /// Uniform in [0, bound), bound up to 2^32.
    uint64_t below(uint64_t bound) { return (next() >> 32) * bound >> 32; }

    /// Bell-shaped with mean 0 and variance 1, within 3.47: the sum of four 16-bit uniforms (Irwin-Hall), which needs
    /// neither logarithm nor cosine.
    float bell() {
        constexpr int32_t kMean = 2 * 65535;
        constexpr float kInverseDeviation = 1.0f / 37837.227f;  // sqrt(4 * (65536^2 - 1) / 12)
        const uint64_t bits = next();
        const auto sum =
            static_cast<int32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
        return static_cast<float>(sum - kMean) * kInverseDeviation;
    }

  private:
    static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
    uint64_t state_[4];
};

}  // namespace samara::synth
