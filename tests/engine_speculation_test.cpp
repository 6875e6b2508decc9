// Speculation changes the speed alone: tokens, calls, stops, the session and the sampler afterwards are those of plain
// decoding. And the parts it decides with: the lookup, the acceptance, the cost of a step.

#include <numeric>
#include <thread>

#include "src/engine/speculation.hpp"
#include "tests/engine_models.hpp"

namespace samara {
namespace {

using testing::add;
using testing::error_of;
using testing::prompt;
using testing::same_bits;
using testing::synthetic_model;

constexpr int kPrompt = 10;

// Recent tokens are favoured, not penalised: random models then repeat themselves, so that drafts are often right.
Sampling repetitive(float temperature) {
    Sampling s;
    s.temperature = temperature;
    s.top_k = 5;
    s.repetition_penalty = 0.65F;
    s.penalty_last = 12;
    s.seed = 7;
    return s;
}

/// Everything a caller can see of one answer, and of going on after it.
struct Seen {
    GenerateResult result;
    std::vector<std::pair<int32_t, std::string>> calls;
    std::vector<int32_t> tokens, later;
    std::vector<float> logits;  // after the last token
};

class SameAnswers : public ::testing::TestWithParam<std::tuple<const char*, float, const char*>> {
  protected:
    SameAnswers() : engine_(load()) {}

    static LoadOptions options() {
        LoadOptions o;
        const std::string preset = std::get<0>(GetParam());
        o.path = synthetic_model(preset, preset == "maple-tiny" ? "tq2_0" : "q8_0");
        o.threads = 2;
        o.context_tokens = 256;
        o.head = std::get<2>(GetParam());
        return o;
    }
    static std::unique_ptr<Engine> load() { return Engine::load(options()); }
    static Sampling sampling() { return repetitive(std::get<1>(GetParam())); }

    /// Generates as `change` says, then goes on for eight tokens by plain decoding.
    template <class Change>
    Seen answer(Engine& engine, Speculation mode, Change&& change) {
        Seen seen;
        const auto session = engine.create_session();
        add(*session, prompt(kPrompt, engine.info().vocab));
        Sampler sampler(sampling());
        GenerateParams p;
        p.sampler = &sampler;
        p.max_tokens = 60;
        p.speculation = mode;
        p.detokenize = [](int32_t token) { return token < 0 ? "." : "<" + std::to_string(token % 7) + ">"; };
        p.on_token = [&](int32_t token, std::string_view text) {
            seen.calls.emplace_back(token, text);
            return true;
        };
        change(p, *session, seen);
        seen.result = generate(*session, p);
        seen.tokens.assign(session->tokens().begin(), session->tokens().end());
        session->resume();
        GenerateParams later;
        later.sampler = &sampler;
        later.max_tokens = 8;
        later.speculation = Speculation::kOff;
        generate(*session, later);
        seen.later.assign(session->tokens().begin(), session->tokens().end());
        if (session->has_logits()) seen.logits.assign(session->logits().begin(), session->logits().end());
        return seen;
    }

    /// Compares plain decoding with speculation; returns the tokens accepted from drafts.
    template <class Change>
    uint32_t expect_same(Engine& engine, Change&& change, Speculation mode = Speculation::kAlways) {
        const Seen plain = answer(engine, Speculation::kOff, change);
        const Seen seen = answer(engine, mode, change);
        EXPECT_EQ(seen.result.reason, plain.result.reason);
        EXPECT_EQ(seen.result.tokens, plain.result.tokens);
        EXPECT_EQ(seen.result.stop_string, plain.result.stop_string);
        EXPECT_EQ(seen.calls, plain.calls);
        EXPECT_EQ(seen.tokens, plain.tokens);
        EXPECT_EQ(seen.later, plain.later);
        EXPECT_TRUE(same_bits(seen.logits, plain.logits));
        EXPECT_EQ(plain.result.drafted, 0U);
        return seen.result.accepted;
    }

