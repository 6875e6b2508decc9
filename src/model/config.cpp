#include "src/model/config.hpp"

#include <cmath>
#include <limits>

namespace samara::model {
namespace {

using formats::Checkpoint;
using formats::Metadata;

// Bounds that no published model passes and that keep every later product inside 64 bits.
constexpr uint64_t kMaxLayers = 1024;
constexpr uint64_t kMaxWidth = 1 << 17;
constexpr uint64_t kMaxExperts = 65535;
constexpr uint64_t kMaxVocab = 1 << 22;
constexpr uint64_t kMaxContext = 1 << 24;

[[noreturn]] void bad(const Metadata& m, const std::string& key, const std::string& problem) {
    throw Error(ErrorCode::kFormat, m.file() + ": " + key + ": " + problem);
}

int read_int(const Metadata& m, const std::string& key, uint64_t low, uint64_t high) {
    return static_cast<int>(m.get_uint(key, low, high));
}

int read_int_or(const Metadata& m, const std::string& key, int fallback, uint64_t low, uint64_t high) {
    return m.has(key) ? read_int(m, key, low, high) : fallback;
}

// One float for all layers, or one a layer; absent: no clamp was trained into the file's model.
std::vector<float> read_clamp(const Metadata& m, const std::string& key, int layers, float fallback) {
    const auto n = static_cast<size_t>(layers);
    if (!m.has(key)) return std::vector<float>(n, fallback);
    std::vector<float> clamp;
    if (std::holds_alternative<std::shared_ptr<const formats::MetaArray>>(*m.find(key))) {
        for (const double v : m.get_floats(key)) clamp.push_back(static_cast<float>(v));
    } else {
        clamp.assign(n, static_cast<float>(m.get_float(key)));
    }
    if (clamp.size() != n) {
        bad(m, key, "expected " + std::to_string(n) + " values, one a layer, found " + std::to_string(clamp.size()));
    }
    for (float& v : clamp) {
        if (!std::isfinite(v) || v < 0) bad(m, key, "expected finite values of at least 0, found " + std::to_string(v));
        if (v == 0) v = std::numeric_limits<float>::infinity();
    }
    return clamp;
}

std::vector<bool> read_pattern(const Metadata& m, const std::string& key, int layers) {
    std::vector<bool> pattern;
    for (const int64_t v : m.get_ints(key)) pattern.push_back(v != 0);
    if (pattern.size() != static_cast<size_t>(layers)) {
        bad(m, key,
            "expected " + std::to_string(layers) + " values, one a layer, found " + std::to_string(pattern.size()));
    }
    return pattern;
}

int read_vocab(const Checkpoint& c, const std::string& prefix) {
    const Metadata& m = c.metadata();
    // A packed file may hold the embedding as a matrix of its own layout; its vocabulary is then a key.
    const formats::Tensor* embedding = c.find("token_embd.weight");
    const uint64_t rows = embedding != nullptr ? embedding->rows() : m.get_uint(prefix + "vocab_size", 1, kMaxVocab);
    if (rows < 1 || rows > kMaxVocab) {
        throw Error(ErrorCode::kFormat, m.file() + ": token_embd.weight: expected 1 to " + std::to_string(kMaxVocab) +
                                            " rows, found " + std::to_string(rows));
    }
    const std::string key = prefix + "vocab_size";
    if (m.has(key) && m.get_uint(key) != rows) {
        bad(m, key,
            "expected the rows of token_embd.weight, " + std::to_string(rows) + ", found " +
                std::to_string(m.get_uint(key)));
    }
    return static_cast<int>(rows);
}

void read_common(const Checkpoint& c, const std::string& p, ModelConfig& k) {
    const Metadata& m = c.metadata();
    k.name = m.get_string_or("general.name", "");
    k.layers = read_int(m, p + "block_count", 1, kMaxLayers);
    k.hidden = read_int(m, p + "embedding_length", 1, kMaxWidth);
    k.heads = read_int(m, p + "attention.head_count", 1, 1024);
    k.kv_heads = read_int_or(m, p + "attention.head_count_kv", k.heads, 1, 1024);
    k.context = static_cast<int64_t>(m.get_uint(p + "context_length", 1, kMaxContext));
    k.vocab = read_vocab(c, p);
    k.tied_head = c.find("output.weight") == nullptr && c.find("samara.output.weight") == nullptr;
    const double eps = m.get_float(p + "attention.layer_norm_rms_epsilon");
    if (!(eps > 0 && eps < 1)) bad(m, p + "attention.layer_norm_rms_epsilon", "expected a value in (0, 1)");
    k.norm_epsilon = static_cast<float>(eps);
    if (k.heads % k.kv_heads != 0) {
        bad(m, p + "attention.head_count_kv",
            "expected a divisor of " + std::to_string(k.heads) + " heads, found " + std::to_string(k.kv_heads));
    }
    if (k.heads / k.kv_heads > 16) bad(m, p + "attention.head_count_kv", "expected at most 16 query heads a KV head");
    if (m.has(p + "rope.scaling.type") && m.get_string(p + "rope.scaling.type") != "none") {
        throw Error(ErrorCode::kUnsupported, m.file() + ": " + p + "rope.scaling.type: expected none, found '" +
                                                 m.get_string(p + "rope.scaling.type") + "'");
    }
    if (c.find("rope_freqs.weight") != nullptr) {
        throw Error(ErrorCode::kUnsupported, m.file() + ": tensor rope_freqs.weight: RoPE scaling is not supported");
    }
}

void read_rope(const Metadata& m, const std::string& p, ModelConfig& k) {
    k.rope_dims = read_int_or(m, p + "rope.dimension_count", k.head_dim, 2, kMaxWidth);
    if (k.rope_dims > k.head_dim || k.rope_dims % 2 != 0) {
        bad(m, p + "rope.dimension_count",
            "expected an even number up to the head's " + std::to_string(k.head_dim) + " dims, found " +
                std::to_string(k.rope_dims));
    }
    if (!(k.rope_theta >= 1 && k.rope_theta < 1e12)) bad(m, p + "rope.freq_base", "expected a value in [1, 1e12)");
    if (k.head_dim % 16 != 0 || k.head_dim > 512) {
        throw Error(
            ErrorCode::kUnsupported,
            m.file() + ": head dimension: expected a multiple of 16 up to 512, found " + std::to_string(k.head_dim));
    }
}

void read_maple(const Checkpoint& c, ModelConfig& k) {
    const Metadata& m = c.metadata();
    const std::string p = "maple.";
    k.head_dim = read_int(m, p + "attention.key_length", 2, 512);
    if (read_int(m, p + "attention.value_length", 2, 512) != k.head_dim) {
        bad(m, p + "attention.value_length", "expected the key length, " + std::to_string(k.head_dim));
    }
    k.experts = read_int(m, p + "expert_count", 1, kMaxExperts);
    k.experts_used = read_int(m, p + "expert_used_count", 1, static_cast<uint64_t>(std::min(k.experts, 64)));
    k.ffn = read_int(m, p + "expert_feed_forward_length", 1, kMaxWidth);
    k.qk_norm = true;
    if (k.tied_head) c.get("output.weight");  // Maple's head is its own: absent means the file is incomplete
    k.window = read_int(m, p + "attention.sliding_window", 1, kMaxContext);
    k.sliding = read_pattern(m, p + "attention.sliding_window_pattern", k.layers);
    // The clamp is part of the trained forward pass: files older than the key still mean 7.
    k.clamp = read_clamp(m, p + "swiglu_clamp_exp", k.layers, 7.0F);
    k.rope_on_full = false;
    k.rope_theta =
        m.has(p + "rope.freq_base_swa") ? m.get_float(p + "rope.freq_base_swa") : m.get_float(p + "rope.freq_base");
    read_rope(m, p, k);
}

void read_llama(const Checkpoint& c, ModelConfig& k) {
    const Metadata& m = c.metadata();
    const std::string p = "llama.";
    k.head_dim = read_int_or(m, p + "attention.key_length", k.hidden / k.heads, 2, 512);
    k.ffn = read_int(m, p + "feed_forward_length", 1, kMaxWidth);
    k.sliding.assign(static_cast<size_t>(k.layers), false);
    k.clamp.assign(static_cast<size_t>(k.layers), std::numeric_limits<float>::infinity());
    k.rope_interleaved = true;
    k.rope_theta = m.get_float_or(p + "rope.freq_base", 10000.0);
    if (m.get_uint_or(p + "expert_count", 0) != 0) {
        throw Error(ErrorCode::kUnsupported, m.file() + ": llama.expert_count: only dense llama models are supported");
    }
    read_rope(m, p, k);
}

}  // namespace

uint64_t ModelConfig::parameters() const {
    const auto h = static_cast<uint64_t>(hidden);
    const uint64_t copies = experts > 0 ? static_cast<uint64_t>(experts) : 1;
    const uint64_t attention = h * static_cast<uint64_t>(2 * q_rows() + 2 * kv_rows());
    const uint64_t layer = attention + copies * 3 * h * static_cast<uint64_t>(ffn) +
                           static_cast<uint64_t>(experts) * h + 2 * h +
                           (qk_norm ? 2 * static_cast<uint64_t>(head_dim) : 0);
    const uint64_t vocabulary = static_cast<uint64_t>(vocab) * h;
    return static_cast<uint64_t>(layers) * layer + vocabulary * (tied_head ? 1 : 2) + h;
}

uint64_t ModelConfig::parameters_per_token() const {
    const auto h = static_cast<uint64_t>(hidden);
    const uint64_t copies = experts > 0 ? static_cast<uint64_t>(experts_used) : 1;
    const uint64_t attention = h * static_cast<uint64_t>(2 * q_rows() + 2 * kv_rows());
    const uint64_t layer = attention + copies * 3 * h * static_cast<uint64_t>(ffn) + static_cast<uint64_t>(experts) * h;
    return static_cast<uint64_t>(layers) * layer + static_cast<uint64_t>(vocab) * h;
}

ModelConfig read_config(const Checkpoint& checkpoint) {
    const Metadata& m = checkpoint.metadata();
    ModelConfig k;
    k.architecture = m.get_string("general.architecture");
    if (k.architecture != "maple" && k.architecture != "llama") {
        throw Error(ErrorCode::kUnsupported,
                    m.file() + ": general.architecture: expected maple or llama, found '" + k.architecture + "'");
    }
    read_common(checkpoint, k.architecture + ".", k);
    if (k.architecture == "maple") {
        read_maple(checkpoint, k);
    } else {
        read_llama(checkpoint, k);
    }
    return k;
}

}  // namespace samara::model
