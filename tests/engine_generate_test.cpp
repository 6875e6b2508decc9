// Generation: when it stops, what it emits, and that the session afterwards holds what was shown.

#include <thread>

#include "tests/engine_models.hpp"

namespace samara {
namespace {

using testing::add;
using testing::error_of;
using testing::prompt;
using testing::synthetic_model;

std::unique_ptr<Engine> load(uint64_t context) {
    LoadOptions o;
    o.path = synthetic_model("llama-tiny", "q8_0");
    o.threads = 1;
    o.context_tokens = context;
    return Engine::load(o);
}

class EngineGenerate : public ::testing::Test {
  protected:
    EngineGenerate() : engine_(load(256)), session_(engine_->create_session()), greedy_(Sampling{}) {
        add(*session_, prompt(10, engine_->info().vocab));
        params_.sampler = &greedy_;
        params_.max_tokens = 20;
        params_.on_token = [this](int32_t token, std::string_view text) {
            if (token >= 0) shown_.push_back(token);
            ++calls_;
            last_ = token;
            text_ += text;
            return true;
        };
    }

    /// What greedy decoding step by step gives.
    std::vector<int32_t> by_hand(int count) {
        const auto s = session_->fork();
        Sampler sampler(Sampling{});
        std::vector<int32_t> tokens;
        for (int i = 0; i < count; ++i) {
            tokens.push_back(sampler.choose(s->logits()));
            add(*s, std::span(tokens).last(1));
        }
        return tokens;
    }

    /// Every token becomes three characters: "<a>", "<b>", ... in the order of generation.
    void spell() {
        params_.detokenize = [this](int32_t token) {
            if (token < 0) return std::string();
            return std::string{'<', static_cast<char>('a' + spelled_++), '>'};
        };
    }

    std::vector<int32_t> generated() const {
        const auto all = session_->tokens();
        return {all.begin() + 10, all.end()};
    }

