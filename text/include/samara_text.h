#ifndef SAMARA_TEXT_H
#define SAMARA_TEXT_H
/*
 * Samara's text layer: tokenizer, streaming detokenizer and chat templates.
 *
 * Errors. A function that can fail returns a samara_text_status and takes a `samara_text_error*` that the caller owns
 * (on its stack, say) or NULL. On failure the struct holds the status, a message for a person and, where it applies,
 * a byte offset; on success it is left alone. Output parameters are written only on success. No panic and no exception
 * leaves the library.
 *
 * Ownership. Views are borrowed for the length of the call; nothing keeps a caller's pointer. Handles and results
 * belong to the caller and go back through their `_free` function, which accepts NULL or an empty result.
 *
 * Threads. A tokenizer never changes after it is made: any number of threads may use one at once. A decoder belongs
 * to one thread at a time.
 *
 * Text. Text is UTF-8 with a length; NUL is an ordinary character. Bytes that are not UTF-8 (a lone surrogate in
 * three-byte form included) are refused with SAMARA_TEXT_INVALID_UTF8 and the offset of the first bad byte. A lone
 * surrogate as a JSON escape ("\ud800") is refused as SAMARA_TEXT_INVALID_ARGUMENT. Nothing is replaced on the way in.
 *
 * The library reads no file, no clock and no environment variable, and opens no connection.
 */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum samara_text_status {
    SAMARA_TEXT_OK = 0,
    SAMARA_TEXT_INVALID_ARGUMENT = 1, /* a NULL, an id out of range, malformed JSON, no chat template */
    SAMARA_TEXT_INVALID_UTF8 = 2,     /* input text is not UTF-8; samara_text_error.offset says where */
    SAMARA_TEXT_UNSUPPORTED = 3,      /* a kind of tokenizer that this library does not do */
    SAMARA_TEXT_BAD_TOKENIZER = 4,    /* tokenizer data that contradicts itself */
    SAMARA_TEXT_TEMPLATE = 5,         /* the chat template is wrong, or called raise_exception */
    SAMARA_TEXT_INTERNAL = 6          /* a bug in this library */
} samara_text_status;

typedef struct samara_text_error {
    samara_text_status status;
    size_t offset;      /* byte offset into the text for SAMARA_TEXT_INVALID_UTF8, else 0 */
    char message[1008]; /* UTF-8, ends in NUL, cut at a character if it would not fit */
} samara_text_error;

/* Borrowed bytes. An empty view (size 0, data NULL or not) means "absent" where a field is optional. */
typedef struct samara_text_view {
    const char* data;
    size_t size;
} samara_text_view;

typedef struct samara_text_ids {
    uint32_t* data; /* (size) */
    size_t size;
} samara_text_ids;

typedef struct samara_text_bytes {
    char* data; /* (size), not NUL-terminated */
    size_t size;
} samara_text_bytes;

void samara_text_ids_free(samara_text_ids* ids);       /* also sets it empty */
void samara_text_bytes_free(samara_text_bytes* bytes); /* also sets it empty */

/* ---- Tokenizer ---------------------------------------------------------------------------------------------- */

typedef struct samara_text_tokenizer samara_text_tokenizer;

/* The tokenizer.* keys of a GGUF file. Zero-initialise, then set the ids and add_bos: see below. */
typedef struct samara_text_gguf {
    samara_text_view model; /* tokenizer.ggml.model: "gpt2" */
    samara_text_view pre; /* tokenizer.ggml.pre: "qwen2", "llama-bpe", "smollm", "gpt-2", "default"; absent: default */
    const samara_text_view* tokens; /* (token_count) tokenizer.ggml.tokens */
    size_t token_count;
    const int32_t* token_types;     /* (token_count) tokenizer.ggml.token_type, or NULL: all normal */
    size_t token_type_count;        /* must equal token_count unless token_types is NULL */
    const samara_text_view* merges; /* (merge_count) tokenizer.ggml.merges, each "left right" */
    size_t merge_count;
    int64_t bos_id;  /* tokenizer.ggml.bos_token_id, or -1 */
    int64_t eos_id;  /* tokenizer.ggml.eos_token_id, or -1 */
    int64_t eot_id;  /* tokenizer.ggml.eot_token_id, or -1 */
    int32_t add_bos; /* tokenizer.ggml.add_bos_token: 0 or 1; -1 if absent: then only "llama-bpe" adds it */
    samara_text_view chat_template; /* tokenizer.chat_template, optional */
} samara_text_gguf;

samara_text_status samara_text_from_gguf(const samara_text_gguf* metadata, samara_text_tokenizer** out,
                                         samara_text_error* error);

/* From the bytes of a Hugging Face tokenizer.json: a BPE model with a ByteLevel decoder. `config` is the text of
 * tokenizer_config.json (bos_token, eos_token and chat_template are read) and may be absent. */
samara_text_status samara_text_from_json(samara_text_view tokenizer_json, samara_text_view config_json,
                                         samara_text_tokenizer** out, samara_text_error* error);

void samara_text_tokenizer_free(samara_text_tokenizer* tokenizer);

/* Special tokens are GGUF's control tokens (type 3), tokenizer.json's added tokens with "special": true. User-defined
 * tokens (type 4; "special": false, such as Qwen's <think>) are part of the text and always match as a whole, as in
 * Hugging Face's library. */
