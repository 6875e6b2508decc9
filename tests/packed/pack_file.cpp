// Test program: packs a model, or verifies a packed one.
//   pack_file SOURCE TARGET [--force]    packs and prints the report
//   pack_file --verify PACKED            prints one line for each damaged section; exit status 1 if there is any

#include <chrono>
#include <cstdio>
#include <string>

#include "src/formats/packed.hpp"

namespace {

using namespace samara::formats;

int pack_model(const std::string& source, const std::string& target, bool force) {
    const auto begin = std::chrono::steady_clock::now();
    Source from;
    from.path = source;
    const auto checkpoint = Checkpoint::open(from);
    const PackReport r = pack(*checkpoint, target, force ? Ternarise::kForce : Ternarise::kLossless, {});
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("input %llu output %llu ternary %llu other %llu code3 %llu nrmse %g seconds %.2f\n",
                static_cast<unsigned long long>(r.input_bytes), static_cast<unsigned long long>(r.output_bytes),
                static_cast<unsigned long long>(r.ternary_matrices), static_cast<unsigned long long>(r.other_matrices),
                static_cast<unsigned long long>(r.code3), r.ternary_nrmse, seconds);
    return 0;
}

int verify(const std::string& path) {
    Source source;
    source.path = path;
    const auto checkpoint = Checkpoint::open(source);
    const auto messages = verify_packed(*checkpoint, {});
    for (const std::string& message : messages) std::printf("%s\n", message.c_str());
    return messages.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const std::string first = argc > 1 ? argv[1] : "";
        if (argc == 3 && first == "--verify") return verify(argv[2]);
        if (argc == 3 || (argc == 4 && std::string(argv[3]) == "--force")) return pack_model(first, argv[2], argc == 4);
        std::fprintf(stderr, "usage: pack_file SOURCE TARGET [--force] | pack_file --verify PACKED\n");
    } catch (const samara::Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
    }
    return 2;
}
