#pragma once
// HTTPS GET with resume, over libcurl (chosen over cpp-httplib because proxies, stall detection, system certificates
// and IPv6 fallback are its daily work). Certificates are verified; there is no switch to turn that off.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

namespace samara::pull {

/// A failure that may go away: a dropped connection, a stall, a busy server.
class TransientError : public std::runtime_error {
  public:
    explicit TransientError(const std::string& message, std::chrono::seconds retry_after = std::chrono::seconds(0))
        : std::runtime_error(message), retry_after_(retry_after) {}
    /// What the server asked for; 0 when it did not.
    std::chrono::seconds retry_after() const { return retry_after_; }

  private:
    std::chrono::seconds retry_after_;
};

struct HttpOptions {
    std::string endpoint;                     // "https://host[:port][/path]"; http only when the host is loopback
    std::string token;                        // bearer token for the endpoint's host alone; empty: none
    std::chrono::seconds stall_timeout{30};   // to connect, and with less than 1 KiB/s arriving
    const std::atomic<bool>* stop = nullptr;  // set to end a transfer within about a second; not owned, may be null
};

/// A half-open request: the bytes from `first` on.
struct Resume {
    uint64_t first = 0;
    std::string etag;  // strong validator of the bytes already here; empty: none
};

/// The head of the final answer of a chain of redirects.
struct ResponseHead {
    long status = 0;                         // 200 or 206
    std::optional<uint64_t> content_length;  // bytes that this answer says it carries
    std::optional<uint64_t> range_first;     // of a 206
    std::optional<uint64_t> range_total;     // of a 206, when known
    std::string etag;                        // as sent, with quotes; empty: none
    std::string next_page;                   // target of Link: <...>; rel="next"; empty: none
};

class HttpClient {
  public:
    /// Throws Error(kInvalidArgument) when the endpoint is no allowed URL.
    explicit HttpClient(HttpOptions options);
    ~HttpClient();
    HttpClient(const HttpClient&) = delete;
    HttpClient& operator=(const HttpClient&) = delete;

    /// Fetches `url`. `on_head` sees the final head before any body; `on_body` sees the body in order; what they throw
    /// ends the transfer and comes out of here. Redirects are followed, ten at most, to allowed URLs only. Throws
    /// TransientError for what is worth another try; Error(kIo) for refusals (403, 404, a bad certificate, ...);
    /// Error(kCancelled) after `stop`.
    void get(const std::string& url, const Resume& resume, const std::function<void(const ResponseHead&)>& on_head,
             const std::function<void(std::span<const char>)>& on_body);

    /// A whole small body. Throws Error(kFormat) when it is longer than `limit` bytes.
    std::string get_text(const std::string& url, uint64_t limit, std::string* next_page = nullptr);

    /// The endpoint without a trailing slash.
    const std::string& endpoint() const { return options_.endpoint; }

  private:
    struct Transfer;
    void check_url(const std::string& url) const;
    std::string one_request(const std::string& url, Transfer& transfer);

    HttpOptions options_;
    bool endpoint_is_loopback_ = false;
    std::string endpoint_origin_;  // scheme://host:port
    std::unique_ptr<void, void (*)(void*)> curl_;
};

/// Percent-encodes a path's components and keeps its slashes.
std::string encode_path(const std::string& path);

}  // namespace samara::pull
