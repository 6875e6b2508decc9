#include "src/formats/gguf_writer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <type_traits>

namespace samara::formats {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is little-endian and is written as memory holds it");

constexpr uint32_t kVersion = 3;
constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr int kTemporaryAttempts = 100;
constexpr std::string_view kAlignmentKey = "general.alignment";

// GGUF's numbers for value types, in the order of MetaValue's alternatives.
enum ValueType : uint32_t {
    kUint8,
    kInt8,
    kUint16,
    kInt16,
    kUint32,
    kInt32,
    kFloat32,
    kBool,
    kString,
    kArray,
    kUint64,
    kInt64,
    kFloat64
};

template <typename T>
constexpr uint32_t value_type_of() {
    if constexpr (std::is_same_v<T, uint8_t>) return kUint8;
    if constexpr (std::is_same_v<T, int8_t>) return kInt8;
    if constexpr (std::is_same_v<T, uint16_t>) return kUint16;
    if constexpr (std::is_same_v<T, int16_t>) return kInt16;
    if constexpr (std::is_same_v<T, uint32_t>) return kUint32;
    if constexpr (std::is_same_v<T, int32_t>) return kInt32;
    if constexpr (std::is_same_v<T, uint64_t>) return kUint64;
    if constexpr (std::is_same_v<T, int64_t>) return kInt64;
    if constexpr (std::is_same_v<T, float>) return kFloat32;
    if constexpr (std::is_same_v<T, double>) return kFloat64;
    if constexpr (std::is_same_v<T, bool>) return kBool;
    if constexpr (std::is_same_v<T, std::string>) return kString;
    return kArray;
}

uint32_t value_type(const MetaValue& value) {
    return std::visit([](const auto& v) { return value_type_of<std::decay_t<decltype(v)>>(); }, value);
}

class Encoder {
  public:
    template <typename T>
        requires std::is_arithmetic_v<T>
    void put(T value) {
        const auto* first = reinterpret_cast<const std::byte*>(&value);
        bytes.insert(bytes.end(), first, first + sizeof(T));
    }
    void put(bool value) { put(static_cast<uint8_t>(value ? 1 : 0)); }
    void put(const std::string& text) {
        put(static_cast<uint64_t>(text.size()));
        const auto* first = reinterpret_cast<const std::byte*>(text.data());
        bytes.insert(bytes.end(), first, first + text.size());
    }
    void put(const std::shared_ptr<const MetaArray>& array) {
        if (!array) throw Error(ErrorCode::kInternal, "GGUF writer: a metadata array without contents");
        std::visit([&](const auto& items) { put_items(*array, items); }, array->items);
    }
    void put(const MetaValue& value) {
        std::visit([&](const auto& v) { put(v); }, value);
    }

    std::vector<std::byte> bytes;

