#include "samara/engine.hpp"

#include <algorithm>
#include <mutex>

#include "src/formats/checkpoint.hpp"
#include "src/formats/packed.hpp"
#include "src/kernels/kernels.hpp"
#include "src/kernels/screen.hpp"
#include "src/memory/kv_cache.hpp"
#include "src/model/config.hpp"
#include "src/model/forward.hpp"
#include "src/model/weights.hpp"
#include "src/platform/cpu.hpp"
#include "src/platform/thread_pool.hpp"

namespace samara {
namespace {

constexpr uint64_t kDefaultContext = 4096;

void check_range(const char* what, int value, int low, int high) {
    if (value < low || value > high) {
        throw Error(ErrorCode::kInvalidArgument, std::string(what) + ": expected " + std::to_string(low) + " to " +
                                                     std::to_string(high) + ", found " + std::to_string(value));
    }
}

// The options with defaults filled in and ranges checked, for a model of this config.
LoadOptions resolve(LoadOptions o, const model::ModelConfig& config) {
    if (o.threads == 0) o.threads = platform::available_cpus();
    check_range("threads", o.threads, 1, 256);
    check_range("max_sessions", o.max_sessions, 1, 4096);
    check_range("max_step_tokens", o.max_step_tokens, 1, 65536);
    check_range("rewind_span", o.rewind_span, 0, 1 << 24);
    const auto trained = static_cast<uint64_t>(config.context);
    if (o.context_tokens == 0) o.context_tokens = std::min(kDefaultContext, trained);
    if (o.context_tokens > trained) {
        throw Error(ErrorCode::kInvalidArgument, "context: expected at most the model's " + std::to_string(trained) +
                                                     " positions, found " + std::to_string(o.context_tokens));
    }
    o.max_step_tokens =
        static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(o.max_step_tokens), o.context_tokens));
    return o;
}

kernels::KvType kv_type(const LoadOptions& o) {
    if (o.kv.empty() || o.kv == "int16") return kernels::KvType::kInt16;
    if (o.kv == "int8") return kernels::KvType::kInt8;
    throw Error(ErrorCode::kInvalidArgument, "kv: expected int16 or int8, found \"" + o.kv + "\"");
}

memory::KvShape kv_shape(const model::ModelConfig& c, const LoadOptions& o) {
    return {c.kv_heads,
            c.head_dim,
            c.sliding,
            c.window,
            o.rewind_span,
            o.max_step_tokens,
            static_cast<int64_t>(o.context_tokens),
            kv_type(o)};
}

// What a process that runs an engine holds besides: pages of the program's own code, the threads' stacks, page tables
// and small vectors. 3 to 5 MB measured.
constexpr uint64_t kProcessBytes = uint64_t{8} << 20;

// What the parsed metadata takes: a tokenizer's strings, mostly.
uint64_t metadata_bytes(const formats::Metadata& metadata) {
    const auto string_bytes = [](const std::string& s) {
        return sizeof(std::string) + (s.capacity() < 16 ? 0 : s.size() + 32);
    };
    uint64_t bytes = 0;
    for (const auto& [key, value] : metadata.entries()) {
        bytes += 128 + string_bytes(key);
        const auto* array = std::get_if<std::shared_ptr<const formats::MetaArray>>(&value);
        if (array == nullptr) continue;
        std::visit(
            [&](const auto& items) {
                using Item = typename std::decay_t<decltype(items)>::value_type;
                bytes += items.size() * sizeof(Item);
                if constexpr (std::is_same_v<Item, std::string>) {
                    for (const std::string& s : items) bytes += string_bytes(s) - sizeof(std::string);
                }
            },
            (*array)->items);
    }
    return bytes;
}

formats::Source source_of(const LoadOptions& o) { return {o.path, o.descriptor, o.offset, o.length}; }

model::HeadMode head_mode(const LoadOptions& o) {
    if (o.head.empty() || o.head == "full") return model::HeadMode::kFull;
    if (o.head == "screened") return model::HeadMode::kScreened;
    if (o.head == "checked") return model::HeadMode::kChecked;
    if (o.head == "flash") return model::HeadMode::kFlash;
    if (o.head == "flash-checked") return model::HeadMode::kFlashChecked;
    throw Error(ErrorCode::kInvalidArgument,
                "head: expected full, screened, checked, flash or flash-checked, found \"" + o.head + "\"");
}

