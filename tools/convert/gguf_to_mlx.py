#!/usr/bin/env python3
"""Writes a Maple GGUF file with ternary rows as an MLX 2-bit safetensors folder.

Projections: U32 words of 16 codes of 2 bits, lowest bits first, weight = alpha * (code - 1), with one BF16 `row_alpha`
a row or BF16 `scales` for groups of 128 and `biases` = -scales. Embedding and head: 4-bit affine, groups of 64, BF16
scale and bias. What the folder cannot hold is printed; `--companion` writes a GGUF that holds exactly what it does.
"""

import argparse
import sys

import numpy as np
from gguf import GGMLQuantizationType

import model_folder
from safetensors_folder import SafetensorsFolder, bf16_bits, bf16_values

GROUP, AFFINE_GROUP, AFFINE_LEVELS = 128, 64, 15
ROWS_AT_ONCE = 8192


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="maple GGUF: F32, F16, BF16, TQ1_0 or TQ2_0 projections")
    parser.add_argument("-o", "--out", required=True, help="folder to write")
    parser.add_argument("--scales", choices=("row_alpha", "group"), default="row_alpha")
    parser.add_argument("--shard-mib", type=float, help="start a new file past this size and write an index")
    parser.add_argument("--companion", help="also write this GGUF, equal to the folder to the last bit")
    parser.add_argument("--companion-embedding", choices=("f32", "q4_1"), default="f32",
                        help="its embedding and head; q4_1 keeps the 4-bit codes (two blocks a group)")
    options = parser.parse_args()
    try:
        for line in convert(options.source, options.out, options.scales, options.shard_mib, options.companion,
                            options.companion_embedding):
            print(line)
    except (ValueError, OSError) as error:
        print(f"gguf_to_mlx: {error}", file=sys.stderr)
        return 1
    return 0


def convert(source, folder, scales="row_alpha", shard_mib=None, companion=None, companion_embedding="f32"):
    """Converts and returns lines that say what the folder holds otherwise than the source."""
    weights = model_folder.open_maple(source)
    log, replaced = [], {}
    with SafetensorsFolder(folder, shard_mib and int(shard_mib * 2**20)) as out:
        names = [("token_embd.weight", "model.word_embeddings")]
        names += [("output.weight", "lm_head")] if weights.has("output.weight") else []
        for name, target in names:
            values = _write_affine(out, weights, name, target, log)
            if companion:
                replaced[name] = _companion_matrix(name, values, companion_embedding)
        for layer in range(weights.config.layers):
            _write_layer(out, weights, layer, scales, log)
        model_folder.write_small(out, weights, "output_norm.weight", "model.norm.weight")
    four_bits = {"group_size": AFFINE_GROUP, "bits": 4}
    quantization = {"group_size": GROUP, "bits": 2, **{target: four_bits for _, target in names}}
    model_folder.write_config(folder, weights, {"quantization": quantization})
    reason = model_folder.write_tokenizer(folder, weights)
    if reason:
        log.append(f"tokenizer.json not written: {reason}")
    if companion:
        model_folder.write_companion(companion, weights, replaced)
    return log


def _write_layer(out, weights, layer, scales, log):
    prefix, c = f"model.layers.{layer}.", weights.config
    model_folder.write_norms_and_router(out, weights, layer)
    attention = [*weights.attention(layer), weights.tensor(f"blk.{layer}.attn_output.weight")]
    for part, matrix in zip("qkvo", attention, strict=True):
        _write_ternary(out, f"{prefix}self_attn.{part}_proj", [matrix], (), scales)
    for index, part in enumerate(("gate", "up", "down")):
        stack = (weights.expert(layer, expert)[index] for expert in range(c.experts))
        _write_ternary(out, f"{prefix}mlp.switch_mlp.{part}_proj", stack, (c.experts,), scales)


def _write_ternary(out, name, matrices, stack, scales):
    """One module of ternary matrices, stacked when `stack` holds their count."""
    words, alphas = [], []
    for matrix in matrices:
        group = GROUP if scales == "group" else matrix.shape[1]
        codes, alpha = ternary_codes(name, matrix, group)
        words.append(pack_words(codes, 2))
        alphas.append(alpha)
    rows, groups = alphas[0].shape
    out.add(f"{name}.weight", "U32", (*stack, rows, words[0].shape[1]), np.stack(words))
    alphas = np.stack(alphas)
    if scales == "group":
        out.add_bf16(f"{name}.scales", alphas.reshape(*stack, rows, groups))
        out.add_bf16(f"{name}.biases", -alphas.reshape(*stack, rows, groups))
    else:
        out.add_bf16(f"{name}.row_alpha", alphas.reshape(*stack, rows))


