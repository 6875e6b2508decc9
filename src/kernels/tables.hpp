#pragma once
// The tables that dispatch chooses from.

#include "src/kernels/kernels.hpp"

namespace samara::kernels {

/// The tables of the sets; defined in set_*.cpp. Calling a kernel of a set that the CPU lacks is an illegal
/// instruction.
extern const KernelTable kScalarTable;
extern const KernelTable kAvx2Table;
extern const KernelTable kAvx512Table;
extern const KernelTable kAmxTable;  // AVX-512 with AMX where it pays
// The same with AVX-512 VBMI for Layout::kTernaryDense.
extern const KernelTable kAvx512VbmiTable;
extern const KernelTable kAmxVbmiTable;
extern const KernelTable kNeonTable;
extern const KernelTable kNeonDotTable;   // needs FEAT_DotProd
extern const KernelTable kNeonI8mmTable;  // needs FEAT_I8MM

}  // namespace samara::kernels
