// The screen with AVX2: 8 lanes, half a row group, one record of a row. Codes of 2 bits leave room for 42 products in
// an int16; a group has 8.

#include "src/kernels/lanes_avx2.hpp"
#include "src/kernels/screen_rows.hpp"
#include "src/kernels/screen_tables.hpp"

namespace samara::kernels {
namespace {

struct Avx2Screen : Avx2Lanes {
    static Int zero_int() { return _mm256_setzero_si256(); }
    static Int load_int(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
    static Float sqrt(Float a) { return _mm256_sqrt_ps(a); }
    static float sum(Float a) {
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }

    /// kBits bits of every byte, from bit `shift`.
    template <int kBits>
    static Int field(Int bytes, int shift) {
        return _mm256_and_si256(_mm256_srli_epi16(bytes, shift), _mm256_set1_epi8((1 << kBits) - 1));
    }
    static Int double_and_add(Int a, Int b) { return _mm256_add_epi8(_mm256_add_epi8(a, a), b); }
    static Int accumulate(Int sum, Int codes, Int x) { return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x)); }
    static Int finish(Int high, Int low) {
        return _mm256_add_epi32(_mm256_madd_epi16(high, _mm256_set1_epi16(256)),
                                _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
    }
    static Float row_scales(const std::byte* sc, const std::byte* d) {
        uint16_t half;
        std::memcpy(&half, d, sizeof half);
        return _mm256_mul_ps(_mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(half))), load_u8(sc));
    }
    static void prefetch(const std::byte* p) { _mm_prefetch(reinterpret_cast<const char*>(p) + 2048, _MM_HINT_T0); }
    static void fetch(const std::byte* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
};

}  // namespace

constinit const ScreenKernels kAvx2Screen{8, approximate<Avx2Screen>, refine<Avx2Screen>};

}  // namespace samara::kernels
