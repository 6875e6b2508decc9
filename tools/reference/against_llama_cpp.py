#!/usr/bin/env python3
"""Compares logits and greedy tokens with llama.cpp (PyPI's xllamacpp, an unchanged prebuilt build).

By default the float64 reference is compared, which checks the judge itself: on F32 files the two agree to float32's
rounding. With --samara the engine is. llama.cpp keeps keys and values in F32 here and runs without flash attention,
which would accumulate in F16; on quantised files it still rounds its activations, and so differs.

Greedy: llama.cpp continues the prompt; the engine's logits over prompt and continuation must then have their maximum at
each of its tokens. That is the same as stepping, and shows the margin wherever they differ.

Needs: tools/reference/python -m pip install --no-deps xllamacpp==2026.10.11549
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # see compare.py

import numpy as np  # noqa: E402
import xllamacpp  # noqa: E402

import accuracy  # noqa: E402
import exchange  # noqa: E402
import model  # noqa: E402
from gguf_weights import Weights  # noqa: E402

ENDS = ("<|im_end|>", "<|endoftext|>")  # what llama.cpp takes for an end of generation beside the file's own


class LlamaCpp:
    """llama.cpp's own server in this process, asked over the loopback interface."""

    def __init__(self, path, weights):
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_gpu_layers, parameters.n_parallel, parameters.n_ctx = 0, 1, 2048
        parameters.cpuparams.n_threads = 1  # its threads spin while they wait, which a busy machine cannot afford
        parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._server = xllamacpp.Server(parameters)
        self._vocabulary = weights.config.vocabulary
        self._letter = weights.key("tokenizer.ggml.tokens").index("a")

    def _complete(self, tokens, **options):
        body = {"prompt": [int(token) for token in tokens], "ignore_eos": True, "cache_prompt": False, **options}
        request = urllib.request.Request(self._server.listening_address + "/completion", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def log_probabilities(self, tokens):
        """Of every vocabulary entry after `tokens`. A bias makes the server sample a letter, since it keeps back the
        probabilities along with an unfinished character; they are the ones before the bias."""
        answer = self._complete(tokens, n_predict=1, n_probs=self._vocabulary, samplers=[],
                                logit_bias=[[self._letter, 1000.0]])
        values = np.full(self._vocabulary, np.nan)
        for entry in answer["completion_probabilities"][0]["top_logprobs"]:
            values[entry["id"]] = entry["logprob"]
        if np.isnan(values).any():
            raise RuntimeError(f"llama.cpp gave {np.isfinite(values).sum()} of {self._vocabulary} probabilities")
        return values

    def greedy(self, tokens, steps):
        return self._complete(tokens, n_predict=steps, temperature=0.0, samplers=["temperature"],
                              return_tokens=True)["tokens"]


def our_logits(samara, path, weights, tokens):
    if not samara:
        return model.forward(weights, tokens).logits
    with tempfile.TemporaryDirectory() as work:
        ids, out = Path(work, "ids.txt"), Path(work, "logits.f32")
        exchange.write_tokens(ids, tokens)
        subprocess.run([samara, "logits", "-m", path, "--tokens", ids, "--out", out], check=True,
                       stdout=subprocess.DEVNULL)
        return np.array(exchange.read_logits(out, len(tokens), weights.config.vocabulary), dtype=np.float64)


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def compare_logits(peer, tokens, logits, positions):
    errors = []
    for position in positions:
        ours, theirs = log_softmax(logits[position]), peer.log_probabilities(tokens[: position + 1])
        errors.append(float(model.rms(ours - theirs) / np.std(ours)))
        print(f"position {position:4d}: nrmse {errors[-1]:.2e}")
    return max(errors)


def compare_greedy(weights, prompt, continuation, logits):
    """True when every token of llama.cpp's continuation is our maximum too; else says where and by what margin."""
    names = weights.key("tokenizer.ggml.tokens")
    masked = {n for n, name in enumerate(names) if name in ENDS} | {weights.key("tokenizer.ggml.eos_token_id")}
    after = logits[len(prompt) - 1 : -1].copy()  # the logits that each token of the continuation was taken from
    after[:, sorted(masked)] = -np.inf
    best = after.argmax(axis=1)
    different = np.flatnonzero(best != continuation)
    print(f"greedy: {len(continuation)} steps, {len(different)} differ")
    if len(different):
        step = different[0]
        margin = after[step, best[step]] - after[step, continuation[step]]
        print(f"  the first at step {step}: ours {best[step]}, llama.cpp's {continuation[step]}, margin {margin:.2e}")
    return not len(different)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True, help="GGUF file, maple or llama")
    parser.add_argument("--samara", help="engine binary; without it the reference is compared")
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--english", action="store_true", help="prompt.txt rather than random tokens")
    parser.add_argument("--positions", type=int, default=8, help="positions whose logits are compared (default 8)")
    parser.add_argument("--limit", type=float, help="fail when an NRMSE is above this (F32 files: 1e-5)")
    parser.add_argument("--greedy", type=int, default=0, metavar="STEPS", help="also compare greedy tokens")
    options = parser.parse_args()
    weights = Weights(options.model)
    accuracy.PROMPT_TOKENS = options.prompt_tokens
    case = accuracy.Case("file" if options.english else "tiny", "", path=options.model)
    with tempfile.TemporaryDirectory() as work:
        prompt = accuracy.prompt(case, weights, Path(work))
    peer, passed = LlamaCpp(options.model, weights), True
    continuation = peer.greedy(prompt, options.greedy) if options.greedy else []
    logits = our_logits(options.samara, options.model, weights, np.concatenate([prompt, continuation]).astype(int))

    positions = np.unique(np.linspace(0, len(prompt) - 1, options.positions).astype(int)) if options.positions else []
    worst = compare_logits(peer, prompt, logits, positions) if options.positions else 0.0
    passed &= options.limit is None or worst <= options.limit
    if options.greedy:
        passed &= compare_greedy(weights, prompt, np.array(continuation), logits)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
