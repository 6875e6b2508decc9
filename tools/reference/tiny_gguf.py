#!/usr/bin/env python3
"""Writes a small random Maple or Llama GGUF file that makes a fair test.

Fair means: ternary codes balanced about zero, row scales that F16 and BF16 both hold, a router that BF16 holds, an
embedding of unit scale, blocks that change the residual as much as the embedding does, expert activations that meet
their clamp. A biased draw collapses every token onto one direction, and then any kernel passes.
"""

import argparse
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from gguf.quants import quantize

TERNARY = ("TQ1_0", "TQ2_0")
TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_UNUSED = 1, 3, 5
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "th e", "Ġ the", "i n", "a n", "e r", "Ġ a", "r e", "o n", "Ġ t")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


@dataclass
class Shape:
    """Sizes of a tiny model; the defaults pass a window of 16 and leave most experts unused by a token."""

    layers: int = 4
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rope_dims: int = 32
    window: int = 16
    full_every: int = 4  # every so many layers one is full
    experts: int = 16
    experts_used: int = 4
    inner: int = 256  # an expert's, or the dense feed-forward's
    vocabulary: int = 320
    theta: float = 10000.0
    clamp: float = 7.0
    eps: float = 1e-6
    sharpness: float = 1.0  # of attention: scale of the query and key norms
    expert_gain: float = 2.0  # size of gate and up for a unit vector; 3 meets a clamp of 7 in one value of 50
    attention_gain: float = 0.7
    down_gain: float = 0.12


