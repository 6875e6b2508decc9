#include "src/kernels/screen.hpp"

#include <algorithm>
#include <cstring>

#include "src/kernels/screen_tables.hpp"

namespace samara::kernels {

void ScreenInput::reserve(int cols) {
    const auto padded = static_cast<size_t>(round_up(cols, 512));
    high.resize(padded);
    low.resize(padded);
    sums.resize(padded / 32);
    squares.resize(padded / 32);
}

void ScreenInput::fill(const Activations& activations, int lanes) {
    a = &activations;
    scale = activations.scale[0];
    const auto groups = static_cast<int64_t>(sums.size());
    const int64_t known = round_up(activations.cols, 256) / 32;
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t chunk = g / lanes, lane = g % lanes;
        double square = 0;
        int64_t sum = 0;
        for (int s = 0; s < 8; ++s) {
            const int64_t to = (chunk * 8 + s) * 4 * lanes + 4 * lane;
            if (g >= known) {
                std::memset(high.data() + to, 0, 4);
                std::memset(low.data() + to, 0, 4);
                continue;
            }
            const int64_t from = 32 * g + 4 * s;
            std::memcpy(high.data() + to, activations.high + from, 4);
            std::memcpy(low.data() + to, activations.low + from, 4);
            for (int j = 0; j < 4; ++j) {
                const int64_t q = activations.q[from + j];
                sum += q;
                square += static_cast<double>(q * q);
            }
        }
        sums[static_cast<size_t>(g)] = static_cast<float>(sum);
        squares[static_cast<size_t>(g)] = static_cast<float>(square);
    }
}

const ScreenKernels* screen_kernels([[maybe_unused]] std::string_view isa) {
#ifdef SAMARA_X86
    if (isa == "avx2") return &kAvx2Screen;
    if (isa == "avx512" || isa == "amx") return &kAvx512Screen;
#endif
    return nullptr;
}

void split_row_group(const std::byte* nibble_k, const Matrix& to, int group, std::byte* out) {
    constexpr int kHeader = 320;
    const SplitPlanes planes = split_planes(to);
    std::byte* high = out + group * row_group_bytes(to);
    std::byte* third = out + planes.third + int64_t{group} * kRowGroup * planes.third_row;
    std::byte* last = out + planes.last + int64_t{group} * kRowGroup * planes.last_row;
    std::memset(third, 0, static_cast<size_t>(kRowGroup * planes.third_row));
    std::memset(last, 0, static_cast<size_t>(kRowGroup * planes.last_row));
    for (int64_t record = 0; record < planes.records; ++record) {
        std::memcpy(high, nibble_k, kHeader);
        for (int r = 0; r < kRowGroup; ++r) {
            std::byte* scales = third + r * planes.third_row + planes.pairs * 64;
            for (int g = 0; g < 8; ++g) scales[record * 8 + g] = nibble_k[64 + 16 * g + r];
            std::memcpy(scales + planes.pairs * 16 + record * 2, nibble_k + 2 * r, 2);
        }
        high += kHeader;
        nibble_k += kHeader;
        for (int g = 0; g < 8; ++g, high += 128, nibble_k += 256) {
            for (int r = 0; r < kRowGroup; ++r) {
                uint32_t top[2] = {0, 0}, bit1 = 0, bit0 = 0;
                for (int b = 0; b < 4; ++b) {
                    uint32_t word = 0;
                    std::memcpy(&word, nibble_k + 64 * b + 4 * r, 4);
                    const uint32_t even = word & 0x0f0f0f0f, odd = word >> 4 & 0x0f0f0f0f;
                    const uint32_t two = (even >> 2 & 0x03030303) | (odd & 0x0c0c0c0c);
                    top[b / 2] |= two << (4 * (b % 2));
                    bit1 |= ((even >> 1 & 0x01010101) | (odd & 0x02020202)) << (2 * b);
                    bit0 |= ((even & 0x01010101) | (odd & 0x01010101) << 1) << (2 * b);
                }
                std::memcpy(high + 4 * r, &top[0], 4);
                std::memcpy(high + 64 + 4 * r, &top[1], 4);
                std::memcpy(third + r * planes.third_row + record * 32 + 4 * g, &bit1, 4);
                std::memcpy(last + r * planes.last_row + record * 32 + 4 * g, &bit0, 4);
            }
        }
    }
}

}  // namespace samara::kernels
