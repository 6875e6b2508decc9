#pragma once
// The subcommands. Each function adds one to the program; its callback runs it and throws samara::Error on failure.

#include <CLI/CLI.hpp>

#include "apps/cli/engine.hpp"

namespace samara::cli {

void add_run(CLI::App& app);
void add_chat(CLI::App& app);
void add_bench(CLI::App& app);
void add_logits(CLI::App& app);
void add_perplexity(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_inspect(CLI::App& app);
void add_pack(CLI::App& app);
void add_plan(CLI::App& app);
void add_synth(CLI::App& app);
void add_verify(CLI::App& app);

/// Adds -m and the other flags of LoadFlags to a command.
void add_load_flags(CLI::App& command, LoadFlags& flags);
/// Adds --speculation and --max-draft.
void add_speculation_flags(CLI::App& command, SpeculationFlags& flags);

}  // namespace samara::cli
