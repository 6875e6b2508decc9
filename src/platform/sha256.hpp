#pragma once
// SHA-256 of data that comes in pieces: a thin wrapper over libsodium (sha256.cpp), or our own where there is no
// libsodium, on a phone or in a cross build (sha256_portable.cpp).

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace samara::platform {

class Sha256 {
  public:
    Sha256();
    ~Sha256();
    Sha256(const Sha256&) = delete;
    Sha256& operator=(const Sha256&) = delete;

    void update(std::span<const std::byte> bytes);
    /// 64 lower-case hexadecimal digits; the object then starts anew.
    std::string finish();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

inline std::string sha256(std::span<const std::byte> bytes) {
    Sha256 hash;
    hash.update(bytes);
    return hash.finish();
}

}  // namespace samara::platform
