#pragma once
// Matmul of the integer layouts for every set but kTernaryDense, which only scalar takes; its own kernels, with AVX-512
// VBMI, are apart, and dense_matmul.hpp takes it elsewhere. Each function equals scalar::integer_matmul bit for bit and
// keeps the contract of KernelTable::matmul. They may be called only on a CPU that has the set: AVX2, FMA and F16C;
// AVX-512 F, BW, VL, DQ and VNNI; those and AMX-INT8; NEON alone, with dot product (FEAT_DotProd) or int8 matrices
// (FEAT_I8MM).

#include "src/kernels/kernels.hpp"

namespace samara::kernels {

namespace scalar {
void integer_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                    float* out, int64_t out_stride);
}

namespace avx2 {
void integer_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                    float* out, int64_t out_stride);
}

namespace avx512 {
void integer_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                    float* out, int64_t out_stride);
/// Of kTernaryDense.
void dense_matmul_vbmi(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens,
                       int n, float* out, int64_t out_stride);
}  // namespace avx512

namespace amx {  // AVX-512 for what it does not take
void integer_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                    float* out, int64_t out_stride);
/// Of kTernaryDense.
void dense_matmul_vbmi(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens,
                       int n, float* out, int64_t out_stride);
}  // namespace amx

namespace neon {
void integer_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                    float* out, int64_t out_stride);
}

namespace neon_dot {
void integer_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                    float* out, int64_t out_stride);
}

namespace neon_i8mm {
void integer_matmul(const Matrix& w, int group_begin, int group_end, const Activations& a, const int32_t* tokens, int n,
                    float* out, int64_t out_stride);
}

}  // namespace samara::kernels
