#pragma once
// What this CPU can run, as the processor and the operating system report it.

#include <cstdint>
#include <string>

namespace samara {

/// Bits of a set of CPU features; combine with |.
enum CpuFeature : uint32_t {
    kFeatureAvx2 = 1u << 0,
    kFeatureFma = 1u << 1,
    kFeatureF16c = 1u << 2,
    kFeatureAvx512F = 1u << 3,
    kFeatureAvx512Bw = 1u << 4,
    kFeatureAvx512Vl = 1u << 5,
    kFeatureAvx512Dq = 1u << 6,
    kFeatureAvx512Vnni = 1u << 7,
    kFeatureAvx512Vbmi = 1u << 8,
    kFeatureAmxInt8 = 1u << 9,
    kFeatureAmxTile = 1u << 10,
    kFeatureArmDotProduct = 1u << 16,
    kFeatureArmI8mm = 1u << 17,
};

/// What the kernels of these names need.
inline constexpr uint32_t kAvx2Features = kFeatureAvx2 | kFeatureFma | kFeatureF16c;
inline constexpr uint32_t kAvx512Features =
    kAvx2Features | kFeatureAvx512F | kFeatureAvx512Bw | kFeatureAvx512Vl | kFeatureAvx512Dq | kFeatureAvx512Vnni;
inline constexpr uint32_t kAmxFeatures = kAvx512Features | kFeatureAmxTile | kFeatureAmxInt8;

/// The features this CPU has and the operating system lets programs use (it must save the registers). 0 on other
/// CPU families; every 64-bit Arm CPU has NEON. AMX also needs a permission from the kernel, see
/// permit_amx.
uint32_t cpu_features();

/// Asks the operating system, once, to let every thread of this process use AMX's tile registers. False when it says no
/// or has no such question. Call only on a CPU that has AMX.
bool permit_amx();

/// Names of the features in `needed` that are missing, separated by ", "; empty when none is.
std::string missing_features(uint32_t needed);

/// The CPU's name as lscpu prints it, or "unknown CPU".
std::string cpu_model_name();

}  // namespace samara
