#include "src/synth/tensors.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "src/formats/quantise.hpp"
#include "src/platform/half.hpp"
#include "src/synth/random.hpp"

namespace samara::synth {
namespace {

using formats::TensorType;

// Sizes that the signals are meant to have, tuned by measurement (tests/synth/measure_signal.py prints them): all
// blocks together add to the residual about what the embedding put there, queries pick out some keys rather than
// average all, the experts' clamp at 7 is met now and then, and the router spreads its choices. Louder blocks or
// sharper queries amplify rounding more than the trained model does.
constexpr float kAttentionGain = 1.45f;  // deviation of the attention output when one key is looked at alone
constexpr float kExpertGain = 0.85f;     // deviation of all mixtures' output together
constexpr float kGateDeviation = 1.7f;   // of gate and up, before the clamp
constexpr float kQueryKeyNorm = 1.1f;    // centre of the query and key norms' weights: scores deviate by its square
constexpr float kDenseGain = 1.4f;       // of a dense layer's down projection
constexpr float kRouterDeviation = 1.5f;
constexpr float kLogitDeviation = 3.0f;
constexpr float kNormSpread = 0.25f;
constexpr float kScaleSpread = 0.25f;

constexpr float kCodeDeviation = 0.81649658f;  // sqrt(2/3) of codes -1, 0, 1 in equal numbers
constexpr float kMixtureDeviation = 0.4f;      // sqrt of the sum of squares of eight router weights, typically
constexpr float kSwigluDeviation = 2.25f;      // deviation of silu(gate)*up at kGateDeviation

// An outlier channel is 20 to 50 times larger in the residual. Norm weights there are smaller than the others', as
// training makes them, so that neither part drowns the other: outliers reach the projections about nine times larger
// than the rest, and the head about three times (more, and few channels would decide all logits).
constexpr float kOutlierLow = 20.0f;
constexpr float kOutlierHigh = 50.0f;
constexpr float kOutlierNorm = 0.25f;
constexpr float kOutlierOutputNorm = 0.1f;

// The factor of each hidden channel's residual values; empty without outliers.
std::vector<float> outlier_channels(uint32_t hidden, uint32_t outliers, uint64_t seed) {
    if (outliers == 0) return {};
    std::vector<float> residual(hidden, 1.0f);
    Stream stream(seed, "outlier channels", 0);
    for (uint32_t chosen = 0; chosen < outliers;) {
        const uint64_t c = stream.below(hidden);
        if (residual[c] != 1.0f) continue;
        residual[c] = kOutlierLow + (kOutlierHigh - kOutlierLow) * stream.uniform();
        ++chosen;
    }
    return residual;
}

// The factor of each channel's norm weight: `outlier` for outliers, and for all of them what keeps the normed vector
// at deviation 1, since the norm divides the many small channels by a size that the few large ones make.
std::vector<float> norm_factors(const std::vector<float>& residual, float outlier) {
    std::vector<float> factors(residual.size(), 1.0f);
    float residual_square = 0, normed_square = 0;
    for (size_t c = 0; c < residual.size(); ++c) {
        if (residual[c] != 1.0f) factors[c] = outlier;
        const float normed = residual[c] * factors[c];
        residual_square += residual[c] * residual[c];
        normed_square += normed * normed;
    }
    const float gain = residual.empty() ? 1.0f : std::sqrt(residual_square / normed_square);
    for (float& factor : factors) factor *= gain;
    return factors;
}

float inverse_root(uint32_t n) { return 1.0f / std::sqrt(static_cast<float>(n)); }

struct StorageTypes {
    TensorType projection, embedding, head;
};

StorageTypes storage_types(const Preset& preset, TensorType type) {
    if (preset.dense()) {
        switch (type) {
            case TensorType::kF32:
            case TensorType::kF16:
            case TensorType::kQ8_0:
                return {type, type, type};
            case TensorType::kQ4_1:
                return {type, TensorType::kQ8_0, TensorType::kQ8_0};
            default:
                throw Error(ErrorCode::kInvalidArgument,
                            "synth: " + std::string(preset.name) + " comes as f32, f16, q8_0 or q4_1");
        }
    }
    switch (type) {
        case TensorType::kTQ1_0:
        case TensorType::kTQ2_0:
            return {type, TensorType::kQ4_K, TensorType::kQ4_K};
        case TensorType::kF16:
        case TensorType::kF32:
            return {type, type, type};
        default:
            throw Error(ErrorCode::kInvalidArgument,
                        "synth: " + std::string(preset.name) + " comes as tq2_0, tq1_0, f16 or f32");
    }
}

// Collects the recipes of one model.
class Builder {
  public:
    Builder(const Preset& preset, StorageTypes types, std::vector<float> residual)
        : p_(preset), types_(types), residual_(std::move(residual)) {}

