#pragma once
// How a weight matrix lies in memory while it is multiplied. Every layout is one contiguous blob, so that a matrix is
// (layout, rows, columns, pointer): the packed file stores the blob as it is and a loader maps it in place.
//
// Interleaved layouts group 16 rows: lane r of a 16-lane integer vector is row r of the group, and each 32-bit lane
// holds 4 neighbouring columns (4r+j is byte j of row r). Rows are padded to 16. Padding rows hold codes like any
// other; their results are computed and dropped. Padding columns hold code 1 (ternary) or 0 and meet activation 0.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace samara::kernels {

inline constexpr int kRowGroup = 16;  // rows interleaved in one block

/// The numbers are stored in packed files: never renumber.
enum class Layout : uint8_t {
    kFloat32 = 0,   // row-major float32 [rows][cols]
    kFloat16 = 1,   // row-major IEEE half
    kBfloat16 = 2,  // row-major bfloat16
    // Ternary, 2 bits a weight. Codes {0,1,2} mean {-1,0,+1}. 64-byte blocks of 16 rows x 16 columns: byte 4r+j, bit
    // pair p (bits 2p, 2p+1) holds row r, column 4p+j. Blocks of one row group follow each other along the columns
    // (cols padded to 16), row groups follow each other. Then float32 row_scale[padded rows].
    kTernary = 3,
    // The same codes (cols padded to 256), but then float32 scale[row group][cols/256][16]: a scale per 256 columns.
    kTernaryBlocks = 4,
    // 4-bit codes q in 0..15, value = scale*q + min. 64-byte blocks of 16 rows x 8 columns: byte 4r+j, low nibble holds
    // row r, column j, high nibble column 4+j. A group is `group` columns (32 or 64). Per row group, group by group:
    // float32 scale[16], float32 min[16], then group/8 blocks. Cols padded to `group`.
    kNibble = 5,
    // 4-bit codes with two-level scales (Q4_K): value = (d*sc)*q - (dmin*m). Per row group and 256 columns a record of
    // 2368 bytes: half d[16], half dmin[16], uint8 sc[8][16], uint8 m[8][16] (first index: group of 32 columns), then
    // 32 blocks of 64 bytes as in kNibble. Cols padded to 256.
    kNibbleK = 6,
    // 8-bit codes, value = scale*(q - offset) + min, q and offset in 0..255. 64-byte blocks of 16 rows x 4 columns:
    // byte 4r+j holds row r, column j. A group is 16 or 32 columns. Per row group, group by group: float32 scale[16],
    // float32 min[16], then group/4 blocks. Cols padded to `group`. Padding columns hold code `offset`.
    kByte = 7,
    // kTernary's codes in 5 bits for 3 weights: 40-byte blocks of 16 rows x 12 columns. Field 8q+i (bits 5i to 5i+4 of
    // bytes 5q to 5q+4) is byte 4r+j of row r, columns j, 4+j and 8+j: code[j] + 3*code[4+j] + 9*code[8+j]. A row
    // group's blocks are padded to 64 bytes. Then float32 row_scale[padded rows].
    kTernaryDense = 9,
    // kNibbleK's codes and scales in three planes, so that a vocabulary head can be read in part
    // (src/kernels/screen.hpp): the top two bits of the codes with all that a row group's scales need, then the third
    // bits and the last bits, row by row. At most kMaxSplitCols columns, padded to 256. A pair is 512 columns, the last
    // one perhaps half empty.
    // High plane, per row group and 256 columns 1344 bytes: d, dmin, sc and m as kNibbleK, then 16 blocks of 64 bytes
    // as kTernary's, of the codes' top two bits. Third plane, per row (rows padded to 16): 64 bytes a pair of bit 1 of
    // the codes, then 16 bytes a pair of sc, then 4 bytes a pair of d. Last plane, per row: 64 bytes a pair of bit 0.
    // Of a row's bits, 32 columns are 4 bytes: bit s of byte j is column 4s+j.
    kNibbleKSplit = 10,
};

