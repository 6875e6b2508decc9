#pragma once
// Keys of the packed file, shared by its writer and its readers. docs/packed-file.md explains them.

#include <cstddef>
#include <string_view>

namespace samara::formats::packed_keys {

inline constexpr std::string_view kPrefix = "samara.";  // of tensors that hold a blob: samara.blk.0.attn_q.weight
inline constexpr std::string_view kVersion = "samara.packed.version";
inline constexpr std::string_view kNumerics = "samara.numerics.version";
inline constexpr std::string_view kTernarise = "samara.packed.ternarise";
inline constexpr std::string_view kSourceFormat = "samara.source.format";

// Three arrays in step, one entry a matrix.
inline constexpr std::string_view kMatrixNames = "samara.matrix.names";      // GGUF name of the weight
inline constexpr std::string_view kMatrixTensors = "samara.matrix.tensors";  // tensor that holds its blob
inline constexpr std::string_view kMatrixShapes = "samara.matrix.shapes";    // kShapeNumbers each
inline constexpr size_t kShapeNumbers = 5;                                   // layout, group, offset, rows, cols

// One entry of kExpertNumbers a layer with experts: layer, count, record bytes, then gate, up and down as shape
// numbers followed by the blob's offset inside the record.
inline constexpr std::string_view kExperts = "samara.experts.layouts";
inline constexpr size_t kExpertNumbers = 3 + 3 * (kShapeNumbers + 1);

// Two arrays in step, one entry a tensor of the file.
inline constexpr std::string_view kSectionNames = "samara.section.names";
inline constexpr std::string_view kSectionHashes = "samara.section.sha256";  // 64 hexadecimal digits

}  // namespace samara::formats::packed_keys
