#pragma once
// The tables that dispatch chooses from.

#include "src/kernels/kernels.hpp"

namespace samara::kernels {

/// The tables of the sets; defined in set_*.cpp. Calling a kernel of a set that the CPU lacks is an illegal
/// instruction.
extern const KernelTable kScalarTable;
extern const KernelTable kAvx2Table;
extern const KernelTable kAvx512Table;

}  // namespace samara::kernels
