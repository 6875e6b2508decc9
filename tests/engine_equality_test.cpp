// A token's logits depend on its own sequence and nothing else.

#include <fcntl.h>

#include <fstream>

#include "src/formats/gguf_writer.hpp"
#include "src/formats/packed.hpp"
#include "src/kernels/kernels.hpp"
#include "tests/engine_models.hpp"

namespace samara {
namespace {

using testing::add;
using testing::load;
using testing::logits_of;
using testing::prompt;
using testing::same_bits;
using testing::step_all;
using testing::synthetic_model;

constexpr int kPrompt = 300;  // the windows of maple-tiny hold 64 positions

const std::string& tiny() { return synthetic_model("maple-tiny", "tq2_0", 1, 32); }

Engine& engine() {
    static const auto e = load(tiny());
    return *e;
}

const std::vector<int32_t>& tokens() {
    static const auto t = prompt(kPrompt, engine().info().vocab);
    return t;
}

const std::vector<float>& expected() {
    static const auto logits = logits_of(engine(), tokens());
    return logits;
}

std::span<const float> rows(std::span<const float> logits, size_t first, size_t count) {
    const auto vocab = static_cast<size_t>(engine().info().vocab);
    return logits.subspan(first * vocab, count * vocab);
}

std::span<const int32_t> part(std::span<const int32_t> t, size_t first, size_t count) {
    return t.subspan(first, count);
}

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const kernels::Isa isa : kernels::supported_isas()) names.emplace_back(kernels::isa_name(isa));
    return names;
}

TEST(EngineEquality, LogitsDifferBetweenPositionsAndPrompts) {
    EXPECT_FALSE(same_bits(rows(expected(), 298, 1), rows(expected(), 299, 1)));
    EXPECT_FALSE(same_bits(expected(), logits_of(engine(), prompt(kPrompt, engine().info().vocab, 2))));
}

TEST(EngineEquality, EveryInstructionSetGivesTheSameBits) {
    for (const char* type : {"tq2_0", "f16"}) {
        const std::string& path = synthetic_model("maple-tiny", type, 1, 32);
        const auto whole = logits_of(*load(path), tokens());
        for (const std::string& isa : instruction_sets()) {
            SCOPED_TRACE(std::string(type) + " " + isa);
            const size_t count = isa == "scalar" ? 80 : kPrompt;  // past one window already; the scalar set is slow
            EXPECT_TRUE(same_bits(logits_of(*load(path, 2, isa), part(tokens(), 0, count)), rows(whole, 0, count)));
        }
    }
}

TEST(EngineEquality, EveryInstructionSetGivesTheSameBitsForDenseModels) {
    for (const char* type : {"q4_1", "q8_0", "f16", "f32"}) {
        const std::string& path = synthetic_model("llama-tiny", type);
        const auto short_prompt = part(tokens(), 0, 40);
        const auto reference = logits_of(*load(path, 2, "scalar"), short_prompt);
        for (const std::string& isa : instruction_sets()) {
            SCOPED_TRACE(std::string(type) + " " + isa);
            EXPECT_TRUE(same_bits(logits_of(*load(path, 2, isa), short_prompt), reference));
        }
    }
}

TEST(EngineEquality, TheNumberOfThreadsDoesNotShow) {
    for (const int threads : {1, 3}) {
        SCOPED_TRACE(threads);
        EXPECT_TRUE(same_bits(logits_of(*load(tiny(), threads), tokens()), expected()));
    }
}

// maple-tiny has two KV heads: more threads share a head's keys when one token is decoded. Its full layers see all of
// them, more than are kept at a time before they are merged.
TEST(EngineEquality, ThreadsThatShareAHeadsKeysDoNotShow) {
    constexpr size_t kLong = 4230, kDecoded = 6;
    const auto text = prompt(kLong, engine().info().vocab, 5);
    const auto decode = [&](int threads) {
        LoadOptions o;
        o.path = tiny();
        o.threads = threads;
        o.context_tokens = kLong;
        const auto e = Engine::load(o);
        const auto short_session = e->create_session();
        std::vector<float> logits = step_all(*short_session, part(text, 0, 150), 1);
        const auto session = e->create_session();
        add(*session, part(text, 0, kLong - kDecoded));
        const std::vector<float> last = step_all(*session, part(text, kLong - kDecoded, kDecoded), 1);
        logits.insert(logits.end(), last.begin(), last.end());
        return logits;
    };
    EXPECT_TRUE(same_bits(decode(5), decode(1)));
}

