#pragma once
// Synthetic models: GGUF files with random weights of sane scale and a real tokenizer, which load wherever the real
// model does. The same preset, type, seed and outliers give the same bytes on every machine.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "src/formats/checkpoint.hpp"
#include "src/synth/preset.hpp"

namespace samara::synth {

struct Options {
    /// Of the projections. maple: kTQ2_0 or kTQ1_0 (embedding and head Q4_K), kF16, kF32 (embedding and head alike);
    /// llama: kF32, kF16, kQ8_0, kQ4_1. One seed gives the same ternary weights in every type.
    formats::TensorType type = formats::TensorType::kTQ2_0;
    uint64_t seed = 1;
    uint32_t outliers = 0;       // hidden channels whose residual values are 20 to 50 times larger
    std::string tokenizer = {};  // Qwen's tokenizer.json for the presets that need it; empty: default_tokenizer_path()
    uint32_t threads = 0;        // 0: as many as the machine has; the bytes do not depend on it
};

struct Report {
    uint64_t file_bytes = 0;
    uint64_t weights = 0;  // all tensors together
};

/// Progress in bytes; return false to cancel (the operation throws Error(kCancelled) and leaves nothing behind).
using Progress = std::function<bool(uint64_t done, uint64_t total)>;

/// "tq2_0", "tq1_0", "f16", "f32", "q8_0", "q4_1". Throws Error(kInvalidArgument) that lists them.
formats::TensorType parse_type(std::string_view text);

/// Writes the model at `path`, atomically. `progress` may be empty; it is called from the calling thread.
/// Throws Error(kInvalidArgument | kIo | kFormat | kCancelled).
Report write_model(std::string_view preset, const Options& options, const std::string& path, const Progress& progress);

}  // namespace samara::synth
