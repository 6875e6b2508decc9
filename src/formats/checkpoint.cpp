#include "src/formats/checkpoint.hpp"

#include <filesystem>
#include <string_view>
#include <system_error>

#include "src/formats/gguf_reader.hpp"
#ifdef SAMARA_SAFETENSORS
#include "src/formats/safetensors_reader.hpp"
#endif

namespace samara::formats {
namespace {

bool is_safetensors(const Source& source) {
    std::error_code ignored;
    return source.fd < 0 &&
           (source.path.ends_with(".safetensors") || std::filesystem::is_directory(source.path, ignored));
}

}  // namespace

std::unique_ptr<Checkpoint> Checkpoint::open(const Source& source) {
    if (!is_safetensors(source)) return open_gguf(source);
#ifdef SAMARA_SAFETENSORS
    return open_safetensors(source.path);
#else
    throw Error(ErrorCode::kUnsupported, source.path + ": this build reads GGUF files only, not safetensors");
#endif
}

}  // namespace samara::formats
