// The AVX-512 set; compiled with that set's flags, run only after dispatch has checked the CPU.

#include "src/kernels/set.hpp"
#include "src/kernels/vec_avx512.hpp"

namespace samara::kernels {

constinit const KernelTable kAvx512Table = make_table<Avx512Vec, avx512::integer_matmul>("avx512");

}  // namespace samara::kernels