bool is_flash(const LoadOptions& o) {
    const model::HeadMode mode = head_mode(o);
    return mode == model::HeadMode::kFlash || mode == model::HeadMode::kFlashChecked;
}

// A head is split only for sets that have a screen: the others read it whole, which is faster as it is.
bool splits_head(const LoadOptions& o) {
    return head_mode(o) != model::HeadMode::kFull && !is_flash(o) &&
           kernels::screen_kernels(kernels::isa_name(kernels::parse_isa(o.isa))) != nullptr;
}

MemoryPlan plan_for(const formats::Checkpoint& checkpoint, const model::ModelConfig& config, const LoadOptions& o) {
    const model::WeightsPlan weights =
        formats::naming_file(checkpoint, [&] { return model::Weights::plan(checkpoint, config, splits_head(o)); });
    const memory::KvShape kv = kv_shape(config, o);
    MemoryPlan plan;
    plan.weights_mapped = weights.mapped;
    plan.weights_owned = weights.owned;
    plan.kv_cache = kv.pool_bytes(o.max_sessions);
    plan.scratch = model::Forward::scratch_bytes(config, o.max_step_tokens, o.threads, head_mode(o)) +
                   static_cast<uint64_t>(o.max_sessions) *
                       (static_cast<uint64_t>(config.vocab) * sizeof(float) + o.context_tokens * sizeof(int32_t)) +
                   metadata_bytes(checkpoint.metadata()) + kProcessBytes;
    return plan;
}

void check_budget(const MemoryPlan& plan, const LoadOptions& o) {
    if (o.memory_budget == 0 || plan.total() <= o.memory_budget) return;
    const auto mib = [](uint64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; };
    throw Error(ErrorCode::kMemory, o.path + ": needs " + std::to_string(plan.total()) + " bytes (" +
                                        mib(plan.weights_mapped) + " file pages, " + mib(plan.weights_owned) +
                                        " weights, " + mib(plan.kv_cache) + " KV cache, " + mib(plan.scratch) +
                                        " scratch: " + mib(plan.total()) + "), but the memory budget is " +
                                        std::to_string(o.memory_budget) + " bytes");
}

// Every CPU reads a dense file right, but most at a speed that nobody wants. A caller who names an instruction set gets
// what he asks for.
void refuse_slow_layouts(const formats::Checkpoint& checkpoint, const LoadOptions& o) {
    if (o.isa != "auto" || kernels::fastest_ternary_layout() == kernels::Layout::kTernaryDense) return;
    std::string dense;
    for (const formats::PackedLayout& l : formats::packed_layouts(checkpoint)) {
        if (l.layout == kernels::Layout::kTernaryDense) dense += (dense.empty() ? "" : ", ") + l.kind;
    }
    if (dense.empty()) return;
    throw Error(ErrorCode::kUnsupported,
                checkpoint.file() + ": " + dense + ": packed in the dense layout, which needs AVX-512 VBMI; " +
                    cpu_model_name() +
                    " lacks it and would run about 15 times slower than with two bits a weight. Pack the file again "
                    "(samara pack --layout 2bit), or name an instruction set (--isa) to run it all the same");
}

}  // namespace

struct Engine::State {
    LoadOptions options;
    model::ModelConfig config;
    std::unique_ptr<platform::ThreadPool> pool;
    std::unique_ptr<formats::Checkpoint> headers;  // of an engine without weights
    model::Weights weights;
    std::unique_ptr<memory::KvPool> kv;
    std::unique_ptr<model::Forward> forward;
    ModelInfo info;
    std::mutex mutex;  // one step at a time; also guards the page pool and the session count
    int sessions = 0;

    // Of the running step; capacity kept between steps, so that a decode step allocates nothing.
    std::vector<model::SequenceInput> pass_inputs;
    std::vector<int> pass_index;  // (pass inputs): index into the step's inputs
};

