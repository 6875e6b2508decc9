#include "src/kernels/dense_layout.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "src/kernels/matrix.hpp"

namespace samara::kernels {
namespace {

constexpr int kBlock = 64;      // bytes of a block of kTernary
constexpr int kWords = 8;       // of 8 bytes in it: each comes from 40 bits of a dense block
constexpr int kQuad = 4;        // columns that a byte's neighbours hold: bit pair p is quad p of the block
constexpr int kDenseQuads = 3;  // in a dense block
constexpr uint64_t kAllBytes = 0x0101010101010101u;

/// The codes of a field as bit pairs of a byte.
constexpr unsigned codes_of(unsigned field) { return field % 3 | field / 3 % 3 << 2 | field / 9 << 4; }

/// Two fields at once: 10 bits to 2 bytes.
constexpr std::array<uint16_t, 1024> kPairs = [] {
    std::array<uint16_t, 1024> pairs{};
    for (unsigned i = 0; i < pairs.size(); ++i)
        pairs[i] = static_cast<uint16_t>(codes_of(i & 31) | codes_of(i >> 5) << 8);
    return pairs;
}();

/// Word `word` of dense block `block`, or zeros beyond the last.
uint64_t decode(const std::byte* dense, int block, int blocks, int word) {
    if (block >= blocks) return 0;
    uint64_t fields = 0;
    std::memcpy(&fields, dense + block * kDenseBlockBytes + 5 * word, 5);
    return uint64_t{kPairs[fields & 1023]} | uint64_t{kPairs[fields >> 10 & 1023]} << 16 |
           uint64_t{kPairs[fields >> 20 & 1023]} << 32 | uint64_t{kPairs[fields >> 30]} << 48;
}

}  // namespace

void unpack_dense_group(const std::byte* dense, int cols, std::byte* blocks) {
    const int in_blocks = (cols + kDenseCols - 1) / kDenseCols;
    const int out_blocks = (cols + 15) / 16;
    // Four dense blocks are twelve quads, which are three blocks.
    for (int in = 0, out = 0; out < out_blocks; in += 4, out += 3) {
        for (int word = 0; word < kWords; ++word) {
            uint64_t d[4];
            for (int b = 0; b < 4; ++b) d[b] = decode(dense, in + b, in_blocks, word);
            const uint64_t to[3] = {d[0] | (d[1] & 3 * kAllBytes) << 6,
                                    (d[1] >> 2 & 15 * kAllBytes) | (d[2] & 15 * kAllBytes) << 4,
                                    (d[2] >> 4 & 3 * kAllBytes) | d[3] << 2};
            const int count = std::min(3, out_blocks - out);
            for (int b = 0; b < count; ++b) std::memcpy(blocks + (out + b) * kBlock + 8 * word, &to[b], 8);
        }
    }
}

bool pack_dense_group(const std::byte* blocks, int cols, std::byte* dense) {
    const int in_blocks = (cols + kDenseCols - 1) / kDenseCols;
    unsigned largest = 0;
    for (int block = 0; block < in_blocks; ++block) {
        for (int word = 0; word < kWords; ++word) {
            uint64_t packed = 0;
            for (int i = 0; i < 8; ++i) {
                unsigned field = 0;
                for (int p = kDenseQuads - 1; p >= 0; --p) {
                    const int quad = kDenseQuads * block + p;
                    unsigned code = 1;
                    if (kQuad * quad + i % kQuad < cols) {
                        const std::byte byte = blocks[quad / 4 * kBlock + 8 * word + i];
                        code = std::to_integer<unsigned>(byte) >> (2 * (quad % 4)) & 3;
                    }
                    largest = std::max(largest, code);
                    field = 3 * field + code;
                }
                packed |= uint64_t{field & 31} << (5 * i);
            }
            std::memcpy(dense + block * kDenseBlockBytes + 5 * word, &packed, 5);
        }
    }
    return largest < 3;
}

}  // namespace samara::kernels
