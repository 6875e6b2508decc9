/* Samara: the stable C interface.
 *
 * An engine holds one model; a session is one sequence of tokens with its own keys and values. Everything else
 * (command line, server, bindings) is built on this header. The library opens no socket and writes no file.
 *
 * Conventions
 *  - Functions return a samara_status; SAMARA_OK is 0. samara_last_error() describes the calling thread's last failure.
 *  - Structs that a caller fills begin with struct_size = sizeof(the struct): later versions may add fields at the end.
 *    Zero means the documented default in every field.
 *  - Strings are UTF-8 and NUL-terminated unless a length stands beside them.
 *  - An engine may be used from several threads; its steps run one after the other. A session belongs to one thread at
 *    a time. samara_session_cancel may be called from any thread at any time.
 *  - Callbacks of a load or a step run while the engine is locked: of this header's functions they may call
 *    samara_session_cancel only. Those of samara_generate are free to call any, on other sessions.
 *  - A result's bits depend on its sequence alone: not on instruction set, threads, chunks, batching or cache state.
 */
#ifndef SAMARA_SAMARA_H
#define SAMARA_SAMARA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SAMARA_API __attribute__((visibility("default")))
#else
#define SAMARA_API
#endif

typedef enum samara_status {
    SAMARA_OK = 0,
    SAMARA_INVALID_ARGUMENT = 1, /* the caller passed something out of range */
    SAMARA_IO = 2,               /* the system refused a read, open or map */
    SAMARA_FORMAT = 3,           /* a file is truncated, corrupt or hostile */
    SAMARA_UNSUPPORTED = 4,      /* valid, but not done by this engine or CPU */
    SAMARA_MEMORY = 5,           /* over the memory budget, or the system has no more */
    SAMARA_CONTEXT_FULL = 6,     /* the session has no position left */
    SAMARA_CANCELLED = 7,        /* the caller asked to stop */
    SAMARA_NUMERIC = 8,          /* a non-finite value in the forward pass */
    SAMARA_INTERNAL = 9          /* a bug in Samara */
} samara_status;

typedef struct samara_engine samara_engine;
typedef struct samara_session samara_session;
typedef struct samara_sampler samara_sampler;

/* Message of the calling thread's last failed call; valid until its next call. Never NULL. */
SAMARA_API const char *samara_last_error(void);
SAMARA_API const char *samara_version(void);          /* "0.1.0" */
SAMARA_API uint32_t samara_numerics_version(void);    /* equal numbers: equal bits */
SAMARA_API const char *samara_cpu_name(void);         /* as the system reports it */
/* Names of the instruction sets this CPU can run, slowest first, separated by spaces: "scalar avx2 avx512". */
SAMARA_API const char *samara_supported_isas(void);

/* ---- loading ---- */

/* Called during loading, from the loading thread; return 0 to cancel. */
typedef int (*samara_progress_fn)(uint64_t done_bytes, uint64_t total_bytes, void *user);

typedef struct samara_load_params {
    size_t struct_size;
    const char *path;        /* GGUF, packed file, .safetensors, or a folder of them */
    int use_descriptor;      /* nonzero: read from `descriptor` instead; path, if set, is used in messages */
    int descriptor;          /* stays the caller's; must stay open until loading returns */
    uint64_t offset;         /* first byte of the model inside the descriptor */
    uint64_t length;         /* 0: to the end */
    const char *isa;         /* NULL or "auto": the fastest this CPU runs; a file packed in the dense layout is then
                              * SAMARA_UNSUPPORTED where that would be slow */
    uint32_t threads;        /* 0: all CPUs this process may use */
    uint64_t memory_budget;  /* bytes for everything, file pages included; 0: no budget */
    uint64_t context_tokens; /* positions a session may have; 0: the smaller of 4096 and the model's context */
    uint32_t max_sessions;   /* sessions alive at a time, forks included; 0: 4 */
    uint32_t max_step_tokens; /* tokens of one step at most (a prompt is cut into such chunks); 0: 512 */
    uint32_t rewind_span;    /* positions before the window kept for steps back; 0: 1024 */
    int metadata_only;       /* nonzero: read headers and metadata, no weights; such an engine makes no sessions */
    samara_progress_fn progress;
    void *user;
    const char *head;        /* how samara_generate reads the vocabulary head: NULL or "full"; "screened": in part where
                              * that gives the same tokens (greedy, or top-k of at most 256); "checked": both, compared;
                              * "flash": approximately, from a file with a flash index: tokens outside the clusters that
                              * are read count as absent, and nothing is drafted; "flash-checked": the same, compared */
    const char *kv;          /* keys and values are kept as NULL or "int16"; or as "int8": half the memory and reads, and
                              * other logits (docs/decisions/int8-kv.md) */
} samara_load_params;

