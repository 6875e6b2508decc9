#include "src/formats/repack.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "src/formats/repack_rows.hpp"
#include "src/formats/repack_scales.hpp"
#include "src/kernels/dense_layout.hpp"
#include "src/kernels/screen.hpp"
#include "src/platform/half.hpp"

namespace samara::formats {
namespace {

using kernels::kRowGroup;
using kernels::Layout;
using kernels::Matrix;

/// Repacks a slice row by row. Buffers are reused from row to row.
class Repacker {
  public:
    Repacker(const Slice& slice, const Matrix& layout, std::span<std::byte> out)
        : slice_(slice), m_(layout), padded_(static_cast<uint64_t>(kernels::padded_cols(layout))), out_(out.data()) {
        type_ = slice.tensor->type;
        group_bytes_ = static_cast<uint64_t>(kernels::row_group_bytes(layout));
        groups_ = static_cast<uint64_t>(kernels::round_up(layout.rows, kRowGroup)) / kRowGroup;
    }

    RepackReport run() {
        if (kernels::is_float_layout(m_.layout)) {
            for (uint64_t row = 0; row < slice_.rows; ++row) float_row(row);
            return report_;
        }
        const uint8_t padding = m_.layout == Layout::kByte                                             ? m_.offset
                                : m_.layout == Layout::kTernary || m_.layout == Layout::kTernaryBlocks ? 1
                                                                                                       : 0;
        codes_.assign(padded_, padding);
        for (uint64_t row = 0; row < slice_.rows; ++row) interleaved_row(row);
        codes_.assign(padded_, padding);
        for (uint64_t row = slice_.rows; row < groups_ * kRowGroup; ++row) padding_row(row);
        return report_;
    }

  private:
    void float_row(uint64_t row) {
        const SourceRow source = row_of(slice_, row);
        const uint64_t width = m_.layout == Layout::kFloat32 ? 4 : 2;
        std::byte* to = out_ + row * source.cols * width;
        const bool same = (m_.layout == Layout::kFloat32 && type_ == TensorType::kF32) ||
                          (m_.layout == Layout::kFloat16 && type_ == TensorType::kF16) ||
                          (m_.layout == Layout::kBfloat16 && type_ == TensorType::kBF16);
        if (same) {
            std::memcpy(to, source.codes, source.cols * width);
            return;
        }
        values_.resize(source.cols);
        dequantise_row(*slice_.tensor, slice_.expert, slice_.row_begin + row, values_.data());
        if (m_.layout == Layout::kFloat32) {
            std::memcpy(to, values_.data(), source.cols * width);
            return;
        }
        for (uint64_t c = 0; c < source.cols; ++c) {
            const uint16_t bits = float_to_bf16(values_[c]);
            std::memcpy(to + 2 * c, &bits, sizeof bits);
        }
    }

    void interleaved_row(uint64_t row) {
        switch (m_.layout) {
            case Layout::kTernary:
                return ternary_row(row);
            case Layout::kTernaryBlocks:
                return ternary_blocks_row(row);
            case Layout::kNibbleK:
                return nibble_k_row(row);
            default:
                return grouped_row(row);
        }
    }

    std::byte* row_group(uint64_t row) const { return out_ + row / kRowGroup * group_bytes_; }
    static uint64_t lane(uint64_t row) { return row % kRowGroup; }
    static void store(std::byte* to, uint32_t word) { std::memcpy(to, &word, sizeof word); }
    static void store_lane(std::byte* lanes, uint64_t row, float value) {
        std::memcpy(lanes + 4 * lane(row), &value, sizeof value);
    }

    /// Interleaves codes_[padded_] of a ternary row: 16 codes a word, column 4p+j at bit 8j+2p.
    void store_ternary_codes(uint64_t row) {
        std::byte* to = row_group(row) + 4 * lane(row);
        for (uint64_t c = 0; c < padded_; c += 16, to += 64) {
            uint32_t word[4];
            std::memcpy(word, codes_.data() + c, sizeof word);
            store(to, word[0] | word[1] << 2 | word[2] << 4 | word[3] << 6);
        }
    }

