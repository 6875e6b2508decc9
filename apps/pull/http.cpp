#include "apps/pull/http.hpp"

#include <curl/curl.h>
#include <fmt/format.h>

#include <charconv>
#include <exception>
#include <map>
#include <string_view>
#include <utility>

#include "apps/pull/catalog.hpp"
#include "src/platform/error.hpp"

namespace samara::pull {
namespace {

constexpr int kMaxRedirects = 10;
constexpr size_t kMaxHeaderBytes = 64 * 1024;
constexpr long kStallBytesPerSecond = 1024;

/// The parts of an absolute URL that decide whether it may be visited.
struct Url {
    std::string scheme, host, port;
    std::string origin() const { return scheme + "://" + host + ":" + port; }
    bool is_loopback() const { return host == "localhost" || host == "[::1]" || host.starts_with("127."); }
};

std::string url_part(CURLU* url, CURLUPart part, unsigned flags) {
    char* text = nullptr;
    if (curl_url_get(url, part, &text, flags) != CURLUE_OK) return {};
    std::string out(text);
    curl_free(text);
    return out;
}

using UrlHandle = std::unique_ptr<CURLU, decltype(&curl_url_cleanup)>;

Url parse_url(const std::string& text) {
    const UrlHandle url(curl_url(), &curl_url_cleanup);
    if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) {
        throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}': expected an http(s) URL", text));
    }
    return {lower(url_part(url.get(), CURLUPART_SCHEME, 0)), lower(url_part(url.get(), CURLUPART_HOST, 0)),
            url_part(url.get(), CURLUPART_PORT, CURLU_DEFAULT_PORT)};
}

/// `target` may be relative to `base`.
std::string resolve_url(const std::string& base, const std::string& target) {
    const UrlHandle url(curl_url(), &curl_url_cleanup);
    if (curl_url_set(url.get(), CURLUPART_URL, base.c_str(), 0) != CURLUE_OK ||
        curl_url_set(url.get(), CURLUPART_URL, target.c_str(), 0) != CURLUE_OK) {
        throw Error(ErrorCode::kIo, fmt::format("{}: redirects to an address that is no URL", base));
    }
    return url_part(url.get(), CURLUPART_URL, 0);
}

/// A URL without its query, which may hold a signature, for messages.
std::string shown(const std::string& url) { return url.substr(0, url.find('?')); }

std::optional<uint64_t> parse_number(std::string_view text) {
    uint64_t value = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
    return value;
}

std::string_view trim(std::string_view text) {
    const size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

using Headers = std::map<std::string, std::string>;

std::string header(const Headers& headers, const std::string& name) {
    const auto found = headers.find(name);
    return found == headers.end() ? std::string() : found->second;
}

std::string next_link(const std::string& link) {
    const size_t end = link.find(">; rel=\"next\"");
    const size_t start = end == std::string::npos ? end : link.rfind('<', end);
    return start == std::string::npos ? std::string() : link.substr(start + 1, end - start - 1);
}

ResponseHead read_head(long status, const Headers& headers) {
    ResponseHead head;
    head.status = status;
    head.content_length = parse_number(header(headers, "content-length"));
    head.etag = header(headers, "etag");
    head.next_page = next_link(header(headers, "link"));
    const std::string range = header(headers, "content-range");  // "bytes 100-199/200" or ".../*"
    if (status == 206 && range.starts_with("bytes ")) {
        const size_t dash = range.find('-'), slash = range.find('/');
        if (dash != std::string::npos && slash != std::string::npos) {
            head.range_first = parse_number(std::string_view(range).substr(6, dash - 6));
            head.range_total = parse_number(std::string_view(range).substr(slash + 1));
        }
    }
    return head;
}

/// What a person can do about a status that will not change by itself.
std::string advice(long status) {
    if (status == 401 || status == 403) return ": private, gated or wrongly named; set HF_TOKEN if you have access";
    if (status == 404) return ": no such model or file";
    return "";
}

bool is_transient(CURLcode code) {
    switch (code) {
        case CURLE_COULDNT_RESOLVE_HOST:
        case CURLE_COULDNT_RESOLVE_PROXY:
        case CURLE_COULDNT_CONNECT:
        case CURLE_OPERATION_TIMEDOUT:
        case CURLE_PARTIAL_FILE:
        case CURLE_GOT_NOTHING:
        case CURLE_RECV_ERROR:
        case CURLE_SEND_ERROR:
        case CURLE_SSL_CONNECT_ERROR:
        case CURLE_HTTP2:
        case CURLE_HTTP2_STREAM:
        case CURLE_WEIRD_SERVER_REPLY:
            return true;
        default:
            return false;
    }
}

bool is_transient_status(long status) { return status == 408 || status == 425 || status == 429 || status >= 500; }

}  // namespace

