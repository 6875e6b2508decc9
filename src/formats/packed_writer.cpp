// Writes packed files: plan first, then one pass over the source in bounded memory. Hashing runs on a second thread
// while the next piece is repacked.

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <future>
#include <utility>

#include "src/formats/crc32c.hpp"
#include "src/formats/gguf_writer.hpp"
#include "src/formats/packed.hpp"
#include "src/formats/packed_keys.hpp"
#include "src/formats/packed_plan.hpp"
#include "src/formats/relayout.hpp"
#include "src/kernels/kernels.hpp"
#include "src/platform/sha256.hpp"

namespace samara::formats {
namespace {

using kernels::Layout;
using kernels::Matrix;
using Bytes = std::vector<std::byte>;

constexpr uint64_t kPieceBytes = uint64_t{4} << 20;

template <typename T>
MetaValue array_of(uint32_t gguf_type, std::vector<T> items) {
    auto array = std::make_shared<MetaArray>();
    array->gguf_type = gguf_type;
    array->items = std::move(items);
    return std::shared_ptr<const MetaArray>(std::move(array));
}
constexpr uint32_t kGgufUint32 = 4, kGgufString = 8, kGgufUint64 = 10;

/// Writes one tensor piece by piece and hashes it beside.
class SectionStream {
  public:
    SectionStream(GgufWriter& writer, const std::string& name) : writer_(writer), name_(name) {}
    ~SectionStream() {
        if (hashing_.valid()) hashing_.wait();
    }
    SectionStream(const SectionStream&) = delete;
    SectionStream& operator=(const SectionStream&) = delete;

    /// Takes the bytes and leaves an older buffer in their place.
    void put(Bytes& bytes) {
        if (hashing_.valid()) hashing_.get();
        std::swap(bytes, piece_);
        hashing_ = std::async(std::launch::async, [this] { hash_.update(piece_); });
        writer_.write(name_, piece_);
    }

    std::string finish() {
        if (hashing_.valid()) hashing_.get();
        return hash_.finish();
    }

  private:
    GgufWriter& writer_;
    const std::string& name_;
    platform::Sha256 hash_;
    Bytes piece_;
    std::future<void> hashing_;
};

class Packer {
  public:
    Packer(const Checkpoint& checkpoint, const std::string& path, Ternarise ternarise, const Progress& progress,
           HeadLayout head, TernaryLayout ternary, bool flash_index)
        : checkpoint_(checkpoint),
          ternarise_(ternarise),
          head_(head),
          layout_(ternary),
          flash_index_(flash_index),
          progress_(progress),
          writer_(path, static_cast<uint32_t>(kPackedAlignment)) {
        for (const Tensor& tensor : checkpoint.tensors()) {
            total_ += tensor.data.size();
            for (const auto piece : tensor.pieces) total_ += piece.size();
        }
        report_.input_bytes = total_;
        total_ *= 2;  // read once for the plan, once for the data
    }

    PackReport run() {
        plan_ = make_plan();
        total_ = done_ + plan_.input_bytes;
        check_free_space();
        set_metadata();
        for (const PackedSection& section : plan_.sections) {
            writer_.declare(section.name, section.type, section.shape);
        }
        writer_.begin();
        std::vector<std::string> hashes;
        hashes.reserve(plan_.sections.size());
        for (const PackedSection& section : plan_.sections) hashes.push_back(write_section(section));
        writer_.replace(packed_keys::kSectionHashes, array_of(kGgufString, std::move(hashes)));
        done_ = total_;
        step(0);
        writer_.finish();
        report_.output_bytes = writer_.file_bytes();
        if (forced_norm_ > 0) report_.ternary_nrmse = std::sqrt(forced_error_ / forced_norm_);
        return report_;
    }

  private:
    PackedPlan make_plan() {
        if (!is_packed(checkpoint_)) {
            return plan_packed(checkpoint_, ternarise_, head_, layout_, flash_index_,
                               [this](uint64_t bytes) { step(bytes); });
        }
        PackedPlan plan = plan_relayout(checkpoint_, head_, layout_);
        uint64_t seen = 0;
        const std::vector<std::string> damage = verify_packed(checkpoint_, [&](uint64_t done, uint64_t) {
            step(done - std::exchange(seen, done));
            return true;
        });
        if (!damage.empty()) throw Error(ErrorCode::kFormat, damage.front());
        return plan;
    }

