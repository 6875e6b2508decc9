#!/usr/bin/env python3
"""Writes the seed inputs in fuzz/corpus/ again: small valid files that reach every branch of the parsers."""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "damaged"))
import gguf_model as g  # noqa: E402
import safetensors_model as s  # noqa: E402

GGML_BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 12: (256, 144),
               13: (256, 176), 14: (256, 210), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 30: (1, 2),
               34: (256, 54), 35: (256, 66)}


def keys_of_every_type():
    model = g.Gguf()
    numbers = [(g.UINT8, 1), (g.INT8, -1), (g.UINT16, 2), (g.INT16, -2), (g.UINT32, 3), (g.INT32, -3),
               (g.FLOAT32, 0.5), (g.BOOL, 1), (g.UINT64, 4), (g.INT64, -4), (g.FLOAT64, 0.25)]
    model.keys = [[f"k{kind}", kind, value] for kind, value in numbers]
    model.keys += [[f"a{kind}", g.ARRAY, (kind, [value, value])] for kind, value in numbers]
    model.keys += [["general.alignment", g.UINT32, 32], ["s", g.STRING, "text"],
                   ["n", g.ARRAY, (g.ARRAY, [(g.STRING, ["a", ""]), (g.ARRAY, [(g.UINT8, [1])])])]]
    return model.serialise()


def tensors_of_every_type():
    model = g.Gguf()
    for kind, (weights, size) in GGML_BLOCKS.items():
        model.tensors.append([f"t{kind}", [weights, 2, 1][:1 + kind % 3], kind, bytes(size * (2 if kind % 3 else 1))])
    return model.serialise()


def shard(tensors):
    folder = s.Folder()
    folder.shards["x"] = tensors
    return s.pack(json.dumps(folder.header("x")).encode(), folder.data("x"))


def main():
    layer = "model.layers.0."
    mlx = [[layer + "self_attn.q_proj.weight", "U32", [2, 8], bytes(64)],
           [layer + "self_attn.q_proj.row_alpha", "BF16", [2], bytes(4)],
           [layer + "mlp.switch_mlp.down_proj.weight", "U32", [2, 1, 8], bytes(64)],
           [layer + "mlp.switch_mlp.down_proj.scales", "BF16", [2, 1, 1], bytes(4)],
           [layer + "mlp.switch_mlp.down_proj.biases", "BF16", [2, 1, 1], bytes(4)],
           ["lm_head.weight", "U32", [1, 16], bytes(64)], ["lm_head.scales", "BF16", [1, 2], bytes(4)],
           ["lm_head.biases", "BF16", [1, 2], bytes(4)]]
    hugging_face = [[layer + f"mlp.experts.{e}.up_proj.weight", "BF16", [1, 2], bytes(4)] for e in (0, 1)]
    hugging_face.append(["model.norm.weight", "F32", [2], bytes(8)])
    config = s.Folder().config
    seeds = {
        "gguf/keys": keys_of_every_type(), "gguf/tensors": tensors_of_every_type(),
        "safetensors/mlx": shard(mlx), "safetensors/hugging_face": shard(hugging_face),
        "safetensors_index/two": json.dumps({"metadata": {"total_size": 1}, "weight_map": {
            "a": "m-1.safetensors", "b": "m-2.safetensors"}}).encode(),
        "maple_config/plain": json.dumps(config).encode(),
        "maple_config/nested": json.dumps({**{k: v for k, v in config.items() if k != "rope_theta"},
                                           "rope_parameters": {"rope_theta": 10000.0}, "swiglu_limit": 7}).encode(),
    }
    for name, data in seeds.items():
        path = HERE / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    main()