TEST(EngineEquality, TheSizeOfChunksDoesNotShow) {
    for (const int chunk : {1, 7, 64, 512}) {
        SCOPED_TRACE(chunk);
        EXPECT_TRUE(same_bits(logits_of(engine(), tokens(), chunk), expected()));
    }
}

TEST(EngineEquality, ASmallStepLimitDoesNotShow) {
    LoadOptions o;
    o.path = tiny();
    o.threads = 2;
    o.context_tokens = kPrompt;
    o.max_step_tokens = 5;
    o.rewind_span = 1;
    EXPECT_TRUE(same_bits(logits_of(*Engine::load(o), tokens()), expected()));
}

// With keys and values of 8 bits the logits are others, and as equal among themselves.
TEST(EngineEquality, BytesOfKeysAndValuesGiveTheSameBitsOnEverySetThreadCountAndChunk) {
    const auto load_bytes = [](const std::string& isa, int threads) {
        LoadOptions o;
        o.path = tiny();
        o.isa = isa;
        o.threads = threads;
        o.context_tokens = kPrompt;
        o.max_sessions = 2;
        o.kv = "int8";
        return Engine::load(o);
    };
    const auto bytes = load_bytes("auto", 2);
    const auto whole = logits_of(*bytes, tokens());
    EXPECT_FALSE(same_bits(whole, expected()));
    for (const int chunk : {1, 7, 64}) {
        EXPECT_TRUE(same_bits(logits_of(*bytes, tokens(), chunk), whole)) << chunk;
    }
    for (const std::string& isa : instruction_sets()) {
        const auto short_prompt = part(tokens(), 0, 80);
        EXPECT_TRUE(same_bits(logits_of(*load_bytes(isa, 1), short_prompt), rows(whole, 0, 80))) << isa;
    }
    const auto session = bytes->create_session();
    add(*session, part(tokens(), 0, 200));
    const auto copy = session->fork();
    EXPECT_TRUE(same_bits(step_all(*copy, part(tokens(), 200, 100)), rows(whole, 200, 100)));
    EXPECT_TRUE(same_bits(step_all(*session, part(tokens(), 200, 100)), rows(whole, 200, 100)));
    EXPECT_LT(bytes->kv_bytes(299) * 100, engine().kv_bytes(299) * 55);
}

TEST(EngineEquality, KeysAndValuesOfAnotherTypeAreRefused) {
    LoadOptions o;
    o.path = tiny();
    o.kv = "int4";
    try {
        Engine::load(o);
        FAIL() << "loaded";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_STREQ(error.what(), "kv: expected int16 or int8, found \"int4\"");
    }
}

TEST(EngineEquality, PromptsInOneStepDoNotShowInEachOther) {
    const auto other_tokens = prompt(137, engine().info().vocab, 2);
    const auto other_expected = logits_of(engine(), other_tokens);
    for (const int chunk : {0, 50}) {
        const auto a = engine().create_session();
        const auto b = engine().create_session();
        const auto vocab = static_cast<size_t>(engine().info().vocab);
        std::vector<float> out[2] = {std::vector<float>(tokens().size() * vocab),
                                     std::vector<float>(other_tokens.size() * vocab)};
        const StepInput inputs[] = {{a.get(), tokens(), LogitsWanted::kAll, nullptr},
                                    {b.get(), other_tokens, LogitsWanted::kAll, nullptr}};
        StepParams step;
        step.inputs = inputs;
        step.chunk = chunk;
        step.on_logits = [&](int input, int token, std::span<const float> logits) {
            std::copy(logits.begin(), logits.end(), out[input].begin() + token * static_cast<int64_t>(vocab));
        };
        engine().step(step);
        EXPECT_TRUE(same_bits(out[0], expected()));
        EXPECT_TRUE(same_bits(out[1], other_expected));
    }
}

