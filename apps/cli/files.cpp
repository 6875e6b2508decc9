#include "apps/cli/files.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "apps/cli/console.hpp"
#include "src/formats/packed.hpp"
#include "src/platform/error.hpp"

namespace samara::cli {

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
    if (path_.empty()) throw Error(ErrorCode::kInvalidArgument, "expected the name of a file to write, found none");
    std::error_code none;
    const auto status = std::filesystem::status(path_, none);
    // A rename would put a file in the place of /dev/null or of a pipe: those are written directly.
    const bool direct = std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
    if (!direct) temporary_ = path_ + fmt::format(".{}.tmp", getpid());
    file_ = direct ? std::fopen(path_.c_str(), "wb") : std::fopen(temporary_.c_str(), "wbx");
    if (file_ == nullptr) fail("create");
}

OutputFile::~OutputFile() {
    if (file_ == nullptr) return;
    std::fclose(file_);
    if (!temporary_.empty()) std::remove(temporary_.c_str());
}

void OutputFile::fail(const char* action) const {
    throw Error(ErrorCode::kIo, fmt::format("{}: cannot {}: {}", path_, action, std::strerror(errno)));
}

void OutputFile::write(std::span<const std::byte> bytes) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) fail("write");
}

void OutputFile::finish() {
    if (std::fflush(file_) != 0) fail("write");
    if (!temporary_.empty() && fsync(fileno(file_)) != 0) fail("write");
    if (!temporary_.empty() && std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename into place");
    std::fclose(file_);
    file_ = nullptr;
}

std::string read_text(const std::string& path, uint64_t limit) {
    const bool standard = path == "-";
    const std::string name = standard ? "standard input" : path;
    std::FILE* file = standard ? stdin : std::fopen(path.c_str(), "rb");
    if (file == nullptr) throw Error(ErrorCode::kIo, fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
    std::string text;
    char buffer[65536];
    size_t n = 0;
    // Not until fread() gives nothing: on a terminal that would ask for a second Ctrl-D.
    while (text.size() <= limit && std::feof(file) == 0 && (n = std::fread(buffer, 1, sizeof buffer, file)) > 0) {
        text.append(buffer, n);
    }
    const bool failed = std::ferror(file) != 0;
    const int reason = errno;
    if (!standard) std::fclose(file);
    if (failed) throw Error(ErrorCode::kIo, fmt::format("{}: cannot read: {}", name, std::strerror(reason)));
    if (text.size() > limit) {
        throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: expected at most {} bytes of text", name, limit));
    }
    return text;
}

std::vector<int32_t> read_token_file(const std::string& path) {
    const std::string text = read_text(path);
    std::vector<int32_t> tokens;
    const char* p = text.data();
    const char* const end = p + text.size();
    for (;;) {
        while (p != end && std::isspace(static_cast<unsigned char>(*p)) != 0) ++p;
        if (p == end) break;
        int32_t id = 0;
        const auto [rest, failure] = std::from_chars(p, end, id);
        if (failure != std::errc() || id < 0 || (rest != end && std::isspace(static_cast<unsigned char>(*rest)) == 0)) {
            const char* stop = p;
            while (stop != end && stop - p < 40 && std::isspace(static_cast<unsigned char>(*stop)) == 0) ++stop;
            throw Error(ErrorCode::kFormat, fmt::format("{}: word {}: expected a token id, found '{}'", path,
                                                        tokens.size() + 1, std::string(p, stop)));
        }
        tokens.push_back(id);
        p = rest;
    }
    if (tokens.empty()) throw Error(ErrorCode::kFormat, path + ": expected token ids, found none");
    return tokens;
}

void check_checksums(const formats::Checkpoint& checkpoint) {
    ProgressBar bar("verifying", ProgressBar::Unit::kBytes);
    const std::vector<std::string> damage = formats::verify_packed(checkpoint, [&](uint64_t done, uint64_t total) {
        bar.update(done, total);
        return !interrupted();
    });
    bar.clear();
    for (const std::string& d : damage) fmt::print(stderr, "samara: {}\n", d);
    if (!damage.empty()) {
        throw Error(ErrorCode::kFormat,
                    fmt::format("{}: damaged, {} checksums do not match", checkpoint.file(), damage.size()));
    }
}

}  // namespace samara::cli