    std::unique_ptr<Engine> engine_;
};

TEST_P(SameAnswers, UpToTheLimit) {
    const auto unchanged = [](GenerateParams&, Session&, Seen&) {};
    EXPECT_GT(expect_same(*engine_, unchanged), 10U);
    expect_same(*engine_, unchanged, Speculation::kAuto);
    for (const uint32_t limit : {1U, 2U, 25U, 26U, 27U}) {
        SCOPED_TRACE(limit);
        expect_same(*engine_, [&](GenerateParams& p, Session&, Seen&) { p.max_tokens = limit; });
    }
}

TEST_P(SameAnswers, WhereverTheCallbackStops) {
    uint32_t accepted = 0;
    for (const size_t stop : {1, 20, 21, 22, 23, 24}) {
        SCOPED_TRACE(stop);
        accepted += expect_same(*engine_, [&](GenerateParams& p, Session&, Seen& seen) {
            p.on_token = [&](int32_t token, std::string_view text) {
                seen.calls.emplace_back(token, text);
                return seen.calls.size() < stop;
            };
        });
    }
    EXPECT_GT(accepted, 0U);
}

TEST_P(SameAnswers, WhereverItIsCancelledByTheCallback) {
    for (const size_t stop : {1, 20, 21, 22, 23, 24, 60}) {
        SCOPED_TRACE(stop);
        expect_same(*engine_, [&](GenerateParams& p, Session& session, Seen& seen) {
            p.on_token = [&](int32_t token, std::string_view text) {
                seen.calls.emplace_back(token, text);
                if (seen.calls.size() == stop) session.cancel();
                return true;
            };
        });
    }
}

TEST_P(SameAnswers, WhateverTokenEndsThem) {
    const Seen plain = answer(*engine_, Speculation::kOff, [](GenerateParams&, Session&, Seen&) {});
    std::vector<int32_t> ends;
    for (const auto& [token, text] : plain.calls) {
        if (token >= 0 && std::find(ends.begin(), ends.end(), token) == ends.end()) ends.push_back(token);
    }
    for (const int32_t end : std::span(ends).last(std::min<size_t>(ends.size(), 8))) {
        SCOPED_TRACE(end);
        expect_same(*engine_, [&](GenerateParams& p, Session&, Seen&) { p.end_tokens = {end}; });
    }
}

TEST_P(SameAnswers, WhateverStringStopsThem) {
    for (const char* stop : {"<0>", "<1><1>", "><2", "3><4><", "<5><5><5>", "never", "<6>."}) {
        SCOPED_TRACE(stop);
        expect_same(*engine_, [&](GenerateParams& p, Session&, Seen&) { p.stop_strings = {"nowhere", stop}; });
    }
}

TEST_P(SameAnswers, WhenTheContextFills) {
    LoadOptions o = options();
    for (const uint64_t context : {kPrompt + 1, kPrompt + 2, 45, 46, 47, 48}) {
        SCOPED_TRACE(context);
        o.context_tokens = context;
        const auto small = Engine::load(o);
        std::vector<Seen> seen;
        for (const Speculation mode : {Speculation::kOff, Speculation::kAlways}) {
            seen.push_back(answer(*small, mode, [](GenerateParams& p, Session&, Seen&) { p.max_tokens = 0; }));
            EXPECT_EQ(seen.back().result.reason, StopReason::kContextFull);
            EXPECT_EQ(seen.back().tokens.size(), context);
        }
        EXPECT_EQ(seen[0].tokens, seen[1].tokens);
        EXPECT_EQ(seen[0].calls, seen[1].calls);
        EXPECT_TRUE(same_bits(seen[0].logits, seen[1].logits));
    }
}

TEST_P(SameAnswers, WithAnyRewindSpanStepSizeAndDraftLength) {
    LoadOptions o = options();
    for (const auto& [span, step, draft] :
         {std::tuple{0, 512, 8}, {1, 512, 15}, {3, 16, 15}, {1024, 1, 8}, {70, 4, 1}}) {
        SCOPED_TRACE(std::to_string(span) + " " + std::to_string(step));
        o.rewind_span = span;
        o.max_step_tokens = step;
        const auto engine = Engine::load(o);
        const int most = draft;
        const bool slides = engine->info().sliding_window > 0;
        const int in_one_step = std::min(step, 256) - 1;  // of the context
        EXPECT_EQ(engine->max_draft(), slides ? std::min(span, in_one_step) : in_one_step);
        const uint32_t accepted = expect_same(*engine, [&](GenerateParams& p, Session&, Seen&) {
            p.max_tokens = 200;  // past the window, and so that pages are dropped
            p.max_draft = most;
        });
        EXPECT_EQ(accepted > 0, engine->max_draft() > 0);
    }
}

TEST_P(SameAnswers, OfForksThatShareTheirPages) {
    const auto original = engine_->create_session();
    add(*original, prompt(kPrompt, engine_->info().vocab));
    Sampler first(sampling());
    GenerateParams p;
    p.sampler = &first;
    p.max_tokens = 70;
    p.speculation = Speculation::kAlways;
    generate(*original, p);
    const size_t shared = original->tokens().size();
    std::vector<std::vector<int32_t>> tokens;
    std::vector<float> logits[2];
    for (const Speculation mode : {Speculation::kOff, Speculation::kAlways}) {
        const auto fork = original->fork();
        Sampler sampler(sampling());
        p.sampler = &sampler;
        p.speculation = mode;
        generate(*fork, p);
        tokens.emplace_back(fork->tokens().begin(), fork->tokens().end());
        logits[mode == Speculation::kOff ? 0 : 1].assign(fork->logits().begin(), fork->logits().end());
        EXPECT_EQ(original->tokens().size(), shared);
    }
    EXPECT_EQ(tokens[0], tokens[1]);
    EXPECT_TRUE(same_bits(logits[0], logits[1]));
    // The forks wrote to pages of their own: the original goes on as a fresh session with its tokens does.
    const auto fresh = engine_->create_session();
    add(*fresh, original->tokens());
    EXPECT_TRUE(same_bits(fresh->logits(), original->logits()));
}

INSTANTIATE_TEST_SUITE_P(Models, SameAnswers,
                         ::testing::Values(std::tuple{"llama-tiny", 0.0F, "full"},
                                           std::tuple{"llama-tiny", 0.5F, "full"},
                                           std::tuple{"maple-tiny", 0.0F, "checked"},
                                           std::tuple{"maple-tiny", 0.5F, "full"}),
                         [](const auto& i) {
                             return std::string(std::get<0>(i.param)).substr(0, 5) +
                                    (std::get<1>(i.param) == 0 ? "Greedy" : "Seeded") + std::get<2>(i.param);
                         });

TEST(Speculation, ACancelFromAnotherThreadLeavesThePlainTokensSoFar) {
    const auto engine = testing::load(synthetic_model("llama-tiny", "q8_0"));
    const auto session = engine->create_session();
    const auto plain = engine->create_session();
    for (Session* s : {session.get(), plain.get()}) add(*s, prompt(kPrompt, engine->info().vocab));
    Sampler sampler(repetitive(0.5F));
    GenerateParams p;
    p.sampler = &sampler;
    p.speculation = Speculation::kAlways;
    size_t shown = 0;
    std::thread other;
    p.on_token = [&](int32_t token, std::string_view) {
        if (token >= 0 && ++shown == 30) other = std::thread([&] { session->cancel(); });
        return true;
    };
    EXPECT_EQ(generate(*session, p).reason, StopReason::kCancelled);
    other.join();
    EXPECT_EQ(session->tokens().size(), kPrompt + shown);
    Sampler again(repetitive(0.5F));
    GenerateParams q;
    q.sampler = &again;
    q.speculation = Speculation::kOff;
    q.max_tokens = static_cast<uint32_t>(shown);
    generate(*plain, q);
    EXPECT_TRUE(
        std::equal(plain->tokens().begin(), plain->tokens().end(), session->tokens().begin(), session->tokens().end()));
    session->resume();
    p.max_tokens = q.max_tokens = 20;
    p.on_token = {};
    generate(*session, p);
    generate(*plain, q);
    EXPECT_TRUE(
        std::equal(plain->tokens().begin(), plain->tokens().end(), session->tokens().begin(), session->tokens().end()));
}

TEST(Speculation, RefusesADraftOutOfRange) {
    const auto engine = testing::load(synthetic_model("llama-tiny", "q8_0"));
    const auto session = engine->create_session();
    add(*session, prompt(kPrompt, engine->info().vocab));
    Sampler sampler(Sampling{});
    GenerateParams p;
    p.sampler = &sampler;
    for (const int bad : {-1, kMaxDraft + 1}) {
        p.max_draft = bad;
        const Error e = error_of([&] { generate(*session, p); });
        EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
        EXPECT_NE(std::string(e.what()).find("max_draft"), std::string::npos);
    }
}

TEST(Speculation, AWrongOrRejectedDraftCostsNothingButItsStep) {
    const auto engine = testing::load(synthetic_model("maple-tiny", "tq2_0"));
    const auto session = engine->create_session();
    add(*session, prompt(kPrompt, engine->info().vocab));
    Sampler sampler(repetitive(0));
    GenerateParams p;
    p.sampler = &sampler;
    p.max_tokens = 60;
    p.speculation = Speculation::kAlways;
    const GenerateResult r = generate(*session, p);
    EXPECT_GT(r.drafted, r.accepted);
    EXPECT_GT(r.accepted, 0U);
    EXPECT_EQ(r.steps + r.accepted, r.tokens);
}

// ---- the parts ----

struct Follower {
    std::vector<int32_t> text;
    CopyLookup lookup;
    CopyLookup::Outcome add(int32_t token) {
        const auto outcome = lookup.follow(text, token);
        text.push_back(token);
        return outcome;
    }
    std::vector<int32_t> draft(size_t count) {
        std::vector<int32_t> out(count);
        lookup.draft(std::span(text).first(text.size() - 1), text.back(), out);
        return out;
    }
};

TEST(CopyLookup, NeedsTwoTokensThatAgree) {
    Follower f{{5, 6, 7, 8}, {}};
    f.add(6);
    EXPECT_EQ(f.lookup.match(), 0);
    f.add(7);
    EXPECT_EQ(f.lookup.match(), 2);
    EXPECT_EQ(f.draft(1), std::vector<int32_t>{8});
}

TEST(CopyLookup, TakesTheLongestMatchAndTheLatestOfEquals) {
    Follower f{{1, 2, 3, 40, 2, 3, 50, 9, 2, 3, 60, 1, 2}, {}};
    f.add(3);
    EXPECT_EQ(f.lookup.match(), 3);
    EXPECT_EQ(f.draft(2), (std::vector<int32_t>{40, 2}));
    Follower g{{2, 3, 50, 2, 3, 60, 7, 2}, {}};
    g.add(3);
    EXPECT_EQ(g.draft(1), std::vector<int32_t>{60});
}

TEST(CopyLookup, FollowsAMatchAndSaysHowItsPredictionsTurnedOut) {
    Follower f{{1, 2, 3, 4, 9, 1}, {}};
    EXPECT_EQ(f.add(2), CopyLookup::Outcome::kNone);
    EXPECT_EQ(f.add(3), CopyLookup::Outcome::kRight);
    EXPECT_EQ(f.lookup.match(), 3);
    EXPECT_EQ(f.add(7), CopyLookup::Outcome::kWrong);
    EXPECT_EQ(f.lookup.match(), 0);
    EXPECT_EQ(f.add(8), CopyLookup::Outcome::kNone);
}

TEST(CopyLookup, ADraftMayRunOnIntoItself) {
    Follower f{{9, 1, 2, 1}, {}};
    f.add(2);
    EXPECT_EQ(f.draft(5), (std::vector<int32_t>{1, 2, 1, 2, 1}));
    Follower g{{9, 4, 4}, {}};
    g.add(4);
    EXPECT_EQ(g.draft(4), (std::vector<int32_t>{4, 4, 4, 4}));
}

TEST(CopyLookup, FindsNothingInAnEmptySequence) {
    Follower f;
    EXPECT_EQ(f.add(3), CopyLookup::Outcome::kNone);
    EXPECT_EQ(f.lookup.match(), 0);
}

TEST(Acceptance, FollowsWhatItSees) {
    Acceptance a;
    for (int i = 0; i < 100; ++i) a.observe(4, true);
    for (int i = 0; i < 100; ++i) a.observe(2, false);
    EXPECT_GT(a.probability(4), 0.95);
    EXPECT_LT(a.probability(2), 0.05);
    EXPECT_GT(a.probability(20), 0.8);  // seen neither
    EXPECT_NEAR(a.expected(4, 2), a.probability(4) * (1 + a.probability(5)), 1e-12);
}

TEST(StepBytes, FourTokensOfMapleReadThirtyOneExpertsALayer) {
    StepBytes b;
    b.one_token = 9;
    b.shared = 1;
    b.experts = 8;
    b.expert_count = 256;
    b.experts_used = 8;
    EXPECT_EQ(b.total(1), 9);
    EXPECT_NEAR(b.total(4), 1 + 30.5, 0.1);
    b.expert_count = 0;
    EXPECT_EQ(b.total(4), 9);
}

StepBytes dense() {
    StepBytes b;
    b.one_token = b.shared = 100;
    return b;
}

TEST(StepCost, LearnsWhatStepsTake) {
    StepCost cost(dense());
    for (int i = 0; i < 100; ++i) {
        cost.observe(1, 1.0);
        cost.observe(5, 1.0 + 4 * 0.5);
    }
    EXPECT_NEAR(cost.ratio(5), 3, 0.1);
    EXPECT_NEAR(cost.ratio(2), 1.5, 0.05);
}

TEST(StepCost, AStepThatWasHeldUpIsSoonForgotten) {
    StepCost cost(dense());
    cost.observe(1, 1.0);
    const double before = cost.ratio(9);
    cost.observe(9, 1000.0);
    EXPECT_LT(cost.ratio(9), 1.3 * before);
    for (int i = 0; i < 16; ++i) {
        cost.observe(1, 1.0);
        cost.observe(9, 1.0 + 8 * 0.15);
    }
    EXPECT_NEAR(cost.ratio(9), before, 0.05 * before);
}

TEST(Speculator, DraftsNothingInTextThatDoesNotRepeat) {
    const auto engine = testing::load(synthetic_model("maple-tiny", "tq2_0"));
    Speculator s(*engine, Speculation::kAuto, 0, 0);
    std::vector<int32_t> text;
    int32_t out[kMaxDraft];
    int drafted = 0;
    // Pairs return often, but what follows them does not: random ids below 12.
    for (const int32_t token : prompt(2000, 12)) {
        s.follow(text, token);
        drafted += text.size() < 1000 ? 0 : s.draft(text, token, 100, out);
        s.measured(1, 0.001);
        text.push_back(token);
    }
    EXPECT_LT(drafted, 20);
}

TEST(Speculator, DraftsInTextThatRepeats) {
    const auto engine = testing::load(synthetic_model("maple-tiny", "tq2_0"));
    Speculator s(*engine, Speculation::kAuto, 0, 0);
    std::vector<int32_t> text;
    int32_t out[kMaxDraft];
    int steps = 0;
    for (int i = 0; i < 200; ++i) {
        const int32_t token = prompt(40, 2048)[static_cast<size_t>(i % 40)];
        s.follow(text, token);
        const int drafted = s.draft(text, token, 100, out);
        s.measured(1 + drafted, 0.001 * (1 + 0.2 * drafted));
        steps += i >= 60 && drafted > 3 ? 1 : 0;
        text.push_back(token);
    }
    EXPECT_GT(steps, 120);
}

TEST(Speculator, TurnsItselfOffWhereStepsOfSeveralTokensAreSlow) {
    const auto engine = testing::load(synthetic_model("llama-tiny", "q8_0"));
    Speculator s(*engine, Speculation::kAuto, 0, 0);
    std::vector<int32_t> text;
    int32_t out[kMaxDraft];
    int late = 0;
    for (int i = 0; i < 400; ++i) {
        const int32_t token = prompt(40, 2048)[static_cast<size_t>(i % 40)];
        s.follow(text, token);
        const int drafted = s.draft(text, token, 100, out);
        s.measured(1 + drafted, 0.001 * (1 + 1.5 * drafted));
        late += i >= 100 && drafted > 0 ? 1 : 0;
        text.push_back(token);
    }
    EXPECT_LT(late, 15);
}

}  // namespace
}  // namespace samara
