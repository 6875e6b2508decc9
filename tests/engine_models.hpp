#pragma once
// What the engine's tests share: small synthetic models in a folder of the test program's own, prompts, and logits.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "samara/engine.hpp"
#include "src/synth/synth.hpp"

namespace samara::testing {

/// A folder that lives as long as the program.
inline const std::string& temporary_folder() {
    struct Folder {
        std::string path = (std::filesystem::temp_directory_path() / "samara-test-XXXXXX").string();
        Folder() {
            if (mkdtemp(path.data()) == nullptr) throw Error(ErrorCode::kIo, "mkdtemp " + path);
        }
        ~Folder() {
            std::error_code ignored;
            std::filesystem::remove_all(path, ignored);
        }
    };
    static const Folder folder;
    return folder.path;
}

/// Path of a synthetic model, written on first use.
inline const std::string& synthetic_model(const std::string& preset, const std::string& type, uint64_t seed = 1,
                                          uint32_t outliers = 0) {
    static std::map<std::string, std::string> written;
    const std::string name =
        preset + "-" + type + "-" + std::to_string(seed) + "-" + std::to_string(outliers) + ".gguf";
    std::string& path = written[name];
    if (path.empty()) {
        synth::Options o;
        o.type = synth::parse_type(type);
        o.seed = seed;
        o.outliers = outliers;
        synth::write_model(preset, o, temporary_folder() + "/" + name, {});
        path = temporary_folder() + "/" + name;
    }
    return path;
}

/// Token ids that look random and are the same on every machine (SplitMix64 of the index).
inline std::vector<int32_t> prompt(int count, int vocab, uint64_t seed = 1) {
    std::vector<int32_t> tokens;
    for (uint64_t i = 0; i < static_cast<uint64_t>(count); ++i) {
        uint64_t z = (seed << 32) + (i + 1) * 0x9e3779b97f4a7c15U;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
        tokens.push_back(static_cast<int32_t>((z ^ (z >> 31)) % static_cast<uint64_t>(vocab)));
    }
    return tokens;
}

inline std::unique_ptr<Engine> load(const std::string& path, int threads = 2, const std::string& isa = "auto") {
    LoadOptions o;
    o.path = path;
    o.threads = threads;
    o.isa = isa;
    o.context_tokens = 512;
    return Engine::load(o);
}

/// Adds `tokens` and returns the logits of every one of them, (tokens, vocab).
inline std::vector<float> step_all(Session& session, std::span<const int32_t> tokens, int chunk = 0) {
    const auto vocab = static_cast<size_t>(session.engine().info().vocab);
    std::vector<float> all(tokens.size() * vocab);
    const StepInput input{&session, tokens, LogitsWanted::kAll, nullptr};
    StepParams step;
    step.inputs = {&input, 1};
    step.chunk = chunk;
    step.on_logits = [&](int, int token, std::span<const float> logits) {
        std::copy(logits.begin(), logits.end(), all.begin() + static_cast<int64_t>(static_cast<size_t>(token) * vocab));
    };
    session.engine().step(step);
    return all;
}

/// Logits of every token of a fresh sequence.
inline std::vector<float> logits_of(Engine& engine, std::span<const int32_t> tokens, int chunk = 0) {
    const auto session = engine.create_session();
    return step_all(*session, tokens, chunk);
}

/// Adds `tokens`; the logits of the last one stay in the session.
inline void add(Session& session, std::span<const int32_t> tokens, LogitsWanted logits = LogitsWanted::kLast) {
    const StepInput input{&session, tokens, logits, nullptr};
    StepParams step;
    step.inputs = {&input, 1};
    session.engine().step(step);
}

/// Equal bits, not equal values: -0 differs from 0.
inline ::testing::AssertionResult same_bits(std::span<const float> a, std::span<const float> b) {
    if (a.size() != b.size()) {
        return ::testing::AssertionFailure() << a.size() << " values and " << b.size() << " values";
    }
    for (size_t i = 0; i < a.size(); ++i) {
        if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
            return ::testing::AssertionFailure() << "value " << i << ": " << a[i] << " and " << b[i];
        }
    }
    return ::testing::AssertionSuccess();
}

/// The error `body` throws, as its code and message; fails the test when it throws none.
template <class Body>
Error error_of(Body&& body) {
    try {
        body();
    } catch (const Error& e) {
        return e;
    }
    ADD_FAILURE() << "expected an error";
    return {ErrorCode::kInternal, ""};
}

}  // namespace samara::testing
