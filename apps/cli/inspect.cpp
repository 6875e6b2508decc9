// samara inspect: what is in a model file, what it needs, and what is wrong with it.

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "apps/cli/commands.hpp"
#include "apps/cli/console.hpp"
#include "apps/cli/files.hpp"
#include "apps/pull/models.hpp"
#include "apps/pull/progress.hpp"
#include "src/formats/packed.hpp"
#include "src/kernels/kernels.hpp"
#include "src/model/config.hpp"
#include "src/platform/error.hpp"

namespace samara::cli {
namespace {

struct Options {
    LoadFlags load;
    bool tensors = false, verify = false, json = false;
};

struct TypeCount {
    uint64_t tensors = 0, bytes = 0;
};

uint64_t tensor_bytes(const formats::Tensor& t) {
    uint64_t bytes = t.data.size() + t.scales.size() + t.biases.size();
    for (const auto piece : t.pieces) bytes += piece.size();
    return bytes;
}

std::string shape_text(const formats::Tensor& t) { return fmt::format("[{}]", fmt::join(t.shape, ", ")); }

nlohmann::json describe_layouts(const formats::Checkpoint& checkpoint) {
    nlohmann::json layouts = nlohmann::json::array();
    for (const formats::PackedLayout& l : formats::packed_layouts(checkpoint)) {
        const bool slow = l.layout == kernels::Layout::kTernaryDense && l.layout != kernels::fastest_ternary_layout();
        layouts.push_back({{"kind", l.kind},
                           {"layout", kernels::layout_name(l.layout)},
                           {"matrices", l.matrices},
                           {"bytes", l.bytes},
                           {"bits_per_weight", 8.0 * static_cast<double>(l.bytes) / static_cast<double>(l.weights)},
                           {"slow_on_this_cpu", slow}});
    }
    return layouts;
}

void print_layouts(const nlohmann::json& layouts) {
    bool slow = false;
    for (const auto& l : layouts) {
        print(fmt::format("  {:<12} {:<14} {:>6} matrices  {:>10}  {:.2f} bits a weight{}\n",
                          l["kind"].get<std::string>(), l["layout"].get<std::string>(), l["matrices"].get<uint64_t>(),
                          format_bytes(l["bytes"].get<double>()), l["bits_per_weight"].get<double>(),
                          l["slow_on_this_cpu"].get<bool>() ? ", slow on this CPU" : ""));
        slow = slow || l["slow_on_this_cpu"].get<bool>();
    }
    if (slow) {
        print(
            "This CPU lacks AVX-512 VBMI, without which ternary dense is about 15 times slower; run it after\n"
            "samara pack --layout 2bit.\n");
    }
}

nlohmann::json describe(const Options& o, const formats::Checkpoint& c, const model::ModelConfig& k,
                        const samara_memory_plan& plan) {
    std::map<std::string, TypeCount> types;
    nlohmann::json tensors = nlohmann::json::array();
    for (const formats::Tensor& t : c.tensors()) {
        const std::string type(formats::type_traits(t.type)->name);
        ++types[type].tensors;
        types[type].bytes += tensor_bytes(t);
        if (o.tensors)
            tensors.push_back({{"name", t.name}, {"type", type}, {"shape", t.shape}, {"bytes", tensor_bytes(t)}});
    }
    nlohmann::json type_list = nlohmann::json::object();
    for (const auto& [name, count] : types) type_list[name] = {{"tensors", count.tensors}, {"bytes", count.bytes}};
    nlohmann::json r{
        {"file", c.file()},
        {"format", formats::is_packed(c) ? "packed (" + c.format() + ")" : c.format()},
        {"file_bytes", c.file_bytes()},
        {"architecture", k.architecture},
        {"name", k.name},
        {"layers", k.layers},
        {"hidden", k.hidden},
        {"heads", k.heads},
        {"kv_heads", k.kv_heads},
        {"head_dim", k.head_dim},
        {"experts", k.experts},
        {"experts_used", k.experts_used},
        {"feed_forward", k.ffn},
        {"vocab", k.vocab},
        {"sliding_window", k.window},
        {"trained_context", k.context},
        {"parameters", k.parameters()},
        {"parameters_per_token", k.parameters_per_token()},
        {"types", type_list},
        {"memory",
         {{"weights_mapped", plan.weights_mapped},
          {"weights_owned", plan.weights_owned},
          {"kv_cache", plan.kv_cache},
          {"scratch", plan.scratch},
          {"total", plan.total}}},
    };
    if (formats::is_packed(c)) r["layouts"] = describe_layouts(c);
    if (o.tensors) r["tensors"] = tensors;
    return r;
}

void print_text(const nlohmann::json& r, uint64_t context) {
    const auto number = [&](const char* key) { return r[key].get<uint64_t>(); };
    const auto bytes = [](const nlohmann::json& v) { return format_bytes(v.get<double>()); };
    print(fmt::format("{}: {}, {}\n", r["file"].get<std::string>(), r["format"].get<std::string>(),
                      bytes(r["file_bytes"])));
    print(fmt::format("architecture  {} {}\n", r["architecture"].get<std::string>(),
                      pull::printable(r["name"].get<std::string>())));
    print(fmt::format("parameters    {}, {} per token\n", format_count(number("parameters")),
                      format_count(number("parameters_per_token"))));
    print(fmt::format("shape         {} layers, hidden {}, {} query and {} key/value heads of {}, vocabulary {}\n",
                      number("layers"), number("hidden"), number("heads"), number("kv_heads"), number("head_dim"),
                      number("vocab")));
    if (number("experts") > 0) {
        print(fmt::format("experts       {} a layer, of width {}; {} used per token\n", number("experts"),
                          number("feed_forward"), number("experts_used")));
    } else {
        print(fmt::format("feed-forward  {}\n", number("feed_forward")));
    }
    print(fmt::format("context       {} trained, sliding window {}\n", number("trained_context"),
                      number("sliding_window") > 0 ? std::to_string(number("sliding_window")) : "none"));
    for (const auto& [name, count] : r["types"].items()) {
        print(
            fmt::format("  {:<6} {:>5} tensors  {}\n", name, count["tensors"].get<uint64_t>(), bytes(count["bytes"])));
    }
    if (r.contains("layouts")) print_layouts(r["layouts"]);
    const auto& m = r["memory"];
    print(fmt::format(
        "memory        {} for one session of {} tokens: {} file pages, {} weights, {} KV cache, {} scratch\n",
        bytes(m["total"]), context, bytes(m["weights_mapped"]), bytes(m["weights_owned"]), bytes(m["kv_cache"]),
        bytes(m["scratch"])));
}

void run(Options o) {
    const InterruptGuard guard;
    const auto checkpoint = formats::Checkpoint::open({pull::resolve_model(o.load.model).string()});
    if (o.verify && !formats::is_packed(*checkpoint)) {
        throw Error(ErrorCode::kUnsupported,
                    checkpoint->file() + ": --verify needs a packed file, which carries checksums");
    }
    const model::ModelConfig config = model::read_config(*checkpoint);
    if (o.load.context == 0) o.load.context = std::min<uint64_t>(4096, static_cast<uint64_t>(config.context));
    const nlohmann::json result = describe(o, *checkpoint, config, plan_engine(o.load));
    if (o.json) {
        print(json_text(result, 2));
    } else {
        print_text(result, o.load.context);
        if (o.tensors) {
            for (const formats::Tensor& t : checkpoint->tensors()) {
                print(fmt::format("  {:<36} {:<6} {}\n", t.name, formats::type_traits(t.type)->name, shape_text(t)));
            }
        }
    }
    if (!o.verify) return;
    check_checksums(*checkpoint);
    if (!o.json) print("every checksum is right\n");
}

}  // namespace

void add_inspect(CLI::App& app) {
    auto* command =
        app.add_subcommand("inspect", "Show what is in a model file, what it needs, and what is wrong with it");
    auto o = std::make_shared<Options>();
    command->add_option("model", o->load.model, "GGUF, packed or .safetensors file, or a folder")->required();
    command
        ->add_option("--context", o->load.context, "Tokens to plan memory for; 0: the smaller of 4096 and the model's")
        ->check(whole_number);
    command->add_option("--threads", o->load.threads, "Threads to plan scratch memory for")
        ->check(CLI::Range(0U, 256U));
    command->add_flag("--tensors", o->tensors, "List every tensor");
    command->add_flag("--verify", o->verify, "Check every checksum of a packed file");
    command->add_flag("--json", o->json, "Print the result as one JSON object");
    command->footer(
        "Examples:\n"
        "  samara inspect maple.gguf --context 8192\n"
        "  samara inspect maple.samara.gguf --verify");
    command->callback([o] { run(*o); });
}

}  // namespace samara::cli
