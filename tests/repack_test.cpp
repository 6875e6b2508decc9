#include "src/formats/repack.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "src/platform/half.hpp"

namespace samara::formats {
namespace {

using kernels::Layout;
using kernels::Matrix;

/// A tensor that owns its bytes.
struct OwnedTensor {
    std::vector<std::byte> data, scales, biases;
    Tensor tensor;

    OwnedTensor(TensorType type, uint64_t cols, uint64_t rows, uint64_t experts) {
        tensor.name = "blk.0.ffn_up_exps.weight";
        tensor.type = type;
        tensor.shape = {cols, rows, experts};
        const TypeTraits& traits = *type_traits(type);
        data.resize(experts * rows * cols / traits.block_weights * traits.block_bytes);
        tensor.data = data;
    }
    OwnedTensor(const OwnedTensor&) = delete;

    void set_scales(std::vector<float> values, std::vector<float> minima = {}) {
        const auto encode = [](const std::vector<float>& floats, std::vector<std::byte>& bytes) {
            bytes.resize(2 * floats.size());
            for (size_t i = 0; i < floats.size(); ++i) {
                const uint16_t bits = float_to_bf16(floats[i]);
                std::memcpy(&bytes[2 * i], &bits, 2);
            }
        };
        encode(values, scales);
        encode(minima, biases);
        tensor.scales = scales;
        tensor.biases = biases;
    }
};

void put_half(std::byte* to, float value) {
    const uint16_t bits = float_to_half(value);
    std::memcpy(to, &bits, 2);
}

/// Byte offsets of the half floats in one block.
std::vector<size_t> half_offsets(TensorType type) {
    switch (type) {
        case TensorType::kQ4_0:
        case TensorType::kQ5_0:
        case TensorType::kQ8_0:
            return {0};
        case TensorType::kQ4_1:
        case TensorType::kQ5_1:
        case TensorType::kQ4_K:
        case TensorType::kQ5_K:
            return {0, 2};
        case TensorType::kQ6_K:
            return {208};
        case TensorType::kTQ1_0:
            return {52};
        case TensorType::kTQ2_0:
            return {64};
        default:
            return {};
    }
}

/// Random bytes everywhere, scales from `scale(row, block, which)`.
void randomise(OwnedTensor& owned, uint32_t seed, const std::function<float(uint64_t, uint64_t, size_t)>& scale) {
    std::mt19937 random(seed);
    for (std::byte& b : owned.data) b = static_cast<std::byte>(random());
    const TypeTraits& traits = *type_traits(owned.tensor.type);
    const uint64_t blocks = owned.tensor.cols() / traits.block_weights;
    const std::vector<size_t> offsets = half_offsets(owned.tensor.type);
    for (uint64_t block = 0; block < owned.data.size() / traits.block_bytes; ++block) {
        for (size_t i = 0; i < offsets.size(); ++i) {
            put_half(&owned.data[block * traits.block_bytes + offsets[i]], scale(block / blocks, block % blocks, i));
        }
    }
}

float random_scale(uint64_t row, uint64_t block, size_t which) {
    return std::ldexp(1.0f + static_cast<float>((row * 37 + block * 11 + which * 5) % 64) / 64.0f, -6) *
           ((row + block) % 3 == 0 ? -1.0f : 1.0f);
}
float row_scale(uint64_t row, uint64_t, size_t) { return random_scale(row, 1, 0); }

struct Repacked {
    Matrix matrix;
    std::vector<std::byte> blob;
    RepackReport report;
};

Repacked repack_slice(const Slice& slice, Role role, Ternarise ternarise = Ternarise::kLossless) {
    Repacked out;
    out.matrix = choose_layout(slice, role, ternarise);
    out.blob.assign(static_cast<size_t>(kernels::matrix_bytes(out.matrix)), std::byte{0xee});
    out.report = repack(slice, out.matrix, out.blob);
    out.matrix.data = out.blob.data();
    return out;
}

uint32_t bits_without_zero_sign(float x) { return x == 0 ? 0 : std::bit_cast<uint32_t>(x); }

/// Every weight of the repacked slice equals dequantise_row, bit for bit but for the sign of zeros.
void expect_same_weights(const Slice& slice, const Repacked& repacked) {
    const uint64_t cols = slice.tensor->cols();
    std::vector<float> expected(cols), found(cols);
    for (uint64_t row = 0; row < slice.rows; ++row) {
        dequantise_row(*slice.tensor, slice.expert, slice.row_begin + row, expected.data());
        dequantise_matrix_row(repacked.matrix, static_cast<int>(row), found.data());
        for (uint64_t c = 0; c < cols; ++c) {
            ASSERT_EQ(bits_without_zero_sign(expected[c]), bits_without_zero_sign(found[c]))
                << "row " << row << " column " << c << ": " << expected[c] << " against " << found[c];
        }
    }
}

struct Case {
    TensorType type;
    Layout layout;
    int group, offset;
};

class QuantisedTypes : public ::testing::TestWithParam<Case> {};

TEST_P(QuantisedTypes, keep_every_weight_in_the_layout_of_their_type) {
    const Case& expected = GetParam();
    OwnedTensor owned(expected.type, 512, 37, 2);
    randomise(owned, 1, random_scale);
    for (const Role role : {Role::kProjection, Role::kHead}) {
        const Slice slice{.tensor = &owned.tensor, .expert = 1, .row_begin = 3, .rows = 21};
        const Repacked repacked = repack_slice(slice, role);
        EXPECT_EQ(repacked.matrix.layout, expected.layout);
        EXPECT_EQ(repacked.matrix.group, expected.group);
        EXPECT_EQ(repacked.matrix.offset, expected.offset);
        EXPECT_EQ(repacked.matrix.rows, 21);
        EXPECT_EQ(repacked.matrix.cols, 512);
        expect_same_weights(slice, repacked);
    }
}

TEST_P(QuantisedTypes, give_the_same_blob_whatever_was_in_the_buffer) {
    OwnedTensor owned(GetParam().type, 256, 17, 1);
    randomise(owned, 2, random_scale);
    const Slice slice{.tensor = &owned.tensor, .rows = 17};
    const Repacked first = repack_slice(slice, Role::kHead);
    std::vector<std::byte> second(first.blob.size(), std::byte{0x11});
    repack(slice, first.matrix, second);
    EXPECT_EQ(first.blob, second);
}

TEST_P(QuantisedTypes, refuse_a_scale_that_is_not_finite_and_name_its_place) {
    const TensorType type = GetParam().type;
    const TypeTraits& traits = *type_traits(type);
    for (const size_t offset : half_offsets(type)) {
        OwnedTensor owned(type, 512, 4, 2);
        randomise(owned, 3, random_scale);
        const uint64_t blocks = 512 / traits.block_weights;
        const uint64_t block = (4 + 2) * blocks + blocks / 2;  // expert 1, row 2, column 256
        put_half(&owned.data[block * traits.block_bytes + offset], offset % 4 == 0 ? INFINITY : NAN);
        const Slice slice{.tensor = &owned.tensor, .expert = 1, .row_begin = 1, .rows = 3};
        try {
            repack_slice(slice, Role::kProjection);
            ADD_FAILURE() << "accepted";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kFormat);
            EXPECT_NE(std::string(error.what()).find("'blk.0.ffn_up_exps.weight', expert 1, row 2, column 256"),
                      std::string::npos)
                << error.what();
        }
    }
}

TEST_P(QuantisedTypes, become_ternary_by_force_with_the_error_reported) {
    OwnedTensor owned(GetParam().type, 512, 5, 1);
    randomise(owned, 4, random_scale);
    const Slice slice{.tensor = &owned.tensor, .rows = 5};
    const Repacked repacked = repack_slice(slice, Role::kProjection, Ternarise::kForce);
    if (GetParam().layout == Layout::kTernaryBlocks) {
        EXPECT_EQ(repacked.matrix.layout, Layout::kTernaryBlocks);  // ternary as it is
        return;
    }
    EXPECT_EQ(repacked.matrix.layout, Layout::kTernary);
    EXPECT_GT(repacked.report.squared_norm, 0);
    EXPECT_GT(repacked.report.squared_error, 0);
    EXPECT_EQ(repack_slice(slice, Role::kHead, Ternarise::kForce).matrix.layout, GetParam().layout);
}

INSTANTIATE_TEST_SUITE_P(
    repack, QuantisedTypes,
    ::testing::Values(Case{TensorType::kTQ1_0, Layout::kTernaryBlocks, 0, 0},
                      Case{TensorType::kTQ2_0, Layout::kTernaryBlocks, 0, 0},
                      Case{TensorType::kQ4_0, Layout::kNibble, 32, 0}, Case{TensorType::kQ4_1, Layout::kNibble, 32, 0},
                      Case{TensorType::kQ5_0, Layout::kByte, 32, 16}, Case{TensorType::kQ5_1, Layout::kByte, 32, 0},
                      Case{TensorType::kQ8_0, Layout::kByte, 32, 128}, Case{TensorType::kQ4_K, Layout::kNibbleK, 0, 0},
                      Case{TensorType::kQ5_K, Layout::kByte, 32, 0}, Case{TensorType::kQ6_K, Layout::kByte, 16, 32}),
    [](const auto& info) { return std::string(type_traits(info.param.type)->name); });

class TernaryTypes : public ::testing::TestWithParam<TensorType> {};

TEST_P(TernaryTypes, with_one_scale_a_row_become_row_ternary) {
    OwnedTensor owned(GetParam(), 768, 37, 2);
    randomise(owned, 5, row_scale);
    const Slice slice{.tensor = &owned.tensor, .expert = 1, .row_begin = 3, .rows = 33};
    const Repacked repacked = repack_slice(slice, Role::kProjection);
    EXPECT_EQ(repacked.matrix.layout, Layout::kTernary);
    expect_same_weights(slice, repacked);
}

TEST_P(TernaryTypes, treat_a_block_of_zeros_as_fitting_any_scale) {
    OwnedTensor owned(GetParam(), 512, 2, 1);
    randomise(owned, 6, row_scale);
    const TypeTraits& traits = *type_traits(GetParam());
    const std::byte zeros = GetParam() == TensorType::kTQ2_0 ? std::byte{0x55} : std::byte{0x80};  // all trits 1
    std::fill_n(owned.data.begin(), traits.block_bytes, zeros);
    put_half(&owned.data[half_offsets(GetParam())[0]], 0.0f);
    const Slice slice{.tensor = &owned.tensor, .rows = 2};
    const Repacked repacked = repack_slice(slice, Role::kProjection);
    EXPECT_EQ(repacked.matrix.layout, Layout::kTernary);
    expect_same_weights(slice, repacked);
}

INSTANTIATE_TEST_SUITE_P(repack, TernaryTypes, ::testing::Values(TensorType::kTQ1_0, TensorType::kTQ2_0),
                         [](const auto& info) { return std::string(type_traits(info.param)->name); });

TEST(Repack, lays_ternary_codes_as_the_layout_says) {
    OwnedTensor owned(TensorType::kTQ2_0, 256, 3, 1);
    randomise(owned, 7, row_scale);
    const Repacked repacked = repack_slice({.tensor = &owned.tensor, .rows = 3}, Role::kProjection);
    for (int r = 0; r < 3; ++r) {
        for (int c = 0; c < 256; ++c) {
            const auto source = owned.data[static_cast<size_t>(r * 66 + c / 128 * 32 + c % 32)];
            const int expected = (static_cast<int>(source) >> (c % 128 / 32 * 2)) & 3;
            const auto byte = repacked.blob[static_cast<size_t>(c / 16 * 64 + 4 * r + c % 4)];
            ASSERT_EQ((static_cast<int>(byte) >> (c % 16 / 4 * 2)) & 3, expected) << "row " << r << " column " << c;
        }
    }
    EXPECT_EQ(static_cast<int>(repacked.blob[4 * 3]), 0x55);  // a padding row holds code 1
}

TEST(Repack, counts_ternary_codes_outside_their_range) {
    OwnedTensor owned(TensorType::kTQ2_0, 256, 2, 1);
    randomise(owned, 8, row_scale);
    for (size_t i = 0; i < 132; ++i) {
        if (i % 66 < 64) owned.data[i] = std::byte{0x55};
    }
    owned.data[66] = std::byte{0xdd};  // two codes 3
    const Slice slice{.tensor = &owned.tensor, .rows = 2};
    const Repacked repacked = repack_slice(slice, Role::kProjection);
    EXPECT_EQ(repacked.report.code3, 2u);
    expect_same_weights(slice, repacked);
}

/// `codes` of 2 bits: random in {0,1,2}.
void random_mlx2_codes(OwnedTensor& owned, uint32_t seed) {
    std::mt19937 random(seed);
    for (std::byte& b : owned.data) {
        unsigned byte = 0;
        for (int i = 0; i < 4; ++i) byte = byte << 2 | random() % 3;
        b = static_cast<std::byte>(byte);
    }
}

TEST(Repack, keeps_mlx_ternary_with_row_scales) {
    OwnedTensor owned(TensorType::kMlx2Row, 48, 5, 2);
    random_mlx2_codes(owned, 9);
    std::vector<float> alpha;
    for (uint64_t row = 0; row < 10; ++row) alpha.push_back(random_scale(row, 0, 0));
    owned.set_scales(alpha);
    const Slice slice{.tensor = &owned.tensor, .expert = 1, .rows = 5};
    const Repacked repacked = repack_slice(slice, Role::kProjection);
    EXPECT_EQ(repacked.matrix.layout, Layout::kTernary);
    expect_same_weights(slice, repacked);
}

struct GroupCase {
    const char* name;
    std::function<float(uint64_t row, uint64_t group)> scale;
    bool symmetric;  // bias = -scale
    Layout layout;
    int offset;
};

TEST(Repack, chooses_the_narrowest_layout_for_mlx_group_scales) {
    const std::vector<GroupCase> cases{
        {"row", [](uint64_t row, uint64_t) { return random_scale(row, 0, 0); }, true, Layout::kTernary, 0},
        {"block", [](uint64_t row, uint64_t g) { return random_scale(row, g / 2, 0); }, true, Layout::kTernaryBlocks,
         0},
        {"group", [](uint64_t row, uint64_t g) { return random_scale(row, g, 0); }, true, Layout::kByte, 1},
        {"affine", [](uint64_t row, uint64_t g) { return random_scale(row, g, 0); }, false, Layout::kByte, 0},
    };
    for (const GroupCase& c : cases) {
        SCOPED_TRACE(c.name);
        OwnedTensor owned(TensorType::kMlx2Group, 640, 20, 1);
        random_mlx2_codes(owned, 10);
        std::vector<float> scales, biases;
        for (uint64_t row = 0; row < 20; ++row) {
            for (uint64_t g = 0; g < 5; ++g) {
                scales.push_back(c.scale(row, g));
                biases.push_back(c.symmetric ? -scales.back() : 0.75f * scales.back());
            }
        }
        owned.set_scales(scales, biases);
        const Slice slice{.tensor = &owned.tensor, .rows = 20};
        const Repacked repacked = repack_slice(slice, Role::kProjection);
        EXPECT_EQ(repacked.matrix.layout, c.layout);
        EXPECT_EQ(repacked.matrix.offset, c.offset);
        expect_same_weights(slice, repacked);
    }
}

TEST(Repack, keeps_mlx_four_bit_groups) {
    OwnedTensor owned(TensorType::kMlx4Group, 128, 19, 1);
    std::mt19937 random(11);
    for (std::byte& b : owned.data) b = static_cast<std::byte>(random());
    std::vector<float> scales, biases;
    for (uint64_t i = 0; i < 38; ++i) {
        scales.push_back(random_scale(i, 0, 0));
        biases.push_back(random_scale(i, 1, 1));
    }
    owned.set_scales(scales, biases);
    const Slice slice{.tensor = &owned.tensor, .rows = 19};
    const Repacked repacked = repack_slice(slice, Role::kHead);
    EXPECT_EQ(repacked.matrix.layout, Layout::kNibble);
    EXPECT_EQ(repacked.matrix.group, 64);
    expect_same_weights(slice, repacked);
}

void put_float(OwnedTensor& owned, uint64_t index, float value) {
    switch (owned.tensor.type) {
        case TensorType::kF32:
            std::memcpy(&owned.data[4 * index], &value, 4);
            return;
        case TensorType::kF16:
            return put_half(&owned.data[2 * index], value);
        default: {
            const uint16_t bits = float_to_bf16(value);
            std::memcpy(&owned.data[2 * index], &bits, 2);
        }
    }
}

struct FloatCase {
    TensorType type;
    Layout layout;
};
class FloatTypes : public ::testing::TestWithParam<FloatCase> {
  protected:
    /// Ternary rows with a scale each and a stored -0; row 2 is all zeros.
    static void fill_ternary(OwnedTensor& owned) {
        std::mt19937 random(12);
        for (uint64_t i = 0; i < owned.tensor.elements(); ++i) {
            const uint64_t row = i / owned.tensor.cols();
            const float code = row == 2 ? 0.0f : static_cast<float>(static_cast<int>(random() % 3) - 1);
            put_float(owned, i, code * std::fabs(random_scale(row, 0, 0)));
        }
        put_float(owned, 1, -0.0f);
    }
};

TEST_P(FloatTypes, with_ternary_rows_become_ternary_only_as_projections) {
    OwnedTensor owned(GetParam().type, 75, 21, 1);
    fill_ternary(owned);
    const Slice slice{.tensor = &owned.tensor, .rows = 21};
    const Repacked projection = repack_slice(slice, Role::kProjection);
    EXPECT_EQ(projection.matrix.layout, Layout::kTernary);
    expect_same_weights(slice, projection);
    const Repacked head = repack_slice(slice, Role::kHead);
    EXPECT_EQ(head.matrix.layout, GetParam().layout);
    expect_same_weights(slice, head);
}

TEST_P(FloatTypes, with_one_other_value_stay_floats_unless_forced) {
    OwnedTensor owned(GetParam().type, 75, 21, 1);
    fill_ternary(owned);
    put_float(owned, 20 * 75 + 74, 3.0f);
    const Slice slice{.tensor = &owned.tensor, .rows = 21};
    const Repacked lossless = repack_slice(slice, Role::kProjection);
    EXPECT_EQ(lossless.matrix.layout, GetParam().layout);
    expect_same_weights(slice, lossless);

    const Repacked forced = repack_slice(slice, Role::kProjection, Ternarise::kForce);
    EXPECT_EQ(forced.matrix.layout, Layout::kTernary);
    std::vector<float> expected(75), found(75);
    dequantise_row(owned.tensor, 0, 20, expected.data());
    dequantise_matrix_row(forced.matrix, 20, found.data());
    double mean = 0, error = 0, norm = 0;
    for (const float x : expected) mean += std::fabs(static_cast<double>(x)) / 75;
    for (size_t c = 0; c < 75; ++c) {
        EXPECT_NEAR(std::fabs(found[c]), found[c] == 0 ? 0 : mean, 1e-6);
        error += std::pow(static_cast<double>(expected[c]) - found[c], 2);
        norm += std::pow(static_cast<double>(expected[c]), 2);
    }
    EXPECT_NEAR(forced.report.squared_error, error, 1e-6);  // the other rows are ternary and add nothing
    EXPECT_NEAR(forced.report.squared_norm, norm, 1e-6);
}

TEST_P(FloatTypes, refuse_weights_that_are_not_finite_in_every_role) {
    for (const Role role : {Role::kProjection, Role::kHead, Role::kRouter}) {
        OwnedTensor owned(GetParam().type, 75, 4, 1);
        fill_ternary(owned);
        put_float(owned, 3 * 75 + 8, NAN);
        try {
            choose_layout({.tensor = &owned.tensor, .rows = 4}, role);
            ADD_FAILURE() << "accepted";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kFormat);
            EXPECT_NE(std::string(error.what()).find("row 3, column 8"), std::string::npos) << error.what();
        }
    }
}

