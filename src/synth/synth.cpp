#include "src/synth/synth.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "src/formats/gguf_writer.hpp"
#include "src/synth/tensors.hpp"
#include "src/synth/tokenizer.hpp"

namespace samara::synth {
namespace {

using formats::TensorType;

constexpr size_t kBatchBytes = size_t{32} << 20;
constexpr uint64_t kRowsPerTask = 64;

constexpr std::pair<std::string_view, TensorType> kTypes[] = {
    {"tq2_0", TensorType::kTQ2_0}, {"tq1_0", TensorType::kTQ1_0}, {"f16", TensorType::kF16},
    {"f32", TensorType::kF32},     {"q8_0", TensorType::kQ8_0},   {"q4_1", TensorType::kQ4_1},
};

// Rows [first, first + count) of one tensor, made together and then written.
struct Batch {
    const TensorRecipe* recipe = nullptr;
    uint64_t first = 0;
    uint64_t count = 0;

    uint64_t bytes() const { return count * recipe->row_bytes(); }
};

// Makes a batch into `out` on `threads` threads while the caller does something else; join() waits and hands on an
// exception.
class BatchMaker {
  public:
    BatchMaker(const Batch& batch, std::span<std::byte> out, uint64_t seed, uint32_t threads)
        : batch_(batch), out_(out), seed_(seed) {
        errors_.resize(threads);
        for (uint32_t t = 0; t < threads; ++t) {
            threads_.emplace_back([this, t] {
                try {
                    make_rows();
                } catch (...) {
                    errors_[t] = std::current_exception();
                }
            });
        }
    }
    void join() {
        for (std::jthread& thread : threads_) thread.join();
        threads_.clear();
        for (const std::exception_ptr& error : errors_) {
            if (error) std::rethrow_exception(error);
        }
    }

  private:
    void make_rows() {
        std::vector<float> scratch;
        const size_t row_bytes = batch_.recipe->row_bytes();
        for (uint64_t begin; (begin = next_.fetch_add(kRowsPerTask)) < batch_.count;) {
            const uint64_t end = std::min(begin + kRowsPerTask, batch_.count);
            for (uint64_t r = begin; r < end; ++r) {
                make_row(*batch_.recipe, seed_, batch_.first + r, scratch, out_.subspan(r * row_bytes, row_bytes));
            }
        }
    }

    const Batch& batch_;
    std::span<std::byte> out_;
    uint64_t seed_;
    std::atomic<uint64_t> next_{0};
    std::vector<std::exception_ptr> errors_;
    std::vector<std::jthread> threads_;  // last: joined before what they use goes
};

std::vector<Batch> plan_batches(const std::vector<TensorRecipe>& recipes) {
    std::vector<Batch> batches;
    for (const TensorRecipe& recipe : recipes) {
        const uint64_t step = std::max<uint64_t>(1, kBatchBytes / recipe.row_bytes());
        for (uint64_t first = 0; first < recipe.rows(); first += step) {
            batches.push_back({&recipe, first, std::min(step, recipe.rows() - first)});
        }
    }
    return batches;
}

// One batch is written while the next is made, in two buffers that take turns.
void write_tensors(const std::vector<TensorRecipe>& recipes, const Options& options, formats::GgufWriter& writer,
                   const Progress& progress) {
    const uint32_t threads = options.threads != 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency());
    const std::vector<Batch> batches = plan_batches(recipes);
    uint64_t largest = 0;
    for (const Batch& batch : batches) largest = std::max(largest, batch.bytes());
    std::array<std::vector<std::byte>, 2> buffers{std::vector<std::byte>(largest), std::vector<std::byte>(largest)};
    const auto bytes_of = [&](size_t b) { return std::span(buffers[b % 2]).first(batches[b].bytes()); };
    const auto make = [&](size_t b) {
        return std::make_unique<BatchMaker>(batches[b], bytes_of(b), options.seed, threads);
    };

    uint64_t done = 0;
    std::unique_ptr<BatchMaker> making = make(0);
    for (size_t b = 0; b < batches.size(); ++b) {
        making->join();
        making = b + 1 < batches.size() ? make(b + 1) : nullptr;
        writer.write(batches[b].recipe->name, bytes_of(b));
        done += batches[b].bytes();
        if (progress && !progress(done, writer.file_bytes())) {
            throw Error(ErrorCode::kCancelled, "synth: cancelled; " + writer.path() + " was not written");
        }
    }
}

uint32_t file_type(TensorType type) {
    switch (type) {  // llama.cpp's numbers for general.file_type, which its tools print
        case TensorType::kF16:
            return 1;
        case TensorType::kQ4_1:
            return 3;
        case TensorType::kQ8_0:
            return 7;
        case TensorType::kTQ1_0:
            return 36;
        case TensorType::kTQ2_0:
            return 37;
        default:
            return 0;  // F32
    }
}

}  // namespace

TensorType parse_type(std::string_view text) {
    std::string known;
    for (const auto& [name, type] : kTypes) {
        if (name == text) return type;
        known += (known.empty() ? "" : ", ") + std::string(name);
    }
    throw Error(ErrorCode::kInvalidArgument, "synth: unknown type " + std::string(text) + "; expected one of " + known);
}

Report write_model(std::string_view preset_name, const Options& options, const std::string& path,
                   const Progress& progress) {
    const Preset& preset = find_preset(preset_name);
    const std::vector<TensorRecipe> recipes = tensor_recipes(preset, options.type, options.seed, options.outliers);
    const std::string tokenizer = options.tokenizer.empty() ? default_tokenizer_path() : options.tokenizer;
    const std::string tokenizer_json = preset.tiny_tokenizer ? tiny_tokenizer_json() : read_tokenizer_json(tokenizer);

    formats::GgufWriter writer(path);
    set_config(preset, writer);
    writer.set("general.file_type", file_type(options.type));
    writer.set("samara.synth.preset", std::string(preset.name));
    writer.set("samara.synth.seed", options.seed);
    writer.set("samara.synth.outliers", options.outliers);
    set_tokenizer(tokenizer_json, preset.tiny_tokenizer ? "built-in tokenizer" : tokenizer, preset.vocabulary, writer);
    Report report;
    for (const TensorRecipe& recipe : recipes) {
        writer.declare(recipe.name, recipe.type, recipe.shape);
        report.weights += recipe.cols() * recipe.rows();
    }
    writer.begin();
    write_tensors(recipes, options, writer, progress);
    writer.finish();
    report.file_bytes = writer.file_bytes();
    return report;
}

}  // namespace samara::synth
