#include "src/formats/gguf_reader.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "src/formats/text.hpp"

namespace samara::formats {
namespace {

static_assert(std::endian::native == std::endian::little, "the readers copy little-endian values as they are");

// What parsing may allocate in all. The largest tokenizers need about 40 MB; a file that asks for more is refused, so
// that even a hostile one stays far below 200 MB.
constexpr uint64_t kParseBudget = 112ull << 20;
constexpr uint64_t kLongestKey = 65535;
constexpr uint64_t kLongestTensorName = 255;
constexpr uint64_t kLargestAlignment = 1ull << 20;
constexpr int kDeepestArray = 4;
constexpr uint64_t kSmallestTensorInfo =
    8 + 1 + 4 + 8 + 4 + 8;  // name length, a name byte, dims, one extent, type, offset
constexpr uint64_t kSmallestKeyValue = 8 + 1 + 4 + 1;

// GGUF value types.
enum ValueType : uint32_t {
    kUint8 = 0,
    kInt8 = 1,
    kUint16 = 2,
    kInt16 = 3,
    kUint32 = 4,
    kInt32 = 5,
    kFloat32 = 6,
    kBool = 7,
    kString = 8,
    kArray = 9,
    kUint64 = 10,
    kInt64 = 11,
    kFloat64 = 12,
};

// Names of GGML types that are real but not read here, so that a message can say what the file holds.
std::string_view ggml_type_name(uint32_t type) {
    constexpr std::pair<uint32_t, std::string_view> kOthers[] = {
        {9, "Q8_1"},   {10, "Q2_K"},   {11, "Q3_K"},  {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
        {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"},  {29, "IQ1_M"},  {39, "MXFP4"},
    };
    for (const auto& [number, name] : kOthers) {
        if (number == type) return name;
    }
    return {};
}

/// Reads values one after the other; every read is checked against the end of the bytes and, for what it allocates,
/// against the parse budget.
class Cursor {
  public:
    Cursor(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

    uint64_t position() const { return position_; }
    uint64_t remaining() const { return bytes_.size() - position_; }

    [[noreturn]] void fail(const std::string& message, ErrorCode code = ErrorCode::kFormat) const {
        throw Error(code, file_ + ": " + message);
    }

    std::span<const std::byte> take(uint64_t count, const std::string& what) {
        if (count > remaining()) {
            fail(what + " at byte " + std::to_string(position_) + ": expected " + std::to_string(count) +
                 " bytes, found " + std::to_string(remaining()) + " before the end of the file");
        }
        const auto part = bytes_.subspan(position_, count);
        position_ += count;
        return part;
    }

    template <typename T>
    T read(const std::string& what) {
        T value;
        std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
        return value;
    }

    std::string_view read_text(const std::string& what, uint64_t longest) {
        const auto length = read<uint64_t>(what + ", its length");
        if (length > longest) {
            fail(what + ": expected at most " + std::to_string(longest) + " bytes, found " + std::to_string(length));
        }
        const auto text = take(length, what);
        return {reinterpret_cast<const char*>(text.data()), text.size()};
    }

    /// A count whose items take at least `item_bytes` each in the file and `memory` each in ours.
    void check_count(uint64_t count, uint64_t item_bytes, uint64_t memory, const std::string& what) {
        if (count > remaining() / item_bytes) {
            fail(what + ": found a count of " + std::to_string(count) + ", expected at most " +
                 std::to_string(remaining() / item_bytes) + ", which is what the rest of the file can hold");
        }
        charge(count, memory, what);
    }

    void charge(uint64_t count, uint64_t memory, const std::string& what) {
        if (count > (kParseBudget - charged_) / memory) {
            fail(what + ": the header and its metadata need more than " + std::to_string(kParseBudget >> 20) + " MiB");
        }
        charged_ += count * memory;
    }

  private:
    std::span<const std::byte> bytes_;
    const std::string& file_;
    uint64_t position_ = 0;
    uint64_t charged_ = 0;
};

std::string read_string(Cursor& cursor, const std::string& what) {
    const std::string_view text = cursor.read_text(what, UINT64_MAX);
    cursor.charge(text.size() + 1, 2, what);  // our copy, and the page of the file it was read from
    return std::string(text);
}

bool read_bool(Cursor& cursor, const std::string& what) {
    const auto byte = cursor.read<uint8_t>(what);
    if (byte > 1) cursor.fail(what + ": expected a bool, 0 or 1, found " + std::to_string(byte));
    return byte == 1;
}

template <typename T>
std::vector<T> read_numbers(Cursor& cursor, uint64_t count, const std::string& what) {
    cursor.check_count(count, sizeof(T), 2 * sizeof(T), what);
    std::vector<T> items(count);
    const auto bytes = cursor.take(count * sizeof(T), what);
    if (count != 0) std::memcpy(items.data(), bytes.data(), bytes.size());
    return items;
}

MetaValue read_array(Cursor& cursor, const std::string& what, int depth);

MetaValue read_value(Cursor& cursor, uint32_t type, const std::string& what, int depth) {
    switch (type) {
        case kUint8:
            return cursor.read<uint8_t>(what);
        case kInt8:
            return cursor.read<int8_t>(what);
        case kUint16:
            return cursor.read<uint16_t>(what);
        case kInt16:
            return cursor.read<int16_t>(what);
        case kUint32:
            return cursor.read<uint32_t>(what);
        case kInt32:
            return cursor.read<int32_t>(what);
        case kFloat32:
            return cursor.read<float>(what);
        case kBool:
            return read_bool(cursor, what);
        case kString:
            return read_string(cursor, what);
        case kArray:
            return read_array(cursor, what, depth + 1);
        case kUint64:
            return cursor.read<uint64_t>(what);
        case kInt64:
            return cursor.read<int64_t>(what);
        case kFloat64:
            return cursor.read<double>(what);
        default:
            cursor.fail(what + ": expected a value type from 0 to 12, found " + std::to_string(type));
    }
}

MetaValue read_array(Cursor& cursor, const std::string& what, int depth) {
    if (depth > kDeepestArray) {
        cursor.fail(what + ": expected arrays nested at most " + std::to_string(kDeepestArray) + " deep, found more");
    }
    auto array = std::make_shared<MetaArray>();
    array->gguf_type = cursor.read<uint32_t>(what + ", its element type");
    const auto count = cursor.read<uint64_t>(what + ", its length");
    switch (array->gguf_type) {
        case kUint8:
            array->items = read_numbers<uint8_t>(cursor, count, what);
            break;
        case kInt8:
            array->items = read_numbers<int8_t>(cursor, count, what);
            break;
        case kUint16:
            array->items = read_numbers<uint16_t>(cursor, count, what);
            break;
        case kInt16:
            array->items = read_numbers<int16_t>(cursor, count, what);
            break;
        case kUint32:
            array->items = read_numbers<uint32_t>(cursor, count, what);
            break;
        case kInt32:
            array->items = read_numbers<int32_t>(cursor, count, what);
            break;
        case kFloat32:
            array->items = read_numbers<float>(cursor, count, what);
            break;
        case kUint64:
            array->items = read_numbers<uint64_t>(cursor, count, what);
            break;
        case kInt64:
            array->items = read_numbers<int64_t>(cursor, count, what);
            break;
        case kFloat64:
            array->items = read_numbers<double>(cursor, count, what);
            break;
        case kBool: {
            cursor.check_count(count, 1, 2, what);
            std::vector<bool> items(count);
            for (uint64_t i = 0; i < count; ++i) items[i] = read_bool(cursor, what);
            array->items = std::move(items);
            break;
        }
        case kString: {
            cursor.check_count(count, sizeof(uint64_t), sizeof(std::string), what);
            std::vector<std::string> items(count);
            for (std::string& item : items) item = read_string(cursor, what);
            array->items = std::move(items);
            break;
        }
        case kArray: {
            cursor.check_count(count, 4 + 8, sizeof(MetaValue) + sizeof(MetaArray) + 64, what);
            std::vector<MetaValue> items(count);
            for (MetaValue& item : items) item = read_array(cursor, what, depth + 1);
            array->items = std::move(items);
            break;
        }
        default:
            cursor.fail(what + ": expected an element type from 0 to 12, found " + std::to_string(array->gguf_type));
    }
    return std::shared_ptr<const MetaArray>(std::move(array));
}

void read_metadata(Cursor& cursor, uint64_t count, Metadata& metadata) {
    cursor.check_count(count, kSmallestKeyValue, 200, "number of metadata keys");
    for (uint64_t i = 0; i < count; ++i) {
        const std::string_view key = cursor.read_text("name of metadata key " + std::to_string(i), kLongestKey);
        if (key.empty()) cursor.fail("metadata key " + std::to_string(i) + ": expected a name, found an empty one");
        const std::string what = "key " + in_quotes(key);
        if (metadata.has(key)) cursor.fail(what + " appears twice");
        cursor.charge(key.size() + 1, 2, what);
        const auto type = cursor.read<uint32_t>(what + ", its type");
        metadata.set(std::string(key), read_value(cursor, type, what, 0));
    }
}

uint64_t tensor_bytes(const Cursor& cursor, const Tensor& tensor, const TypeTraits& traits) {
    uint64_t elements = 1;
    uint64_t bytes = 0;
    for (const uint64_t extent : tensor.shape) {
        if (!multiply_checked(elements, extent, elements)) {
            cursor.fail("tensor " + in_quotes(tensor.name) + ": the product of shape " + shape_text(tensor.shape) +
                        " does not fit 64 bits");
        }
    }
    if (tensor.shape[0] % traits.block_weights != 0) {
        cursor.fail("tensor " + in_quotes(tensor.name) + ": expected a row length divisible by " +
                    std::to_string(traits.block_weights) + " for type " + std::string(traits.name) + ", found shape " +
                    shape_text(tensor.shape));
    }
    if (!multiply_checked(elements / traits.block_weights, traits.block_bytes, bytes)) {
        cursor.fail("tensor " + in_quotes(tensor.name) + ": the size of shape " + shape_text(tensor.shape) +
                    " does not fit 64 bits");
    }
    return bytes;
}

struct Extent {
    uint64_t offset = 0;  // inside the data section
    uint64_t bytes = 0;
};

/// Reads one row of the tensor table. The data comes later: it starts where the table ends.
Tensor read_tensor_info(Cursor& cursor, uint64_t index, uint64_t alignment, Extent& extent) {
    Tensor tensor;
    tensor.name = cursor.read_text("name of tensor " + std::to_string(index), kLongestTensorName);
    if (tensor.name.empty()) cursor.fail("tensor " + std::to_string(index) + ": expected a name, found an empty one");
    const std::string what = "tensor " + in_quotes(tensor.name);
    const auto dimensions = cursor.read<uint32_t>(what + ", its number of dimensions");
    if (dimensions < 1 || dimensions > 4) {
        cursor.fail(what + ": expected 1 to 4 dimensions, found " + std::to_string(dimensions));
    }
    tensor.shape.resize(dimensions);
    for (uint64_t& length : tensor.shape) {
        length = cursor.read<uint64_t>(what + ", its shape");
        if (length == 0) cursor.fail(what + ": expected dimensions of at least 1, found 0");
    }
    const auto type = cursor.read<uint32_t>(what + ", its type");
    extent.offset = cursor.read<uint64_t>(what + ", its offset");

    tensor.type = static_cast<TensorType>(type);
    const TypeTraits* traits = type < 1000 ? type_traits(tensor.type) : nullptr;
    if (traits == nullptr) {
        const std::string_view known = ggml_type_name(type);
        cursor.fail(what + ": type " + (known.empty() ? std::to_string(type) : std::string(known)) +
                        " is not supported (expected F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, "
                        "TQ1_0, TQ2_0 or an integer type)",
                    ErrorCode::kUnsupported);
    }
    extent.bytes = tensor_bytes(cursor, tensor, *traits);
    if (extent.offset % alignment != 0) {
        cursor.fail(what + ": expected an offset that is a multiple of " + std::to_string(alignment) + ", found " +
                    std::to_string(extent.offset));
    }
    return tensor;
}

void check_overlap(const Cursor& cursor, const std::vector<Tensor>& tensors, const std::vector<Extent>& extents) {
    std::vector<size_t> order(tensors.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, {}, [&](size_t i) { return extents[i].offset; });
    for (size_t i = 1; i < order.size(); ++i) {
        const Extent& before = extents[order[i - 1]];
        const Extent& after = extents[order[i]];
        if (after.offset < before.offset + before.bytes) {
            cursor.fail("tensor " + in_quotes(tensors[order[i]].name) + ": its data at offset " +
                        std::to_string(after.offset) + " overlaps tensor " + in_quotes(tensors[order[i - 1]].name) +
                        ", which ends at " + std::to_string(before.offset + before.bytes));
        }
    }
}

void read_tensors(Cursor& cursor, std::span<const std::byte> file, uint64_t count, GgufContents& contents) {
    // A Tensor, its name, shape and extent, and its place in the set of names.
    cursor.check_count(count, kSmallestTensorInfo, sizeof(Tensor) + 128, "number of tensors");
    contents.tensors.reserve(count);
    std::vector<Extent> extents(count);
    std::unordered_set<std::string_view> names;
    for (uint64_t i = 0; i < count; ++i) {
        contents.tensors.push_back(read_tensor_info(cursor, i, contents.alignment, extents[i]));
        const std::string& name = contents.tensors.back().name;
        cursor.charge(name.size(), 1, "number of tensors");
        if (!names.insert(name).second) cursor.fail("tensor " + in_quotes(name) + " appears twice");
    }
    const uint64_t end = cursor.position();
    const uint64_t start = end + (contents.alignment - end % contents.alignment) % contents.alignment;
    const uint64_t available = start < file.size() ? file.size() - start : 0;
    for (uint64_t i = 0; i < count; ++i) {
        const auto [offset, bytes] = extents[i];
        if (bytes > available || offset > available - bytes) {
            cursor.fail("tensor " + in_quotes(contents.tensors[i].name) + ": expected " + std::to_string(bytes) +
                        " bytes at offset " + std::to_string(offset) + ", found a data section of " +
                        std::to_string(available) + " bytes");
        }
        contents.tensors[i].data = file.subspan(start + offset, bytes);
    }
    check_overlap(cursor, contents.tensors, extents);
}

uint64_t read_alignment(const Cursor& cursor, const Metadata& metadata) {
    if (!metadata.has("general.alignment")) return 32;
    const uint64_t alignment = metadata.get_uint("general.alignment");
    if (alignment < 8 || alignment > kLargestAlignment || !std::has_single_bit(alignment)) {
        cursor.fail("key 'general.alignment': expected a power of two from 8 to " + std::to_string(kLargestAlignment) +
                    ", found " + std::to_string(alignment));
    }
    return alignment;
}

}  // namespace

bool is_gguf(std::span<const std::byte> bytes) {
    return bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0;
}

GgufContents parse_gguf(std::span<const std::byte> bytes, const std::string& name) {
    Cursor cursor(bytes, name);
    if (!is_gguf(bytes)) cursor.fail("expected a GGUF file, which starts with 'GGUF'; this one does not");
    cursor.take(4, "magic");
    GgufContents contents;
    contents.metadata = Metadata(name);
    contents.version = cursor.read<uint32_t>("version");
    if (contents.version != 0 && (contents.version & 0xffffu) == 0) {
        cursor.fail("this is a big-endian GGUF file; expected a little-endian one", ErrorCode::kUnsupported);
    }
    if (contents.version != 2 && contents.version != 3) {
        cursor.fail("expected GGUF version 2 or 3, found " + std::to_string(contents.version), ErrorCode::kUnsupported);
    }
    const auto tensor_count = cursor.read<uint64_t>("number of tensors");
    const auto key_count = cursor.read<uint64_t>("number of metadata keys");
    read_metadata(cursor, key_count, contents.metadata);
    contents.alignment = read_alignment(cursor, contents.metadata);
    read_tensors(cursor, bytes, tensor_count, contents);
    return contents;
}

}  // namespace samara::formats
