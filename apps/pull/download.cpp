#include "apps/pull/download.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "src/platform/error.hpp"

namespace samara::pull {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_io(const fs::path& path, const std::string& what) {
    throw Error(ErrorCode::kIo, fmt::format("{}: {}: {}", path.string(), what, std::strerror(errno)));
}

/// An open file descriptor.
class File {
  public:
    File(const fs::path& path, int flags) : path_(path), fd_(open(path.c_str(), flags | O_CLOEXEC, 0644)) {
        if (fd_ < 0) fail_io(path_, "cannot open");
    }
    ~File() { close(fd_); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    int fd() const { return fd_; }
    const fs::path& path() const { return path_; }

    uint64_t size() const {
        struct stat info{};
        if (fstat(fd_, &info) != 0) fail_io(path_, "cannot stat");
        return static_cast<uint64_t>(info.st_size);
    }
    void truncate(uint64_t bytes) const {
        if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail_io(path_, "cannot truncate");
    }
    void write_at(uint64_t offset, std::span<const char> bytes) const {
        while (!bytes.empty()) {
            const ssize_t wrote = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
            if (wrote < 0 && errno == EINTR) continue;
            if (wrote < 0) fail_io(path_, "cannot write");
            offset += static_cast<uint64_t>(wrote);
            bytes = bytes.subspan(static_cast<size_t>(wrote));
        }
    }
    size_t read_at(uint64_t offset, std::span<char> bytes) const {
        while (true) {
            const ssize_t got = pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
            if (got >= 0) return static_cast<size_t>(got);
            if (errno != EINTR) fail_io(path_, "cannot read");
        }
    }
    void flush() const {
        if (fsync(fd_) != 0) fail_io(path_, "cannot flush");
    }

  private:
    fs::path path_;
    int fd_;
};

bool stopped(const DownloadOptions& options) { return options.stop != nullptr && options.stop->load(); }

void throw_if_stopped(const DownloadOptions& options) {
    if (stopped(options)) throw Error(ErrorCode::kCancelled, "stopped");
}

std::string sha256_of(const File& file, const DownloadOptions& options, Reporter& reporter) {
    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
    bool good = context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
    std::vector<char> buffer(1 << 20);
    uint64_t offset = 0;
    while (good) {
        throw_if_stopped(options);
        const size_t got = file.read_at(offset, buffer);
        if (got == 0) break;
        good = EVP_DigestUpdate(context.get(), buffer.data(), got) == 1;
        offset += got;
        reporter.advance(offset);
    }
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    if (!good || EVP_DigestFinal_ex(context.get(), digest, &length) != 1) {
        throw Error(ErrorCode::kInternal, "OpenSSL could not compute a SHA-256");
    }
    std::string text;
    for (unsigned i = 0; i < length; ++i) text += fmt::format("{:02x}", digest[i]);
    return text;
}

/// What the bytes of a .part file belong to.
struct PartState {
    std::string url, sha256, etag;
    uint64_t bytes = 0;  // of the whole file

