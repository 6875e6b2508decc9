#include <algorithm>
#include <cmath>
#include <limits>

#include "samara/engine.hpp"
#include "src/kernels/kernels.hpp"

namespace samara {
namespace {

uint64_t rotate_left(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

// SplitMix64 (Steele, Lea, Flood 2014) spreads a small seed over the generator's state.
uint64_t split_mix(uint64_t& state) {
    uint64_t z = (state += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

void require(bool ok, const char* setting, float found, const char* expected) {
    if (ok) return;
    throw Error(ErrorCode::kInvalidArgument,
                std::string(setting) + ": expected " + expected + ", found " + std::to_string(found));
}

}  // namespace

Sampler::Sampler(const Sampling& s) : sampling_(s) {
    require(std::isfinite(s.temperature) && s.temperature >= 0 && s.temperature <= 100, "temperature", s.temperature,
            "0 to 100");
    require(s.top_k >= 0, "top_k", static_cast<float>(s.top_k), "at least 0");
    require(s.top_p > 0 && s.top_p <= 1, "top_p", s.top_p, "a value in (0, 1]");
    require(s.min_p >= 0 && s.min_p < 1, "min_p", s.min_p, "a value in [0, 1)");
    require(std::isfinite(s.repetition_penalty) && s.repetition_penalty > 0, "repetition_penalty", s.repetition_penalty,
            "a positive value");
    require(std::isfinite(s.presence_penalty), "presence_penalty", s.presence_penalty, "a finite value");
    require(s.penalty_last >= 1 && s.penalty_last <= 1 << 20, "penalty_last", static_cast<float>(s.penalty_last),
            "1 to 1048576");
    uint64_t seed = s.seed;
    for (uint64_t& word : state_) word = split_mix(seed);
    recent_.reserve(static_cast<size_t>(s.penalty_last));
}

// xoshiro256** (Blackman and Vigna 2018); the top 53 bits make a double in [0, 1).
double Sampler::uniform() {
    const uint64_t result = rotate_left(state_[1] * 5, 7) * 9;
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotate_left(state_[3], 45);
    return static_cast<double>(result >> 11) * 0x1p-53;
}

void Sampler::accept(int32_t token) {
    if (recent_.size() < static_cast<size_t>(sampling_.penalty_last)) {
        recent_.push_back(token);
        return;
    }
    recent_[next_recent_] = token;
    next_recent_ = (next_recent_ + 1) % recent_.size();
}

Sampler::Mark Sampler::mark() const {
    Mark m{{}, recent_.size(), next_recent_, recent_.empty() ? 0 : recent_[next_recent_]};
    std::copy(std::begin(state_), std::end(state_), std::begin(m.state));
    return m;
}

void Sampler::go_back(const Mark& m) {
    std::copy(std::begin(m.state), std::end(m.state), std::begin(state_));
    if (recent_.size() > m.recent) {
        recent_.pop_back();
    } else if (!recent_.empty()) {
        recent_[m.next_recent] = m.replaced;
    }
    next_recent_ = m.next_recent;
}

void Sampler::penalise() {
    if (!penalises()) return;
    for (size_t i = 0; i < recent_.size(); ++i) {
        const bool seen_before = std::find(recent_.begin(), recent_.begin() + static_cast<int64_t>(i), recent_[i]) !=
                                 recent_.begin() + static_cast<int64_t>(i);
        Candidate* candidate = seen_before ? nullptr : find(recent_[i]);
        if (candidate == nullptr) continue;
        float& logit = candidate->logit;
        logit = logit > 0 ? logit / sampling_.repetition_penalty : logit * sampling_.repetition_penalty;
        logit -= sampling_.presence_penalty;
    }
}

bool Sampler::penalises() const { return sampling_.repetition_penalty != 1 || sampling_.presence_penalty != 0; }

// Of a whole vocabulary candidate i is token i; of the best ones any may be.
Sampler::Candidate* Sampler::find(int32_t token) {
    const auto index = static_cast<size_t>(token);
    if (index < candidates_.size() && candidates_[index].id == token) return &candidates_[index];
    const auto found =
        std::find_if(candidates_.begin(), candidates_.end(), [&](const Candidate& c) { return c.id == token; });
    return found == candidates_.end() ? nullptr : &*found;
}

int Sampler::top_needed() const {
    const int k = sampling_.temperature == 0 ? 1 : sampling_.top_k;
    return k <= kMaxTopTokens && penalised().size() <= static_cast<size_t>(kMaxTopTokens) ? k : 0;
}

std::span<const int32_t> Sampler::penalised() const {
    return penalises() ? std::span<const int32_t>(recent_) : std::span<const int32_t>();
}

namespace {

template <class Candidate>
bool better(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

}  // namespace

void Sampler::keep_top_k() {
    const auto k = static_cast<size_t>(sampling_.top_k);
    if (k == 0 || k >= vocab_) return;
    if (k < candidates_.size()) {
        std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(k) - 1, candidates_.end(),
                         better<Candidate>);
        candidates_.resize(k);
    }
    std::sort(candidates_.begin(), candidates_.end(), better<Candidate>);
}

// Moves the smallest set of most probable candidates whose share reaches top_p to the end of the list, best last, and
// returns how many there are. A heap gives them one by one: usually few are needed of a large vocabulary.
size_t Sampler::keep_top_p() {
    const auto worse = [](const Candidate& a, const Candidate& b) { return better(b, a); };
    double total = 0;
    for (const Candidate& c : candidates_) total += c.weight;
    std::make_heap(candidates_.begin(), candidates_.end(), worse);
    auto end = candidates_.end();
    double reached = 0;
    size_t kept = 0;
    while (end != candidates_.begin() && (kept == 0 || reached < sampling_.top_p * total)) {
        std::pop_heap(candidates_.begin(), end, worse);
        --end;
        reached += end->weight;
        ++kept;
    }
    return kept;
}

int32_t Sampler::choose(std::span<const float> logits) {
    candidates_.resize(logits.size());
    for (size_t i = 0; i < logits.size(); ++i) candidates_[i] = {logits[i], static_cast<int32_t>(i), 0};
    vocab_ = logits.size();
    return choose_from_candidates();
}

int32_t Sampler::choose(const TopTokens& top) {
    candidates_.resize(top.ids.size());
    for (size_t i = 0; i < top.ids.size(); ++i) candidates_[i] = {top.logits[i], top.ids[i], 0};
    vocab_ = std::numeric_limits<size_t>::max();
    return choose_from_candidates();
}

int32_t Sampler::choose_from_candidates() {
    penalise();
    // NaN has no order and infinities no difference: NaN counts as the least logit, infinities as the largest floats.
    constexpr float kLargest = std::numeric_limits<float>::max();
    for (Candidate& c : candidates_)
        c.logit = std::isnan(c.logit) ? -kLargest : std::clamp(c.logit, -kLargest, kLargest);
    const Candidate top = *std::min_element(candidates_.begin(), candidates_.end(), better<Candidate>);
    if (sampling_.temperature == 0 || sampling_.top_k == 1) {
        accept(top.id);
        return top.id;
    }
    keep_top_k();
    scratch_.resize(candidates_.size());
    for (size_t i = 0; i < candidates_.size(); ++i)
        scratch_[i] = (candidates_[i].logit - top.logit) / sampling_.temperature;
    kernels::kernel_table(kernels::Isa::kScalar)
        .exp(scratch_.data(), static_cast<int>(scratch_.size()), scratch_.data());
    for (size_t i = 0; i < candidates_.size(); ++i) candidates_[i].weight = scratch_[i];
    if (sampling_.top_p < 1) {
        const size_t kept = keep_top_p();
        candidates_.erase(candidates_.begin(), candidates_.end() - static_cast<int64_t>(kept));
    }
    if (sampling_.min_p > 0) {
        std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < sampling_.min_p; });
    }
    double total = 0;
    for (const Candidate& c : candidates_) total += c.weight;
    double left = uniform() * total;
    int32_t chosen = top.id;
    for (const Candidate& c : candidates_) {
        if (c.weight == 0) continue;  // not even when rounding leaves a rest at the end
        chosen = c.id;
        left -= c.weight;
        if (left < 0) break;
    }
    accept(chosen);
    return chosen;
}

}  // namespace samara