    std::vector<TensorRecipe> build() {
        add({.name = "token_embd.weight",
             .type = types_.embedding,
             .shape = {p_.hidden, p_.vocabulary},
             .column_factor = residual_});
        for (uint32_t layer = 0; layer < p_.layers; ++layer) {
            block_ = "blk." + std::to_string(layer) + ".";
            add_attention();
            hidden_norm(block_ + "ffn_norm.weight", kOutlierNorm);
            if (p_.dense()) {
                add_feed_forward();
            } else {
                add_experts();
            }
        }
        hidden_norm("output_norm.weight", kOutlierOutputNorm);
        add({.name = "output.weight",
             .type = types_.head,
             .shape = {p_.hidden, p_.vocabulary},
             .scale = kLogitDeviation * inverse_root(p_.hidden)});
        return std::move(recipes_);
    }

  private:
    void add(TensorRecipe recipe) { recipes_.push_back(std::move(recipe)); }

    void hidden_norm(const std::string& name, float outlier) {
        add({.name = name,
             .shape = {p_.hidden},
             .draw = Draw::kUniform,
             .spread = kNormSpread,
             .column_factor = norm_factors(residual_, outlier)});
    }

    // A projection whose outputs deviate by `deviation` when its inputs deviate by 1.
    void projection(const std::string& name, uint32_t in, uint32_t out, float deviation, bool to_residual,
                    uint32_t experts = 0) {
        TensorRecipe recipe{.name = block_ + name, .type = types_.projection, .shape = {in, out}};
        if (experts != 0) recipe.shape.push_back(experts);
        recipe.draw = p_.dense() ? Draw::kBell : Draw::kTernary;
        recipe.scale = deviation * inverse_root(in) / (p_.dense() ? 1.0f : kCodeDeviation);
        recipe.spread = kScaleSpread;
        if (to_residual) recipe.row_factor = residual_;
        add(std::move(recipe));
    }

    void add_attention() {
        hidden_norm(block_ + "attn_norm.weight", kOutlierNorm);
        const uint32_t q_dim = p_.heads * p_.head_dim;
        const uint32_t kv_dim = p_.kv_heads * p_.head_dim;
        // Without query and key norms the projections themselves set how sharply attention looks.
        const float query_key = p_.dense() ? kQueryKeyNorm : 1.0f;
        projection("attn_q.weight", p_.hidden, q_dim, query_key, false);
        projection("attn_k.weight", p_.hidden, kv_dim, query_key, false);
        projection("attn_v.weight", p_.hidden, kv_dim, 1.0f, false);
        projection("attn_output.weight", q_dim, p_.hidden, kAttentionGain * inverse_root(p_.layers), true);
        if (p_.dense()) return;
        for (const char* name : {"attn_q_norm.weight", "attn_k_norm.weight"}) {
            add({.name = block_ + name,
                 .shape = {p_.head_dim},
                 .draw = Draw::kUniform,
                 .scale = kQueryKeyNorm,
                 .spread = kNormSpread});
        }
    }

    void add_feed_forward() {
        projection("ffn_gate.weight", p_.hidden, p_.ffn, 1.0f, false);
        projection("ffn_up.weight", p_.hidden, p_.ffn, 1.0f, false);
        projection("ffn_down.weight", p_.ffn, p_.hidden, kDenseGain * inverse_root(p_.layers), true);
    }

    void add_experts() {
        add({.name = block_ + "ffn_gate_inp.weight",
             .shape = {p_.hidden, p_.experts},
             .scale = kRouterDeviation * inverse_root(p_.hidden),
             .round_to_bf16 = true});
        const float down = kExpertGain * inverse_root(p_.layers) / (kSwigluDeviation * kMixtureDeviation);
        projection("ffn_gate_exps.weight", p_.hidden, p_.expert_ffn, kGateDeviation, false, p_.experts);
        projection("ffn_up_exps.weight", p_.hidden, p_.expert_ffn, kGateDeviation, false, p_.experts);
        projection("ffn_down_exps.weight", p_.expert_ffn, p_.hidden, down, true, p_.experts);
    }

