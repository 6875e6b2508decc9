#include <algorithm>
#include <chrono>

#include "samara/engine.hpp"

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

// Computes the last token's logits: after a truncate or a step without logits nothing is pending that would give them,
// so the last token is processed once more.
void prepare(Session& session, const StepParams& step) {
    const auto tokens = session.tokens();
    const int32_t last = tokens.back();
    session.truncate(tokens.size() - 1);
    session.append_pending(last);
    session.engine().step(step);
}

}  // namespace

GenerateResult generate(Session& session, const GenerateParams& p) {
    check(session, p);
    const auto start = std::chrono::steady_clock::now();
    GenerateResult result;
    StopFilter filter(p.stop_strings);
    const auto emit = [&](int32_t token, const std::string& text) { return !p.on_token || p.on_token(token, text); };

    Engine& engine = session.engine();
    int32_t token = 0;
    StepInput input{&session, {}, LogitsWanted::kLast, nullptr};
    StepParams step;
    step.inputs = {&input, 1};
    try {
        if (!session.has_logits() && !session.has_top()) prepare(session, step);
        for (;;) {
            if (session.cancelled()) {
                result.reason = StopReason::kCancelled;
                break;
            }
            if (p.max_tokens != 0 && result.tokens == p.max_tokens) {
                result.reason = StopReason::kLimit;
                break;
            }
            if (session.tokens().size() == engine.info().context_tokens) {
                result.reason = StopReason::kContextFull;
                break;
            }
            token = session.has_top() ? p.sampler->choose(session.top()) : p.sampler->choose(session.logits());
            ++result.tokens;
            const bool ends = std::find(p.end_tokens.begin(), p.end_tokens.end(), token) != p.end_tokens.end();
            bool go_on = true;
            if (!ends) {
                const std::string text = filter.push(p.detokenize ? p.detokenize(token) : std::string());
                go_on = emit(token, text);
            }
            // The token was shown: the session keeps it even when its step is cancelled.
            session.append_pending(token);
            // The next token needs only the best ones, unless none is chosen here: then the caller may ask for logits.
            const bool chooses = !ends && go_on && !filter.matched() && result.tokens != p.max_tokens &&
                                 session.tokens().size() < engine.info().context_tokens;
            input.top = chooses && engine.screens_head() ? p.sampler->top_needed() : 0;
            input.also = p.sampler->penalised();
            input.logits = input.top > 0 ? LogitsWanted::kTop : LogitsWanted::kLast;
            engine.step(step);
            if (ends) result.reason = StopReason::kEndToken;
            if (!ends && !go_on) result.reason = StopReason::kCallback;
            if (filter.matched()) {
                result.reason = StopReason::kStopString;
                result.stop_string = filter.match();
            }
            if (ends || !go_on || filter.matched()) break;
        }
    } catch (const Error& e) {
        if (e.code() != ErrorCode::kCancelled) throw;
        result.reason = StopReason::kCancelled;
    }
    std::string rest;
    if (!filter.matched()) {
        rest = filter.push(p.detokenize ? p.detokenize(-1) : std::string());
        if (filter.matched()) result = {StopReason::kStopString, result.tokens, filter.match()};
    }
    emit(-1, rest + filter.finish());
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result;
}

}  // namespace samara
