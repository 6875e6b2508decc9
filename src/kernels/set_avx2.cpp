// The AVX2 set; compiled with that set's flags, run only after dispatch has checked the CPU.

#include "src/kernels/set.hpp"
#include "src/kernels/vec_avx2.hpp"

namespace samara::kernels {

constinit const KernelTable kAvx2Table = make_table<Avx2Vec, avx2::integer_matmul>("avx2");

}  // namespace samara::kernels
