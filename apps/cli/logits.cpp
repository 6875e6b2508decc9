// samara logits: every position's logits, for checking the engine against references.

#include <fmt/format.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/cli/commands.hpp"
#include "apps/cli/console.hpp"
#include "apps/cli/files.hpp"
#include "src/platform/error.hpp"
#include "src/platform/sha256.hpp"

namespace samara::cli {
namespace {

struct Options {
    LoadFlags load;
    std::string tokens, out, experts;
    uint32_t chunk = 0;
    uint32_t greedy = 0;
    bool json = false;
};

// What the logits callback needs: rows come in ascending order for one sequence.
struct Sink {
    OutputFile* out;
    platform::Sha256 hash;
    size_t row_bytes;
    std::string failure;  // exceptions must not cross the C interface
    samara_session* session;
    ProgressBar bar{"computing logits", ProgressBar::Unit::kTokens};
};

void write_row(uint32_t, uint32_t, const float* logits, void* user) {
    auto& sink = *static_cast<Sink*>(user);
    if (!sink.failure.empty()) return;
    const std::span row(reinterpret_cast<const std::byte*>(logits), sink.row_bytes);
    sink.hash.update(row);
    try {
        if (sink.out != nullptr) sink.out->write(row);
    } catch (const std::exception& e) {
        sink.failure = e.what();
        samara_session_cancel(sink.session);
    }
}

// The layout that tools/reference reads: magic, tokens, layers, experts used, then uint16 choices.
void write_experts(const std::string& path, const std::vector<uint16_t>& experts, uint32_t tokens,
                   const samara_model_info& info) {
    OutputFile file(path);
    const uint32_t header[] = {tokens, info.layers, info.experts_used};
    file.write(std::as_bytes(std::span("SMEX", 4)));
    file.write(std::as_bytes(std::span(header)));
    file.write(std::as_bytes(std::span(experts)));
    file.finish();
}

std::vector<int32_t> generate_greedily(samara_session* session, uint32_t count) {
    samara_sampling greedy{};
    greedy.struct_size = sizeof greedy;
    samara_sampler* sampler = nullptr;
    check(samara_sampler_create(&greedy, &sampler));
    const SamplerHandle owner(sampler);
    std::vector<int32_t> tokens;
    samara_generate_params p{};
    p.struct_size = sizeof p;
    p.sampler = sampler;
    p.max_tokens = count;
    p.user = &tokens;
    p.on_token = [](int32_t token, const char*, size_t, void* user) {
        if (token >= 0) static_cast<std::vector<int32_t>*>(user)->push_back(token);
        return 1;
    };
    check(samara_generate(session, &p, nullptr));
    return tokens;
}

void refuse_overwriting_input(const Options& o) {
    const auto same = [](const std::string& a, const std::string& b) {
        std::error_code none;
        return !a.empty() && (a == b || std::filesystem::equivalent(a, b, none)) &&
               !std::filesystem::is_character_file(a, none);
    };
    if (same(o.out, o.experts)) {
        throw Error(ErrorCode::kInvalidArgument, "--experts: expected another file than --out, found " + o.experts);
    }
    for (const auto& [flag, path] : {std::pair("--out", o.out), std::pair("--experts", o.experts)}) {
        if (!same(path, o.tokens) && !same(path, o.load.model)) continue;
        throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {} is what is being read", flag, path));
    }
}

void run(Options o) {
    if (o.out.empty() && o.greedy == 0 && o.experts.empty()) {
        throw Error(ErrorCode::kInvalidArgument, "logits: expected --out, --experts or --greedy");
    }
    refuse_overwriting_input(o);
    const std::vector<int32_t> tokens = read_token_file(o.tokens);
    if (o.load.context == 0) o.load.context = tokens.size() + o.greedy;
    if (o.chunk != 0) o.load.max_step_tokens = std::max(o.chunk, o.load.max_step_tokens);
    const EngineHandle engine = load_engine(o.load);
    const samara_model_info info = model_info(engine.get());
    if (!o.experts.empty() && info.experts == 0) {
        throw Error(ErrorCode::kInvalidArgument, "--experts: this model has no experts");
    }
    const SessionHandle session = create_session(engine.get());
    const InterruptGuard guard(session.get());

    std::unique_ptr<OutputFile> out;
    if (!o.out.empty()) out = std::make_unique<OutputFile>(o.out);
    std::vector<uint16_t> experts(o.experts.empty() ? 0 : tokens.size() * info.layers * info.experts_used);
    Sink sink{out.get(), {}, info.vocab * sizeof(float), {}, session.get()};
    samara_step_input input{};
    input.struct_size = sizeof input;
    input.session = session.get();
    input.tokens = tokens.data();
    input.count = static_cast<uint32_t>(tokens.size());
    input.logits = o.out.empty() ? SAMARA_LOGITS_LAST : SAMARA_LOGITS_ALL;
    input.experts = experts.empty() ? nullptr : experts.data();
    samara_step_params step{};
    step.struct_size = sizeof step;
    step.inputs = &input;
    step.input_count = 1;
    step.chunk = o.chunk;
    step.on_logits = write_row;
    step.on_progress = [](uint64_t done, uint64_t total, void* user) {
        static_cast<Sink*>(user)->bar.update(done, total);
        return 1;
    };
    step.user = &sink;
    const samara_status status = samara_step(engine.get(), &step);
    if (!sink.failure.empty()) throw Error(ErrorCode::kIo, sink.failure);
    check(status);
    sink.bar.clear();

    nlohmann::json result{{"tokens_in", tokens.size()},
                          {"vocab", info.vocab},
                          {"isa", info.isa},
                          {"numerics", samara_numerics_version()}};
    if (out) {
        out->finish();
        result["sha256"] = sink.hash.finish();
    }
    if (!experts.empty()) write_experts(o.experts, experts, input.count, info);
    if (o.greedy > 0) result["tokens"] = generate_greedily(session.get(), o.greedy);
    if (o.json) {
        print(json_text(result));
        return;
    }
    if (out) print(fmt::format("{}  {}\n", result["sha256"].get<std::string>(), o.out));
    if (o.greedy > 0) print(result["tokens"].dump() + "\n");
}

}  // namespace

void add_logits(CLI::App& app) {
    auto* command = app.add_subcommand("logits", "Write the logits of every position, and their SHA-256");
    auto o = std::make_shared<Options>();
    add_load_flags(*command, o->load);
    command->add_option("--tokens", o->tokens, "File of token ids, separated by white space")->required();
    command->add_option("--out", o->out, "Write float32 [tokens, vocabulary] here");
    command->add_option("--experts", o->experts, "Write the chosen experts, uint16 [tokens, layers, used], here");
    command->add_option("--chunk", o->chunk, "Tokens a pass at most (the result does not depend on it)")
        ->check(CLI::Range(1U, 65536U));
    command->add_option("--greedy", o->greedy, "Then generate this many tokens greedily and print them")
        ->check(CLI::Range(0U, 1U << 24));
    command->add_flag("--json", o->json, "Print the result as one JSON object");
    command->footer(
        "Examples:\n"
        "  samara tokenize -m M -p \"Hello\" > ids.txt\n"
        "  samara logits -m M --tokens ids.txt --out logits.f32\n"
        "  samara logits -m M --tokens ids.txt --out logits.f32 --experts experts.bin --chunk 7 --isa scalar");
    command->callback([o] { run(*o); });
}

}  // namespace samara::cli
