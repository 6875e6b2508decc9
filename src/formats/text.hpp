#pragma once
// How names, values and shapes from a file are written in messages: always one printable line, never long.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace samara::formats {

/// `text` in single quotes; control and non-ASCII bytes as \xNN, cut after 80 bytes.
std::string in_quotes(std::string_view text);

/// "[2048, 512, 256]"
std::string shape_text(std::span<const uint64_t> shape);

/// True and the product in `product` when a*b fits 64 bits.
constexpr bool multiply_checked(uint64_t a, uint64_t b, uint64_t& product) {
    if (a != 0 && b > UINT64_MAX / a) return false;
    product = a * b;
    return true;
}

}  // namespace samara::formats