TEST(EngineEquality, DecodingBesideAnotherPromptDoesNotShow) {
    const auto decoding = engine().create_session();
    const auto reading = engine().create_session();
    const auto other_tokens = prompt(100, engine().info().vocab, 3);
    const auto other_expected = logits_of(engine(), other_tokens);
    add(*decoding, part(tokens(), 0, 250));
    for (size_t i = 0; i < 20; ++i) {  // one token of the first beside five of the second
        const StepInput inputs[] = {
            {reading.get(), part(other_tokens, 5 * i, 5), LogitsWanted::kLast, nullptr},
            {decoding.get(), part(tokens(), 250 + i, 1), LogitsWanted::kLast, nullptr},
        };
        StepParams step;
        step.inputs = inputs;
        engine().step(step);
        EXPECT_TRUE(same_bits(decoding->logits(), rows(expected(), 250 + i, 1)));
        EXPECT_TRUE(same_bits(reading->logits(), rows(other_expected, 5 * i + 4, 1)));
    }
}

TEST(EngineEquality, AForkAndItsOriginalGoOnAsIfAlone) {
    const auto a = engine().create_session();
    add(*a, part(tokens(), 0, 150));
    const auto b = a->fork();
    EXPECT_TRUE(same_bits(b->logits(), a->logits()));
    auto other = std::vector<int32_t>(tokens().begin(), tokens().begin() + 150);
    const auto other_end = prompt(150, engine().info().vocab, 4);
    other.insert(other.end(), other_end.begin(), other_end.end());
    const auto other_expected = logits_of(engine(), other);
    for (size_t i = 0; i < 150; i += 30) {
        EXPECT_TRUE(same_bits(step_all(*b, part(other, 150 + i, 30)), rows(other_expected, 150 + i, 30)));
        EXPECT_TRUE(same_bits(step_all(*a, part(tokens(), 150 + i, 30)), rows(expected(), 150 + i, 30)));
    }
}

TEST(EngineEquality, AStepBackWithinTheSpanDoesNotShow) {
    const auto s = engine().create_session();
    add(*s, tokens());
    add(*s, prompt(100, engine().info().vocab, 5));
    for (const size_t length : {299U, 256U, 130U, 1U, 0U}) {
        SCOPED_TRACE(length);
        EXPECT_EQ(s->truncate(length), 0U);
        EXPECT_FALSE(s->has_logits());
        EXPECT_TRUE(same_bits(step_all(*s, part(tokens(), length, kPrompt - length)),
                              rows(expected(), length, kPrompt - length)));
    }
}

TEST(EngineEquality, AStepBackPastTheSpanIsProcessedAgainAndDoesNotShow) {
    LoadOptions o;
    o.path = tiny();
    o.threads = 2;
    o.context_tokens = 512;
    o.rewind_span = 64;
    const auto small = Engine::load(o);
    const auto s = small->create_session();
    add(*s, tokens());
    EXPECT_EQ(s->truncate(240), 0U);
    EXPECT_EQ(s->truncate(100), 100U);
    EXPECT_EQ(s->tokens().size(), 100U);
    const auto fork = s->fork();  // of a sequence that still has to be processed
    EXPECT_TRUE(same_bits(step_all(*s, part(tokens(), 100, 200)), rows(expected(), 100, 200)));
    EXPECT_TRUE(same_bits(step_all(*fork, part(tokens(), 100, 200), 33), rows(expected(), 100, 200)));
}

TEST(EngineEquality, APackedFileGivesTheSourcesBits) {
    for (const char* type : {"tq2_0", "tq1_0", "f16"}) {
        SCOPED_TRACE(type);
        const std::string& path = synthetic_model("maple-tiny", type, 1, 32);
        const std::string packed = testing::temporary_folder() + "/" + type + ".packed.gguf";
        formats::pack(*formats::Checkpoint::open({path}), packed, formats::Ternarise::kLossless, {});
        const auto e = load(packed);
        EXPECT_EQ(e->info().format, "packed");
        EXPECT_TRUE(same_bits(logits_of(*e, tokens()), logits_of(*load(path), tokens())));
        std::filesystem::remove(packed);
    }
    for (const char* type : {"q4_1", "q8_0", "f32"}) {
        SCOPED_TRACE(type);
        const std::string& path = synthetic_model("llama-tiny", type);
        const std::string packed = testing::temporary_folder() + "/" + type + ".packed.gguf";
        formats::pack(*formats::Checkpoint::open({path}), packed, formats::Ternarise::kLossless, {});
        EXPECT_TRUE(same_bits(logits_of(*load(packed), tokens()), logits_of(*load(path), tokens())));
    }
}

