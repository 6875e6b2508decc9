#pragma once
// A model's tokenizer and chat template, built from the engine's metadata through the text layer's C header.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/engine.hpp"
#include "samara_text.h"

namespace samara::cli {

/// Errors of the text layer come as samara::Error.
class Tokenizer {
  public:
    /// Reads tokenizer.* (or samara.tokenizer_json) from the model file's metadata.
    explicit Tokenizer(const samara_engine* engine);

    std::vector<int32_t> encode(std::string_view text, bool parse_special, bool add_special) const;
    std::string decode(std::span<const int32_t> tokens, bool skip_special) const;
    /// The bytes of one token (maybe part of a character).
    std::string token_bytes(int32_t token) const;

    bool has_chat_template() const;
    /// `messages` is an array of {"role", "content"}; ends in the prompt for the assistant.
    std::vector<int32_t> encode_chat(const nlohmann::json& messages, bool think) const;
    std::vector<int32_t> end_tokens() const;
    const samara_text_tokenizer* get() const { return tokenizer_.get(); }

  private:
    std::unique_ptr<samara_text_tokenizer, Freed<samara_text_tokenizer_free>> tokenizer_;
};

/// Tokens in, complete UTF-8 out.
class Decoder {
  public:
    Decoder(const Tokenizer& tokenizer, bool skip_special);
    /// Token -1 ends the text.
    std::string push(int32_t token);

  private:
    std::unique_ptr<samara_text_decoder, Freed<samara_text_decoder_free>> decoder_;
};

}  // namespace samara::cli