struct Session::State {
    Engine* engine = nullptr;
    memory::KvSequence kv;
    std::vector<int32_t> tokens;  // all of the sequence; kv.length() of them are processed
    std::vector<float> logits;    // (vocab)
    bool has_logits = false;
    model::TopLogits top;
    bool has_top = false;
    std::atomic<bool> cancelled{false};

    State(Engine* e, memory::KvPool& pool) : engine(e), kv(pool) {}
    uint64_t pending() const { return tokens.size() - static_cast<uint64_t>(kv.length()); }
};

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

MemoryPlan Engine::plan(const LoadOptions& options) {
    const auto checkpoint = formats::Checkpoint::open(source_of(options));
    const model::ModelConfig config = model::read_config(*checkpoint);
    return plan_for(*checkpoint, config, resolve(options, config));
}

// What a config alone tells.
void Engine::describe(State& s, kernels::Isa isa) {
    const model::ModelConfig& c = s.config;
    ModelInfo& i = s.info;
    i.architecture = c.architecture;
    i.name = c.name;
    i.isa = kernels::isa_name(isa);
    i.threads = s.options.threads;
    i.layers = c.layers;
    i.hidden = c.hidden;
    i.vocab = c.vocab;
    i.experts = c.experts;
    i.experts_used = c.experts_used;
    i.sliding_window = c.window;
    i.context_tokens = s.options.context_tokens;
    i.trained_context = static_cast<uint64_t>(c.context);
    i.parameters = c.parameters();
    i.parameters_per_token = c.parameters_per_token();
}

void Engine::load_weights(State& s, std::unique_ptr<formats::Checkpoint> checkpoint,
                          const kernels::KernelTable& table) {
    const LoadOptions& o = s.options;
    MemoryPlan plan = plan_for(*checkpoint, s.config, o);
    check_budget(plan, o);
    s.pool = std::make_unique<platform::ThreadPool>(o.threads);
    // At least 1: 0 would mean no budget.
    const uint64_t rest = plan.kv_cache + plan.scratch + plan.weights_mapped;
    const uint64_t budget = o.memory_budget == 0 ? 0 : std::max<uint64_t>(1, o.memory_budget - rest);
    s.weights = model::Weights::load(std::move(checkpoint), s.config, *s.pool, budget, o.progress, splits_head(o));
    if (is_flash(o)) s.weights.load_flash(s.config);
    s.kv = std::make_unique<memory::KvPool>(kv_shape(s.config, o), o.max_sessions);
    s.forward = std::make_unique<model::Forward>(s.config, s.weights, table, *s.pool, o.max_step_tokens, head_mode(o));

    const model::BytesPerToken bytes = s.weights.bytes_per_token(s.config);
    plan.weights_owned = s.weights.owned_bytes();
    s.info.memory = plan;
    s.info.bytes_attention = bytes.attention;
    s.info.bytes_experts = bytes.experts;
    s.info.bytes_router = bytes.router;
    s.info.bytes_head = bytes.head;
}

std::unique_ptr<Engine> Engine::load(const LoadOptions& options) {
    const kernels::Isa isa = kernels::parse_isa(options.isa);
    kernels::kernel_table(isa);  // refuses a set this CPU lacks before anything is read
    auto checkpoint = formats::Checkpoint::open(source_of(options));
    auto s = std::make_unique<State>();
    s->config = model::read_config(*checkpoint);
    s->options = resolve(options, s->config);
    const bool packed = formats::is_packed(*checkpoint);
    s->info.format = packed ? "packed" : checkpoint->format();
    s->info.file_bytes = checkpoint->file_bytes();
    s->info.bytes_embedding =
        checkpoint->find("token_embd.weight") == nullptr
            ? 0
            : checkpoint->get("token_embd.weight").data.size() / static_cast<uint64_t>(s->config.vocab);
    describe(*s, isa);
    if (packed && !options.metadata_only) refuse_slow_layouts(*checkpoint, options);
    if (options.metadata_only) {
        s->headers = std::move(checkpoint);
    } else {
        load_weights(*s, std::move(checkpoint),
                     options.kernels != nullptr ? *options.kernels : kernels::kernel_table(isa));
    }
    return std::unique_ptr<Engine>(new Engine(std::move(s)));
}