/* Bytes, by part. total is what the engine may hold at most; it is compared with the budget before loading. */
typedef struct samara_memory_plan {
    size_t struct_size;
    uint64_t weights_mapped; /* pages of the file, which the system may drop and read again */
    uint64_t weights_owned;  /* weights repacked into the process's own memory (0 for a packed file) */
    uint64_t kv_cache;       /* all sessions, at full context */
    uint64_t scratch;
    uint64_t total;
} samara_memory_plan;

/* What loading would take; reads headers, not weights (but samples them where a layout depends on values). */
SAMARA_API samara_status samara_plan(const samara_load_params *params, samara_memory_plan *plan);
/* Loads a model. On success *engine is the caller's, to be freed after all of its sessions. */
SAMARA_API samara_status samara_load(const samara_load_params *params, samara_engine **engine);
SAMARA_API void samara_free(samara_engine *engine);

typedef struct samara_model_info {
    size_t struct_size;
    const char *architecture; /* owned by the engine, as are the strings below */
    const char *name;         /* may be "" */
    const char *format;       /* "GGUF v3", "packed", "safetensors (MLX 2-bit)" ... */
    const char *isa;
    uint32_t threads;
    uint32_t layers, hidden, vocab, experts, experts_used, sliding_window;
    uint64_t context_tokens;       /* positions a session may have */
    uint64_t trained_context;      /* positions the model was trained for */
    uint64_t parameters, parameters_per_token;
    uint64_t file_bytes;
    samara_memory_plan memory;     /* as loaded */
    /* Bytes one token's pass reads, by part; KV at the given position comes from samara_kv_bytes. */
    uint64_t bytes_attention, bytes_experts, bytes_router, bytes_head, bytes_embedding;
} samara_model_info;

SAMARA_API samara_status samara_get_model_info(const samara_engine *engine, samara_model_info *info);
SAMARA_API uint64_t samara_kv_bytes(const samara_engine *engine, uint64_t position); /* read for one token there */
SAMARA_API uint64_t samara_head_bytes(const samara_engine *engine); /* of the head, a generated token; the mean so far */

/* How often an approximate head ("flash-checked") read the tokens that the whole head finds best. */
typedef struct samara_flash_agreement {
    size_t struct_size;
    uint64_t steps;    /* that read the head approximately */
    uint64_t compared; /* of them, with the whole head */
    uint64_t best;     /* compared steps whose best token was read */
    uint64_t top20;    /* of the 20 best tokens of every compared step, how many were read */
} samara_flash_agreement;

SAMARA_API samara_status samara_get_flash_agreement(const samara_engine *engine, samara_flash_agreement *agreement);

/* Wall time of all steps so far, in seconds, by the parts whose bytes are counted; kv: attending to the cache. */
typedef struct samara_step_seconds {
    size_t struct_size;
    double attention, kv, router, experts, head;
} samara_step_seconds;

SAMARA_API samara_status samara_get_step_seconds(const samara_engine *engine, samara_step_seconds *seconds);

/* Metadata of the model file, by GGUF key. Pointers are the engine's and live as long as it does. SAMARA_FORMAT when
 * the key is absent or of another kind. */
