#pragma once
// The shapes of the synthetic models, and the GGUF keys that say them.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/formats/gguf_writer.hpp"

namespace samara::synth {

struct Preset {
    std::string_view name;
    std::string_view summary;       // one line for --help
    std::string_view architecture;  // "maple" or "llama"
    uint32_t layers = 0;
    uint32_t hidden = 0;
    uint32_t heads = 0;
    uint32_t kv_heads = 0;
    uint32_t head_dim = 0;
    uint32_t rope_dims = 0;   // rotated, from the first
    uint32_t window = 0;      // keys a sliding layer sees, the current one included; 0: every layer is full
    uint32_t full_every = 0;  // every full_every-th layer is full, the others slide
    uint32_t experts = 0;     // 0: dense
    uint32_t experts_used = 0;
    uint32_t expert_ffn = 0;  // width of one expert
    uint32_t ffn = 0;         // width of a dense layer; in maple a key that nothing reads
    uint32_t context = 0;
    uint32_t vocabulary = 0;
    bool tiny_tokenizer = false;  // the built-in tokenizer; otherwise Qwen's file

    bool dense() const { return experts == 0; }
    bool sliding(uint32_t layer) const { return window != 0 && (layer + 1) % full_every != 0; }
};

const std::vector<Preset>& presets();
/// Throws Error(kInvalidArgument) that lists the presets.
const Preset& find_preset(std::string_view name);

/// Sets the architecture's keys (not the tokenizer's) on `writer`.
void set_config(const Preset& preset, formats::GgufWriter& writer);

}  // namespace samara::synth
