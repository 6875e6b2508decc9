#include "apps/cli/text.hpp"

#include <ctime>

#include "src/platform/error.hpp"

namespace samara::cli {
namespace {

void check_text(samara_text_status status, const samara_text_error& error) {
    if (status == SAMARA_TEXT_OK) return;
    std::string message = error.message;
    const ErrorCode code = status == SAMARA_TEXT_INTERNAL        ? ErrorCode::kInternal
                           : status == SAMARA_TEXT_UNSUPPORTED   ? ErrorCode::kUnsupported
                           : status == SAMARA_TEXT_BAD_TOKENIZER ? ErrorCode::kFormat
                           : status == SAMARA_TEXT_TEMPLATE      ? ErrorCode::kFormat
                                                                 : ErrorCode::kInvalidArgument;
    throw Error(code, message);
}

samara_text_view view(std::string_view s) { return {s.data(), s.size()}; }

// Metadata look-ups where absence is fine.
samara_text_view optional_string(const samara_engine* engine, const char* key) {
    samara_text_view v{};
    if (samara_meta_string(engine, key, &v.data, &v.size) != SAMARA_OK) return {};
    return v;
}

int64_t optional_int(const samara_engine* engine, const char* key) {
    int64_t value = -1;
    return samara_meta_int(engine, key, &value) == SAMARA_OK ? value : -1;
}

std::vector<samara_text_view> strings(const samara_engine* engine, const char* key) {
    size_t count = 0;
    check(samara_meta_strings(engine, key, &count));
    std::vector<samara_text_view> items(count);
    for (size_t i = 0; i < count; ++i) check(samara_meta_string_at(engine, key, i, &items[i].data, &items[i].size));
    return items;
}

std::vector<int32_t> integers(const samara_engine* engine, const char* key) {
    size_t count = 0;
    if (samara_meta_strings(engine, key, &count) != SAMARA_OK) return {};
    std::vector<int32_t> items(count);
    for (size_t i = 0; i < count; ++i) {
        int64_t value = 0;
        check(samara_meta_int_at(engine, key, i, &value));
        items[i] = static_cast<int32_t>(value);
    }
    return items;
}

samara_text_tokenizer* from_gguf(const samara_engine* engine) {
    samara_text_gguf g{};
    g.model = optional_string(engine, "tokenizer.ggml.model");
    g.pre = optional_string(engine, "tokenizer.ggml.pre");
    const auto tokens = strings(engine, "tokenizer.ggml.tokens");
    const auto merges = strings(engine, "tokenizer.ggml.merges");
    const auto types = integers(engine, "tokenizer.ggml.token_type");
    g.tokens = tokens.data();
    g.token_count = tokens.size();
    g.merges = merges.data();
    g.merge_count = merges.size();
    g.token_types = types.empty() ? nullptr : types.data();
    g.token_type_count = types.size();
    g.bos_id = optional_int(engine, "tokenizer.ggml.bos_token_id");
    g.eos_id = optional_int(engine, "tokenizer.ggml.eos_token_id");
    g.eot_id = optional_int(engine, "tokenizer.ggml.eot_token_id");
    g.add_bos = static_cast<int32_t>(optional_int(engine, "tokenizer.ggml.add_bos_token"));
    g.chat_template = optional_string(engine, "tokenizer.chat_template");
    samara_text_tokenizer* out = nullptr;
    samara_text_error error{};
    check_text(samara_text_from_gguf(&g, &out, &error), error);
    return out;
}

samara_text_tokenizer* from_json(const samara_engine* engine, samara_text_view json) {
    // The chat template of a folder comes as a metadata key; the text layer reads it from a tokenizer config.
    nlohmann::json config = nlohmann::json::object();
    const samara_text_view chat_template = optional_string(engine, "tokenizer.chat_template");
    if (chat_template.size > 0) config["chat_template"] = std::string(chat_template.data, chat_template.size);
    const std::string config_text = config.dump();
    samara_text_tokenizer* out = nullptr;
    samara_text_error error{};
    check_text(samara_text_from_json(json, view(config_text), &out, &error), error);
    return out;
}

std::vector<int32_t> take(samara_text_ids ids) {
    std::vector<int32_t> tokens(ids.data, ids.data + ids.size);
    samara_text_ids_free(&ids);
    return tokens;
}

int64_t local_seconds() {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    return static_cast<int64_t>(now) + local.tm_gmtoff;
}

}  // namespace

Tokenizer::Tokenizer(const samara_engine* engine) {
    const samara_text_view json = optional_string(engine, "samara.tokenizer_json");
    tokenizer_.reset(json.size > 0 ? from_json(engine, json) : from_gguf(engine));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special, bool add_special) const {
    uint32_t flags = 0;
    if (parse_special) flags |= SAMARA_TEXT_PARSE_SPECIAL;
    if (add_special) flags |= SAMARA_TEXT_ADD_SPECIAL;
    samara_text_ids ids{};
    samara_text_error error{};
    check_text(samara_text_encode(get(), view(text), flags, &ids, &error), error);
    return take(ids);
}

std::string Tokenizer::decode(std::span<const int32_t> tokens, bool skip_special) const {
    Decoder decoder(*this, skip_special);
    std::string text;
    for (const int32_t token : tokens) text += decoder.push(token);
    return text + decoder.push(-1);
}

std::string Tokenizer::token_bytes(int32_t token) const {
    samara_text_view bytes{};
    samara_text_error error{};
    check_text(samara_text_token_bytes(get(), static_cast<uint32_t>(token), &bytes, &error), error);
    return {bytes.data, bytes.size};
}

bool Tokenizer::has_chat_template() const { return samara_text_has_chat_template(get()) == 1; }

std::vector<int32_t> Tokenizer::encode_chat(const nlohmann::json& messages, bool think) const {
    std::string text;
    try {
        text = messages.dump();
    } catch (const nlohmann::json::exception&) {  // the only thing that can be wrong with strings in an array
        throw Error(ErrorCode::kInvalidArgument, "a message for the chat template is not valid UTF-8");
    }
    const std::string variables = nlohmann::json{{"enable_thinking", think}}.dump();
    samara_text_chat chat{};
    chat.messages_json = view(text);
    chat.variables_json = view(variables);
    chat.add_generation_prompt = 1;
    chat.now = local_seconds();
    samara_text_ids ids{};
    samara_text_error error{};
    check_text(samara_text_chat_encode(get(), &chat, &ids, &error), error);
    return take(ids);
}

std::vector<int32_t> Tokenizer::end_tokens() const {
    size_t count = 0;
    const uint32_t* ids = samara_text_end_ids(get(), &count);
    return {ids, ids + count};
}

Decoder::Decoder(const Tokenizer& tokenizer, bool skip_special) {
    samara_text_decoder* out = nullptr;
    samara_text_error error{};
    check_text(samara_text_decoder_new(tokenizer.get(), skip_special ? 1 : 0, &out, &error), error);
    decoder_.reset(out);
}

std::string Decoder::push(int32_t token) {
    samara_text_view text{};
    samara_text_error error{};
    check_text(token < 0 ? samara_text_decoder_flush(decoder_.get(), &text, &error)
                         : samara_text_decoder_push(decoder_.get(), static_cast<uint32_t>(token), &text, &error),
               error);
    return {text.data, text.size};
}

}  // namespace samara::cli