def write_tiny(path, architecture="maple", shape=None, type_name="TQ2_0", embedding_type="F16", seed=0,
               outlier_factor=0.0, tied=False, fused=False, ternary=None):
    """Writes the model. `outlier_factor` > 0 multiplies four channels of every block's norms by it. `ternary` (the
    default for maple) draws {-a, 0, a} rows whatever the stored type, so that types hold the same weights."""
    s = shape or Shape()
    ternary = architecture == "maple" if ternary is None else ternary
    if type_name in TERNARY and not ternary:
        raise ValueError(f"{type_name} holds ternary weights only")
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, architecture)
    _add_metadata(writer, architecture, s)
    _add_tokenizer(writer, s.vocabulary)

    def matrix(name, rows, columns, gain=1.0, stack=()):
        draw = _ternary if ternary else _normal
        _add(writer, name, draw(rng, (*stack, rows, columns), gain), type_name)

    def norm(name, size, scale=1.0):
        weight = scale * rng.uniform(0.75, 1.25, size)
        if outlier_factor and name.endswith(("attn_norm", "ffn_norm")):
            weight[rng.choice(size, 4, replace=False)] *= outlier_factor
        _add(writer, name, _bf16(weight), "F32")

    _add(writer, "token_embd", rng.standard_normal((s.vocabulary, s.hidden)), embedding_type)
    q_rows, kv_rows = s.heads * s.head_dim, s.kv_heads * s.head_dim
    for block in range(s.layers):
        name = f"blk.{block}."
        norm(name + "attn_norm", s.hidden)
        if fused:
            matrix(name + "attn_qkv", q_rows + 2 * kv_rows, s.hidden)
        else:
            matrix(name + "attn_q", q_rows, s.hidden)
            matrix(name + "attn_k", kv_rows, s.hidden)
            matrix(name + "attn_v", kv_rows, s.hidden)
        if architecture == "maple":  # sharper than unit attention, so that single keys matter
            norm(name + "attn_q_norm", s.head_dim, s.sharpness)
            norm(name + "attn_k_norm", s.head_dim, s.sharpness)
        matrix(name + "attn_output", s.hidden, q_rows, s.attention_gain)
        norm(name + "ffn_norm", s.hidden)
        if architecture == "maple":
            router = _bf16(2.0 * rng.standard_normal((s.experts, s.hidden)) / np.sqrt(s.hidden))
            _add(writer, name + "ffn_gate_inp", router, "F32")
            if fused:
                matrix(name + "ffn_gate_up_exps", 2 * s.inner, s.hidden, s.expert_gain, (s.experts,))
            else:
                matrix(name + "ffn_gate_exps", s.inner, s.hidden, s.expert_gain, (s.experts,))
                matrix(name + "ffn_up_exps", s.inner, s.hidden, s.expert_gain, (s.experts,))
            matrix(name + "ffn_down_exps", s.hidden, s.inner, s.down_gain, (s.experts,))
        else:
            matrix(name + "ffn_gate", s.inner, s.hidden, 2.0)
            matrix(name + "ffn_up", s.inner, s.hidden)
            matrix(name + "ffn_down", s.hidden, s.inner, 0.5)
    norm("output_norm", s.hidden)
    if not tied:
        _add(writer, "output", rng.standard_normal((s.vocabulary, s.hidden)) / np.sqrt(s.hidden), embedding_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _ternary(rng, shape, gain):
    """Codes -1, 0, 1 of equal share and one scale a row, such that a unit vector gives values of size `gain`."""
    scales = _bf16(gain / np.sqrt(shape[-1] * 2 / 3) * rng.uniform(0.75, 1.25, shape[:-1]))
    return rng.integers(-1, 2, shape, dtype=np.int8) * scales[..., None]


def _normal(rng, shape, gain):
    return rng.standard_normal(shape) * gain / np.sqrt(shape[-1])


def _bf16(values):
    """Rounded to the 8 significant bits of a BF16; in the range used here an F16 holds them too."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.rint(mantissa * 256) / 256, exponent)


def _add(writer, name, values, type_name):
    values = np.ascontiguousarray(values, dtype=np.float32)
    kind = GGMLQuantizationType[type_name]
    if kind == GGMLQuantizationType.F32:
        writer.add_tensor(name + ".weight", values)
    elif kind == GGMLQuantizationType.F16:
        writer.add_tensor(name + ".weight", values.astype(np.float16))
    else:
        writer.add_tensor(name + ".weight", quantize(values, kind), raw_dtype=kind)


def _add_metadata(writer, architecture, s):
    def key(name):
        return f"{architecture}.{name}"

    writer.add_string("general.name", f"tiny random {architecture}")
    for name, value in {
        "block_count": s.layers,
        "context_length": 4096,
        "embedding_length": s.hidden,
        "feed_forward_length": s.inner,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
        "rope.dimension_count": s.rope_dims if architecture == "maple" else s.head_dim,
        "vocab_size": s.vocabulary,
    }.items():
        writer.add_uint32(key(name), value)
    writer.add_float32(key("attention.layer_norm_rms_epsilon"), s.eps)
    writer.add_float32(key("rope.freq_base"), s.theta)
    if architecture == "maple":
        writer.add_uint32(key("attention.sliding_window"), s.window)
        writer.add_array(key("attention.sliding_window_pattern"),
                         [(layer + 1) % s.full_every != 0 for layer in range(s.layers)])
        writer.add_uint32(key("expert_count"), s.experts)
        writer.add_uint32(key("expert_used_count"), s.experts_used)
        writer.add_uint32(key("expert_feed_forward_length"), s.inner)
        writer.add_float32(key("swiglu_clamp_exp"), s.clamp)


def _add_tokenizer(writer, vocabulary):
    """A byte-level BPE tokenizer: 256 bytes, a few merges, unused fillers, special tokens last."""
    tokens = [*byte_letters(), *(merge.replace(" ", "") for merge in MERGES)]
    fillers = vocabulary - len(tokens) - len(SPECIALS)
    if fillers < 0:
        raise ValueError(f"the tokenizer needs a vocabulary of {len(tokens) + len(SPECIALS)} at least")
    types = [TOKEN_NORMAL] * len(tokens) + [TOKEN_UNUSED] * fillers + [TOKEN_CONTROL] * len(SPECIALS)
    tokens += [f"[unused{n}]" for n in range(fillers)] + list(SPECIALS)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", "qwen2")
    writer.add_array("tokenizer.ggml.tokens", tokens)
    writer.add_key_value("tokenizer.ggml.token_type", types, GGUFValueType.ARRAY, GGUFValueType.INT32)
    writer.add_array("tokenizer.ggml.merges", list(MERGES))
    writer.add_uint32("tokenizer.ggml.eos_token_id", vocabulary - 1)
    writer.add_uint32("tokenizer.ggml.padding_token_id", vocabulary - 3)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_string("tokenizer.chat_template", CHAT_TEMPLATE)


def byte_letters():
    """GPT-2's printable letter for each byte, in byte order: itself where printable, else the next from 256 up."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", required=True)
    parser.add_argument("--architecture", choices=("maple", "llama"), default="maple")
    parser.add_argument("--type", default="TQ2_0", help="of the projections: F32 F16 BF16 Q8_0 Q4_1 ... TQ1_0 TQ2_0")
    parser.add_argument("--embedding-type", default="F16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--outlier-factor", type=float, default=0.0,
                        help="factor on four channels of every block's norms")
    parser.add_argument("--tied", action="store_true", help="no head of its own")
    parser.add_argument("--fused", action="store_true", help="attn_qkv and ffn_gate_up_exps in one tensor each")
    parser.add_argument("--ternary", action="store_true", default=None, help="ternary weights for llama too")
    for field, default in vars(Shape()).items():
        parser.add_argument(f"--{field.replace('_', '-')}", type=type(default), default=default)
    options = parser.parse_args()
    shape = Shape(**{field: getattr(options, field) for field in vars(Shape())})
    write_tiny(options.out, options.architecture, shape, options.type, options.embedding_type, options.seed,
               options.outlier_factor, options.tied, options.fused, options.ternary)


if __name__ == "__main__":
    main()