TEST(EngineEquality, OneExpertWithScalesPerBlockIsTheSameInAPlainAndAPackedFile) {
    // Expert 3's gate has one row whose second block has another scale: its layer then needs a wider layout.
    std::ifstream in(tiny(), std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    const auto checkpoint = formats::Checkpoint::open({tiny()});
    const formats::Tensor& gate = checkpoint->get("blk.2.ffn_gate_exps.weight");
    const auto at = bytes.find(std::string(reinterpret_cast<const char*>(gate.data.data()), 256));
    ASSERT_NE(at, std::string::npos);
    const size_t row_bytes = 512 / 256 * 66;
    const size_t second_scale = at + (3 * gate.rows() + 5) * row_bytes + 66 + 64;
    bytes[second_scale + 1] = static_cast<char>(bytes[second_scale + 1] ^ 0x04);  // an exponent bit of the F16 scale
    const std::string plain = testing::temporary_folder() + "/odd.gguf";
    std::ofstream(plain, std::ios::binary) << bytes;
    const std::string packed = testing::temporary_folder() + "/odd.packed.gguf";
    formats::pack(*formats::Checkpoint::open({plain}), packed, formats::Ternarise::kLossless, {});
    const auto logits = logits_of(*load(plain), tokens());
    EXPECT_FALSE(same_bits(logits, expected()));
    EXPECT_TRUE(same_bits(logits_of(*load(packed), tokens()), logits));
}

TEST(EngineEquality, BothTernaryTypesGiveTheSameBits) {
    EXPECT_TRUE(same_bits(logits_of(*load(synthetic_model("maple-tiny", "tq1_0", 1, 32)), tokens()), expected()));
}

TEST(EngineEquality, Float16FilesAndTheSameValuesAsFloat32GiveTheSameBits) {
    const std::string& source = synthetic_model("llama-tiny", "f16");
    const auto checkpoint = formats::Checkpoint::open({source});
    const std::string path = testing::temporary_folder() + "/widened.gguf";
    {
        formats::GgufWriter writer(path);
        writer.set_all(checkpoint->metadata());
        for (const auto& t : checkpoint->tensors()) writer.declare(t.name, formats::TensorType::kF32, t.shape);
        writer.begin();
        std::vector<float> row;
        for (const auto& t : checkpoint->tensors()) {
            row.resize(t.cols());
            for (uint64_t r = 0; r < t.rows(); ++r) {
                formats::dequantise_row(t, 0, r, row.data());
                writer.write(t.name, std::as_bytes(std::span(row)));
            }
        }
        writer.finish();
    }
    EXPECT_TRUE(same_bits(logits_of(*load(path), tokens()), logits_of(*load(source), tokens())));
}

TEST(EngineEquality, AModelInsideALargerFileLoadsFromADescriptor) {
    const std::string path = testing::temporary_folder() + "/bundle.bin";
    const uint64_t length = std::filesystem::file_size(tiny());
    {
        std::ofstream bundle(path, std::ios::binary);
        bundle << std::string(12345, 'x') << std::ifstream(tiny(), std::ios::binary).rdbuf() << "trailing bytes";
    }
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    LoadOptions o;
    o.path = "bundle";
    o.descriptor = fd;
    o.offset = 12345;
    o.length = length;
    o.threads = 2;
    o.context_tokens = 512;
    const auto e = Engine::load(o);
    close(fd);
    EXPECT_TRUE(same_bits(logits_of(*e, tokens()), expected()));
}

TEST(EngineEquality, RecordedExpertsDoNotDependOnChunks) {
    const auto record = [&](int chunk) {
        const ModelInfo& info = engine().info();
        std::vector<uint16_t> experts(tokens().size() * static_cast<size_t>(info.layers * info.experts_used), 65535);
        const auto s = engine().create_session();
        const StepInput input{s.get(), tokens(), LogitsWanted::kNone, experts.data()};
        StepParams step;
        step.inputs = {&input, 1};
        step.chunk = chunk;
        engine().step(step);
        return experts;
    };
    const auto whole = record(0);
    EXPECT_EQ(*std::max_element(whole.begin(), whole.end()), engine().info().experts - 1);
    EXPECT_EQ(record(11), whole);
}

}  // namespace
}  // namespace samara
