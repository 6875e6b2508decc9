// Drives text/include/samara_text.h from a script: requests on standard input, replies on standard output.
//
// Integers are little-endian, strings are a u64 length and bytes. A request is one letter and its fields:
//   G  model pre tokens[] types[] merges[] bos eos eot add_bos template   make the tokenizer from GGUF metadata
//   J  tokenizer_json config_json                                         make it from tokenizer.json
//   E  flags text                                                         encode: ids
//   D  skip_special ids[]                                                 decode as a stream: the text of each step
//   B  id                                                                 the bytes of one token
//   R, C  generation now messages tools variables template                render (text) or encode (ids) a chat
//   V                                                                     size, BOS, adds BOS, end ids
// A reply is a u64 status, 0 or followed by a message and an offset; then the result.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "samara_text.h"

static samara_text_tokenizer* tokenizer;

static void* checked(void* p) {
    if (p == NULL) {
        fputs("driver: out of memory\n", stderr);
        exit(1);
    }
    return p;
}

static void get(void* to, size_t size) {
    if (size != 0 && fread(to, 1, size, stdin) != size) {
        fputs("driver: a request ends early\n", stderr);
        exit(1);
    }
}

static int64_t get_i64(void) {
    int64_t value;
    get(&value, sizeof value);
    return value;
}

// The view's bytes are on the heap; released by drop().
static samara_text_view get_text(void) {
    size_t size = (size_t)get_i64();
    char* data = checked(malloc(size + 1));
    get(data, size);
    return (samara_text_view){data, size};
}

static void drop(samara_text_view view) { free((void*)view.data); }

static samara_text_view* get_texts(size_t* count) {
    *count = (size_t)get_i64();
    samara_text_view* views = checked(malloc((*count + 1) * sizeof *views));
    for (size_t i = 0; i < *count; ++i) views[i] = get_text();
    return views;
}

static void drop_texts(samara_text_view* views, size_t count) {
    for (size_t i = 0; i < count; ++i) drop(views[i]);
    free(views);
}

static void put(const void* from, size_t size) { fwrite(from, 1, size, stdout); }
static void put_i64(int64_t value) { put(&value, sizeof value); }

static void put_text(const char* data, size_t size) {
    put_i64((int64_t)size);
    put(data, size);
}

static int put_status(samara_text_status status, const samara_text_error* error) {
    put_i64(status);
    if (status != SAMARA_TEXT_OK) {
        put_text(error->message, strlen(error->message));
        put_i64((int64_t)error->offset);
    }
    return status == SAMARA_TEXT_OK;
}

static void put_ids(samara_text_ids* ids) {
    put_i64((int64_t)ids->size);
    put(ids->data, ids->size * sizeof *ids->data);
    samara_text_ids_free(ids);
}

static void make_from_gguf(void) {
    samara_text_gguf gguf = {0};
    samara_text_error error;
    gguf.model = get_text();
    gguf.pre = get_text();
    gguf.tokens = get_texts(&gguf.token_count);
    gguf.token_type_count = (size_t)get_i64();
    int32_t* types = checked(malloc((gguf.token_type_count + 1) * sizeof *types));
    get(types, gguf.token_type_count * sizeof *types);
    gguf.token_types = types;
    gguf.merges = get_texts(&gguf.merge_count);
    gguf.bos_id = get_i64();
    gguf.eos_id = get_i64();
    gguf.eot_id = get_i64();
    gguf.add_bos = (int32_t)get_i64();
    gguf.chat_template = get_text();
    samara_text_tokenizer_free(tokenizer);
    tokenizer = NULL;
    put_status(samara_text_from_gguf(&gguf, &tokenizer, &error), &error);
    drop(gguf.model);
    drop(gguf.pre);
    drop(gguf.chat_template);
    drop_texts((samara_text_view*)gguf.tokens, gguf.token_count);
    drop_texts((samara_text_view*)gguf.merges, gguf.merge_count);
    free(types);
}

static void make_from_json(void) {
    samara_text_error error;
    samara_text_view json = get_text();
    samara_text_view config = get_text();
    samara_text_tokenizer_free(tokenizer);
    tokenizer = NULL;
    put_status(samara_text_from_json(json, config, &tokenizer, &error), &error);
    drop(json);
    drop(config);
}

static void encode(void) {
    samara_text_error error;
    samara_text_ids ids = {0};
    uint32_t flags = (uint32_t)get_i64();
    samara_text_view text = get_text();
    if (put_status(samara_text_encode(tokenizer, text, flags, &ids, &error), &error)) put_ids(&ids);
    drop(text);
}

static void decode(void) {
    samara_text_error error;
    samara_text_decoder* decoder = NULL;
    int32_t skip = (int32_t)get_i64();
    size_t count = (size_t)get_i64();
    samara_text_status status = samara_text_decoder_new(tokenizer, skip, &decoder, &error);
    // Every step has a reply of its own: nothing is gathered, as in a program that streams.
    put_status(status, &error);
    for (size_t i = 0; i < count; ++i) {
        uint32_t id;
        samara_text_view text;
        get(&id, sizeof id);
        if (put_status(samara_text_decoder_push(decoder, id, &text, &error), &error)) put_text(text.data, text.size);
    }
    samara_text_view text;
    if (put_status(samara_text_decoder_flush(decoder, &text, &error), &error)) put_text(text.data, text.size);
    samara_text_decoder_free(decoder);
}

static void token_bytes(void) {
    samara_text_error error;
    samara_text_view view;
    uint32_t id = (uint32_t)get_i64();
    if (put_status(samara_text_token_bytes(tokenizer, id, &view, &error), &error)) put_text(view.data, view.size);
}

static void chat(int render) {
    samara_text_error error;
    samara_text_chat chat = {0};
    chat.add_generation_prompt = (int32_t)get_i64();
    chat.now = get_i64();
    chat.messages_json = get_text();
    chat.tools_json = get_text();
    chat.variables_json = get_text();
    chat.template_source = get_text();
    if (render) {
        samara_text_bytes text = {0};
        if (put_status(samara_text_chat_render(tokenizer, &chat, &text, &error), &error))
            put_text(text.data, text.size);
        samara_text_bytes_free(&text);
    } else {
        samara_text_ids ids = {0};
        if (put_status(samara_text_chat_encode(tokenizer, &chat, &ids, &error), &error)) put_ids(&ids);
    }
    drop(chat.messages_json);
    drop(chat.tools_json);
    drop(chat.variables_json);
    drop(chat.template_source);
}

static void facts(void) {
    size_t count;
    const uint32_t* ends = samara_text_end_ids(tokenizer, &count);
    put_i64((int64_t)samara_text_vocab_size(tokenizer));
    put_i64(samara_text_bos(tokenizer));
    put_i64(samara_text_add_bos(tokenizer));
    put_i64((int64_t)count);
    put(ends, count * sizeof *ends);
}

int main(void) {
    for (int command; (command = getchar()) != EOF; fflush(stdout)) {
        switch (command) {
            case 'G':
                make_from_gguf();
                break;
            case 'J':
                make_from_json();
                break;
            case 'E':
                encode();
                break;
            case 'D':
                decode();
                break;
            case 'B':
                token_bytes();
                break;
            case 'R':
                chat(1);
                break;
            case 'C':
                chat(0);
                break;
            case 'V':
                facts();
                break;
            default:
                fprintf(stderr, "driver: unknown request %c\n", command);
                return 1;
        }
    }
    samara_text_tokenizer_free(tokenizer);
    return 0;
}