const ModelInfo& Engine::info() const { return state_->info; }
const formats::Metadata& Engine::metadata() const {
    return (state_->headers ? *state_->headers : state_->weights.checkpoint()).metadata();
}
uint64_t Engine::kv_bytes(uint64_t position) const {
    if (state_->headers) return 0;
    return state_->kv->shape().bytes_read_at(static_cast<int64_t>(position));
}

uint64_t Engine::head_bytes() const {
    if (state_->forward && state_->forward->flash() != nullptr) return state_->forward->flash()->bytes_per_step();
    const model::ScreenCounts* counts = state_->forward ? state_->forward->screen_counts() : nullptr;
    if (counts == nullptr || counts->steps == counts->fallbacks) return state_->info.bytes_head;
    return counts->bytes / (counts->steps - counts->fallbacks);
}

StepSeconds Engine::step_seconds() const {
    if (!state_->forward) return {};
    const model::PartSeconds& s = state_->forward->seconds();
    return {s.attention, s.kv, s.router, s.experts, s.head};
}

bool Engine::reads_part_of_head() const {
    return state_->forward != nullptr && (state_->forward->screen_counts() != nullptr || approximates_head());
}

bool Engine::approximates_head() const { return state_->forward != nullptr && state_->forward->flash() != nullptr; }

FlashAgreement Engine::flash_agreement() const {
    if (!approximates_head()) return {};
    const model::FlashCounts& c = state_->forward->flash()->counts();
    return {c.steps, c.compared, c.best, c.top20};
}

int Engine::max_draft() const {
    const LoadOptions& o = state_->options;
    const bool slides =
        std::find(state_->config.sliding.begin(), state_->config.sliding.end(), true) != state_->config.sliding.end();
    return slides ? std::min(o.max_step_tokens - 1, o.rewind_span) : o.max_step_tokens - 1;
}

std::unique_ptr<Session> Engine::create_session() {
    State& s = *state_;
    if (s.headers) throw Error(ErrorCode::kInvalidArgument, "the engine was loaded without weights (metadata_only)");
    const std::lock_guard lock(s.mutex);
    if (s.sessions >= s.options.max_sessions) {
        throw Error(ErrorCode::kMemory,
                    "all " + std::to_string(s.options.max_sessions) + " sessions (max_sessions) are in use");
    }
    auto session = std::make_unique<Session::State>(this, *s.kv);
    session->tokens.reserve(s.options.context_tokens);
    session->logits.resize(static_cast<size_t>(s.config.vocab));
    session->top.reserve(kMaxTopTokens, kMaxTopTokens);
    ++s.sessions;
    return std::unique_ptr<Session>(new Session(std::move(session)));
}

namespace {

void check_step(const Engine& engine, const StepParams& params) {
    const ModelInfo& info = engine.info();
    check_range("chunk", params.chunk, 0, 65536);
    for (size_t i = 0; i < params.inputs.size(); ++i) {
        const StepInput& in = params.inputs[i];
        if (in.session == nullptr) throw Error(ErrorCode::kInvalidArgument, "step: input without a session");
        if (in.logits == LogitsWanted::kTop) {
            check_range("step: top", in.top, 1, std::min(kMaxTopTokens, info.vocab));
            check_range("step: also", static_cast<int>(in.also.size()), 0, kMaxTopTokens);
            for (const int32_t id : in.also) check_range("step: also", id, 0, info.vocab - 1);
        }
        if (&in.session->engine() != &engine) {
            throw Error(ErrorCode::kInvalidArgument, "step: the session belongs to another engine");
        }
        for (size_t j = 0; j < i; ++j) {
            if (params.inputs[j].session == in.session) {
                throw Error(ErrorCode::kInvalidArgument, "step: a session appears twice");
            }
        }
        for (size_t t = 0; t < in.tokens.size(); ++t) {
            if (in.tokens[t] < 0 || in.tokens[t] >= info.vocab) {
                throw Error(ErrorCode::kInvalidArgument, "step: token " + std::to_string(t) +
                                                             ": expected an id in [0, " + std::to_string(info.vocab) +
                                                             "), found " + std::to_string(in.tokens[t]));
            }
        }
        const uint64_t length = in.session->tokens().size();
        if (length + in.tokens.size() > info.context_tokens) {
            throw Error(ErrorCode::kContextFull, "context full: the session holds " + std::to_string(length) +
                                                     " tokens, " + std::to_string(in.tokens.size()) +
                                                     " more do not fit into " + std::to_string(info.context_tokens));
        }
    }
}

}  // namespace

