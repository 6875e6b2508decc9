#pragma once
// Safetensors files and folders: headers and index. As with GGUF, nothing a file says is believed before it is checked.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/formats/checkpoint.hpp"

namespace samara::formats {

/// One tensor as its file names it.
struct SafetensorsEntry {
    std::string name;                 // "model.layers.0.self_attn.q_proj.weight"
    std::string dtype;                // "BF16", "U32", ...
    std::vector<uint64_t> shape;      // row-major: the last extent is contiguous; 1 to 4 extents, each at least 1
    std::span<const std::byte> data;  // exactly what shape and dtype need
};

/// Parses one .safetensors file held in memory; `name` is for messages. Names are unique, the tensors fill the data
/// section without gap or overlap. Throws Error(kFormat | kUnsupported).
std::vector<SafetensorsEntry> parse_safetensors(std::span<const std::byte> bytes, const std::string& name);

/// Parses model.safetensors.index.json: (tensor, file name inside the folder), in the index's order.
std::vector<std::pair<std::string, std::string>> parse_safetensors_index(std::string_view text,
                                                                         const std::string& name);

/// Opens a folder, or one .safetensors file with config.json beside it.
std::unique_ptr<Checkpoint> open_safetensors(const std::string& path);

}  // namespace samara::formats
