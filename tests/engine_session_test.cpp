// What sessions and steps promise: nothing half done, nothing silent.

#include <atomic>
#include <limits>
#include <thread>

#include "src/kernels/kernels.hpp"
#include "tests/engine_models.hpp"

namespace samara {
namespace {

using testing::add;
using testing::error_of;
using testing::logits_of;
using testing::prompt;
using testing::same_bits;
using testing::step_all;
using testing::synthetic_model;

LoadOptions options(uint64_t context = 512, int sessions = 4) {
    LoadOptions o;
    o.path = synthetic_model("llama-tiny", "q8_0");
    o.threads = 2;
    o.context_tokens = context;
    o.max_sessions = sessions;
    return o;
}

std::vector<int32_t> copy(std::span<const int32_t> tokens) { return {tokens.begin(), tokens.end()}; }

Engine& engine() {
    static const auto e = Engine::load(options());
    return *e;
}

std::vector<int32_t> text(int count, uint64_t seed = 1) { return prompt(count, engine().info().vocab, seed); }

TEST(EngineSession, StartsEmptyAndWithoutLogits) {
    const auto s = engine().create_session();
    EXPECT_TRUE(s->tokens().empty());
    EXPECT_FALSE(s->has_logits());
    EXPECT_EQ(error_of([&] { s->logits(); }).code(), ErrorCode::kInvalidArgument);
}

TEST(EngineSession, KeepsTheLogitsOfTheLastTokenUnlessNoneWereAsked) {
    const auto s = engine().create_session();
    const auto tokens = text(20);
    const auto all = logits_of(engine(), tokens);
    add(*s, tokens);
    const auto vocab = static_cast<size_t>(engine().info().vocab);
    EXPECT_TRUE(same_bits(s->logits(), std::span(all).last(vocab)));
    add(*s, text(1, 2), LogitsWanted::kNone);
    EXPECT_FALSE(s->has_logits());
    EXPECT_EQ(s->tokens().size(), 21U);
}

TEST(EngineSession, MoreThreadsThanKeyHeadsDecodeTheSame) {
    LoadOptions o = options();
    o.threads = 5;
    const auto many = Engine::load(o);
    const auto tokens = text(140);
    const auto s = many->create_session();
    EXPECT_TRUE(same_bits(step_all(*s, tokens, 1), logits_of(engine(), tokens)));
}

TEST(EngineSession, AStepOfNothingChangesNothing) {
    const auto s = engine().create_session();
    add(*s, {});
    EXPECT_FALSE(s->has_logits());
    add(*s, text(3));
    const std::vector<float> before(s->logits().begin(), s->logits().end());
    add(*s, {});
    EXPECT_TRUE(same_bits(s->logits(), before));
    engine().step({});
}

TEST(EngineSession, AFullContextIsReportedBeforeAnythingIsProcessed) {
    const auto small = Engine::load(options(64));
    const auto a = small->create_session();
    const auto b = small->create_session();
    add(*a, text(60));
    const auto too_many = text(65);
    const auto fitting = text(4);
    const StepInput inputs[] = {{a.get(), fitting, LogitsWanted::kLast, nullptr},
                                {b.get(), too_many, LogitsWanted::kLast, nullptr}};
    StepParams step;
    step.inputs = inputs;
    const Error e = error_of([&] { small->step(step); });
    EXPECT_EQ(e.code(), ErrorCode::kContextFull);
    EXPECT_NE(std::string(e.what()).find("65"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("64"), std::string::npos);
    EXPECT_EQ(a->tokens().size(), 60U);
    EXPECT_TRUE(a->has_logits());
    EXPECT_TRUE(b->tokens().empty());
    add(*a, fitting);
    EXPECT_EQ(a->tokens().size(), 64U);
    EXPECT_EQ(error_of([&] { add(*a, text(1)); }).code(), ErrorCode::kContextFull);
}

TEST(EngineSession, ATokenOutsideTheVocabularyIsRefusedWithItsPlaceAndValue) {
    const auto s = engine().create_session();
    for (const int32_t bad : {-1, engine().info().vocab, std::numeric_limits<int32_t>::max()}) {
        const std::vector<int32_t> tokens{1, 2, bad};
        const Error e = error_of([&] { add(*s, tokens); });
        EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
        EXPECT_NE(std::string(e.what()).find("token 2"), std::string::npos) << e.what();
        EXPECT_NE(std::string(e.what()).find(std::to_string(bad)), std::string::npos) << e.what();
    }
    EXPECT_TRUE(s->tokens().empty());
}

TEST(EngineSession, ASessionTwiceOrOfAnotherEngineIsRefused) {
    const auto s = engine().create_session();
    const auto tokens = text(2);
    const StepInput twice[] = {{s.get(), tokens, LogitsWanted::kLast, nullptr},
                               {s.get(), tokens, LogitsWanted::kLast, nullptr}};
    StepParams step;
    step.inputs = twice;
    EXPECT_EQ(error_of([&] { engine().step(step); }).code(), ErrorCode::kInvalidArgument);
    const auto other = Engine::load(options());
    const StepInput foreign{s.get(), tokens, LogitsWanted::kLast, nullptr};
    step.inputs = {&foreign, 1};
    EXPECT_EQ(error_of([&] { other->step(step); }).code(), ErrorCode::kInvalidArgument);
    const StepInput none{nullptr, tokens, LogitsWanted::kLast, nullptr};
    step.inputs = {&none, 1};
    EXPECT_EQ(error_of([&] { engine().step(step); }).code(), ErrorCode::kInvalidArgument);
    EXPECT_TRUE(s->tokens().empty());
}

TEST(EngineSession, MaxSessionsCountsForksAndFreedOnesComeBack) {
    const auto two = Engine::load(options(64, 2));
    auto a = two->create_session();
    auto b = a->fork();
    EXPECT_EQ(error_of([&] { two->create_session(); }).code(), ErrorCode::kMemory);
    EXPECT_EQ(error_of([&] { a->fork(); }).code(), ErrorCode::kMemory);
    a.reset();
    EXPECT_NE(two->create_session(), nullptr);
    EXPECT_NE(b->fork(), nullptr);
}

TEST(EngineSession, AForkOutlivesItsOriginal) {
    const auto tokens = text(100);
    const auto expected = logits_of(engine(), tokens);
    auto a = engine().create_session();
    add(*a, std::span(tokens).first(70));
    const auto b = a->fork();
    add(*a, text(30, 9));
    a.reset();
    const auto rest = step_all(*b, std::span(tokens).subspan(70));
    EXPECT_TRUE(same_bits(rest, std::span(expected).last(rest.size())));
}

TEST(EngineSession, TruncateForgetsTokensAndLogitsAndRefusesToGrow) {
    const auto s = engine().create_session();
    const auto tokens = text(70);
    add(*s, tokens);
    EXPECT_EQ(s->truncate(70), 0U);
    EXPECT_TRUE(s->has_logits());
    EXPECT_EQ(error_of([&] { s->truncate(71); }).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(s->truncate(10), 0U);
    EXPECT_FALSE(s->has_logits());
    EXPECT_EQ(copy(s->tokens()), copy(std::span(tokens).first(10)));
}

TEST(EngineSession, APendingTokenIsComputedByTheNextStep) {
    const auto tokens = text(12);
    const auto expected = logits_of(engine(), tokens);
    const auto s = engine().create_session();
    add(*s, std::span(tokens).first(10));
    s->append_pending(tokens[10]);
    EXPECT_FALSE(s->has_logits());
    EXPECT_EQ(s->tokens().size(), 11U);
    const auto last = step_all(*s, std::span(tokens).last(1));
    EXPECT_TRUE(same_bits(last, std::span(expected).last(last.size())));
    s->append_pending(5);
    EXPECT_EQ(s->truncate(12), 0U);  // takes the pending token off
    EXPECT_EQ(error_of([&] { s->append_pending(-1); }).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error_of([&] { s->append_pending(engine().info().vocab); }).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(s->tokens().size(), 12U);
}

TEST(EngineSession, APendingTokenDoesNotPassTheContext) {
    const auto small = Engine::load(options(8));
    const auto s = small->create_session();
    add(*s, text(7));
    s->append_pending(1);
    EXPECT_EQ(error_of([&] { s->append_pending(1); }).code(), ErrorCode::kContextFull);
    add(*s, {});
    EXPECT_TRUE(s->has_logits());
}

// Runs a prompt of 100 in chunks of 10 and stops it after the third.
template <class Stop>
ErrorCode stopped_at_30(Session& s, std::span<const int32_t> tokens, Stop&& stop) {
    const StepInput input{&s, tokens, LogitsWanted::kLast, nullptr};
    StepParams step;
    step.inputs = {&input, 1};
    step.chunk = 10;
    step.on_progress = [&](uint64_t done, uint64_t total) {
        EXPECT_EQ(total, 100U);
        return done < 30 || stop();
    };
    return error_of([&] { s.engine().step(step); }).code();
}

TEST(EngineSession, ACancelledStepKeepsTheFinishedChunksAndGoesOnAfterResume) {
    const auto tokens = text(100);
    const auto expected = logits_of(engine(), tokens);
    const auto s = engine().create_session();
    EXPECT_EQ(stopped_at_30(*s, tokens,
                            [&] {
                                std::thread([&] { s->cancel(); }).join();  // from another thread
                                return true;
                            }),
              ErrorCode::kCancelled);
    EXPECT_EQ(copy(s->tokens()), copy(std::span(tokens).first(30)));
    EXPECT_FALSE(s->has_logits());
    EXPECT_EQ(error_of([&] { add(*s, std::span(tokens).subspan(30)); }).code(), ErrorCode::kCancelled);
    EXPECT_EQ(s->tokens().size(), 30U);
    s->resume();
    const auto rest = step_all(*s, std::span(tokens).subspan(30));
    EXPECT_TRUE(same_bits(rest, std::span(expected).last(rest.size())));
}

TEST(EngineSession, TheProgressCallbackCancelsWithoutResume) {
    const auto tokens = text(100);
    const auto s = engine().create_session();
    EXPECT_EQ(stopped_at_30(*s, tokens, [] { return false; }), ErrorCode::kCancelled);
    EXPECT_EQ(s->tokens().size(), 30U);
    add(*s, std::span(tokens).subspan(30));
    EXPECT_TRUE(s->has_logits());
}

TEST(EngineSession, AnyCancelledSessionStopsTheSharedStep) {
    for (const int cancelled : {0, 1}) {
        const auto a = engine().create_session();
        const auto b = engine().create_session();
        const auto tokens = text(4);
        (cancelled == 0 ? a : b)->cancel();
        const StepInput inputs[] = {{a.get(), tokens, LogitsWanted::kLast, nullptr},
                                    {b.get(), tokens, LogitsWanted::kLast, nullptr}};
        StepParams step;
        step.inputs = inputs;
        EXPECT_EQ(error_of([&] { engine().step(step); }).code(), ErrorCode::kCancelled);
        EXPECT_TRUE(a->tokens().empty());
        EXPECT_TRUE(b->tokens().empty());
    }
}

TEST(EngineSession, AnExceptionInACallbackLeavesTheSessionUsable) {
    const auto tokens = text(50);
    const auto expected = logits_of(engine(), tokens);
    const auto s = engine().create_session();
    const StepInput input{s.get(), tokens, LogitsWanted::kAll, nullptr};
    StepParams step;
    step.inputs = {&input, 1};
    step.chunk = 20;
    step.on_logits = [](int, int token, std::span<const float>) {
        if (token == 25) throw std::runtime_error("from the callback");
    };
    EXPECT_THROW(engine().step(step), std::runtime_error);
    EXPECT_EQ(s->tokens().size(), 20U);
    const auto rest = step_all(*s, std::span(tokens).subspan(20));
    EXPECT_TRUE(same_bits(rest, std::span(expected).last(rest.size())));
}

// In a mixture of experts other tasks wait for the hidden vectors that cannot be made.
TEST(EngineSession, AnOverflowInsideTheExpertsNamesTheLayerAndLeavesTheSessionUsable) {
    static std::atomic<int> calls{0};
    static const kernels::KernelTable& table = kernels::kernel_table(kernels::parse_isa("auto"));
    kernels::KernelTable broken = table;
    broken.swiglu = [](const float* gate, const float* up, int n, float limit, float* out) {
        table.swiglu(gate, up, n, limit, out);
        if (calls.fetch_add(1) == 0) out[n - 1] = std::numeric_limits<float>::infinity();
    };
    LoadOptions o = options();
    o.path = synthetic_model("maple-tiny", "tq2_0");
    o.kernels = &broken;
    const auto e = Engine::load(o);
    for (const int length : {1, 40}) {
        const auto tokens = prompt(length, e->info().vocab);
        const auto s = e->create_session();
        calls = 0;
        const Error error = error_of([&] { add(*s, tokens); });
        EXPECT_EQ(error.code(), ErrorCode::kNumeric);
        EXPECT_NE(std::string(error.what()).find("layer 0: the activations inside the experts"), std::string::npos)
            << error.what();
        add(*s, tokens);
        const auto all = logits_of(*e, tokens);
        EXPECT_TRUE(same_bits(s->logits(), std::span(all).last(s->logits().size())));
    }
}

TEST(EngineSession, SessionsOnSeveralThreadsStepOneAfterTheOther) {
    const auto tokens = text(60);
    const auto expected = logits_of(engine(), tokens);
    std::vector<std::thread> threads;
    std::atomic<int> same{0};
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
            const auto s = engine().create_session();
            std::vector<float> all;
            for (size_t i = 0; i < tokens.size(); i += 10 + static_cast<size_t>(5 * t)) {
                const size_t n = std::min<size_t>(10 + static_cast<size_t>(5 * t), tokens.size() - i);
                const auto part = step_all(*s, std::span(tokens).subspan(i, n));
                all.insert(all.end(), part.begin(), part.end());
            }
            same += same_bits(all, expected) ? 1 : 0;
        });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(same.load(), 3);
}

TEST(EngineLoad, ABudgetTooSmallIsRefusedWithTheNumbersBeforeLoading) {
    LoadOptions o = options();
    const MemoryPlan plan = Engine::plan(o);
    o.memory_budget = plan.total() - 1;
    bool progressed = false;
    o.progress = [&](uint64_t, uint64_t) { return progressed = true; };
    const Error e = error_of([&] { Engine::load(o); });
    EXPECT_EQ(e.code(), ErrorCode::kMemory);
    EXPECT_NE(std::string(e.what()).find(std::to_string(plan.total())), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find(std::to_string(o.memory_budget)), std::string::npos) << e.what();
    EXPECT_FALSE(progressed);
    o.memory_budget = plan.total();
    EXPECT_EQ(Engine::load(o)->info().memory.total(), plan.total());
}

TEST(EngineLoad, ProgressGrowsToTheTotalAndCanCancelAtEveryCall) {
    LoadOptions o = options();
    std::vector<uint64_t> seen;
    o.progress = [&](uint64_t done, uint64_t total) {
        EXPECT_LE(done, total);
        seen.push_back(done);
        return true;
    };
    const auto e = Engine::load(o);
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    EXPECT_EQ(seen.back(), e->info().file_bytes);
    for (size_t stop = 0; stop < seen.size(); ++stop) {
        size_t calls = 0;
        o.progress = [&](uint64_t, uint64_t) { return calls++ < stop; };
        EXPECT_EQ(error_of([&] { Engine::load(o); }).code(), ErrorCode::kCancelled);
        EXPECT_EQ(calls, stop + 1);
    }
}

TEST(EngineLoad, OptionsOutOfRangeNameTheOptionAndTheRange) {
    const auto refused = [](const char* name, auto&& change) {
        LoadOptions o = options();
        change(o);
        const Error e = error_of([&] { Engine::load(o); });
        EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument) << e.what();
        EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    };
    refused("threads", [](LoadOptions& o) { o.threads = -1; });
    refused("threads", [](LoadOptions& o) { o.threads = 100000; });
    refused("max_sessions", [](LoadOptions& o) { o.max_sessions = 0; });
    refused("max_step_tokens", [](LoadOptions& o) { o.max_step_tokens = 0; });
    refused("rewind_span", [](LoadOptions& o) { o.rewind_span = -1; });
    refused("context", [](LoadOptions& o) { o.context_tokens = uint64_t{1} << 40; });
    refused("sse9", [](LoadOptions& o) { o.isa = "sse9"; });
}

TEST(EngineLoad, AnEngineOfMetadataAloneMakesNoSessions) {
    LoadOptions o = options();
    o.metadata_only = true;
    const auto e = Engine::load(o);
    EXPECT_EQ(e->info().layers, 4);
    EXPECT_EQ(e->metadata().get_string("general.architecture"), "llama");
    EXPECT_EQ(error_of([&] { e->create_session(); }).code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace samara