TEST_P(FloatTypes, keep_a_router_exact_in_bf16_or_else_f32) {
    OwnedTensor owned(GetParam().type, 75, 21, 1);
    fill_ternary(owned);  // seven significant bits: BF16 holds them
    const Slice slice{.tensor = &owned.tensor, .rows = 21};
    const Repacked narrow = repack_slice(slice, Role::kRouter);
    EXPECT_EQ(narrow.matrix.layout, Layout::kBfloat16);
    expect_same_weights(slice, narrow);
    if (GetParam().type == TensorType::kBF16) return;
    put_float(owned, 100, 1.0f + 1.0f / 1024);
    const Repacked wide = repack_slice(slice, Role::kRouter);
    EXPECT_EQ(wide.matrix.layout, Layout::kFloat32);
    expect_same_weights(slice, wide);
}

INSTANTIATE_TEST_SUITE_P(repack, FloatTypes,
                         ::testing::Values(FloatCase{TensorType::kF32, Layout::kFloat32},
                                           FloatCase{TensorType::kF16, Layout::kFloat16},
                                           FloatCase{TensorType::kBF16, Layout::kBfloat16}),
                         [](const auto& info) { return std::string(type_traits(info.param.type)->name); });

TEST(Repack, gives_the_experts_of_a_layer_the_layout_that_holds_them_all) {
    OwnedTensor owned(TensorType::kTQ2_0, 512, 4, 3);
    randomise(owned, 13, [](uint64_t row, uint64_t block, size_t which) {
        return row == 9 ? random_scale(row, block, which) : row_scale(row, block, which);
    });
    std::vector<Slice> slices;
    for (uint64_t e = 0; e < 3; ++e) slices.push_back({.tensor = &owned.tensor, .expert = e, .rows = 4});
    EXPECT_EQ(choose_layout(slices[0], Role::kProjection).layout, Layout::kTernary);
    const Matrix common = choose_layout(slices, Role::kProjection);
    EXPECT_EQ(common.layout, Layout::kTernaryBlocks);
    for (const Slice& slice : slices) {
        Repacked repacked{.matrix = common, .blob = {}, .report = {}};
        repacked.blob.resize(static_cast<size_t>(kernels::matrix_bytes(common)));
        repack(slice, common, repacked.blob);
        repacked.matrix.data = repacked.blob.data();
        expect_same_weights(slice, repacked);
    }
}