/// State that libcurl's callbacks reach through their user pointer.
struct HttpClient::Transfer {
    CURL* curl = nullptr;
    const std::atomic<bool>* stop = nullptr;
    const Resume* resume = nullptr;
    const std::function<void(const ResponseHead&)>* on_head = nullptr;
    const std::function<void(std::span<const char>)>* on_body = nullptr;
    Headers headers;
    size_t header_bytes = 0;
    bool head_given = false;
    std::exception_ptr failure;  // thrown inside a callback; libcurl is C and must not see it

    bool stopped() const { return stop != nullptr && stop->load(); }

    long status() const {
        long code = 0;
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
        return code;
    }

    void give_head() {
        if (head_given) return;
        head_given = true;
        (*on_head)(read_head(status(), headers));
    }

    static size_t header_line(char* data, size_t size, size_t count, void* self_pointer) {
        auto& self = *static_cast<Transfer*>(self_pointer);
        const std::string_view line(data, size * count);
        if (line.starts_with("HTTP/")) self.headers.clear();  // a proxy's or an interim answer came before
        self.header_bytes += line.size();
        if (self.header_bytes > kMaxHeaderBytes) return 0;
        const size_t colon = line.find(':');
        if (colon != std::string_view::npos) {
            self.headers[lower(line.substr(0, colon))] = std::string(trim(line.substr(colon + 1)));
        }
        return line.size();
    }

    static size_t body(char* data, size_t size, size_t count, void* self_pointer) {
        auto& self = *static_cast<Transfer*>(self_pointer);
        const long code = self.status();
        if (self.stopped()) return 0;
        if (code != 200 && code != 206) return size * count;  // an error page
        try {
            self.give_head();
            (*self.on_body)(std::span<const char>(data, size * count));
        } catch (...) {
            self.failure = std::current_exception();
            return 0;
        }
        return size * count;
    }

    static int progress(void* self_pointer, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
        return static_cast<Transfer*>(self_pointer)->stopped() ? 1 : 0;
    }
};

HttpClient::HttpClient(HttpOptions options)
    : options_(std::move(options)), curl_(curl_easy_init(), [](void* handle) { curl_easy_cleanup(handle); }) {
    if (!curl_) throw Error(ErrorCode::kInternal, "libcurl could not start");
    while (options_.endpoint.ends_with('/')) options_.endpoint.pop_back();
    const Url url = parse_url(options_.endpoint);
    endpoint_is_loopback_ = url.is_loopback();
    endpoint_origin_ = url.origin();
    check_url(options_.endpoint);
}

HttpClient::~HttpClient() = default;

