#include "apps/pull/models.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/pull/catalog.hpp"
#include "apps/pull/progress.hpp"
#include "src/platform/error.hpp"

namespace samara::pull {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 4;
constexpr std::string_view kPart = ".part";

bool is_gguf_name(std::string_view name) { return lower(name).ends_with(".gguf"); }

/// "samara pack" names its output by the user's choice; by convention it says "packed".
bool is_packed_name(const InstalledModel& model) {
    return lower(model.path.filename().string()).find("packed") != std::string::npos;
}

bool name_contains(const InstalledModel& model, std::string_view token) {
    return letters_and_digits(model.path.filename().string()).find(letters_and_digits(token)) != std::string::npos;
}

bool is_variant(const InstalledModel& model, const Variant& variant) {
    constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
    if (!name_contains(model, "maple")) return false;
    if (name_contains(model, variant.ternary) && name_contains(model, variant.head)) return true;
    const double gib = static_cast<double>(model.bytes) / kGib;
    return gib > variant.published_gib - 0.01 && gib < variant.published_gib + 0.01;
}

using Test = std::function<bool(const InstalledModel&)>;

std::optional<fs::path> first_match(const std::vector<InstalledModel>& models, const Test& test) {
    const auto usable = [&test](const InstalledModel& model) { return !model.partial && test(model); };
    for (const InstalledModel& model : models) {
        if (usable(model) && is_packed_name(model)) return model.path;
    }
    for (const InstalledModel& model : models) {
        if (usable(model)) return model.path;
    }
    return std::nullopt;
}

std::optional<fs::path> find_maple(const std::vector<InstalledModel>& models, std::string_view variant) {
    if (!variant.empty()) {
        const Variant& wanted = find_variant(variant);
        return first_match(models, [&wanted](const InstalledModel& model) { return is_variant(model, wanted); });
    }
    for (const Variant& candidate : maple_variants()) {  // the default comes first
        const auto found = find_maple(models, candidate.name);
        if (found) return found;
    }
    return first_match(models, [](const InstalledModel& model) { return name_contains(model, kMapleName); });
}

std::optional<fs::path> find_smollm2(const std::vector<InstalledModel>& models) {
    return first_match(models, [](const InstalledModel& model) { return name_contains(model, "smollm2"); });
}

/// "owner/repo" or "owner/repo:file", or a bare file name.
std::optional<fs::path> find_downloaded(const std::vector<InstalledModel>& models, std::string_view name) {
    const std::string_view repository = name.substr(0, name.find(':'));
    const std::string_view file = repository.size() < name.size() ? name.substr(repository.size() + 1) : "";
    if (name.find('/') != std::string_view::npos) {
        const fs::path folder = models_directory() / repository;
        const auto base = fs::path(file).filename();
        return first_match(models, [&](const InstalledModel& model) {
            return model.path.parent_path() == folder && (base.empty() || model.path.filename() == base);
        });
    }
    return first_match(models, [&name](const InstalledModel& model) {
        const std::string base = lower(model.path.filename().string());
        return base == lower(name) || base == lower(name) + ".gguf";
    });
}

std::string list_installed(const std::vector<InstalledModel>& models) {
    std::string text;
    for (const InstalledModel& model : models) {
        if (!model.partial) text += fmt::format("\n  {}", printable(model.path.filename().string()));
    }
    return text.empty() ? " nothing" : text;
}

struct KnownModel {
    std::string name;
    std::string size;
    std::string how_to_get;
    std::optional<fs::path> installed;
};

std::vector<KnownModel> known_models(const std::vector<InstalledModel>& installed) {
    std::vector<KnownModel> known;
    for (const Variant& variant : maple_variants()) {
        known.push_back({fmt::format("{}:{}", kMapleName, variant.name),
                         fmt::format("{:.2f} GiB", variant.published_gib),
                         fmt::format("samara pull {} --variant {}", kMapleName, variant.name),
                         find_maple(installed, variant.name)});
    }
    known.push_back({"smollm2", "94 MiB", "./quickstart", find_smollm2(installed)});
    return known;
}

void print_json(const std::vector<KnownModel>& known, const std::vector<InstalledModel>& installed) {
    Json json = {{"directory", models_directory().string()}, {"known", Json::array()}, {"installed", Json::array()}};
    for (const KnownModel& model : known) {
        json["known"].push_back({{"name", model.name},
                                 {"size", model.size},
                                 {"get", model.how_to_get},
                                 {"path", model.installed ? Json(model.installed->string()) : Json()}});
    }
    for (const InstalledModel& model : installed) {
        json["installed"].push_back(
            {{"path", model.path.string()}, {"bytes", model.bytes}, {"partial", model.partial}});
    }
    fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

void print_table(const std::vector<KnownModel>& known, const std::vector<InstalledModel>& installed) {
    fmt::print("Known models\n");
    for (const KnownModel& model : known) {
        fmt::print("  {:<26} {:>9}  {}\n", model.name, model.size,
                   model.installed ? "installed" : "get it with: " + model.how_to_get);
    }
    fmt::print("\nInstalled in {}\n", models_directory().string());
    if (installed.empty()) fmt::print("  nothing yet\n");
    for (const InstalledModel& model : installed) {
        fmt::print("  {:<50} {:>10}{}\n", printable(fs::relative(model.path, models_directory()).string()),
                   human_bytes(model.bytes), model.partial ? "  (unfinished download)" : "");
    }
}

}  // namespace

fs::path models_directory() {
    const auto variable = [](const char* name) {
        const char* value = std::getenv(name);
        return std::string(value != nullptr ? value : "");
    };
    if (const std::string cache = variable("SAMARA_CACHE"); !cache.empty()) return fs::path(cache) / "models";
    const std::string home = variable("HOME");
    if (home.empty()) {
        throw Error(ErrorCode::kInvalidArgument, "the models' folder: expected SAMARA_CACHE or HOME to be set");
    }
    return fs::path(home) / ".cache" / "samara" / "models";
}

std::vector<InstalledModel> installed_models() {
    std::vector<InstalledModel> models;
    std::map<std::string, uint64_t> later_parts;  // path of a split model's first part -> bytes of the others
    std::error_code error;
    fs::recursive_directory_iterator at(models_directory(), fs::directory_options::skip_permission_denied, error);
    for (const fs::recursive_directory_iterator end; !error && at != end; at.increment(error)) {
        if (at.depth() >= kMaxDepth) at.disable_recursion_pending();
        std::error_code none;
        if (!at->is_regular_file(none)) continue;
        std::string name = at->path().filename().string();
        const bool partial = name.ends_with(kPart);
        if (partial) name.resize(name.size() - kPart.size());
        if (!is_gguf_name(name)) continue;
        const uint64_t bytes = at->file_size(none);
        const auto split = partial ? std::nullopt : parse_split_name(name);
        if (split && split->part > 1) {
            const std::string first = fmt::format("{}-{:05}-of-{:05}.gguf", split->stem, 1, split->parts);
            later_parts[(at->path().parent_path() / first).string()] += bytes;
        } else {
            models.push_back({at->path(), bytes, partial});
        }
    }
    for (InstalledModel& model : models) {
        const auto more = later_parts.find(model.path.string());
        if (more != later_parts.end()) model.bytes += more->second;
    }
    std::ranges::sort(models, {}, &InstalledModel::path);
    return models;
}

fs::path resolve_model(std::string_view name) {
    std::error_code none;
    if (fs::exists(fs::path(name), none)) return fs::path(name);
    const std::vector<InstalledModel> models = installed_models();
    const std::string_view base = name.substr(0, name.find(':'));
    const std::string_view detail = base.size() < name.size() ? name.substr(base.size() + 1) : "";
    if (base == kMapleName) {
        if (const auto found = find_maple(models, detail)) return *found;
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("model '{}' is not installed; get it with: samara pull {}{}", name, kMapleName,
                                detail.empty() ? "" : fmt::format(" --variant {}", detail)));
    }
    if (base == "smollm2") {
        if (const auto found = find_smollm2(models)) return *found;
        throw Error(ErrorCode::kInvalidArgument, "model 'smollm2' is not installed; get it with: ./quickstart");
    }
    if (const auto found = find_downloaded(models, name)) return *found;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("model '{}': no such file, and no model of that name in {}, which has{}", name,
                            models_directory().string(), list_installed(models)));
}

int models_main(int argc, char** argv) {
    try {
        bool json = false;
        std::string name;
        CLI::App app("Lists the models that have a name and what is installed, or finds the file of one.");
        app.name("samara models");
        app.footer(
            "Examples:\n  samara models\n  samara models --json\n  samara models maple-preview    prints its file's "
            "path\n\n"
            "The folder is ${SAMARA_CACHE:-~/.cache/samara}/models; any name shown works after -m.");
        app.add_option("name", name, "print the path of this model's file");
        app.add_flag("--json", json, "one JSON object");
        try {
            app.parse(argc, argv);
        } catch (const CLI::ParseError& error) {
            return app.exit(error) == 0 ? 0 : 2;
        }
        if (!name.empty()) {
            fmt::print("{}\n", resolve_model(name).string());
            return 0;
        }
        const std::vector<InstalledModel> installed = installed_models();
        const std::vector<KnownModel> known = known_models(installed);
        json ? print_json(known, installed) : print_table(known, installed);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "samara models: %s\n", error.what());
        return 1;
    }
}

}  // namespace samara::pull
