#pragma once
// The packed file: a valid GGUF v3 file, 16 KiB alignment, the source's metadata and tokenizer kept, weights in the
// kernels' layouts as I8 tensors, and samara.* keys that say how to read them. An expert is one contiguous record
// (gate, up, down) that starts at a multiple of 16 KiB. docs/packed-file.md describes every key.

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "src/formats/checkpoint.hpp"
#include "src/formats/repack.hpp"
#include "src/kernels/matrix.hpp"

namespace samara::formats {

inline constexpr uint32_t kPackedVersion = 1;
inline constexpr uint64_t kPackedAlignment = 16384;

/// One expert's three matrices inside a record of `bytes` (a multiple of 16 KiB): blobs at 64-byte-aligned offsets.
/// The last 4 bytes of the record are the CRC32C of all bytes before them.
struct ExpertLayout {
    kernels::Matrix gate, up, down;                            // data == nullptr
    uint64_t gate_offset = 0, up_offset = 0, down_offset = 0;  // inside the record
    uint64_t bytes = 0;
};
ExpertLayout expert_layout(const kernels::Matrix& gate, const kernels::Matrix& up, const kernels::Matrix& down);

/// True when the checkpoint is a packed file (has samara.packed.version). Throws Error(kUnsupported) for a version or
/// numerics layout this build does not know.
bool is_packed(const Checkpoint& checkpoint);

/// Looks up a matrix stored in a packed file: `name` is the source's GGUF name ("blk.0.attn_q.weight", "output.weight",
/// "blk.0.ffn_gate_inp.weight"); data points into the mapping. Checks sizes; throws Error(kFormat).
kernels::Matrix packed_matrix(const Checkpoint& checkpoint, const std::string& name);

/// Looks up the experts of a layer: record layout and the first byte of record 0 (record e starts e*bytes further).
struct PackedExperts {
    ExpertLayout layout;
    int count = 0;
    const std::byte* data = nullptr;
};
PackedExperts packed_experts(const Checkpoint& checkpoint, int layer);

/// How one kind of weight lies in a packed file: "attention", "experts" or "feed-forward", "router", "head" or
/// "embedding" (where it is stored as a matrix). A kind with two layouts has two entries.
struct PackedLayout {
    std::string kind;
    kernels::Layout layout = kernels::Layout::kFloat32;
    uint64_t matrices = 0, weights = 0, bytes = 0;
};
/// In the order in which a token reads them. Throws what packed_matrix and packed_experts throw.
std::vector<PackedLayout> packed_layouts(const Checkpoint& checkpoint);

/// Progress in bytes; return false to cancel (the operation throws Error(kCancelled) and leaves nothing behind).
using Progress = std::function<bool(uint64_t done, uint64_t total)>;

/// How a packed file stores the vocabulary head.
enum class HeadLayout {
    kWhole,  // as any matrix of its type
    kSplit,  // in planes, where its type can be (split_layout): what a screened head reads in place
};

struct PackReport {
    uint64_t input_bytes = 0, output_bytes = 0;
    uint64_t ternary_matrices = 0, other_matrices = 0;
    uint64_t code3 = 0;
    double ternary_nrmse = 0;  // error of forced ternarisation: rms of the difference over rms of the weights
};

/// Writes `checkpoint` as a packed file at `path`: tensor by tensor in bounded memory, atomically (a temporary file in
/// the same folder, synced and renamed; removed on failure or cancel). Refuses to overwrite its own source.
/// A packed file, too, can be packed into other layouts, after its checksums have been checked; it is not ternarised by
/// force, and keeps the flash index it has. flash_index: with the clusters that an approximate head needs and a second
/// copy of the head's rows (src/formats/flash_index.hpp). Throws Error(kInvalidArgument) where it has the layouts
/// already, Error(kFormat) where it is damaged.
PackReport pack(const Checkpoint& checkpoint, const std::string& path, Ternarise ternarise, const Progress& progress,
                HeadLayout head = HeadLayout::kWhole, TernaryLayout ternary = TernaryLayout::kTwoBit,
                bool flash_index = false);

/// Checks every section's SHA-256 and every expert record's CRC32C. Returns messages, one for each damaged section.
std::vector<std::string> verify_packed(const Checkpoint& checkpoint, const Progress& progress);

}  // namespace samara::formats
