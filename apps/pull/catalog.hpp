#pragma once
// The names that `samara pull` and `-m` know, and how a repository's file listing is read and searched.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace samara::pull {

/// One published form of maple-preview.
struct Variant {
    std::string_view name;     // as given to --variant
    std::string_view ternary;  // storage of the projections, in lower case
    std::string_view head;     // storage of embedding and head, in lower case
    double published_gib;      // size of the file as its authors state it, to 0.01 GiB
};
std::span<const Variant> maple_variants();
inline constexpr std::string_view kMapleName = "maple-preview";
inline constexpr std::string_view kMapleRepository = "deepgrove/maple-preview-GGUF";
inline constexpr std::string_view kDefaultVariant = "tq2_0-q4_k";

/// Throws Error(kInvalidArgument) that lists the variants.
const Variant& find_variant(std::string_view name);

/// What the command's positional argument means.
struct Source {
    std::string repository;            // "owner/repo", checked
    std::string file;                  // path inside the repository; empty: choose
    const Variant* variant = nullptr;  // set for maple-preview only
};
/// Parses "maple-preview", "owner/repo" or "owner/repo:file". Throws Error(kInvalidArgument).
Source parse_source(std::string_view text, std::optional<std::string_view> variant);

/// A file of a repository.
struct RemoteFile {
    std::string path;  // inside the repository, '/' between folders; checked, see is_safe_path
    uint64_t bytes = 0;
    std::string sha256;  // 64 lower-case hexadecimal digits; empty when the listing has none
};

struct Listing {
    std::vector<RemoteFile> files;
    size_t refused = 0;  // entries left out because their name is unsafe or a field has the wrong form
};

/// True for a relative path without "", ".", ".." or hidden components, backslashes, colons, control or non-ASCII
/// bytes, whose components are at most 200 bytes. Anything else in a listing is not downloaded.
bool is_safe_path(std::string_view path);

/// Reads one page of /api/models/<repo>/tree and adds its files. Throws Error(kFormat) naming `url` when it is no JSON
/// array or holds more than 100,000 entries.
void parse_listing(const std::string& json, const std::string& url, Listing& listing);

/// The files to download: one, or all parts of a split GGUF in order. Throws Error(kInvalidArgument) that lists the
/// candidates when the choice is not clear, Error(kFormat) when a part is missing.
std::vector<RemoteFile> choose_files(const Source& source, const Listing& listing);

/// "model-00002-of-00003.gguf" -> {"model", 2, 3}.
struct SplitName {
    std::string stem;
    unsigned part = 0;
    unsigned parts = 0;
};
std::optional<SplitName> parse_split_name(std::string_view file_name);

/// ASCII lower case.
std::string lower(std::string_view text);
/// Lower case without punctuation, for comparing file names: publishers write "TQ2_0", "tq2-0", "Q4_K_M".
std::string letters_and_digits(std::string_view text);
/// "4.64 GiB", "93.1 MiB", "12 bytes".
std::string human_bytes(uint64_t bytes);

}  // namespace samara::pull
