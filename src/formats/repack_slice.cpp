// Weights under the names a separate tensor would have, whether the file holds them separately or fused.

#include <string_view>

#include "src/formats/repack.hpp"

namespace samara::formats {
namespace {

bool replace_part(std::string& name, std::string_view part, std::string_view by) {
    const size_t at = name.find(part);
    if (at == std::string::npos) return false;
    name.replace(at, part.size(), by);
    return true;
}

[[noreturn]] void bad_rows(const Checkpoint& checkpoint, const Tensor& tensor, const std::string& expected) {
    throw Error(ErrorCode::kFormat, checkpoint.file() + ": tensor '" + tensor.name + "' has " +
                                        std::to_string(tensor.rows()) + " rows, " + expected + " expected");
}

/// `part` is 0, 1 or 2 for query, key or value.
Slice qkv_slice(const Checkpoint& checkpoint, const Tensor& fused, int part) {
    const Metadata& meta = checkpoint.metadata();
    const std::string prefix = meta.get_string("general.architecture") + ".";
    constexpr uint64_t kMost = 1u << 20;
    const uint64_t heads = meta.get_uint(prefix + "attention.head_count", 1, kMost);
    const uint64_t kv_heads = meta.get_uint_or(prefix + "attention.head_count_kv", heads);
    const uint64_t head_dim = meta.get_uint(prefix + "embedding_length", 1, kMost) / heads;
    const uint64_t key_length = meta.get_uint_or(prefix + "attention.key_length", head_dim);
    const uint64_t value_length = meta.get_uint_or(prefix + "attention.value_length", head_dim);
    if (kv_heads > kMost || key_length > kMost || value_length > kMost) {
        bad_rows(checkpoint, fused, "head counts and lengths up to 2^20");
    }
    const uint64_t rows[3] = {heads * key_length, kv_heads * key_length, kv_heads * value_length};
    if (rows[part] == 0 || rows[0] + rows[1] + rows[2] != fused.rows()) {
        bad_rows(checkpoint, fused, std::to_string(rows[0] + rows[1] + rows[2]) + " by the head counts");
    }
    const uint64_t begin = (part > 0 ? rows[0] : 0) + (part > 1 ? rows[1] : 0);
    return {.tensor = &fused, .row_begin = begin, .rows = rows[part]};
}

}  // namespace

std::optional<Slice> find_slice(const Checkpoint& checkpoint, const std::string& name, uint64_t expert) {
    if (const Tensor* tensor = checkpoint.find(name)) {
        return Slice{.tensor = tensor, .expert = expert, .row_begin = 0, .rows = tensor->rows()};
    }
    constexpr std::string_view kParts[] = {".attn_q.", ".attn_k.", ".attn_v."};
    for (int part = 0; part < 3; ++part) {
        std::string fused = name;
        if (!replace_part(fused, kParts[part], ".attn_qkv.")) continue;
        if (const Tensor* tensor = checkpoint.find(fused)) return qkv_slice(checkpoint, *tensor, part);
        return std::nullopt;
    }
    constexpr std::string_view kHalves[][3] = {{".ffn_gate_exps.", ".ffn_up_exps.", ".ffn_gate_up_exps."},
                                               {".ffn_gate.", ".ffn_up.", ".ffn_gate_up."}};
    for (const auto& [gate, up, both] : kHalves) {
        std::string fused = name;
        const bool is_up = replace_part(fused, up, both);
        if (!is_up && !replace_part(fused, gate, both)) continue;
        const Tensor* tensor = checkpoint.find(fused);
        if (tensor == nullptr) return std::nullopt;
        const uint64_t rows = tensor->rows() / 2;
        if (rows == 0 || tensor->rows() % 2 != 0) bad_rows(checkpoint, *tensor, "an even number");
        return Slice{.tensor = tensor, .expert = expert, .row_begin = is_up ? rows : 0, .rows = rows};
    }
    return std::nullopt;
}

}  // namespace samara::formats