// Tokens wait in the session's own list (pending) until a pass has computed them, so a failed or cancelled step leaves
// every session valid: what was not computed is taken off the list again.
void Engine::step(const StepParams& params) {
    State& s = *state_;
    const std::lock_guard lock(s.mutex);
    check_step(*this, params);
    const int chunk = params.chunk == 0 ? s.options.max_step_tokens : std::min(params.chunk, s.options.max_step_tokens);

    uint64_t total = 0;
    for (const StepInput& in : params.inputs) {
        Session::State& session = *in.session->state_;
        session.tokens.insert(session.tokens.end(), in.tokens.begin(), in.tokens.end());
        session.has_logits = session.has_logits && session.pending() == 0;
        session.has_top = session.has_top && session.pending() == 0;
        total += session.pending();
    }

    struct Pass {  // what the sink needs, behind one pointer: a small callable is stored without allocating
        const StepParams& params;
        State& s;
    } pass{params, s};
    // A token's index in its input; negative for tokens that were pending before the step.
    const model::LogitsSink sink = [p = &pass](int input, int token, std::span<const float> logits) {
        const int index = p->s.pass_index[static_cast<size_t>(input)];
        const StepInput& in = p->params.inputs[static_cast<size_t>(index)];
        Session::State& session = *in.session->state_;
        const int64_t position = session.kv.length() + token;
        if (position + 1 == static_cast<int64_t>(session.tokens.size())) {
            std::copy(logits.begin(), logits.end(), session.logits.begin());
            session.has_logits = true;
        }
        const int64_t own =
            position - (static_cast<int64_t>(session.tokens.size()) - static_cast<int64_t>(in.tokens.size()));
        if (in.logits == LogitsWanted::kAll && own >= 0 && p->params.on_logits) {
            p->params.on_logits(index, static_cast<int>(own), logits);
        }
    };

    const auto abandon = [&] {
        for (const StepInput& in : params.inputs) {
            Session::State& session = *in.session->state_;
            const size_t before = session.tokens.size() - in.tokens.size();
            session.tokens.resize(std::max(before, static_cast<size_t>(session.kv.length())));
            session.has_logits =
                session.has_logits && session.pending() == 0 && session.tokens.size() == before + in.tokens.size();
            session.has_top = session.has_top && session.has_logits;
        }
    };

    try {
        for (uint64_t done = 0; done < total;) {
            s.pass_inputs.clear();
            s.pass_index.clear();
            int room = chunk;
            for (size_t i = 0; i < params.inputs.size() && room > 0; ++i) {
                const StepInput& in = params.inputs[i];
                Session::State& session = *in.session->state_;
                if (session.cancelled.load()) throw Error(ErrorCode::kCancelled, "the session was cancelled");
                if (session.pending() == 0) continue;
                const int count = static_cast<int>(std::min<uint64_t>(session.pending(), static_cast<uint64_t>(room)));
                const auto first = static_cast<size_t>(session.kv.length());
                const int64_t new_from = static_cast<int64_t>(session.tokens.size() - in.tokens.size());
                const bool last = first + static_cast<size_t>(count) == session.tokens.size();
                model::SequenceInput input;
                input.kv = &session.kv;
                input.tokens = std::span(session.tokens).subspan(first, static_cast<size_t>(count));
                input.cancelled = &session.cancelled;
                input.logits_from = count;
                if (in.logits == LogitsWanted::kAll) {
                    input.logits_from =
                        static_cast<int>(std::clamp<int64_t>(new_from - static_cast<int64_t>(first), 0, count));
                }
                if (in.logits != LogitsWanted::kNone && last)
                    input.logits_from = std::min(input.logits_from, count - 1);
                if (in.logits == LogitsWanted::kTop && last) {
                    session.top.k = in.top;
                    session.top.also = in.also;
                    input.top = &session.top;
                }
                if (in.experts != nullptr && static_cast<int64_t>(first) >= new_from) {
                    input.experts =
                        in.experts + (static_cast<int64_t>(first) - new_from) * s.config.layers * s.config.experts_used;
                }
                session.kv.reserve(count);
                s.pass_inputs.push_back(input);
                s.pass_index.push_back(static_cast<int>(i));
                room -= count;
            }
            s.forward->run(s.pass_inputs, sink);
            for (model::SequenceInput& input : s.pass_inputs) {
                input.kv->commit(static_cast<int>(input.tokens.size()));
                done += input.tokens.size();
            }
            for (size_t i = 0; i < s.pass_inputs.size(); ++i) {
                const StepInput& in = params.inputs[static_cast<size_t>(s.pass_index[i])];
                if (s.pass_inputs[i].top != nullptr) in.session->state_->has_top = true;
            }
            if (params.on_progress && !params.on_progress(done, total)) {
                throw Error(ErrorCode::kCancelled, "the step was cancelled");
            }
        }
    } catch (...) {
        abandon();
        throw;
    }
}

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}

