// What the loader accepts and refuses, and numbers that leave the range of floats: one clear error each.

#include <cmath>
#include <functional>
#include <limits>

#include "src/formats/checkpoint.hpp"
#include "src/formats/gguf_writer.hpp"
#include "tests/engine_models.hpp"

namespace samara {
namespace {

using formats::Tensor;
using formats::TensorType;
using testing::add;
using testing::error_of;
using testing::load;
using testing::logits_of;
using testing::prompt;
using testing::same_bits;
using testing::synthetic_model;

/// A tensor on its way into another file.
struct Edited {
    std::string name;
    TensorType type;
    std::vector<uint64_t> shape;
    std::vector<std::byte> data;
};

/// Writes a copy of `source` whose tensors `edit` may change, add or remove.
std::string rewritten(const std::string& source, const std::function<void(std::vector<Edited>&)>& edit) {
    static int number = 0;
    const auto checkpoint = formats::Checkpoint::open({source});
    std::vector<Edited> tensors;
    for (const Tensor& t : checkpoint->tensors()) {
        tensors.push_back({t.name, t.type, t.shape, {t.data.begin(), t.data.end()}});
    }
    edit(tensors);
    const std::string path = testing::temporary_folder() + "/edited-" + std::to_string(number++) + ".gguf";
    formats::GgufWriter writer(path);
    writer.set_all(checkpoint->metadata());
    for (const Edited& t : tensors) writer.declare(t.name, t.type, t.shape);
    writer.begin();
    for (const Edited& t : tensors) writer.write(t.name, t.data);
    writer.finish();
    return path;
}

Edited& named(std::vector<Edited>& tensors, const std::string& name) {
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const Edited& t) { return t.name == name; });
    if (found == tensors.end()) throw Error(ErrorCode::kInternal, "no tensor " + name);
    return *found;
}

void put(Edited& t, size_t byte, auto value) {
    if (byte + sizeof value > t.data.size()) throw Error(ErrorCode::kInternal, t.name + " is too small");
    std::memcpy(t.data.data() + byte, &value, sizeof value);
}

/// Replaces tensors `names` by one that holds their rows one below the other, expert by expert.
void fuse(std::vector<Edited>& tensors, const std::vector<std::string>& names, const std::string& fused) {
    Edited all = named(tensors, names[0]);
    all.name = fused;
    all.shape[1] = 0;
    all.data.clear();
    const uint64_t experts = all.shape.size() > 2 ? all.shape[2] : 1;
    for (const std::string& name : names) all.shape[1] += named(tensors, name).shape[1];
    for (uint64_t e = 0; e < experts; ++e) {
        for (const std::string& name : names) {
            const Edited& t = named(tensors, name);
            const auto bytes = static_cast<int64_t>(t.data.size() / experts);
            const auto first = t.data.begin() + static_cast<int64_t>(e) * bytes;
            all.data.insert(all.data.end(), first, first + bytes);
        }
    }
    for (const std::string& name : names) tensors.erase(tensors.begin() + (&named(tensors, name) - tensors.data()));
    tensors.push_back(std::move(all));
}

void expect_refused(const std::string& path, const std::vector<std::string>& words) {
    const Error e = error_of([&] { load(path); });
    EXPECT_EQ(e.code(), ErrorCode::kFormat) << e.what();
    for (const std::string& word : words) EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint16_t kHalfInfinity = 0x7c00;

TEST(ModelWeights, FusedTensorsGiveTheBitsOfSeparateOnes) {
    const std::string& source = synthetic_model("maple-tiny", "tq2_0");
    const auto tokens = prompt(90, 2048);
    const std::string path = rewritten(source, [](std::vector<Edited>& tensors) {
        for (const char* l : {"blk.0.", "blk.3.", "blk.6."}) {
            const std::string layer = l;
            fuse(tensors, {layer + "attn_q.weight", layer + "attn_k.weight", layer + "attn_v.weight"},
                 layer + "attn_qkv.weight");
            fuse(tensors, {layer + "ffn_gate_exps.weight", layer + "ffn_up_exps.weight"},
                 layer + "ffn_gate_up_exps.weight");
        }
    });
    EXPECT_TRUE(same_bits(logits_of(*load(path), tokens), logits_of(*load(source), tokens)));
}

TEST(ModelWeights, AMissingTensorIsNamed) {
    for (const char* name :
         {"blk.1.attn_v.weight", "blk.2.ffn_down.weight", "blk.0.attn_norm.weight", "output_norm.weight"}) {
        expect_refused(rewritten(synthetic_model("llama-tiny", "q8_0"),
                                 [&](std::vector<Edited>& tensors) {
                                     tensors.erase(tensors.begin() + (&named(tensors, name) - tensors.data()));
                                 }),
                       {name, "edited-"});
    }
}

TEST(ModelWeights, AWrongShapeIsRefusedWithBothShapes) {
    const auto halved = [](const char* name) {
        return rewritten(synthetic_model("llama-tiny", "f32"), [&](std::vector<Edited>& tensors) {
            Edited& t = named(tensors, name);
            t.shape.back() /= 2;
            t.data.resize(t.data.size() / 2);
        });
    };
    expect_refused(halved("blk.1.ffn_up.weight"), {"blk.1.ffn_up.weight", "[256, 768]", "[256, 384]"});
    expect_refused(halved("blk.0.attn_q.weight"), {"blk.0.attn_q.weight", "[256, 256]", "[256, 128]"});
    expect_refused(halved("blk.3.attn_norm.weight"), {"blk.3.attn_norm.weight", "[256", "[128"});
}

TEST(ModelWeights, ANormThatIsNotFiniteIsRefused) {
    for (const char* name :
         {"blk.1.attn_norm.weight", "blk.7.ffn_norm.weight", "blk.2.attn_k_norm.weight", "output_norm.weight"}) {
        for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
            expect_refused(rewritten(synthetic_model("maple-tiny", "tq2_0"),
                                     [&](std::vector<Edited>& tensors) { put(named(tensors, name), 20, bad); }),
                           {name, "finite"});
        }
    }
}

