// SHA-256 as FIPS 180-4 states it, for builds without libsodium. Not written for speed.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "src/platform/sha256.hpp"

namespace samara::platform {
namespace {

constexpr size_t kBlock = 64;  // bytes hashed at once

// Fractional parts of the cube roots (kRound) and square roots (kInitial) of the first primes.
constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
constexpr uint32_t kInitial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

}  // namespace

struct Sha256::State {
    uint32_t hash[8];
    uint64_t bytes;             // taken so far
    std::byte pending[kBlock];  // the last bytes % 64 of them

    void start() {
        std::copy_n(kInitial, 8, hash);
        bytes = 0;
    }

    void add_block(const std::byte* block) {
        uint32_t w[64];
        for (int i = 0; i < 16; ++i) {
            w[i] = 0;
            for (int j = 0; j < 4; ++j) w[i] = w[i] << 8 | std::to_integer<uint32_t>(block[4 * i + j]);
        }
        for (int i = 16; i < 64; ++i) {
            const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
            const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        uint32_t v[8];  // a to h
        std::copy_n(hash, 8, v);
        for (int i = 0; i < 64; ++i) {
            const uint32_t s1 = std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25);
            const uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
            const uint32_t t1 = v[7] + s1 + choice + kRound[i] + w[i];
            const uint32_t s0 = std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22);
            const uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
            std::copy_backward(v, v + 7, v + 8);
            v[4] += t1;
            v[0] = t1 + s0 + majority;
        }
        for (int i = 0; i < 8; ++i) hash[i] += v[i];
    }

    void add(std::span<const std::byte> data) {
        const size_t held = bytes % kBlock;
        bytes += data.size();
        if (held + data.size() < kBlock) {
            std::copy(data.begin(), data.end(), pending + held);
            return;
        }
        if (held > 0) {
            std::copy_n(data.begin(), kBlock - held, pending + held);
            add_block(pending);
            data = data.subspan(kBlock - held);
        }
        for (; data.size() >= kBlock; data = data.subspan(kBlock)) add_block(data.data());
        std::copy(data.begin(), data.end(), pending);
    }
};

Sha256::Sha256() : state_(std::make_unique<State>()) { state_->start(); }

Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) { state_->add(bytes); }

std::string Sha256::finish() {
    const uint64_t bits = state_->bytes * 8;
    // A one bit, zeros up to 8 bytes before the end of a block, and the length in bits, big end first.
    std::byte padding[kBlock + 8] = {std::byte{0x80}};
    const size_t zeros_end = (kBlock + 55 - state_->bytes % kBlock) % kBlock + 1;
    for (int i = 0; i < 8; ++i) padding[zeros_end + static_cast<size_t>(i)] = std::byte(bits >> (56 - 8 * i));
    state_->add({padding, zeros_end + 8});
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    for (const uint32_t word : state_->hash) {
        for (int shift = 28; shift >= 0; shift -= 4) text += kDigits[word >> shift & 15];
    }
    state_->start();
    return text;
}

}  // namespace samara::platform
