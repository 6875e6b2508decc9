/* The C interface from C: it compiles as C11, checks every argument, and serves callers with older, smaller structs. */

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "samara/samara.h"

const char* test_model_path(void);
const char* test_folder(void);

static int failures = 0;

static void check_at(int ok, const char* what, int line) {
    if (ok) return;
    fprintf(stderr, "c_api_test.c:%d: %s; last error: '%s'\n", line, what, samara_last_error());
    ++failures;
}
#define CHECK(ok) check_at((ok), #ok, __LINE__)
/* The call fails with `status` and a message. */
#define REFUSED(call, status)                                                         \
    do {                                                                              \
        const samara_status found = (call);                                           \
        check_at(found == (status), #call " gives " #status, __LINE__);               \
        check_at(strlen(samara_last_error()) > 10, #call " has a message", __LINE__); \
    } while (0)
#define OK(call) check_at((call) == SAMARA_OK, #call, __LINE__)

static samara_load_params load_params(void) {
    samara_load_params p;
    memset(&p, 0, sizeof p);
    p.struct_size = sizeof p;
    p.path = test_model_path();
    p.threads = 2;
    p.context_tokens = 128;
    p.max_sessions = 3;
    return p;
}

static samara_step_params step_params(const samara_step_input* inputs, uint32_t count) {
    samara_step_params p;
    memset(&p, 0, sizeof p);
    p.struct_size = sizeof p;
    p.inputs = inputs;
    p.input_count = count;
    return p;
}

static samara_step_input step_input(samara_session* session, const int32_t* tokens, uint32_t count) {
    samara_step_input in;
    memset(&in, 0, sizeof in);
    in.struct_size = sizeof in;
    in.session = session;
    in.tokens = tokens;
    in.count = count;
    return in;
}

static void test_names(void) {
    CHECK(strlen(samara_version()) > 0);
    CHECK(samara_numerics_version() > 0);
    CHECK(samara_cpu_name() != NULL);
    CHECK(strstr(samara_supported_isas(), "scalar") == samara_supported_isas());
    CHECK(samara_last_error() != NULL);
}

static void test_loading_refuses(void) {
    samara_engine* engine = (samara_engine*)&failures;
    samara_memory_plan plan = {.struct_size = sizeof plan};
    samara_load_params p = load_params();
    REFUSED(samara_load(NULL, &engine), SAMARA_INVALID_ARGUMENT);
    CHECK(engine == NULL);
    REFUSED(samara_load(&p, NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_plan(NULL, &plan), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_plan(&p, NULL), SAMARA_INVALID_ARGUMENT);
    plan.struct_size = 0;
    REFUSED(samara_plan(&p, &plan), SAMARA_INVALID_ARGUMENT);
    plan.struct_size = (size_t)-1;
    REFUSED(samara_plan(&p, &plan), SAMARA_INVALID_ARGUMENT);
    p.struct_size = 0;
    REFUSED(samara_load(&p, &engine), SAMARA_INVALID_ARGUMENT);
    p.struct_size = (size_t)-1;
    REFUSED(samara_load(&p, &engine), SAMARA_INVALID_ARGUMENT);

    p = load_params();
    p.path = NULL;
    REFUSED(samara_load(&p, &engine), SAMARA_INVALID_ARGUMENT);
    p.path = "/nowhere/at/all.gguf";
    REFUSED(samara_load(&p, &engine), SAMARA_IO);
    CHECK(strstr(samara_last_error(), "/nowhere/at/all.gguf") != NULL);
    p.path = test_folder();
    CHECK(samara_load(&p, &engine) != SAMARA_OK);
    p = load_params();
    p.use_descriptor = 1;
    p.descriptor = -1;
    REFUSED(samara_load(&p, &engine), SAMARA_INVALID_ARGUMENT);
    p.descriptor = 12345;
    REFUSED(samara_load(&p, &engine), SAMARA_IO);
    p = load_params();
    p.isa = "quantum";
    REFUSED(samara_load(&p, &engine), SAMARA_INVALID_ARGUMENT);
    p = load_params();
    p.threads = UINT32_MAX;
    REFUSED(samara_load(&p, &engine), SAMARA_INVALID_ARGUMENT);
    p = load_params();
    p.context_tokens = UINT64_MAX;
    REFUSED(samara_load(&p, &engine), SAMARA_INVALID_ARGUMENT);
    p = load_params();
    p.max_sessions = UINT32_MAX;
    REFUSED(samara_load(&p, &engine), SAMARA_INVALID_ARGUMENT);
    p = load_params();
    p.max_step_tokens = UINT32_MAX;
    REFUSED(samara_load(&p, &engine), SAMARA_INVALID_ARGUMENT);
    p = load_params();
    p.rewind_span = UINT32_MAX;
    REFUSED(samara_load(&p, &engine), SAMARA_INVALID_ARGUMENT);
    p = load_params();
    p.memory_budget = 1;
    REFUSED(samara_load(&p, &engine), SAMARA_MEMORY);
    CHECK(engine == NULL);
}

static void test_damaged_file(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/damaged.gguf", test_folder());
    FILE* f = fopen(path, "wb");
    CHECK(f != NULL);
    fputs("GGUF\3\0\0\0 and then nonsense that is no header", f);
    fclose(f);
    samara_load_params p = load_params();
    samara_engine* engine = NULL;
    p.path = path;
    REFUSED(samara_load(&p, &engine), SAMARA_FORMAT);
    CHECK(strstr(samara_last_error(), "damaged.gguf") != NULL);
    remove(path);
}

static void test_older_caller(void) {
    /* A caller built when samara_load_params ended after `path`, and the plan after weights_owned. */
    struct {
        size_t struct_size;
        const char* path;
    } old = {sizeof old, test_model_path()};
    struct {
        samara_memory_plan plan;
        uint64_t guard;
    } out;
    memset(&out, 0x5a, sizeof out);
    out.plan.struct_size = offsetof(samara_memory_plan, kv_cache);
    OK(samara_plan((const samara_load_params*)&old, &out.plan));
    CHECK(out.plan.struct_size == offsetof(samara_memory_plan, kv_cache));
    CHECK(out.plan.weights_owned > 1000 && out.plan.weights_owned < 1u << 30);
    CHECK(out.plan.kv_cache == 0x5a5a5a5a5a5a5a5au); /* beyond its struct: untouched */

    /* A caller of a later version, with fields this one does not know. */
    struct {
        samara_load_params params;
        uint64_t later[4];
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.params = load_params();
    newer.params.struct_size = sizeof newer;
    samara_engine* engine = NULL;
    OK(samara_load(&newer.params, &engine));

    /* Step inputs of an older caller lie closer together: without `experts`. */
    struct old_input {
        size_t struct_size;
        samara_session* session;
        const int32_t* tokens;
        uint32_t count;
        int logits;
    } inputs[2];
    const int32_t tokens[] = {1, 2, 3};
    samara_session *a = NULL, *b = NULL;
    OK(samara_session_create(engine, &a));
    OK(samara_session_create(engine, &b));
    inputs[0] = (struct old_input){sizeof inputs[0], a, tokens, 3, SAMARA_LOGITS_LAST};
    inputs[1] = (struct old_input){sizeof inputs[0], b, tokens, 2, SAMARA_LOGITS_NONE};
    samara_step_params step = step_params((const samara_step_input*)inputs, 2);
    OK(samara_step(engine, &step));
    CHECK(samara_session_length(a) == 3);
    CHECK(samara_session_length(b) == 2);
    inputs[1].struct_size = sizeof(samara_step_input);
    REFUSED(samara_step(engine, &step), SAMARA_INVALID_ARGUMENT);
    CHECK(samara_session_length(a) == 3);
    samara_session_free(a);
    samara_session_free(b);
    samara_free(engine);
}

static void test_null_everywhere(samara_engine* engine) {
    samara_session* session = NULL;
    samara_sampler* sampler = NULL;
    const float* logits = NULL;
    const char* text = NULL;
    size_t length = 0;
    int64_t integer = 0;
    int32_t token = 0;
    const float one = 1;
    samara_free(NULL);
    samara_session_free(NULL);
    samara_sampler_free(NULL);
    samara_session_cancel(NULL);
    samara_session_resume(NULL);
    samara_sampler_accept(NULL, 1);
    CHECK(samara_session_length(NULL) == 0);
    CHECK(samara_session_tokens(NULL) == NULL);
    CHECK(samara_kv_bytes(NULL, 1) == 0);
    REFUSED(samara_get_model_info(NULL, NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_get_model_info(engine, NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_get_step_seconds(NULL, NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_get_step_seconds(engine, NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_get_flash_agreement(NULL, NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_get_flash_agreement(engine, NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_meta_string(engine, NULL, &text, &length), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_meta_string(NULL, "a", &text, &length), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_meta_string(engine, "a", NULL, NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_meta_int(engine, "general.name", NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_meta_strings(engine, NULL, &length), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_meta_strings(engine, "a", NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_meta_string_at(engine, "a", 0, NULL, NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_meta_int_at(engine, "a", 0, NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_meta_string(engine, "no.such.key", &text, &length), SAMARA_FORMAT);
    REFUSED(samara_meta_int(engine, "no.such.key", &integer), SAMARA_FORMAT);
    REFUSED(samara_meta_int(engine, "general.architecture", &integer), SAMARA_FORMAT);
    REFUSED(samara_session_create(NULL, &session), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_session_create(engine, NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_session_fork(NULL, &session), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_session_truncate(NULL, 0, NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_session_logits(NULL, &logits), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_step(NULL, NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_step(engine, NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_generate(NULL, NULL, NULL), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_sampler_create(NULL, &sampler), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_sampler_choose(NULL, &one, 1, &token), SAMARA_INVALID_ARGUMENT);
}

static void test_metadata(samara_engine* engine) {
    samara_model_info info = {.struct_size = sizeof info};
    OK(samara_get_model_info(engine, &info));
    CHECK(strcmp(info.architecture, "llama") == 0);
    CHECK(info.layers == 4 && info.hidden == 256 && info.vocab == 2048 && info.context_tokens == 128);
    CHECK(info.threads == 2 && info.experts == 0);
    CHECK(info.memory.total ==
          info.memory.weights_mapped + info.memory.weights_owned + info.memory.kv_cache + info.memory.scratch);
    CHECK(samara_kv_bytes(engine, 100) > samara_kv_bytes(engine, 1));
    samara_step_seconds seconds = {.struct_size = sizeof seconds};
    OK(samara_get_step_seconds(engine, &seconds));
    CHECK(seconds.router == 0 && seconds.experts >= 0); /* a dense model has no router */
    const char* text = NULL;
    size_t length = 0, count = 0;
    int64_t integer = 0;
    OK(samara_meta_string(engine, "general.architecture", &text, &length));
    CHECK(length == 5 && strcmp(text, "llama") == 0);
    OK(samara_meta_int(engine, "llama.block_count", &integer));
    CHECK(integer == 4);
    OK(samara_meta_strings(engine, "tokenizer.ggml.tokens", &count));
    CHECK(count == 2048);
    OK(samara_meta_string_at(engine, "tokenizer.ggml.tokens", count - 1, &text, &length));
    REFUSED(samara_meta_string_at(engine, "tokenizer.ggml.tokens", count, &text, &length), SAMARA_INVALID_ARGUMENT);
    REFUSED(samara_meta_int_at(engine, "tokenizer.ggml.tokens", 0, &integer), SAMARA_FORMAT);
    OK(samara_meta_int_at(engine, "tokenizer.ggml.token_type", 0, &integer));
}

static void test_steps(samara_engine* engine) {
    const int32_t tokens[] = {5, 6, 7, 8};
    const int32_t bad[] = {5, -1};
    samara_session *s = NULL, *fork = NULL, *more = NULL, *over = NULL;
    const float* logits = NULL;
    OK(samara_session_create(engine, &s));
    samara_step_input in = step_input(s, tokens, 4);
    samara_step_params step = step_params(&in, 1);
    REFUSED(samara_session_logits(s, &logits), SAMARA_INVALID_ARGUMENT);
    OK(samara_step(engine, &step));
    OK(samara_session_logits(s, &logits));
    CHECK(isfinite(logits[0]) && isfinite(logits[2047]));
    CHECK(samara_session_length(s) == 4);
    CHECK(memcmp(samara_session_tokens(s), tokens, sizeof tokens) == 0);

    in = step_input(NULL, tokens, 1);
    REFUSED(samara_step(engine, &step), SAMARA_INVALID_ARGUMENT);
    in = step_input(s, NULL, 1);
    REFUSED(samara_step(engine, &step), SAMARA_INVALID_ARGUMENT);
    in = step_input(s, bad, 2);
    REFUSED(samara_step(engine, &step), SAMARA_INVALID_ARGUMENT);
    in = step_input(s, tokens, 1);
    in.struct_size = 3;
    REFUSED(samara_step(engine, &step), SAMARA_INVALID_ARGUMENT);
    in = step_input(s, tokens, 1);
    step = step_params(NULL, 1);
    REFUSED(samara_step(engine, &step), SAMARA_INVALID_ARGUMENT);
    step = step_params(&in, 1);
    step.chunk = UINT32_MAX;
    REFUSED(samara_step(engine, &step), SAMARA_INVALID_ARGUMENT);
    samara_step_input twice[2] = {in, in};
    step = step_params(twice, 2);
    REFUSED(samara_step(engine, &step), SAMARA_INVALID_ARGUMENT);
    CHECK(samara_session_length(s) == 4);

    static int32_t many[200];
    in = step_input(s, many, 200);
    step = step_params(&in, 1);
    REFUSED(samara_step(engine, &step), SAMARA_CONTEXT_FULL);
    CHECK(samara_session_length(s) == 4);

    OK(samara_session_fork(s, &fork));
    OK(samara_session_create(engine, &more));
    REFUSED(samara_session_create(engine, &over), SAMARA_MEMORY);
    CHECK(over == NULL);
    uint64_t again = 99;
    OK(samara_session_truncate(fork, 2, &again));
    CHECK(again == 0 && samara_session_length(fork) == 2 && samara_session_length(s) == 4);
    REFUSED(samara_session_truncate(fork, 3, NULL), SAMARA_INVALID_ARGUMENT);

    samara_session_cancel(s);
    in = step_input(s, tokens, 1);
    REFUSED(samara_step(engine, &step), SAMARA_CANCELLED);
    samara_session_resume(s);
    OK(samara_step(engine, &step));
    samara_session_free(more);
    samara_session_free(fork);
    samara_session_free(s);
}

static int count_tokens(int32_t token, const char* text, size_t length, void* user) {
    (void)text;
    (void)length;
    if (token >= 0) ++*(int*)user;
    return 1;
}

static size_t lying_detokenizer(int32_t token, char* buffer, size_t capacity, void* user) {
    (void)token;
    (void)user;
    memset(buffer, 'x', capacity);
    return capacity * 1000; /* more than there is room for */
}

static void test_generation(samara_engine* engine) {
    const int32_t tokens[] = {5, 6, 7, 8};
    samara_session* s = NULL;
    samara_sampler* sampler = NULL;
    samara_sampling sampling = {.struct_size = sizeof sampling, .temperature = 1, .seed = 3};
    OK(samara_sampler_create(&sampling, &sampler));
    OK(samara_session_create(engine, &s));
    int shown = 0;
    samara_generate_params p = {.struct_size = sizeof p, .sampler = sampler, .max_tokens = 5};
    p.on_token = count_tokens;
    p.user = &shown;
    samara_generate_result result = {.struct_size = sizeof result};
    REFUSED(samara_generate(s, &p, &result), SAMARA_INVALID_ARGUMENT); /* nothing to go on from */
    samara_step_input in = step_input(s, tokens, 4);
    samara_step_params step = step_params(&in, 1);
    OK(samara_step(engine, &step));
    OK(samara_generate(s, &p, &result));
    CHECK(result.reason == SAMARA_STOP_LIMIT && result.tokens == 5 && shown == 5 && samara_session_length(s) == 9);
    CHECK(result.steps + result.accepted == 5 && result.accepted <= result.drafted);
    OK(samara_generate(s, &p, NULL));

    samara_generate_result unsized = {0};
    REFUSED(samara_generate(s, &p, &unsized), SAMARA_INVALID_ARGUMENT);
    CHECK(shown == 10); /* refused before anything was generated */
    p.sampler = NULL;
    REFUSED(samara_generate(s, &p, &result), SAMARA_INVALID_ARGUMENT);
    p.sampler = sampler;
    p.end_token_count = 1;
    REFUSED(samara_generate(s, &p, &result), SAMARA_INVALID_ARGUMENT);
    p.end_token_count = 0;
    p.stop_string_count = 1;
    REFUSED(samara_generate(s, &p, &result), SAMARA_INVALID_ARGUMENT);
    p.stop_string_count = 0;
    p.max_draft = 16;
    REFUSED(samara_generate(s, &p, &result), SAMARA_INVALID_ARGUMENT);
    p.max_draft = UINT32_MAX;
    REFUSED(samara_generate(s, &p, &result), SAMARA_INVALID_ARGUMENT);
    p.max_draft = 0;
    p.speculation = (samara_speculation)3;
    REFUSED(samara_generate(s, &p, &result), SAMARA_INVALID_ARGUMENT);
    p.speculation = SAMARA_SPECULATION_OFF;
    CHECK(samara_session_length(s) == 14); /* all refused before anything was generated */
    p.stop_string_count = 1;
    const char* null_string[] = {NULL};
    p.stop_strings = null_string;
    REFUSED(samara_generate(s, &p, &result), SAMARA_INVALID_ARGUMENT);
    const char* strings[] = {"xy"};
    p.stop_strings = strings;
    REFUSED(samara_generate(s, &p, &result), SAMARA_INVALID_ARGUMENT);
    p.detokenize = lying_detokenizer;
    OK(samara_generate(s, &p, &result));
    CHECK(result.reason == SAMARA_STOP_LIMIT);

    sampling.temperature = -1;
    samara_sampler* none = sampler;
    REFUSED(samara_sampler_create(&sampling, &none), SAMARA_INVALID_ARGUMENT);
    CHECK(none == NULL);
    sampling.temperature = NAN;
    REFUSED(samara_sampler_create(&sampling, &none), SAMARA_INVALID_ARGUMENT);
    sampling.temperature = 1;
    sampling.top_k = UINT32_MAX;
    REFUSED(samara_sampler_create(&sampling, &none), SAMARA_INVALID_ARGUMENT);
    int32_t token = -1;
    const float logits[] = {1, NAN, 2};
    REFUSED(samara_sampler_choose(sampler, logits, 0, &token), SAMARA_INVALID_ARGUMENT);
    OK(samara_sampler_choose(sampler, logits, 3, &token));
    CHECK(token == 0 || token == 2);
    samara_sampler_free(sampler);
    samara_session_free(s);
}

static int cancel_at_once(uint64_t done, uint64_t total, void* user) {
    (void)done;
    (void)total;
    (void)user;
    return 0;
}

static void test_cancelled_load(void) {
    samara_load_params p = load_params();
    samara_engine* engine = NULL;
    p.progress = cancel_at_once;
    REFUSED(samara_load(&p, &engine), SAMARA_CANCELLED);
    CHECK(engine == NULL);
}

static void test_descriptor(void) {
    samara_load_params p = load_params();
    samara_engine* engine = NULL;
    p.use_descriptor = 1;
    p.descriptor = open(test_model_path(), O_RDONLY);
    p.path = NULL;
    p.metadata_only = 1;
    OK(samara_load(&p, &engine));
    samara_free(engine);
    p.offset = UINT64_MAX - 5;
    CHECK(samara_load(&p, &engine) != SAMARA_OK);
    p.offset = 0;
    p.length = UINT64_MAX;
    CHECK(samara_load(&p, &engine) != SAMARA_OK);
    p.length = 100;
    REFUSED(samara_load(&p, &engine), SAMARA_FORMAT);
    close(p.descriptor);
}

int main(void) {
    test_names();
    test_loading_refuses();
    test_damaged_file();
    test_older_caller();
    test_cancelled_load();
    test_descriptor();
    samara_load_params p = load_params();
    samara_engine* engine = NULL;
    OK(samara_load(&p, &engine));
    test_null_everywhere(engine);
    test_metadata(engine);
    test_steps(engine);
    test_generation(engine);
    samara_free(engine);
    if (failures == 0) puts("all checks passed");
    return failures == 0 ? 0 : 1;
}
