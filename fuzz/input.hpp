#pragma once
// What the targets share: an Error is the right answer to a bad file, anything else that escapes is a finding.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "src/formats/checkpoint.hpp"

namespace samara::fuzz {

inline std::span<const std::byte> bytes_of(const uint8_t* data, size_t size) {
    return std::as_bytes(std::span(data, size));
}

inline std::string_view text_of(const uint8_t* data, size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}

template <typename Parse>
int expect_success_or_error(Parse parse) {
    try {
        parse();
    } catch (const Error&) {
        return 0;
    }
    return 0;
}

/// Reads the last row of each tensor that was accepted: its bytes must be there.
inline void read_last_rows(std::span<const formats::Tensor> tensors) {
    for (const formats::Tensor& tensor : tensors) {
        std::vector<float> row(tensor.cols());
        formats::dequantise_row(tensor, tensor.experts() - 1, tensor.rows() - 1, row.data());
    }
}

}  // namespace samara::fuzz
