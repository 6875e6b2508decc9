// samara plan: what a device could do with a model, before anyone owns the one or downloads the other.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/cli/bandwidth.hpp"
#include "apps/cli/commands.hpp"
#include "apps/cli/console.hpp"
#include "apps/cli/prediction.hpp"
#include "apps/pull/models.hpp"
#include "src/formats/packed.hpp"
#include "src/memory/kv_cache.hpp"
#include "src/model/config.hpp"
#include "src/model/forward.hpp"
#include "src/platform/error.hpp"
#include "src/platform/thread_pool.hpp"
#include "src/synth/preset.hpp"

namespace samara::cli {
namespace {

using kernels::Layout;
using kernels::Matrix;

struct Options {
    LoadFlags load;
    std::string device = "this", preset, layout = "2bit";
    uint32_t prompt_tokens = 512;
    bool json = false;
};

struct Subject {
    std::string title;
    ModelNeeds needs;
};

constexpr int kRewindSpan = 1024, kMaxStep = 512;  // the engine's defaults

memory::KvShape kv_shape(const model::ModelConfig& c, uint64_t context) {
    const auto positions = static_cast<int64_t>(context);
    return {.kv_heads = c.kv_heads,
            .head_dim = c.head_dim,
            .sliding = c.sliding,
            .window = c.window,
            .rewind_span = kRewindSpan,
            .max_step = static_cast<int>(std::min<int64_t>(kMaxStep, positions)),
            .context = positions};
}

uint64_t bytes_of(Layout layout, uint64_t rows, uint64_t cols) {
    return static_cast<uint64_t>(kernels::matrix_bytes(
        Matrix{.layout = layout, .rows = static_cast<int>(rows), .cols = static_cast<int>(cols)}));
}

uint64_t checked_context(uint64_t context, int64_t trained) {
    const uint64_t most = static_cast<uint64_t>(trained);
    if (context > most) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("--context: expected at most the model's {} positions, found {}", most, context));
    }
    return context == 0 ? std::min<uint64_t>(4096, most) : context;
}

// ---- a model that exists ----

void add_packed(const formats::Checkpoint& checkpoint, const model::ModelConfig& config, ModelNeeds& needs) {
    for (const formats::PackedLayout& l : formats::packed_layouts(checkpoint)) {
        if (l.kind == "attention") needs.attention += l.bytes;
        if (l.kind == "router") needs.router += l.bytes;
        if (l.kind == "head") needs.head += l.bytes;
        if (l.kind == "feed-forward") needs.experts += l.bytes;
        if (l.kind == "experts") {
            needs.experts +=
                l.bytes * static_cast<uint64_t>(config.experts_used) / static_cast<uint64_t>(config.experts);
        }
        if (l.kind != "embedding") needs.weight_bytes += l.bytes;
    }
}

/// A file that is not packed is repacked while it loads: expert 0 stands for its layer.
void add_plain(const formats::Checkpoint& checkpoint, const model::ModelConfig& config, ModelNeeds& needs) {
    const auto bytes = [&](const std::string& name, formats::Role role) {
        const auto slice = formats::find_slice(checkpoint, name);
        if (!slice) {
            throw Error(ErrorCode::kFormat, checkpoint.file() + ": tensor " + name + " is missing");
        }
        return static_cast<uint64_t>(kernels::matrix_bytes(formats::choose_layout(*slice, role)));
    };
    const auto used = static_cast<uint64_t>(std::max(1, config.experts_used));
    const auto all = static_cast<uint64_t>(std::max(1, config.experts));
    const std::string suffix = config.experts > 0 ? "_exps.weight" : ".weight";
    for (int l = 0; l < config.layers; ++l) {
        const std::string block = fmt::format("blk.{}.", l);
        for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
            needs.attention += bytes(fmt::format("{}{}.weight", block, name), formats::Role::kProjection);
        }
        if (config.experts > 0) needs.router += bytes(block + "ffn_gate_inp.weight", formats::Role::kRouter);
        for (const char* name : {"ffn_gate", "ffn_up", "ffn_down"}) {
            const uint64_t one = bytes(fmt::format("{}{}{}", block, name, suffix), formats::Role::kProjection);
            needs.experts += used * one;
            needs.weight_bytes += all * one;
        }
    }
    needs.head = bytes(config.tied_head ? "token_embd.weight" : "output.weight", formats::Role::kHead);
    needs.weight_bytes += needs.attention + needs.router + needs.head;
}

