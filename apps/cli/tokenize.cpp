// samara tokenize: text to ids and back. Reads the model's headers only.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/commands.hpp"
#include "apps/cli/console.hpp"
#include "apps/cli/files.hpp"
#include "apps/cli/text.hpp"
#include "src/platform/error.hpp"

namespace samara::cli {
namespace {

struct Options {
    std::string model, file, decode;
    std::optional<std::string> prompt;
    bool special = false, chat = false, json = false;
};

std::vector<int32_t> encode(const Options& o, const Tokenizer& tokenizer) {
    const std::string text = o.prompt ? *o.prompt : read_text(o.file.empty() ? "-" : o.file);
    if (!o.chat) return tokenizer.encode(text, o.special, true);
    return tokenizer.encode_chat(nlohmann::json::array({{{"role", "user"}, {"content", text}}}), true);
}

void run(const Options& o) {
    LoadFlags load;
    load.model = o.model;
    load.metadata_only = true;
    const EngineHandle engine = load_engine(load);
    const Tokenizer tokenizer(engine.get());
    if (!o.decode.empty()) {
        const std::vector<int32_t> tokens = read_token_file(o.decode);
        print(tokenizer.decode(tokens, false));
        return;
    }
    const std::vector<int32_t> tokens = encode(o, tokenizer);
    if (!o.json) {
        print(fmt::format("{}\n", fmt::join(tokens, " ")));
        return;
    }
    nlohmann::json pieces = nlohmann::json::array();
    for (const int32_t t : tokens) pieces.push_back(tokenizer.token_bytes(t));
    print(json_text({{"tokens", tokens}, {"pieces", pieces}}));
}

}  // namespace

void add_tokenize(CLI::App& app) {
    auto* command = app.add_subcommand("tokenize", "Turn text into token ids, or ids into text");
    auto o = std::make_shared<Options>();
    command->add_option("-m,--model", o->model, "Model file or folder, or an installed model's name")->required();
    auto* input = command->add_option_group("input");
    input->add_option("-p,--prompt", o->prompt, "The text");
    input->add_option("-f,--file", o->file, "Read the text from a file; - is standard input (the default)");
    input->add_option("--decode", o->decode, "Print the text of the ids in this file");
    input->require_option(0, 1);
    command->add_flag("--special", o->special, "Special tokens written in the text become those tokens");
    command->add_flag("--chat", o->chat, "Wrap the text as a user's message in the chat template");
    command->add_flag("--json", o->json, "Print ids and pieces as one JSON object");
    command->footer(
        "Examples:\n"
        "  samara tokenize -m M -p \"Hello, world\"\n"
        "  samara tokenize -m M -f text.txt > ids.txt\n"
        "  samara tokenize -m M --decode ids.txt        the text and nothing else, not even a line's end");
    command->callback([o] { run(*o); });
}

}  // namespace samara::cli
