#include "src/synth/tokenizer.hpp"

#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <vector>

#include "src/synth/assets.hpp"

namespace samara::synth {
namespace {

using formats::MetaArray;
using nlohmann::json;

// GGUF's numbers: value types of array elements, and kinds of token.
constexpr uint32_t kGgufInt32 = 5;
constexpr uint32_t kGgufString = 8;
enum TokenType : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

class Vocabulary {
  public:
    Vocabulary(std::string source, uint32_t size) : source_(std::move(source)), tokens_(size), types_(size, 0) {}

    void add(const json& id_value, const std::string& token, int32_t type) {
        const auto id = id_value.get<int64_t>();
        if (id < 0 || id >= static_cast<int64_t>(tokens_.size())) {
            throw Error(ErrorCode::kFormat, source_ + ": token id " + std::to_string(id) + "; the model has " +
                                                std::to_string(tokens_.size()) + " ids");
        }
        const auto i = static_cast<size_t>(id);
        // An added token may also stand in the vocabulary; any other second use of an id is an error.
        if (types_[i] != 0 && tokens_[i] != token) {
            throw Error(ErrorCode::kFormat, source_ + ": token id " + std::to_string(id) + " is both \"" + tokens_[i] +
                                                "\" and \"" + token + "\"");
        }
        tokens_[i] = token;
        types_[i] = type;
    }

    void pad() {
        for (size_t i = 0; i < tokens_.size(); ++i) {
            if (types_[i] != 0) continue;
            tokens_[i] = "[PAD" + std::to_string(i) + "]";
            types_[i] = kUnused;
        }
    }

    uint32_t id_of(std::string_view token) const {
        for (size_t i = 0; i < tokens_.size(); ++i) {
            if (tokens_[i] == token) return static_cast<uint32_t>(i);
        }
        throw Error(ErrorCode::kFormat, source_ + ": no token " + std::string(token) + ", which ChatML needs");
    }

    std::shared_ptr<const MetaArray> tokens() const {
        return std::make_shared<const MetaArray>(MetaArray{kGgufString, tokens_});
    }
    std::shared_ptr<const MetaArray> types() const {
        return std::make_shared<const MetaArray>(MetaArray{kGgufInt32, types_});
    }

  private:
    std::string source_;
    std::vector<std::string> tokens_;
    std::vector<int32_t> types_;  // 0: free
};

// Merges are "a b" in older files and ["a", "b"] in newer ones; GGUF has the first form.
std::vector<std::string> read_merges(const json& merges) {
    std::vector<std::string> pairs;
    pairs.reserve(merges.size());
    for (const json& merge : merges) {
        pairs.push_back(merge.is_string() ? merge.get<std::string>()
                                          : merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
    }
    return pairs;
}

}  // namespace

std::string tiny_tokenizer_json() { return std::string(kTinyTokenizer, kTinyTokenizerSize); }

std::string default_tokenizer_path() {
    std::string cache;
    if (const char* set = std::getenv("SAMARA_CACHE"); set != nullptr && *set != '\0') {
        cache = set;
    } else {
        const char* home = std::getenv("HOME");
        cache = std::string(home != nullptr ? home : ".") + "/.cache/samara";
    }
    return cache + "/tokenizers/qwen3/tokenizer.json";
}

std::string read_tokenizer_json(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    if (file) text << file.rdbuf();
    if (!file || text.str().empty()) {
        throw Error(ErrorCode::kIo, path +
                                        ": cannot read the tokenizer. Run tools/fetch_qwen_tokenizer once, or give a "
                                        "tokenizer.json with --tokenizer");
    }
    return text.str();
}

void set_tokenizer(const std::string& text, const std::string& source, uint32_t vocabulary,
                   formats::GgufWriter& writer) {
    Vocabulary tokens(source, vocabulary);
    std::vector<std::string> merges;
    try {
        const json document = json::parse(text);
        const json& model = document.at("model");
        if (model.at("type") != "BPE") {
            throw Error(ErrorCode::kFormat,
                        source + ": model.type is " + model.at("type").dump() + "; expected \"BPE\"");
        }
        for (const auto& [token, id] : model.at("vocab").items()) tokens.add(id, token, kNormal);
        for (const json& added : document.at("added_tokens")) {
            tokens.add(added.at("id"), added.at("content").get<std::string>(),
                       added.at("special").get<bool>() ? kControl : kUserDefined);
        }
        merges = read_merges(model.at("merges"));
    } catch (const json::exception& error) {
        throw Error(ErrorCode::kFormat, source + ": not a tokenizer.json: " + error.what());
    }
    tokens.pad();
    const uint32_t end_of_text = tokens.id_of("<|endoftext|>");
    writer.set("tokenizer.ggml.model", std::string("gpt2"));
    writer.set("tokenizer.ggml.pre", std::string("qwen2"));
    writer.set("tokenizer.ggml.tokens", tokens.tokens());
    writer.set("tokenizer.ggml.token_type", tokens.types());
    writer.set("tokenizer.ggml.merges", std::make_shared<const MetaArray>(MetaArray{kGgufString, std::move(merges)}));
    writer.set("tokenizer.ggml.eos_token_id", tokens.id_of("<|im_end|>"));
    writer.set("tokenizer.ggml.bos_token_id", end_of_text);
    writer.set("tokenizer.ggml.padding_token_id", end_of_text);
    writer.set("tokenizer.ggml.add_bos_token", false);
    writer.set("tokenizer.chat_template", std::string(kMapleChatTemplate, kMapleChatTemplateSize));
}

}  // namespace samara::synth
