#pragma once
// GGUF v2 and v3, little-endian: header, metadata, tensor table. The file is hostile until proven otherwise: each
// count, length, shape and offset is checked against the bytes that are there before anything is allocated for it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/formats/checkpoint.hpp"

namespace samara::formats {

/// One parsed GGUF file. The tensors' data points into the bytes that were parsed.
struct GgufContents {
    uint32_t version = 0;
    uint64_t alignment = 32;
    Metadata metadata;
    std::vector<Tensor> tensors;  // in file order, names unique, data inside the file and not overlapping
};

/// True when the bytes start as a GGUF file does.
bool is_gguf(std::span<const std::byte> bytes);

/// Parses one GGUF file held in memory. `name` is for messages. Throws Error(kFormat | kUnsupported).
GgufContents parse_gguf(std::span<const std::byte> bytes, const std::string& name);

/// Opens a GGUF file, and the siblings of a split set when `source` is its first file.
std::unique_ptr<Checkpoint> open_gguf(const Source& source);

}  // namespace samara::formats