TEST(Repack, reads_experts_stored_piece_by_piece) {
    OwnedTensor owned(TensorType::kBF16, 32, 6, 3);
    for (uint64_t i = 0; i < owned.tensor.elements(); ++i) put_float(owned, i, random_scale(i, 0, 0));
    Tensor pieces = owned.tensor;
    pieces.data = {};
    for (size_t e = 0; e < 3; ++e) pieces.pieces.push_back(std::span(owned.data).subspan(e * 384, 384));
    for (uint64_t e = 0; e < 3; ++e) {
        const Repacked whole = repack_slice({.tensor = &owned.tensor, .expert = e, .rows = 6}, Role::kProjection);
        const Repacked piece = repack_slice({.tensor = &pieces, .expert = e, .rows = 6}, Role::kProjection);
        EXPECT_EQ(whole.blob, piece.blob);
    }
}

TEST(Repack, refuses_a_tensor_shorter_than_its_shape) {
    OwnedTensor owned(TensorType::kQ8_0, 64, 4, 1);
    owned.tensor.data = owned.tensor.data.first(owned.data.size() - 1);
    EXPECT_THROW(repack_slice({.tensor = &owned.tensor, .rows = 4}, Role::kHead), Error);
}

TEST(Repack, refuses_types_that_are_no_weights) {
    OwnedTensor owned(TensorType::kI32, 64, 4, 1);
    EXPECT_THROW(choose_layout({.tensor = &owned.tensor, .rows = 4}, Role::kHead), Error);
}

}  // namespace
}  // namespace samara::formats
