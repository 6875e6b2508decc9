#include <algorithm>
#include <array>
#include <chrono>
#include <limits>

#include "samara/engine.hpp"
#include "src/engine/speculation.hpp"

namespace samara {
namespace {

// Text that goes out, held back while its end could be the start of a stop string.
class StopFilter {
  public:
    explicit StopFilter(const std::vector<std::string>& stops) : stops_(stops) {}

    /// Adds text; returns what is certain now. After a match `matched()` is true and nothing more comes out.
    std::string push(std::string_view text) {
        held_ += text;
        size_t first = std::string::npos;
        for (size_t i = 0; i < stops_.size(); ++i) {
            const size_t at = stops_[i].empty() ? std::string::npos : held_.find(stops_[i]);
            if (at < first) {
                first = at;
                match_ = static_cast<int>(i);
            }
        }
        return take(first != std::string::npos ? first : held_.size() - partial());
    }
    std::string finish() { return matched() ? std::string() : take(held_.size()); }
    bool matched() const { return match_ >= 0; }
    uint32_t match() const { return static_cast<uint32_t>(match_); }

  private:
    // Length of the longest end of the held text that begins a stop string.
    size_t partial() const {
        size_t longest = 0;
        for (const std::string& stop : stops_) {
            for (size_t n = std::min(stop.size(), held_.size()); n > longest; --n) {
                if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) longest = n;
            }
        }
        return longest;
    }
    std::string take(size_t n) {
        std::string out = held_.substr(0, n);
        held_.erase(0, n);
        return out;
    }

    const std::vector<std::string>& stops_;
    std::string held_;
    int match_ = -1;
};

void check(const Session& session, const GenerateParams& p) {
    if (p.sampler == nullptr) throw Error(ErrorCode::kInvalidArgument, "generate: expected a sampler");
    if (!p.stop_strings.empty() && !p.detokenize) {
        throw Error(ErrorCode::kInvalidArgument, "generate: stop strings need a detokenizer");
    }
    if (session.tokens().empty())
        throw Error(ErrorCode::kInvalidArgument, "generate: the session is empty, give it a prompt first");
}

// One call of `generate`. The tokens of a step with a draft wait in a queue until they are shown, one by one, under the
// same checks as in plain decoding; those that are not shown after all are taken back.
class Generation {
  public:
    Generation(Session& session, const GenerateParams& params)
        : session_(session),
          engine_(session.engine()),
          params_(params),
          sampler_(*params.sampler),
          filter_(params.stop_strings),
          speculator_(engine_, engine_.approximates_head() ? Speculation::kOff : params.speculation, params.max_draft,
                      session.tokens().size()) {
        step_.inputs = {&input_, 1};
        step_.on_logits = [this](int, int row, std::span<const float> logits) { draw(row, logits); };
    }

    GenerateResult run() {
        const auto start = Clock::now();
        try {
            if (!session_.has_logits() && !session_.has_top()) compute_last();
            while (!finished() && show(next_token())) {
            }
        } catch (const Error& e) {
            take_back();
            if (e.code() != ErrorCode::kCancelled) throw;
            result_.reason = StopReason::kCancelled;
        } catch (...) {
            take_back();
            throw;
        }
        finish_text();
        result_.seconds = seconds_since(start);
        return result_;
    }

  private:
    using Clock = std::chrono::steady_clock;
    static double seconds_since(Clock::time_point start) {
        return std::chrono::duration<double>(Clock::now() - start).count();
    }

    bool finished() {
        if (session_.cancelled()) {
            result_.reason = StopReason::kCancelled;
        } else if (tokens_left() == 0) {
            result_.reason = StopReason::kLimit;
        } else if (session_.tokens().size() == engine_.info().context_tokens) {
            result_.reason = StopReason::kContextFull;
        } else {
            return false;
        }
        take_back();
        return true;
    }

    uint32_t tokens_left() const {
        return params_.max_tokens == 0 ? std::numeric_limits<uint32_t>::max() : params_.max_tokens - result_.tokens;
    }

    bool waiting() const { return next_ < queued_; }

    int32_t next_token() {
        if (waiting()) return queue_[next_++].token;
        return session_.has_top() ? sampler_.choose(session_.top()) : sampler_.choose(session_.logits());
    }

    // Shows a token and makes the session hold it, computed. False when it was the last one.
    bool show(int32_t token) {
        ++result_.tokens;
        const bool ends =
            std::find(params_.end_tokens.begin(), params_.end_tokens.end(), token) != params_.end_tokens.end();
        bool go_on = true;
        if (!ends) {
            const std::string text = filter_.push(params_.detokenize ? params_.detokenize(token) : std::string());
            go_on = emit(token, text);
        }
        const bool last = ends || !go_on || filter_.matched();
        if (!waiting()) {
            step(token, last);
        } else if (last) {
            take_back();
            compute_last();
        } else {
            speculator_.follow(session_.tokens().first(queue_begin_ + next_ - 1), token);
        }
        if (ends) result_.reason = StopReason::kEndToken;
        if (!ends && !go_on) result_.reason = StopReason::kCallback;
        if (filter_.matched()) {
            result_.reason = StopReason::kStopString;
            result_.stop_string = filter_.match();
        }
        return !last;
    }

