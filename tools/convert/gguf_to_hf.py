#!/usr/bin/env python3
"""Writes a Maple GGUF file as a Hugging Face folder: BF16 safetensors in shards, experts one by one.

Ternary rows whose scale is a BF16 value come over without loss; what else BF16 rounds is printed. `--companion` writes
a GGUF whose embedding and head hold the rounded values, equal to the folder to the last bit.
"""

import argparse
import sys

import numpy as np
from gguf import GGMLQuantizationType

import model_folder
from safetensors_folder import SafetensorsFolder, bf16_bits, bf16_values


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="maple GGUF of any type")
    parser.add_argument("-o", "--out", required=True, help="folder to write")
    parser.add_argument("--shard-mib", type=float, default=4096, help="size of a shard (default 4096)")
    parser.add_argument("--companion", help="also write this GGUF, equal to the folder to the last bit")
    options = parser.parse_args()
    try:
        for line in convert(options.source, options.out, options.shard_mib, options.companion):
            print(line)
    except (ValueError, OSError) as error:
        print(f"gguf_to_hf: {error}", file=sys.stderr)
        return 1
    return 0


def convert(source, folder, shard_mib=4096, companion=None):
    """Converts and returns lines that say what the folder holds otherwise than the source."""
    weights = model_folder.open_maple(source)
    log, replaced = [], {}
    with SafetensorsFolder(folder, int(shard_mib * 2**20)) as out:
        names = [("token_embd.weight", "model.word_embeddings")]
        names += [("output.weight", "lm_head")] if weights.has("output.weight") else []
        for name, target in names:
            values = weights.tensor(name).astype(np.float32)
            _write_matrix(out, target, values, log)
            if companion:
                bits = bf16_bits(values).view(np.uint8).reshape(len(values), -1)
                replaced[name] = GGMLQuantizationType.BF16, bits
        before_projections = len(log)
        for layer in range(weights.config.layers):
            _write_projections(out, weights, layer, log)
        if companion and len(log) > before_projections:
            raise ValueError("a companion needs projections that BF16 holds: " + log[before_projections])
        for layer in range(weights.config.layers):
            model_folder.write_norms_and_router(out, weights, layer)
        model_folder.write_small(out, weights, "output_norm.weight", "model.norm.weight")
    model_folder.write_config(folder, weights, {"torch_dtype": "bfloat16"})
    reason = model_folder.write_tokenizer(folder, weights)
    if reason:
        log.append(f"tokenizer.json not written: {reason}")
    if companion:
        model_folder.write_companion(companion, weights, replaced)
    return log


def _write_projections(out, weights, layer, log):
    prefix = f"model.layers.{layer}."
    attention = [*weights.attention(layer), weights.tensor(f"blk.{layer}.attn_output.weight")]
    for part, matrix in zip("qkvo", attention, strict=True):
        _write_matrix(out, f"{prefix}self_attn.{part}_proj", matrix, log)
    for expert in range(weights.config.experts):
        for part, matrix in zip(("gate", "up", "down"), weights.expert(layer, expert), strict=True):
            _write_matrix(out, f"{prefix}mlp.experts.{expert}.{part}_proj", matrix, log)


def _write_matrix(out, module, values, log):
    out.add_bf16(f"{module}.weight", values)
    lost = np.mean(bf16_values(values) != values)
    if lost:
        log.append(f"{module}: {lost:.0%} of the values rounded to BF16")


if __name__ == "__main__":
    sys.exit(main())
