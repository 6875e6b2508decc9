// Layout::kTernaryDense holds what kTernary holds, through packing, every set's matmul and repacking.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "src/formats/repack.hpp"
#include "src/kernels/dense_layout.hpp"
#include "src/kernels/kernels.hpp"
#include "src/platform/error.hpp"

namespace samara {
namespace {

using kernels::Layout;
using kernels::Matrix;
using kernels::round_up;

struct alignas(64) Line {
    std::byte bytes[64];
};

/// A blob of matrix_bytes(), aligned as interleaved layouts ask.
struct Blob {
    explicit Blob(const Matrix& shape) : matrix(shape), lines((bytes() + 63) / 64) { matrix.data = data(); }
    size_t bytes() const { return static_cast<size_t>(kernels::matrix_bytes(matrix)); }
    std::byte* data() { return lines.front().bytes; }
    Matrix matrix;
    std::vector<Line> lines;
};

/// A TQ2_0 tensor of one scale, codes 0 to 2.
struct Source {
    Source(uint64_t rows, uint64_t cols, std::mt19937& random) : bytes(rows * cols / 256 * 66) {
        for (size_t at = 0; at < bytes.size(); at += 66) {
            for (size_t i = 0; i < 64; ++i) {
                unsigned byte = 0;
                for (int p = 0; p < 8; p += 2) byte |= static_cast<unsigned>(random() % 3) << p;
                bytes[at + i] = static_cast<std::byte>(byte);
            }
            bytes[at + 65] = std::byte{0x30};  // half 0.125
        }
        tensor.name.assign(1, 'w');  // GCC 12 warns about a literal here (bug 105651)
        tensor.type = formats::TensorType::kTQ2_0;
        tensor.shape = {cols, rows};
        tensor.data = bytes;
    }
    formats::Slice slice() const { return {.tensor = &tensor, .rows = tensor.rows()}; }
    std::vector<std::byte> bytes;
    formats::Tensor tensor;
};

Blob repacked(const Source& source, formats::TernaryLayout ternary) {
    const Matrix shape =
        formats::packed_ternary(formats::choose_layout(source.slice(), formats::Role::kProjection), ternary);
    Blob blob(shape);
    formats::repack(source.slice(), shape, std::span(blob.data(), blob.bytes()));
    return blob;
}

TEST(DenseLayout, TakesAtMost170HundredthsOfABitAWeightBeforeScalesAndPadding) {
    for (const int cols : {512, 2048, 4096}) {
        const int blocks = (cols + kernels::kDenseCols - 1) / kernels::kDenseCols;
        EXPECT_LE(8.0 * blocks * kernels::kDenseBlockBytes / (16.0 * cols), 1.70) << cols;
        const Matrix m{.layout = Layout::kTernaryDense, .rows = 16, .cols = cols};
        EXPECT_EQ(kernels::row_group_bytes(m), round_up(blocks * kernels::kDenseBlockBytes, 64));
    }
}

TEST(DenseLayout, UnpackingWhatWasPackedGivesEveryCodeBackForAnyWidth) {
    std::mt19937 random(7);
    for (const int cols : {1, 4, 11, 12, 13, 16, 40, 48, 49, 100, 512, 2048}) {
        const auto blocks = static_cast<size_t>((cols + 15) / 16);
        std::vector<std::byte> plain(64 * blocks), back(64 * blocks);
        for (std::byte& b : plain) {
            unsigned byte = 0;
            for (int p = 0; p < 8; p += 2) byte |= static_cast<unsigned>(random() % 3) << p;
            b = static_cast<std::byte>(byte);
        }
        std::vector<std::byte> dense(static_cast<size_t>((cols + 11) / 12 * kernels::kDenseBlockBytes));
        ASSERT_TRUE(kernels::pack_dense_group(plain.data(), cols, dense.data()));
        kernels::unpack_dense_group(dense.data(), cols, back.data());
        for (int lane = 0; lane < 16; ++lane) {
            for (int col = 0; col < cols; ++col) {
                const auto at = static_cast<size_t>(col / 16 * 64 + 4 * lane + col % 4);
                const int shift = col % 16 / 4 * 2;
                ASSERT_EQ(std::to_integer<int>(back[at] >> shift & std::byte{3}),
                          std::to_integer<int>(plain[at] >> shift & std::byte{3}))
                    << cols << " columns, lane " << lane << ", column " << col;
            }
        }
    }
}

TEST(DenseLayout, ACode3WithinTheColumnsIsReportedAndBeyondThemIsNot) {
    std::vector<std::byte> plain(64, std::byte{0x55}), dense(80);
    plain[63] = std::byte{0xd5};  // lane 15, column 15
    EXPECT_TRUE(kernels::pack_dense_group(plain.data(), 15, dense.data()));
    EXPECT_FALSE(kernels::pack_dense_group(plain.data(), 16, dense.data()));
}

TEST(DenseLayout, EveryWeightReadsBackAsFromTwoBits) {
    std::mt19937 random(8);
    const Source source(37, 768, random);
    const Blob plain = repacked(source, formats::TernaryLayout::kTwoBit);
    const Blob dense = repacked(source, formats::TernaryLayout::kDense);
    ASSERT_EQ(plain.matrix.layout, Layout::kTernary);
    ASSERT_EQ(dense.matrix.layout, Layout::kTernaryDense);
    EXPECT_LT(dense.bytes(), plain.bytes() * 6 / 7);
    std::vector<float> expected(768), found(768);
    for (int row = 0; row < 37; ++row) {
        formats::dequantise_matrix_row(plain.matrix, row, expected.data());
        formats::dequantise_matrix_row(dense.matrix, row, found.data());
        ASSERT_EQ(found, expected) << row;
    }
}

TEST(DenseLayout, EverySetGivesTheBitsOfTwoBits) {
    std::mt19937 random(9);
    const Source source(83, 512, random);
    const Blob plain = repacked(source, formats::TernaryLayout::kTwoBit);
    const Blob dense = repacked(source, formats::TernaryLayout::kDense);
    constexpr int kTokens = 9;
    std::vector<float> x(kTokens * 512);
    for (float& v : x) v = std::normal_distribution<float>()(random);
    std::vector<int16_t> q(x.size());
    std::vector<int8_t> high(x.size()), low(x.size());
    std::vector<int32_t> sums16(x.size() / 16), sum(kTokens);
    std::vector<float> scale(kTokens);
    for (size_t t = 0; t < kTokens; ++t) {
        ASSERT_TRUE(kernels::kernel_table(kernels::Isa::kScalar)
                        .quantise(&x[t * 512], 512, 512,
                                  {.q = &q[t * 512],
                                   .high = &high[t * 512],
                                   .low = &low[t * 512],
                                   .sums16 = &sums16[t * 32],
                                   .scale = &scale[t],
                                   .sum = &sum[t]}));
    }
    const kernels::Activations a{.n = kTokens,
                                 .cols = 512,
                                 .stride = 512,
                                 .x = x.data(),
                                 .q = q.data(),
                                 .high = high.data(),
                                 .low = low.data(),
                                 .scale = scale.data(),
                                 .sum = sum.data(),
                                 .sums16 = sums16.data()};
    for (const kernels::Isa isa : kernels::supported_isas()) {
        for (int n = 1; n <= kTokens; ++n) {
            std::vector<float> expected(kTokens * 83), found(kTokens * 83);
            kernels::kernel_table(isa).matmul(plain.matrix, 0, 6, a, nullptr, n, expected.data(), 83);
            kernels::kernel_table(isa).matmul(dense.matrix, 0, 6, a, nullptr, n, found.data(), 83);
            ASSERT_EQ(std::memcmp(found.data(), expected.data(), 4 * found.size()), 0)
                << kernels::isa_name(isa) << ", " << n << " tokens";
        }
    }
}

TEST(DenseLayout, ADamagedSourceIsRefusedWithTheTensorsNameAndAWayOut) {
    std::mt19937 random(10);
    Source source(16, 256, random);
    source.bytes[5] = std::byte{0xff};
    try {
        repacked(source, formats::TernaryLayout::kDense);
        FAIL() << "a code 3 was packed";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kFormat);
        EXPECT_NE(std::string(error.what()).find("tensor 'w'"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("2bit"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace samara
