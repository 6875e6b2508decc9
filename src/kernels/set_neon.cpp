// The NEON sets. They differ in the integer matmul alone, so one object, compiled for any 64-bit Arm CPU, holds all
// three tables.

#include "src/kernels/set.hpp"
#include "src/kernels/vec_neon.hpp"

namespace samara::kernels {

constinit const KernelTable kNeonTable = make_table<NeonVec, neon::integer_matmul>("neon");
constinit const KernelTable kNeonDotTable = make_table<NeonVec, neon_dot::integer_matmul>("neon-dot");
constinit const KernelTable kNeonI8mmTable = make_table<NeonVec, neon_i8mm::integer_matmul>("neon-i8mm");

}  // namespace samara::kernels
