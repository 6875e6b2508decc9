"""Loading: a Maple or Llama GGUF file as a configuration and float weights, read through PyPI's `gguf`.

Tensors stay quantised in the mapped file. A matrix, an expert or a few embedding rows are dequantised when asked for,
because a full-size model as float64 would need eight times its parameter count in bytes.
"""

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

# Clamp of the expert activations where an older file does not say: part of Maple's trained forward pass.
DEFAULT_SWIGLU_CLAMP = 7.0
CACHE_BYTES = 2 << 30


@dataclass(frozen=True)
class Config:
    """What the forward pass needs to know. Per-layer fields are tuples of `layers` entries."""

    architecture: str  # "maple" or "llama"
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float
    vocabulary: int
    window: tuple  # keys a query sees, its own included; None on a full layer
    rope_theta: tuple  # None on a layer without position encoding
    rope_dims: int  # leading dimensions of a head that rotate
    rope_interleaved: bool  # pairs (2i, 2i+1) as in Llama GGUF files, else (i, i + rope_dims/2)
    qk_norm: bool
    experts: int  # 0: a dense feed-forward
    experts_used: int
    clamp: tuple  # bound of the expert activations; None where there is none


class Weights:
    """Tensors of one GGUF file, dequantised on demand, and its `config`."""

    def __init__(self, path, cache_bytes=CACHE_BYTES):
        self.path = Path(path)
        self._reader = GGUFReader(self.path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._cache = OrderedDict()
        self._cache_bytes = cache_bytes
        self._cached = 0
        self.config = self._read_config()
        self._check_tensors()

    # -- metadata ------------------------------------------------------------------------------------------------

    def key(self, name, default=None):
        """The value of a metadata key, or `default`; raises when the key is missing and there is no default."""
        field = self._reader.fields.get(name)
        if field is not None:
            return field.contents()
        if default is None:
            raise ValueError(f"{self.path}: key {name} is missing")
        return default

    def _read_config(self):
        architecture = self.key("general.architecture")
        if architecture not in ("maple", "llama"):
            raise ValueError(f"{self.path}: architecture {architecture!r}; the reference knows maple and llama")
        if self.key("split.count", 1) > 1:
            raise ValueError(f"{self.path}: split files are not read by the reference; merge them first")

        def model_key(name, default=None):
            return self.key(f"{architecture}.{name}", default)

        layers, hidden, heads = model_key("block_count"), model_key("embedding_length"), model_key("attention.head_count")
        head_dim = model_key("attention.key_length", hidden // heads)
        if model_key("attention.value_length", head_dim) != head_dim:
            raise ValueError(f"{self.path}: key and value lengths differ")
        maple = architecture == "maple"
        theta = model_key("rope.freq_base", 10000.0)
        if maple:
            sliding = tuple(bool(flag) for flag in model_key("attention.sliding_window_pattern"))
            if len(sliding) != layers:
                raise ValueError(f"{self.path}: sliding_window_pattern has {len(sliding)} entries for {layers} layers")
            window, theta = model_key("attention.sliding_window"), model_key("rope.freq_base_swa", theta)
        else:
            if model_key("rope.scaling.type", "none") != "none" or "rope_freqs.weight" in self._tensors:
                raise ValueError(f"{self.path}: scaled RoPE is not in the reference")
            if model_key("expert_count", 0) > 0:
                raise ValueError(f"{self.path}: the reference's llama is dense")
            sliding, window = (False,) * layers, None
        clamp = model_key("swiglu_clamp_exp", DEFAULT_SWIGLU_CLAMP) if maple else None
        clamps = tuple(clamp) if isinstance(clamp, list) else (clamp,) * layers
        if len(clamps) != layers or (maple and min(clamps) <= 0):
            raise ValueError(f"{self.path}: swiglu_clamp_exp is {clamp}; expected one positive value or {layers}")
        return Config(
            architecture=architecture,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=model_key("attention.head_count_kv", heads),
            head_dim=head_dim,
            rms_eps=model_key("attention.layer_norm_rms_epsilon"),
            vocabulary=int(self._tensors["token_embd.weight"].shape[1]),
            window=tuple(window if flag else None for flag in sliding),
            rope_theta=tuple(theta if flag or not maple else None for flag in sliding),
            rope_dims=model_key("rope.dimension_count", head_dim),
            rope_interleaved=not maple,
            qk_norm=maple,
            experts=model_key("expert_count") if maple else 0,
            experts_used=model_key("expert_used_count") if maple else 0,
            clamp=clamps,
        )

    def _check_tensors(self):
        """A tensor the forward pass would ignore means a model the reference does not describe."""
        known = {"token_embd.weight", "output_norm.weight", "output.weight"}
        block = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_norm"]
        if self.config.experts:
            block += ["attn_q_norm", "attn_k_norm", "ffn_gate_inp"]
            block += ["ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps"]
        else:
            block += ["ffn_gate", "ffn_up", "ffn_down"]
        known |= {f"blk.{layer}.{name}.weight" for layer in range(self.config.layers) for name in block}
        unknown = sorted(set(self._tensors) - known)
        if unknown:
            raise ValueError(f"{self.path}: {len(unknown)} tensors the reference does not use, the first {unknown[0]}")

    # -- tensors -------------------------------------------------------------------------------------------------

    def has(self, name):
        return name in self._tensors

    def tensor_type(self, name):
        return self._tensors[name].tensor_type

    def tensor_names(self):
        return list(self._tensors)

    def fields(self):
        return self._reader.fields

    def shape(self, name):
        """Row-major shape: [out, in] for a matrix, [expert, out, in] for a stack."""
        return tuple(int(extent) for extent in reversed(self._tensors[name].shape))

    def raw(self, name):
        """The tensor's stored bytes or values, mapped."""
        return self._tensors[name].data

    def tensor(self, name, index=None):
        """Float64 values of a tensor, or of one slice of its first dimension (an expert of a stack)."""
        return self._float32(name, index).astype(np.float64)

    def rows(self, name, ids):
        """Float64 rows `ids` of a matrix (an embedding lookup, a chunk of the head)."""
        tensor = self._find(name)
        return dequantize(np.ascontiguousarray(tensor.data[ids]), tensor.tensor_type).astype(np.float64)

    def _find(self, name):
        if name not in self._tensors:
            raise ValueError(f"{self.path}: tensor {name} is missing")
        return self._tensors[name]

    def _float32(self, name, index):
        key = (name, index)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        tensor = self._find(name)
        data = tensor.data if index is None else tensor.data[index]
        values = dequantize(np.ascontiguousarray(data), tensor.tensor_type).astype(np.float32, copy=False)
        self._cache[key] = values
        self._cached += values.nbytes
        while self._cached > self._cache_bytes and len(self._cache) > 1:
            self._cached -= self._cache.popitem(last=False)[1].nbytes
        return values

    # -- weights as the forward pass names them ------------------------------------------------------------------

    def attention(self, layer):
        """(q, k, v) projections, each [out, hidden]; a fused tensor holds their rows in that order."""
        c = self.config
        q_rows, kv_rows = c.heads * c.head_dim, c.kv_heads * c.head_dim
        fused = f"blk.{layer}.attn_qkv.weight"
        if self.has(fused):
            return np.split(self.tensor(fused), [q_rows, q_rows + kv_rows])
        return [self.tensor(f"blk.{layer}.attn_{part}.weight") for part in "qkv"]

    def expert(self, layer, index):
        """(gate, up, down) of one expert; a fused tensor holds gate's rows, then up's."""
        fused = f"blk.{layer}.ffn_gate_up_exps.weight"
        if self.has(fused):
            gate, up = np.split(self.tensor(fused, index), 2)
        else:
            gate, up = (self.tensor(f"blk.{layer}.ffn_{part}_exps.weight", index) for part in ("gate", "up"))
        return gate, up, self.tensor(f"blk.{layer}.ffn_down_exps.weight", index)

    @property
    def head_name(self):
        return "output.weight" if self.has("output.weight") else "token_embd.weight"