    // Computes a shown token and, unless no token is chosen after it here, a draft of what follows.
    void step(int32_t token, bool last) {
        const std::span<const int32_t> before = session_.tokens();
        const auto positions_left = static_cast<int64_t>(engine_.info().context_tokens - before.size()) - 1;
        const bool chooses = !last && tokens_left() > 0 && positions_left > 0;
        speculator_.follow(before, token);
        // Every drafted token is followed by one more that needs a place, too.
        const int64_t room = chooses ? std::min<int64_t>(tokens_left(), positions_left) - 1 : 0;
        batch_[0] = token;
        const int drafted = speculator_.draft(before, token, room, std::span(batch_).subspan(1));
        // The next token needs only the best ones, unless none is chosen here: then the caller may ask for logits.
        input_.top = drafted == 0 && chooses && engine_.reads_part_of_head() ? sampler_.top_needed() : 0;
        input_.also = sampler_.penalised();
        input_.logits = input_.top > 0 ? LogitsWanted::kTop : LogitsWanted::kLast;
        if (drafted > 0) input_.logits = LogitsWanted::kAll;
        queue_begin_ = before.size() + 1;
        next_ = queued_ = 0;
        const auto start = Clock::now();
        compute(std::span(batch_).first(1 + static_cast<size_t>(drafted)));
        speculator_.measured(1 + drafted, seconds_since(start));
        if (drafted == 0) return;
        // What was drawn last is not in the session yet, as after a step without a draft.
        session_.truncate(queue_begin_ + queued_ - 1);
        result_.drafted += static_cast<uint32_t>(drafted);
        result_.accepted += static_cast<uint32_t>(queued_ - 1);
    }

    // The first of `tokens` was shown: the session keeps it even when its step is cancelled.
    void compute(std::span<const int32_t> tokens) {
        const size_t before = session_.tokens().size();
        input_.tokens = tokens;
        try {
            engine_.step(step_);
        } catch (...) {
            if (session_.tokens().size() == before) session_.append_pending(tokens.front());
            throw;
        }
        ++result_.steps;
    }

    // Receives the logits after token `row` of a batch and draws the next token, while all before it were drafted
    // right.
    void draw(int row, std::span<const float> logits) {
        const auto r = static_cast<size_t>(row);
        if (queued_ != r || (r > 0 && queue_[r - 1].token != batch_[r])) return;
        queue_[r].before = sampler_.mark();
        queue_[r].token = sampler_.choose(logits);
        queued_ = r + 1;
    }

    // Forgets the tokens that wait: the sampler has not drawn them, the session does not hold them.
    void take_back() {
        if (!waiting()) return;
        for (size_t i = queued_; i-- > next_;) sampler_.go_back(queue_[i].before);
        session_.truncate(std::min(session_.tokens().size(), queue_begin_ + next_));
        queued_ = next_;
    }

    // Computes the last token's logits: after a truncate or a step without logits nothing is pending that would give
    // them, so the last token is processed once more.
    void compute_last() {
        const auto tokens = session_.tokens();
        const int32_t last = tokens.back();
        session_.truncate(tokens.size() - 1);
        input_.logits = LogitsWanted::kLast;
        input_.top = 0;
        compute({&last, 1});
    }

    bool emit(int32_t token, const std::string& text) { return !params_.on_token || params_.on_token(token, text); }

    void finish_text() {
        std::string rest;
        if (!filter_.matched()) {
            rest = filter_.push(params_.detokenize ? params_.detokenize(-1) : std::string());
            if (filter_.matched()) {
                result_.reason = StopReason::kStopString;
                result_.stop_string = filter_.match();
            }
        }
        emit(-1, rest + filter_.finish());
    }

    struct Drawn {
        int32_t token;
        Sampler::Mark before;
    };

    Session& session_;
    Engine& engine_;
    const GenerateParams& params_;
    Sampler& sampler_;
    StopFilter filter_;
    Speculator speculator_;
    GenerateResult result_;
    StepInput input_{&session_, {}, LogitsWanted::kLast, nullptr};
    StepParams step_;
    std::array<int32_t, kMaxDraft + 1> batch_{};  // tokens of a step: the one shown last, then the draft
    std::array<Drawn, kMaxDraft + 1> queue_{};    // what followed each of them
    size_t next_ = 0, queued_ = 0;                // [next_, queued_) wait
    size_t queue_begin_ = 0;                      // position of queue_[0]
};

}  // namespace

GenerateResult generate(Session& session, const GenerateParams& p) {
    check(session, p);
    return Generation(session, p).run();
}

}  // namespace samara