Subject of_file(const Options& o) {
    const std::string path = pull::resolve_model(o.load.model).string();
    const auto checkpoint = formats::Checkpoint::open({path});
    const model::ModelConfig config = model::read_config(*checkpoint);
    LoadFlags load = o.load;
    load.context = checked_context(o.load.context, config.context);
    Subject s{.title = path, .needs = {}};
    ModelNeeds& n = s.needs;
    formats::naming_file(*checkpoint, [&] {
        formats::is_packed(*checkpoint) ? add_packed(*checkpoint, config, n) : add_plain(*checkpoint, config, n);
    });
    if (const formats::Tensor* t = checkpoint->find("token_embd.weight")) {
        n.embedding = t->data.size() / static_cast<uint64_t>(config.vocab);
    }
    n.kv = kv_shape(config, load.context).bytes_read_at(static_cast<int64_t>(load.context) - 1);
    const auto head = static_cast<uint64_t>(config.vocab) * static_cast<uint64_t>(config.hidden);
    const uint64_t router = static_cast<uint64_t>(config.layers) * static_cast<uint64_t>(config.experts) *
                            static_cast<uint64_t>(config.hidden);
    n.projection_weights = config.parameters_per_token() - std::min(config.parameters_per_token(), head + router);
    n.memory = plan_engine(load).total;
    return s;
}

// ---- a shape of which no file is at hand: packed as `samara pack` would, with a Q4_K embedding and head ----

Subject of_preset(const Options& o) {
    const synth::Preset& p = synth::find_preset(o.preset);
    if (p.dense()) throw Error(ErrorCode::kInvalidArgument, "--preset: expected one of Maple, found " + o.preset);
    const Layout ternary = o.layout == "dense" ? Layout::kTernaryDense : Layout::kTernary;
    const uint64_t context = checked_context(o.load.context, p.context);
    model::ModelConfig c;
    c.layers = static_cast<int>(p.layers);
    c.hidden = static_cast<int>(p.hidden);
    c.heads = static_cast<int>(p.heads);
    c.kv_heads = static_cast<int>(p.kv_heads);
    c.head_dim = static_cast<int>(p.head_dim);
    c.vocab = static_cast<int>(p.vocabulary);
    c.context = p.context;
    c.ffn = static_cast<int>(p.expert_ffn);
    c.experts = static_cast<int>(p.experts);
    c.experts_used = static_cast<int>(p.experts_used);
    c.rope_dims = static_cast<int>(p.rope_dims);
    c.window = static_cast<int>(p.window);
    for (uint32_t l = 0; l < p.layers; ++l) c.sliding.push_back(p.sliding(l));

    const uint64_t q_rows = uint64_t{p.heads} * p.head_dim, kv_rows = uint64_t{p.kv_heads} * p.head_dim;
    const uint64_t attention = bytes_of(ternary, q_rows, p.hidden) + 2 * bytes_of(ternary, kv_rows, p.hidden) +
                               bytes_of(ternary, p.hidden, q_rows);
    const uint64_t expert = 2 * bytes_of(ternary, p.expert_ffn, p.hidden) + bytes_of(ternary, p.hidden, p.expert_ffn);
    constexpr uint64_t kQ4kBlock = 144;  // bytes of 256 weights
    Subject s{.title = fmt::format("{}, packed at {}", p.name, o.layout == "dense" ? "1.67 bits" : "2 bits"),
              .needs = {}};
    ModelNeeds& n = s.needs;
    n.attention = p.layers * attention;
    n.experts = p.layers * p.experts_used * expert;
    n.router = p.layers * bytes_of(Layout::kBfloat16, p.experts, p.hidden);
    n.head = bytes_of(Layout::kNibbleK, p.vocabulary, p.hidden);
    n.embedding = p.hidden / 256 * kQ4kBlock;
    n.kv = kv_shape(c, context).bytes_read_at(static_cast<int64_t>(context) - 1);
    n.projection_weights =
        p.layers * (2 * p.hidden * (q_rows + kv_rows) + uint64_t{p.experts_used} * 3 * p.hidden * p.expert_ffn);
    n.weight_bytes = n.attention + n.router + n.head + uint64_t{p.layers} * p.experts * expert;
    const int threads = o.load.threads == 0 ? platform::available_cpus() : static_cast<int>(o.load.threads);
    n.memory = n.weight_bytes + p.vocabulary * n.embedding + kv_shape(c, context).pool_bytes(1) +
               model::Forward::scratch_bytes(c, kv_shape(c, context).max_step, threads);
    return s;
}

