// A model file for the C test, and a second engine's worth of hostile files.

#include "tests/engine_models.hpp"

extern "C" const char* test_model_path(void) { return samara::testing::synthetic_model("llama-tiny", "q8_0").c_str(); }

extern "C" const char* test_folder(void) { return samara::testing::temporary_folder().c_str(); }
