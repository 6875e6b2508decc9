#pragma once
// The one error type of Samara. A message says what is wrong, where (file, tensor, key or flag), what was expected
// and what was found; it is shown to a person as it stands.

#include <stdexcept>
#include <string>

namespace samara {

/// Classes of failure; they map one to one to `samara_status` in the C interface.
enum class ErrorCode {
    kInvalidArgument = 1,  // the caller passed something out of range
    kIo = 2,               // the operating system refused a read, write, open or map
    kFormat = 3,           // a file is truncated, corrupt or hostile
    kUnsupported = 4,      // a valid thing that this engine, file layout or CPU does not do
    kMemory = 5,           // over the memory budget, or the system has no more
    kContextFull = 6,      // a sequence reached the positions its session was made for
    kCancelled = 7,        // the caller asked to stop
    kNumeric = 8,          // a non-finite value appeared where the numerics contract forbids it
    kInternal = 9,         // a broken invariant: a bug in Samara
};

class Error : public std::runtime_error {
  public:
    Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
    ErrorCode code() const { return code_; }

  private:
    ErrorCode code_;
};

}  // namespace samara
