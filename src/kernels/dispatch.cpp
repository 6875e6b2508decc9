#include <algorithm>
#include <array>
#include <string>

#include "src/kernels/tables.hpp"
#include "src/platform/cpu.hpp"
#include "src/platform/error.hpp"

namespace samara::kernels {
namespace {

struct Set {
    Isa isa;
    const KernelTable* table;
    std::string (*missing)();                // names of the CPU features this CPU lacks for it, or ""
    const KernelTable* with_vbmi = nullptr;  // in its place on a CPU with AVX-512 VBMI
};

constexpr std::string_view kNames[] = {"scalar", "avx2", "avx512", "amx", "neon", "neon-dot", "neon-i8mm"};

#if defined(SAMARA_X86) && !defined(SAMARA_EMULATE_AVX512)
std::string missing_for_amx() {
    std::string missing = missing_features(kAmxFeatures);
    if (missing.empty() && !permit_amx())
        missing = "AMX tiles, which the operating system does not let this process use";
    return missing;
}
#endif

// Slowest first.
const std::array kSets{
    Set{Isa::kScalar, &kScalarTable, [] { return std::string(); }},
#ifdef SAMARA_X86
    Set{Isa::kAvx2, &kAvx2Table, [] { return missing_features(kAvx2Features); }},
#ifdef SAMARA_EMULATE_AVX512
    Set{Isa::kAvx512, &kAvx512VbmiTable, [] { return missing_features(kAvx2Features); }},
    Set{Isa::kAmx, &kAmxVbmiTable, [] { return missing_features(kAvx2Features); }},
#else
    Set{Isa::kAvx512, &kAvx512Table, [] { return missing_features(kAvx512Features); }, &kAvx512VbmiTable},
    Set{Isa::kAmx, &kAmxTable, missing_for_amx, &kAmxVbmiTable},
#endif
#endif
#ifdef SAMARA_AARCH64
    Set{Isa::kNeon, &kNeonTable, [] { return std::string(); }},
    Set{Isa::kNeonDot, &kNeonDotTable, [] { return missing_features(kFeatureArmDotProduct); }},
    Set{Isa::kNeonI8mm, &kNeonI8mmTable, [] { return missing_features(kFeatureArmI8mm); }},
#endif
};

}  // namespace

std::vector<Isa> supported_isas() {
    std::vector<Isa> isas;
    for (const Set& set : kSets)
        if (set.missing().empty()) isas.push_back(set.isa);
    return isas;
}

const KernelTable& kernel_table(Isa isa) {
    const auto set = std::find_if(kSets.begin(), kSets.end(), [&](const Set& s) { return s.isa == isa; });
    if (set == kSets.end()) {
        throw Error(ErrorCode::kUnsupported, "instruction set " + std::string(isa_name(isa)) +
                                                 " is not in this build, which is for another CPU family");
    }
    const std::string missing = set->missing();
    if (!missing.empty()) {
        throw Error(ErrorCode::kUnsupported, "instruction set " + std::string(isa_name(isa)) +
                                                 " needs CPU features that " + cpu_model_name() + " lacks: " + missing);
    }
    const bool vbmi = set->with_vbmi != nullptr && missing_features(kFeatureAvx512Vbmi).empty();
    return vbmi ? *set->with_vbmi : *set->table;
}

Isa parse_isa(std::string_view name) {
    if (name == "auto") return supported_isas().back();
    const auto found = std::find(std::begin(kNames), std::end(kNames), name);
    if (found == std::end(kNames)) {
        std::string expected;
        for (const std::string_view known : kNames) expected += std::string(known) + ", ";
        throw Error(ErrorCode::kInvalidArgument,
                    "instruction set: expected " + expected + "or auto, found \"" + std::string(name) + "\"");
    }
    return static_cast<Isa>(found - std::begin(kNames));
}

Layout fastest_ternary_layout() {
    const bool vbmi = missing_features(kAvx512Features | kFeatureAvx512Vbmi).empty();
    return vbmi ? Layout::kTernaryDense : Layout::kTernary;
}

std::string_view isa_name(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

}  // namespace samara::kernels
