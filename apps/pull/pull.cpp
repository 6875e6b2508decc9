#include "apps/pull/pull.hpp"

#include <curl/curl.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>

#include "apps/pull/catalog.hpp"
#include "apps/pull/download.hpp"
#include "apps/pull/models.hpp"
#include "src/platform/error.hpp"

namespace samara::pull {
namespace {

namespace fs = std::filesystem;

constexpr int kExitCancelled = 130;  // what a shell reports for a program that Ctrl-C ended
constexpr uint64_t kMaxListingBytes = 32ULL << 20;
constexpr int kMaxListingPages = 100;

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

/// SIGINT and SIGTERM ask the transfer to stop while this lives; a second one ends the process at once.
class StopOnSignal {
  public:
    StopOnSignal() {
        stop_requested = false;
        struct sigaction action{};
        action.sa_handler = [](int) { stop_requested = true; };
        action.sa_flags = static_cast<int>(SA_RESETHAND);
        sigaction(SIGINT, &action, &old_int_);
        sigaction(SIGTERM, &action, &old_term_);
    }
    ~StopOnSignal() {
        sigaction(SIGINT, &old_int_, nullptr);
        sigaction(SIGTERM, &old_term_, nullptr);
    }
    StopOnSignal(const StopOnSignal&) = delete;
    StopOnSignal& operator=(const StopOnSignal&) = delete;

  private:
    struct sigaction old_int_{}, old_term_{};
};

struct Arguments {
    std::string model;
    std::string variant;
    std::string folder;
    std::string base_url;
    bool json = false;
    long timeout = 30;
    uint64_t min_free = 256ULL << 20;
    DownloadOptions download;
};

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
}

void describe_options(CLI::App& app, Arguments& arguments) {
    app.name("samara pull");
    app.footer(
        "Examples:\n"
        "  samara pull maple-preview\n"
        "  samara pull maple-preview --variant tq1_0-q4_k -o ~/models\n"
        "  samara pull owner/repo:file.gguf --json\n\n"
        "Without -o the file goes to ${SAMARA_CACHE:-~/.cache/samara}/models/OWNER/REPO, where -m NAME finds it. An\n"
        "interrupted download is kept as FILE.part and continued by the same command. Environment: HF_ENDPOINT "
        "(another\n"
        "server), HF_TOKEN (sent to that server alone), HTTPS_PROXY, NO_PROXY. Exit codes: 0 done, 1 failed, 2 wrong\n"
        "usage, 130 stopped. The file's path is printed on standard output.");
    app.add_option("model", arguments.model, "maple-preview, owner/repo or owner/repo:file")->required();
    std::string variants;
    for (const Variant& variant : maple_variants()) {
        variants += fmt::format("{}{} ({:.2f} GiB)", variants.empty() ? "" : ", ", variant.name, variant.published_gib);
    }
    app.add_option("--variant", arguments.variant,
                   fmt::format("of maple-preview: {}; default {}", variants, kDefaultVariant));
    app.add_option("-o,--output", arguments.folder, "folder to download to");
    app.add_option("--base-url", arguments.base_url, "server, default $HF_ENDPOINT, else https://huggingface.co");
    app.add_flag("--json", arguments.json, "one JSON object a line on standard output");
    app.add_option("--timeout", arguments.timeout,
                   "seconds without data after which a connection is dropped, default 30")
        ->check(CLI::Range(1L, 3600L));
    app.add_option("--retries", arguments.download.attempts, "tries in a row without progress, default 6")
        ->check(CLI::Range(1, 1000));
    app.add_option("--backoff", arguments.download.backoff_seconds, "seconds before the second try, default 1; doubles")
        ->check(CLI::Range(0.0, kMaxBackoffSeconds));
    app.add_option("--min-free", arguments.min_free, "bytes of the disk to leave free, default 268435456");
}

HttpOptions http_options(const Arguments& arguments) {
    HttpOptions options;
    options.endpoint = arguments.base_url;
    if (options.endpoint.empty()) options.endpoint = environment("HF_ENDPOINT");
    if (options.endpoint.empty()) options.endpoint = "https://huggingface.co";
    options.token = environment("HF_TOKEN");
    for (const char c : options.token) {
        if (c <= 0x20 || c > 0x7e)
            throw Error(ErrorCode::kInvalidArgument, "HF_TOKEN: holds a space or control character");
    }
    options.stall_timeout = std::chrono::seconds(arguments.timeout);
    options.stop = &stop_requested;
    return options;
}

Listing fetch_listing(HttpClient& client, const std::string& repository, const DownloadOptions& options,
                      Reporter& reporter) {
    Listing listing;
    std::string url = fmt::format("{}/api/models/{}/tree/main?recursive=true", client.endpoint(), repository);
    for (int page = 0; page < kMaxListingPages && !url.empty(); ++page) {
        std::string text, next;
        with_retries(
            options, reporter, [] { return uint64_t{0}; },
            [&] { text = client.get_text(url, kMaxListingBytes, &next); });
        parse_listing(text, url, listing);
        url = next;
    }
    return listing;
}

/// Bytes still to come for `file`, judged by sizes alone.
uint64_t missing_bytes(const RemoteFile& file, const fs::path& target) {
    std::error_code none;
    if (fs::exists(target, none)) return 0;
    const uint64_t part = fs::file_size(target.string() + ".part", none);
    return none || part > file.bytes ? file.bytes : file.bytes - part;
}

void pull(const Arguments& arguments, Reporter& reporter) {
    const Source source = parse_source(
        arguments.model, arguments.variant.empty() ? std::nullopt : std::optional<std::string_view>(arguments.variant));
    HttpClient client(http_options(arguments));
    const Listing listing = fetch_listing(client, source.repository, arguments.download, reporter);
    const std::vector<RemoteFile> files = choose_files(source, listing);

    const fs::path folder =
        arguments.folder.empty() ? models_directory() / source.repository : fs::path(arguments.folder);
    fs::create_directories(folder);
    const auto target_of = [&folder](const RemoteFile& file) { return folder / fs::path(file.path).filename(); };
    uint64_t needed = 0;
    for (const RemoteFile& file : files) needed += missing_bytes(file, target_of(file));
    check_free_space(folder, needed, arguments.min_free);

    for (const RemoteFile& file : files) {
        const std::string url =
            fmt::format("{}/{}/resolve/main/{}", client.endpoint(), source.repository, encode_path(file.path));
        const bool fresh = download(client, url, file, target_of(file), arguments.download, reporter);
        reporter.done(target_of(file).string(), file.bytes, file.sha256, fresh);
    }
}

int parse_and_pull(int argc, char** argv) {
    Arguments arguments;
    arguments.download.stop = &stop_requested;
    CLI::App app("Downloads a published model file, checks its SHA-256 and continues where an earlier try stopped.");
    describe_options(app, arguments);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;
    }
    Reporter reporter(report_style(arguments.json));
    const StopOnSignal stop_on_signal;
    try {
        curl_global_init(CURL_GLOBAL_DEFAULT);
        pull(arguments, reporter);
        return 0;
    } catch (const Error& error) {
        const bool cancelled = error.code() == ErrorCode::kCancelled;
        reporter.error(cancelled ? "stopped; the same command continues the download" : error.what(), cancelled);
        return cancelled ? kExitCancelled : 1;
    } catch (const std::exception& error) {
        reporter.error(error.what(), false);
        return 1;
    }
}

}  // namespace

int pull_main(int argc, char** argv) {
    try {
        return parse_and_pull(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "samara pull: %s\n", error.what());
        return 1;
    }
}

}  // namespace samara::pull