void HttpClient::check_url(const std::string& url) const {
    const Url parsed = parse_url(url);
    if (parsed.scheme == "https") return;
    if (parsed.scheme == "http" && endpoint_is_loopback_ && parsed.is_loopback()) return;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: expected https (http is allowed on this computer's own address only)", shown(url)));
}

/// One request without redirects; returns where a redirect points, or nothing when the body was delivered.
std::string HttpClient::one_request(const std::string& url, Transfer& transfer) {
    check_url(url);
    CURL* curl = curl_.get();
    curl_easy_reset(curl);  // keeps connections and caches
    transfer.headers.clear();
    transfer.header_bytes = 0;

    std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> extra(nullptr, &curl_slist_free_all);
    const auto add_header = [&extra](const std::string& line) {
        extra.reset(curl_slist_append(extra.release(), line.c_str()));
    };
    // The token belongs to the endpoint: a redirect to a storage host must not carry it.
    if (!options_.token.empty() && parse_url(url).origin() == endpoint_origin_) {
        add_header("Authorization: Bearer " + options_.token);
    }
    if (transfer.resume->first > 0) {
        add_header(fmt::format("Range: bytes={}-", transfer.resume->first));
        if (!transfer.resume->etag.empty()) add_header("If-Range: " + transfer.resume->etag);
    }
    const long timeout = static_cast<long>(options_.stall_timeout.count());
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, extra.get());
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "samara-pull/1");
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, timeout);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kStallBytesPerSecond);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, timeout);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 512L * 1024L);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Transfer::header_line);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Transfer::body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &Transfer::progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);

    const CURLcode code = curl_easy_perform(curl);
    if (transfer.stopped()) throw Error(ErrorCode::kCancelled, "stopped");
    if (transfer.failure) std::rethrow_exception(std::exchange(transfer.failure, nullptr));
    const long status = transfer.status();
    if (code != CURLE_OK) {
        const std::string message = fmt::format("{}: {}", shown(url), curl_easy_strerror(code));
        if (is_transient(code)) throw TransientError(message);
        throw Error(ErrorCode::kIo, message);
    }
    if (status == 301 || status == 302 || status == 303 || status == 307 || status == 308) {
        return resolve_url(url, header(transfer.headers, "location"));
    }
    if (status != 200 && status != 206) {
        const std::string message = fmt::format("{}: the server answered {}{}", shown(url), status, advice(status));
        curl_off_t retry_after = 0;
        curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &retry_after);
        if (is_transient_status(status)) throw TransientError(message, std::chrono::seconds(retry_after));
        throw Error(ErrorCode::kIo, message);
    }
    transfer.give_head();  // an empty body reached no callback
    return {};
}

void HttpClient::get(const std::string& url, const Resume& resume,
                     const std::function<void(const ResponseHead&)>& on_head,
                     const std::function<void(std::span<const char>)>& on_body) {
    Transfer transfer;
    transfer.curl = curl_.get();
    transfer.stop = options_.stop;
    transfer.resume = &resume;
    transfer.on_head = &on_head;
    transfer.on_body = &on_body;
    std::string at = url;
    for (int hop = 0; hop <= kMaxRedirects; ++hop) {
        at = one_request(at, transfer);
        if (at.empty()) return;
    }
    throw Error(ErrorCode::kIo, fmt::format("{}: more than {} redirects", shown(url), kMaxRedirects));
}

std::string HttpClient::get_text(const std::string& url, uint64_t limit, std::string* next_page) {
    std::string text;
    get(
        url, Resume{},
        [&](const ResponseHead& head) {
            if (next_page != nullptr) {
                *next_page = head.next_page.empty() ? std::string() : resolve_url(url, head.next_page);
            }
        },
        [&](std::span<const char> bytes) {
            if (text.size() + bytes.size() > limit) {
                throw Error(ErrorCode::kFormat,
                            fmt::format("{}: expected at most {} bytes, found more", shown(url), limit));
            }
            text.append(bytes.data(), bytes.size());
        });
    return text;
}

std::string encode_path(const std::string& path) {
    std::string out;
    for (const char c : path) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '/' ||
                           c == '-' || c == '_' || c == '.' || c == '~';
        out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
    return out;
}

}  // namespace samara::pull
