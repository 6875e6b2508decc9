#include "src/platform/cpu.hpp"

#include <fstream>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace samara {
namespace {

struct FeatureName {
    CpuFeature feature;
    std::string_view name;
};

constexpr FeatureName kFeatureNames[] = {
    {kFeatureAvx2, "AVX2"},
    {kFeatureFma, "FMA"},
    {kFeatureF16c, "F16C"},
    {kFeatureAvx512F, "AVX512F"},
    {kFeatureAvx512Bw, "AVX512BW"},
    {kFeatureAvx512Vl, "AVX512VL"},
    {kFeatureAvx512Dq, "AVX512DQ"},
    {kFeatureAvx512Vnni, "AVX512_VNNI"},
    {kFeatureAvx512Vbmi, "AVX512_VBMI"},
    {kFeatureAmxInt8, "AMX-INT8"},
    {kFeatureAmxTile, "AMX-TILE"},
    {kFeatureArmDotProduct, "Arm dot product (FEAT_DotProd)"},
    {kFeatureArmI8mm, "Arm int8 matrix multiply (FEAT_I8MM)"},
};

#if defined(__x86_64__)

/// Register state the operating system saves (XCR0).
uint64_t saved_state() {
    uint32_t low = 0;
    uint32_t high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<uint64_t>(high) << 32 | low;
}

uint32_t detect() {
    uint32_t a = 0;
    uint32_t b = 0;
    uint32_t c = 0;
    uint32_t d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & (1u << 27)) == 0) return 0;  // no OSXSAVE
    const uint64_t state = saved_state();
    const bool ymm = (state & 0x6) == 0x6;
    const bool zmm = (state & 0xe6) == 0xe6;
    const bool tiles = (state & 0x60000) == 0x60000;
    uint32_t features = 0;
    const auto take = [&](uint32_t reg, int bit, bool usable, CpuFeature feature) {
        if (usable && (reg >> bit & 1u) != 0) features |= feature;
    };
    take(c, 12, ymm, kFeatureFma);
    take(c, 29, ymm, kFeatureF16c);
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return features;
    take(b, 5, ymm, kFeatureAvx2);
    take(b, 16, zmm, kFeatureAvx512F);
    take(b, 17, zmm, kFeatureAvx512Dq);
    take(b, 30, zmm, kFeatureAvx512Bw);
    take(b, 31, zmm, kFeatureAvx512Vl);
    take(c, 1, zmm, kFeatureAvx512Vbmi);
    take(c, 11, zmm, kFeatureAvx512Vnni);
    take(d, 24, tiles, kFeatureAmxTile);
    take(d, 25, tiles, kFeatureAmxInt8);
    return features;
}

#elif defined(__aarch64__) && defined(__linux__)

uint32_t detect() {
    // Bits of Linux's AT_HWCAP (HWCAP_ASIMDDP) and AT_HWCAP2 (HWCAP2_I8MM), which older headers lack.
    constexpr unsigned long kDotProduct = 1ul << 20;
    constexpr unsigned long kI8mm = 1ul << 13;
    uint32_t features = 0;
    if ((getauxval(AT_HWCAP) & kDotProduct) != 0) features |= kFeatureArmDotProduct;
    if ((getauxval(AT_HWCAP2) & kI8mm) != 0) features |= kFeatureArmI8mm;
    return features;
}

#elif defined(__aarch64__) && defined(__APPLE__)

uint32_t detect() {
    const auto has = [](const char* name) {
        int value = 0;
        size_t size = sizeof value;
        return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
    };
    uint32_t features = 0;
    if (has("hw.optional.arm.FEAT_DotProd")) features |= kFeatureArmDotProduct;
    if (has("hw.optional.arm.FEAT_I8MM")) features |= kFeatureArmI8mm;
    return features;
}

#else

uint32_t detect() { return 0; }

#endif

#if defined(__APPLE__)

std::string read_model_name() {
    char name[128] = {};
    size_t size = sizeof name - 1;
    if (sysctlbyname("machdep.cpu.brand_string", name, &size, nullptr, 0) != 0 || name[0] == 0) return "unknown CPU";
    return name;
}

#else

std::string read_model_name() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        if (!line.starts_with("model name") && !line.starts_with("Model")) continue;
        const size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
        if (begin != std::string::npos) return line.substr(begin);
    }
    return "unknown CPU";
}

#endif

}  // namespace

uint32_t cpu_features() {
    static const uint32_t features = detect();
    return features;
}

bool permit_amx() {
#if defined(__x86_64__) && defined(__linux__)
    // arch_prctl(2): ARCH_REQ_XCOMP_PERM for the state component XTILEDATA. Older headers lack both names.
    constexpr long kRequestPermission = 0x1023;
    constexpr long kTileData = 18;
    static const bool permitted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    return permitted;
#else
    return false;
#endif
}

std::string missing_features(uint32_t needed) {
    std::string names;
    for (const FeatureName& entry : kFeatureNames) {
        if ((needed & entry.feature) == 0 || (cpu_features() & entry.feature) != 0) continue;
        if (!names.empty()) names += ", ";
        names += entry.name;
    }
    return names;
}

std::string cpu_model_name() {
    static const std::string name = read_model_name();
    return name;
}

}  // namespace samara
