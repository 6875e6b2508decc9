#pragma once
// A model on disk, whatever its format, seen as GGUF sees it: metadata under GGUF keys and tensors under GGUF names.
// GGUF files (split or whole) are this already; safetensors folders are translated by name (MLX 2-bit Maple, Hugging
// Face BF16). Data is memory-mapped and never copied here.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/platform/error.hpp"

namespace samara::formats {

/// Element types. Values below 1000 are GGML's own numbers.
enum class TensorType : uint32_t {
    kF32 = 0,
    kF16 = 1,
    kQ4_0 = 2,
    kQ4_1 = 3,
    kQ5_0 = 6,
    kQ5_1 = 7,
    kQ8_0 = 8,
    kQ4_K = 12,
    kQ5_K = 13,
    kQ6_K = 14,
    kI8 = 24,
    kI16 = 25,
    kI32 = 26,
    kI64 = 27,
    kF64 = 28,
    kBF16 = 30,
    kTQ1_0 = 34,
    kTQ2_0 = 35,
    kMlx2Row = 1000,    // U32 words of 16 two-bit codes, lowest bits first; value = row_alpha[row]*(code-1)
    kMlx2Group = 1001,  // the same codes; value = scales[row][col/128]*code + biases[row][col/128]
    kMlx4Group = 1002,  // U32 words of 8 four-bit codes; value = scales[row][col/64]*code + biases[row][col/64]
};

struct TypeTraits {
    std::string_view name;   // as GGUF tools print it: "Q4_K"
    uint32_t block_weights;  // weights in one block
    uint32_t block_bytes;    // bytes in one block (MLX types: of the code words alone)
};
/// Traits of `type`, or nullptr when this engine does not know it.
const TypeTraits* type_traits(TensorType type);

/// One tensor, or one of the pieces a stacked tensor is made of. Shape in GGUF order: shape[0] is contiguous.
struct Tensor {
    std::string name;  // GGUF name: "blk.3.ffn_gate_exps.weight"
    TensorType type = TensorType::kF32;
    std::vector<uint64_t> shape;        // 1 to 4 extents, each at least 1, product checked for overflow
    std::span<const std::byte> data;    // mapped file bytes, exactly what shape and type need (single-piece tensors)
    std::span<const std::byte> scales;  // MLX types: BF16 row_alpha [rows] or scales [rows][cols/group], stacked alike
    std::span<const std::byte> biases;  // MLX group types: BF16
    std::vector<std::span<const std::byte>>
        pieces;  // stacked tensors stored one by one (HF experts): piece e = expert e
    uint64_t elements() const;
    uint64_t cols() const { return shape.empty() ? 1 : shape[0]; }
    uint64_t rows() const { return shape.size() > 1 ? shape[1] : 1; }
    uint64_t experts() const { return shape.size() > 2 ? shape[2] : 1; }
};

/// Metadata values as GGUF has them.
struct MetaArray;
using MetaValue = std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t, float, double,
                               bool, std::string, std::shared_ptr<const MetaArray>>;
struct MetaArray {
    uint32_t gguf_type = 0;  // GGUF value type of the elements
    std::variant<std::vector<uint8_t>, std::vector<int8_t>, std::vector<uint16_t>, std::vector<int16_t>,
                 std::vector<uint32_t>, std::vector<int32_t>, std::vector<uint64_t>, std::vector<int64_t>,
                 std::vector<float>, std::vector<double>, std::vector<bool>, std::vector<std::string>,
                 std::vector<MetaValue>>
        items;
};

/// Key-value metadata with typed look-ups. Errors name the file and the key, what was found and what was expected.
class Metadata {
  public:
    explicit Metadata(std::string file = {}) : file_(std::move(file)) {}
    void set(std::string key, MetaValue value);
    bool has(std::string_view key) const;
    const MetaValue* find(std::string_view key) const;
    const std::map<std::string, MetaValue, std::less<>>& entries() const { return entries_; }

    // Required values: throw Error(kFormat) when absent, of another kind, or outside [low, high].
    uint64_t get_uint(std::string_view key, uint64_t low = 0, uint64_t high = UINT64_MAX) const;
    double get_float(std::string_view key) const;  // any float or integer kind; must be finite
    bool get_bool(std::string_view key) const;
    const std::string& get_string(std::string_view key) const;
    const std::vector<std::string>& get_strings(std::string_view key) const;
    std::vector<int64_t> get_ints(std::string_view key) const;   // any integer or bool array
    std::vector<double> get_floats(std::string_view key) const;  // any numeric array
    // Optional values: the fallback when the key is absent; still an error when present and of another kind.
    uint64_t get_uint_or(std::string_view key, uint64_t fallback) const;
    double get_float_or(std::string_view key, double fallback) const;
    bool get_bool_or(std::string_view key, bool fallback) const;
    std::string get_string_or(std::string_view key, std::string fallback) const;
    const std::string& file() const { return file_; }

  private:
    std::string file_;
    std::map<std::string, MetaValue, std::less<>> entries_;
};

/// Where a model's bytes come from: a path, or a descriptor the caller keeps open (an Android asset).
struct Source {
    std::string path;     // file, or folder with safetensors; used in messages when fd is given
    int fd = -1;          // when >= 0: read from this descriptor instead of opening path
    uint64_t offset = 0;  // first byte of the model inside fd
    uint64_t length = 0;  // 0: to the end
};

class Checkpoint {
  public:
    virtual ~Checkpoint() = default;
    /// Opens GGUF v2/v3 (first file of a split set, or whole; split siblings are found by name), one .safetensors file,
    /// or a folder with model.safetensors(.index.json) and config.json. Throws Error(kIo | kFormat | kUnsupported).
    static std::unique_ptr<Checkpoint> open(const Source& source);

    virtual const Metadata& metadata() const = 0;
    virtual const std::vector<Tensor>& tensors() const = 0;
    virtual std::string format() const = 0;  // "GGUF v3", "safetensors (MLX 2-bit)", "safetensors (Hugging Face BF16)"
    virtual uint64_t file_bytes() const = 0;
    /// Tells the system that [data] will not be read again soon (used after repacking a tensor).
    virtual void drop(std::span<const std::byte> data) const = 0;

    const Tensor* find(std::string_view name) const;  // nullptr when absent
    const Tensor& get(std::string_view name) const;   // Error(kFormat) naming file and tensor when absent
    const std::string& file() const { return metadata().file(); }
};

/// Runs `body`; an Error that begins with the name of a tensor is thrown on with the checkpoint's file before it.
template <class Body>
auto naming_file(const Checkpoint& checkpoint, Body&& body) {
    try {
        return body();
    } catch (const Error& e) {
        if (!std::string_view(e.what()).starts_with("tensor '")) throw;
        throw Error(e.code(), checkpoint.file() + ": " + e.what());
    }
}

/// Writes the weights of one row of `tensor` (expert e of a stacked tensor) as float32 to out[cols], with the formula
/// and float32 rounding of GGML's reference. 0 <= row < rows(), 0 <= expert < experts().
void dequantise_row(const Tensor& tensor, uint64_t expert, uint64_t row, float* out);

}  // namespace samara::formats
