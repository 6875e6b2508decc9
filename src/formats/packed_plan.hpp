#pragma once
// What a packed file will hold, decided before a byte of it is written: its tensors in order and their layouts.

#include <memory>
#include <string>
#include <vector>

#include "src/formats/flash_index.hpp"
#include "src/formats/packed.hpp"

namespace samara::formats {

enum class SectionKind {
    kCopy,     // the source's bytes
    kToF32,    // a vector, converted to float32
    kMatrix,   // one blob
    kExperts,  // a layer's expert records
};

/// One tensor of the packed file.
struct PackedSection {
    SectionKind kind = SectionKind::kCopy;
    std::string name;
    TensorType type = TensorType::kI8;
    std::vector<uint64_t> shape;
    Slice slice;             // kCopy, kToF32: the whole tensor; kMatrix: its rows
    kernels::Matrix matrix;  // kMatrix
    Slice gate, up, down;    // kExperts: of expert 0
    ExpertLayout experts;    // kExperts
    int layer = 0;           // kExperts
    uint64_t count = 0;      // kExperts
    // Of a packed source, which is laid out anew: kMatrix and kExperts as they lie there; data == nullptr for others.
    kernels::Matrix stored;
    PackedExperts stored_experts;
    uint64_t bytes = 0;        // of the section
    uint64_t input_bytes = 0;  // of the source's tensors in it
};

/// A weight and the tensor that holds its blob. They differ in name for a tied head of floats, which needs no copy.
struct PackedName {
    std::string name, tensor;
    kernels::Matrix matrix;
};

/// Tensors that packing makes and no source holds.
struct FlashTensors {
    Tensor rows, centroids, order;
    std::vector<std::byte> row_bytes, order_bytes;
    FlashIndex index;
};

struct PackedPlan {
    std::vector<PackedSection> sections;
    std::vector<PackedName> matrices;
    std::shared_ptr<const FlashTensors> flash;  // the index of an approximate head: sections refer to its tensors
    uint64_t input_bytes = 0;                   // sum over sections
    uint64_t output_bytes = 0;                  // of the data, padding included
};

/// Called with the source bytes that have been read since the last call; may throw to cancel.
using PlanStep = std::function<void(uint64_t bytes)>;

/// Reads the source once (layouts depend on the weights) and drops its pages on the way. Throws Error(kUnsupported) for
/// tensors that a packed file cannot hold, and what choose_layout throws.
PackedPlan plan_packed(const Checkpoint& checkpoint, Ternarise ternarise, HeadLayout head, TernaryLayout ternary,
                       bool flash_index, const PlanStep& step);

/// Bytes of a slice in the source.
uint64_t slice_bytes(const Slice& slice);
/// Lets go of a slice's pages.
void drop_slice(const Checkpoint& checkpoint, const Slice& slice);

}  // namespace samara::formats