SAMARA_API samara_status samara_meta_string(const samara_engine *engine, const char *key, const char **value, size_t *length);
SAMARA_API samara_status samara_meta_int(const samara_engine *engine, const char *key, int64_t *value);
SAMARA_API samara_status samara_meta_strings(const samara_engine *engine, const char *key, size_t *count);
SAMARA_API samara_status samara_meta_string_at(const samara_engine *engine, const char *key, size_t index,
                                               const char **value, size_t *length);
SAMARA_API samara_status samara_meta_int_at(const samara_engine *engine, const char *key, size_t index, int64_t *value);

/* ---- sessions ---- */

SAMARA_API samara_status samara_session_create(samara_engine *engine, samara_session **session);
/* A session with the same tokens, sharing pages until either writes. Counts against max_sessions. */
SAMARA_API samara_status samara_session_fork(const samara_session *session, samara_session **fork);
SAMARA_API void samara_session_free(samara_session *session);
SAMARA_API uint64_t samara_session_length(const samara_session *session);
/* The tokens so far; valid until the session changes. */
SAMARA_API const int32_t *samara_session_tokens(const samara_session *session);
/* Keeps the first `length` tokens. When a sliding layer no longer has the keys needed there, *reprocess (may be NULL)
 * is the number of tokens that the next step will first process again, else 0. The logits of the last token are gone. */
SAMARA_API samara_status samara_session_truncate(samara_session *session, uint64_t length, uint64_t *reprocess);
/* Makes the running and every following step of this session fail with SAMARA_CANCELLED, until samara_session_resume. */
SAMARA_API void samara_session_cancel(samara_session *session);
SAMARA_API void samara_session_resume(samara_session *session);

/* ---- stepping ---- */

typedef enum samara_logits_wanted {
    SAMARA_LOGITS_LAST = 0, /* of the last token; kept in the session, see samara_session_logits */
    SAMARA_LOGITS_NONE = 1,
    SAMARA_LOGITS_ALL = 2   /* of every token, through the callback; the last one is kept as well */
} samara_logits_wanted;

typedef struct samara_step_input {
    size_t struct_size;
    samara_session *session; /* each session at most once a step */
    const int32_t *tokens;   /* ids in [0, vocab) */
    uint32_t count;          /* any number: cut into chunks of max_step_tokens */
    samara_logits_wanted logits;
    uint16_t *experts;       /* optional out: (count, layers, experts_used), router-rank order */
} samara_step_input;

/* Receives logits (vocab floats, valid during the call) of token `token` of input `input`. */
typedef void (*samara_logits_fn)(uint32_t input, uint32_t token, const float *logits, void *user);
/* Called after each chunk with the tokens done so far, all inputs together; return 0 to cancel. */
typedef int (*samara_step_progress_fn)(uint64_t done_tokens, uint64_t total_tokens, void *user);

typedef struct samara_step_params {
    size_t struct_size;
    const samara_step_input *inputs;
    uint32_t input_count;
    uint32_t chunk;          /* tokens a pass at most; 0: max_step_tokens */
    samara_logits_fn on_logits;
    samara_step_progress_fn on_progress;
    void *user;
} samara_step_params;

/* Adds tokens to sessions, one pass over the weights for all of them. On failure each session keeps the tokens of the
 * chunks that were completed. SAMARA_CONTEXT_FULL is reported before anything is processed. */
SAMARA_API samara_status samara_step(samara_engine *engine, const samara_step_params *params);
/* Logits of the session's last token, vocab floats; valid until the session changes. SAMARA_INVALID_ARGUMENT when the
 * last step asked for none. */
SAMARA_API samara_status samara_session_logits(const samara_session *session, const float **logits);

/* ---- sampling ---- */

typedef struct samara_sampling {
    size_t struct_size;
    float temperature;        /* 0: greedy, the largest logit, ties to the lower id */
    uint32_t top_k;           /* 0: all */
    float top_p;              /* 0 or 1: off */
    float min_p;              /* 0: off; relative to the most probable token */
    float repetition_penalty; /* 0 or 1: off; divides positive, multiplies negative logits of recent tokens */
    float presence_penalty;   /* 0: off; subtracted from the logits of recent tokens */
    uint32_t penalty_last;    /* tokens that count as recent; 0: 64 */
    uint64_t seed;            /* equal seeds, equal choices */
} samara_sampling;

