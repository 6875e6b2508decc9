"""Writes a folder of safetensors files: one `model.safetensors`, or shards and their index."""

import json
import os
from pathlib import Path

import numpy as np


class SafetensorsFolder:
    """Tensors go in as little-endian bytes and are written as soon as a shard is full. Use as a context manager: the
    last shard, the final names and the index are written on a clean exit."""

    def __init__(self, folder, shard_bytes=None):
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._shard_bytes = shard_bytes
        self._pending = {}
        self._pending_bytes = 0
        self._shards = []  # tensor names of each shard written so far
        self.total_bytes = 0

    def add(self, name, dtype, shape, data):
        """`data`: an array whose bytes are the tensor's values of the safetensors type `dtype` (BF16, F32, U32)."""
        payload = np.ascontiguousarray(data).tobytes()
        if self._shard_bytes and self._pending and self._pending_bytes + len(payload) > self._shard_bytes:
            self._write_shard()
        self._pending[name] = (dtype, [int(extent) for extent in shape], payload)
        self._pending_bytes += len(payload)
        self.total_bytes += len(payload)

    def add_bf16(self, name, values):
        self.add(name, "BF16", np.shape(values), bf16_bits(values))

    def _write_shard(self):
        header, offset = {"__metadata__": {"format": "pt"}}, 0
        for name, (dtype, shape, payload) in self._pending.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(payload)]}
            offset += len(payload)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(self._part(len(self._shards)), "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for _, _, payload in self._pending.values():
                file.write(payload)
        self._shards.append(list(self._pending))
        self._pending, self._pending_bytes = {}, 0

    def _part(self, index):
        return self._folder / f"part-{index}.incomplete"

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        if error:
            for index in range(len(self._shards)):
                self._part(index).unlink(missing_ok=True)
            return
        self._write_shard()
        for stale in [*self._folder.glob("model*.safetensors"), self._folder / "model.safetensors.index.json"]:
            stale.unlink(missing_ok=True)
        if not self._shard_bytes:
            os.replace(self._part(0), self._folder / "model.safetensors")
            return
        places, count = {}, len(self._shards)
        for index, names in enumerate(self._shards):
            file = f"model-{index + 1:05d}-of-{count:05d}.safetensors"
            os.replace(self._part(index), self._folder / file)
            places |= dict.fromkeys(names, file)
        index = {"metadata": {"total_size": self.total_bytes}, "weight_map": dict(sorted(places.items()))}
        write_json(self._folder / "model.safetensors.index.json", index)


def write_json(path, value):
    Path(path).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def bf16_bits(values):
    """The upper halves of float32 values, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def bf16_values(values):
    """Float32 values rounded to what a BF16 holds."""
    return (bf16_bits(values).astype(np.uint32) << 16).view(np.float32)
