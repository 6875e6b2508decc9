// samara verify: what whoever holds the real weights can find out in a minute, as a report to paste. Structure, a
// text's perplexity, what rounded activations would change, speed and memory.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/cli/bandwidth.hpp"
#include "apps/cli/commands.hpp"
#include "apps/cli/console.hpp"
#include "apps/cli/files.hpp"
#include "apps/cli/measure.hpp"
#include "apps/cli/rounding.hpp"
#include "apps/cli/text.hpp"
#include "apps/cli/verify_text.hpp"
#include "apps/pull/models.hpp"
#include "apps/pull/progress.hpp"
#include "samara/engine.hpp"
#include "src/formats/packed.hpp"
#include "src/formats/packed_plan.hpp"
#include "src/model/config.hpp"
#include "src/platform/sha256.hpp"
#include "src/platform/thread_pool.hpp"

namespace samara::cli {
namespace {

using kernels::Layout;

constexpr uint64_t kPromptTokens = 128, kGeneratedTokens = 32;  // of the speed measurement
constexpr int kRounds = 3;                                      // of it; medians count

struct Options {
    LoadFlags load;
    bool json = false;
};

// ---- structure: what the file says before a token is computed ----

/// How a config differs from the published Maple-Preview: "layers 2 instead of 24".
std::vector<std::string> differences_from_maple_preview(const model::ModelConfig& c) {
    std::vector<std::string> found;
    const auto compare = [&](const char* what, double value, double published) {
        if (value != published) found.push_back(fmt::format("{} {} instead of {}", what, value, published));
    };
    compare("layers", c.layers, 24);
    compare("hidden size", c.hidden, 2048);
    compare("query heads", c.heads, 16);
    compare("key/value heads", c.kv_heads, 4);
    compare("head size", c.head_dim, 128);
    compare("rotated dimensions", c.rope_dims, 64);
    compare("RoPE base", c.rope_theta, 10000);
    compare("sliding window", c.window, 512);
    compare("experts", c.experts, 256);
    compare("experts used", c.experts_used, 8);
    compare("expert width", c.ffn, 512);
    compare("vocabulary", c.vocab, 151936);
    compare("context", static_cast<double>(c.context), 131072);
    for (size_t l = 0; l < c.sliding.size(); ++l) {
        if (c.sliding[l] == (l % 4 != 3)) continue;
        found.push_back(fmt::format("layer {} {} instead of {}", l, c.sliding[l] ? "sliding" : "full",
                                    c.sliding[l] ? "full" : "sliding"));
    }
    if (!c.qk_norm) found.emplace_back("no norm of queries and keys");
    if (std::any_of(c.clamp.begin(), c.clamp.end(), [](float limit) { return limit != 7; })) {
        found.emplace_back("another SwiGLU clamp than 7");
    }
    return found;
}

struct Scales {           // of projections and expert matrices
    uint64_t row = 0;     // ternary, one scale a row
    uint64_t blocks = 0;  // ternary, a scale for 256 columns
    uint64_t others = 0;  // not ternary, or with finer scales
    void add(Layout layout, uint64_t matrices) {
        const bool ternary = layout == Layout::kTernary || layout == Layout::kTernaryDense;
        (ternary ? row : layout == Layout::kTernaryBlocks ? blocks : others) += matrices;
    }
};

Scales packed_scales(const formats::Checkpoint& checkpoint) {
    Scales scales;
    for (const formats::PackedLayout& l : formats::packed_layouts(checkpoint)) {
        if (l.kind == "attention" || l.kind == "experts" || l.kind == "feed-forward") scales.add(l.layout, l.matrices);
    }
    return scales;
}

/// Reads every projection: only the weights tell whether a row's blocks share a scale.
Scales plain_scales(const formats::Checkpoint& checkpoint, const model::ModelConfig& config, int threads) {
    const char* const kAttention[] = {"attn_q", "attn_k", "attn_v", "attn_output"};
    const char* const kDense[] = {"ffn_gate", "ffn_up", "ffn_down"};
    const char* const kExperts[] = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
    platform::ThreadPool pool(threads);
    ProgressBar bar("looking at the scales", ProgressBar::Unit::kSteps);
    Scales scales;
    for (int layer = 0; layer < config.layers; ++layer) {
        bar.update(static_cast<uint64_t>(layer), static_cast<uint64_t>(config.layers));
        if (interrupted()) throw Error(ErrorCode::kCancelled, "verify was stopped");
        std::vector<formats::Slice> slices;
        const auto add = [&](const char* name, int experts) {
            const std::string full = fmt::format("blk.{}.{}.weight", layer, name);
            for (int e = 0; e < experts; ++e) {
                const auto slice = formats::find_slice(checkpoint, full, static_cast<uint64_t>(e));
                if (slice) slices.push_back(*slice);  // the engine has all: it names one that is missing
            }
        };
        for (const char* name : kAttention) add(name, 1);
        for (const char* name : config.experts > 0 ? kExperts : kDense) add(name, std::max(1, config.experts));
        std::vector<Layout> layouts(slices.size());
        pool.run(static_cast<int>(slices.size()), [&](int i, int) {
            const formats::Slice& slice = slices[static_cast<size_t>(i)];
            layouts[static_cast<size_t>(i)] = formats::choose_layout(slice, formats::Role::kProjection).layout;
            formats::drop_slice(checkpoint, slice);
        });
        for (const Layout layout : layouts) scales.add(layout, 1);
    }
    return scales;
}

nlohmann::json structure(const formats::Checkpoint& checkpoint, const model::ModelConfig& config, int threads) {
    const bool packed = formats::is_packed(checkpoint);
    if (packed) check_checksums(checkpoint);
    const Scales scales = packed ? packed_scales(checkpoint) : plain_scales(checkpoint, config, threads);
    nlohmann::json r{
        {"file", checkpoint.file()},
        {"file_bytes", checkpoint.file_bytes()},
        {"format", packed ? "packed (" + checkpoint.format() + ")" : checkpoint.format()},
        {"architecture", config.architecture},
        {"name", config.name},
        {"parameters", config.parameters()},
        {"parameters_per_token", config.parameters_per_token()},
        {"tensors", checkpoint.tensors().size()},
        {"checksums", packed ? nlohmann::json("right") : nlohmann::json()},
        {"projections",
         {{"ternary_one_scale_a_row", scales.row},
          {"ternary_several_scales_a_row", scales.blocks},
          {"other", scales.others}}},
    };
    r["differs_from_maple_preview"] =
        config.architecture == "maple" ? nlohmann::json(differences_from_maple_preview(config)) : nlohmann::json();
    return r;
}

// ---- the text, exactly and with rounded activations ----

struct Reading {
    double nll = 0;                 // mean over all tokens but the first
    std::vector<uint16_t> experts;  // (tokens, layers, experts_used)
    std::string sha256;             // of the float32 logits of every position
};

Reading read_text_with(Engine& engine, std::span<const int32_t> tokens, Rounding rounding, const char* what) {
    set_rounding(rounding);
    const ModelInfo& info = engine.info();
    const auto session = engine.create_session();
    Reading r;
    r.experts.resize(info.experts == 0
                         ? 0
                         : tokens.size() * static_cast<size_t>(info.layers) * static_cast<size_t>(info.experts_used));
    const StepInput input{session.get(), tokens, LogitsWanted::kAll, r.experts.empty() ? nullptr : r.experts.data()};
    platform::Sha256 hash;
    ProgressBar bar(what, ProgressBar::Unit::kTokens);
    StepParams step;
    step.inputs = {&input, 1};
    step.on_logits = [&](int, int token, std::span<const float> logits) {
        hash.update(std::as_bytes(logits));
        const auto next = static_cast<size_t>(token) + 1;
        if (next < tokens.size()) r.nll += negative_log_likelihood(logits, tokens[next]);
    };
    step.on_progress = [&](uint64_t done, uint64_t total) {
        bar.update(done, total);
        return !interrupted();
    };
    engine.step(step);
    set_rounding(Rounding::kNone);
    r.nll /= static_cast<double>(tokens.size() - 1);
    r.sha256 = hash.finish();
    return r;
}

/// Experts of `other` that `exact` did not choose for the same token and layer, whatever their order.
uint64_t changed_choices(const Reading& exact, const Reading& other, size_t used) {
    uint64_t changed = 0;
    for (size_t at = 0; at < exact.experts.size(); at += used) {
        const auto chosen = std::span(exact.experts).subspan(at, used);
        for (const uint16_t e : std::span(other.experts).subspan(at, used)) {
            changed += std::find(chosen.begin(), chosen.end(), e) == chosen.end() ? 1 : 0;
        }
    }
    return changed;
}

nlohmann::json read_text_thrice(Engine& engine, std::span<const int32_t> tokens) {
    const Reading exact = read_text_with(engine, tokens, Rounding::kNone, "reading the text");
    nlohmann::json r{{"tokens", tokens.size()},
                     {"perplexity", std::exp(exact.nll)},
                     {"vocabulary", engine.info().vocab},
                     {"logits_sha256", exact.sha256},
                     {"expert_choices", exact.experts.size()},
                     {"rounded", nlohmann::json::object()}};
    for (const auto& [name, rounding] : {std::pair{"f16", Rounding::kHalf}, {"int8", Rounding::kEightBit}}) {
        const Reading rounded = read_text_with(engine, tokens, rounding, "reading it with rounded activations");
        const uint64_t changed =
            changed_choices(exact, rounded, static_cast<size_t>(std::max(1, engine.info().experts_used)));
        r["rounded"][name] = {{"perplexity", std::exp(rounded.nll)}, {"changed_choices", changed}};
    }
    return r;
}

// ---- speed and memory ----

nlohmann::json speed(Engine& engine, const std::string& path) {
    const ModelInfo& info = engine.info();
    const std::vector<int32_t> tokens =
        random_prompt(static_cast<uint32_t>(kPromptTokens), static_cast<uint32_t>(info.vocab));
    std::vector<double> prefill, decode;
    ProgressBar bar("measuring", ProgressBar::Unit::kSteps);
    for (int round = 0; round < kRounds; ++round) {
        bar.update(static_cast<uint64_t>(round), kRounds);
        const auto session = engine.create_session();
        const StepInput input{session.get(), tokens};
        StepParams step;
        step.inputs = {&input, 1};
        auto start = Clock::now();
        engine.step(step);
        prefill.push_back(seconds_since(start));
        Sampler greedy{Sampling{}};
        GenerateParams params;
        params.sampler = &greedy;
        params.max_tokens = static_cast<uint32_t>(kGeneratedTokens);
        params.on_token = [](int32_t, std::string_view) { return !interrupted(); };
        start = Clock::now();
        generate(*session, params);
        decode.push_back(seconds_since(start));
        if (interrupted()) throw Error(ErrorCode::kCancelled, "verify was stopped");
    }
    bar.clear();
    const uint64_t peak = peak_rss_bytes();  // before the bandwidth measurement takes memory of its own
    const double bandwidth = measure_bandwidth(path, info.memory.weights_owned == 0, info.threads, 2);
    const uint64_t bytes = info.bytes_attention + info.bytes_experts + info.bytes_router + engine.head_bytes() +
                           info.bytes_embedding + engine.kv_bytes(kPromptTokens + kGeneratedTokens / 2);
    const double decode_tps = static_cast<double>(kGeneratedTokens) / median(decode);
    return {{"prompt_tokens", kPromptTokens},
            {"generated_tokens", kGeneratedTokens},
            {"prefill_tps", static_cast<double>(kPromptTokens) / median(prefill)},
            {"decode_tps", decode_tps},
            {"bytes_per_token", bytes},
            {"bandwidth_gbps", bandwidth / 1e9},
            {"share_of_bandwidth", static_cast<double>(bytes) * decode_tps / bandwidth},
            {"planned_bytes", info.memory.total()},
            {"peak_rss_bytes", peak}};
}

// ---- the report ----

void print_structure(const nlohmann::json& r) {
    const auto line = [](const char* what, const std::string& text) { print(fmt::format("{:<16}{}\n", what, text)); };
    const auto number = [&](const char* key) { return r[key].get<uint64_t>(); };
    line("file", fmt::format("{}, {}", r["format"].get<std::string>(), format_bytes(r["file_bytes"].get<double>())));
    line("model", fmt::format("{} {}, {} parameters, {} per token", r["architecture"].get<std::string>(),
                              pull::printable(r["name"].get<std::string>()), format_count(number("parameters")),
                              format_count(number("parameters_per_token"))));
    const auto& differs = r["differs_from_maple_preview"];
    if (differs.is_null()) {
        line("shape", "no Maple");
    } else if (differs.empty()) {
        line("shape", "that of the published Maple-Preview");
    } else {
        line("shape",
             "not the published one: " + fmt::format("{}", fmt::join(differs.get<std::vector<std::string>>(), ", ")));
    }
    line("tensors", fmt::format("{}; every one that the model needs is there, in its shape{}", number("tensors"),
                                r["checksums"].is_null() ? "" : "; every checksum is right"));
    const auto& p = r["projections"];
    line("scales", fmt::format("{} projections: {} ternary with one scale a row, {} with several, {} others",
                               p["ternary_one_scale_a_row"].get<uint64_t>() +
                                   p["ternary_several_scales_a_row"].get<uint64_t>() + p["other"].get<uint64_t>(),
                               p["ternary_one_scale_a_row"].get<uint64_t>(),
                               p["ternary_several_scales_a_row"].get<uint64_t>(), p["other"].get<uint64_t>()));
}

void print_text_results(const nlohmann::json& t) {
    const double exact = t["perplexity"].get<double>();
    print(fmt::format("{:<16}perplexity {:.4f} over {} tokens of the built-in text (guessing: {})\n", "text", exact,
                      t["tokens"].get<uint64_t>() - 1, t["vocabulary"].get<uint64_t>()));
    print(fmt::format("{:<16}{}\n", "logits", t["logits_sha256"].get<std::string>()));
    const auto choices = t["expert_choices"].get<uint64_t>();
    for (const auto& [key, what] : {std::pair{"f16", "half-precision"}, {"int8", "8-bit"}}) {
        const auto& r = t["rounded"][key];
        const auto changed = r["changed_choices"].get<uint64_t>();
        const std::string experts =
            choices == 0 ? "no experts to choose"
                         : fmt::format("{} of {} expert choices change ({:.2f} %)", changed, choices,
                                       100.0 * static_cast<double>(changed) / static_cast<double>(choices));
        print(fmt::format("{:<16}{}; perplexity {:+.2f} %\n", what, experts,
                          100 * (r["perplexity"].get<double>() / exact - 1)));
    }
}

void print_report(const nlohmann::json& r) {
    print(
        fmt::format("samara {} verify, numerics {}\n", r["version"].get<std::string>(), r["numerics"].get<uint32_t>()));
    print_structure(r["structure"]);
    print_text_results(r["text"]);
    const auto& s = r["speed"];
    print(fmt::format(
        "{:<16}prompt {:.1f} tokens/s ({} tokens), decode {:.1f} tokens/s ({} tokens), {:.0f} MB a token, "
        "{:.0f} % of {:.1f} GB/s\n",
        "speed", s["prefill_tps"].get<double>(), s["prompt_tokens"].get<uint32_t>(), s["decode_tps"].get<double>(),
        s["generated_tokens"].get<uint32_t>(), s["bytes_per_token"].get<double>() / 1e6,
        100 * s["share_of_bandwidth"].get<double>(), s["bandwidth_gbps"].get<double>()));
    print(fmt::format("{:<16}engine planned for {} tokens: {}; peak of the whole program: {}\n", "memory",
                      r["context"].get<uint64_t>(), format_bytes(s["planned_bytes"].get<double>()),
                      format_bytes(s["peak_rss_bytes"].get<double>())));
    print(fmt::format("{:<16}{}, {} threads, {}\n", "machine", r["cpu"].get<std::string>(), r["threads"].get<int>(),
                      r["isa"].get<std::string>()));
}

LoadOptions load_options(const LoadFlags& flags, const std::string& path, uint64_t context) {
    LoadOptions o;
    o.path = path;
    o.isa = flags.isa;
    o.threads = static_cast<int>(flags.threads);
    o.memory_budget = parse_bytes(flags.memory_budget, "--memory-budget");
    o.context_tokens = context;
    o.max_sessions = 1;
    o.head = flags.head;
    o.kv = flags.kv;
    o.kernels = &rounding_kernels(kernels::parse_isa(flags.isa));
    return o;
}

std::unique_ptr<Engine> load(LoadOptions options) {
    ProgressBar bar("loading", ProgressBar::Unit::kBytes);
    options.progress = [&](uint64_t done, uint64_t total) {
        bar.update(done, total);
        return !interrupted();
    };
    return Engine::load(options);
}

std::vector<int32_t> encode_text(LoadFlags flags) {
    flags.metadata_only = true;
    const EngineHandle headers = load_engine(flags);
    return Tokenizer(headers.get()).encode(kVerifyText, false, true);
}

void run(const Options& o) {
    const InterruptGuard guard;
    const std::string path = pull::resolve_model(o.load.model).string();
    const std::vector<int32_t> tokens = encode_text(o.load);
    const uint64_t context = std::max({o.load.context, uint64_t{tokens.size()}, kPromptTokens + kGeneratedTokens});

    nlohmann::json r{
        {"version", samara_version()}, {"numerics", samara_numerics_version()}, {"cpu", samara_cpu_name()}};
    {
        const int threads = o.load.threads == 0 ? platform::available_cpus() : static_cast<int>(o.load.threads);
        const auto checkpoint = formats::Checkpoint::open({path});
        const model::ModelConfig config = model::read_config(*checkpoint);
        r["structure"] = structure(*checkpoint, config, threads);
    }
    const auto engine = load(load_options(o.load, path, context));
    r["isa"] = engine->info().isa;
    r["threads"] = engine->info().threads;
    r["context"] = engine->info().context_tokens;
    r["text"] = read_text_thrice(*engine, tokens);
    r["speed"] = speed(*engine, path);
    if (o.json) {
        print(json_text(r, 2));
    } else {
        print_report(r);
    }
}

}  // namespace

void add_verify(CLI::App& app) {
    auto* command = app.add_subcommand(
        "verify", "Check a model on this machine and print a report: structure, perplexity, rounding, speed, memory");
    auto o = std::make_shared<Options>();
    add_load_flags(*command, o->load);
    command->add_flag("--json", o->json, "Print the result as one JSON object");
    command->footer(
        "Reads a built-in text of 300 words exactly and with the activations rounded as other engines round them.\n"
        "The SHA-256 of the logits is the same on every machine.\n"
        "Examples:\n"
        "  samara verify -m maple-preview\n"
        "  samara verify -m M --threads 4 --json > report.json");
    command->callback([o] { run(*o); });
}

}  // namespace samara::cli
