// A dense packed file works everywhere, but where it would be slow only on request.

#include <gtest/gtest.h>

#include "src/formats/packed.hpp"
#include "src/kernels/kernels.hpp"
#include "tests/engine_models.hpp"

namespace samara {
namespace {

constexpr int kTokens = 24;

std::string dense_model() {
    const std::string path = testing::temporary_folder() + "/dense.gguf";
    formats::Source source;
    source.path = testing::synthetic_model("maple-tiny", "tq2_0");
    formats::pack(*formats::Checkpoint::open(source), path, formats::Ternarise::kLossless, {},
                  formats::HeadLayout::kWhole, formats::TernaryLayout::kDense);
    return path;
}

TEST(EngineLayout, ADenseFileIsRefusedWhereItWouldBeSlowWithTheReasonAndTheRemedy) {
    const std::string path = dense_model();
    if (kernels::fastest_ternary_layout() == kernels::Layout::kTernaryDense) {
        EXPECT_NO_THROW(testing::load(path));
        return;
    }
    const Error error = testing::error_of([&] { testing::load(path); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    for (const std::string& part : {path, std::string("attention, experts"), std::string("AVX-512 VBMI"),
                                    std::string("samara pack --layout 2bit"), std::string("--isa")}) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part << " in: " << error.what();
    }
}

TEST(EngineLayout, ADenseFileRunsOnAnySetThatIsNamedAndGivesThePlainFilesBits) {
    const std::string path = dense_model();
    const auto tokens = testing::prompt(kTokens, 2048);
    const auto expected = testing::logits_of(*testing::load(testing::synthetic_model("maple-tiny", "tq2_0")), tokens);
    for (const kernels::Isa isa : kernels::supported_isas()) {
        const auto engine = testing::load(path, 2, std::string(kernels::isa_name(isa)));
        EXPECT_TRUE(testing::same_bits(testing::logits_of(*engine, tokens), expected)) << kernels::isa_name(isa);
    }
}

TEST(EngineLayout, HeadersOfADenseFileAreReadEverywhere) {
    LoadOptions o;
    o.path = dense_model();
    o.metadata_only = true;
    EXPECT_EQ(Engine::load(o)->info().format, "packed");
    EXPECT_GT(Engine::plan(o).weights_mapped, 0u);
}

}  // namespace
}  // namespace samara
