// Every set's integer matmul gives the bits of the scalar definition.

#include "src/kernels/integer_matmul.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/platform/half.hpp"

namespace samara::kernels {
namespace {

using Matmul = decltype(&scalar::integer_matmul);

struct Shape {
    Layout layout;
    int group;
    int offset;
    int rows;
    int cols;
};

const char* name_of(Layout layout) {
    switch (layout) {
        case Layout::kTernary:
            return "Ternary";
        case Layout::kTernaryBlocks:
            return "TernaryBlocks";
        case Layout::kTernaryDense:
            return "TernaryDense";
        case Layout::kNibble:
            return "Nibble";
        case Layout::kNibbleK:
            return "NibbleK";
        default:
            return "Byte";
    }
}

enum class Codes { kRandom, kLargest };             // every bit set: ternary code 3, 15, 255
enum class Inputs { kRandom, kSmall, kMax, kMin };  // q everywhere +-32639
enum class Scales { kRandom, kZero, kOne };

/// A matrix blob of exactly matrix_bytes(), 64-byte aligned.
class RandomMatrix {
  public:
    RandomMatrix(const Shape& shape, Codes codes, Scales scales, std::mt19937& random) {
        matrix_ = {.layout = shape.layout,
                   .group = static_cast<uint8_t>(shape.group),
                   .offset = static_cast<uint8_t>(shape.offset),
                   .rows = shape.rows,
                   .cols = shape.cols};
        const auto bytes = static_cast<size_t>(matrix_bytes(matrix_));
        storage_.resize((bytes + 63) / 64);
        auto* data = reinterpret_cast<std::byte*>(storage_.data());
        for (size_t i = 0; i < bytes; ++i) data[i] = codes == Codes::kLargest ? std::byte{0xff} : std::byte(random());
        matrix_.data = data;
        const auto scale = [&] {
            if (scales == Scales::kOne) return 1.0f;
            return scales == Scales::kZero ? 0.0f : std::uniform_real_distribution<float>(-0.02f, 0.02f)(random);
        };
        const auto put_floats = [&](int64_t at, int64_t count) {
            for (int64_t i = 0; i < count; ++i) {
                const float value = scale();
                std::memcpy(data + at + 4 * i, &value, 4);
            }
        };
        const int64_t groups = round_up(shape.rows, 16) / 16;
        const int64_t group_bytes = row_group_bytes(matrix_);
        switch (shape.layout) {
            case Layout::kTernary:
            case Layout::kTernaryDense:
            case Layout::kTernaryBlocks:
                put_floats(groups * group_bytes, (static_cast<int64_t>(bytes) - groups * group_bytes) / 4);
                break;
            case Layout::kNibble:
            case Layout::kByte: {
                const int64_t record = 128 + shape.group * (shape.layout == Layout::kNibble ? 8 : 16);
                for (int64_t at = 0; at < groups * group_bytes; at += record) put_floats(at, 32);
                break;
            }
            default:
                for (int64_t at = 0; at < groups * group_bytes; at += 2368) {
                    for (int i = 0; i < 32; ++i) {
                        const uint16_t half = float_to_half(scale());
                        std::memcpy(data + at + 2 * i, &half, 2);
                    }
                    if (scales == Scales::kOne) std::fill_n(data + at + 64, 256, std::byte{1});
                }
        }
    }

    const Matrix& matrix() const { return matrix_; }

  private:
    struct alignas(64) Line {
        std::byte bytes[64];
    };
    std::vector<Line> storage_;
    Matrix matrix_;
};

class RandomActivations {
  public:
    RandomActivations(int n, int cols, Inputs inputs, std::mt19937& random) {
        const int64_t stride = round_up(cols, 256);
        q_.resize(static_cast<size_t>(n * stride));
        high_.resize(q_.size());
        low_.resize(q_.size());
        scale_.resize(static_cast<size_t>(n));
        sum_.resize(static_cast<size_t>(n));
        sums16_.resize(q_.size() / 16);
        // Small: sums of any code stay below 2^24, which float32 holds.
        const int largest = inputs != Inputs::kSmall ? kActivationMax : cols > 2048 ? 1 : 15;
        std::uniform_int_distribution<int> values(-largest, largest);
        for (int64_t t = 0; t < n; ++t) {
            for (int64_t c = 0; c < cols; ++c) {
                const auto i = static_cast<size_t>(t * stride + c);
                const int q = inputs == Inputs::kMax   ? kActivationMax
                              : inputs == Inputs::kMin ? -kActivationMax
                                                       : values(random);
                q_[i] = static_cast<int16_t>(q);
                low_[i] = static_cast<int8_t>(q & 255);
                high_[i] = static_cast<int8_t>((q - low_[i]) / 256);
                sums16_[i / 16] += q;
                sum_[static_cast<size_t>(t)] += q;
            }
            scale_[static_cast<size_t>(t)] = std::uniform_real_distribution<float>(0.0f, 1e-3f)(random);
        }
        view_ = {.n = n,
                 .cols = cols,
                 .stride = stride,
                 .q = q_.data(),
                 .high = high_.data(),
                 .low = low_.data(),
                 .scale = scale_.data(),
                 .sum = sum_.data(),
                 .sums16 = sums16_.data()};
    }

