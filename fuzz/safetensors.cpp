// The header of a safetensors file, and the translation of its tensors under a fixed configuration.

#include "fuzz/input.hpp"
#include "src/formats/maple_names.hpp"
#include "src/formats/safetensors_reader.hpp"

namespace {

const samara::formats::Metadata& configuration() {
    static const samara::formats::Metadata metadata = samara::formats::translate_maple_config(
        R"({"model_type": "maple", "num_hidden_layers": 1, "hidden_size": 128, "intermediate_size": 128,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "sliding_window": 8,
            "layer_types": ["full_attention"], "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "num_experts": 2,
            "num_experts_per_tok": 1, "moe_intermediate_size": 128, "rms_norm_eps": 1e-06, "vocab_size": 3,
            "max_position_embeddings": 99})",
        "config.json", "input");
    return metadata;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    return samara::fuzz::expect_success_or_error([&] {
        const samara::formats::SafetensorsShard shard{
            "input", samara::formats::parse_safetensors(samara::fuzz::bytes_of(data, size), "input")};
        const auto translated = samara::formats::translate_maple_tensors({&shard, 1}, configuration());
        samara::fuzz::read_last_rows(translated.tensors);
    });
}
