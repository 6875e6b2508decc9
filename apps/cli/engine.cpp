#include "apps/cli/engine.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "apps/cli/console.hpp"
#include "apps/pull/models.hpp"
#include "src/platform/error.hpp"

namespace samara::cli {

void check(samara_status status) {
    if (status != SAMARA_OK) throw Error(static_cast<ErrorCode>(status), samara_last_error());
}

uint64_t parse_bytes(const std::string& text, const char* flag) {
    if (text.empty()) return 0;
    double number = 0;
    const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    std::string unit(rest, text.data() + text.size());
    if (!unit.empty() && (unit.back() == 'B' || unit.back() == 'b')) unit.pop_back();
    const bool binary = unit.size() == 2 && unit[1] == 'i';
    if (binary) unit.pop_back();
    const size_t power = unit.empty() ? 0 : std::string("KMGT").find(static_cast<char>(std::toupper(unit[0]))) + 1;
    const bool ok = failure == std::errc() && unit.size() <= 1 && (unit.empty() ? !binary : power >= 1 && power <= 4);
    const double bytes = ok ? number * std::pow(1024.0, static_cast<double>(power)) : -1;
    if (!(bytes >= 1 && bytes < 1e18)) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("{}: expected a size such as 3GiB, found '{}'", flag, text));
    }
    return static_cast<uint64_t>(bytes);
}

std::string format_bytes(double bytes) {
    const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    for (; bytes >= 1024 && u < 4; ++u) bytes /= 1024;
    return u == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, units[u]);
}

std::string format_count(uint64_t count) {
    const auto n = static_cast<double>(count);
    if (count >= 1'000'000'000) return fmt::format("{:.2f} billion", n / 1e9);
    if (count >= 1'000'000) return fmt::format("{:.1f} million", n / 1e6);
    return std::to_string(count);
}

std::string whole_number(const std::string& text) {
    uint64_t value = 0;
    const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure == std::errc() && rest == text.data() + text.size()) return "";
    return fmt::format("expected a whole number of at most 64 bits, found '{}'", text);
}

namespace {

samara_load_params load_params(const LoadFlags& flags, const std::string& path) {
    samara_load_params p{};
    p.struct_size = sizeof p;
    p.path = path.c_str();
    p.isa = flags.isa.c_str();
    p.threads = flags.threads;
    p.context_tokens = flags.context;
    p.memory_budget = parse_bytes(flags.memory_budget, "--memory-budget");
    p.max_sessions = flags.max_sessions;
    p.max_step_tokens = flags.max_step_tokens;
    p.head = flags.head.c_str();
    p.kv = flags.kv.c_str();
    p.metadata_only = flags.metadata_only ? 1 : 0;
    return p;
}

}  // namespace

void SpeculationFlags::apply(samara_generate_params& params) const {
    params.speculation = mode == "off"      ? SAMARA_SPECULATION_OFF
                         : mode == "always" ? SAMARA_SPECULATION_ALWAYS
                                            : SAMARA_SPECULATION_AUTO;
    params.max_draft = max_draft;
}

EngineHandle load_engine(const LoadFlags& flags) {
    const InterruptGuard guard;
    const std::string path = pull::resolve_model(flags.model);
    samara_load_params p = load_params(flags, path);
    ProgressBar bar("loading", ProgressBar::Unit::kBytes);
    p.progress = [](uint64_t done, uint64_t total, void* user) {
        static_cast<ProgressBar*>(user)->update(done, total);
        return interrupted() ? 0 : 1;
    };
    p.user = &bar;
    samara_engine* engine = nullptr;
    check(samara_load(&p, &engine));
    return EngineHandle(engine);
}

samara_memory_plan plan_engine(const LoadFlags& flags) {
    const std::string path = pull::resolve_model(flags.model);
    const samara_load_params p = load_params(flags, path);
    samara_memory_plan plan{};
    plan.struct_size = sizeof plan;
    check(samara_plan(&p, &plan));
    return plan;
}

samara_model_info model_info(const samara_engine* engine) {
    samara_model_info info{};
    info.struct_size = sizeof info;
    check(samara_get_model_info(engine, &info));
    return info;
}

nlohmann::json flash_agreement(const samara_engine* engine) {
    samara_flash_agreement a{};
    a.struct_size = sizeof a;
    check(samara_get_flash_agreement(engine, &a));
    if (a.compared == 0) return nullptr;
    const auto compared = static_cast<double>(a.compared);
    return {{"compared", a.compared},
            {"best", static_cast<double>(a.best) / compared},
            {"top20", static_cast<double>(a.top20) / (20 * compared)}};
}

std::string flash_text(const nlohmann::json& agreement) {
    return fmt::format("flash head read the best token in {:.2f} % of {} steps, and {:.2f} % of the 20 best\n",
                       agreement["best"].get<double>() * 100, agreement["compared"].get<uint64_t>(),
                       agreement["top20"].get<double>() * 100);
}

SessionHandle create_session(samara_engine* engine) {
    samara_session* session = nullptr;
    check(samara_session_create(engine, &session));
    return SessionHandle(session);
}

void prefill(samara_engine* engine, samara_session* session, std::span<const int32_t> tokens, bool show_progress,
             samara_logits_wanted logits) {
    samara_step_input input{};
    input.struct_size = sizeof input;
    input.session = session;
    input.tokens = tokens.data();
    input.count = static_cast<uint32_t>(tokens.size());
    input.logits = logits;
    samara_step_params step{};
    step.struct_size = sizeof step;
    step.inputs = &input;
    step.input_count = 1;
    ProgressBar bar("reading the prompt", ProgressBar::Unit::kTokens);
    if (show_progress) {
        step.user = &bar;
        step.on_progress = [](uint64_t done, uint64_t total, void* user) {
            static_cast<ProgressBar*>(user)->update(done, total);
            return 1;
        };
    }
    check(samara_step(engine, &step));
}

}  // namespace samara::cli
