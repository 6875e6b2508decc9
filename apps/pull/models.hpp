#pragma once
// Model names and the folder in which downloaded models live. No network.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace samara::pull {

/// ${SAMARA_CACHE}/models, else ~/.cache/samara/models. Need not exist. Throws Error(kInvalidArgument) when neither
/// SAMARA_CACHE nor HOME is set.
std::filesystem::path models_directory();

/// A model file in the models directory.
struct InstalledModel {
    std::filesystem::path path;
    uint64_t bytes = 0;
    bool partial = false;  // a download that has not finished: "name.gguf.part"
};

/// The model files below models_directory(), sorted by path; later parts of a split model are left out and their bytes
/// added to the first part. Empty when the folder does not exist.
std::vector<InstalledModel> installed_models();

/// Turns what a person types after -m into a file. A path that exists is returned as it is. Otherwise `name` is one of
///   maple-preview, maple-preview:VARIANT, smollm2   known names
///   owner/repo, owner/repo:file                     what `samara pull` downloaded from there
///   a file name, with or without ".gguf"            anything in models_directory()
/// and a packed copy is preferred to the file it was made from. Throws Error(kInvalidArgument) that says how to get the
/// model when it is known but not installed, and lists what is installed when it is not known.
std::filesystem::path resolve_model(std::string_view name);

/// `samara models [NAME] [--json]`: known names and what is installed, or the file of NAME. Returns the exit code;
/// never throws.
int models_main(int argc, char** argv);

}  // namespace samara::pull