    void step(uint64_t bytes) {
        done_ = std::min(done_ + bytes, total_);
        if (progress_ && !progress_(done_, total_)) {
            throw Error(ErrorCode::kCancelled, writer_.path() + ": packing was cancelled; nothing was written");
        }
    }

    void check_free_space() const {
        const std::string folder = std::filesystem::path(writer_.path()).parent_path().string();
        struct statvfs info = {};
        if (::statvfs(folder.empty() ? "." : folder.c_str(), &info) != 0) return;  // the writer will say why
        const uint64_t free_bytes = uint64_t{info.f_bavail} * info.f_frsize;
        if (free_bytes >= plan_.output_bytes) return;
        throw Error(ErrorCode::kIo, writer_.path() + ": the packed file needs " + std::to_string(plan_.output_bytes) +
                                        " bytes, the disk has " + std::to_string(free_bytes) + " free");
    }

    void set(std::string_view key, MetaValue value) { writer_.set(std::string(key), std::move(value)); }

    void set_metadata() {
        for (const auto& [key, value] : checkpoint_.metadata().entries()) {
            if (key.starts_with("split.") || packed_keys::writes(key)) continue;  // the packed file is whole
            writer_.set(key, value);
        }
        const bool packed = is_packed(checkpoint_);  // then it knows where its weights came from
        const auto first_packed = [&](std::string_view key, const MetaValue& now) {
            const MetaValue* known = packed ? checkpoint_.metadata().find(key) : nullptr;
            set(key, known != nullptr ? *known : now);
        };
        first_packed(packed_keys::kVersion, kPackedVersion);
        first_packed(packed_keys::kNumerics, kernels::kNumericsVersion);
        first_packed(packed_keys::kSourceFormat, checkpoint_.format());
        first_packed(packed_keys::kTernarise, std::string(ternarise_ == Ternarise::kForce ? "forced" : "lossless"));
        std::vector<std::string> names, tensors, sections;
        std::vector<uint32_t> shapes;
        std::vector<uint64_t> experts;
        for (const PackedName& named : plan_.matrices) {
            names.push_back(named.name);
            tensors.push_back(named.tensor);
            append_shape(named.matrix, shapes);
        }
        for (const PackedSection& section : plan_.sections) {
            sections.push_back(section.name);
            if (section.kind == SectionKind::kExperts) append_experts(section, experts);
        }
        if (plan_.flash) set(packed_keys::kFlashAlways, static_cast<uint32_t>(plan_.flash->index.always));
        const MetaValue* flash = packed ? checkpoint_.metadata().find(packed_keys::kFlashAlways) : nullptr;
        if (flash != nullptr) set(packed_keys::kFlashAlways, *flash);
        const size_t count = sections.size();
        set(packed_keys::kMatrixNames, array_of(kGgufString, std::move(names)));
        set(packed_keys::kMatrixTensors, array_of(kGgufString, std::move(tensors)));
        set(packed_keys::kMatrixShapes, array_of(kGgufUint32, std::move(shapes)));
        if (!experts.empty()) set(packed_keys::kExperts, array_of(kGgufUint64, std::move(experts)));
        set(packed_keys::kSectionNames, array_of(kGgufString, std::move(sections)));
        set(packed_keys::kSectionHashes, array_of(kGgufString, std::vector<std::string>(count, std::string(64, '0'))));
    }

    template <typename T>
    static void append_shape(const Matrix& m, std::vector<T>& numbers) {
        numbers.insert(numbers.end(),
                       {static_cast<T>(m.layout), m.group, m.offset, static_cast<T>(m.rows), static_cast<T>(m.cols)});
    }

    static void append_experts(const PackedSection& section, std::vector<uint64_t>& numbers) {
        const ExpertLayout& x = section.experts;
        numbers.insert(numbers.end(), {static_cast<uint64_t>(section.layer), section.count, x.bytes});
        append_shape(x.gate, numbers);
        numbers.push_back(x.gate_offset);
        append_shape(x.up, numbers);
        numbers.push_back(x.up_offset);
        append_shape(x.down, numbers);
        numbers.push_back(x.down_offset);
    }