    std::unique_ptr<Engine> engine_;
    std::unique_ptr<Session> session_;
    Sampler greedy_;
    GenerateParams params_;
    std::vector<int32_t> shown_;
    std::string text_;
    int calls_ = 0, last_ = 0, spelled_ = 0;
};

TEST_F(EngineGenerate, GivesWhatSteppingByHandGivesUpToTheLimit) {
    const auto expected = by_hand(20);
    const GenerateResult r = generate(*session_, params_);
    EXPECT_EQ(r.reason, StopReason::kLimit);
    EXPECT_EQ(r.tokens, 20U);
    EXPECT_EQ(shown_, expected);
    EXPECT_EQ(generated(), expected);
    EXPECT_EQ(calls_, 21);
    EXPECT_EQ(last_, -1);
}

TEST_F(EngineGenerate, GoesOnWhereItStopped) {
    const auto expected = by_hand(20);
    params_.max_tokens = 8;
    generate(*session_, params_);
    params_.max_tokens = 12;
    generate(*session_, params_);
    EXPECT_EQ(generated(), expected);
}

TEST_F(EngineGenerate, GoesOnAfterATruncateAndAfterAStepWithoutLogits) {
    const auto expected = by_hand(6);
    generate(*session_, params_);
    session_->truncate(10);
    params_.max_tokens = 3;
    generate(*session_, params_);
    EXPECT_EQ(generated(), std::vector<int32_t>(expected.begin(), expected.begin() + 3));
    add(*session_, std::span(expected).subspan(3, 1), LogitsWanted::kNone);
    params_.max_tokens = 2;
    generate(*session_, params_);
    EXPECT_EQ(generated(), expected);
}

TEST_F(EngineGenerate, EndsAtAnEndTokenWithoutShowingIt) {
    const auto expected = by_hand(20);
    params_.end_tokens = {-5, expected[4]};
    const GenerateResult r = generate(*session_, params_);
    const auto first = std::find(expected.begin(), expected.end(), expected[4]) - expected.begin();
    EXPECT_EQ(r.reason, StopReason::kEndToken);
    EXPECT_EQ(r.tokens, static_cast<uint32_t>(first + 1));
    EXPECT_EQ(shown_, std::vector<int32_t>(expected.begin(), expected.begin() + first));
    EXPECT_EQ(generated(), std::vector<int32_t>(expected.begin(), expected.begin() + first + 1));
    EXPECT_TRUE(session_->has_logits());
}

TEST_F(EngineGenerate, StopsAtAStopStringThatSpansTokens) {
    spell();
    params_.stop_strings = {"nowhere", "c><d"};
    const GenerateResult r = generate(*session_, params_);
    EXPECT_EQ(r.reason, StopReason::kStopString);
    EXPECT_EQ(r.stop_string, 1U);
    EXPECT_EQ(r.tokens, 4U);
    EXPECT_EQ(text_, "<a><b><");
    EXPECT_EQ(generated().size(), 4U);
}

TEST_F(EngineGenerate, HoldsBackTheStartOfAStopStringAndReleasesItWhenItGoesOnOtherwise) {
    spell();
    params_.max_tokens = 4;
    params_.stop_strings = {"b><x"};
    std::vector<std::string> pieces;
    params_.on_token = [&](int32_t, std::string_view text) {
        pieces.emplace_back(text);
        return true;
    };
    EXPECT_EQ(generate(*session_, params_).reason, StopReason::kLimit);
    EXPECT_EQ(pieces, (std::vector<std::string>{"<a>", "<", "b><c>", "<d>", ""}));
}

TEST_F(EngineGenerate, TheEarliestStopStringWinsAndTiesGoToTheFirst) {
    spell();
    params_.stop_strings = {"><b", "a>", "a"};
    const GenerateResult r = generate(*session_, params_);
    EXPECT_EQ(r.stop_string, 1U);
    EXPECT_EQ(text_, "<");
}

TEST_F(EngineGenerate, TextHeldBackComesWithTheLastCall) {
    spell();
    params_.max_tokens = 2;
    params_.stop_strings = {"b>!"};
    generate(*session_, params_);
    EXPECT_EQ(text_, "<a><b>");
}

TEST_F(EngineGenerate, AStopStringInTheDetokenizersLastTextCounts) {
    params_.max_tokens = 2;
    params_.detokenize = [](int32_t token) { return std::string(token < 0 ? "P and more" : "STO"); };
    params_.stop_strings = {"STOP"};
    const GenerateResult r = generate(*session_, params_);
    EXPECT_EQ(r.reason, StopReason::kStopString);
    EXPECT_EQ(text_, "STO");
}

TEST_F(EngineGenerate, TheCallbackStopsAndItsTokenStays) {
    params_.on_token = [&](int32_t token, std::string_view) {
        if (token >= 0) shown_.push_back(token);
        return shown_.size() < 3;
    };
    const GenerateResult r = generate(*session_, params_);
    EXPECT_EQ(r.reason, StopReason::kCallback);
    EXPECT_EQ(r.tokens, 3U);
    EXPECT_EQ(generated(), shown_);
    EXPECT_TRUE(session_->has_logits());
}

TEST_F(EngineGenerate, ACancelFromAnotherThreadKeepsTheShownTokenAndGoesOnAfterResume) {
    const auto expected = by_hand(20);
    params_.on_token = [&](int32_t token, std::string_view) {
        if (token >= 0) shown_.push_back(token);
        if (shown_.size() == 5) std::thread([&] { session_->cancel(); }).join();
        return true;
    };
    const GenerateResult r = generate(*session_, params_);
    EXPECT_EQ(r.reason, StopReason::kCancelled);
    EXPECT_EQ(shown_.size(), 5U);
    EXPECT_EQ(generated(), shown_);
    EXPECT_EQ(generate(*session_, params_).reason, StopReason::kCancelled);
    EXPECT_EQ(generated(), shown_);
    session_->resume();
    params_.max_tokens = 15;
    params_.on_token = {};
    EXPECT_EQ(generate(*session_, params_).reason, StopReason::kLimit);
    EXPECT_EQ(generated(), expected);
}

TEST_F(EngineGenerate, AFullContextIsAReasonOfItsOwn) {
    const auto small = load(16);
    const auto s = small->create_session();
    add(*s, prompt(10, small->info().vocab));
    params_.max_tokens = 0;
    GenerateResult r = generate(*s, params_);
    EXPECT_EQ(r.reason, StopReason::kContextFull);
    EXPECT_EQ(r.tokens, 6U);
    EXPECT_EQ(s->tokens().size(), 16U);
    r = generate(*s, params_);
    EXPECT_EQ(r.reason, StopReason::kContextFull);
    EXPECT_EQ(r.tokens, 0U);
}

TEST_F(EngineGenerate, NeedsASamplerAPromptAndADetokenizerForStopStrings) {
    const auto code = [&](Session& s) { return error_of([&] { generate(s, params_); }).code(); };
    params_.stop_strings = {"x"};
    EXPECT_EQ(code(*session_), ErrorCode::kInvalidArgument);
    params_.stop_strings.clear();
    EXPECT_EQ(code(*engine_->create_session()), ErrorCode::kInvalidArgument);
    params_.sampler = nullptr;
    EXPECT_EQ(code(*session_), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace samara
