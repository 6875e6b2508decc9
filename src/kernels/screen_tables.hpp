#pragma once
// The screens that screen_kernels chooses from.

#include "src/kernels/screen.hpp"

namespace samara::kernels {

extern const ScreenKernels kAvx2Screen;
extern const ScreenKernels kAvx512Screen;

}  // namespace samara::kernels
