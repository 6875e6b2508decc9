#include "src/platform/cpu.hpp"

#include <fstream>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
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
    take(d, 25, tiles, kFeatureAmxInt8);
    return features;
}

#else

uint32_t detect() { return 0; }

#endif

std::string read_model_name() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        if (!line.starts_with("model name") && !line.starts_with("Model")) continue;
        const size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
        if (begin != std::string::npos) return line.substr(begin);
    }
    return "unknown CPU";
}

}  // namespace

uint32_t cpu_features() {
    static const uint32_t features = detect();
    return features;
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
