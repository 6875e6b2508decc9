// Opens a model file or folder as the engine does and prints what is in it. With --dump OUT, writes every tensor's
// dequantised rows to OUT as float32, in the order printed. On an error: one line on standard error, exit status 1.

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "src/formats/checkpoint.hpp"
#include "src/formats/text.hpp"

namespace {

using namespace samara::formats;

void print_tensors(const Checkpoint& checkpoint) {
    std::printf("%s, %llu bytes, %zu keys, %zu tensors\n", checkpoint.format().c_str(),
                static_cast<unsigned long long>(checkpoint.file_bytes()), checkpoint.metadata().entries().size(),
                checkpoint.tensors().size());
    for (const Tensor& tensor : checkpoint.tensors()) {
        std::printf("%s %s %s\n", tensor.name.c_str(), std::string(type_traits(tensor.type)->name).c_str(),
                    shape_text(tensor.shape).c_str());
    }
}

void dump(const Checkpoint& checkpoint, const std::string& path) {
    std::ofstream out(path, std::ios::binary);
    for (const Tensor& tensor : checkpoint.tensors()) {
        std::vector<float> row(tensor.cols());
        for (uint64_t expert = 0; expert < tensor.experts(); ++expert) {
            for (uint64_t r = 0; r < tensor.rows(); ++r) {
                dequantise_row(tensor, expert, r, row.data());
                out.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(row.size() * 4));
            }
        }
    }
    out.close();
    if (!out) throw samara::Error(samara::ErrorCode::kIo, path + ": cannot write");
}

}  // namespace

int main(int argc, char** argv) {
    const bool dumps = argc == 4 && std::string(argv[2]) == "--dump";
    if (argc != 2 && !dumps) {
        std::fprintf(stderr, "usage: formats_open FILE [--dump OUT]\n");
        return 2;
    }
    try {
        const auto checkpoint = Checkpoint::open({.path = argv[1]});
        print_tensors(*checkpoint);
        if (dumps) dump(*checkpoint, argv[3]);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
}