    bool same_content(const PartState& other) const { return sha256 == other.sha256 && bytes == other.bytes; }
};

fs::path with_suffix(const fs::path& path, const char* suffix) { return fs::path(path.string() + suffix); }

PartState load_state(const fs::path& path) {
    std::ifstream in(path);
    const auto json = nlohmann::json::parse(in, nullptr, false);
    PartState state;
    if (!json.is_object()) return state;
    const auto text = [&json](const char* key) {
        const auto found = json.find(key);
        return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    state.url = text("url");
    state.sha256 = text("sha256");
    state.etag = text("etag");
    const auto bytes = json.find("bytes");
    if (bytes != json.end() && bytes->is_number_unsigned()) state.bytes = *bytes;
    return state;
}

void save_state(const fs::path& path, const PartState& state) {
    const nlohmann::ordered_json json = {
        {"url", state.url}, {"bytes", state.bytes}, {"sha256", state.sha256}, {"etag", state.etag}};
    const fs::path fresh = with_suffix(path, ".new");
    {
        std::ofstream out(fresh);
        out << json.dump(2) << "\n";
        if (!out.flush()) fail_io(fresh, "cannot write");
    }
    fs::rename(fresh, path);
}

/// A rename is durable once its directory is.
void flush_directory(const fs::path& directory) { File(directory, O_RDONLY | O_DIRECTORY).flush(); }

/// The file being filled: its descriptor, its state and how far it is.
class Part {
  public:
    Part(const fs::path& target, const PartState& wanted)
        : state_path_(with_suffix(target, ".part.json")),
          file_(with_suffix(target, ".part"), O_RDWR | O_CREAT),
          state_(wanted) {
        if (flock(file_.fd(), LOCK_EX | LOCK_NB) != 0) {
            throw Error(ErrorCode::kIo, fmt::format("{}: another download is writing it", file_.path().string()));
        }
        if (!is_still_named()) {
            throw Error(ErrorCode::kIo, fmt::format("{}: another download just finished", file_.path().string()));
        }
        const PartState before = load_state(state_path_);
        if (before.same_content(wanted) && file_.size() <= wanted.bytes) {
            have_ = reached_ = file_.size();
            state_.etag = before.etag;
        } else {
            restart();
        }
        save_state(state_path_, state_);
    }

    uint64_t have() const { return have_; }
    /// The most bytes it ever held: does not fall when a server forces a restart.
    uint64_t reached() const { return reached_; }
    bool complete() const { return have_ == state_.bytes; }
    const File& file() const { return file_; }

    Resume resume() const {
        // A weak validator must not be used with If-Range (RFC 9110); the hash at the end still guards the content.
        return {have_, state_.etag.starts_with("W/") ? std::string() : state_.etag};
    }

    void restart() {
        file_.truncate(0);
        have_ = 0;
    }

    /// Looks at an answer's head and decides where its body goes.
    void begin(const ResponseHead& head, const std::string& url) {
        const uint64_t total = state_.bytes;
        const bool continues = head.status == 206 && have_ > 0;
        if (continues && (head.range_first != have_ || head.range_total.value_or(total) != total)) {
            restart();
            throw TransientError(fmt::format("{}: the server sent another range than asked for", url));
        }
        if (head.status == 206 && have_ == 0) {
            throw Error(ErrorCode::kFormat, fmt::format("{}: the server answered a whole request with a range", url));
        }
        const uint64_t kept = continues ? have_ : 0;
        // Before anything is thrown away: a captive portal's page must not cost gigabytes.
        if (head.content_length && *head.content_length + kept != total) {
            throw Error(ErrorCode::kFormat, fmt::format("{}: the listing says {} bytes, the server {}", url, total,
                                                        *head.content_length + kept));
        }
        if (!continues && have_ > 0) restart();  // the server has no ranges, or its content changed
        if (head.etag != state_.etag) {
            state_.etag = head.etag;
            save_state(state_path_, state_);
        }
    }

    void append(std::span<const char> bytes) {
        if (bytes.size() > state_.bytes - have_) {
            restart();
            throw Error(ErrorCode::kFormat,
                        fmt::format("{}: expected {} bytes, the server sends more", state_.url, state_.bytes));
        }
        file_.write_at(have_, bytes);
        have_ += bytes.size();
        reached_ = std::max(reached_, have_);
    }

    void discard() {
        fs::remove(file_.path());
        fs::remove(state_path_);
    }

    void finish(const fs::path& target) {
        file_.flush();
        fs::rename(file_.path(), target);
        fs::remove(state_path_);
        flush_directory(target.parent_path());
    }

  private:
    /// False when the file was renamed or removed between our open and our lock.
    bool is_still_named() const {
        struct stat by_name{}, by_descriptor{};
        return stat(file_.path().c_str(), &by_name) == 0 && fstat(file_.fd(), &by_descriptor) == 0 &&
               by_name.st_ino == by_descriptor.st_ino && by_name.st_dev == by_descriptor.st_dev;
    }

    fs::path state_path_;
    File file_;
    PartState state_;
    uint64_t have_ = 0;
    uint64_t reached_ = 0;
};

/// True when the finished file is there with the right content; throws when another file has its name.
bool already_here(const fs::path& target, const RemoteFile& file, const DownloadOptions& options, Reporter& reporter) {
    if (!fs::exists(target)) return false;
    const File existing(target, O_RDONLY);
    if (existing.size() == file.bytes) {
        reporter.start_verify(target.filename().string(), file.bytes);
        if (sha256_of(existing, options, reporter) == file.sha256) return true;
    }
    throw Error(ErrorCode::kIo,
                fmt::format("{}: is there already and is not the published file; move it away first", target.string()));
}

void pause(double seconds, const DownloadOptions& options) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
        throw_if_stopped(options);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
}

}  // namespace

void check_free_space(const fs::path& directory, uint64_t needed, uint64_t min_free) {
    struct statvfs info{};
    if (statvfs(directory.c_str(), &info) != 0) fail_io(directory, "cannot read the free space");
    const uint64_t available = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
    if (available < min_free || available - min_free < needed) {
        throw Error(
            ErrorCode::kIo,
            fmt::format("{}: {} are free; the download needs {} more and leaves {} free (--min-free)",
                        directory.string(), human_bytes(available), human_bytes(needed), human_bytes(min_free)));
    }
}

void with_retries(const DownloadOptions& options, Reporter& reporter, const std::function<uint64_t()>& progress,
                  const std::function<void()>& body) {
    int attempt = 1;
    double wait = options.backoff_seconds;
    while (true) {
        const uint64_t before = progress();
        try {
            body();
            return;
        } catch (const TransientError& error) {
            if (progress() >= before + kProgressBytes) {
                attempt = 1;
                wait = options.backoff_seconds;
            }
            if (++attempt > options.attempts) {
                throw Error(ErrorCode::kIo, fmt::format("{}; gave up after {} tries", error.what(), options.attempts));
            }
            if (error.retry_after() > kMaxRetryAfter) {
                throw Error(ErrorCode::kIo,
                            fmt::format("{}; it asks to come back in {} s", error.what(), error.retry_after().count()));
            }
            const double asked = std::max(wait, static_cast<double>(error.retry_after().count()));
            reporter.retry(error.what(), attempt, options.attempts, asked);
            pause(asked, options);
            wait = std::min(wait * 2, kMaxBackoffSeconds);
        }
    }
}

bool download(HttpClient& client, const std::string& url, const RemoteFile& file, const fs::path& target,
              const DownloadOptions& options, Reporter& reporter) {
    if (file.sha256.empty()) {
        throw Error(ErrorCode::kUnsupported,
                    fmt::format("{}: the listing has no SHA-256 for it, so it cannot be checked", file.path));
    }
    if (already_here(target, file, options, reporter)) return false;

    Part part(target, PartState{url, file.sha256, "", file.bytes});
    reporter.start(file.path, part.have(), file.bytes);
    with_retries(
        options, reporter, [&] { return part.reached(); },
        [&] {
            if (part.complete()) return;
            client.get(
                url, part.resume(), [&](const ResponseHead& head) { part.begin(head, url); },
                [&](std::span<const char> bytes) {
                    part.append(bytes);
                    reporter.advance(part.have());
                });
            if (!part.complete()) throw TransientError(fmt::format("{}: the server stopped early", url));
        });

    reporter.start_verify(file.path, file.bytes);
    const std::string found = sha256_of(part.file(), options, reporter);
    if (found != file.sha256) {
        part.discard();
        throw Error(ErrorCode::kFormat, fmt::format("{}: SHA-256 is {}, the listing says {}; the download was removed",
                                                    url, found, file.sha256));
    }
    part.finish(target);
    return true;
}

}  // namespace samara::pull
