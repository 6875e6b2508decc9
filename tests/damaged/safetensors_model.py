"""Tiny but complete Maple folders in safetensors: MLX's 2-bit layout, and Hugging Face's BF16 in two shards."""

import copy
import json
import random
import struct

import gguf_model as g

_SIZES = {"BF16": 2, "U32": 4, "F32": 4}


def bf16(value):
    return struct.pack("<f", value)[2:]


def _product(shape):
    count = 1
    for extent in shape:
        count *= extent
    return count


class Folder:
    """`shards`: file name -> list of [name, dtype, shape, bytes]. `texts`: other files' contents."""

    def __init__(self):
        self.shards = {}
        self.texts = {}
        self.config = {
            "architectures": ["MapleForCausalLM"], "model_type": "maple", "num_hidden_layers": g.LAYERS,
            "hidden_size": g.HIDDEN, "intermediate_size": 4096, "num_attention_heads": g.HEADS,
            "num_key_value_heads": g.HEADS_KV, "head_dim": g.HEAD_DIM, "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"], "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5, "num_experts": g.EXPERTS, "num_experts_per_tok": g.EXPERTS_USED,
            "moe_intermediate_size": g.EXPERT_WIDTH, "first_k_dense_replace": 0, "rms_norm_eps": 1e-6,
            "vocab_size": len(g.VOCABULARY), "max_position_embeddings": 256,
            "eos_token_id": g.VOCABULARY.index("<|im_end|>"),
        }
        self.has_index = False

    def copy(self):
        return copy.deepcopy(self)

    def tensor(self, name):
        return next(t for shard in self.shards.values() for t in shard if t[0] == name)

    def remove(self, name):
        for shard in self.shards.values():
            shard[:] = [t for t in shard if t[0] != name]

    def header(self, file):
        header, offset = {"__metadata__": {"format": "pt"}}, 0
        for name, dtype, shape, data in self.shards[file]:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
            offset += len(data)
        return header

    def data(self, file):
        return b"".join(data for _, _, _, data in self.shards[file])

    def index(self):
        return {"metadata": {}, "weight_map": {t[0]: file for file, shard in self.shards.items() for t in shard}}

    def files(self):
        """File name -> bytes of the whole folder."""
        out = {"config.json": json.dumps(self.config).encode()}
        out.update({name: text.encode() for name, text in self.texts.items()})
        for file in self.shards:
            out[file] = pack(json.dumps(self.header(file)).encode(), self.data(file))
        if self.has_index:
            out["model.safetensors.index.json"] = json.dumps(self.index()).encode()
        return out


def pack(header, data):
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def _tokenizer_json():
    special = [{"id": g.VOCABULARY.index(t), "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for t in g.SPECIAL]
    vocab = {t: i for i, t in enumerate(g.VOCABULARY) if t not in g.SPECIAL}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                  "merges": g.MERGES}})


def _bf16_floats(rng, count, scale, mean=0.0):
    pattern = b"".join(bf16(mean + scale * rng.gauss(0, 1)) for _ in range(61))
    return (pattern * (count // 61 + 1))[:count * 2]


def _new_folder():
    folder = Folder()
    folder.texts["tokenizer.json"] = _tokenizer_json()
    folder.texts["tokenizer_config.json"] = json.dumps({"chat_template": g.CHAT_TEMPLATE})
    return folder


def _plain(rng, name, shape):
    mean, scale = (1.0, 0.02) if "norm" in name else (0.0, 0.06)
    return [name + ".weight", "BF16", shape, _bf16_floats(rng, _product(shape), scale, mean)]


def _ternary(rng, name, shape):
    rows = _product(shape[:-1])
    return [[name + ".weight", "U32", shape[:-1] + [shape[-1] // 16], g.ternary_bytes(rng, rows * shape[-1] // 4)],
            [name + ".row_alpha", "BF16", shape[:-1], bf16(0.0703125) * rows]]


def _four_bits(rng, name, shape):
    rows, groups = shape[0], shape[1] // 64
    return [[name + ".weight", "U32", [rows, shape[1] // 8], rng.randbytes(rows * shape[1] // 2)],
            [name + ".scales", "BF16", [rows, groups], bf16(0.125) * (rows * groups)],
            [name + ".biases", "BF16", [rows, groups], bf16(-1.0) * (rows * groups)]]


def _attention(layer):
    p = f"model.layers.{layer}.self_attn."
    q, kv = g.HEADS * g.HEAD_DIM, g.HEADS_KV * g.HEAD_DIM
    return [(p + "q_proj", [q, g.HIDDEN]), (p + "k_proj", [kv, g.HIDDEN]), (p + "v_proj", [kv, g.HIDDEN]),
            (p + "o_proj", [g.HIDDEN, q])]


def _norms_and_router(rng, layer):
    p = f"model.layers.{layer}."
    return [_plain(rng, p + "input_layernorm", [g.HIDDEN]), _plain(rng, p + "post_attention_layernorm", [g.HIDDEN]),
            _plain(rng, p + "self_attn.q_norm", [g.HEAD_DIM]), _plain(rng, p + "self_attn.k_norm", [g.HEAD_DIM]),
            _plain(rng, p + "mlp.gate", [g.EXPERTS, g.HIDDEN])]


def mlx():
    folder, rng = _new_folder(), random.Random(3)
    tensors = _four_bits(rng, "model.word_embeddings", [len(g.VOCABULARY), g.HIDDEN])
    for layer in range(g.LAYERS):
        tensors += _norms_and_router(rng, layer)
        for name, shape in _attention(layer):
            tensors += _ternary(rng, name, shape)
        for part in ("gate", "up"):
            tensors += _ternary(rng, f"model.layers.{layer}.mlp.switch_mlp.{part}_proj",
                                [g.EXPERTS, g.EXPERT_WIDTH, g.HIDDEN])
        tensors += _ternary(rng, f"model.layers.{layer}.mlp.switch_mlp.down_proj",
                            [g.EXPERTS, g.HIDDEN, g.EXPERT_WIDTH])
    tensors.append(_plain(rng, "model.norm", [g.HIDDEN]))
    tensors += _four_bits(rng, "lm_head", [len(g.VOCABULARY), g.HIDDEN])
    tensors.append(["lm_head_flash.centroids", "U32", [4, 4], bytes(64)])
    folder.shards["model.safetensors"] = tensors
    return folder


def hugging_face():
    folder, rng = _new_folder(), random.Random(4)
    first = [_plain(rng, "model.word_embeddings", [len(g.VOCABULARY), g.HIDDEN])]
    second = []
    for layer, shard in enumerate((first, second)):
        shard += _norms_and_router(rng, layer)
        shard += [_plain(rng, name, shape) for name, shape in _attention(layer)]
        for expert in range(g.EXPERTS):
            p = f"model.layers.{layer}.mlp.experts.{expert}."
            shard += [_plain(rng, p + "gate_proj", [g.EXPERT_WIDTH, g.HIDDEN]),
                      _plain(rng, p + "up_proj", [g.EXPERT_WIDTH, g.HIDDEN]),
                      _plain(rng, p + "down_proj", [g.HIDDEN, g.EXPERT_WIDTH])]
    second += [_plain(rng, "model.norm", [g.HIDDEN]), _plain(rng, "lm_head", [len(g.VOCABULARY), g.HIDDEN])]
    folder.shards = {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second}
    folder.has_index = True
    return folder