    void count_code3(uint64_t cols) {
        unsigned threes = 0;
        for (uint64_t c = 0; c < cols; ++c) threes |= codes_[c] & (codes_[c] >> 1);
        if (threes == 0) return;
        for (uint64_t c = 0; c < cols; ++c) report_.code3 += codes_[c] == 3 ? 1 : 0;
    }

    /// TQ2_0 keeps column 32l + m of each 128 in bits 2l of byte m; a word of ours wants bits of four such words: a 4x4
    /// transposition of 2-bit fields between word number and bit position.
    void store_tq2_codes(uint64_t row, const SourceRow& source) {
        std::byte* to = row_group(row) + 4 * lane(row);
        uint32_t threes = 0;
        for (uint64_t c = 0; c < source.cols; c += 128) {
            const std::byte* from = source.codes + c / 256 * 66 + c % 256 / 4;
            for (int half = 0; half < 2; ++half, from += 16) {
                uint32_t w[4];
                std::memcpy(w, from, sizeof w);
                for (const uint32_t word : w) threes |= word & (word >> 1) & 0x55555555u;
                exchange(w[0], w[1], 2, 0x33333333u);
                exchange(w[2], w[3], 2, 0x33333333u);
                exchange(w[0], w[2], 4, 0x0f0f0f0fu);
                exchange(w[1], w[3], 4, 0x0f0f0f0fu);
                for (int l = 0; l < 4; ++l) store(to + (c / 16 + static_cast<uint64_t>(2 * l + half)) * 64, w[l]);
            }
        }
        if (threes != 0) {
            read_codes(source, codes_.data());
            count_code3(source.cols);
        }
    }

    /// Swaps the high fields of `a` with the low fields of `b` below `mask`.
    static void exchange(uint32_t& a, uint32_t& b, int shift, uint32_t mask) {
        const uint32_t difference = ((a >> shift) ^ b) & mask;
        b ^= difference;
        a ^= difference << shift;
    }

    void ternary_row(uint64_t row) {
        const SourceRow source = row_of(slice_, row);
        float scale = 0;
        if (is_float_type(type_)) {
            const FloatRow found = inspect_floats(source);
            if (!found.ternary) return forced_row(row);
            scale = found.magnitude;
            read_float_codes(source, codes_.data());
            store_ternary_codes(row);
        } else if (!is_ternary_type(type_)) {
            return forced_row(row);
        } else {
            if (fit_row(slice_, row, scales_, scratch_) != TernaryFit::kRowScale) return forced_row(row);
            scale = *common_scale(source, scales_, scratch_);
            ternary_type_codes(row, source);
        }
        store_row_scale(row, scale);
    }

    void ternary_type_codes(uint64_t row, const SourceRow& source) {
        if (type_ == TensorType::kTQ2_0) return store_tq2_codes(row, source);
        read_codes(source, codes_.data());
        count_code3(source.cols);
        store_ternary_codes(row);
    }

    void store_row_scale(uint64_t row, float scale) {
        store_lane(out_ + groups_ * group_bytes_ + row / kRowGroup * 64, row, scale);
    }

    /// Ternarises a row that is not ternary: only choose_layout with kForce leads here.
    void forced_row(uint64_t row) {
        values_.resize(static_cast<size_t>(m_.cols));
        dequantise_row(*slice_.tensor, slice_.expert, slice_.row_begin + row, values_.data());
        double sum = 0;
        for (size_t c = 0; c < values_.size(); ++c) {
            if (!std::isfinite(values_[c])) not_finite(slice_, row, c, "weight", values_[c]);
            sum += std::fabs(static_cast<double>(values_[c]));
        }
        const auto scale = static_cast<float>(sum / static_cast<double>(values_.size()));
        for (size_t c = 0; c < values_.size(); ++c) {
            const float ratio = scale > 0 ? values_[c] / scale : 0.0f;
            const int code = ratio >= 0.5f ? 2 : ratio <= -0.5f ? 0 : 1;
            codes_[c] = static_cast<uint8_t>(code);
            const double value = values_[c];
            const double error = value - static_cast<double>(scale) * (code - 1);
            report_.squared_error += error * error;
            report_.squared_norm += value * value;
        }
        store_ternary_codes(row);
        store_row_scale(row, scale);
    }

