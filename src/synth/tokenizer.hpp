#pragma once
// A byte-level BPE tokenizer.json (Hugging Face) as GGUF's tokenizer keys.

#include <cstdint>
#include <string>

#include "src/formats/gguf_writer.hpp"

namespace samara::synth {

/// The JSON text of the built-in tokenizer of 2048 ids (assets/tiny_tokenizer.json).
std::string tiny_tokenizer_json();

/// $SAMARA_CACHE/tokenizers/qwen3/tokenizer.json, where tools/fetch_qwen_tokenizer puts it; SAMARA_CACHE is
/// ~/.cache/samara when unset.
std::string default_tokenizer_path();

/// Reads a tokenizer.json. Throws Error(kIo) that says how to fetch it when it is missing.
std::string read_tokenizer_json(const std::string& path);

/// Sets tokenizer.* (model gpt2, pre qwen2, tokens, types, merges, end-of-turn and padding ids, ChatML template), the
/// vocabulary padded to `vocabulary` ids with unused tokens. `source` names the JSON in errors: Error(kFormat) for what
/// is not a BPE tokenizer, has an id outside the vocabulary or twice, or lacks ChatML's tokens.
void set_tokenizer(const std::string& json, const std::string& source, uint32_t vocabulary,
                   formats::GgufWriter& writer);

}  // namespace samara::synth
