// The plan is kept: loading, a prompt and decoding never hold more memory than the plan says. Each case runs in a
// process of its own, because a process's peak only grows.

#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "src/formats/packed.hpp"
#include "tests/engine_models.hpp"

namespace samara {
namespace {

using testing::add;
using testing::prompt;
using testing::synthetic_model;

/// A line of /proc/self/status, in bytes.
uint64_t status_bytes(const std::string& key) {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
        uint64_t kib = 0;
        if (word == key + ":" && status >> kib) return kib * 1024;
    }
    return 0;
}

struct Peak {
    uint64_t planned = 0, used = 0;
};

Peak peak_of(const LoadOptions& options) {
    int ends[2];
    if (pipe(ends) != 0) throw Error(ErrorCode::kIo, "pipe");
    const pid_t child = fork();
    if (child == 0) {
        Peak p;
        try {
            const uint64_t before = status_bytes("VmRSS");
            p.planned = Engine::plan(options).total();
            const auto engine = Engine::load(options);
            std::vector<std::unique_ptr<Session>> sessions;
            for (int i = 0; i < options.max_sessions; ++i) {
                sessions.push_back(engine->create_session());
                add(*sessions.back(), prompt(static_cast<int>(options.context_tokens) - 20, engine->info().vocab,
                                             static_cast<uint64_t>(i)));
                for (int n = 0; n < 20; ++n) add(*sessions.back(), prompt(1, engine->info().vocab, 5));
            }
            p.used = status_bytes("VmHWM") - before;
        } catch (const std::exception& e) {
            fprintf(stderr, "%s\n", e.what());
        }
        const bool told = write(ends[1], &p, sizeof p) == sizeof p;
        _exit(told ? 0 : 1);
    }
    close(ends[1]);
    Peak p;
    const bool told = read(ends[0], &p, sizeof p) == sizeof p;
    close(ends[0]);
    waitpid(child, nullptr, 0);
    EXPECT_TRUE(told);
    return p;
}

void expect_within_plan(const std::string& path, int sessions, uint64_t context, int step) {
    LoadOptions o;
    o.path = path;
    o.threads = 2;
    o.context_tokens = context;
    o.max_sessions = sessions;
    o.max_step_tokens = step;
    const Peak p = peak_of(o);
    SCOPED_TRACE(path + ", " + std::to_string(sessions) + " sessions");
    EXPECT_GT(p.used, p.planned / 4);  // the plan is no empty promise either
    EXPECT_LE(p.used, p.planned);
    std::cout << path.substr(path.rfind('/') + 1) << ": planned " << p.planned << ", used " << p.used << std::endl;
}

TEST(MemoryBudget, PeaksStayWithinThePlan) {
    for (const auto& [preset, type] : {std::pair{"maple-tiny", "tq2_0"}, std::pair{"maple-tiny", "f16"},
                                       std::pair{"maple-tiny", "f32"}, std::pair{"llama-tiny", "q4_1"}}) {
        const std::string& path = synthetic_model(preset, type);
        expect_within_plan(path, 1, 64, 16);
        expect_within_plan(path, 3, 512, 128);
    }
}

TEST(MemoryBudget, PeaksOfAPackedFileStayWithinThePlan) {
    const std::string packed = testing::temporary_folder() + "/packed.gguf";
    formats::pack(*formats::Checkpoint::open({synthetic_model("maple-tiny", "tq2_0")}), packed,
                  formats::Ternarise::kLossless, {});
    expect_within_plan(packed, 1, 64, 16);
    expect_within_plan(packed, 3, 512, 128);
}

}  // namespace
}  // namespace samara