    void ternary_blocks_row(uint64_t row) {
        const SourceRow source = row_of(slice_, row);
        scales_.read(slice_, row);
        ternary_type_codes(row, source);
        const uint64_t blocks = padded_ / 256;
        std::byte* to = out_ + groups_ * group_bytes_ + row / kRowGroup * blocks * 64;
        for (uint64_t b = 0; b < blocks; ++b) store_lane(to + b * 64, row, scales_.scale[b * 256 / scales_.group]);
    }

    void nibble_k_row(uint64_t row) {
        const SourceRow source = row_of(slice_, row);
        scales_.read(slice_, row);  // for its check of d and dmin
        read_codes(source, codes_.data());
        std::byte* record = row_group(row);
        const std::byte* block = source.codes;
        for (uint64_t c = 0; c < source.cols; c += 256, block += 144, record += 2368) {
            const KScales k = read_k_scales(block);
            std::memcpy(record + 2 * lane(row), &k.d, 2);
            std::memcpy(record + 32 + 2 * lane(row), &k.dmin, 2);
            for (uint64_t g = 0; g < 8; ++g) {
                record[64 + 16 * g + lane(row)] = std::byte{k.sc[g]};
                record[192 + 16 * g + lane(row)] = std::byte{k.m[g]};
            }
            store_nibbles(record + 320, row, codes_.data() + c, 256);
        }
    }

    static void store_nibbles(std::byte* blocks, uint64_t row, const uint8_t* codes, uint64_t cols) {
        std::byte* to = blocks + 4 * lane(row);
        for (uint64_t c = 0; c < cols; c += 8, to += 64) {
            uint32_t word[2];
            std::memcpy(word, codes + c, sizeof word);
            store(to, word[0] | word[1] << 4);
        }
    }

    static void store_bytes(std::byte* blocks, uint64_t row, const uint8_t* codes, uint64_t cols) {
        std::byte* to = blocks + 4 * lane(row);
        for (uint64_t c = 0; c < cols; c += 4, to += 64) std::memcpy(to, codes + c, 4);
    }

    /// kNibble and kByte: per group of columns 16 scales, 16 minima, then blocks.
    void grouped_row(uint64_t row) {
        const SourceRow source = row_of(slice_, row);
        scales_.read(slice_, row);
        read_codes(source, codes_.data());
        const bool ternary = is_ternary_type(type_);
        if (ternary) count_code3(source.cols);
        for (uint64_t c = 0; c < padded_; c += m_.group) {
            const uint64_t g = c / scales_.group;
            const bool centred = m_.layout == Layout::kByte && m_.offset != 0;
            store_group(row, c, scales_.scale[g], centred ? 0.0f : scales_.min[g]);
        }
    }

    void store_group(uint64_t row, uint64_t col, float scale, float min) {
        const uint64_t code_bytes = uint64_t{m_.group} * (m_.layout == Layout::kByte ? 16 : 8);
        std::byte* to = row_group(row) + col / m_.group * (128 + code_bytes);
        store_lane(to, row, scale);
        store_lane(to + 64, row, min);
        if (m_.layout == Layout::kByte) {
            store_bytes(to + 128, row, codes_.data() + col, m_.group);
        } else {
            store_nibbles(to + 128, row, codes_.data() + col, m_.group);
        }
    }

