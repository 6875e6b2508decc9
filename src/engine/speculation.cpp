#include "src/engine/speculation.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace samara {
namespace {

// Old observations fade by this factor: about the last thirty count.
constexpr double kFade = 31.0 / 32;
// A draft must promise this much more than plain decoding: the promise is an estimate.
constexpr double kLeastGain = 1.05;
// Then one plain step, so that the time drafts are compared with is not an old one.
constexpr int kMostDraftsInARow = 32;

size_t bucket(int match) {
    if (match <= 3) return static_cast<size_t>(std::max(0, match - 2));
    if (match <= 5) return 2;
    if (match <= 8) return 3;
    return match <= 15 ? 4 : 5;
}

}  // namespace

CopyLookup::Outcome CopyLookup::follow(std::span<const int32_t> before, int32_t token) {
    Outcome outcome = Outcome::kNone;
    if (match_ > 0 && source_ < before.size()) {
        outcome = before[source_] == token ? Outcome::kRight : Outcome::kWrong;
    }
    if (outcome == Outcome::kRight) {
        ++source_;
        ++match_;
    } else {
        search(before, token);
    }
    return outcome;
}

// The longest match wins, the latest of equals: a draft from near by is more often right.
void CopyLookup::search(std::span<const int32_t> before, int32_t token) {
    const size_t n = before.size();
    match_ = 0;
    for (size_t at = n; at-- > 0 && match_ < kMostMatch;) {
        if (before[at] != token) continue;
        size_t length = 1;
        while (length <= at && length < kMostMatch && before[at - length] == before[n - length]) ++length;
        if (static_cast<int>(length) > std::max(match_, kLeastMatch - 1)) {
            match_ = static_cast<int>(length);
            source_ = at + 1;
        }
    }
}

void CopyLookup::draft(std::span<const int32_t> before, int32_t token, std::span<int32_t> out) const {
    for (size_t i = 0; i < out.size(); ++i) {
        const size_t at = source_ + i;
        if (at < before.size()) {
            out[i] = before[at];
        } else {
            out[i] = at == before.size() ? token : out[at - before.size() - 1];
        }
    }
}

void Acceptance::observe(int match, bool right) {
    Count& c = counts_[bucket(match)];
    c.right = c.right * kFade + (right ? 1 : 0);
    c.seen = c.seen * kFade + 1;
}

double Acceptance::probability(int match) const {
    const Count& c = counts_[bucket(match)];
    return c.right / c.seen;
}

double Acceptance::expected(int match, int length) const {
    double sum = 0, all_right = 1;
    for (int i = 0; i < length; ++i) {
        all_right *= probability(match + i);
        sum += all_right;
    }
    return sum;
}

StepBytes StepBytes::of(const Engine& engine, uint64_t position) {
    const ModelInfo& i = engine.info();
    const uint64_t body = i.bytes_attention + i.bytes_router + i.bytes_embedding + engine.kv_bytes(position);
    StepBytes b;
    b.one_token = static_cast<double>(body + i.bytes_experts + engine.head_bytes());
    b.shared = static_cast<double>(body + i.bytes_head);
    b.experts = static_cast<double>(i.bytes_experts);
    b.expert_count = i.experts;
    b.experts_used = i.experts_used;
    return b;
}

double StepBytes::total(int n) const {
    if (n == 1) return one_token;
    if (expert_count == 0) return shared + experts;
    const double share = static_cast<double>(experts_used) / expert_count;
    return shared + experts * (1 - std::pow(1 - share, n)) / share;
}

double StepCost::ratio(int n) const { return std::max(1.0, bytes_.total(n) / bytes_.total(1) + extra_ * (n - 1)); }

// A step that was held up (other programs, a page of the file that was not there) counts as twice the expected at most.
// While nothing is drafted what was measured fades, so that such a step does not turn drafts off for good.
void StepCost::observe(int n, double seconds) {
    if (n == 1) {
        if (plain_steps_ > 0) seconds = std::min(seconds, 2 * plain_seconds_);
        plain_steps_ = std::min(plain_steps_ + 1, 8);
        plain_seconds_ += (seconds - plain_seconds_) / plain_steps_;
        extra_ += (kFirstExtra - extra_) / 256;
        since_plain_ = 0;
        return;
    }
    ++since_plain_;
    if (plain_steps_ == 0) return;
    const double measured = std::min(seconds / plain_seconds_, 2 * ratio(n));
    extra_ += ((measured - bytes_.total(n) / bytes_.total(1)) / (n - 1) - extra_) / 8;
}

Speculator::Speculator(const Engine& engine, Speculation mode, int max_draft, uint64_t position)
    : mode_(mode), cost_(StepBytes::of(engine, position)) {
    if (max_draft < 0 || max_draft > kMaxDraft) {
        throw Error(ErrorCode::kInvalidArgument, "generate: max_draft: expected 0 to " + std::to_string(kMaxDraft) +
                                                     ", found " + std::to_string(max_draft));
    }
    max_draft_ = std::min(max_draft == 0 ? kDefaultDraft : max_draft, engine.max_draft());
    if (max_draft_ == 0) mode_ = Speculation::kOff;
}

void Speculator::follow(std::span<const int32_t> before, int32_t token) {
    if (mode_ == Speculation::kOff) return;
    const int match = lookup_.match();
    const CopyLookup::Outcome outcome = lookup_.follow(before, token);
    if (outcome != CopyLookup::Outcome::kNone) acceptance_.observe(match, outcome == CopyLookup::Outcome::kRight);
}

int Speculator::draft(std::span<const int32_t> before, int32_t token, int64_t room, std::span<int32_t> out) const {
    if (mode_ == Speculation::kOff || lookup_.match() == 0) return 0;
    const int most = static_cast<int>(std::min<int64_t>({room, max_draft_, static_cast<int64_t>(out.size())}));
    const int length = mode_ == Speculation::kAlways ? std::max(0, most) : best_length(most);
    lookup_.draft(before, token, out.first(static_cast<size_t>(length)));
    return length;
}

// The length whose tokens a second are expected to be the most; 0 when none is clearly faster than plain decoding.
int Speculator::best_length(int most) const {
    if (cost_.since_plain() >= kMostDraftsInARow) return 0;
    int best = 0;
    double best_gain = kLeastGain;
    for (int length = 1; length <= most; ++length) {
        const double gain = (1 + acceptance_.expected(lookup_.match(), length)) / cost_.ratio(1 + length);
        if (gain > best_gain) {
            best = length;
            best_gain = gain;
        }
    }
    return best;
}

}  // namespace samara
