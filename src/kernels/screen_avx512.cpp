// The screen with AVX-512 VNNI: 16 lanes, two records of a row at once.

#include "src/kernels/lanes_avx512.hpp"
#include "src/kernels/screen_rows.hpp"
#include "src/kernels/screen_tables.hpp"

namespace samara::kernels {
namespace {

struct Avx512Screen : Avx512Lanes {
    static Int zero_int() { return _mm512_setzero_si512(); }
    static Int load_int(const void* p) { return _mm512_loadu_si512(p); }
    static Float sqrt(Float a) { return _mm512_sqrt_ps(a); }
    static float sum(Float a) { return _mm512_reduce_add_ps(a); }

    /// kBits bits of every byte, from bit `shift`.
    template <int kBits>
    static Int field(Int bytes, int shift) {
        return _mm512_and_si512(_mm512_srli_epi16(bytes, static_cast<unsigned>(shift)),
                                _mm512_set1_epi8((1 << kBits) - 1));
    }
    static Int double_and_add(Int a, Int b) { return _mm512_add_epi8(_mm512_add_epi8(a, a), b); }
    static Int accumulate(Int sum, Int codes, Int x) { return _mm512_dpbusd_epi32(sum, codes, x); }
    static Int finish(Int high, Int low) { return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low); }
    static Float row_scales(const std::byte* sc, const std::byte* d) {
        int32_t two;
        std::memcpy(&two, d, sizeof two);
        const __m512 both = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128(two)));
        const Int index = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
        return _mm512_mul_ps(_mm512_permutexvar_ps(index, both), load_u8(sc));
    }
    static void prefetch(const std::byte* p) { _mm_prefetch(reinterpret_cast<const char*>(p) + 8192, _MM_HINT_T1); }
    static void fetch(const std::byte* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
};

}  // namespace

constinit const ScreenKernels kAvx512Screen{16, approximate<Avx512Screen>, refine<Avx512Screen>};

}  // namespace samara::kernels
