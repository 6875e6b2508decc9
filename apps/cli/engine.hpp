#pragma once
// The C interface with ownership: handles that free themselves and failures as samara::Error.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "samara/samara.h"

namespace samara::cli {

/// Throws samara::Error with the thread's last message unless `status` is SAMARA_OK.
void check(samara_status status);

template <auto Free>
struct Freed {
    template <class T>
    void operator()(T* p) const {
        Free(p);
    }
};
using EngineHandle = std::unique_ptr<samara_engine, Freed<samara_free>>;
using SessionHandle = std::unique_ptr<samara_session, Freed<samara_session_free>>;
using SamplerHandle = std::unique_ptr<samara_sampler, Freed<samara_sampler_free>>;

/// Flags that every command which loads a model shares.
struct LoadFlags {
    std::string model;
    std::string isa = "auto";
    uint32_t threads = 0;
    uint64_t context = 0;       // positions; 0: default
    std::string memory_budget;  // "3GiB", "" for none
    uint32_t max_step_tokens = 0;
    uint32_t max_sessions = 1;
    std::string head = "full";
    std::string kv = "int16";
    bool metadata_only = false;
};

/// Flags of every command that generates.
struct SpeculationFlags {
    std::string mode = "auto";
    uint32_t max_draft = 0;  // 0: the engine's default

    void apply(samara_generate_params& params) const;
};

/// "3GiB", "700M", "1234" -> bytes. Throws Error(kInvalidArgument) naming `flag`.
uint64_t parse_bytes(const std::string& text, const char* flag);
/// 1536 -> "1.50 KiB".
std::string format_bytes(double bytes);
/// 134515008 -> "134.5 million".
std::string format_count(uint64_t count);
/// For an unsigned option without a range: the parser alone reads "-1" and numbers past 64 bits as the largest one.
std::string whole_number(const std::string& text);

/// Loads with a progress bar where that takes longer than a moment.
EngineHandle load_engine(const LoadFlags& flags);
samara_memory_plan plan_engine(const LoadFlags& flags);
samara_model_info model_info(const samara_engine* engine);
/// How often an approximate head was right so far: steps compared, and the shares of best and of 20 best tokens that it
/// read; null unless --head flash-checked has compared any.
nlohmann::json flash_agreement(const samara_engine* engine);
/// The same in a line of text.
std::string flash_text(const nlohmann::json& agreement);
SessionHandle create_session(samara_engine* engine);

/// Adds tokens, with a progress bar for long prompts. `chunk` 0: the engine's own.
void prefill(samara_engine* engine, samara_session* session, std::span<const int32_t> tokens, bool show_progress,
             samara_logits_wanted logits = SAMARA_LOGITS_LAST);

}  // namespace samara::cli
