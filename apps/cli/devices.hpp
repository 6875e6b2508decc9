#pragma once
// What is publicly known of some phones' memory and processors, for `samara plan`. Ranges where sources differ or say
// nothing.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace samara::cli {

struct Range {
    double low = 0, high = 0;
};

struct Device {
    std::string name;              // as --device takes it
    std::string title;             // "iPhone 17 Pro"
    Range bandwidth;               // bytes a second that the memory bus can carry
    std::string bandwidth_source;  // and how sure it is
    Range reachable;               // share of it that streaming reads by the CPU reach
    uint64_t ram = 0;              // bytes
    std::string ram_source;
    Range app_share;      // share of the RAM that one app may hold before the system ends it
    double int8_ops = 0;  // a second, of the big cores' SMMLA; 0: unknown. One instruction is 64 (2 x 8 by 8 x 2)
    std::string cpu_source;
};

/// The phones in the table.
std::span<const Device> known_devices();

/// One of the table. Throws Error(kInvalidArgument) that lists them.
const Device& find_device(std::string_view name);

/// This machine: `bandwidth` bytes a second were measured here.
Device this_device(double bandwidth);

}  // namespace samara::cli
