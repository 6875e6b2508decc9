#include "src/platform/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "src/platform/error.hpp"

namespace samara {
namespace {

[[noreturn]] void fail(const std::string& name, const std::string& what) {
    throw Error(ErrorCode::kIo, name + ": " + what);
}

[[noreturn]] void fail_errno(const std::string& name, const std::string& what) {
    const int code = errno;
    fail(name, what + ": " + std::strerror(code));
}

uintptr_t page_size() {
    static const auto size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    return size;
}

}  // namespace

MappedFile MappedFile::open(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // non-blocking: a FIFO must not hang us
    if (fd < 0) fail_errno(path, "cannot open the file");
    try {
        MappedFile file = from_descriptor(fd, 0, 0, path);
        ::close(fd);
        return file;
    } catch (...) {
        ::close(fd);
        throw;
    }
}

MappedFile MappedFile::from_descriptor(int fd, uint64_t offset, uint64_t length, const std::string& name) {
    struct stat info{};
    if (fstat(fd, &info) != 0) fail_errno(name, "cannot read the file's size");
    if (!S_ISREG(info.st_mode)) fail(name, "not a regular file");
    const auto total = static_cast<uint64_t>(info.st_size);
    if (total == 0) fail(name, "the file is empty");
    if (offset >= total) {
        fail(name,
             "offset " + std::to_string(offset) + " is past the end; the file has " + std::to_string(total) + " bytes");
    }
    if (length > total - offset) {
        fail(name, std::to_string(length) + " bytes from offset " + std::to_string(offset) +
                       " were asked for; the file has " + std::to_string(total) + " bytes");
    }
    if (length == 0) length = total - offset;
    const uint64_t lead = offset % page_size();
    if (length > std::numeric_limits<size_t>::max() - lead) fail(name, "the file does not fit this address space");

    MappedFile file;
    file.name_ = name;
    const auto mapped_length = static_cast<size_t>(length + lead);
    void* base = mmap(nullptr, mapped_length, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset - lead));
    if (base == MAP_FAILED) fail_errno(name, "cannot map " + std::to_string(length) + " bytes");
    file.base_ = base;
    file.mapped_length_ = mapped_length;
    file.bytes_ = {static_cast<const std::byte*>(base) + lead, static_cast<size_t>(length)};
    return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    if (this == &other) return *this;
    unmap();
    name_ = std::move(other.name_);
    base_ = std::exchange(other.base_, nullptr);
    mapped_length_ = std::exchange(other.mapped_length_, 0);
    bytes_ = std::exchange(other.bytes_, {});
    return *this;
}

MappedFile::~MappedFile() { unmap(); }

void MappedFile::unmap() noexcept {
    if (base_ != nullptr) munmap(base_, mapped_length_);
    base_ = nullptr;
}

bool MappedFile::contains(std::span<const std::byte> part) const {
    const std::less_equal<const std::byte*> not_after;
    return !bytes_.empty() && not_after(bytes_.data(), part.data()) &&
           not_after(part.data() + part.size(), bytes_.data() + bytes_.size());
}

void MappedFile::drop(std::span<const std::byte> part) const {
    const auto begin = reinterpret_cast<uintptr_t>(part.data());
    const uintptr_t first = (begin + page_size() - 1) & ~(page_size() - 1);
    const uintptr_t last = (begin + part.size()) & ~(page_size() - 1);
    if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);  // advice: may fail
}

void MappedFile::will_need(std::span<const std::byte> part) const {
    const auto begin = reinterpret_cast<uintptr_t>(part.data());
    const uintptr_t first = begin & ~(page_size() - 1);
    if (!part.empty()) madvise(reinterpret_cast<void*>(first), begin + part.size() - first, MADV_WILLNEED);
}

}  // namespace samara
