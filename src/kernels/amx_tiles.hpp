#pragma once
// The tile registers of AMX (Intel's Advanced Matrix Extensions), as far as the int8 matmul needs them: eight registers
// of 16 rows x 64 bytes. Written as assembly whose operands say what memory is read and written, since GCC 12's own
// intrinsics do not and lose stores before them.
//
// The state of the registers belongs to the thread, from configure() to release().

#include <array>
#include <cstddef>
#include <cstdint>

namespace samara::kernels::amx {

/// One register's worth of memory. As operand A of a product: 16 rows x 64 int8 columns. As operand B: row k holds
/// columns 4k..4k+3 of 16 outputs, which is how a row group's blocks lie once unpacked. As a sum: (16, 16) int32.
struct alignas(64) Tile {
    std::byte bytes[16][64];
};

/// What LDTILECFG reads: every register whole.
struct alignas(64) Config {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    std::array<uint16_t, 16> row_bytes = {64, 64, 64, 64, 64, 64, 64, 64};
    std::array<uint8_t, 16> rows = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(Config) == 64);

}  // namespace samara::kernels::amx

#ifdef SAMARA_EMULATE_AVX512
#include "tests/emulation/amx.hpp"
#else

namespace samara::kernels::amx {
namespace {  // compiled for one instruction set, never shared

[[gnu::always_inline]] inline void configure(const Config& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
[[gnu::always_inline]] inline void release() { asm volatile("tilerelease"); }

template <int kRegister>
[[gnu::always_inline]] inline void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kRegister));
}

template <int kRegister>
[[gnu::always_inline]] inline void load(const Tile& from) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(&from), "r"(intptr_t{64}), "i"(kRegister), "m"(from));
}

template <int kRegister>
[[gnu::always_inline]] inline void store(Tile& to) {
    asm volatile("tilestored %%tmm%c3, (%1,%2,1)" : "=m"(to) : "r"(&to), "r"(intptr_t{64}), "i"(kRegister));
}

/// sum[m][n] += signed a[m][k] * unsigned b[k][n], in int32.
template <int kSum, int kA, int kB>
[[gnu::always_inline]] inline void dot_signed_unsigned() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}

}  // namespace
}  // namespace samara::kernels::amx

#endif
