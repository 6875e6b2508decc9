#include "src/formats/maple_names.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "src/formats/json_walk.hpp"
#include "src/formats/text.hpp"

namespace samara::formats {
namespace {

constexpr uint64_t kMostLayers = 4096;
constexpr uint64_t kMostExperts = 65536;
constexpr uint64_t kLargestExtent = 1ull << 24;

// --- config.json -----------------------------------------------------------------------------------------------------

/// The first of `names` that the config has, or the first of all (for the message that it is missing).
std::string_view pick(const JsonTable& config, std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) {
        if (config.has(name)) return name;
    }
    return *names.begin();
}

void check_architecture(const JsonTable& config) {
    const std::string& type = config.get_string("model_type");
    if (type != "maple" && !type.starts_with("maple_")) {
        throw Error(ErrorCode::kUnsupported, config.name() + ": key 'model_type': expected 'maple', found " +
                                                 in_quotes(type) + "; other safetensors models are not read");
    }
}

MetaValue sliding_pattern(const JsonTable& config, uint64_t layers) {
    const std::vector<JsonValue>& types = config.get_array("layer_types");
    if (types.size() != layers) {
        throw Error(ErrorCode::kFormat, config.name() + ": key 'layer_types': expected " + std::to_string(layers) +
                                            " values, found " + std::to_string(types.size()));
    }
    std::vector<bool> sliding;
    for (const JsonValue& type : types) {
        const auto* text = std::get_if<std::string>(&type);
        if (text == nullptr || (*text != "sliding_attention" && *text != "full_attention")) {
            throw Error(ErrorCode::kFormat,
                        config.name() +
                            ": key 'layer_types': expected 'sliding_attention' or 'full_attention', found " +
                            describe_json(type));
        }
        sliding.push_back(*text == "sliding_attention");
    }
    auto array = std::make_shared<MetaArray>();
    array->gguf_type = 7;  // bool
    array->items = std::move(sliding);
    return std::shared_ptr<const MetaArray>(std::move(array));
}

void set_rope(const JsonTable& config, uint64_t head_dim, Metadata& metadata) {
    const double theta = config.get_number(pick(config, {"rope_theta", "rope_parameters.rope_theta"}));
    const std::string_view factor_key =
        pick(config, {"partial_rotary_factor", "rope_parameters.partial_rotary_factor"});
    const double factor = config.has(factor_key) ? config.get_number(factor_key) : 1.0;
    const double dimensions = factor * static_cast<double>(head_dim);
    if (!(factor > 0 && factor <= 1) || dimensions != std::floor(dimensions)) {
        throw Error(ErrorCode::kFormat, config.name() + ": key " + in_quotes(factor_key) +
                                            ": expected a fraction of head_dim " + std::to_string(head_dim) +
                                            " that gives whole dimensions, found " + std::to_string(factor));
    }
    metadata.set("maple.rope.freq_base", static_cast<float>(theta));
    metadata.set("maple.rope.dimension_count", static_cast<uint32_t>(dimensions));
}

// --- tensor names ----------------------------------------------------------------------------------------------------

enum class Part { kWeight, kRowAlpha, kScales, kBiases };

struct MapleName {
    std::string gguf;  // "blk.3.ffn_gate_exps.weight"
    std::string role;  // "ffn_gate_exps"
    Part part = Part::kWeight;
    std::optional<uint64_t> expert;  // experts stored one by one
};

std::optional<uint64_t> take_number(std::string_view& text) {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const auto digits = static_cast<size_t>(end - text.data());
    // No leading zeros: "layers.01" would be a second name for layer 1.
    if (error != std::errc() || digits == text.size() || text[digits] != '.' || (digits > 1 && text[0] == '0')) {
        return std::nullopt;
    }
    text.remove_prefix(digits + 1);
    return value;
}

std::optional<std::string_view> look_up(std::span<const std::pair<std::string_view, std::string_view>> table,
                                        std::string_view name) {
    for (const auto& [from, to] : table) {
        if (from == name) return to;
    }
    return std::nullopt;
}

constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kTopNames{{
    {"model.word_embeddings", "token_embd"},
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
}};

constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kLayerNames{{
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.switch_mlp.gate_proj", "ffn_gate_exps"},
    {"mlp.switch_mlp.up_proj", "ffn_up_exps"},
    {"mlp.switch_mlp.down_proj", "ffn_down_exps"},
}};

constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kExpertNames{{
    {"gate_proj", "ffn_gate_exps"},
    {"up_proj", "ffn_up_exps"},
    {"down_proj", "ffn_down_exps"},
}};

std::optional<MapleName> translate_layer_name(std::string_view module, Part part) {
    const std::optional<uint64_t> layer = take_number(module);
    if (!layer) return std::nullopt;
    MapleName name;
    name.part = part;
    constexpr std::string_view kExperts = "mlp.experts.";
    std::optional<std::string_view> role;
    if (module.starts_with(kExperts)) {
        module.remove_prefix(kExperts.size());
        name.expert = take_number(module);
        if (name.expert) role = look_up(kExpertNames, module);
    } else {
        role = look_up(kLayerNames, module);
    }
    if (!role) return std::nullopt;
    name.role = *role;
    name.gguf = "blk." + std::to_string(*layer) + "." + name.role + ".weight";
    return name;
}

std::optional<MapleName> translate_name(std::string_view full) {
    constexpr std::array<std::pair<std::string_view, Part>, 4> kParts{{
        {".weight", Part::kWeight},
        {".row_alpha", Part::kRowAlpha},
        {".scales", Part::kScales},
        {".biases", Part::kBiases},
    }};
    for (const auto& [suffix, part] : kParts) {
        if (!full.ends_with(suffix)) continue;
        const std::string_view module = full.substr(0, full.size() - suffix.size());
        constexpr std::string_view kLayers = "model.layers.";
        if (module.starts_with(kLayers)) return translate_layer_name(module.substr(kLayers.size()), part);
        const std::optional<std::string_view> role = look_up(kTopNames, module);
        if (!role) return std::nullopt;
        return MapleName{std::string(*role) + ".weight", std::string(*role), part, std::nullopt};
    }
    return std::nullopt;
}

// --- putting parts together ------------------------------------------------------------------------------------------

/// A tensor in its file.
struct Located {
    const SafetensorsEntry* entry = nullptr;
    const std::string* file = nullptr;