def ternary_codes(name, matrix, group):
    """(codes 0..2 [rows, columns], alpha [rows, groups]) of a matrix that they reproduce exactly, else an error."""
    rows, columns = matrix.shape
    if columns % group or columns % 16:
        raise ValueError(f"{name}: {columns} columns; expected a multiple of {group if columns % group else 16}")
    values = matrix.reshape(rows, -1, group)
    alpha = np.abs(values).max(axis=2)
    row_alpha = np.broadcast_to(alpha.max(axis=1, keepdims=True), alpha.shape)
    alpha = np.where(alpha > 0, alpha, row_alpha)  # a group of zeros takes its row's scale
    codes = np.rint(np.divide(values, alpha[..., None], out=np.zeros_like(values), where=alpha[..., None] > 0))
    wrong = np.argwhere(alpha[..., None] * codes != values)
    if len(wrong):
        raise ValueError(f"{name}: row {wrong[0][0]} does not hold only -a, 0 and a")
    wrong = np.argwhere(bf16_values(alpha) != alpha)
    if len(wrong):
        raise ValueError(f"{name}: row {wrong[0][0]}: scale {alpha[tuple(wrong[0])]:.9g} is not a BF16 value")
    return (codes.reshape(rows, columns) + 1).astype(np.uint32), alpha


def pack_words(codes, bits):
    """U32 words of 32/bits codes each along a row, the first code in the lowest bits."""
    per_word = 32 // bits
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    return np.bitwise_or.reduce(codes.reshape(len(codes), -1, per_word).astype(np.uint32) << shifts, axis=2)


def _write_affine(out, weights, name, target, log):
    """Quantises an embedding or head; returns (codes, scales, biases, dequantised), all over the whole matrix."""
    rows, columns = weights.shape(name)
    if columns % AFFINE_GROUP:
        raise ValueError(f"{name}: {columns} columns; expected a multiple of {AFFINE_GROUP}")
    parts, error, size = [], 0.0, 0.0
    for start in range(0, rows, ROWS_AT_ONCE):
        values = weights.rows(name, slice(start, start + ROWS_AT_ONCE))
        parts.append(quantise_affine(values))
        error += ((parts[-1][3].reshape(values.shape) - values) ** 2).sum()
        size += (values**2).sum()
    codes, scale, bias, dequantised = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    out.add(f"{target}.weight", "U32", (rows, columns // 8), pack_words(codes.reshape(rows, columns), 4))
    out.add(f"{target}.scales", "BF16", scale.shape, bf16_bits(scale))
    out.add(f"{target}.biases", "BF16", bias.shape, bf16_bits(bias))
    log.append(f"{target}: {weights.tensor_type(name).name} to 4-bit affine, {np.sqrt(error / size):.2%} of its rms lost")
    return codes, scale, bias, dequantised


def quantise_affine(values):
    """4-bit affine groups of 64: (codes [rows, groups, 64], BF16 scales and biases [rows, groups], their values)."""
    groups = values.reshape(len(values), -1, AFFINE_GROUP).astype(np.float32)
    low, high = groups.min(axis=2), groups.max(axis=2)
    scale, bias = bf16_values((high - low) / AFFINE_LEVELS), bf16_values(low)
    steps = np.divide(groups - bias[..., None], scale[..., None], out=np.zeros_like(groups),
                      where=scale[..., None] > 0)
    codes = np.clip(np.rint(steps), 0, AFFINE_LEVELS)
    exact = scale[..., None].astype(np.float64) * codes + bias[..., None]
    dequantised = exact.astype(np.float32)
    if (dequantised != exact).any():
        raise ValueError("a 4-bit affine value is not a float32: the scale and bias of its group differ too much")
    return codes.astype(np.uint32), scale, bias, dequantised


def _companion_matrix(name, affine, kind):
    """(GGUF type, stored data) of the dequantised matrix."""
    codes, scale, bias, dequantised = affine
    if kind == "f32":
        return GGMLQuantizationType.F32, dequantised.reshape(len(codes), -1)
    for what, values in (("scale", scale), ("bias", bias)):
        if (values.astype(np.float16) != values).any():
            raise ValueError(f"{name}: a BF16 {what} does not fit the F16 of Q4_1; use --companion-embedding f32")
    return GGMLQuantizationType.Q4_1, q4_1_blocks(codes, scale, bias)


def q4_1_blocks(codes, scale, bias):
    """Affine groups as Q4_1 blocks, two a group: F16 scale and minimum, then 16 bytes of codes n and n + 16."""
    rows = len(codes)
    halves = codes.reshape(rows, -1, 2, 2, 16).astype(np.uint8)  # row, group, block, half, code
    nibbles = halves[:, :, :, 0] | halves[:, :, :, 1] << 4
    head = np.stack([scale, bias], axis=-1).astype("<f2").view(np.uint8)  # row, group, 4 bytes
    head = np.broadcast_to(head[:, :, None], (*nibbles.shape[:3], 4))
    return np.concatenate([head, nibbles], axis=-1).reshape(rows, -1)


if __name__ == "__main__":
    sys.exit(main())