    /// Returns the section's SHA-256.
    std::string write_section(const PackedSection& section) {
        SectionStream stream(writer_, section.name);
        switch (section.kind) {
            case SectionKind::kCopy:
                copy(section, stream);
                break;
            case SectionKind::kToF32:
                convert(section, stream);
                break;
            case SectionKind::kMatrix:
                write_matrix(section, stream);
                break;
            case SectionKind::kExperts:
                write_experts(section, stream);
                break;
        }
        return stream.finish();
    }

    void copy(const PackedSection& section, SectionStream& stream) {
        const std::span<const std::byte> data = section.slice.tensor->data;
        for (uint64_t at = 0; at < data.size(); at += kPieceBytes) {
            const auto piece = data.subspan(at, std::min<uint64_t>(kPieceBytes, data.size() - at));
            buffer_.assign(piece.begin(), piece.end());
            stream.put(buffer_);
            checkpoint_.drop(piece);
            step(piece.size());
        }
    }

    void convert(const PackedSection& section, SectionStream& stream) {
        std::vector<float> values(section.slice.tensor->elements());
        dequantise_row(*section.slice.tensor, 0, 0, values.data());
        const auto bytes = std::as_bytes(std::span(values));
        buffer_.assign(bytes.begin(), bytes.end());
        stream.put(buffer_);
        step(section.input_bytes);
    }

    static bool is_ternary(Layout layout) {
        return layout == Layout::kTernary || layout == Layout::kTernaryBlocks || layout == Layout::kTernaryDense;
    }

    void count(const Matrix& m, const RepackReport& one, uint64_t matrices) {
        const bool ternary = is_ternary(m.layout);
        (ternary ? report_.ternary_matrices : report_.other_matrices) += matrices;
        report_.code3 += one.code3;
        forced_error_ += one.squared_error;
        forced_norm_ += one.squared_norm;
    }

    /// Row groups follow each other in every layout but the ternary ones, whose scales lie behind all codes: those
    /// and the planes of a split head are repacked whole, the others in pieces.
    void write_matrix(const PackedSection& section, SectionStream& stream) {
        if (section.stored.data != nullptr) {
            buffer_.resize(section.bytes);
            relayout(section.stored, section.matrix, section.name, buffer_);
            stream.put(buffer_);
            checkpoint_.drop(section.slice.tensor->data);
            step(section.input_bytes);
            return count(section.matrix, {}, 1);
        }
        const bool whole = is_ternary(section.matrix.layout) || section.matrix.layout == Layout::kNibbleKSplit;
        const uint64_t row_bytes = section.bytes / section.slice.rows + 1;
        const uint64_t piece_rows = whole ? section.slice.rows : (kPieceBytes / row_bytes / 16 + 1) * 16;
        RepackReport all;
        for (uint64_t row = 0; row < section.slice.rows; row += piece_rows) {
            Slice slice = section.slice;
            slice.row_begin += row;
            slice.rows = std::min(piece_rows, section.slice.rows - row);
            Matrix matrix = section.matrix;
            matrix.rows = static_cast<int>(slice.rows);
            buffer_.resize(static_cast<size_t>(kernels::matrix_bytes(matrix)));
            const RepackReport one = repack(slice, matrix, buffer_);
            all.code3 += one.code3;
            all.squared_error += one.squared_error;
            all.squared_norm += one.squared_norm;
            stream.put(buffer_);
            drop_slice(checkpoint_, slice);
            step(slice_bytes(slice));
        }
        count(section.matrix, all, 1);
    }

    void write_experts(const PackedSection& section, SectionStream& stream) {
        const ExpertLayout& x = section.experts;
        const uint64_t batch = std::max<uint64_t>(1, kPieceBytes / x.bytes);
        for (uint64_t first = 0; first < section.count; first += batch) {
            const uint64_t records = std::min(batch, section.count - first);
            buffer_.assign(records * x.bytes, std::byte{0});
            uint64_t read = 0;
            for (uint64_t i = 0; i < records; ++i) {
                read += fill_record(section, first + i, std::span(buffer_).subspan(i * x.bytes, x.bytes));
            }
            stream.put(buffer_);
            step(read);
        }
    }

    /// Returns the source bytes read.
    uint64_t fill_record(const PackedSection& section, uint64_t expert, std::span<std::byte> record) {
        const uint64_t read = section.stored_experts.data != nullptr ? relayout_record(section, expert, record)
                                                                     : repack_record(section, expert, record);
        const uint32_t crc = crc32c(record.first(record.size() - 4));
        std::memcpy(&record[record.size() - 4], &crc, sizeof crc);
        return read;
    }

