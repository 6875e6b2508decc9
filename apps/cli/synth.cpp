// samara synth: random models of the real shapes.

#include "src/synth/synth.hpp"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "apps/cli/commands.hpp"
#include "apps/cli/console.hpp"

namespace samara::cli {
namespace {

struct Options {
    std::string preset, out, type;
    synth::Options synth;
    bool json = false;
};

void run(Options o) {
    if (!o.type.empty()) {
        o.synth.type = synth::parse_type(o.type);
    } else if (synth::find_preset(o.preset).dense()) {
        o.synth.type = formats::TensorType::kQ8_0;
    }
    const InterruptGuard guard;
    const auto start = std::chrono::steady_clock::now();
    ProgressBar bar("writing", ProgressBar::Unit::kBytes);
    const synth::Report report = synth::write_model(o.preset, o.synth, o.out, [&](uint64_t done, uint64_t total) {
        bar.update(done, total);
        return !interrupted();
    });
    bar.clear();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (o.json) {
        print(json_text(
            {{"path", o.out}, {"file_bytes", report.file_bytes}, {"weights", report.weights}, {"seconds", seconds}}));
    } else {
        print(fmt::format("{}: {} weights, {}, in {:.1f} s\n", o.out, format_count(report.weights),
                          format_bytes(static_cast<double>(report.file_bytes)), seconds));
    }
}

}  // namespace

void add_synth(CLI::App& app) {
    auto* command = app.add_subcommand("synth", "Write a model with random weights of a real model's shape");
    auto o = std::make_shared<Options>();
    std::string presets;
    for (const auto& p : synth::presets()) presets += fmt::format("\n  {:<12} {}", p.name, p.summary);
    command->add_option("--preset", o->preset, "Shape of the model, see below")->required();
    command->add_option("-o,--out", o->out, "GGUF file to write")->required();
    command->add_option(
        "--type", o->type,
        "Type of the projections: tq2_0 (default), tq1_0, f16 or f32; of a llama q8_0 (default), q4_1, f16, f32");
    command->add_option("--seed", o->synth.seed, "Equal seeds give equal files")
        ->check(whole_number)
        ->capture_default_str();
    command->add_option("--outliers", o->synth.outliers,
                        "Hidden channels that are 20 to 50 times larger than the others");
    command->add_option("--tokenizer", o->synth.tokenizer,
                        "Qwen's tokenizer.json (default: where tools/fetch_qwen_tokenizer puts it)");
    command->add_option("--threads", o->synth.threads, "Threads to use; 0: all")->check(CLI::Range(0U, 256U));
    command->add_flag("--json", o->json, "Print the result as one JSON object");
    command->footer("Presets:" + presets +
                    "\nExamples:\n"
                    "  samara synth --preset maple-tiny -o /tmp/tiny.gguf\n"
                    "  samara synth --preset maple-20b -o /tmp/maple.gguf --seed 2");
    command->callback([o] { run(*o); });
}

}  // namespace samara::cli
