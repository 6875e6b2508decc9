// The bits that every CPU family must give: SHA-256 of small synthetic models and of their logits, with every
// instruction set at hand. They change only with kNumericsVersion. Short enough to run in an emulator.

#include "src/kernels/kernels.hpp"
#include "src/platform/mapped_file.hpp"
#include "src/platform/sha256.hpp"
#include "tests/engine_models.hpp"

namespace samara {
namespace {

static_assert(kernels::kNumericsVersion == 2, "the hashes below are those of version 2");

constexpr int kTokens = 24;
constexpr size_t kPrompt = 17;  // processed at once; the others one by one

struct Expected {
    const char* preset;
    const char* type;
    const char* file;    // SHA-256 of the model
    const char* logits;  // SHA-256 of float32 (kTokens, vocab)
};

// Ternary with one scale a row and a Q4_K head; the affine types; F16.
constexpr Expected kExpected[] = {
    {"maple-tiny", "tq2_0", "af1fd13c355e6834d7b1815523e217f1be2582c666b5a342f4f6458314c8fe3e",
     "d5c4c687bfb8b5fec3b9bbd539455b3cd6ecbda0b415a6be6834a6b4b4124203"},
    {"llama-tiny", "q4_1", "e8594b3fa14ad4ccacc2ca4d9ae31cd19e6253a1591645a6922dc72e53c2fd4b",
     "08b69bf33a934751171358bf18f4d2b5bb29c570d9415914b8c9feb5bb3f1434"},
    {"llama-tiny", "q8_0", "c68b3b9c59b933e12e2e0c0b94dbe613a65a43dda80fcbb25a253a9542d8f7f1",
     "b353fded7cc92eca9dc73b1d42d768f4fcf00d2f954ea82022dc581e55eaac98"},
    {"llama-tiny", "f16", "30d09b04b93212dd39e29ae1b929c563a59d8df6323b7c6e5545637385160456",
     "ea2e64f612f8d8a6c26757b98e897123201d79f86d8d638cddec68f16f53e8d7"},
};

class EngineHash : public ::testing::TestWithParam<Expected> {};

TEST_P(EngineHash, TheModelFileIsTheSameOnEveryMachine) {
    const auto file = MappedFile::open(testing::synthetic_model(GetParam().preset, GetParam().type));
    EXPECT_EQ(platform::sha256(file.bytes()), GetParam().file);
}

TEST_P(EngineHash, EveryInstructionSetGivesTheCommittedLogits) {
    const std::string& path = testing::synthetic_model(GetParam().preset, GetParam().type);
    for (const kernels::Isa isa : kernels::supported_isas()) {
        const auto engine = testing::load(path, 2, std::string(kernels::isa_name(isa)));
        const auto tokens = testing::prompt(kTokens, engine->info().vocab);
        const auto session = engine->create_session();
        platform::Sha256 hash;
        const auto all = std::span(tokens);
        const auto add = [&](std::span<const int32_t> part) {
            const std::vector<float> logits = testing::step_all(*session, part);
            hash.update(std::as_bytes(std::span(logits)));
        };
        add(all.first(kPrompt));
        for (size_t i = kPrompt; i < all.size(); ++i) add(all.subspan(i, 1));
        EXPECT_EQ(hash.finish(), GetParam().logits) << kernels::isa_name(isa);
    }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineHash, ::testing::ValuesIn(kExpected), [](const auto& info) {
    return std::string(info.param.preset == std::string("maple-tiny") ? "Maple_" : "Llama_") + info.param.type;
});

}  // namespace
}  // namespace samara
