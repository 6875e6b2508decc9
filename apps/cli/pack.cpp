// samara pack: any model file into the packed file, which loads at once and in place.

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "apps/cli/commands.hpp"
#include "apps/cli/console.hpp"
#include "apps/pull/models.hpp"
#include "src/formats/packed.hpp"
#include "src/kernels/kernels.hpp"
#include "src/model/config.hpp"

namespace samara::cli {
namespace {

struct Options {
    std::string model, out;
    std::string layout = "2bit";
    std::string head_layout = "whole";
    bool ternarise = false, flash_index = false, json = false;
};

formats::TernaryLayout ternary_layout(const std::string& name) {
    const bool dense =
        name == "dense" || (name == "auto" && kernels::fastest_ternary_layout() == kernels::Layout::kTernaryDense);
    return dense ? formats::TernaryLayout::kDense : formats::TernaryLayout::kTwoBit;
}

void run(const Options& o) {
    const InterruptGuard guard;
    const auto start = std::chrono::steady_clock::now();
    const auto checkpoint = formats::Checkpoint::open({pull::resolve_model(o.model).string()});
    model::read_config(*checkpoint);  // refuse what the engine could not load before anything is written
    ProgressBar bar("packing", ProgressBar::Unit::kBytes);
    const formats::PackReport report = formats::pack(
        *checkpoint, o.out, o.ternarise ? formats::Ternarise::kForce : formats::Ternarise::kLossless,
        [&](uint64_t done, uint64_t total) {
            bar.update(done, total);
            return !interrupted();
        },
        o.head_layout == "split" ? formats::HeadLayout::kSplit : formats::HeadLayout::kWhole, ternary_layout(o.layout),
        o.flash_index);
    bar.clear();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (o.json) {
        print(json_text({{"path", o.out},
                         {"input_bytes", report.input_bytes},
                         {"output_bytes", report.output_bytes},
                         {"ternary_matrices", report.ternary_matrices},
                         {"other_matrices", report.other_matrices},
                         {"invalid_codes", report.code3},
                         {"ternarised_nrmse", report.ternary_nrmse},
                         {"seconds", seconds}}));
        return;
    }
    print(fmt::format("{}: {} from {}, {} ternary matrices, {} others, in {:.1f} s\n", o.out,
                      format_bytes(static_cast<double>(report.output_bytes)),
                      format_bytes(static_cast<double>(report.input_bytes)), report.ternary_matrices,
                      report.other_matrices, seconds));
    if (o.ternarise)
        print(fmt::format("ternarised by force: error {:.4f} of the weights' rms\n", report.ternary_nrmse));
    if (report.code3 > 0)
        fmt::print(stderr, "samara: {}: {} ternary codes are invalid: the source is damaged\n", o.model, report.code3);
}

}  // namespace

void add_pack(CLI::App& app) {
    auto* command = app.add_subcommand("pack", "Convert a model into the packed file");
    auto o = std::make_shared<Options>();
    command
        ->add_option("-m,--model", o->model, "GGUF file, .safetensors file or folder, or a packed file to lay out anew")
        ->required();
    command->add_option("-o,--out", o->out, "Packed file to write")->required();
    command->add_flag("--ternarise", o->ternarise,
                      "Round projections that are not ternary to ternary; the error is reported");
    command
        ->add_option("--layout", o->layout,
                     "Ternary weights in 2bit, fast on every CPU; dense, a sixth smaller, fast with AVX-512 VBMI only; "
                     "or auto, the faster on this CPU")
        ->check(CLI::IsMember({"2bit", "dense", "auto"}))
        ->capture_default_str();
    command
        ->add_option("--head-layout", o->head_layout,
                     "whole, or split: a Q4_K head in planes, which --head screened reads in place")
        ->check(CLI::IsMember({"whole", "split"}))
        ->capture_default_str();
    command->add_flag("--flash-index", o->flash_index,
                      "Add clusters of the vocabulary and the head's rows in their order, for --head flash");
    command->add_flag("--json", o->json, "Print the result as one JSON object");
    command->footer(
        "Examples:\n"
        "  samara pack -m maple.gguf -o maple.samara.gguf\n"
        "  samara pack -m Maple-Preview-BF16/ -o maple.samara.gguf\n"
        "  samara pack -m maple.dense.gguf --layout 2bit -o maple.samara.gguf");
    command->callback([o] { run(*o); });
}

}  // namespace samara::cli
