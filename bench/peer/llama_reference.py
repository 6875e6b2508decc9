#!/usr/bin/env python3
"""llama.cpp, driven through llama-cpp-python's low-level interface: a second opinion on logits, greedy tokens and
perplexity, and one of the peers of the speed bench. Run it with the Python of the peers' venv.

  llama_reference.py logits -m M.gguf --tokens IDS.txt --out L.f32      float32 [tokens, vocabulary]
  llama_reference.py greedy -m M.gguf --tokens IDS.txt -n 200           {"tokens": [...], "margins": [...]}
  llama_reference.py perplexity -m M.gguf --tokens IDS.txt              {"perplexity": ..., "tokens": ...}
  llama_reference.py tokenize -m M.gguf -f TEXT                         ids, space separated
  llama_reference.py bench -m M.gguf --prompt-tokens 512 --gen-tokens 64 --threads 2

IDS.txt holds token ids separated by white space or commas. Everything is printed as JSON except ids."""

import argparse
import ctypes
import hashlib
import json
import re
import sys
import time

import llama_cpp
import numpy as np

KV_TYPES = {"f32": 0, "f16": 1}  # ggml's numbers


@llama_cpp.llama_log_callback
def keep_errors_only(level, text, _):
    if level == 4:  # GGML_LOG_LEVEL_ERROR
        sys.stderr.write(text.decode(errors="replace"))


class Model:
    """One model with one context of one sequence."""

    def __init__(self, path, context, threads, batch=512, kv="f16", all_logits=False):
        llama_cpp.llama_log_set(keep_errors_only, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model_options = llama_cpp.llama_model_default_params()
        model_options.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), model_options)
        if not self.model:
            sys.exit(f"{path}: llama.cpp cannot load it")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = context
        options.n_batch = batch
        options.n_ubatch = batch
        options.n_seq_max = 1
        options.n_threads = options.n_threads_batch = threads
        options.type_k = options.type_v = KV_TYPES[kv]
        if kv == "f32":  # flash attention rounds to half precision on its way: 2e-4 to 6e-4 of the logits
            options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.no_perf = True
        if all_logits:
            options.n_outputs_max = batch
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        if not self.context:
            sys.exit(f"{path}: llama.cpp cannot make a context of {context} tokens")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocabulary_size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.chunk = batch
        self.batch = llama_cpp.llama_batch_init(batch, 0, 1)
        self.position = 0

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.position = 0

    def step(self, tokens, want_all=False):
        """Adds at most `chunk` tokens; returns the number of rows of logits (all, or the last one's)."""
        assert 0 < len(tokens) <= self.chunk
        self.batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            self.batch.token[i] = token
            self.batch.pos[i] = self.position + i
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = 0
            self.batch.logits[i] = want_all or i == len(tokens) - 1
        result = llama_cpp.llama_decode(self.context, self.batch)
        if result != 0:
            sys.exit(f"llama_decode failed with {result} at position {self.position}")
        self.position += len(tokens)

    def logits(self, index):
        """The logits of the last step's token `index`; a view that the next step overwrites."""
        pointer = llama_cpp.llama_get_logits_ith(self.context, index)
        return np.ctypeslib.as_array(pointer, shape=(self.vocabulary_size,))

    def all_logits(self, tokens):
        """Yields the logits of each position in order."""
        for start in range(0, len(tokens), self.chunk):
            part = tokens[start:start + self.chunk]
            self.step(part, want_all=True)
            for i in range(len(part)):
                yield self.logits(i)

    def prefill(self, tokens):
        for start in range(0, len(tokens), self.chunk):
            part = tokens[start:start + self.chunk]
            self.step(part)
        return self.logits(len(part) - 1)


def read_ids(path):
    with open(path, encoding="ascii") as file:
        ids = [int(word) for word in re.split(r"[\s,\[\]]+", file.read()) if word]
    if not ids:
        sys.exit(f"{path}: expected token ids, found none")
    return ids


def open_model(args, tokens, extra=0, all_logits=False):
    model = Model(args.model, len(tokens) + extra, args.threads, kv=args.kv, all_logits=all_logits)
    bad = [token for token in tokens if not 0 <= token < model.vocabulary_size]
    if bad:
        sys.exit(f"{args.tokens}: token {bad[0]} is outside the vocabulary of {model.vocabulary_size}")
    return model