    const Preset& p_;
    StorageTypes types_;
    std::vector<float> residual_;  // factor of each hidden channel; empty: 1
    std::string block_;
    std::vector<TensorRecipe> recipes_;
};

// The 81 bytes that hold four codes of 0, 1 or 2.
constexpr std::array<uint8_t, 81> kCodeBytes = [] {
    std::array<uint8_t, 81> bytes{};
    for (unsigned i = 0; i < 81; ++i) {
        bytes[i] = static_cast<uint8_t>(i % 3 | i / 3 % 3 << 2 | i / 9 % 3 << 4 | i / 27 << 6);
    }
    return bytes;
}();

// Random bytes of codes in TQ2_0's order, the native form of a ternary row whatever type it is stored in. Each takes
// 16 random bits; the bias of 65536 over 81 is a thousandth.
void draw_code_bytes(Stream& stream, uint8_t* out, size_t count) {
    for (size_t i = 0; i < count; i += 4) {
        uint64_t bits = stream.next();
        for (size_t k = 0; k < 4; ++k, bits >>= 16) out[i + k] = kCodeBytes[(bits & 0xffff) * 81 >> 16];
    }
}

constexpr size_t kBlock = 256;
constexpr size_t kBlockCodeBytes = kBlock / 4;

// Codes of one block in the order of weights: bits 2p of byte m of a half hold its weight 32p + m.
void unpack_block(const uint8_t* bytes, uint8_t* codes) {
    for (size_t half = 0; half < 2; ++half) {
        for (size_t p = 0; p < 4; ++p) {
            for (size_t m = 0; m < 32; ++m) codes[half * 128 + p * 32 + m] = bytes[half * 32 + m] >> (2 * p) & 3;
        }
    }
}

// A scale that BF16 holds, and so F16 does: its eight bits fit in eleven, and scales stay above 2^-14.
float storable_scale(float scale) {
    const float rounded = bf16_to_float(float_to_bf16(scale));
    if (rounded < 0x1p-14f || half_to_float(float_to_half(rounded)) != rounded) {
        throw Error(ErrorCode::kInternal, "synth: a row scale outside F16's normal range");
    }
    return rounded;
}

void make_ternary_row(const TensorRecipe& recipe, Stream& stream, float factor, std::vector<float>& scratch,
                      std::span<std::byte> out) {
    const float jitter = 1.0f + recipe.spread * (2.0f * stream.uniform() - 1.0f);
    const float scale = storable_scale(recipe.scale * factor * jitter);
    const size_t blocks = recipe.cols() / kBlock;
    const size_t block_bytes = out.size() / blocks;
    std::array<uint8_t, kBlockCodeBytes> bytes;
    std::array<uint8_t, kBlock> codes;
    for (size_t b = 0; b < blocks; ++b) {
        const std::span<std::byte> block = out.subspan(b * block_bytes, block_bytes);
        draw_code_bytes(stream, bytes.data(), bytes.size());
        if (recipe.type == TensorType::kTQ2_0) {
            const uint16_t half = float_to_half(scale);
            std::memcpy(block.data(), bytes.data(), bytes.size());
            std::memcpy(block.data() + bytes.size(), &half, sizeof half);
            continue;
        }
        unpack_block(bytes.data(), codes.data());
        if (recipe.type == TensorType::kTQ1_0) {
            formats::pack_ternary(recipe.type, codes, scale, block);
            continue;
        }
        scratch.resize(kBlock);
        for (size_t i = 0; i < kBlock; ++i) scratch[i] = scale * static_cast<float>(codes[i] - 1);
        formats::quantise(recipe.type, scratch, block);
    }
}

}  // namespace

uint64_t TensorRecipe::rows() const {
    uint64_t rows = 1;
    for (size_t i = 1; i < shape.size(); ++i) rows *= shape[i];
    return rows;
}

size_t TensorRecipe::row_bytes() const { return formats::quantised_bytes(type, shape[0]); }

std::vector<TensorRecipe> tensor_recipes(const Preset& preset, TensorType type, uint64_t seed, uint32_t outliers) {
    const StorageTypes types = storage_types(preset, type);
    if (outliers > preset.hidden / 8) {
        throw Error(ErrorCode::kInvalidArgument, "synth: " + std::to_string(outliers) + " outlier channels of " +
                                                     std::to_string(preset.hidden) + "; expected at most an eighth, " +
                                                     std::to_string(preset.hidden / 8));
    }
    return Builder(preset, types, outlier_channels(preset.hidden, outliers, seed)).build();
}

void make_row(const TensorRecipe& recipe, uint64_t seed, uint64_t row, std::vector<float>& scratch,
              std::span<std::byte> out) {
    Stream stream(seed, recipe.name, row);
    const float factor = recipe.row_factor.empty() ? 1.0f : recipe.row_factor[row % recipe.row_factor.size()];
    if (recipe.draw == Draw::kTernary) {
        make_ternary_row(recipe, stream, factor, scratch, out);
        return;
    }
    scratch.resize(recipe.cols());
    for (size_t c = 0; c < scratch.size(); ++c) {
        const float draw =
            recipe.draw == Draw::kBell ? stream.bell() : 1.0f + recipe.spread * (2.0f * stream.uniform() - 1.0f);
        float value = recipe.scale * factor * draw;
        if (!recipe.column_factor.empty()) value *= recipe.column_factor[c];
        scratch[c] = recipe.round_to_bf16 ? bf16_to_float(float_to_bf16(value)) : value;
    }
    formats::quantise(recipe.type, scratch, out);
}

}  // namespace samara::synth
