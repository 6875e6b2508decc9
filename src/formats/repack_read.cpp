// Weights read back from the kernels' layouts, the inverse of repack.cpp one row at a time.

#include <cstring>
#include <vector>

#include "src/formats/repack.hpp"
#include "src/kernels/dense_layout.hpp"
#include "src/kernels/screen_join.hpp"
#include "src/platform/half.hpp"

namespace samara::formats {
namespace {

using kernels::Layout;
using kernels::Matrix;

float load_float(const std::byte* data) {
    float value = 0;
    std::memcpy(&value, data, sizeof value);
    return value;
}

unsigned load_byte(const std::byte* data) { return std::to_integer<unsigned>(*data); }

/// Ternary code of lane `r`, column `c` of a row group: value -1, 0 or 1 (2 for the code of a damaged file).
int ternary(const std::byte* group, int r, int c) {
    const unsigned byte = load_byte(group + c / 16 * 64 + 4 * r + c % 4);
    return static_cast<int>((byte >> (c % 16 / 4 * 2)) & 3) - 1;
}

/// 4-bit code of lane `r`, column `c` counted from the first block.
unsigned nibble(const std::byte* blocks, int r, int c) {
    const unsigned byte = load_byte(blocks + c / 8 * 64 + 4 * r + c % 4);
    return c % 8 < 4 ? byte & 15 : byte >> 4;
}

void ternary_row(const Matrix& m, int row, float* out) {
    const int64_t groups = kernels::round_up(m.rows, kernels::kRowGroup) / kernels::kRowGroup;
    const int64_t group_bytes = kernels::row_group_bytes(m);
    const int r = row % kernels::kRowGroup;
    const int64_t g = row / kernels::kRowGroup;
    const std::byte* codes = m.data + g * group_bytes;
    std::vector<std::byte> unpacked;
    if (m.layout == Layout::kTernaryDense) {
        unpacked.resize(static_cast<size_t>(kernels::round_up(m.cols, 16) * 4));
        kernels::unpack_dense_group(codes, m.cols, unpacked.data());
        codes = unpacked.data();
    }
    const int64_t blocks = m.layout != Layout::kTernaryBlocks ? 1 : kernels::padded_cols(m) / 256;
    const std::byte* scales = m.data + groups * group_bytes + g * blocks * 64 + 4 * r;
    for (int c = 0; c < m.cols; ++c) {
        const float scale = load_float(scales + (m.layout != Layout::kTernaryBlocks ? 0 : c / 256 * 64));
        out[c] = scale * static_cast<float>(ternary(codes, r, c));
    }
}

void grouped_row(const Matrix& m, int row, float* out) {
    const int r = row % kernels::kRowGroup;
    const bool bytes = m.layout == Layout::kByte;
    const int64_t record_bytes = 128 + int64_t{m.group} * (bytes ? 16 : 8);
    const std::byte* record = m.data + row / kernels::kRowGroup * kernels::row_group_bytes(m);
    for (int c = 0; c < m.cols; ++c) {
        const std::byte* group = record + c / m.group * record_bytes;
        const float scale = load_float(group + 4 * r);
        const float min = load_float(group + 64 + 4 * r);
        const int in_group = c % m.group;
        const int code =
            bytes ? static_cast<int>(load_byte(group + 128 + in_group / 4 * 64 + 4 * r + in_group % 4)) - m.offset
                  : static_cast<int>(nibble(group + 128, r, in_group));
        out[c] = scale * static_cast<float>(code) + min;
    }
}

void nibble_k_row(const Matrix& m, int row, float* out) {
    const int r = row % kernels::kRowGroup;
    const std::byte* records = m.data + row / kernels::kRowGroup * kernels::row_group_bytes(m);
    for (int c = 0; c < m.cols; ++c) {
        const std::byte* record = records + c / 256 * 2368;
        const int in_block = c % 256;
        const float d = half_to_float(load_u16(record + 2 * r));
        const float dmin = half_to_float(load_u16(record + 32 + 2 * r));
        const float scale = d * static_cast<float>(load_byte(record + 64 + in_block / 32 * 16 + r));
        const float min = dmin * static_cast<float>(load_byte(record + 192 + in_block / 32 * 16 + r));
        out[c] = scale * static_cast<float>(nibble(record + 320, r, in_block)) - min;
    }
}

void split_row(const Matrix& m, int row, float* out) {
    Matrix part{.layout = Layout::kNibbleK, .rows = kernels::kRowGroup, .cols = m.cols};
    std::vector<std::byte> group(static_cast<size_t>(kernels::matrix_bytes(part)));
    kernels::join_row_group(m, row / kernels::kRowGroup, group.data());
    part.data = group.data();
    nibble_k_row(part, row % kernels::kRowGroup, out);
}

}  // namespace

void dequantise_matrix_row(const Matrix& m, int row, float* out) {
    const int64_t first = int64_t{row} * m.cols;
    switch (m.layout) {
        case Layout::kFloat32:
            std::memcpy(out, m.data + 4 * first, 4 * static_cast<size_t>(m.cols));
            return;
        case Layout::kFloat16:
            for (int c = 0; c < m.cols; ++c) out[c] = half_to_float(load_u16(m.data + 2 * (first + c)));
            return;
        case Layout::kBfloat16:
            for (int c = 0; c < m.cols; ++c) out[c] = bf16_to_float(load_u16(m.data + 2 * (first + c)));
            return;
        case Layout::kTernary:
        case Layout::kTernaryDense:
        case Layout::kTernaryBlocks:
            return ternary_row(m, row, out);
        case Layout::kNibbleK:
            return nibble_k_row(m, row, out);
        case Layout::kNibbleKSplit:
            return split_row(m, row, out);
        case Layout::kNibble:
        case Layout::kByte:
            return grouped_row(m, row, out);
    }
}

}  // namespace samara::formats
