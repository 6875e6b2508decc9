#pragma once
// The tile operations of src/kernels/amx_tiles.hpp on arrays, for the tests on CPUs without AMX. Semantics are those of
// Intel's manual for registers configured whole. Included by amx_tiles.hpp, after its types.

#include <cstring>

namespace samara::kernels::amx {
namespace {

struct Registers {
    bool configured = false;
    Tile tile[8];
};

inline Registers& registers() {
    static thread_local Registers state;
    return state;
}

/// A register, which only a configured thread may touch: the processor faults otherwise.
inline Tile& tile(int index) {
    if (!registers().configured) __builtin_trap();
    return registers().tile[index];
}

inline void configure(const Config& config) {
    const Config whole;
    if (std::memcmp(&config, &whole, sizeof whole) != 0) __builtin_trap();  // nothing else is emulated
    registers().configured = true;
    std::memset(registers().tile, 0, sizeof registers().tile);
}

inline void release() { registers().configured = false; }

template <int kRegister>
void zero() {
    std::memset(&tile(kRegister), 0, sizeof(Tile));
}

template <int kRegister>
void load(const Tile& from) {
    tile(kRegister) = from;
}

template <int kRegister>
void store(Tile& to) {
    to = tile(kRegister);
}

template <int kSum, int kA, int kB>
void dot_signed_unsigned() {
    const Tile& a = tile(kA);
    const Tile& b = tile(kB);
    for (int m = 0; m < 16; ++m) {
        int32_t sums[16];
        std::memcpy(sums, tile(kSum).bytes[m], sizeof sums);
        for (int k = 0; k < 64; ++k) {
            const int activation = static_cast<int8_t>(a.bytes[m][k]);
            const std::byte* codes = b.bytes[k / 4] + k % 4;
            for (int n = 0; n < 16; ++n) sums[n] += activation * static_cast<int>(codes[4 * n]);
        }
        std::memcpy(tile(kSum).bytes[m], sums, sizeof sums);
    }
}

}  // namespace
}  // namespace samara::kernels::amx
