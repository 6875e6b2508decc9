#include "src/platform/sha256.hpp"

#include <sodium.h>

#include "src/platform/error.hpp"

namespace samara::platform {

struct Sha256::State {
    crypto_hash_sha256_state hash;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
    if (sodium_init() < 0) throw Error(ErrorCode::kInternal, "libsodium cannot be initialised");
    crypto_hash_sha256_init(&state_->hash);
}

Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
    crypto_hash_sha256_update(&state_->hash, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

std::string Sha256::finish() {
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_final(&state_->hash, digest);
    crypto_hash_sha256_init(&state_->hash);
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    for (const unsigned char byte : digest) {
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

}  // namespace samara::platform
