#include "apps/cli/forced_drafts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "apps/cli/console.hpp"
#include "src/platform/error.hpp"

namespace samara::cli {
namespace {

using Clock = std::chrono::steady_clock;

class Replay {
  public:
    Replay(samara_engine* engine, std::span<const int32_t> prompt, uint32_t count)
        : engine_(engine),
          info_(model_info(engine)),
          session_(create_session(engine)),
          guard_(session_.get()),
          prompt_length_(prompt.size()) {
        prefill(engine, session_.get(), prompt, false);
        generate(count);
    }

    // The text in steps of `size` tokens. Returns the seconds of a token.
    double run(uint32_t size) {
        uint64_t again = 0;
        check(samara_session_truncate(session_.get(), prompt_length_, &again));
        if (again > 0) prefill(engine_, session_.get(), {}, false);
        std::vector<uint16_t> chosen(uint64_t{size} * info_.layers * info_.experts_used);
        uint64_t steps = 0;
        different_experts_ = 0;
        double seconds = 0;
        for (at_ = 0; at_ + size < text_.size(); at_ += size, ++steps) {
            const auto start = Clock::now();
            step(size, chosen.empty() ? nullptr : chosen.data());
            seconds += std::chrono::duration<double>(Clock::now() - start).count();
            if (wrong_) throw Error(ErrorCode::kInternal, "bench: a step of several tokens chose another token");
            different_experts_ += count_different(chosen, size);
        }
        if (steps == 0) {
            throw Error(ErrorCode::kInvalidArgument, fmt::format("bench: --force-draft: expected more than {} tokens "
                                                                 "(--gen-tokens), found {}",
                                                                 size, text_.size()));
        }
        experts_per_layer_ = info_.experts == 0
                                 ? 0
                                 : static_cast<double>(different_experts_) / static_cast<double>(steps * info_.layers);
        return seconds / static_cast<double>(steps * size);
    }

    double experts_per_layer() const { return experts_per_layer_; }

    // Of the steps of the last run. A step reads its tokens' keys and values once: they overlap nearly whole.
    double bytes_per_step(uint32_t size) const {
        const double experts = info_.experts == 0 ? 1 : experts_per_layer_ / info_.experts_used;
        return static_cast<double>(info_.bytes_attention + info_.bytes_router + info_.bytes_head +
                                   size * info_.bytes_embedding +
                                   samara_kv_bytes(engine_, prompt_length_ + text_.size() / 2)) +
               static_cast<double>(info_.bytes_experts) * experts;
    }

  private:
    void generate(uint32_t count) {
        samara_sampling greedy{};
        greedy.struct_size = sizeof greedy;
        samara_sampler* sampler = nullptr;
        check(samara_sampler_create(&greedy, &sampler));
        const SamplerHandle owner(sampler);
        samara_generate_params p{};
        p.struct_size = sizeof p;
        p.sampler = sampler;
        p.max_tokens = count;
        p.speculation = SAMARA_SPECULATION_OFF;
        check(samara_generate(session_.get(), &p, nullptr));
        if (interrupted()) throw Error(ErrorCode::kCancelled, "bench was stopped");
        const int32_t* tokens = samara_session_tokens(session_.get());
        text_.assign(tokens + prompt_length_, tokens + samara_session_length(session_.get()));
    }

    void step(uint32_t size, uint16_t* chosen) {
        samara_step_input input{};
        input.struct_size = sizeof input;
        input.session = session_.get();
        input.tokens = text_.data() + at_;
        input.count = size;
        input.logits = SAMARA_LOGITS_ALL;
        input.experts = chosen;
        samara_step_params p{};
        p.struct_size = sizeof p;
        p.inputs = &input;
        p.input_count = 1;
        p.user = this;
        p.on_logits = [](uint32_t, uint32_t token, const float* logits, void* user) {
            auto& self = *static_cast<Replay*>(user);
            const auto best = std::max_element(logits, logits + self.info_.vocab) - logits;
            self.wrong_ = self.wrong_ || best != self.text_[self.at_ + token + 1];
        };
        check(samara_step(engine_, &p));
    }

    // (tokens, layers, experts_used) -> different experts, all layers together
    uint64_t count_different(std::span<const uint16_t> chosen, uint32_t tokens) {
        uint64_t different = 0;
        for (uint32_t layer = 0; layer < info_.layers && !chosen.empty(); ++layer) {
            seen_.assign(info_.experts, false);
            for (uint32_t t = 0; t < tokens; ++t) {
                for (const uint16_t e :
                     chosen.subspan((uint64_t{t} * info_.layers + layer) * info_.experts_used, info_.experts_used)) {
                    different += seen_[e] ? 0 : 1;
                    seen_[e] = true;
                }
            }
        }
        return different;
    }

    samara_engine* engine_;
    samara_model_info info_;
    SessionHandle session_;
    InterruptGuard guard_;
    uint64_t prompt_length_;
    std::vector<int32_t> text_;
    size_t at_ = 0;  // first token of the step
    bool wrong_ = false;
    uint64_t different_experts_ = 0;
    double experts_per_layer_ = 0;
    std::vector<bool> seen_;
};

}  // namespace

std::vector<ForcedDraft> measure_forced_drafts(samara_engine* engine, std::span<const int32_t> prompt, uint32_t count,
                                               uint32_t most, uint32_t rounds) {
    Replay replay(engine, prompt, count);
    std::vector<std::vector<double>> seconds(most + 1);
    std::vector<ForcedDraft> results(most + 1);
    for (uint32_t r = 0; r < rounds; ++r) {
        for (uint32_t draft = 0; draft <= most; ++draft) {
            seconds[draft].push_back(replay.run(1 + draft));
            results[draft].draft = draft;
            results[draft].bytes_per_step = replay.bytes_per_step(1 + draft);
            results[draft].experts_per_layer = replay.experts_per_layer();
        }
    }
    for (uint32_t draft = 0; draft <= most; ++draft) {
        std::sort(seconds[draft].begin(), seconds[draft].end());
        results[draft].tokens_per_second = 1 / seconds[draft][rounds / 2];
    }
    return results;
}

}  // namespace samara::cli