    const Activations& view() const { return view_; }

  private:
    std::vector<int16_t> q_;
    std::vector<int8_t> high_, low_;
    std::vector<float> scale_;
    std::vector<int32_t> sum_, sums16_;
    Activations view_;
};

struct Range {
    int begin;
    int end;
};

/// Runs one matmul. What is not written keeps a value that no result has.
std::vector<uint32_t> bits_of(Matmul matmul, const Matrix& w, Range groups, const Activations& a,
                              const std::vector<int32_t>& tokens, int n) {
    const int64_t out_stride = w.rows + 5;
    std::vector<float> out(static_cast<size_t>(n * out_stride), std::numeric_limits<float>::infinity());
    matmul(w, groups.begin, groups.end, a, tokens.empty() ? nullptr : tokens.data(), n, out.data(), out_stride);
    std::vector<uint32_t> bits(out.size());
    std::memcpy(bits.data(), out.data(), 4 * out.size());
    return bits;
}

void expect_equal_bits(const RandomMatrix& random_matrix, const RandomActivations& activations,
                       const std::vector<int32_t>& tokens, int n) {
    const Matrix& w = random_matrix.matrix();
    const int groups = static_cast<int>(round_up(w.rows, 16) / 16);
    for (const Range range : {Range{0, groups}, Range{groups / 3, groups}}) {
        const auto expected = bits_of(scalar::integer_matmul, w, range, activations.view(), tokens, n);
        for (const Isa isa : supported_isas()) {
            if (isa == Isa::kScalar) continue;
            const auto found = bits_of(kernel_table(isa).matmul, w, range, activations.view(), tokens, n);
            for (size_t i = 0; i < expected.size(); ++i) {
                ASSERT_EQ(found[i], expected[i])
                    << isa_name(isa) << " " << name_of(w.layout) << " rows " << w.rows << " cols " << w.cols
                    << " group " << int{w.group} << " n " << n << " range " << range.begin << ".." << range.end
                    << " token " << i / static_cast<size_t>(w.rows + 5) << " row "
                    << i % static_cast<size_t>(w.rows + 5) << ": " << std::bit_cast<float>(found[i]) << " instead of "
                    << std::bit_cast<float>(expected[i]);
            }
        }
    }
}

class IntegerMatmul : public testing::TestWithParam<Shape> {
  protected:
    std::mt19937 random_{12345};
};

TEST_P(IntegerMatmul, GivesTheDefinitionsBitsForAnyNumberOfTokens) {
    const RandomMatrix matrix(GetParam(), Codes::kRandom, Scales::kRandom, random_);
    const std::vector<int> counts =
        GetParam().cols > 4096 ? std::vector<int>{1, 2, 7, 19} : std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 33};
    for (const int n : counts) {
        const RandomActivations activations(n, GetParam().cols, Inputs::kRandom, random_);
        expect_equal_bits(matrix, activations, {}, n);
    }
}

TEST_P(IntegerMatmul, FollowsTheTokenList) {
    const RandomMatrix matrix(GetParam(), Codes::kRandom, Scales::kRandom, random_);
    const RandomActivations activations(9, GetParam().cols, Inputs::kRandom, random_);
    for (const std::vector<int32_t>& tokens :
         {std::vector<int32_t>{4}, {8, 0}, {2, 2, 7}, {8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 5, 3, 8}}) {
        expect_equal_bits(matrix, activations, tokens, static_cast<int>(tokens.size()));
    }
}

TEST_P(IntegerMatmul, GivesTheDefinitionsBitsAtTheExtremes) {
    for (const Codes codes : {Codes::kRandom, Codes::kLargest}) {
        for (const Inputs inputs : {Inputs::kMax, Inputs::kMin}) {
            for (const Scales scales : {Scales::kRandom, Scales::kZero}) {
                const RandomMatrix matrix(GetParam(), codes, scales, random_);
                for (const int n : {1, 4}) {
                    const RandomActivations activations(n, GetParam().cols, inputs, random_);
                    expect_equal_bits(matrix, activations, {}, n);
                }
            }
        }
    }
}

/// Puts one code into a field of kTernaryDense, whatever it holds: fields that decode to a code of 3 lose it.
void put_dense_code(std::byte* data, const Matrix& w, int row, int col, int code) {
    const int byte = 4 * (row % 16) + col % 4;
    std::byte* word = data + row / 16 * row_group_bytes(w) + col / 12 * 40 + byte / 8 * 5;
    uint64_t fields = 0;
    std::memcpy(&fields, word, 5);
    const int bit = 5 * (byte % 8);
    const int field = static_cast<int>(fields >> bit & 31);
    int codes[] = {field % 3, field / 3 % 3, field / 9 % 3};
    codes[col % 12 / 4] = code;
    fields &= ~(uint64_t{31} << bit);
    fields |= static_cast<uint64_t>(codes[0] + 3 * codes[1] + 9 * codes[2]) << bit;
    std::memcpy(word, &fields, 5);
}

/// Writes the code of one weight where matrix.hpp says it lies.
void put_code(std::byte* data, const Matrix& w, int row, int col, int code) {
    if (w.layout == Layout::kTernaryDense) return put_dense_code(data, w, row, col, code);
    const int bits = w.layout == Layout::kByte                                     ? 8
                     : w.layout == Layout::kNibble || w.layout == Layout::kNibbleK ? 4
                                                                                   : 2;
    const int block_cols = 32 / bits;
    const int group = w.layout == Layout::kNibbleK ? 256 : w.group != 0 ? w.group : block_cols;
    const int header = w.layout == Layout::kNibbleK ? 320 : w.group != 0 ? 128 : 0;
    const int64_t record = header + group / block_cols * 64;
    const int in_block = col % block_cols;
    std::byte& byte = data[row / 16 * row_group_bytes(w) + col / group * record + header +
                           col % group / block_cols * 64 + 4 * (row % 16) + in_block % 4];
    const int shift = bits * (in_block / 4);
    byte = (byte & ~std::byte(((1 << bits) - 1) << shift)) | std::byte(code << shift);
}

TEST_P(IntegerMatmul, DefinitionAddsTheIntegersOfTheLayoutWhenEveryScaleIsOne) {
    const Shape& shape = GetParam();
    const RandomMatrix random_matrix(shape, Codes::kRandom, Scales::kOne, random_);
    const Matrix& w = random_matrix.matrix();
    auto* data = const_cast<std::byte*>(w.data);
    const bool ternary = shape.layout == Layout::kTernary || shape.layout == Layout::kTernaryBlocks ||
                         shape.layout == Layout::kTernaryDense;
    const int largest = ternary ? 2 : shape.layout == Layout::kByte ? 255 : 15;
    const int zero = ternary ? 1 : shape.layout == Layout::kByte ? shape.offset : 0;
    const int min = ternary ? 0 : shape.layout == Layout::kNibbleK ? -1 : 1;
    RandomActivations activations(1, shape.cols, Inputs::kSmall, random_);
    std::vector<float> expected(static_cast<size_t>(shape.rows));
    for (int row = 0; row < shape.rows; ++row) {
        for (int col = 0; col < shape.cols; ++col) {
            const int code = std::uniform_int_distribution<int>(0, largest)(random_);
            put_code(data, w, row, col, code);
            expected[static_cast<size_t>(row)] += static_cast<float>((code - zero + min) * activations.view().q[col]);
        }
        expected[static_cast<size_t>(row)] *= activations.view().scale[0];
    }
    std::vector<float> out(expected.size());
    scalar::integer_matmul(w, 0, static_cast<int>(round_up(w.rows, 16) / 16), activations.view(), nullptr, 1,
                           out.data(), w.rows);
    EXPECT_EQ(out, expected);
}

std::vector<Shape> shapes() {
    std::vector<Shape> all;
    const auto add = [&all](Layout layout, int group, int offset) {
        all.push_back({layout, group, offset, 16, 16});
        all.push_back({layout, group, offset, 1, 3});
        all.push_back({layout, group, offset, 100, 112});
        all.push_back({layout, group, offset, 48, 512});
        all.push_back({layout, group, offset, 33, 2048});
        all.push_back({layout, group, offset, 71, 1520});
        all.push_back({layout, group, offset, 20, kMaxIntegerCols});
    };
    add(Layout::kTernary, 0, 0);
    all.push_back({Layout::kTernary, 0, 0, 50, 6000});   // AMX: two tiles of tokens
    all.push_back({Layout::kTernary, 0, 0, 50, 11008});  // AMX: one
    add(Layout::kTernaryDense, 0, 0);
    for (const int cols : {1, 4, 5, 12, 13, 24, 40, 60}) all.push_back({Layout::kTernaryDense, 0, 0, 18, cols});
    add(Layout::kTernaryBlocks, 0, 0);
    add(Layout::kNibble, 32, 0);
    add(Layout::kNibble, 64, 0);
    add(Layout::kNibbleK, 0, 0);
    add(Layout::kByte, 16, 128);
    add(Layout::kByte, 32, 32);
    add(Layout::kByte, 32, 0);
    add(Layout::kByte, 16, 255);
    return all;
}

INSTANTIATE_TEST_SUITE_P(Shapes, IntegerMatmul, testing::ValuesIn(shapes()), [](const auto& info) {
    const Shape& s = info.param;
    return std::string(name_of(s.layout)) + std::to_string(s.group) + "Offset" + std::to_string(s.offset) + "Rows" +
           std::to_string(s.rows) + "Cols" + std::to_string(s.cols);
});

}  // namespace
}  // namespace samara::kernels
