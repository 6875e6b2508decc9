#pragma once
// What the memory can do: the limit that decode is measured against.

#include <cstdint>
#include <string>

namespace samara::cli {

/// Best of `rounds` streaming reads by `threads` threads, in bytes a second, over memory mapped as the weights are: the
/// first `bytes` of the file at `path` when `mapped` (it is read once before, so that its pages are there), anonymous
/// memory with huge pages otherwise. A smaller file is read again until 1 GiB has passed.
double measure_bandwidth(const std::string& path, bool mapped, int threads, int rounds);

}  // namespace samara::cli
