#include "src/formats/safetensors_reader.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "src/formats/json_walk.hpp"
#include "src/formats/text.hpp"

namespace samara::formats {
namespace {

// A 20B model in one file, experts one by one, has a header of 3 MB; a parsed header takes a few times its size.
constexpr uint64_t kLongestHeader = 16ull << 20;
constexpr uint64_t kLongestName = 255;
constexpr size_t kMostDimensions = 4;

uint64_t dtype_bytes(std::string_view dtype) {
    constexpr std::array<std::pair<std::string_view, uint64_t>, 12> kSizes{{{"BOOL", 1},
                                                                            {"U8", 1},
                                                                            {"I8", 1},
                                                                            {"U16", 2},
                                                                            {"I16", 2},
                                                                            {"F16", 2},
                                                                            {"BF16", 2},
                                                                            {"U32", 4},
                                                                            {"I32", 4},
                                                                            {"F32", 4},
                                                                            {"I64", 8},
                                                                            {"F64", 8}}};
    for (const auto& [name, bytes] : kSizes) {
        if (name == dtype) return bytes;
    }
    return 0;
}

/// A tensor some of whose fields have been read.
struct Pending {
    SafetensorsEntry entry;
    std::vector<uint64_t> offsets;
    bool has_shape = false;
};

/// Builds the entries of one header from the walk over its JSON: {"name": {"dtype", "shape", "data_offsets"}, ...}.
class HeaderReader {
  public:
    HeaderReader(const std::string& file, std::span<const std::byte> data) : file_(file), data_(data) {}

    void handle(std::span<const std::string> path, JsonValue& value);
    std::vector<SafetensorsEntry> finish();

  private:
    [[noreturn]] void fail(const std::string& message, ErrorCode code = ErrorCode::kFormat) const {
        throw Error(code, file_ + ": " + message);
    }
    [[noreturn]] void fail_field(const std::string& field, const std::string& expected, const JsonValue& found) const {
        fail("tensor " + in_quotes(pending_->entry.name) + ": " + field + ": expected " + expected + ", found " +
             describe_json(found));
    }
    void handle_field(const std::string& field, bool element, JsonValue& value);
    void complete();
    void check_layout();