/* Checks and copies the settings. A sampler holds its random state and the recent tokens. */
SAMARA_API samara_status samara_sampler_create(const samara_sampling *sampling, samara_sampler **sampler);
SAMARA_API void samara_sampler_free(samara_sampler *sampler);
/* Tells the sampler of a token that was not its own choice (the prompt), for the penalties. */
SAMARA_API void samara_sampler_accept(samara_sampler *sampler, int32_t token);
/* Chooses from vocab logits and accepts the choice. Order: penalties, top_k, temperature, top_p, min_p. */
SAMARA_API samara_status samara_sampler_choose(samara_sampler *sampler, const float *logits, uint32_t vocab, int32_t *token);

/* ---- generation ---- */

typedef enum samara_stop_reason {
    SAMARA_STOP_LIMIT = 0,        /* max_tokens */
    SAMARA_STOP_END_TOKEN = 1,
    SAMARA_STOP_STRING = 2,
    SAMARA_STOP_CONTEXT_FULL = 3, /* the session has no position left: never silent */
    SAMARA_STOP_CALLBACK = 4,     /* the callback returned 0 */
    SAMARA_STOP_CANCELLED = 5
} samara_stop_reason;

/* A new token; `text` are the bytes that became certain with it (empty while a character or a possible stop string is
 * incomplete; without a detokenizer always empty). The call after the last token has token -1 and the rest of the text.
 * Return 0 to stop. */
typedef int (*samara_token_fn)(int32_t token, const char *text, size_t length, void *user);
/* Writes the text that `token` adds to a stream to buffer (at most `capacity` bytes) and returns its length; complete
 * UTF-8 characters only. token -1 ends the stream and returns what is left. */
typedef size_t (*samara_detokenize_fn)(int32_t token, char *buffer, size_t capacity, void *user);

/* Where the text repeats itself, tokens can be drafted from what followed before, computed in one step, and kept while
 * they are what the sampler draws. The tokens, callbacks and stops are those of plain decoding; callbacks of one step come
 * right after each other. */
typedef enum samara_speculation {
    SAMARA_SPECULATION_AUTO = 0,  /* where it is expected to be faster */
    SAMARA_SPECULATION_OFF = 1,
    SAMARA_SPECULATION_ALWAYS = 2 /* wherever the text repeats, at full length: for measuring */
} samara_speculation;

typedef struct samara_generate_params {
    size_t struct_size;
    samara_sampler *sampler;        /* required */
    uint32_t max_tokens;            /* 0: until the context is full */
    const int32_t *end_tokens;      /* ids that end the answer; they are not passed to on_token */
    uint32_t end_token_count;
    const char *const *stop_strings; /* the text up to, not including, the first match is emitted */
    uint32_t stop_string_count;
    samara_detokenize_fn detokenize; /* required with stop strings */
    samara_token_fn on_token;
    void *user;                     /* for on_token and detokenize */
    samara_speculation speculation;
    uint32_t max_draft;             /* tokens drafted for a step at most, up to 15; 0: 8 */
} samara_generate_params;

typedef struct samara_generate_result {
    size_t struct_size;
    samara_stop_reason reason;
    uint32_t tokens;          /* generated and kept in the session, the end token included */
    uint32_t stop_string;     /* index, when reason is SAMARA_STOP_STRING */
    double seconds;
    uint32_t steps;             /* passes over the weights */
    uint32_t drafted, accepted; /* tokens, of all drafts */
} samara_generate_result;

/* Generates from the session's last logits: sample, emit, step, repeat. The session ends holding every emitted token.
 * Afterwards the session's last logits are those after its last token, so that generation can go on. */
SAMARA_API samara_status samara_generate(samara_session *session, const samara_generate_params *params,
                                         samara_generate_result *result);

#ifdef __cplusplus
}
#endif
#endif
