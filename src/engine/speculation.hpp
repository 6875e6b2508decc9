#pragma once
// Speculation without a second model: where the text repeats itself, what followed last time is a draft of what comes
// next (prompt lookup, Saxena 2023). One step computes the draft's tokens together, so that they share the reads of the
// weights, and the sampler then draws every one of them from its own logits as plain decoding would: a draft changes
// the speed alone. How long a draft pays is decided before each step, from how often matches of this length went on in
// this text and from the bytes that a step of so many tokens reads.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "samara/engine.hpp"

namespace samara {

/// Follows a sequence and the place earlier in it that its end repeats. Holds no copy of the text and no index: a
/// search reads the sequence once, backwards, and is needed only where no match goes on.
class CopyLookup {
  public:
    static constexpr int kLeastMatch = 2;  // tokens that must agree
    static constexpr int kMostMatch = 16;  // tokens that a search compares

    enum class Outcome { kNone, kRight, kWrong };  // of the match's prediction; kNone: there was none

    /// `token` follows `before`, the whole sequence so far. Takes |before| compares where a search is needed.
    Outcome follow(std::span<const int32_t> before, int32_t token);
    /// Tokens at the sequence's end that the matched place agrees with; 0: no match.
    int match() const { return match_; }
    /// What followed the matched place, which may run on into the draft itself (`token` and `before` as in `follow`).
    void draft(std::span<const int32_t> before, int32_t token, std::span<int32_t> out) const;

  private:
    void search(std::span<const int32_t> before, int32_t token);

    size_t source_ = 0;  // the token that followed the matched place
    int match_ = 0;
};

/// How often a match of a given length predicted the next token, lately and in this text.
class Acceptance {
  public:
    void observe(int match, bool right);
    /// Probability that the token which follows a match of so many tokens is the predicted one.
    double probability(int match) const;
    /// Tokens accepted of a draft of `length`, in the mean, at a match of `match` tokens.
    double expected(int match, int length) const;

  private:
    struct Count {
        double right, seen;
    };
    // By match length: 2, 3, 4–5, 6–8, 9–15, 16 and more. The first guesses weigh as much as four observations.
    std::array<Count, 6> counts_{{{0.6, 4}, {1.2, 4}, {2.0, 4}, {2.6, 4}, {3.1, 4}, {3.5, 4}}};
};

/// Bytes that a step reads.
struct StepBytes {
    double one_token = 0;  // a step of one token, whose head may be read in part
    double shared = 0;     // read once by a step of several
    double experts = 0;    // one token's experts
    int expert_count = 0, experts_used = 0;

    /// `position`: of the step's first token.
    static StepBytes of(const Engine& engine, uint64_t position);
    /// Of a step of n tokens. Tokens that choose their experts independently read E (1 - (1 - used/E)^n) of a layer's
    /// E.
    double total(int n) const;
};

/// Predicts how long a step takes by its tokens: by its bytes, and what measured steps took beyond that.
class StepCost {
  public:
    explicit StepCost(const StepBytes& bytes) : bytes_(bytes) {}
    /// Time of a step of n tokens over the time of a step of one.
    double ratio(int n) const;
    void observe(int n, double seconds);
    /// Steps of several tokens since the last one of one token.
    int since_plain() const { return since_plain_; }

  private:
    static constexpr double kFirstExtra = 0.15;  // 0.05 to 0.25 measured, by instruction set and model

    StepBytes bytes_;
    double extra_ = kFirstExtra;  // of each token after the first, in steps of one token
    double plain_seconds_ = 0;
    int plain_steps_ = 0, since_plain_ = 0;
};

/// Decides what to draft.
class Speculator {
  public:
    /// `max_draft` 0: kDefaultDraft. Throws Error(kInvalidArgument) outside 0 to kMaxDraft.
    Speculator(const Engine& engine, Speculation mode, int max_draft, uint64_t position);

    /// Tells it of every new token; `before` is the whole sequence without it.
    void follow(std::span<const int32_t> before, int32_t token);
    /// Writes the tokens expected after `token`, the one last followed, and returns how many; at most `room`.
    int draft(std::span<const int32_t> before, int32_t token, int64_t room, std::span<int32_t> out) const;
    /// A step of n tokens, the draft included, took so long.
    void measured(int n, double seconds) { cost_.observe(n, seconds); }

  private:
    int best_length(int most) const;

    Speculation mode_;
    int max_draft_;
    CopyLookup lookup_;
    Acceptance acceptance_;
    StepCost cost_;
};

}  // namespace samara
