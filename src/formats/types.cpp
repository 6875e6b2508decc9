#include <array>
#include <string>

#include "src/formats/checkpoint.hpp"
#include "src/formats/text.hpp"

namespace samara::formats {

const TypeTraits* type_traits(TensorType type) {
    struct Entry {
        TensorType type;
        TypeTraits traits;
    };
    static constexpr std::array kTraits{
        Entry{TensorType::kF32, {"F32", 1, 4}},
        Entry{TensorType::kF16, {"F16", 1, 2}},
        Entry{TensorType::kQ4_0, {"Q4_0", 32, 18}},
        Entry{TensorType::kQ4_1, {"Q4_1", 32, 20}},
        Entry{TensorType::kQ5_0, {"Q5_0", 32, 22}},
        Entry{TensorType::kQ5_1, {"Q5_1", 32, 24}},
        Entry{TensorType::kQ8_0, {"Q8_0", 32, 34}},
        Entry{TensorType::kQ4_K, {"Q4_K", 256, 144}},
        Entry{TensorType::kQ5_K, {"Q5_K", 256, 176}},
        Entry{TensorType::kQ6_K, {"Q6_K", 256, 210}},
        Entry{TensorType::kI8, {"I8", 1, 1}},
        Entry{TensorType::kI16, {"I16", 1, 2}},
        Entry{TensorType::kI32, {"I32", 1, 4}},
        Entry{TensorType::kI64, {"I64", 1, 8}},
        Entry{TensorType::kF64, {"F64", 1, 8}},
        Entry{TensorType::kBF16, {"BF16", 1, 2}},
        Entry{TensorType::kTQ1_0, {"TQ1_0", 256, 54}},
        Entry{TensorType::kTQ2_0, {"TQ2_0", 256, 66}},
        Entry{TensorType::kMlx2Row, {"MLX2-row", 16, 4}},
        Entry{TensorType::kMlx2Group, {"MLX2-group", 16, 4}},
        Entry{TensorType::kMlx4Group, {"MLX4-group", 8, 4}},
    };
    for (const Entry& entry : kTraits) {
        if (entry.type == type) return &entry.traits;
    }
    return nullptr;
}

uint64_t Tensor::elements() const {
    uint64_t product = 1;
    for (const uint64_t extent : shape) product *= extent;  // checked by the reader
    return product;
}

const Tensor* Checkpoint::find(std::string_view name) const {
    for (const Tensor& tensor : tensors()) {
        if (tensor.name == name) return &tensor;
    }
    return nullptr;
}

const Tensor& Checkpoint::get(std::string_view name) const {
    if (const Tensor* tensor = find(name)) return *tensor;
    throw Error(ErrorCode::kFormat, file() + ": tensor " + in_quotes(name) + " is missing");
}

std::string in_quotes(std::string_view text) {
    constexpr size_t kLongest = 80;
    constexpr std::string_view kHex = "0123456789abcdef";
    std::string out = "'";
    for (const char c : text.substr(0, kLongest)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte < 0x7f) {
            out += c;
        } else {
            out += "\\x";
            out += kHex[byte >> 4];
            out += kHex[byte & 15];
        }
    }
    if (text.size() > kLongest) out += "...";
    return out + "'";
}

std::string shape_text(std::span<const uint64_t> shape) {
    std::string out = "[";
    for (size_t i = 0; i < shape.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    return out + "]";
}

}  // namespace samara::formats
