#pragma once
// What checkpoints of mapped files share.

#include <vector>

#include "src/formats/checkpoint.hpp"
#include "src/platform/mapped_file.hpp"

namespace samara::formats {

/// A checkpoint whose tensors lie in `files_`.
class MappedCheckpoint : public Checkpoint {
  public:
    uint64_t file_bytes() const override {
        uint64_t total = 0;
        for (const MappedFile& file : files_) total += file.size();
        return total;
    }

    void drop(std::span<const std::byte> data) const override {
        for (const MappedFile& file : files_) {
            if (file.contains(data)) file.drop(data);
        }
    }

  protected:
    std::vector<MappedFile> files_;
};

}  // namespace samara::formats
