#pragma once
// CRC-32C (Castagnoli polynomial, as in iSCSI and ext4): guards every expert record that is read from storage.

#include <cstddef>
#include <cstdint>
#include <span>

namespace samara::formats {

/// Checksum of `bytes`; pass the result for the bytes before to continue. crc32c of "123456789" is 0xe3069283.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

/// The same by tables, whatever the CPU: what the instruction is tested against.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace samara::formats
