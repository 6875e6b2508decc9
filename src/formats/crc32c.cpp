#include "src/formats/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace samara::formats {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // 0x1edc6f41 with its bits reversed

// Table k moves a byte's remainder over k further zero bytes, so that eight bytes are folded at once.
constexpr std::array<std::array<uint32_t, 256>, 8> make_tables() {
    std::array<std::array<uint32_t, 256>, 8> tables{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
        tables[0][byte] = crc;
    }
    for (size_t k = 1; k < 8; ++k) {
        for (size_t byte = 0; byte < 256; ++byte) {
            const uint32_t before = tables[k - 1][byte];
            tables[k][byte] = (before >> 8) ^ tables[0][before & 255];
        }
    }
    return tables;
}
constexpr auto kTables = make_tables();

#if defined(__x86_64__)
/// Three streams of 1 KiB hide the instruction's latency of three cycles; a table joins them.
constexpr size_t kStream = 1024;

constexpr uint32_t over_zeros(uint32_t crc, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ kTables[0][crc & 255];
    return crc;
}

// kShift[k][b]: remainder of byte b at position k of a checksum, moved over kStream zero bytes.
std::array<std::array<uint32_t, 256>, 4> make_shift() {
    std::array<std::array<uint32_t, 256>, 4> shift{};
    for (uint32_t k = 0; k < 4; ++k) {
        for (uint32_t byte = 0; byte < 256; ++byte) shift[k][byte] = over_zeros(byte << (8 * k), kStream);
    }
    return shift;
}

uint32_t shift_over_stream(uint32_t crc) {
    static const auto kShift = make_shift();
    return kShift[0][crc & 255] ^ kShift[1][(crc >> 8) & 255] ^ kShift[2][(crc >> 16) & 255] ^ kShift[3][crc >> 24];
}

__attribute__((target("sse4.2"))) uint32_t crc_instruction(std::span<const std::byte> bytes, uint32_t crc) {
    const auto load = [](const std::byte* from) {
        uint64_t word = 0;
        std::memcpy(&word, from, sizeof word);
        return word;
    };
    const std::byte* p = bytes.data();
    size_t left = bytes.size();
    while (left >= 3 * kStream) {
        uint64_t a = crc, b = 0, c = 0;
        for (size_t i = 0; i < kStream; i += 8) {
            a = _mm_crc32_u64(a, load(p + i));
            b = _mm_crc32_u64(b, load(p + kStream + i));
            c = _mm_crc32_u64(c, load(p + 2 * kStream + i));
        }
        crc = shift_over_stream(shift_over_stream(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b)) ^
              static_cast<uint32_t>(c);
        p += 3 * kStream;
        left -= 3 * kStream;
    }
    for (; left >= 8; p += 8, left -= 8) crc = static_cast<uint32_t>(_mm_crc32_u64(crc, load(p)));
    for (; left > 0; ++p, --left) crc = _mm_crc32_u8(crc, std::to_integer<uint8_t>(*p));
    return crc;
}
#endif

}  // namespace

uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t before) {
    uint32_t crc = ~before;
    const std::byte* p = bytes.data();
    size_t left = bytes.size();
    for (; left >= 8; p += 8, left -= 8) {
        uint64_t word = 0;
        std::memcpy(&word, p, sizeof word);
        word ^= crc;
        crc = 0;
        for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 255];
    }
    for (; left > 0; ++p, --left) crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<uint32_t>(*p)) & 255];
    return ~crc;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
#if defined(__x86_64__)
    static const bool kHasInstruction = __builtin_cpu_supports("sse4.2") != 0;
    if (kHasInstruction) return ~crc_instruction(bytes, ~before);
#endif
    return crc32c_portable(bytes, before);
}

}  // namespace samara::formats
