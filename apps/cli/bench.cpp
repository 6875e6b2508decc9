// samara bench: speed beside its limit. Decode is bound by the bytes it reads, so bytes and bandwidth stand next to it.

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/cli/bandwidth.hpp"
#include "apps/cli/commands.hpp"
#include "apps/cli/console.hpp"
#include "apps/cli/forced_drafts.hpp"
#include "apps/cli/measure.hpp"
#include "apps/pull/models.hpp"
#include "src/platform/error.hpp"

namespace samara::cli {
namespace {

struct Options {
    LoadFlags load;
    uint32_t prompt_tokens = 512;
    uint32_t gen_tokens = 64;
    uint32_t rounds = 1;
    uint32_t force_draft = 0;
    SpeculationFlags speculation{.mode = "off"};
    bool json = false;
};

double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](timeval t) {
        return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

samara_step_seconds step_seconds(const samara_engine* engine) {
    samara_step_seconds s{};
    s.struct_size = sizeof s;
    check(samara_get_step_seconds(engine, &s));
    return s;
}

struct Round {
    double prefill_seconds = 0, decode_seconds = 0, decode_cpu_seconds = 0;
    samara_step_seconds decode_parts{};
    samara_generate_result generated{};
};

Round measure(samara_engine* engine, const Options& o, uint32_t vocab) {
    const SessionHandle session = create_session(engine);
    const InterruptGuard guard(session.get());
    const std::vector<int32_t> tokens = random_prompt(o.prompt_tokens, vocab);
    samara_sampling greedy{};
    greedy.struct_size = sizeof greedy;
    samara_sampler* sampler = nullptr;
    check(samara_sampler_create(&greedy, &sampler));
    const SamplerHandle owner(sampler);

    Round r;
    auto start = Clock::now();
    prefill(engine, session.get(), tokens, false);
    r.prefill_seconds = seconds_since(start);
    const samara_step_seconds before = step_seconds(engine);
    const double cpu = cpu_seconds();
    start = Clock::now();
    samara_generate_params p{};
    p.struct_size = sizeof p;
    p.sampler = sampler;
    p.max_tokens = o.gen_tokens;
    o.speculation.apply(p);
    r.generated.struct_size = sizeof r.generated;
    if (o.gen_tokens > 0) check(samara_generate(session.get(), &p, &r.generated));
    if (interrupted()) throw Error(ErrorCode::kCancelled, "bench was stopped");
    r.decode_seconds = seconds_since(start);
    r.decode_cpu_seconds = cpu_seconds() - cpu;
    const samara_step_seconds after = step_seconds(engine);
    r.decode_parts.attention = after.attention - before.attention;
    r.decode_parts.kv = after.kv - before.kv;
    r.decode_parts.router = after.router - before.router;
    r.decode_parts.experts = after.experts - before.experts;
    r.decode_parts.head = after.head - before.head;
    return r;
}

void print_table(const nlohmann::json& r) {
    const auto& bytes = r["bytes_per_token"];
    std::string parts;
    for (const auto& [name, value] : bytes.items()) {
        if (name != "total") parts += fmt::format("  {} {:.1f} MB", name, value.get<double>() / 1e6);
    }
    print(fmt::format("{} ({}, {} threads, {})\n", r["model"].get<std::string>(), r["cpu"].get<std::string>(),
                      r["threads"].get<int>(), r["isa"].get<std::string>()));
    print(fmt::format("load {:.0f} ms, first token {:.0f} ms after start, peak memory {}\n", r["load_ms"].get<double>(),
                      r["ttft_ms"].get<double>(), format_bytes(r["peak_rss_bytes"].get<double>())));
    print(fmt::format("prefill {:8.2f} tokens/s ({} tokens)\n", r["prefill_tps"].get<double>(),
                      r["prompt_tokens"].get<int>()));
    print(fmt::format("decode  {:8.2f} tokens/s ({} tokens), {:.3f} CPU seconds a token\n",
                      r["decode_tps"].get<double>(), r["gen_tokens"].get<int>(),
                      r["cpu_seconds_per_token"].get<double>()));
    print(fmt::format("reads {:.1f} MB a token:{}\n", bytes["total"].get<double>() / 1e6, parts));
    parts.clear();
    for (const auto& [name, value] : r["seconds_per_token"].items())
        parts += fmt::format("  {} {:.2f} ms", name, value.get<double>() * 1e3);
    print(fmt::format("takes {:.2f} ms a token:{}\n", 1e3 / r["decode_tps"].get<double>(), parts));
    print(fmt::format("memory {:.2f} GB/s; decode uses {:.0f} % of it\n", r["bandwidth_gbps"].get<double>(),
                      r["roofline_fraction"].get<double>() * 100));
    if (!r["flash_agreement"].is_null()) print(flash_text(r["flash_agreement"]));
    if (r["speculation"] != "off") {
        print(fmt::format("drafted {} tokens, accepted {}, in {} steps\n", r["drafted"].get<int>(),
                          r["accepted"].get<int>(), r["steps"].get<int>()));
    }
    if (!r.contains("forced_drafts")) return;
    print("\ndraft  tokens/s  ratio  MB a step  MB a token  experts a layer\n");
    for (const auto& f : r["forced_drafts"]) {
        print(fmt::format("{:5} {:9.2f} {:6.2f} {:10.1f} {:11.1f} {:16.1f}\n", f["draft"].get<int>(),
                          f["decode_tps"].get<double>(), f["ratio"].get<double>(),
                          f["bytes_per_step"].get<double>() / 1e6, f["bytes_per_token"].get<double>() / 1e6,
                          f["experts_per_layer"].get<double>()));
    }
}

void run(Options o) {
    const auto start = Clock::now();
    o.load.context = std::max<uint64_t>(o.load.context, uint64_t{o.prompt_tokens} + o.gen_tokens);
    const std::string path = pull::resolve_model(o.load.model);
    const EngineHandle engine = load_engine(o.load);
    const double load_seconds = seconds_since(start);
    const samara_model_info info = model_info(engine.get());

    // The first round warms pages and caches, and is where a user's first token comes from.
    std::vector<double> prefill_seconds, decode_seconds, decode_cpu;
    double attention = 0, kv_seconds = 0, router = 0, experts = 0, head_seconds = 0;  // of all rounds' decoding
    double first_token_seconds = 0;
    samara_generate_result generated{};
    ProgressBar bar("measuring, round", ProgressBar::Unit::kSteps);
    for (uint32_t r = 0; r <= o.rounds; ++r) {
        bar.update(r, o.rounds + 1);
        const auto begin = Clock::now();
        const Round round = measure(engine.get(), o, info.vocab);
        if (r == 0) {
            first_token_seconds = std::chrono::duration<double>(begin - start).count() + round.prefill_seconds;
            continue;
        }
        prefill_seconds.push_back(round.prefill_seconds);
        decode_seconds.push_back(round.decode_seconds);
        decode_cpu.push_back(round.decode_cpu_seconds);
        generated = round.generated;
        attention += round.decode_parts.attention;
        kv_seconds += round.decode_parts.kv;
        router += round.decode_parts.router;
        experts += round.decode_parts.experts;
        head_seconds += round.decode_parts.head;
    }
    bar.clear();
    std::vector<ForcedDraft> forced;
    if (o.force_draft > 0) {
        forced = measure_forced_drafts(engine.get(), random_prompt(o.prompt_tokens, info.vocab), o.gen_tokens,
                                       o.force_draft, o.rounds);
    }
    const uint64_t peak = peak_rss_bytes();  // before the bandwidth measurement takes memory of its own
    const double bandwidth = measure_bandwidth(path, info.memory.weights_owned == 0, static_cast<int>(info.threads), 3);

    const uint64_t kv = samara_kv_bytes(engine.get(), o.prompt_tokens + o.gen_tokens / 2);
    const uint64_t head = samara_head_bytes(engine.get());
    const uint64_t total =
        info.bytes_attention + info.bytes_experts + info.bytes_router + head + info.bytes_embedding + kv;
    const double decode_tps = o.gen_tokens / median(decode_seconds);
    const double tokens = std::max(1.0, static_cast<double>(o.gen_tokens) * o.rounds);
    const char* feed_forward = info.experts > 0 ? "experts" : "feed_forward";
    nlohmann::json result{
        {"model", o.load.model},
        {"cpu", samara_cpu_name()},
        {"isa", info.isa},
        {"supported_isas", samara_supported_isas()},
        {"threads", info.threads},
        {"head", o.load.head},
        {"kv", o.load.kv},
        {"prompt_tokens", o.prompt_tokens},
        {"gen_tokens", o.gen_tokens},
        {"rounds", o.rounds},
        {"speculation", o.speculation.mode},
        {"steps", generated.steps},
        {"drafted", generated.drafted},
        {"accepted", generated.accepted},
        {"prefill_tps", o.prompt_tokens / median(prefill_seconds)},
        {"decode_tps", decode_tps},
        {"ttft_ms", first_token_seconds * 1e3},
        {"load_ms", load_seconds * 1e3},
        {"peak_rss_bytes", peak},
        {"planned_bytes", info.memory.total},
        {"file_bytes", info.file_bytes},
        {"kv_cache_bytes", info.memory.kv_cache},
        {"bytes_per_token",
         {{"attention", info.bytes_attention},
          {feed_forward, info.bytes_experts},
          {"router", info.bytes_router},
          {"head", head},
          {"embedding", info.bytes_embedding},
          {"kv", kv},
          {"total", total}}},
        {"seconds_per_token",
         {{"attention", attention / tokens},
          {feed_forward, experts / tokens},
          {"router", router / tokens},
          {"head", head_seconds / tokens},
          {"kv", kv_seconds / tokens}}},
        {"bandwidth_gbps", bandwidth / 1e9},
        {"cpu_seconds_per_token", o.gen_tokens == 0 ? 0.0 : median(decode_cpu) / o.gen_tokens},
        {"roofline_fraction", static_cast<double>(total) * decode_tps / bandwidth},
        {"flash_agreement", flash_agreement(engine.get())},
    };
    for (const ForcedDraft& f : forced) {
        result["forced_drafts"].push_back({{"draft", f.draft},
                                           {"decode_tps", f.tokens_per_second},
                                           {"ratio", f.tokens_per_second / forced.front().tokens_per_second},
                                           {"bytes_per_step", f.bytes_per_step},
                                           {"bytes_per_token", f.bytes_per_step / (1 + f.draft)},
                                           {"experts_per_layer", f.experts_per_layer}});
    }
    if (o.json) {
        print(json_text(result, 2));
    } else {
        print_table(result);
    }
}

}  // namespace

void add_bench(CLI::App& app) {
    auto* command = app.add_subcommand("bench", "Measure prompt and decode speed beside the memory's bandwidth");
    auto o = std::make_shared<Options>();
    add_load_flags(*command, o->load);
    command->add_option("--prompt-tokens", o->prompt_tokens, "Tokens of the prompt")
        ->check(CLI::Range(1U, 1U << 20))
        ->capture_default_str();
    command->add_option("--gen-tokens", o->gen_tokens, "Tokens to generate")
        ->check(CLI::Range(1U, 1U << 20))
        ->capture_default_str();
    command->add_option("--rounds", o->rounds, "Measured rounds after one that warms up; medians are printed")
        ->check(CLI::Range(1U, 1000U))
        ->capture_default_str();
    add_speculation_flags(*command, o->speculation);
    command
        ->add_option("--force-draft", o->force_draft,
                     "Time the same tokens in steps that carry 0 to this many drafted ones, all of them right")
        ->check(CLI::Range(0U, 15U));
    command->add_flag("--json", o->json, "Print the result as one JSON object");
    command->footer(
        "Examples:\n"
        "  samara bench -m M --prompt-tokens 512 --gen-tokens 64 --threads 2\n"
        "  samara bench -m M --isa avx2 --rounds 5 --json\n"
        "  samara bench -m M --force-draft 8 --rounds 5");
    command->callback([o] { run(*o); });
}

}  // namespace samara::cli