/// As docs/packed-file.md calls it.
constexpr std::string_view layout_name(Layout layout) {
    switch (layout) {
        case Layout::kFloat32:
            return "float32";
        case Layout::kFloat16:
            return "float16";
        case Layout::kBfloat16:
            return "bfloat16";
        case Layout::kTernary:
            return "ternary";
        case Layout::kTernaryBlocks:
            return "ternary blocks";
        case Layout::kNibble:
            return "nibble";
        case Layout::kNibbleK:
            return "nibble K";
        case Layout::kByte:
            return "byte";
        case Layout::kTernaryDense:
            return "ternary dense";
        case Layout::kNibbleKSplit:
            return "nibble K split";
    }
    return "";
}

inline constexpr int kMaxSplitCols = 8192;

/// A weight matrix of `rows` outputs and `cols` inputs. Does not own its data.
struct Matrix {
    Layout layout = Layout::kFloat32;
    uint8_t group = 0;   // columns that share a scale (kNibble: 32 or 64, kByte: 16 or 32), else 0
    uint8_t offset = 0;  // kByte: the code that means zero
    int rows = 0;
    int cols = 0;
    const std::byte* data = nullptr;  // matrix_bytes() bytes, 64-byte aligned for interleaved layouts
};

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/// Columns of `m` after padding: what one row of activations must be padded to with zeros (at most 255 more).
constexpr int64_t padded_cols(const Matrix& m) {
    switch (m.layout) {
        case Layout::kTernary:
            return round_up(m.cols, 16);
        case Layout::kTernaryDense:
            return round_up(m.cols, 4);  // columns beyond in the last block are left out
        case Layout::kTernaryBlocks:
        case Layout::kNibbleK:
        case Layout::kNibbleKSplit:
            return round_up(m.cols, 256);
        case Layout::kNibble:
        case Layout::kByte:
            return round_up(m.cols, m.group);
        default:
            return m.cols;
    }
}

/// Size of one row group of an interleaved layout in bytes, codes only for ternary layouts (scales follow at the end),
/// the high plane's of kNibbleKSplit.
constexpr int64_t row_group_bytes(const Matrix& m) {
    const int64_t cols = padded_cols(m);
    switch (m.layout) {
        case Layout::kTernary:
        case Layout::kTernaryBlocks:
            return cols * 4;
        case Layout::kTernaryDense:
            return round_up(round_up(cols, 12) / 12 * 40, 64);
        case Layout::kNibble:
            return cols / m.group * 128 + cols * 8;
        case Layout::kNibbleK:
            return cols / 256 * 2368;
        case Layout::kNibbleKSplit:
            return cols / 256 * 1344;
        case Layout::kByte:
            return cols / m.group * 128 + cols * 16;
        default:
            return 0;
    }
}

/// Where the planes of a kNibbleKSplit matrix lie; sizes in bytes.
struct SplitPlanes {
    int64_t records;    // of 256 columns
    int64_t pairs;      // of records
    int64_t third_row;  // size of a row
    int64_t last_row;   // size of a row
    int64_t third;      // offset of the plane
    int64_t last;       // offset of the plane
    int64_t bytes;      // of the blob
};
constexpr SplitPlanes split_planes(const Matrix& m) {
    SplitPlanes p{};
    const int64_t rows = round_up(m.rows, kRowGroup);
    p.records = padded_cols(m) / 256;
    p.pairs = (p.records + 1) / 2;
    p.third_row = p.pairs * 84;
    p.last_row = p.pairs * 64;
    p.third = rows / kRowGroup * row_group_bytes(m);
    p.last = p.third + rows * p.third_row;
    p.bytes = p.last + rows * p.last_row;
    return p;
}

/// Size of the whole blob in bytes.
constexpr int64_t matrix_bytes(const Matrix& m) {
    const int64_t groups = round_up(m.rows, kRowGroup) / kRowGroup;
    switch (m.layout) {
        case Layout::kFloat32:
            return int64_t{4} * m.rows * m.cols;
        case Layout::kFloat16:
        case Layout::kBfloat16:
            return int64_t{2} * m.rows * m.cols;
        case Layout::kTernary:
        case Layout::kTernaryDense:
            return groups * (row_group_bytes(m) + 64);
        case Layout::kTernaryBlocks:
            return groups * (row_group_bytes(m) + padded_cols(m) / 256 * 64);
        case Layout::kNibbleKSplit:
            return split_planes(m).bytes;
        default:
            return groups * row_group_bytes(m);
    }
}

/// True for the layouts that multiply float activations; the others multiply 16-bit integer activations.
constexpr bool is_float_layout(Layout l) { return l <= Layout::kBfloat16; }

}  // namespace samara::kernels