// ---- the answer ----

nlohmann::json json_of(const Range& r) { return {{"low", r.low}, {"high", r.high}}; }

std::string_view fit_name(Fit fit) { return fit == Fit::kYes ? "yes" : fit == Fit::kPerhaps ? "perhaps" : "no"; }

nlohmann::json describe(const Device& d, const Subject& s, const Prediction& p, const Options& o) {
    const ModelNeeds& n = s.needs;
    nlohmann::json r{
        {"prediction", true},
        {"device", d.name},
        {"device_title", d.title},
        {"model", s.title},
        {"prompt_tokens", o.prompt_tokens},
        {"bandwidth_bytes_per_second", json_of(d.bandwidth)},
        {"bandwidth_source", d.bandwidth_source},
        {"reachable_share", json_of(d.reachable)},
        {"decode_efficiency", json_of(kDecodeEfficiency)},
        {"ram_bytes", d.ram},
        {"ram_source", d.ram_source},
        {"cpu_source", d.cpu_source},
        {"bytes_per_token",
         {{"attention", n.attention},
          {"experts", n.experts},
          {"router", n.router},
          {"head", n.head},
          {"embedding", n.embedding},
          {"kv", n.kv},
          {"total", n.bytes_per_token()}}},
        {"memory_bytes", n.memory},
        {"fits", fit_name(p.fit)},
        {"decode_tps", json_of(p.decode_tps)},
        {"prefill_tps", p.prefill_tps ? json_of(*p.prefill_tps) : nlohmann::json()},
        {"first_token_seconds", p.first_token_seconds ? json_of(*p.first_token_seconds) : nlohmann::json()},
    };
    return r;
}

std::string text_of(const Range& r, double unit, int digits) {
    const std::string low = fmt::format("{:.{}f}", r.low / unit, digits);
    const std::string high = fmt::format("{:.{}f}", r.high / unit, digits);
    return low == high ? low : low + " to " + high;
}