def write_logits(args):
    tokens = read_ids(args.tokens)
    model = open_model(args, tokens, all_logits=True)
    digest = hashlib.sha256()
    with open(args.out, "wb") as out:
        for row in model.all_logits(tokens):
            data = row.astype("<f4").tobytes()
            digest.update(data)
            out.write(data)
    print(json.dumps({"tokens": len(tokens), "vocabulary": model.vocabulary_size, "sha256": digest.hexdigest()}))


def greedy(args):
    tokens = read_ids(args.tokens)
    model = open_model(args, tokens, extra=args.count)
    chosen, margins = [], []
    row = model.prefill(tokens)
    for step in range(args.count):
        second, best = np.partition(row, -2)[-2:]
        chosen.append(int(row.argmax()))
        margins.append(float(best - second))
        if step + 1 < args.count:
            model.step(chosen[-1:])
            row = model.logits(0)
    print(json.dumps({"tokens": chosen, "margins": margins}))


def perplexity(args):
    """exp of the mean negative log-likelihood of tokens 1..n-1, each given all before it, in one context."""
    tokens = read_ids(args.tokens)
    model = open_model(args, tokens, all_logits=True)
    total = 0.0
    for i, row in enumerate(model.all_logits(tokens)):
        if i + 1 < len(tokens):
            wide = row.astype(np.float64)
            top = wide.max()
            total += top + np.log(np.exp(wide - top).sum()) - wide[tokens[i + 1]]
    print(json.dumps({"perplexity": float(np.exp(total / (len(tokens) - 1))), "tokens": len(tokens)}))


def tokenize(args):
    model = Model(args.model, 64, args.threads)
    with open(args.file, "rb") as file:
        text = file.read()
    ids = (llama_cpp.llama_token * (len(text) + 16))()
    count = llama_cpp.llama_tokenize(model.vocab, text, len(text), ids, len(ids), args.special, False)
    print(*ids[:count])


def bench_tokens(count, vocabulary_size):
    """The prompt of the speed bench: the ids that `samara bench` uses."""
    tokens, state = [], 20260801
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        tokens.append((state >> 33) % vocabulary_size)
    return tokens


def bench(args):
    begin = time.perf_counter()
    context = args.prompt_tokens + args.gen_tokens + 8
    model = Model(args.model, context, args.threads, batch=min(512, args.prompt_tokens))
    load = time.perf_counter() - begin
    prompt = bench_tokens(args.prompt_tokens, model.vocabulary_size)

    model.prefill(prompt)  # the warm-up is the same work: pages, buffers and threads are ready afterwards
    for token in prompt[:4]:
        model.step([token])
        model.logits(0)
    model.clear()

    begin = time.perf_counter()
    row = model.prefill(prompt)
    prefill_seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    for _ in range(args.gen_tokens):
        model.step([int(row.argmax())])
        row = model.logits(0)
    decode_seconds = time.perf_counter() - begin
    print(json.dumps({"prefill_tps": args.prompt_tokens / prefill_seconds,
                      "decode_tps": args.gen_tokens / decode_seconds, "load_ms": load * 1000,
                      "system": llama_cpp.llama_print_system_info().decode()}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)

    def command(name, function, ids=True):
        sub = commands.add_parser(name)
        sub.set_defaults(function=function)
        sub.add_argument("-m", "--model", required=True)
        sub.add_argument("--threads", type=int, default=2)
        if ids:
            sub.add_argument("--tokens", required=True, help="file of token ids")
            sub.add_argument("--kv", choices=KV_TYPES, default="f32", help="type of its KV cache, default %(default)s")
        return sub

    command("logits", write_logits).add_argument("--out", required=True)
    command("greedy", greedy).add_argument("-n", "--count", type=int, default=200)
    command("perplexity", perplexity)
    sub = command("tokenize", tokenize, ids=False)
    sub.add_argument("-f", "--file", required=True)
    sub.add_argument("--special", action="store_true", help="add what the model adds at the beginning")
    sub = command("bench", bench, ids=False)
    sub.add_argument("--prompt-tokens", type=int, default=512)
    sub.add_argument("--gen-tokens", type=int, default=64)
    args = parser.parse_args()
    args.function(args)


if __name__ == "__main__":
    main()
