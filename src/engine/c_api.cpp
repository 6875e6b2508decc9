// The C interface over the C++ one: argument checks, and no exception passes.

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "samara/engine.hpp"
#include "samara/samara.h"
#include "src/formats/checkpoint.hpp"
#include "src/kernels/kernels.hpp"
#include "src/platform/cpu.hpp"

struct samara_engine {
    std::unique_ptr<samara::Engine> engine;
};
struct samara_session {
    samara_engine* owner;
    std::unique_ptr<samara::Session> session;
};
struct samara_sampler {
    samara::Sampler sampler;
};

namespace {

using samara::Error;
using samara::ErrorCode;
namespace formats = samara::formats;

thread_local std::string last_error;

samara_status fail(ErrorCode code, const char* message) {
    try {
        last_error = message;
    } catch (const std::bad_alloc&) {
        last_error.clear();
    }
    return static_cast<samara_status>(code);
}

template <class Body>
samara_status guarded(Body&& body) {
    try {
        body();
        last_error.clear();
        return SAMARA_OK;
    } catch (const Error& e) {
        return fail(e.code(), e.what());
    } catch (const std::bad_alloc&) {
        return fail(ErrorCode::kMemory, "the system has no more memory");
    } catch (const std::exception& e) {
        return fail(ErrorCode::kInternal, e.what());
    } catch (...) {
        return fail(ErrorCode::kInternal, "an unknown exception");
    }
}

void require(bool ok, const char* message) {
    if (!ok) throw Error(ErrorCode::kInvalidArgument, message);
}

[[noreturn]] void refuse(const char* name, const char* problem) {
    throw Error(ErrorCode::kInvalidArgument, std::string(name) + problem);
}

constexpr size_t kMaxStructSize = 4096;

// The caller's struct, or as much of it as its version has, over defaults of zero.
template <class T>
T versioned(const T* given, const char* name) {
    T full{};
    if (given == nullptr) refuse(name, ": expected a struct, found NULL");
    if (given->struct_size < sizeof(size_t) || given->struct_size > kMaxStructSize) {
        refuse(name, ".struct_size: expected sizeof the struct");
    }
    std::memcpy(&full, given, std::min(given->struct_size, sizeof(T)));
    return full;
}

template <class T>
void check_place(const T* out) {
    require(out != nullptr, "expected a place for the result, found NULL");
    require(out->struct_size >= sizeof(size_t) && out->struct_size <= kMaxStructSize,
            "struct_size: expected sizeof the struct");
}

template <class T>
void give(T* out, T value) {
    check_place(out);
    value.struct_size = out->struct_size;
    std::memcpy(out, &value, std::min(out->struct_size, sizeof(T)));
}

// Element i of an array whose elements have the size that the caller's version of the struct has.
template <class T>
const T* element(const T* array, uint32_t i) {
    return reinterpret_cast<const T*>(reinterpret_cast<const std::byte*>(array) + i * array->struct_size);
}

int narrow(uint64_t value, int fallback, const char* name) {
    if (value == 0) return fallback;
    if (value > static_cast<uint64_t>(std::numeric_limits<int>::max())) refuse(name, ": too large");
    return static_cast<int>(value);
}

samara::LoadOptions load_options(const samara_load_params* given) {
    const samara_load_params p = versioned(given, "samara_load_params");
    require(p.path != nullptr || p.use_descriptor != 0, "samara_load_params.path: expected a path or a descriptor");
    samara::LoadOptions o;
    o.path = p.path != nullptr ? p.path : "descriptor " + std::to_string(p.descriptor);
    if (p.use_descriptor != 0) {
        require(p.descriptor >= 0, "samara_load_params.descriptor: expected an open descriptor");
        o.descriptor = p.descriptor;
    }
    o.offset = p.offset;
    o.length = p.length;
    o.isa = p.isa != nullptr ? p.isa : "auto";
    o.threads = narrow(p.threads, 0, "threads");
    o.memory_budget = p.memory_budget;
    o.context_tokens = p.context_tokens;
    o.max_sessions = narrow(p.max_sessions, o.max_sessions, "max_sessions");
    o.max_step_tokens = narrow(p.max_step_tokens, o.max_step_tokens, "max_step_tokens");
    o.rewind_span = narrow(p.rewind_span, o.rewind_span, "rewind_span");
    o.metadata_only = p.metadata_only != 0;
    if (p.head != nullptr) o.head = p.head;
    if (p.kv != nullptr) o.kv = p.kv;
    if (p.progress != nullptr) {
        o.progress = [fn = p.progress, user = p.user](uint64_t done, uint64_t total) {
            return fn(done, total, user) != 0;
        };
    }
    return o;
}

samara_memory_plan to_c(const samara::MemoryPlan& p) {
    return {sizeof(samara_memory_plan), p.weights_mapped, p.weights_owned, p.kv_cache, p.scratch, p.total()};
}

const formats::MetaArray& meta_array(const samara_engine* engine, const char* key) {
    require(engine != nullptr && key != nullptr, "expected an engine and a key");
    const formats::Metadata& m = engine->engine->metadata();
    const formats::MetaValue* v = m.find(key);
    const auto* array = v == nullptr ? nullptr : std::get_if<std::shared_ptr<const formats::MetaArray>>(v);
    if (array == nullptr) throw Error(ErrorCode::kFormat, m.file() + ": " + key + ": expected an array");
    return **array;
}

}  // namespace