    [[noreturn]] void fail(const std::string& message, ErrorCode code = ErrorCode::kFormat) const {
        throw Error(code, *file + ": tensor " + in_quotes(entry->name) + ": " + message);
    }
};

/// Everything that makes up one GGUF tensor.
struct Assembly {
    std::string role;
    std::map<Part, Located> parts;
    std::map<uint64_t, Located> experts;
};

std::optional<TensorType> float_type(const std::string& dtype) {
    if (dtype == "BF16") return TensorType::kBF16;
    if (dtype == "F16") return TensorType::kF16;
    if (dtype == "F32") return TensorType::kF32;
    return std::nullopt;
}

std::vector<uint64_t> reversed(const std::vector<uint64_t>& shape) { return {shape.rbegin(), shape.rend()}; }

uint64_t row_length(const std::string& role, const Metadata& metadata) {
    if (role == "attn_output") {
        return metadata.get_uint("maple.attention.head_count") * metadata.get_uint("maple.attention.value_length");
    }
    if (role == "ffn_down_exps") return metadata.get_uint("maple.expert_feed_forward_length");
    return metadata.get_uint("maple.embedding_length");
}

/// The part's data, after checking that it is BF16 of `shape` (a last extent of 1 may be left out).
std::span<const std::byte> scale_data(const Located& part, std::vector<uint64_t> shape) {
    if (part.entry->dtype != "BF16") {
        part.fail("expected BF16, found " + in_quotes(part.entry->dtype), ErrorCode::kUnsupported);
    }
    std::vector<uint64_t> found = part.entry->shape;
    if (shape.back() == 1) shape.pop_back();
    if (found.size() > shape.size() && found.back() == 1) found.pop_back();
    if (found != shape) part.fail("expected shape " + shape_text(shape) + ", found " + shape_text(part.entry->shape));
    return part.entry->data;
}

/// Weights in U32 words with their scales.
Tensor packed_tensor(const Assembly& assembly, const Located& weight, uint64_t cols) {
    const std::vector<uint64_t>& words = weight.entry->shape;
    if (words.size() < 2 || words.size() > 3) weight.fail("expected 2 or 3 dimensions, found " + shape_text(words));
    const bool two_bits = words.back() * 16 == cols;
    const bool four_bits = words.back() * 8 == cols;
    if (!two_bits && !four_bits) {
        weight.fail("expected rows of " + std::to_string(cols) + " codes of 2 or 4 bits, found " +
                    std::to_string(words.back()) + " words of 32 bits");
    }
    Tensor tensor;
    tensor.shape = reversed(words);
    tensor.shape[0] = cols;
    tensor.data = weight.entry->data;
    std::vector<uint64_t> scale_shape = words;

    const auto alpha = assembly.parts.find(Part::kRowAlpha);
    const auto scales = assembly.parts.find(Part::kScales);
    const auto biases = assembly.parts.find(Part::kBiases);
    if (alpha != assembly.parts.end()) {
        if (scales != assembly.parts.end() || biases != assembly.parts.end()) {
            weight.fail("expected row_alpha or scales with biases, found both");
        }
        if (!two_bits) weight.fail("row_alpha goes with codes of 2 bits, found 4", ErrorCode::kUnsupported);
        tensor.type = TensorType::kMlx2Row;
        scale_shape.back() = 1;
        tensor.scales = scale_data(alpha->second, scale_shape);
        return tensor;
    }
    if (scales == assembly.parts.end() || biases == assembly.parts.end()) {
        weight.fail("expected row_alpha, or scales and biases; found neither");
    }
    const uint64_t group = two_bits ? 128 : 64;
    if (cols % group != 0) {
        weight.fail("expected rows divisible by the group of " + std::to_string(group) + ", found " +
                    std::to_string(cols));
    }
    tensor.type = two_bits ? TensorType::kMlx2Group : TensorType::kMlx4Group;
    scale_shape.back() = cols / group;
    tensor.scales = scale_data(scales->second, scale_shape);
    tensor.biases = scale_data(biases->second, scale_shape);
    return tensor;
}

Tensor expert_pieces(const Assembly& assembly, uint64_t experts) {
    const Located& first = assembly.experts.begin()->second;
    if (!assembly.parts.empty()) first.fail("experts are stored both one by one and stacked");
    if (assembly.experts.size() != experts || assembly.experts.rbegin()->first != experts - 1) {
        first.fail("expected experts 0 to " + std::to_string(experts - 1) + ", found " +
                   std::to_string(assembly.experts.size()) + " with the last numbered " +
                   std::to_string(assembly.experts.rbegin()->first));
    }
    const std::optional<TensorType> type = float_type(first.entry->dtype);
    if (!type || first.entry->shape.size() != 2) {
        first.fail("expected BF16, F16 or F32 with 2 dimensions, found " + first.entry->dtype + " " +
                       shape_text(first.entry->shape),
                   ErrorCode::kUnsupported);
    }
    Tensor tensor;
    tensor.type = *type;
    tensor.shape = reversed(first.entry->shape);
    tensor.shape.push_back(experts);
    for (const auto& [number, expert] : assembly.experts) {
        if (expert.entry->dtype != first.entry->dtype || expert.entry->shape != first.entry->shape) {
            expert.fail("expected " + first.entry->dtype + " " + shape_text(first.entry->shape) +
                        " as the other experts have, found " + expert.entry->dtype + " " +
                        shape_text(expert.entry->shape));
        }
        tensor.pieces.push_back(expert.entry->data);
    }
    return tensor;
}

Tensor assemble(const std::string& name, const Assembly& assembly, const Metadata& metadata) {
    Tensor tensor;
    if (!assembly.experts.empty()) {
        tensor = expert_pieces(assembly, metadata.get_uint("maple.expert_count"));
    } else {
        const auto found = assembly.parts.find(Part::kWeight);
        if (found == assembly.parts.end()) assembly.parts.begin()->second.fail("its weight is missing");
        const Located& weight = found->second;
        if (const std::optional<TensorType> type = float_type(weight.entry->dtype)) {
            if (assembly.parts.size() != 1) weight.fail("expected no scales for " + weight.entry->dtype + " weights");
            tensor.type = *type;
            tensor.shape = reversed(weight.entry->shape);
            tensor.data = weight.entry->data;
        } else if (weight.entry->dtype == "U32") {
            tensor = packed_tensor(assembly, weight, row_length(assembly.role, metadata));
        } else {
            weight.fail("expected BF16, F16, F32 or U32, found " + weight.entry->dtype, ErrorCode::kUnsupported);
        }
    }
    tensor.name = name;
    return tensor;
}

void add_entry(const Located& located, std::map<std::string, Assembly>& assemblies) {
    constexpr std::string_view kIgnored = "lm_head_flash.";  // an approximate head, made from the real one
    if (located.entry->name.starts_with(kIgnored)) return;
    const std::optional<MapleName> name = translate_name(located.entry->name);
    if (!name) located.fail("not a tensor of the Maple architecture", ErrorCode::kUnsupported);
    Assembly& assembly = assemblies[name->gguf];
    assembly.role = name->role;
    if (name->expert && name->part != Part::kWeight) {
        located.fail("experts stored one by one have no scales here", ErrorCode::kUnsupported);
    }
    const bool added = name->expert ? assembly.experts.emplace(*name->expert, located).second
                                    : assembly.parts.emplace(name->part, located).second;
    if (!added) located.fail("appears twice");
}

}  // namespace

