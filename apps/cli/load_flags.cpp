#include "apps/cli/commands.hpp"

namespace samara::cli {

void add_load_flags(CLI::App& command, LoadFlags& flags) {
    command.add_option("-m,--model", flags.model, "Model file or folder, or an installed model's name")->required();
    command.add_option("--threads", flags.threads, "Threads; 0: all CPUs this process may use")
        ->check(CLI::Range(0U, 256U));
    command.add_option("--isa", flags.isa,
                       "Instruction set: auto, or one by name, such as avx2, avx512 or amx (the result is the same)");
    command
        .add_option("--context", flags.context,
                    "Tokens to make room for, prompt and answer together; 0: the smaller of 4096 and the model's")
        ->check(whole_number);
    command
        .add_option("--head", flags.head,
                    "How answers read the vocabulary head: full; screened: in part where that gives the same tokens; "
                    "checked: both, compared; flash: approximately, faster, from a file packed with --flash-index; or "
                    "flash-checked: the same, and says how often it finds the best tokens. All but full need "
                    "--temperature 0 or a --top-k of 1 to 256, and read the head whole else")
        ->check(CLI::IsMember({"full", "screened", "checked", "flash", "flash-checked"}))
        ->capture_default_str();
    command.add_option("--kv", flags.kv, "Keep keys and values as int16, or as int8: half the memory, other logits")
        ->check(CLI::IsMember({"int16", "int8"}))
        ->capture_default_str();
    command.add_option("--memory-budget", flags.memory_budget, "Refuse to load when more would be needed, e.g. 6GiB");
}

void add_speculation_flags(CLI::App& command, SpeculationFlags& flags) {
    command
        .add_option(
            "--speculation", flags.mode,
            "Draft tokens where the text repeats itself and compute them together; the answer is the same. auto: "
            "where that is expected to be faster; off; or always: wherever it repeats")
        ->check(CLI::IsMember({"auto", "off", "always"}))
        ->capture_default_str();
    command.add_option("--max-draft", flags.max_draft, "Tokens to draft at a time; 0: 8")->check(CLI::Range(0U, 15U));
}

}  // namespace samara::cli
