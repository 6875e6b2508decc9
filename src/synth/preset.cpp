#include "src/synth/preset.hpp"

#include <memory>

namespace samara::synth {

using formats::MetaArray;

const std::vector<Preset>& presets() {
    static const std::vector<Preset> kPresets = {
        {.name = "maple-tiny",
         .summary = "8 layers in the real pattern, hidden 512, 64 experts, small vocabulary: for tests",
         .architecture = "maple",
         .layers = 8,
         .hidden = 512,
         .heads = 4,
         .kv_heads = 2,
         .head_dim = 128,
         .rope_dims = 64,
         .window = 64,
         .full_every = 4,
         .experts = 64,
         .experts_used = 8,
         .expert_ffn = 256,
         .ffn = 1024,
         .context = 8192,
         .vocabulary = 2048,
         .tiny_tokenizer = true},
        {.name = "maple-wide",
         .summary = "one sliding and one full layer at the real width, vocabulary and 256 experts",
         .architecture = "maple",
         .layers = 2,
         .hidden = 2048,
         .heads = 16,
         .kv_heads = 4,
         .head_dim = 128,
         .rope_dims = 64,
         .window = 512,
         .full_every = 2,
         .experts = 256,
         .experts_used = 8,
         .expert_ffn = 512,
         .ffn = 4096,
         .context = 32768,
         .vocabulary = 151936},
        {.name = "maple-20b",
         .summary = "the full size: 24 layers, 20.2 billion weights, 5.1 GiB as tq2_0",
         .architecture = "maple",
         .layers = 24,
         .hidden = 2048,
         .heads = 16,
         .kv_heads = 4,
         .head_dim = 128,
         .rope_dims = 64,
         .window = 512,
         .full_every = 4,
         .experts = 256,
         .experts_used = 8,
         .expert_ffn = 512,
         .ffn = 4096,
         .context = 131072,
         .vocabulary = 151936},
        {.name = "llama-tiny",
         .summary = "a dense llama of 4 layers, hidden 256: for tests",
         .architecture = "llama",
         .layers = 4,
         .hidden = 256,
         .heads = 4,
         .kv_heads = 2,
         .head_dim = 64,
         .rope_dims = 64,
         .ffn = 768,
         .context = 4096,
         .vocabulary = 2048,
         .tiny_tokenizer = true},
    };
    return kPresets;
}

const Preset& find_preset(std::string_view name) {
    std::string known;
    for (const Preset& preset : presets()) {
        if (preset.name == name) return preset;
        known += (known.empty() ? "" : ", ") + std::string(preset.name);
    }
    throw Error(ErrorCode::kInvalidArgument,
                "synth: unknown preset " + std::string(name) + "; expected one of " + known);
}

void set_config(const Preset& p, formats::GgufWriter& writer) {
    const std::string prefix = std::string(p.architecture) + ".";
    const auto set = [&](std::string_view key, formats::MetaValue value) {
        writer.set(prefix + std::string(key), std::move(value));
    };
    writer.set("general.architecture", std::string(p.architecture));
    writer.set("general.name", std::string(p.name) + " (synthetic)");
    writer.set("general.quantization_version", uint32_t{2});
    set("block_count", p.layers);
    set("context_length", p.context);
    set("embedding_length", p.hidden);
    set("feed_forward_length", p.ffn);
    set("attention.head_count", p.heads);
    set("attention.head_count_kv", p.kv_heads);
    set("attention.key_length", p.head_dim);
    set("attention.value_length", p.head_dim);
    set("attention.layer_norm_rms_epsilon", p.dense() ? 1e-5f : 1e-6f);
    set("rope.freq_base", 10000.0f);
    set("rope.dimension_count", p.rope_dims);
    set("vocab_size", p.vocabulary);
    if (p.window != 0) {
        std::vector<bool> pattern;
        pattern.reserve(p.layers);
        for (uint32_t layer = 0; layer < p.layers; ++layer) pattern.push_back(p.sliding(layer));
        constexpr uint32_t kGgufBool = 7;
        set("attention.sliding_window", p.window);
        set("attention.sliding_window_pattern", std::make_shared<const MetaArray>(MetaArray{kGgufBool, pattern}));
    }
    if (!p.dense()) {
        set("expert_count", p.experts);
        set("expert_used_count", p.experts_used);
        set("expert_feed_forward_length", p.expert_ffn);
        set("swiglu_clamp_exp", 7.0f);
    }
}

}  // namespace samara::synth
