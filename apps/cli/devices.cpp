#include "apps/cli/devices.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "src/platform/cpu.hpp"
#include "src/platform/error.hpp"

namespace samara::cli {
namespace {

constexpr double kGiga = 1e9;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// A bus of `bits` at `rate` million transfers a second.
constexpr double bus(double rate, double bits) { return rate * 1e6 * bits / 8; }

// Cores at `ghz` that start `units` SMMLA a cycle.
constexpr double smmla(double cores, double ghz, double units) { return cores * ghz * kGiga * units * 64; }

// No public measurement says what a phone's CPU alone reads; this is the range seen on other machines.
constexpr Range kReachable{0.5, 0.85};
// Neither system publishes when it ends an app; iOS allows more with the increased-memory-limit entitlement.
constexpr Range kAppShare{0.5, 0.75};

}  // namespace

std::span<const Device> known_devices() {
    static const std::array<Device, 4> kDevices{{
        {"iphone-17-pro",
         "iPhone 17 Pro",
         {bus(9600, 64), bus(9600, 64)},
         "LPDDR5X-9600, 64 bits (press reports of the A19 Pro; Apple publishes no figure)",
         kReachable,
         12 * kGiB,
         "12 GB (press reports; Apple publishes no figure)",
         kAppShare,
         smmla(2, 4.26, 4),
         "A19 Pro: 2 performance cores at 4.26 GHz, four 128-bit units each"},
        {"iphone-16-pro",
         "iPhone 16 Pro",
         {bus(7500, 64), bus(7500, 64)},
         "LPDDR5X-7500, 64 bits (press reports of the A18 Pro; Apple publishes no figure)",
         kReachable,
         8 * kGiB,
         "8 GB (press reports; Apple publishes no figure)",
         kAppShare,
         smmla(2, 4.04, 4),
         "A18 Pro: 2 performance cores at 4.04 GHz, four 128-bit units each"},
        {"pixel-10-pro",
         "Pixel 10 Pro",
         {bus(8533, 64), bus(9600, 64)},
         "LPDDR5X, 64 bits; Google publishes no rate: 8533 to 9600 assumed",
         kReachable,
         16 * kGiB,
         "16 GB (Google's specifications)",
         kAppShare,
         smmla(1, 3.78, 4) + smmla(5, 3.05, 2),
         "Tensor G5: one Cortex-X4 at 3.78 GHz with four 128-bit units, five Cortex-A725 at 3.05 GHz with two"},
        {"galaxy-s25",
         "Galaxy S25",
         {bus(9600, 64), bus(10600, 64)},
         "LPDDR5X, 64 bits; up to 5300 MHz (Qualcomm's product brief of the Snapdragon 8 Elite), 9600 MT/s assumed at "
         "least",
         kReachable,
         12 * kGiB,
         "12 GB (Samsung's specifications)",
         kAppShare,
         smmla(2, 4.47, 4) + smmla(6, 3.53, 4),
         "Snapdragon 8 Elite for Galaxy: 2 cores at 4.47 GHz and 6 at 3.53 GHz, four 128-bit units each"},
    }};
    return kDevices;
}

const Device& find_device(std::string_view name) {
    std::string known;
    for (const Device& device : known_devices()) {
        if (device.name == name) return device;
        known += device.name + ", ";
    }
    throw Error(ErrorCode::kInvalidArgument,
                "--device: expected " + known + "or this, found '" + std::string(name) + "'");
}

Device this_device(double bandwidth) {
    const auto pages = static_cast<uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES)));
    const auto page_bytes = static_cast<uint64_t>(std::max(0L, sysconf(_SC_PAGESIZE)));
    return {.name = "this",
            .title = cpu_model_name(),
            .bandwidth = {bandwidth, bandwidth},
            .bandwidth_source = "measured here",
            .reachable = {1, 1},
            .ram = pages * page_bytes,
            .ram_source = "as the system says",
            .app_share = {0.8, 1},
            .int8_ops = 0,
            .cpu_source = "not predicted; samara bench measures it"};
}

}  // namespace samara::cli
