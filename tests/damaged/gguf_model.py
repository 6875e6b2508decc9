"""Tiny but complete GGUF models, and a serialiser that remembers where each field went so that damage can be aimed."""

import copy
import random
import struct

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
_FORMATS = {UINT8: "B", INT8: "b", UINT16: "H", INT16: "h", UINT32: "I", INT32: "i", FLOAT32: "f", BOOL: "B",
            UINT64: "Q", INT64: "q", FLOAT64: "d"}
F32, F16, Q8_0, I8, TQ2_0 = 0, 1, 8, 24, 35
BLOCKS = {F32: (1, 4), F16: (1, 2), Q8_0: (32, 34), I8: (1, 1), TQ2_0: (256, 66)}

HIDDEN, HEADS, HEADS_KV, HEAD_DIM, EXPERTS, EXPERTS_USED, EXPERT_WIDTH, LAYERS = 256, 2, 1, 128, 4, 2, 256, 2

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


class Gguf:
    """Keys and tensors in file order. `fields` of a serialised file: (kind, label, offset, size)."""

    def __init__(self):
        self.version = 3
        self.alignment = 32
        self.keys = []  # [key, type, value]; an array's value is (element type, list)
        self.tensors = []  # [name, shape in GGUF order, type, bytes]
        self.offsets = {}  # tensor name -> offset to write instead of the true one
        self.fields = []

    def copy(self):
        return copy.deepcopy(self)

    def key(self, name):
        return next(k for k in self.keys if k[0] == name)

    def tensor(self, name):
        return next(t for t in self.tensors if t[0] == name)

    def serialise(self):
        self.fields = []
        out = bytearray(b"GGUF")
        self._number(out, "version", "version", "I", self.version)
        self._number(out, "count", "tensor count", "Q", len(self.tensors))
        self._number(out, "count", "key count", "Q", len(self.keys))
        for name, kind, value in self.keys:
            self._string(out, "key " + name, name)
            self._number(out, "type", "key type " + name, "I", kind)
            self._value(out, name, kind, value)
        offset = 0
        for name, shape, kind, data in self.tensors:
            self._string(out, "tensor " + name, name)
            self._number(out, "dimensions", name, "I", len(shape))
            for extent in shape:
                self._number(out, "extent", name, "Q", extent)
            self._number(out, "type", "tensor type " + name, "I", kind)
            self._number(out, "offset", name, "Q", self.offsets.get(name, offset))
            offset += len(data) + -len(data) % self.alignment
        self.header_bytes = len(out)
        for _, _, _, data in self.tensors:
            out += bytes(-len(out) % self.alignment) + data
        return out

    def _number(self, out, kind, label, code, value):
        self.fields.append((kind, label, len(out), struct.calcsize(code)))
        out += struct.pack("<" + code, value)

    def _string(self, out, label, text):
        raw = text if isinstance(text, bytes) else text.encode()
        self._number(out, "length", label, "Q", len(raw))
        out += raw

    def _value(self, out, label, kind, value):
        if kind == STRING:
            self._string(out, "value " + label, value)
        elif kind == ARRAY:
            element, items = value
            self._number(out, "type", "element type " + label, "I", element)
            self._number(out, "length", "array " + label, "Q", len(items))
            for item in items:
                self._value(out, label, element, item)
        else:
            self._number(out, "value", label, _FORMATS[kind], value)


