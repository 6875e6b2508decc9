#include "fuzz/input.hpp"
#include "src/formats/maple_names.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    return samara::fuzz::expect_success_or_error([&] {
        const auto metadata =
            samara::formats::translate_maple_config(samara::fuzz::text_of(data, size), "config.json", "input");
        metadata.get_uint("maple.block_count", 1, 4096);
    });
}