extern "C" {

const char* samara_last_error(void) { return last_error.c_str(); }
const char* samara_version(void) { return "0.1.0"; }
uint32_t samara_numerics_version(void) { return samara::kernels::kNumericsVersion; }

const char* samara_cpu_name(void) {
    static const std::string name = samara::cpu_model_name();
    return name.c_str();
}

const char* samara_supported_isas(void) {
    static const std::string names = [] {
        std::string s;
        for (const auto isa : samara::kernels::supported_isas()) {
            if (!s.empty()) s += ' ';
            s += samara::kernels::isa_name(isa);
        }
        return s;
    }();
    return names.c_str();
}

samara_status samara_plan(const samara_load_params* params, samara_memory_plan* plan) {
    return guarded([&] { give(plan, to_c(samara::Engine::plan(load_options(params)))); });
}

samara_status samara_load(const samara_load_params* params, samara_engine** engine) {
    return guarded([&] {
        require(engine != nullptr, "samara_load: expected a place for the engine, found NULL");
        *engine = nullptr;
        *engine = new samara_engine{samara::Engine::load(load_options(params))};
    });
}

void samara_free(samara_engine* engine) { delete engine; }

samara_status samara_get_model_info(const samara_engine* engine, samara_model_info* info) {
    return guarded([&] {
        require(engine != nullptr, "expected an engine, found NULL");
        const samara::ModelInfo& i = engine->engine->info();
        const auto u32 = [](int v) { return static_cast<uint32_t>(v); };
        samara_model_info out{};
        out.architecture = i.architecture.c_str();
        out.name = i.name.c_str();
        out.format = i.format.c_str();
        out.isa = i.isa.c_str();
        out.threads = u32(i.threads);
        out.layers = u32(i.layers);
        out.hidden = u32(i.hidden);
        out.vocab = u32(i.vocab);
        out.experts = u32(i.experts);
        out.experts_used = u32(i.experts_used);
        out.sliding_window = u32(i.sliding_window);
        out.context_tokens = i.context_tokens;
        out.trained_context = i.trained_context;
        out.parameters = i.parameters;
        out.parameters_per_token = i.parameters_per_token;
        out.file_bytes = i.file_bytes;
        out.memory = to_c(i.memory);
        out.bytes_attention = i.bytes_attention;
        out.bytes_experts = i.bytes_experts;
        out.bytes_router = i.bytes_router;
        out.bytes_head = i.bytes_head;
        out.bytes_embedding = i.bytes_embedding;
        give(info, out);
    });
}

uint64_t samara_kv_bytes(const samara_engine* engine, uint64_t position) {
    return engine == nullptr ? 0 : engine->engine->kv_bytes(position);
}

uint64_t samara_head_bytes(const samara_engine* engine) { return engine == nullptr ? 0 : engine->engine->head_bytes(); }

samara_status samara_get_flash_agreement(const samara_engine* engine, samara_flash_agreement* agreement) {
    return guarded([&] {
        require(engine != nullptr && agreement != nullptr, "samara_get_flash_agreement: NULL argument");
        const samara::FlashAgreement a = engine->engine->flash_agreement();
        give(agreement, samara_flash_agreement{sizeof(samara_flash_agreement), a.steps, a.compared, a.best, a.top20});
    });
}

samara_status samara_get_step_seconds(const samara_engine* engine, samara_step_seconds* seconds) {
    return guarded([&] {
        require(engine != nullptr && seconds != nullptr, "samara_get_step_seconds: NULL argument");
        const samara::StepSeconds s = engine->engine->step_seconds();
        give(seconds, samara_step_seconds{sizeof(samara_step_seconds), s.attention, s.kv, s.router, s.experts, s.head});
    });
}

samara_status samara_meta_string(const samara_engine* engine, const char* key, const char** value, size_t* length) {
    return guarded([&] {
        require(engine != nullptr && key != nullptr && value != nullptr && length != nullptr,
                "samara_meta_string: NULL argument");
        const std::string& s = engine->engine->metadata().get_string(key);
        *value = s.c_str();
        *length = s.size();
    });
}

samara_status samara_meta_int(const samara_engine* engine, const char* key, int64_t* value) {
    return guarded([&] {
        require(engine != nullptr && key != nullptr && value != nullptr, "samara_meta_int: NULL argument");
        const formats::Metadata& m = engine->engine->metadata();
        const formats::MetaValue* v = m.find(key);
        if (v != nullptr && std::holds_alternative<bool>(*v)) {
            *value = std::get<bool>(*v) ? 1 : 0;
        } else {
            *value = static_cast<int64_t>(m.get_uint(key, 0, INT64_MAX));
        }
    });
}

samara_status samara_meta_strings(const samara_engine* engine, const char* key, size_t* count) {
    return guarded([&] {
        require(count != nullptr, "samara_meta_strings: NULL argument");
        *count = std::visit([](const auto& items) { return items.size(); }, meta_array(engine, key).items);
    });
}

samara_status samara_meta_string_at(const samara_engine* engine, const char* key, size_t index, const char** value,
                                    size_t* length) {
    return guarded([&] {
        require(value != nullptr && length != nullptr, "samara_meta_string_at: NULL argument");
        const auto* strings = std::get_if<std::vector<std::string>>(&meta_array(engine, key).items);
        if (strings == nullptr) throw Error(ErrorCode::kFormat, std::string(key) + ": expected an array of strings");
        require(index < strings->size(), "samara_meta_string_at: index out of range");
        *value = (*strings)[index].c_str();
        *length = (*strings)[index].size();
    });
}

samara_status samara_meta_int_at(const samara_engine* engine, const char* key, size_t index, int64_t* value) {
    return guarded([&] {
        require(value != nullptr, "samara_meta_int_at: NULL argument");
        std::visit(
            [&](const auto& items) {
                using Item = typename std::decay_t<decltype(items)>::value_type;
                if constexpr (std::is_integral_v<Item>) {
                    require(index < items.size(), "samara_meta_int_at: index out of range");
                    *value = static_cast<int64_t>(items[index]);
                } else {
                    throw Error(ErrorCode::kFormat, std::string(key) + ": expected an array of integers");
                }
            },
            meta_array(engine, key).items);
    });
}

samara_status samara_session_create(samara_engine* engine, samara_session** session) {
    return guarded([&] {
        require(engine != nullptr && session != nullptr, "samara_session_create: NULL argument");
        *session = nullptr;
        *session = new samara_session{engine, engine->engine->create_session()};
    });
}

samara_status samara_session_fork(const samara_session* session, samara_session** fork) {
    return guarded([&] {
        require(session != nullptr && fork != nullptr, "samara_session_fork: NULL argument");
        *fork = nullptr;
        *fork = new samara_session{session->owner, session->session->fork()};
    });
}

void samara_session_free(samara_session* session) { delete session; }
uint64_t samara_session_length(const samara_session* session) {
    return session == nullptr ? 0 : session->session->tokens().size();
}
const int32_t* samara_session_tokens(const samara_session* session) {
    return session == nullptr ? nullptr : session->session->tokens().data();
}

samara_status samara_session_truncate(samara_session* session, uint64_t length, uint64_t* reprocess) {
    return guarded([&] {
        require(session != nullptr, "samara_session_truncate: NULL argument");
        const uint64_t again = session->session->truncate(length);
        if (reprocess != nullptr) *reprocess = again;
    });
}

void samara_session_cancel(samara_session* session) {
    if (session != nullptr) session->session->cancel();
}
void samara_session_resume(samara_session* session) {
    if (session != nullptr) session->session->resume();
}

samara_status samara_step(samara_engine* engine, const samara_step_params* params) {
    return guarded([&] {
        require(engine != nullptr, "samara_step: NULL argument");
        const samara_step_params p = versioned(params, "samara_step_params");
        require(p.inputs != nullptr || p.input_count == 0, "samara_step_params.inputs: expected an array, found NULL");
        // Kept between calls: a decode step must not allocate.
        thread_local std::vector<samara::StepInput> inputs;
        inputs.clear();
        for (uint32_t i = 0; i < p.input_count; ++i) {
            const samara_step_input in = versioned(element(p.inputs, i), "samara_step_input");
            require(in.struct_size == p.inputs->struct_size,
                    "samara_step_input.struct_size: expected one size in all inputs");
            require(in.session != nullptr, "samara_step_input.session: expected a session, found NULL");
            require(in.tokens != nullptr || in.count == 0, "samara_step_input.tokens: expected an array, found NULL");
            require(in.logits >= SAMARA_LOGITS_LAST && in.logits <= SAMARA_LOGITS_ALL,
                    "samara_step_input.logits: unknown value");
            inputs.push_back({in.session->session.get(), std::span(in.tokens, in.count),
                              static_cast<samara::LogitsWanted>(in.logits), in.experts});
        }
        samara::StepParams step;
        step.inputs = inputs;
        step.chunk = narrow(p.chunk, 0, "chunk");
        if (p.on_logits != nullptr) {
            step.on_logits = [&p](int input, int token, std::span<const float> logits) {
                p.on_logits(static_cast<uint32_t>(input), static_cast<uint32_t>(token), logits.data(), p.user);
            };
        }
        if (p.on_progress != nullptr) {
            step.on_progress = [&p](uint64_t done, uint64_t total) { return p.on_progress(done, total, p.user) != 0; };
        }
        engine->engine->step(step);
    });
}

samara_status samara_session_logits(const samara_session* session, const float** logits) {
    return guarded([&] {
        require(session != nullptr && logits != nullptr, "samara_session_logits: NULL argument");
        *logits = session->session->logits().data();
    });
}

samara_status samara_sampler_create(const samara_sampling* sampling, samara_sampler** sampler) {
    return guarded([&] {
        require(sampler != nullptr, "samara_sampler_create: NULL argument");
        *sampler = nullptr;
        const samara_sampling p = versioned(sampling, "samara_sampling");
        samara::Sampling s;
        s.temperature = p.temperature;
        s.top_k = narrow(p.top_k, 0, "top_k");
        s.top_p = p.top_p == 0 ? 1 : p.top_p;
        s.min_p = p.min_p;
        s.repetition_penalty = p.repetition_penalty == 0 ? 1 : p.repetition_penalty;
        s.presence_penalty = p.presence_penalty;
        s.penalty_last = narrow(p.penalty_last, s.penalty_last, "penalty_last");
        s.seed = p.seed;
        *sampler = new samara_sampler{samara::Sampler(s)};
    });
}

void samara_sampler_free(samara_sampler* sampler) { delete sampler; }

void samara_sampler_accept(samara_sampler* sampler, int32_t token) {
    if (sampler != nullptr) sampler->sampler.accept(token);
}

samara_status samara_sampler_choose(samara_sampler* sampler, const float* logits, uint32_t vocab, int32_t* token) {
    return guarded([&] {
        require(sampler != nullptr && logits != nullptr && token != nullptr && vocab > 0,
                "samara_sampler_choose: NULL argument");
        *token = sampler->sampler.choose({logits, vocab});
    });
}

samara_status samara_generate(samara_session* session, const samara_generate_params* params,
                              samara_generate_result* result) {
    return guarded([&] {
        require(session != nullptr, "samara_generate: NULL argument");
        const samara_generate_params p = versioned(params, "samara_generate_params");
        require(p.sampler != nullptr, "samara_generate_params.sampler: expected a sampler, found NULL");
        if (result != nullptr) check_place(result);
        require(p.end_tokens != nullptr || p.end_token_count == 0, "samara_generate_params.end_tokens: NULL");
        require(p.stop_strings != nullptr || p.stop_string_count == 0, "samara_generate_params.stop_strings: NULL");
        require(p.speculation >= SAMARA_SPECULATION_AUTO && p.speculation <= SAMARA_SPECULATION_ALWAYS,
                "samara_generate_params.speculation: unknown value");
        samara::GenerateParams g;
        g.sampler = &p.sampler->sampler;
        g.max_tokens = p.max_tokens;
        g.speculation = static_cast<samara::Speculation>(p.speculation);
        g.max_draft = narrow(p.max_draft, 0, "max_draft");
        g.end_tokens.assign(p.end_tokens, p.end_tokens + p.end_token_count);
        for (uint32_t i = 0; i < p.stop_string_count; ++i) {
            require(p.stop_strings[i] != nullptr, "samara_generate_params.stop_strings: NULL string");
            g.stop_strings.emplace_back(p.stop_strings[i]);
        }
        if (p.detokenize != nullptr) {
            g.detokenize = [&p](int32_t token) {
                std::string text(1024, '\0');
                text.resize(std::min(text.size(), p.detokenize(token, text.data(), text.size(), p.user)));
                return text;
            };
        }
        if (p.on_token != nullptr) {
            g.on_token = [&p](int32_t token, std::string_view text) {
                return p.on_token(token, text.data(), text.size(), p.user) != 0;
            };
        }
        const samara::GenerateResult r = samara::generate(*session->session, g);
        if (result != nullptr) {
            samara_generate_result out{};
            out.reason = static_cast<samara_stop_reason>(r.reason);
            out.tokens = r.tokens;
            out.stop_string = r.stop_string;
            out.seconds = r.seconds;
            out.steps = r.steps;
            out.drafted = r.drafted;
            out.accepted = r.accepted;
            give(result, out);
        }
    });
}

}  // extern "C"
