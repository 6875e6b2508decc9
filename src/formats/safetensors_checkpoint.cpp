// A folder of safetensors as a Checkpoint: config.json, the shards, and the tokenizer's files.

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "src/formats/json_walk.hpp"
#include "src/formats/maple_names.hpp"
#include "src/formats/mapped_checkpoint.hpp"
#include "src/formats/safetensors_reader.hpp"
#include "src/formats/text.hpp"

namespace samara::formats {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLargestConfig = 1ull << 20;
constexpr uint64_t kLargestTokenizerConfig = 8ull << 20;
constexpr uint64_t kLargestTokenizer = 64ull << 20;

class SafetensorsCheckpoint final : public MappedCheckpoint {
  public:
    explicit SafetensorsCheckpoint(const fs::path& path);

    const Metadata& metadata() const override { return metadata_; }
    const std::vector<Tensor>& tensors() const override { return translated_.tensors; }
    std::string format() const override {
        return translated_.mlx ? "safetensors (MLX 2-bit)" : "safetensors (Hugging Face BF16)";
    }

  private:
    void add_shard(const fs::path& path, std::vector<SafetensorsShard>& shards);
    std::vector<SafetensorsShard> open_indexed(const fs::path& index);

    Metadata metadata_;
    TranslatedTensors translated_;
};

bool is_file_at(const fs::path& path) {
    std::error_code ignored;
    return fs::is_regular_file(path, ignored);
}

std::string read_text(const fs::path& path, uint64_t largest) {
    const MappedFile file = MappedFile::open(path.string());
    if (file.size() > largest) {
        throw Error(ErrorCode::kFormat, path.string() + ": expected at most " + std::to_string(largest) +
                                            " bytes, found " + std::to_string(file.size()));
    }
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// Ids that end a turn: the first is the tokenizer's end of sequence, a second its end of turn.
void set_end_tokens(const fs::path& path, Metadata& metadata) {
    if (!is_file_at(path)) return;
    const JsonTable config(read_text(path, kLargestConfig), path.string());
    if (!config.has("eos_token_id")) return;
    constexpr const char* kKeys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"};
    size_t count = 0;
    const auto add = [&](const JsonValue& value) {
        const auto* id = std::get_if<uint64_t>(&value);
        if (id == nullptr || *id > UINT32_MAX) {
            throw Error(ErrorCode::kFormat,
                        path.string() + ": key 'eos_token_id': expected token ids, found " + describe_json(value));
        }
        if (count < std::size(kKeys)) metadata.set(kKeys[count++], static_cast<uint32_t>(*id));
    };
    config.for_each("eos_token_id", add);
}

/// The default template: a string, or the entry named "default" of a list of {name, template}.
std::string chat_template_of(const fs::path& path) {
    std::string found;
    std::string entry_name;
    std::string entry_text;
    const auto keep_default = [&] {
        if (entry_name == "default") found = std::move(entry_text);
        entry_name.clear();
        entry_text.clear();
    };
    walk_json(read_text(path, kLargestTokenizerConfig), path.string(),
              [&](std::span<const std::string> at, JsonValue& value) {
                  if (at.empty() || at[0] != "chat_template") return;
                  if (at.size() == 2) keep_default();
                  auto* text = std::get_if<std::string>(&value);
                  if (text == nullptr) return;
                  if (at.size() == 1) found = std::move(*text);
                  if (at.size() == 3 && at[2] == "name") entry_name = std::move(*text);
                  if (at.size() == 3 && at[2] == "template") entry_text = std::move(*text);
              });
    keep_default();
    return found;
}

void add_tokenizer(const fs::path& folder, Metadata& metadata) {
    if (is_file_at(folder / "tokenizer.json")) {
        metadata.set("samara.tokenizer_json", read_text(folder / "tokenizer.json", kLargestTokenizer));
    }
    std::string chat_template;
    if (is_file_at(folder / "chat_template.jinja")) {
        chat_template = read_text(folder / "chat_template.jinja", kLargestTokenizerConfig);
    } else if (is_file_at(folder / "tokenizer_config.json")) {
        chat_template = chat_template_of(folder / "tokenizer_config.json");
    }
    if (!chat_template.empty()) metadata.set("tokenizer.chat_template", std::move(chat_template));
    set_end_tokens(folder / "config.json", metadata);
    set_end_tokens(folder / "generation_config.json", metadata);
}

void SafetensorsCheckpoint::add_shard(const fs::path& path, std::vector<SafetensorsShard>& shards) {
    MappedFile file = MappedFile::open(path.string());
    shards.push_back({path.string(), parse_safetensors(file.bytes(), path.string())});
    files_.push_back(std::move(file));
}

std::vector<SafetensorsShard> SafetensorsCheckpoint::open_indexed(const fs::path& index) {
    const std::string name = index.string();
    std::map<std::string, std::set<std::string>> listed;  // file -> its tensors
    for (auto& [tensor, file] : parse_safetensors_index(read_text(index, 16ull << 20), name)) {
        listed[file].insert(std::move(tensor));
    }
    std::vector<SafetensorsShard> shards;
    for (auto& [file, tensors] : listed) {
        add_shard(index.parent_path() / file, shards);
        for (const SafetensorsEntry& entry : shards.back().entries) {
            if (tensors.erase(entry.name) == 0) {
                throw Error(ErrorCode::kFormat, shards.back().file + ": tensor " + in_quotes(entry.name) +
                                                    ": the index does not place it in this file");
            }
        }
        if (!tensors.empty()) {
            throw Error(ErrorCode::kFormat, shards.back().file + ": tensor " + in_quotes(*tensors.begin()) +
                                                " is missing; the index places it in this file");
        }
    }
    return shards;
}

SafetensorsCheckpoint::SafetensorsCheckpoint(const fs::path& path) {
    const bool is_file = !fs::is_directory(path);
    const fs::path folder = is_file ? path.parent_path() : path;
    const fs::path config = folder / "config.json";
    metadata_ = translate_maple_config(read_text(config, kLargestConfig), config.string(), path.string());
    std::vector<SafetensorsShard> shards;
    const fs::path index = folder / "model.safetensors.index.json";
    if (!is_file && is_file_at(index)) {
        shards = open_indexed(index);
    } else {
        add_shard(is_file ? path : folder / "model.safetensors", shards);
    }
    translated_ = translate_maple_tensors(shards, metadata_);
    add_tokenizer(folder, metadata_);
}

}  // namespace

std::unique_ptr<Checkpoint> open_safetensors(const std::string& path) {
    return std::make_unique<SafetensorsCheckpoint>(path);
}

}  // namespace samara::formats