enum {
    /* Special tokens written in the text become that token. Without it they are ordinary text. */
    SAMARA_TEXT_PARSE_SPECIAL = 1,
    /* Add what the model's own configuration adds around a text: BOS if the GGUF says so, or whatever the
     * post-processor of tokenizer.json adds. */
    SAMARA_TEXT_ADD_SPECIAL = 2
};

/* Ids equal those of Hugging Face's library, and like it drop a byte for which the vocabulary has no token (SmolLM2's
 * lacks a few control characters). Over 500,000 white-space characters in a row are SAMARA_TEXT_INVALID_ARGUMENT. */
samara_text_status samara_text_encode(const samara_text_tokenizer* tokenizer, samara_text_view text, uint32_t flags,
                                      samara_text_ids* out, samara_text_error* error);

/* One more than the highest id. */
size_t samara_text_vocab_size(const samara_text_tokenizer* tokenizer);

/* The bytes that a token stands for; they may be a part of a character, or none for an unused id. The view is valid
 * for the life of the tokenizer. */
samara_text_status samara_text_token_bytes(const samara_text_tokenizer* tokenizer, uint32_t id, samara_text_view* out,
                                           samara_text_error* error);

/* The id of the token whose text is exactly `text` (special tokens included), or -1. */
int64_t samara_text_token_id(const samara_text_tokenizer* tokenizer, samara_text_view text);

/* 1 for a special token, else 0. */
int32_t samara_text_is_special(const samara_text_tokenizer* tokenizer, uint32_t id);

int64_t samara_text_bos(const samara_text_tokenizer* tokenizer);     /* id or -1 */
int32_t samara_text_add_bos(const samara_text_tokenizer* tokenizer); /* 1 if SAMARA_TEXT_ADD_SPECIAL adds BOS */
/* Every token that ends a turn or a text, ascending: the configured ones and the special tokens known by name
 * (<|im_end|>, <|endoftext|>, <|eot_id|> and so on). The array is valid for the life of the tokenizer. */
const uint32_t* samara_text_end_ids(const samara_text_tokenizer* tokenizer, size_t* count);

/* ---- Streaming detokenizer ---------------------------------------------------------------------------------- */

typedef struct samara_text_decoder samara_text_decoder;

/* Keeps its own reference to the vocabulary: the tokenizer may be freed first. With skip_special, special tokens
 * produce no text. */
samara_text_status samara_text_decoder_new(const samara_text_tokenizer* tokenizer, int32_t skip_special,
                                           samara_text_decoder** out, samara_text_error* error);
void samara_text_decoder_free(samara_text_decoder* decoder);

/* Appends a token and gives the text that is now complete: always whole UTF-8 characters, possibly none. Bytes that
 * cannot become a character are replaced by U+FFFD, one for each maximal invalid part, as in Hugging Face's library.
 * The view is valid until the next call on this decoder. An id out of range is an error and changes nothing. */
samara_text_status samara_text_decoder_push(samara_text_decoder* decoder, uint32_t id, samara_text_view* out,
                                            samara_text_error* error);
/* Ends the text: an unfinished character becomes U+FFFD. The decoder is then as new. */
samara_text_status samara_text_decoder_flush(samara_text_decoder* decoder, samara_text_view* out,
                                             samara_text_error* error);

/* ---- Chat templates ----------------------------------------------------------------------------------------- */

typedef struct samara_text_chat {
    samara_text_view messages_json;   /* array of {"role":…, "content":…, …} */
    samara_text_view tools_json;      /* array, optional */
    samara_text_view variables_json;  /* object of further variables, such as {"enable_thinking": false}, optional */
    samara_text_view template_source; /* used instead of the model's own template, optional */
    int32_t add_generation_prompt;    /* 0 or 1 */
    int64_t now;                      /* local time, in seconds since 1970-01-01 00:00 local, for strftime_now */
} samara_text_chat;

/* 1 if the tokenizer carries a chat template. */
int32_t samara_text_has_chat_template(const samara_text_tokenizer* tokenizer);

/* The conversation as one text, equal to that of Hugging Face's apply_chat_template(tokenize=False). */
samara_text_status samara_text_chat_render(const samara_text_tokenizer* tokenizer, const samara_text_chat* chat,
                                           samara_text_bytes* out, samara_text_error* error);

/*
 * The conversation as tokens. Special tokens that the template writes become tokens; special tokens that stand in a
 * message, a tool or a variable stay ordinary text, so that nobody can end a turn from inside it.
 *
 * How: in every JSON string, the character that starts a special token (and "|") is exchanged for a Unicode
 * noncharacter that occurs nowhere in the input; the template is rendered; special tokens are looked for; and only
 * then, piece by piece, the characters are changed back and the text between the tokens is encoded. The exchange is
 * one for one, so that lengths hold, and it spares the tags that the template itself may look for, such as <think>.
 * Without special tokens in the messages the ids equal those of Hugging Face's apply_chat_template(tokenize=True).
 * A special token whose text starts with a letter or a digit is never recognised here.
 */
samara_text_status samara_text_chat_encode(const samara_text_tokenizer* tokenizer, const samara_text_chat* chat,
                                           samara_text_ids* out, samara_text_error* error);

#ifdef __cplusplus
}
#endif
#endif