def byte_letters():
    """The printable stand-in for each byte that byte-level BPE vocabularies use."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in kept else chr(next(spare)) for b in range(256)]


SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "t h", "he ll", "\u0120 t"]
VOCABULARY = byte_letters() + ["he", "ll", "th", "hell", "\u0120t"] + SPECIAL


def _add_tokenizer(model, pre):
    end = VOCABULARY.index("<|im_end|>")
    types = [3 if token in SPECIAL else 1 for token in VOCABULARY]
    model.keys += [
        ["tokenizer.ggml.model", STRING, "gpt2"],
        ["tokenizer.ggml.pre", STRING, pre],
        ["tokenizer.ggml.tokens", ARRAY, (STRING, list(VOCABULARY))],
        ["tokenizer.ggml.token_type", ARRAY, (INT32, types)],
        ["tokenizer.ggml.merges", ARRAY, (STRING, list(MERGES))],
        ["tokenizer.ggml.eos_token_id", UINT32, end],
        ["tokenizer.chat_template", STRING, CHAT_TEMPLATE],
    ]


def _floats(rng, kind, count, scale=1.0, mean=0.0):
    pattern = [mean + scale * rng.gauss(0, 1) for _ in range(61)]
    values = (pattern * (count // 61 + 1))[:count]
    return struct.pack(f"<{count}{'f' if kind == F32 else 'e'}", *values)


def _q8_0(rng, count):
    return b"".join(struct.pack("<e", 0.001) + rng.randbytes(32) for _ in range(count // 32))


_CLEAN_CODES = [a | b << 2 | c << 4 | d << 6 for a in range(3) for b in range(3) for c in range(3) for d in range(3)]
_TO_CLEAN = bytes(_CLEAN_CODES[i % 81] for i in range(256))


def ternary_bytes(rng, count):
    """Bytes of four two-bit codes, none of them 3."""
    return rng.randbytes(count).translate(_TO_CLEAN)


def _tq2_0(rng, count):
    scale = struct.pack("<e", 0.07)
    return b"".join(ternary_bytes(rng, 64) + scale for _ in range(count // 256))


def _add(model, rng, name, shape, kind):
    count = 1
    for extent in shape:
        count *= extent
    if kind == TQ2_0:
        data = _tq2_0(rng, count)
    elif kind == Q8_0:
        data = _q8_0(rng, count)
    elif name.endswith("norm.weight"):
        data = _floats(rng, kind, count, 0.02, 1.0)
    else:
        data = _floats(rng, kind, count, 1.0 if "embd" in name else 0.06)
    model.tensors.append([name, list(shape), kind, data])


def maple():
    """Two layers, one sliding and one full, ternary projections."""
    model, rng = Gguf(), random.Random(1)
    a = "maple."
    model.keys = [
        ["general.architecture", STRING, "maple"],
        ["general.name", STRING, "damaged-maple"],
        [a + "block_count", UINT32, LAYERS],
        [a + "context_length", UINT32, 256],
        [a + "embedding_length", UINT32, HIDDEN],
        [a + "feed_forward_length", UINT32, EXPERT_WIDTH],
        [a + "attention.head_count", UINT32, HEADS],
        [a + "attention.head_count_kv", UINT32, HEADS_KV],
        [a + "attention.key_length", UINT32, HEAD_DIM],
        [a + "attention.value_length", UINT32, HEAD_DIM],
        [a + "attention.layer_norm_rms_epsilon", FLOAT32, 1e-6],
        [a + "attention.sliding_window", UINT32, 8],
        [a + "attention.sliding_window_pattern", ARRAY, (BOOL, [1, 0])],
        [a + "rope.freq_base", FLOAT32, 10000.0],
        [a + "rope.dimension_count", UINT32, HEAD_DIM // 2],
        [a + "expert_count", UINT32, EXPERTS],
        [a + "expert_used_count", UINT32, EXPERTS_USED],
        [a + "expert_feed_forward_length", UINT32, EXPERT_WIDTH],
        [a + "swiglu_clamp_exp", FLOAT32, 7.0],
        [a + "vocab_size", UINT32, len(VOCABULARY)],
    ]
    _add_tokenizer(model, "qwen2")
    _add(model, rng, "token_embd.weight", [HIDDEN, len(VOCABULARY)], F16)
    for layer in range(LAYERS):
        b = f"blk.{layer}."
        q, kv = HEADS * HEAD_DIM, HEADS_KV * HEAD_DIM
        _add(model, rng, b + "attn_norm.weight", [HIDDEN], F32)
        _add(model, rng, b + "attn_q.weight", [HIDDEN, q], TQ2_0)
        _add(model, rng, b + "attn_k.weight", [HIDDEN, kv], TQ2_0)
        _add(model, rng, b + "attn_v.weight", [HIDDEN, kv], TQ2_0)
        _add(model, rng, b + "attn_output.weight", [q, HIDDEN], TQ2_0)
        _add(model, rng, b + "attn_q_norm.weight", [HEAD_DIM], F32)
        _add(model, rng, b + "attn_k_norm.weight", [HEAD_DIM], F32)
        _add(model, rng, b + "ffn_norm.weight", [HIDDEN], F32)
        _add(model, rng, b + "ffn_gate_inp.weight", [HIDDEN, EXPERTS], F32)
        _add(model, rng, b + "ffn_gate_exps.weight", [HIDDEN, EXPERT_WIDTH, EXPERTS], TQ2_0)
        _add(model, rng, b + "ffn_up_exps.weight", [HIDDEN, EXPERT_WIDTH, EXPERTS], TQ2_0)
        _add(model, rng, b + "ffn_down_exps.weight", [EXPERT_WIDTH, HIDDEN, EXPERTS], TQ2_0)
    _add(model, rng, "output_norm.weight", [HIDDEN], F32)
    _add(model, rng, "output.weight", [HIDDEN, len(VOCABULARY)], F16)
    return model


def llama():
    """Two dense layers in Q8_0 with a tied head."""
    model, rng = Gguf(), random.Random(2)
    hidden, width, heads, heads_kv = 64, 96, 2, 1
    a = "llama."
    model.keys = [
        ["general.architecture", STRING, "llama"],
        [a + "block_count", UINT32, LAYERS],
        [a + "context_length", UINT32, 256],
        [a + "embedding_length", UINT32, hidden],
        [a + "feed_forward_length", UINT32, width],
        [a + "attention.head_count", UINT32, heads],
        [a + "attention.head_count_kv", UINT32, heads_kv],
        [a + "attention.layer_norm_rms_epsilon", FLOAT32, 1e-5],
        [a + "rope.freq_base", FLOAT32, 10000.0],
        [a + "rope.dimension_count", UINT32, hidden // heads],
        [a + "vocab_size", UINT32, len(VOCABULARY)],
    ]
    _add_tokenizer(model, "smollm")
    _add(model, rng, "token_embd.weight", [hidden, len(VOCABULARY)], Q8_0)
    for layer in range(LAYERS):
        b = f"blk.{layer}."
        kv = hidden // heads * heads_kv
        _add(model, rng, b + "attn_norm.weight", [hidden], F32)
        _add(model, rng, b + "attn_q.weight", [hidden, hidden], Q8_0)
        _add(model, rng, b + "attn_k.weight", [hidden, kv], Q8_0)
        _add(model, rng, b + "attn_v.weight", [hidden, kv], Q8_0)
        _add(model, rng, b + "attn_output.weight", [hidden, hidden], Q8_0)
        _add(model, rng, b + "ffn_norm.weight", [hidden], F32)
        _add(model, rng, b + "ffn_gate.weight", [hidden, width], Q8_0)
        _add(model, rng, b + "ffn_up.weight", [hidden, width], Q8_0)
        _add(model, rng, b + "ffn_down.weight", [width, hidden], Q8_0)
    _add(model, rng, "output_norm.weight", [hidden], F32)
    return model