Session::~Session() {
    Engine::State& engine = *state_->engine->state_;
    const std::lock_guard lock(engine.mutex);
    state_->kv.clear();
    --engine.sessions;
}

std::unique_ptr<Session> Session::fork() const {
    auto copy = state_->engine->create_session();
    const std::lock_guard lock(state_->engine->state_->mutex);
    copy->state_->kv.share(state_->kv);
    copy->state_->tokens.assign(state_->tokens.begin(), state_->tokens.end());
    copy->state_->logits = state_->logits;
    copy->state_->has_logits = state_->has_logits;
    copy->state_->top.ids.assign(state_->top.ids.begin(), state_->top.ids.end());
    copy->state_->top.logits.assign(state_->top.logits.begin(), state_->top.logits.end());
    copy->state_->has_top = state_->has_top;
    return copy;
}

std::span<const int32_t> Session::tokens() const { return state_->tokens; }

uint64_t Session::truncate(uint64_t length) {
    const std::lock_guard lock(state_->engine->state_->mutex);
    if (length > state_->tokens.size()) {
        throw Error(ErrorCode::kInvalidArgument, "truncate: the session holds " +
                                                     std::to_string(state_->tokens.size()) + " tokens, found " +
                                                     std::to_string(length));
    }
    if (length == state_->tokens.size()) return state_->pending();
    if (length < static_cast<uint64_t>(state_->kv.length())) state_->kv.truncate(static_cast<int64_t>(length));
    state_->tokens.resize(length);
    state_->has_logits = false;
    state_->has_top = false;
    return state_->pending();
}

std::span<const float> Session::logits() const {
    if (!state_->has_logits) {
        throw Error(ErrorCode::kInvalidArgument, "the session has no logits: its last step asked for none");
    }
    return state_->logits;
}

bool Session::has_logits() const { return state_->has_logits; }

TopTokens Session::top() const {
    if (!state_->has_top) {
        throw Error(ErrorCode::kInvalidArgument, "the session has no best tokens: its last step did not ask for them");
    }
    return {state_->top.ids, state_->top.logits};
}

bool Session::has_top() const { return state_->has_top; }

void Session::append_pending(int32_t token) {
    const ModelInfo& info = state_->engine->info();
    check_range("append_pending: token", token, 0, info.vocab - 1);
    if (state_->tokens.size() >= info.context_tokens) {
        throw Error(ErrorCode::kContextFull,
                    "context full: all " + std::to_string(info.context_tokens) + " positions are taken");
    }
    state_->tokens.push_back(token);
    state_->has_logits = false;
    state_->has_top = false;
}

void Session::cancel() { state_->cancelled.store(true); }
void Session::resume() { state_->cancelled.store(false); }
bool Session::cancelled() const { return state_->cancelled.load(); }
Engine& Session::engine() const { return *state_->engine; }

}  // namespace samara
