// hash_logits PRESET TYPE SEED OUTLIERS TOKENS ISA: writes the synthetic model to a temporary file and prints the
// SHA-256 of the float32 logits of all positions of tests/engine_models.hpp's prompt, as `samara logits` would.
// With no arguments: the numerics version and the instruction sets of this CPU.

#include <cstdio>

#include "src/kernels/kernels.hpp"
#include "src/platform/sha256.hpp"
#include "tests/engine_models.hpp"

namespace samara {
namespace {

std::string hash_of(const std::string& path, int count, const std::string& isa) {
    LoadOptions o;
    o.path = path;
    o.isa = isa;
    o.context_tokens = static_cast<uint64_t>(count);
    const auto engine = Engine::load(o);
    const auto session = engine->create_session();
    const auto tokens = testing::prompt(count, engine->info().vocab);
    platform::Sha256 hash;
    const StepInput input{session.get(), tokens, LogitsWanted::kAll, nullptr};
    StepParams step;
    step.inputs = {&input, 1};
    step.on_logits = [&](int, int, std::span<const float> logits) { hash.update(std::as_bytes(logits)); };
    engine->step(step);
    return hash.finish();
}

int run(int argc, char** argv) {
    if (argc == 1) {
        std::printf("%u", kernels::kNumericsVersion);
        for (const kernels::Isa isa : kernels::supported_isas()) {
            std::printf(" %s", std::string(kernels::isa_name(isa)).c_str());
        }
        std::printf("\n");
        return 0;
    }
    if (argc != 7) throw Error(ErrorCode::kInvalidArgument, "expected PRESET TYPE SEED OUTLIERS TOKENS ISA");
    const std::string& path =
        testing::synthetic_model(argv[1], argv[2], std::stoull(argv[3]), static_cast<uint32_t>(std::stoul(argv[4])));
    std::printf("%s\n", hash_of(path, std::stoi(argv[5]), argv[6]).c_str());
    return 0;
}

}  // namespace
}  // namespace samara

int main(int argc, char** argv) {
    try {
        return samara::run(argc, argv);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "hash_logits: %s\n", e.what());
        return 1;
    }
}
