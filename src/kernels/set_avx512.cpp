// The AVX-512 set, AMX's, and both with VBMI, which differ in the matmul alone; compiled with AVX-512's flags, run only
// after dispatch has checked the CPU.

#include "src/kernels/set.hpp"
#include "src/kernels/vec_avx512.hpp"

namespace samara::kernels {

constinit const KernelTable kAvx512Table = make_table<Avx512Vec, avx512::integer_matmul>("avx512");
constinit const KernelTable kAmxTable = make_table<Avx512Vec, amx::integer_matmul>("amx");
constinit const KernelTable kAvx512VbmiTable =
    make_table<Avx512Vec, avx512::integer_matmul, avx512::dense_matmul_vbmi>("avx512");
constinit const KernelTable kAmxVbmiTable = make_table<Avx512Vec, amx::integer_matmul, amx::dense_matmul_vbmi>("amx");

}  // namespace samara::kernels
