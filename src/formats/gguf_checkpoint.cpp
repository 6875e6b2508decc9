// A GGUF model as a Checkpoint: one file, or a split set whose files are found by name.

#include <cstdio>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "src/formats/gguf_reader.hpp"
#include "src/formats/mapped_checkpoint.hpp"
#include "src/formats/text.hpp"

namespace samara::formats {
namespace {

constexpr uint64_t kMostSplits = 9999;

class GgufCheckpoint final : public MappedCheckpoint {
  public:
    explicit GgufCheckpoint(MappedFile first) : contents_(parse_gguf(first.bytes(), first.name())) {
        files_.push_back(std::move(first));
    }

    const Metadata& metadata() const override { return contents_.metadata; }
    const std::vector<Tensor>& tensors() const override { return contents_.tensors; }
    std::string format() const override { return "GGUF v" + std::to_string(contents_.version); }

    /// Adds the tensors of the other files of the set this file is the first of.
    void add_siblings(bool by_name);

  private:
    void add_sibling(const std::string& path, uint64_t number, uint64_t count);

    GgufContents contents_;
};

std::string split_suffix(uint64_t number, uint64_t count) {
    char text[40];
    std::snprintf(text, sizeof text, "-%05u-of-%05u.gguf", static_cast<unsigned>(number), static_cast<unsigned>(count));
    return text;
}

void GgufCheckpoint::add_siblings(bool by_name) {
    const Metadata& metadata = contents_.metadata;
    if (!metadata.has("split.count")) return;
    const uint64_t count = metadata.get_uint("split.count", 0, kMostSplits);
    const uint64_t expected_tensors = metadata.get_uint_or("split.tensors.count", contents_.tensors.size());
    if (count > 1) {
        const uint64_t number = metadata.get_uint("split.no");
        if (number != 0) {
            throw Error(ErrorCode::kFormat, file() + ": this is file " + std::to_string(number + 1) + " of a set of " +
                                                std::to_string(count) + "; expected the first");
        }
        if (!by_name) {
            throw Error(ErrorCode::kUnsupported,
                        file() + ": a split set of " + std::to_string(count) +
                            " files cannot be read from a descriptor; expected one whole file");
        }
        const std::string first = split_suffix(1, count);
        if (!file().ends_with(first)) {
            throw Error(ErrorCode::kFormat, file() + ": expected a name that ends in " + in_quotes(first) +
                                                ", as the first of " + std::to_string(count) + " files has");
        }
        const std::string prefix = file().substr(0, file().size() - first.size());
        for (uint64_t i = 1; i < count; ++i) add_sibling(prefix + split_suffix(i + 1, count), i, count);
    }
    if (contents_.tensors.size() != expected_tensors) {
        throw Error(ErrorCode::kFormat, file() + ": key 'split.tensors.count': expected " +
                                            std::to_string(expected_tensors) + " tensors in the set, found " +
                                            std::to_string(contents_.tensors.size()));
    }
    std::unordered_set<std::string_view> names;
    for (const Tensor& tensor : contents_.tensors) {
        if (names.insert(tensor.name).second) continue;
        throw Error(ErrorCode::kFormat, file() + ": tensor " + in_quotes(tensor.name) + " is in two files of the set");
    }
}

void GgufCheckpoint::add_sibling(const std::string& path, uint64_t number, uint64_t count) {
    MappedFile file = MappedFile::open(path);
    GgufContents part = parse_gguf(file.bytes(), path);
    part.metadata.get_uint("split.count", count, count);
    part.metadata.get_uint("split.no", number, number);
    for (Tensor& tensor : part.tensors) contents_.tensors.push_back(std::move(tensor));
    files_.push_back(std::move(file));
}

}  // namespace

std::unique_ptr<Checkpoint> open_gguf(const Source& source) {
    const bool by_name = source.fd < 0;
    const std::string name = source.path.empty() ? "descriptor " + std::to_string(source.fd) : source.path;
    auto checkpoint = std::make_unique<GgufCheckpoint>(
        by_name ? MappedFile::open(source.path)
                : MappedFile::from_descriptor(source.fd, source.offset, source.length, name));
    checkpoint->add_siblings(by_name);
    return checkpoint;
}

}  // namespace samara::formats