    /// Rows beyond the matrix: codes of weight zero and scale zero, so that blobs are the same on every run.
    void padding_row(uint64_t row) {
        switch (m_.layout) {
            case Layout::kTernary:
                store_ternary_codes(row);
                store_row_scale(row, 0);
                return;
            case Layout::kTernaryBlocks: {
                store_ternary_codes(row);
                const uint64_t blocks = padded_ / 256;
                std::byte* to = out_ + groups_ * group_bytes_ + row / kRowGroup * blocks * 64;
                for (uint64_t b = 0; b < blocks; ++b) store_lane(to + b * 64, row, 0);
                return;
            }
            case Layout::kNibbleK: {
                std::byte* record = row_group(row);
                for (uint64_t c = 0; c < padded_; c += 256, record += 2368) {
                    std::memset(record + 2 * lane(row), 0, 2);
                    std::memset(record + 32 + 2 * lane(row), 0, 2);
                    for (uint64_t g = 0; g < 16; ++g) record[64 + 16 * g + lane(row)] = std::byte{0};
                    store_nibbles(record + 320, row, codes_.data() + c, 256);
                }
                return;
            }
            default:
                for (uint64_t c = 0; c < padded_; c += m_.group) store_group(row, c, 0, 0);
        }
    }

    const Slice& slice_;
    const Matrix& m_;
    TensorType type_;
    uint64_t padded_;           // columns
    uint64_t group_bytes_ = 0;  // one row group's codes
    uint64_t groups_ = 0;       // row groups
    std::byte* out_;
    RowScales scales_;
    std::vector<uint8_t> codes_, scratch_;
    std::vector<float> values_;
    RepackReport report_;
};

/// By way of kTernary.
RepackReport repack_dense(const Slice& slice, const Matrix& layout, std::span<std::byte> out) {
    const Matrix plain = with(layout, Layout::kTernary);
    std::vector<std::byte> blob(static_cast<size_t>(kernels::matrix_bytes(plain)));
    const RepackReport report = Repacker(slice, plain, blob).run();
    const auto groups = static_cast<size_t>(kernels::round_up(layout.rows, kRowGroup) / kRowGroup);
    const auto plain_bytes = static_cast<size_t>(kernels::row_group_bytes(plain));
    const auto dense_bytes = static_cast<size_t>(kernels::row_group_bytes(layout));
    std::fill(out.begin(), out.end(), std::byte{0});  // what pads a row group
    for (size_t group = 0; group < groups; ++group) {
        if (kernels::pack_dense_group(&blob[group * plain_bytes], layout.cols, &out[group * dense_bytes])) continue;
        throw Error(ErrorCode::kFormat,
                    describe_row(*slice.tensor, slice.expert, slice.row_begin + group * kRowGroup) +
                        " or one of the 15 after it has a ternary code 3, codes 0 to 2 expected: the file is damaged. "
                        "Layout 2bit keeps such codes, dense cannot");
    }
    std::copy(blob.begin() + static_cast<ptrdiff_t>(groups * plain_bytes), blob.end(),
              out.begin() + static_cast<ptrdiff_t>(groups * dense_bytes));
    return report;
}

/// Row groups by way of kNibbleK.
RepackReport repack_split(const Slice& slice, const Matrix& layout, std::span<std::byte> out) {
    Matrix part = with(layout, Layout::kNibbleK);
    part.rows = kRowGroup;
    std::vector<std::byte> group(static_cast<size_t>(kernels::matrix_bytes(part)));
    for (uint64_t row = 0; row < slice.rows; row += kRowGroup) {
        Slice rows = slice;
        rows.row_begin += row;
        rows.rows = std::min<uint64_t>(kRowGroup, slice.rows - row);
        part.rows = static_cast<int>(rows.rows);
        Repacker(rows, part, group).run();
        kernels::split_row_group(group.data(), layout, static_cast<int>(row / kRowGroup), out.data());
    }
    return {};
}

}  // namespace

RepackReport repack(const Slice& slice, const Matrix& layout, std::span<std::byte> out) {
    if (layout.rows != static_cast<int64_t>(slice.rows) || layout.cols != static_cast<int64_t>(slice.tensor->cols()) ||
        out.size() != static_cast<uint64_t>(kernels::matrix_bytes(layout))) {
        throw Error(ErrorCode::kInternal,
                    "tensor '" + slice.tensor->name + "': repacked into a matrix of another size");
    }
    if (layout.layout == Layout::kTernaryDense) return repack_dense(slice, layout, out);
    if (layout.layout == Layout::kNibbleKSplit) return repack_split(slice, layout, out);
    return Repacker(slice, layout, out).run();
}

}  // namespace samara::formats
