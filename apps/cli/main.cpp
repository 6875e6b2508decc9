// samara: the command line. Exit codes: 0 done, 1 failed (the reason is on standard error), 2 wrong usage, 130 stopped
// by Ctrl-C.

#include <fmt/format.h>

#include <clocale>
#include <csignal>
#include <cstring>
#include <iostream>

#include "apps/cli/commands.hpp"
#include "apps/cli/console.hpp"
#include "apps/pull/models.hpp"
#include "apps/pull/pull.hpp"
#include "src/platform/error.hpp"

namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kInterrupted = 130;

// Output that could not be written is a failure, also of commands that print and return.
int flushed(int code) {
    const bool good = std::cout.flush().good() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    if (good || code != 0) return code;
    fmt::print(stderr, "samara: standard output: cannot write all of it\n");
    return kFailed;
}

int run_program(int argc, char** argv) {
    CLI::App app("Samara runs ternary mixture-of-experts language models exactly, fast and in bounded memory.",
                 "samara");
    app.set_version_flag("--version", std::string("samara ") + samara_version() + ", numerics " +
                                          std::to_string(samara_numerics_version()));
    app.require_subcommand(1);
    app.footer(
        "Examples:\n"
        "  samara run -m smollm2 -p \"Why is the sky blue?\"\n"
        "  samara chat -m maple-preview\n"
        "  samara bench -m model.gguf --json\n"
        "Every command has --help with examples.");
    samara::cli::add_run(app);
    samara::cli::add_chat(app);
    samara::cli::add_bench(app);
    samara::cli::add_logits(app);
    samara::cli::add_perplexity(app);
    samara::cli::add_tokenize(app);
    samara::cli::add_inspect(app);
    samara::cli::add_verify(app);
    samara::cli::add_plan(app);
    samara::cli::add_pack(app);
    samara::cli::add_synth(app);
    app.add_subcommand("pull", "Download a published model (samara pull --help)");
    app.add_subcommand("models", "List known and installed models (samara models --help)");
    if (argc > 1 && *argv[1] != '-' &&
        app.get_subcommands([&](const CLI::App* s) { return s->check_name(argv[1]); }).empty()) {
        fmt::print(stderr, "samara: unknown command '{}'; samara --help lists the commands\n", argv[1]);
        return kUsage;
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
        return app.exit(e) == 0 ? 0 : kUsage;
    }
    return samara::cli::interrupted() ? kInterrupted : 0;
}

}  // namespace

int main(int argc, char** argv) {
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);        // a file too large for ulimit fails like a full disk, and is cleaned up
    std::setlocale(LC_CTYPE, "C.UTF-8");  // what the line editor takes for characters
    // The downloader parses its own flags.
    if (argc > 1 && std::strcmp(argv[1], "pull") == 0) return flushed(samara::pull::pull_main(argc - 1, argv + 1));
    if (argc > 1 && std::strcmp(argv[1], "models") == 0) return flushed(samara::pull::models_main(argc - 1, argv + 1));
    try {
        return flushed(run_program(argc, argv));
    } catch (const samara::Error& e) {
        if (e.code() == samara::ErrorCode::kCancelled) {
            fmt::print(stderr, "samara: stopped\n");
            return kInterrupted;
        }
        fmt::print(stderr, "samara: {}\n", e.what());
        return e.code() == samara::ErrorCode::kInvalidArgument ? kUsage : kFailed;
    } catch (const std::bad_alloc&) {
        fmt::print(stderr, "samara: the system has no more memory\n");
        return kFailed;
    } catch (const std::exception& e) {
        fmt::print(stderr, "samara: {}\n", e.what());
        return kFailed;
    }
}
