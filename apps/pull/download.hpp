#pragma once
// One file from a server to its place on disk: resumed, checked, renamed at the end.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "apps/pull/catalog.hpp"
#include "apps/pull/http.hpp"
#include "apps/pull/progress.hpp"

namespace samara::pull {

struct DownloadOptions {
    int attempts = 6;            // in a row without progress, see kProgressBytes
    double backoff_seconds = 1;  // before the second attempt; doubles up to kMaxBackoffSeconds
    const std::atomic<bool>* stop = nullptr;
};
/// A try that brings fewer new bytes counts as a failure: a server that drops every connection at once must not hold
/// the command for ever.
inline constexpr uint64_t kProgressBytes = 64 * 1024;
inline constexpr double kMaxBackoffSeconds = 60;
inline constexpr std::chrono::seconds kMaxRetryAfter{600};

/// Throws Error(kIo) unless `needed` more bytes fit on the disk of `directory` (which exists) and leave `min_free`.
void check_free_space(const std::filesystem::path& directory, uint64_t needed, uint64_t min_free);

/// Downloads `file` from `url` to `target`, whose folder exists. Meanwhile the bytes are in "<target>.part" and what
/// they belong to in
/// "<target>.part.json"; both survive a failure or a stop, and the next call goes on from there when the server still
/// offers the same content. At the end the SHA-256 is compared with the listing's, the data is flushed and the file
/// renamed. Returns false when `target` was there already with the right content. Throws Error: kIo, kFormat for a
/// wrong length or hash (the bad bytes are removed), kCancelled.
bool download(HttpClient& client, const std::string& url, const RemoteFile& file, const std::filesystem::path& target,
              const DownloadOptions& options, Reporter& reporter);

/// Calls `body` until it returns; a TransientError is reported and followed by a pause and another call, at most
/// options.attempts in a row without progress. `progress` counts the bytes that came so far.
void with_retries(const DownloadOptions& options, Reporter& reporter, const std::function<uint64_t()>& progress,
                  const std::function<void()>& body);

}  // namespace samara::pull
