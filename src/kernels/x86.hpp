#pragma once
// The x86 intrinsics. With SAMARA_EMULATE_AVX512 (tests only) the AVX-512 ones run on AVX2, so that a CPU without
// AVX-512 still checks the bits of the AVX-512 kernels.

#ifdef SAMARA_EMULATE_AVX512
#include "tests/emulation/avx512.hpp"
#else
#include <immintrin.h>
#endif