  private:
    template <typename T>
    void put_items(const MetaArray& array, const std::vector<T>& items) {
        // A vector<MetaValue> holds what has no vector of its own: arrays of arrays. Its element type is the array's.
        const uint32_t type = std::is_same_v<T, MetaValue> ? array.gguf_type : value_type_of<T>();
        put(type);
        put(static_cast<uint64_t>(items.size()));
        for (const auto& item : items) {
            if constexpr (std::is_same_v<T, MetaValue>) {
                if (value_type(item) != type) {
                    throw Error(ErrorCode::kInternal, "GGUF writer: a metadata array with elements of different types");
                }
            }
            put(static_cast<const T&>(item));
        }
    }
};

uint64_t align_up(uint64_t value, uint64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

std::string shape_text(const std::vector<uint64_t>& shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
}

uint64_t tensor_bytes(const std::string& name, TensorType type, const std::vector<uint64_t>& shape) {
    const TypeTraits* traits = type_traits(type);
    const auto number = static_cast<uint32_t>(type);
    if (traits == nullptr || number >= static_cast<uint32_t>(TensorType::kMlx2Row)) {
        throw Error(ErrorCode::kInvalidArgument, "GGUF writer: tensor " + name + " has type " + std::to_string(number) +
                                                     ", which GGUF does not have");
    }
    if (shape.empty() || shape.size() > 4) {
        throw Error(ErrorCode::kInvalidArgument,
                    "GGUF writer: tensor " + name + " has shape " + shape_text(shape) + "; expected 1 to 4 extents");
    }
    if (shape[0] % traits->block_weights != 0) {
        throw Error(ErrorCode::kInvalidArgument,
                    "GGUF writer: tensor " + name + " has rows of " + std::to_string(shape[0]) + " weights; " +
                        std::string(traits->name) + " needs a multiple of " + std::to_string(traits->block_weights));
    }
    uint64_t bytes = shape[0] / traits->block_weights;
    bool valid = shape[0] != 0 && !__builtin_mul_overflow(bytes, uint64_t{traits->block_bytes}, &bytes);
    for (size_t i = 1; i < shape.size(); ++i) {
        valid = valid && shape[i] != 0 && !__builtin_mul_overflow(bytes, shape[i], &bytes);
    }
    if (!valid || bytes > static_cast<uint64_t>(INT64_MAX) / 2) {
        throw Error(ErrorCode::kInvalidArgument,
                    "GGUF writer: tensor " + name + " has the impossible shape " + shape_text(shape));
    }
    return bytes;
}

/// The rename at the end would put a file in the place of a device or a pipe, and fails late on a folder.
void refuse_what_is_no_file(const std::string& path) {
    if (path.empty()) throw Error(ErrorCode::kInvalidArgument, "expected the name of a file to write, found none");
    struct stat info{};
    if (::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return;
    throw Error(ErrorCode::kInvalidArgument, path + ": expected a file or a new name to write, found " +
                                                 (S_ISDIR(info.st_mode) ? "a folder" : "a device or a pipe"));
}

}  // namespace

GgufWriter::GgufWriter(std::string path, uint32_t alignment) : path_(std::move(path)), alignment_(alignment) {
    if (alignment < 8 || !std::has_single_bit(alignment)) {
        throw Error(ErrorCode::kInvalidArgument,
                    "GGUF writer: alignment " + std::to_string(alignment) + " is not a power of two of at least 8");
    }
    refuse_what_is_no_file(path_);
    for (int attempt = 0; attempt < kTemporaryAttempts && fd_ < 0; ++attempt) {
        temporary_ = path_ + ".part-" + std::to_string(::getpid()) + "-" + std::to_string(attempt);
        fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd_ < 0 && errno != EEXIST) break;
    }
    if (fd_ < 0) fail_io("cannot create the temporary file " + temporary_);
    buffer_.reserve(kBufferBytes);
    if (alignment_ != kDefaultAlignment) pairs_.push_back({std::string(kAlignmentKey), alignment_});
}

GgufWriter::~GgufWriter() {
    if (fd_ >= 0) ::close(fd_);
    if (!finished_) ::unlink(temporary_.c_str());
}

void GgufWriter::fail_io(const std::string& action) const {
    const int error = errno;
    std::string message = path_ + ": " + action + ": " + std::strerror(error);
    if (error == ENOSPC && file_bytes_ != 0) {
        message += "; the whole file needs " + std::to_string(file_bytes_) + " bytes";
    }
    throw Error(ErrorCode::kIo, message);
}

void GgufWriter::set(std::string key, MetaValue value) {
    if (begun_) throw Error(ErrorCode::kInternal, "GGUF writer: set(" + key + ") after begin()");
    if (key == kAlignmentKey) return;
    const auto same = std::find_if(pairs_.begin(), pairs_.end(), [&](const Pair& pair) { return pair.key == key; });
    if (same != pairs_.end()) {
        same->value = std::move(value);
    } else {
        pairs_.push_back({std::move(key), std::move(value)});
    }
}

void GgufWriter::set_all(const Metadata& metadata) {
    for (const auto& [key, value] : metadata.entries()) set(key, value);
}

void GgufWriter::declare(std::string name, TensorType type, std::vector<uint64_t> shape) {
    if (begun_) throw Error(ErrorCode::kInternal, "GGUF writer: declare(" + name + ") after begin()");
    Declared tensor{std::move(name), type, std::move(shape)};
    for (const Declared& other : tensors_) {
        if (other.name == tensor.name) {
            throw Error(ErrorCode::kInvalidArgument, "GGUF writer: tensor " + tensor.name + " is declared twice");
        }
    }
    tensor.bytes = tensor_bytes(tensor.name, type, tensor.shape);
    if (!tensors_.empty()) tensor.offset = align_up(tensors_.back().offset + tensors_.back().bytes, alignment_);
    tensors_.push_back(std::move(tensor));
}

void GgufWriter::begin() {
    if (begun_) throw Error(ErrorCode::kInternal, "GGUF writer: begin() twice");
    begun_ = true;
    Encoder header;
    header.put(uint8_t{'G'}), header.put(uint8_t{'G'}), header.put(uint8_t{'U'}), header.put(uint8_t{'F'});
    header.put(kVersion);
    header.put(static_cast<uint64_t>(tensors_.size()));
    header.put(static_cast<uint64_t>(pairs_.size()));
    for (Pair& pair : pairs_) {
        header.put(pair.key);
        header.put(value_type(pair.value));
        pair.value_offset = header.bytes.size();
        header.put(pair.value);
        pair.value_bytes = header.bytes.size() - pair.value_offset;
    }
    for (const Declared& tensor : tensors_) {
        header.put(tensor.name);
        header.put(static_cast<uint32_t>(tensor.shape.size()));
        for (const uint64_t extent : tensor.shape) header.put(extent);
        header.put(static_cast<uint32_t>(tensor.type));
        header.put(tensor.offset);
    }
    data_begin_ = align_up(header.bytes.size(), alignment_);
    const uint64_t data_bytes = tensors_.empty() ? 0 : tensors_.back().offset + tensors_.back().bytes;
    file_bytes_ = data_begin_ + align_up(data_bytes, alignment_);
    reserve_space();
    append(header.bytes);
    append_zeros(data_begin_ - header.bytes.size());
}

// A disk that is too small should say so now, not after minutes of work. File systems without the call are let pass.
void GgufWriter::reserve_space() {
#ifdef __linux__
    if (::fallocate(fd_, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(file_bytes_)) != 0 &&
        (errno == ENOSPC || errno == EFBIG || errno == EDQUOT)) {
        fail_io("cannot reserve space");
    }
#endif
}

void GgufWriter::write(std::string_view tensor, std::span<const std::byte> bytes) {
    if (!begun_ || finished_) throw Error(ErrorCode::kInternal, "GGUF writer: write() outside begin() and finish()");
    if (current_ < tensors_.size() && current_bytes_ == tensors_[current_].bytes) {
        append_zeros(align_up(current_bytes_, alignment_) - current_bytes_);
        current_bytes_ = 0;
        ++current_;
    }
    if (current_ >= tensors_.size() || tensors_[current_].name != tensor) {
        throw Error(ErrorCode::kInternal,
                    "GGUF writer: data for tensor " + std::string(tensor) + "; expected " +
                        (current_ < tensors_.size() ? tensors_[current_].name : std::string("no more tensors")));
    }
    const Declared& declared = tensors_[current_];
    if (bytes.size() > declared.bytes - current_bytes_) {
        throw Error(ErrorCode::kInternal, "GGUF writer: tensor " + declared.name + " has " +
                                              std::to_string(declared.bytes) + " bytes; found " +
                                              std::to_string(current_bytes_ + bytes.size()));
    }
    append(bytes);
    current_bytes_ += bytes.size();
}

void GgufWriter::replace(std::string_view key, const MetaValue& value) {
    if (!begun_ || finished_) throw Error(ErrorCode::kInternal, "GGUF writer: replace() outside begin() and finish()");
    const auto pair = std::find_if(pairs_.begin(), pairs_.end(), [&](const Pair& p) { return p.key == key; });
    if (pair == pairs_.end()) {
        throw Error(ErrorCode::kInternal, "GGUF writer: replace() of the unknown key " + std::string(key));
    }
    Encoder encoder;
    encoder.put(value);
    if (value_type(value) != value_type(pair->value) || encoder.bytes.size() != pair->value_bytes) {
        throw Error(ErrorCode::kInternal,
                    "GGUF writer: replace() of " + std::string(key) + " changes its type or size");
    }
    flush();
    for (uint64_t done = 0; done < encoder.bytes.size();) {
        const ssize_t n = ::pwrite(fd_, encoder.bytes.data() + done, encoder.bytes.size() - done,
                                   static_cast<off_t>(pair->value_offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail_io("cannot write " + temporary_);
        done += static_cast<uint64_t>(n);
    }
    pair->value = value;
}

void GgufWriter::finish() {
    if (!begun_ || finished_) throw Error(ErrorCode::kInternal, "GGUF writer: finish() before begin() or twice");
    if (!tensors_.empty()) {
        const Declared& declared = tensors_[current_];
        if (current_ + 1 != tensors_.size() || current_bytes_ != declared.bytes) {
            throw Error(ErrorCode::kInternal,
                        "GGUF writer: finish() with tensor " + declared.name + " at " + std::to_string(current_bytes_) +
                            " of " + std::to_string(declared.bytes) + " bytes, number " + std::to_string(current_ + 1) +
                            " of " + std::to_string(tensors_.size()));
        }
    }
    append_zeros(file_bytes_ - flushed_ - buffer_.size());
    flush();
    if (::fsync(fd_) != 0) fail_io("cannot sync " + temporary_);
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0) fail_io("cannot close " + temporary_);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_io("cannot rename " + temporary_);
    finished_ = true;
    // The rename itself lives in the folder; some file systems cannot sync one, and the data is safe either way.
    const size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    const int folder_fd = ::open(folder.c_str(), O_RDONLY | O_CLOEXEC);
    if (folder_fd >= 0) {
        ::fsync(folder_fd);
        ::close(folder_fd);
    }
}

const GgufWriter::Declared& GgufWriter::find_declared(std::string_view tensor) const {
    for (const Declared& declared : tensors_) {
        if (declared.name == tensor) return declared;
    }
    throw Error(ErrorCode::kInternal, "GGUF writer: unknown tensor " + std::string(tensor));
}

uint64_t GgufWriter::tensor_offset(std::string_view tensor) const {
    if (!begun_) throw Error(ErrorCode::kInternal, "GGUF writer: tensor_offset() before begin()");
    return data_begin_ + find_declared(tensor).offset;
}

void GgufWriter::append(std::span<const std::byte> bytes) {
    if (buffer_.size() + bytes.size() <= kBufferBytes) {
        buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
        return;
    }
    flush();
    if (bytes.size() >= kBufferBytes) {
        write_at_end(bytes);
    } else {
        buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    }
}

void GgufWriter::append_zeros(uint64_t count) {
    static constexpr std::byte kZeros[4096]{};
    while (count > 0) {
        const uint64_t n = std::min<uint64_t>(count, sizeof(kZeros));
        append(std::span<const std::byte>(kZeros, n));
        count -= n;
    }
}

void GgufWriter::flush() {
    write_at_end(buffer_);
    buffer_.clear();
}

void GgufWriter::write_at_end(std::span<const std::byte> bytes) {
    const uint64_t begin = flushed_;
    while (!bytes.empty()) {
        const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail_io("cannot write " + temporary_);
        flushed_ += static_cast<uint64_t>(n);
        bytes = bytes.subspan(static_cast<size_t>(n));
    }
#ifdef __linux__
    // The disk starts now rather than when finish() waits for it. Only a hint: finish() reports what goes wrong.
    ::sync_file_range(fd_, static_cast<off_t>(begin), static_cast<off_t>(flushed_ - begin), SYNC_FILE_RANGE_WRITE);
#else
    (void)begin;
#endif
}

}  // namespace samara::formats
