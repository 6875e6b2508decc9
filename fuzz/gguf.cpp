#include "fuzz/input.hpp"
#include "src/formats/gguf_reader.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    return samara::fuzz::expect_success_or_error([&] {
        const auto contents = samara::formats::parse_gguf(samara::fuzz::bytes_of(data, size), "input");
        samara::fuzz::read_last_rows(contents.tensors);
    });
}