TEST(ModelWeights, AScaleThatIsNotFiniteIsRefused) {
    // TQ2_0: an F16 scale at byte 64 of 66; Q4_K: at byte 0 of 144; Q8_0: at byte 0 of 34.
    expect_refused(rewritten(synthetic_model("maple-tiny", "tq2_0"),
                             [](std::vector<Edited>& tensors) {
                                 put(named(tensors, "blk.4.ffn_up_exps.weight"), 66 * 30000 + 64, kHalfInfinity);
                             }),
                   {"blk.4.ffn_up_exps.weight", "scale"});
    expect_refused(
        rewritten(synthetic_model("maple-tiny", "tq2_0"),
                  [](std::vector<Edited>& tensors) { put(named(tensors, "output.weight"), 144 * 100, kHalfInfinity); }),
        {"output.weight", "scale"});
    expect_refused(rewritten(synthetic_model("llama-tiny", "q8_0"),
                             [](std::vector<Edited>& tensors) {
                                 put(named(tensors, "blk.1.attn_output.weight"), 34 * 100, kHalfInfinity);
                             }),
                   {"blk.1.attn_output.weight", "scale"});
}

TEST(ModelWeights, AFloatWeightThatIsNotFiniteIsRefused) {
    for (const char* name : {"blk.0.attn_q.weight", "blk.3.ffn_down.weight", "token_embd.weight"}) {
        expect_refused(rewritten(synthetic_model("llama-tiny", "f32"),
                                 [&](std::vector<Edited>& tensors) { put(named(tensors, name), 4000, kNan); }),
                       {name});
    }
}

// Weights that are finite, yet make activations overflow.
void expect_overflow(const std::string& source, const std::string& norm, const std::string& layer) {
    const std::string path = rewritten(source, [&](std::vector<Edited>& tensors) {
        Edited& t = named(tensors, norm);
        for (size_t i = 0; i < t.data.size(); i += 4) put(t, i, std::numeric_limits<float>::max());
    });
    for (const int threads : {1, 2}) {
        const auto engine = load(path, threads);
        const auto s = engine->create_session();
        const Error e = error_of([&] { add(*s, prompt(40, 2048)); });
        EXPECT_EQ(e.code(), ErrorCode::kNumeric) << e.what();
        EXPECT_NE(std::string(e.what()).find(layer), std::string::npos) << e.what();
        EXPECT_TRUE(s->tokens().empty());
        EXPECT_EQ(error_of([&] { add(*s, prompt(1, 2048)); }).code(), ErrorCode::kNumeric);  // and again, in one row
    }
}

TEST(ModelNumerics, ActivationsThatOverflowNameTheLayer) {
    expect_overflow(synthetic_model("maple-tiny", "tq2_0"), "blk.5.attn_norm.weight", "layer 5");
    expect_overflow(synthetic_model("maple-tiny", "tq2_0"), "blk.2.ffn_norm.weight", "layer 2");
    expect_overflow(synthetic_model("llama-tiny", "q8_0"), "blk.3.ffn_norm.weight", "layer 3");
    expect_overflow(synthetic_model("llama-tiny", "f16"), "output_norm.weight", "layer 4");
}

}  // namespace
}  // namespace samara
