#pragma once
// Included into every file when the Python peer is built with GCC. GCC 12's _tile_loadconfig tells the optimiser that
// the instruction reads 8 bytes of the 64-byte AMX configuration, so the stores of the rest are removed and the peer
// crashes on CPUs with AMX. The same instruction with the right operand:

#if defined(__GNUC__) && !defined(__clang__) && defined(__AMX_TILE__)
#include <immintrin.h>
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])(config)))
#endif