void print_text(const Device& d, const Subject& s, const Prediction& p, const Options& o) {
    const auto line = [](const char* what, const std::string& text) { print(fmt::format("{:<13}{}\n", what, text)); };
    const ModelNeeds& n = s.needs;
    print(fmt::format("A prediction, not a measurement: {} on {}\n", s.title, d.title));
    line("decode", text_of(p.decode_tps, 1, 0) + " tokens/s");
    if (p.first_token_seconds) {
        line("first token",
             fmt::format("{} s for a prompt of {} tokens ({} tokens/s), the model being in memory",
                         text_of(*p.first_token_seconds, 1, 1), o.prompt_tokens, text_of(*p.prefill_tps, 1, 0)));
    } else {
        line("first token", d.cpu_source);
    }
    line("memory", fmt::format("{} of {}: {}", format_bytes(static_cast<double>(n.memory)),
                               format_bytes(static_cast<double>(d.ram)),
                               p.fit == Fit::kYes       ? "fits"
                               : p.fit == Fit::kPerhaps ? "fits if the system lets one app have so much"
                                                        : "does not fit"));
    print("Because\n");
    line("  a token", fmt::format("reads {:.1f} MB: attention {:.1f}, {} {:.1f}, router {:.1f}, head {:.1f}, KV {:.1f}",
                                  static_cast<double>(n.bytes_per_token()) / 1e6,
                                  static_cast<double>(n.attention) / 1e6, n.router > 0 ? "experts" : "feed-forward",
                                  static_cast<double>(n.experts) / 1e6, static_cast<double>(n.router) / 1e6,
                                  static_cast<double>(n.head) / 1e6, static_cast<double>(n.kv) / 1e6));
    line("  bandwidth", fmt::format("{} GB/s: {}", text_of(d.bandwidth, 1e9, 1), d.bandwidth_source));
    if (d.reachable.low < 1) {
        line("", fmt::format("of which the CPU reaches {} % (an assumption)", text_of(d.reachable, 0.01, 0)));
    }
    line("  efficiency",
         fmt::format("{} % of what is reached, as measured on x86; NEON has not been measured on a phone",
                     text_of(kDecodeEfficiency, 0.01, 0)));
    if (p.first_token_seconds) {
        line("  processor",
             fmt::format("{} ({} % of their rate assumed)", d.cpu_source, text_of(kPromptEfficiency, 0.01, 0)));
    }
    line("  RAM",
         fmt::format("{}; one app may hold {} % (an assumption)", d.ram_source, text_of(d.app_share, 0.01, 0)));
    if (d.reachable.low < 1) print("Phones slow down as they warm up: expect less after the first minute.\n");
}

void run(const Options& o) {
    const InterruptGuard guard;
    const bool here = o.device == "this";
    if (!here) find_device(o.device);  // refuse before anything is read
    const Subject s = o.preset.empty() ? of_file(o) : of_preset(o);
    const int threads = o.load.threads == 0 ? platform::available_cpus() : static_cast<int>(o.load.threads);
    const Device d = here ? this_device(measure_bandwidth("", false, threads, 3)) : find_device(o.device);
    const Prediction p = predict(d, s.needs, o.prompt_tokens);
    if (o.json) {
        print(json_text(describe(d, s, p, o), 2));
    } else {
        print_text(d, s, p, o);
    }
}

}  // namespace

void add_plan(CLI::App& app) {
    auto* command = app.add_subcommand("plan", "Predict a model's speed and memory on a phone, or on this machine");
    auto o = std::make_shared<Options>();
    std::string devices;
    for (const Device& d : known_devices()) devices += d.name + ", ";
    command->add_option("--device", o->device, devices + "or this, whose bandwidth is measured")->capture_default_str();
    auto* subject = command->add_option_group("model");
    subject->add_option("-m,--model", o->load.model, "Model file or folder, or an installed model's name");
    subject->add_option("--preset", o->preset, "A shape instead, such as maple-20b: no file is needed");
    subject->require_option(1);
    command->add_option("--layout", o->layout, "With --preset: 2bit, or dense (fast with AVX-512 VBMI only)")
        ->check(CLI::IsMember({"2bit", "dense"}))
        ->capture_default_str();
    command
        ->add_option("--context", o->load.context,
                     "Tokens already there when one is decoded; 0: the smaller of 4096 and the model's")
        ->check(whole_number);
    command->add_option("--prompt-tokens", o->prompt_tokens, "Tokens of the prompt before the first answer token")
        ->check(CLI::Range(1U, 1U << 20))
        ->capture_default_str();
    command->add_option("--threads", o->load.threads, "Threads to plan for; 0: all CPUs this process may use")
        ->check(CLI::Range(0U, 256U));
    command->add_flag("--json", o->json, "Print the result as one JSON object");
    command->footer(
        "Bytes a token reads, divided by the bandwidth that is public or measured here, times the efficiency measured "
        "on\n"
        "x86. Every figure of a device is printed with its source.\n"
        "Examples:\n"
        "  samara plan --device iphone-17-pro --preset maple-20b\n"
        "  samara plan --device this -m M --context 16384 --json");
    command->callback([o] { run(*o); });
}

}  // namespace samara::cli