Metadata translate_maple_config(std::string_view config_json, const std::string& name, const std::string& file) {
    const JsonTable config(config_json, name);
    check_architecture(config);
    Metadata metadata(file);
    const auto copy = [&](std::string_view key, std::initializer_list<std::string_view> names, uint64_t high) {
        const uint64_t value = config.get_uint(pick(config, names), 1, high);
        metadata.set("maple." + std::string(key), static_cast<uint32_t>(value));
        return value;
    };
    metadata.set("general.architecture", std::string("maple"));
    const uint64_t layers = copy("block_count", {"num_hidden_layers"}, kMostLayers);
    copy("context_length", {"max_position_embeddings"}, UINT32_MAX);
    copy("embedding_length", {"hidden_size"}, kLargestExtent);
    copy("feed_forward_length", {"intermediate_size", "moe_intermediate_size"}, kLargestExtent);
    const uint64_t heads = copy("attention.head_count", {"num_attention_heads"}, kLargestExtent);
    copy("attention.head_count_kv", {"num_key_value_heads"}, heads);
    const uint64_t head_dim = copy("attention.key_length", {"head_dim"}, kLargestExtent);
    copy("attention.value_length", {"head_dim"}, kLargestExtent);
    copy("attention.sliding_window", {"sliding_window"}, UINT32_MAX);
    const uint64_t experts =
        copy("expert_count", {"num_experts", "n_routed_experts", "num_local_experts"}, kMostExperts);
    copy("expert_used_count", {"num_experts_per_tok"}, experts);
    copy("expert_feed_forward_length", {"moe_intermediate_size"}, kLargestExtent);
    copy("vocab_size", {"vocab_size"}, kLargestExtent);
    metadata.set("maple.attention.layer_norm_rms_epsilon", static_cast<float>(config.get_number("rms_norm_eps")));
    metadata.set("maple.attention.sliding_window_pattern", sliding_pattern(config, layers));
    set_rope(config, head_dim, metadata);
    const std::string_view clamp = pick(config, {"swiglu_clamp_exp", "swiglu_clamp", "swiglu_limit"});
    if (config.has(clamp)) metadata.set("maple.swiglu_clamp_exp", static_cast<float>(config.get_number(clamp)));
    return metadata;
}

TranslatedTensors translate_maple_tensors(std::span<const SafetensorsShard> shards, const Metadata& metadata) {
    std::map<std::string, Assembly> assemblies;
    for (const SafetensorsShard& shard : shards) {
        for (const SafetensorsEntry& entry : shard.entries) add_entry({&entry, &shard.file}, assemblies);
    }
    TranslatedTensors translated;
    for (const auto& [name, assembly] : assemblies) {
        translated.tensors.push_back(assemble(name, assembly, metadata));
        translated.mlx = translated.mlx || translated.tensors.back().type >= TensorType::kMlx2Row;
    }
    return translated;
}

}  // namespace samara::formats