    const std::string& file_;
    std::span<const std::byte> data_;
    std::optional<Pending> pending_;  // the tensor whose fields are being read
    std::vector<SafetensorsEntry> entries_;
    std::vector<uint64_t> begins_;  // of each entry, in data_
};

void HeaderReader::handle(std::span<const std::string> path, JsonValue& value) {
    if (path.empty()) {
        if (!std::holds_alternative<JsonObject>(value)) {
            fail("header: expected a JSON object, found " + describe_json(value));
        }
        return;
    }
    if (path[0] == "__metadata__") return;
    if (path.size() == 1) {
        complete();
        pending_.emplace();
        pending_->entry.name = path[0];
        if (path[0].empty() || path[0].size() > kLongestName) {
            fail("tensor " + in_quotes(path[0]) + ": expected a name of 1 to " + std::to_string(kLongestName) +
                 " bytes");
        }
        if (!std::holds_alternative<JsonObject>(value)) fail_field("description", "an object", value);
        return;
    }
    const bool element = path.size() == 3 && path[2] == "[]";
    if (path.size() > 2 && !element) fail_field(path[1], "a plain value", value);
    handle_field(path[1], element, value);
}

void HeaderReader::handle_field(const std::string& field, bool element, JsonValue& value) {
    if (field == "dtype") {
        auto* dtype = std::get_if<std::string>(&value);
        if (element || dtype == nullptr) fail_field(field, "a string", value);
        pending_->entry.dtype = std::move(*dtype);
        return;
    }
    if (field != "shape" && field != "data_offsets") {
        fail("tensor " + in_quotes(pending_->entry.name) + ": expected dtype, shape and data_offsets, found " +
             in_quotes(field));
    }
    if (!element) {
        if (!std::holds_alternative<JsonArray>(value)) fail_field(field, "an array", value);
        if (field == "shape") pending_->has_shape = true;
        return;
    }
    const auto* number = std::get_if<uint64_t>(&value);
    if (number == nullptr) fail_field(field, "non-negative integers", value);
    std::vector<uint64_t>& list = field == "shape" ? pending_->entry.shape : pending_->offsets;
    if (list.size() == kMostDimensions)
        fail_field(field, "at most " + std::to_string(kMostDimensions) + " numbers", value);
    list.push_back(*number);
}

void HeaderReader::complete() {
    if (!pending_) return;
    Pending done = std::move(*pending_);
    pending_.reset();
    SafetensorsEntry& entry = done.entry;
    const std::string what = "tensor " + in_quotes(entry.name);
    if (entry.dtype.empty() || !done.has_shape || done.offsets.size() != 2) {
        fail(what + ": expected dtype, shape and two data_offsets; one is missing");
    }
    const uint64_t item = dtype_bytes(entry.dtype);
    if (item == 0) fail(what + ": dtype " + in_quotes(entry.dtype) + " is not supported", ErrorCode::kUnsupported);
    if (entry.shape.empty()) fail(what + ": expected 1 to 4 dimensions, found 0");
    uint64_t bytes = item;
    for (const uint64_t extent : entry.shape) {
        if (extent == 0) fail(what + ": expected dimensions of at least 1, found shape " + shape_text(entry.shape));
        if (!multiply_checked(bytes, extent, bytes)) {
            fail(what + ": the size of shape " + shape_text(entry.shape) + " does not fit 64 bits");
        }
    }
    const uint64_t begin = done.offsets[0];
    const uint64_t end = done.offsets[1];
    if (begin > end || end > data_.size()) {
        fail(what + ": expected data_offsets inside the " + std::to_string(data_.size()) + " bytes of data, found " +
             shape_text(done.offsets));
    }
    if (end - begin != bytes) {
        fail(what + ": expected " + std::to_string(bytes) + " bytes for " + entry.dtype + " " +
             shape_text(entry.shape) + ", found " + std::to_string(end - begin) + " in data_offsets");
    }
    entry.data = data_.subspan(begin, bytes);
    begins_.push_back(begin);
    entries_.push_back(std::move(entry));
}

// The format allows neither overlap nor gaps: each tensor starts where the one before it ends.
void HeaderReader::check_layout() {
    std::vector<size_t> order(entries_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, {}, [&](size_t i) { return begins_[i]; });
    uint64_t position = 0;
    for (const size_t i : order) {
        if (begins_[i] != position) {
            fail("tensor " + in_quotes(entries_[i].name) + ": expected its data at offset " + std::to_string(position) +
                 ", where the tensor before it ends, found " + std::to_string(begins_[i]));
        }
        position += entries_[i].data.size();
    }
    if (position != data_.size()) {
        fail("expected " + std::to_string(position) + " bytes of data, found " + std::to_string(data_.size()));
    }
}

std::vector<SafetensorsEntry> HeaderReader::finish() {
    complete();
    check_layout();
    return std::move(entries_);
}

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors(std::span<const std::byte> bytes, const std::string& name) {
    uint64_t length = 0;
    if (bytes.size() < sizeof length) {
        throw Error(ErrorCode::kFormat,
                    name + ": expected a safetensors file, found only " + std::to_string(bytes.size()) + " bytes");
    }
    std::memcpy(&length, bytes.data(), sizeof length);
    const uint64_t available = bytes.size() - sizeof length;
    if (length > available || length > kLongestHeader) {
        throw Error(ErrorCode::kFormat, name + ": expected a header of at most " +
                                            std::to_string(std::min(available, kLongestHeader)) + " bytes, found " +
                                            std::to_string(length));
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof length, length);
    HeaderReader reader(name, bytes.subspan(sizeof length + length));
    walk_json(text, name, [&](std::span<const std::string> path, JsonValue& value) { reader.handle(path, value); });
    return reader.finish();
}

std::vector<std::pair<std::string, std::string>> parse_safetensors_index(std::string_view text,
                                                                         const std::string& name) {
    if (text.size() > kLongestHeader) {
        throw Error(ErrorCode::kFormat, name + ": expected at most " + std::to_string(kLongestHeader) +
                                            " bytes, found " + std::to_string(text.size()));
    }
    std::vector<std::pair<std::string, std::string>> files;
    bool has_map = false;
    walk_json(text, name, [&](std::span<const std::string> path, JsonValue& value) {
        if (path.empty() || path[0] != "weight_map") return;
        if (path.size() == 1) {
            has_map = std::holds_alternative<JsonObject>(value);
            return;
        }
        auto* file = std::get_if<std::string>(&value);
        // A shard lies beside its index: a name that leads elsewhere is hostile.
        if (path.size() != 2 || file == nullptr || !file->ends_with(".safetensors") ||
            file->find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
            throw Error(ErrorCode::kFormat,
                        name + ": weight_map " + in_quotes(path[1]) +
                            ": expected the name of a .safetensors file in the same folder, found " +
                            describe_json(value));
        }
        files.emplace_back(path[1], std::move(*file));
    });
    if (!has_map || files.empty()) throw Error(ErrorCode::kFormat, name + ": expected a weight_map, found none");
    return files;
}

}  // namespace samara::formats
