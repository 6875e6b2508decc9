#pragma once
// The numerics of Samara. The scalar set is the definition; every other set gives the same bits (tests/kernels_*).
// docs/numerics.md states each operation as a formula. A token's result depends on that token alone.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "src/kernels/matrix.hpp"

namespace samara::kernels {

/// Grows whenever any kernel gives other bits for the same input. Stored in packed files and beside committed hashes.
inline constexpr uint32_t kNumericsVersion = 2;

inline constexpr int kActivationMax = 32639;   // 127*256 + 127: what two int8 planes hold
inline constexpr int kMaxIntegerCols = 32896;  // 2*32639*32896 < 2^31
inline constexpr int kKeyBlock = 64;           // attention walks blocks of this many keys at absolute positions

/// Activations of `n` tokens entering a matmul. float layouts read x; integer layouts read the rest. Not owned.
/// q = round_half_even(x * (32639 / absmax)) = 256*high + low; weights meet q and the result is multiplied by scale.
struct Activations {
    int n = 0;                        // tokens
    int cols = 0;                     // inputs
    int64_t stride = 0;               // elements between tokens in x, q, high, low: cols rounded up to 256
    const float* x = nullptr;         // (n, stride)
    const int16_t* q = nullptr;       // (n, stride), zero beyond cols
    const int8_t* high = nullptr;     // (n, stride)
    const int8_t* low = nullptr;      // (n, stride)
    const float* scale = nullptr;     // (n): absmax / 32639, or 0 for a zero vector
    const int32_t* sum = nullptr;     // (n): sum of q
    const int32_t* sums16 = nullptr;  // (n, stride/16): sum of q over each 16 columns
};

/// Where `quantise` writes one token. Pointers may be null in groups: planes (high and low) and sums.
struct QuantisedRow {
    int16_t* q = nullptr;
    int8_t* high = nullptr;
    int8_t* low = nullptr;
    int32_t* sums16 = nullptr;
    float* scale = nullptr;
    int32_t* sum = nullptr;
};

/// The integers that keys and values are kept as.
enum class KvType : uint8_t { kInt16, kInt8 };
constexpr int kv_bytes(KvType type) { return type == KvType::kInt8 ? 1 : 2; }

/// Keys and values of one KV head for 64 consecutive positions. Vectors are integers with one scale each.
struct KvBlock {
    const void* k = nullptr;         // (64, head_dim), of `type`
    const void* v = nullptr;         // (64, head_dim)
    const float* k_scale = nullptr;  // (64)
    const float* v_scale = nullptr;  // (64)
    int64_t next = 0;                // bytes from each of these to its like in the block that is read next; 0: none
    KvType type = KvType::kInt16;
};

/// Attention over one block, before merging: max of the scores, sum of exp(score - max), weighted sum of values.
struct BlockResult {
    float* max = nullptr;  // (heads)
    float* sum = nullptr;  // (heads)
    float* out = nullptr;  // (heads, head_dim)
};

inline constexpr int kQueryRows = 64;  // query rows that attend_rows takes together, a multiple of 16

/// Query rows that share a KV head: heads of neighbouring tokens of one sequence. Padded to kQueryRows. Not owned.
struct QueryRows {
    int count = 0;                 // rows in use, 1 to kQueryRows
    const float* q = nullptr;      // (16, head_dim/16, kQueryRows): [p][i] is dimension 16*i + p
    const float* begin = nullptr;  // (kQueryRows): row r sees keys [begin, end) of the block, whole numbers in 0..64;
    const float* end = nullptr;    // (kQueryRows)   begin >= end: none
    float* max = nullptr;          // (kQueryRows): before the first block -inf
    float* sum = nullptr;          // (kQueryRows): before the first block 0
    float* out = nullptr;          // (kQueryRows, head_dim): before the first block 0
    float* scratch = nullptr;      // attend_rows_scratch(head_dim)
};
/// Floats: keys, 64 columns of values, scores.
constexpr int64_t attend_rows_scratch(int head_dim) { return int64_t{kKeyBlock} * (head_dim + 64 + kQueryRows); }

/// One instruction set's kernels. All functions are pure, thread-safe and allocate nothing.
struct KernelTable {
    std::string_view name;  // as isa_name gives it

    /// out[i*out_stride + r] = row r of `w` times token t, for r in row groups [group_begin, group_end) (16 rows each,
    /// rows beyond w.rows are not written) and i in [0, n), t = tokens ? tokens[i] : i. Weights are read once for all
    /// n tokens. Precondition: a.cols == w.cols; integer layouts need cols <= kMaxIntegerCols.
    void (*matmul)(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                   float* out, int64_t out_stride);

    /// Quantises x[cols] to q[stride] (zero padded), planes and sums. Returns false, with scale and q unspecified, when
    /// a value is not finite. absmax below 1e-30 counts as a zero vector.
    bool (*quantise)(const float* x, int cols, int64_t stride, const QuantisedRow& out);

