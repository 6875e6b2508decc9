// Checks a packed file's contents against the hashes it carries.

#include <algorithm>
#include <cstring>

#include "src/formats/crc32c.hpp"
#include "src/formats/packed.hpp"
#include "src/formats/packed_keys.hpp"
#include "src/platform/sha256.hpp"

namespace samara::formats {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{4} << 20;

class Verifier {
  public:
    Verifier(const Checkpoint& checkpoint, const Progress& progress) : checkpoint_(checkpoint), progress_(progress) {
        for (const Tensor& tensor : checkpoint.tensors()) total_ += tensor.data.size();
    }

    std::vector<std::string> run() {
        const Metadata& meta = checkpoint_.metadata();
        const std::vector<std::string>& names = meta.get_strings(packed_keys::kSectionNames);
        const std::vector<std::string>& hashes = meta.get_strings(packed_keys::kSectionHashes);
        if (names.size() != hashes.size()) {
            throw Error(ErrorCode::kFormat, checkpoint_.file() +
                                                ": keys samara.section.*: " + std::to_string(names.size()) +
                                                " names and " + std::to_string(hashes.size()) + " hashes");
        }
        for (const Tensor& tensor : checkpoint_.tensors()) {
            const auto at = std::find(names.begin(), names.end(), tensor.name);
            if (at == names.end()) {
                add(tensor.name, "has no SHA-256 in the file");
            } else {
                check_hash(tensor, hashes[static_cast<size_t>(at - names.begin())]);
            }
        }
        for (const std::string& name : names) {
            if (checkpoint_.find(name) == nullptr) add(name, "is missing");
        }
        check_records();
        return std::move(messages_);
    }

  private:
    void add(const std::string& tensor, const std::string& what) {
        messages_.push_back(checkpoint_.file() + ": tensor '" + tensor + "' " + what);
    }

    void step(uint64_t bytes) {
        done_ += bytes;
        if (progress_ && !progress_(done_, total_)) {
            throw Error(ErrorCode::kCancelled, checkpoint_.file() + ": verifying was cancelled");
        }
    }

    void check_hash(const Tensor& tensor, const std::string& expected) {
        platform::Sha256 hash;
        for (uint64_t at = 0; at < tensor.data.size(); at += kPieceBytes) {
            const auto piece = tensor.data.subspan(at, std::min<uint64_t>(kPieceBytes, tensor.data.size() - at));
            hash.update(piece);
            checkpoint_.drop(piece);
            step(piece.size());
        }
        const std::string found = hash.finish();
        if (found != expected) add(tensor.name, "is damaged: SHA-256 " + found + ", " + expected + " expected");
    }

    /// Every record's own checksum.
    void check_records() {
        const Metadata& meta = checkpoint_.metadata();
        if (!meta.has(packed_keys::kExperts)) return;
        const std::vector<int64_t> numbers = meta.get_ints(packed_keys::kExperts);
        for (size_t at = 0; at < numbers.size(); at += packed_keys::kExpertNumbers) {
            const auto layer = static_cast<int>(numbers[at]);
            const PackedExperts experts = packed_experts(checkpoint_, layer);
            for (int e = 0; e < experts.count; ++e) check_record(experts, layer, e);
        }
    }

    void check_record(const PackedExperts& experts, int layer, int expert) {
        const uint64_t bytes = experts.layout.bytes;
        const std::span record(experts.data + static_cast<uint64_t>(expert) * bytes, bytes);
        uint32_t stored = 0;
        std::memcpy(&stored, &record[bytes - sizeof stored], sizeof stored);
        if (crc32c(record.first(bytes - sizeof stored)) != stored) {
            add(packed_keys::expert_tensor(layer),
                "is damaged: CRC32C of expert " + std::to_string(expert) + " does not match");
        }
        checkpoint_.drop(record);
    }

    const Checkpoint& checkpoint_;
    const Progress& progress_;
    std::vector<std::string> messages_;
    uint64_t done_ = 0, total_ = 0;
};

}  // namespace

std::vector<std::string> verify_packed(const Checkpoint& checkpoint, const Progress& progress) {
    if (!is_packed(checkpoint)) {
        throw Error(ErrorCode::kInvalidArgument, checkpoint.file() + ": is no packed file, so it carries no hashes");
    }
    return Verifier(checkpoint, progress).run();
}

}  // namespace samara::formats
