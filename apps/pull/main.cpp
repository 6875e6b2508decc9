// samara-pull: the downloader as a program of its own. `samara-pull models ...` lists, anything else downloads.

#include <string_view>

#include "apps/pull/models.hpp"
#include "apps/pull/pull.hpp"

int main(int argc, char** argv) {
    if (argc > 1 && std::string_view(argv[1]) == "models") return samara::pull::models_main(argc - 1, argv + 1);
    return samara::pull::pull_main(argc, argv);
}