    /// Quantises x[n] to 8 bits, n a multiple of 16: q = round(x * (127 / absmax)), scale = absmax / 127, and otherwise
    /// as `quantise`.
    bool (*quantise_bytes)(const float* x, int n, int8_t* q, float* scale);

    /// out[i] = fma(-scale, q[i], x[i]): what `quantise` rounded away. q must be readable up to a multiple of 16.
    void (*remainder)(const float* x, const int16_t* q, float scale, int n, float* out);

    /// out[i] = (x[i] * (1/sqrt(mean(x^2) + eps))) * weight[i], the sum of squares in dot order. x may equal out.
    void (*rms_norm)(const float* x, const float* weight, int n, float eps, float* out);

    /// out[i] += x[i].
    void (*add)(const float* x, int n, float* out);

    /// out[i] = fma(weight, x[i], out[i]).
    void (*add_scaled)(const float* x, float weight, int n, float* out);

    /// out[i] = silu(min(gate[i], limit)) * clamp(up[i], -limit, limit), silu(g) = g / (1 + exp(-g)). limit may be
    /// +inf.
    void (*swiglu)(const float* gate, const float* up, int n, float limit, float* out);

    /// Rotates x in place: half-split pairs (i, i + pairs) or, when interleaved, (2i, 2i+1), i in [0, pairs).
    /// a' = fma(a, cos, -(b*sin)), b' = fma(b, cos, a*sin).
    void (*rope)(float* x, const float* cos, const float* sin, int pairs, bool interleaved);

    /// Scores of `heads` query heads against keys [begin, end) of one block, 0 <= begin < end <= 64, and their
    /// weighted values: s_j = dot(q, k_j) * (k_scale_j * scale); p_j = exp(s_j - max); sum += p_j and
    /// out = fma(p_j * v_scale_j, v_j, out) from 0, keys in ascending order. head_dim is a multiple of 16. The block's
    /// 64 positions must be readable; those outside [begin, end) never count.
    void (*attend_block)(const float* q, int heads, int head_dim, float scale, const KvBlock& block, int begin, int end,
                         const BlockResult& out);

    /// attend_block for many rows, each over its own keys of one block, merged into rows.max, sum and out as
    /// merge_blocks does: the same bits. [begin, end) spans the keys that any row sees, all of them written. Rows of
    /// padding must be readable and finite.
    void (*attend_rows)(const QueryRows& rows, int head_dim, float scale, const KvBlock& block, int begin, int end);

    /// Merges `next` into `acc` (earlier positions): m = max; sum = fma(sum_a, e_a, sum_n*e_n) with e = exp(old - m),
    /// out alike.
    void (*merge_blocks)(const BlockResult& acc, const BlockResult& next, int heads, int head_dim);

    /// out[h*head_dim + d] = acc.out / acc.sum.
    void (*finish_attention)(const BlockResult& acc, int heads, int head_dim, float* out);

    /// The one exponential (relative error below 2e-7 on [-87, 88]; 0 below -87.33, never NaN for finite input).
    void (*exp)(const float* x, int n, float* out);
};

/// The dot order of the numerics contract on float32: 16 strided partial sums with fma, then the tree 8, 4, 2, 1.
float dot_definition(const float* a, const float* b, int n);

/// Cosines and sines for one position: angle = position * theta^(-2i/dims), i in [0, dims/2), own double arithmetic
/// (no libm), rounded once to float32. `inverse_frequencies` holds theta^(-2i/dims).
std::vector<double> rope_inverse_frequencies(double theta, int dims);
void rope_angles(int64_t position, std::span<const double> inverse_frequencies, float* cos, float* sin);

/// Router choice for one token: the k largest logits, ties to the lower index, in descending order; weights are their
/// softmax renormalised to sum 1. Throws nothing; logits must be finite.
void route(const float* logits, int experts, int k, uint16_t* chosen, float* weights);

enum class Isa { kScalar, kAvx2, kAvx512, kAmx, kNeon, kNeonDot, kNeonI8mm };
/// The sets this build contains and this CPU can run, slowest first. kScalar is always there.
std::vector<Isa> supported_isas();
/// The kernels of `isa`. Throws Error(kUnsupported) naming the missing CPU features when this CPU lacks them.
const KernelTable& kernel_table(Isa isa);
/// Parses "scalar", "avx2", "avx512", "amx", "neon", "neon-dot", "neon-i8mm" or "auto" (the fastest supported). Throws
/// Error(kInvalidArgument).
Isa parse_isa(std::string_view name);
std::string_view isa_name(Isa isa);

/// kTernaryDense where this CPU decodes it at the memory's speed, else kTernary.
Layout fastest_ternary_layout();

}  // namespace samara::kernels