    uint64_t relayout_record(const PackedSection& section, uint64_t expert, std::span<std::byte> record) {
        const ExpertLayout& from = section.stored_experts.layout;
        const ExpertLayout& to = section.experts;
        const std::byte* stored = section.stored_experts.data + expert * from.bytes;
        const auto fill = [&](Matrix source, uint64_t source_offset, const Matrix& target, uint64_t offset) {
            source.data = stored + source_offset;
            relayout(source, target, section.name,
                     record.subspan(offset, static_cast<size_t>(kernels::matrix_bytes(target))));
            count(target, {}, 1);
        };
        fill(from.gate, from.gate_offset, to.gate, to.gate_offset);
        fill(from.up, from.up_offset, to.up, to.up_offset);
        fill(from.down, from.down_offset, to.down, to.down_offset);
        checkpoint_.drop({stored, from.bytes});
        return from.bytes;
    }

    uint64_t repack_record(const PackedSection& section, uint64_t expert, std::span<std::byte> record) {
        const ExpertLayout& x = section.experts;
        uint64_t read = 0;
        const auto fill = [&](Slice slice, const Matrix& m, uint64_t offset) {
            slice.expert = expert;
            count(m, repack(slice, m, record.subspan(offset, static_cast<size_t>(kernels::matrix_bytes(m)))), 1);
            drop_slice(checkpoint_, slice);
            read += slice_bytes(slice);
        };
        fill(section.gate, x.gate, x.gate_offset);
        fill(section.up, x.up, x.up_offset);
        fill(section.down, x.down, x.down_offset);
        return read;
    }

    const Checkpoint& checkpoint_;
    Ternarise ternarise_;
    HeadLayout head_;
    TernaryLayout layout_;
    bool flash_index_;
    const Progress& progress_;
    GgufWriter writer_;
    PackedPlan plan_;
    PackReport report_;
    Bytes buffer_;
    double forced_error_ = 0, forced_norm_ = 0;
    uint64_t done_ = 0, total_ = 0;
};

/// The target may be replaced, but not when it is what we read: the source itself, a file in the source's folder when
/// that is a model, or a part of a split source.
void refuse_own_source(const Checkpoint& checkpoint, const std::string& path) {
    struct stat target = {};
    if (::stat(path.c_str(), &target) != 0) return;
    const std::string& source_path = checkpoint.file();
    struct stat source = {};
    bool same =
        ::stat(source_path.c_str(), &source) == 0 && source.st_dev == target.st_dev && source.st_ino == target.st_ino;
    std::error_code failed;
    const std::filesystem::path folder = std::filesystem::weakly_canonical(path, failed).parent_path();
    const std::filesystem::path source_full = std::filesystem::weakly_canonical(source_path, failed);
    if (S_ISDIR(source.st_mode)) same = same || folder == source_full;
    if (checkpoint.metadata().get_uint_or("split.count", 1) > 1) {
        const std::string name = std::filesystem::path(path).filename().string();
        same = same || (folder == source_full.parent_path() && name.find("-of-") != std::string::npos);
    }
    if (same) {
        throw Error(ErrorCode::kInvalidArgument,
                    path + ": is the model being packed, or a part of it; give the packed file another name");
    }
}

}  // namespace

PackReport pack(const Checkpoint& checkpoint, const std::string& path, Ternarise ternarise, const Progress& progress,
                HeadLayout head, TernaryLayout ternary, bool flash_index) {
    if (flash_index && is_packed(checkpoint)) {
        throw Error(ErrorCode::kInvalidArgument,
                    checkpoint.file() +
                        ": is a packed file already; make the flash index from the model that it was packed from");
    }
    if (ternarise == Ternarise::kForce && is_packed(checkpoint)) {
        throw Error(ErrorCode::kInvalidArgument,
                    checkpoint.file() + ": is a packed file already; ternarise the model that it was packed from");
    }
    refuse_own_source(checkpoint, path);
    return naming_file(checkpoint,
                       [&] { return Packer(checkpoint, path, ternarise, progress, head, ternary, flash_index).run(); });
}

}  // namespace samara::formats
