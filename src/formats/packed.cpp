#include "src/formats/packed.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "src/formats/packed_keys.hpp"
#include "src/kernels/kernels.hpp"

namespace samara::formats {
namespace {

using kernels::Layout;
using kernels::Matrix;

[[noreturn]] void bad(const Checkpoint& checkpoint, const std::string& what, ErrorCode code = ErrorCode::kFormat) {
    throw Error(code, checkpoint.file() + ": " + what);
}

/// A matrix from its five stored numbers, every one checked.
Matrix parse_shape(const Checkpoint& checkpoint, const std::string& what, std::span<const int64_t> numbers) {
    const auto refuse = [&](const char* field, int64_t value, const char* expected) {
        bad(checkpoint, what + ": " + field + " " + std::to_string(value) + ", " + expected + " expected");
    };
    constexpr int64_t kMost = 1 << 27;  // keeps every size in matrix.hpp far from overflow
    const auto [layout, group, offset, rows, cols] =
        std::array{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
    const bool split = layout == static_cast<int64_t>(Layout::kNibbleKSplit);
    const bool dense = layout == static_cast<int64_t>(Layout::kTernaryDense);
    if (!split && !dense && (layout < 0 || layout > static_cast<int64_t>(Layout::kByte))) {
        refuse("layout", layout, "0 to 7, 9 or 10");
    }
    if (split && cols > kernels::kMaxSplitCols) refuse("cols", cols, "1 to 8192");
    const auto kind = static_cast<Layout>(layout);
    if (kind == Layout::kNibble) {
        if (group != 32 && group != 64) refuse("group", group, "32 or 64");
    } else if (kind == Layout::kByte) {
        if (group != 16 && group != 32) refuse("group", group, "16 or 32");
    } else if (group != 0) {
        refuse("group", group, "0");
    }
    if (offset < 0 || offset > (kind == Layout::kByte ? 255 : 0)) {
        refuse("offset", offset, kind == Layout::kByte ? "0 to 255" : "0");
    }
    if (rows < 1 || rows > kMost) refuse("rows", rows, "1 to 2^27");
    if (cols < 1 || cols > kMost) refuse("cols", cols, "1 to 2^27");
    Matrix m;
    m.layout = kind;
    m.group = static_cast<uint8_t>(group);
    m.offset = static_cast<uint8_t>(offset);
    m.rows = static_cast<int>(rows);
    m.cols = static_cast<int>(cols);
    return m;
}

void check_alignment(const Checkpoint& checkpoint, const Tensor& tensor) {
    if (reinterpret_cast<uintptr_t>(tensor.data.data()) % 64 != 0) {
        bad(checkpoint,
            "tensor '" + tensor.name +
                "' does not start at a multiple of 64 bytes; inside a container the model must start at one, too",
            ErrorCode::kUnsupported);
    }
}

bool may_hold(const Tensor& tensor, Layout layout) {
    switch (tensor.type) {
        case TensorType::kI8:
            return true;
        case TensorType::kF32:
            return layout == Layout::kFloat32;
        case TensorType::kF16:
            return layout == Layout::kFloat16;
        case TensorType::kBF16:
            return layout == Layout::kBfloat16;
        default:
            return false;
    }
}

}  // namespace

ExpertLayout expert_layout(const Matrix& gate, const Matrix& up, const Matrix& down) {
    ExpertLayout layout{.gate = gate, .up = up, .down = down};
    for (Matrix* m : {&layout.gate, &layout.up, &layout.down}) m->data = nullptr;
    const auto after = [](uint64_t offset, const Matrix& m) {
        return (offset + static_cast<uint64_t>(kernels::matrix_bytes(m)) + 63) / 64 * 64;
    };
    layout.up_offset = after(0, gate);
    layout.down_offset = after(layout.up_offset, up);
    const uint64_t end = layout.down_offset + static_cast<uint64_t>(kernels::matrix_bytes(down)) + sizeof(uint32_t);
    layout.bytes = (end + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
    return layout;
}

bool is_packed(const Checkpoint& checkpoint) {
    const Metadata& meta = checkpoint.metadata();
    if (!meta.has(packed_keys::kVersion)) return false;
    const uint64_t version = meta.get_uint(packed_keys::kVersion);
    if (version != kPackedVersion) {
        bad(checkpoint,
            "packed file of version " + std::to_string(version) + ", this build reads version " +
                std::to_string(kPackedVersion) + "; pack the original again",
            ErrorCode::kUnsupported);
    }
    const uint64_t numerics = meta.get_uint(packed_keys::kNumerics);
    if (numerics == 0 || numerics > kernels::kNumericsVersion) {
        bad(checkpoint,
            "packed for numerics version " + std::to_string(numerics) + ", this build knows up to " +
                std::to_string(kernels::kNumericsVersion),
            ErrorCode::kUnsupported);
    }
    return true;
}

Matrix packed_matrix(const Checkpoint& checkpoint, const std::string& name) {
    const Metadata& meta = checkpoint.metadata();
    const std::vector<std::string>& names = meta.get_strings(packed_keys::kMatrixNames);
    const std::vector<std::string>& tensors = meta.get_strings(packed_keys::kMatrixTensors);
    const std::vector<int64_t> shapes = meta.get_ints(packed_keys::kMatrixShapes);
    if (tensors.size() != names.size() || shapes.size() != names.size() * packed_keys::kShapeNumbers) {
        bad(checkpoint, "keys samara.matrix.*: " + std::to_string(names.size()) + " names, " +
                            std::to_string(tensors.size()) + " tensors and " + std::to_string(shapes.size()) +
                            " shape numbers (5 each expected)");
    }
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) bad(checkpoint, "packed matrix '" + name + "' is missing");
    const auto index = static_cast<size_t>(found - names.begin());
    const std::string what = "packed matrix '" + name + "'";
    Matrix m = parse_shape(checkpoint, what,
                           std::span(shapes).subspan(index * packed_keys::kShapeNumbers, packed_keys::kShapeNumbers));
    const Tensor& tensor = checkpoint.get(tensors[index]);
    const auto bytes = static_cast<uint64_t>(kernels::matrix_bytes(m));
    if (!may_hold(tensor, m.layout) || tensor.data.size() != bytes) {
        bad(checkpoint, what + ": tensor '" + tensor.name + "' has " + std::to_string(tensor.data.size()) +
                            " bytes of type " + std::string(type_traits(tensor.type)->name) + ", " +
                            std::to_string(bytes) + " of type I8 expected");
    }
    check_alignment(checkpoint, tensor);
    m.data = tensor.data.data();
    return m;
}

PackedExperts packed_experts(const Checkpoint& checkpoint, int layer) {
    constexpr size_t kNumbers = packed_keys::kExpertNumbers;
    const std::vector<int64_t> all = checkpoint.metadata().get_ints(packed_keys::kExperts);
    const std::string what = "experts of layer " + std::to_string(layer);
    if (all.size() % kNumbers != 0) {
        bad(checkpoint, "key samara.experts.layouts: " + std::to_string(all.size()) + " numbers, a multiple of " +
                            std::to_string(kNumbers) + " expected");
    }
    std::span<const int64_t> numbers;
    for (size_t at = 0; at < all.size() && numbers.empty(); at += kNumbers) {
        if (all[at] == layer) numbers = std::span(all).subspan(at, kNumbers);
    }
    if (numbers.empty()) bad(checkpoint, what + " are missing");
    const int64_t count = numbers[1];
    constexpr int64_t kMostExperts = 1 << 16;
    if (count < 1 || count > kMostExperts) bad(checkpoint, what + ": " + std::to_string(count) + " experts");

    constexpr size_t kPart = packed_keys::kShapeNumbers + 1;
    const auto part = [&](size_t i) { return numbers.subspan(3 + i * kPart, kPart); };
    PackedExperts experts;
    experts.count = static_cast<int>(count);
    experts.layout = expert_layout(parse_shape(checkpoint, what + ", gate", part(0)),
                                   parse_shape(checkpoint, what + ", up", part(1)),
                                   parse_shape(checkpoint, what + ", down", part(2)));
    const std::array expected{experts.layout.bytes, experts.layout.gate_offset, experts.layout.up_offset,
                              experts.layout.down_offset};
    const std::array found{numbers[2], part(0).back(), part(1).back(), part(2).back()};
    for (size_t i = 0; i < expected.size(); ++i) {
        if (static_cast<uint64_t>(found[i]) == expected[i]) continue;
        bad(checkpoint, what + ": record size or offset " + std::to_string(found[i]) + ", " +
                            std::to_string(expected[i]) + " expected from the matrices");
    }
    const Tensor& tensor = checkpoint.get(packed_keys::expert_tensor(layer));
    const uint64_t bytes = experts.layout.bytes * static_cast<uint64_t>(count);
    if (tensor.type != TensorType::kI8 || tensor.data.size() != bytes) {
        bad(checkpoint, what + ": tensor '" + tensor.name + "' has " + std::to_string(tensor.data.size()) +
                            " bytes of type " + std::string(type_traits(tensor.type)->name) + ", " +
                            std::to_string(bytes) + " of type I8 expected");
    }
    check_alignment(checkpoint, tensor);
    experts.data = tensor.data.data();
    return experts;
}

}  // namespace samara::formats
