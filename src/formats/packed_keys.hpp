#pragma once
// Keys of the packed file, shared by its writer and its readers. docs/packed-file.md explains them.

#include <cstddef>
#include <initializer_list>
#include <string>
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

// The index of an approximate head: two matrices, a tensor of token ids and a number. A packed file that is laid out
// anew keeps them.
inline constexpr std::string_view kFlashRows = "flash.rows";             // the head's rows, cluster by cluster
inline constexpr std::string_view kFlashCentroids = "flash.centroids";   // a row a cluster
inline constexpr std::string_view kFlashOrder = "samara.flash.order";    // little-endian int32, a token id a row
inline constexpr std::string_view kFlashAlways = "samara.flash.always";  // leading clusters that every step reads

/// True for every key that packing writes.
constexpr bool writes(std::string_view key) {
    for (const std::string_view group :
         {"packed.", "numerics.", "source.", "matrix.", "experts.", "section.", "flash."}) {
        if (key.starts_with(kPrefix) && key.substr(kPrefix.size()).starts_with(group)) return true;
    }
    return false;
}

/// The tensor that holds a layer's expert records.
inline std::string expert_tensor(int layer) {
    return std::string(kPrefix) + "blk." + std::to_string(layer) + ".experts";
}

// Two arrays in step, one entry a tensor of the file.
inline constexpr std::string_view kSectionNames = "samara.section.names";
inline constexpr std::string_view kSectionHashes = "samara.section.sha256";  // 64 hexadecimal digits

}  // namespace samara::formats::packed_keys
