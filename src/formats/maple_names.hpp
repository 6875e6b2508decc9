#pragma once
// Maple checkpoints in safetensors, translated: config.json to `maple.*` keys, tensor names to GGUF names. Knows the
// MLX 2-bit layout and Hugging Face's layout with experts one by one.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/formats/checkpoint.hpp"
#include "src/formats/safetensors_reader.hpp"

namespace samara::formats {

/// The metadata a GGUF file of the same model would carry (without tokenizer). `name` is config.json's, for messages;
/// `file` becomes Metadata::file(). Throws Error(kFormat) for missing or senseless values, Error(kUnsupported) for
/// another architecture.
Metadata translate_maple_config(std::string_view config_json, const std::string& name, const std::string& file);

/// One shard's entries, with the shard's name for messages.
struct SafetensorsShard {
    std::string file;
    std::vector<SafetensorsEntry> entries;
};

struct TranslatedTensors {
    std::vector<Tensor> tensors;  // sorted by name; data points where the entries' data points
    bool mlx = false;             // some tensors are packed as MLX packs them
};

/// Tensors under GGUF names. Row lengths of packed tensors come from `metadata` (a translate_maple_config result).
/// Throws Error(kFormat) for duplicates, parts that do not fit together and missing experts, Error(kUnsupported) for
/// tensors or types this engine does not know.
TranslatedTensors translate_maple_tensors(std::span<const SafetensorsShard> shards, const Metadata& metadata);

}  // namespace samara::formats
