#!/usr/bin/env python3
"""Synthetic files, read by the public `gguf` package (PyPI): shapes, keys, and every storage type against F32.

    check_gguf_py.py SAMARA      SAMARA: the command line program, used as `SAMARA synth ...`

Exit status 77 (skipped) when the package is not installed.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import gguf
    import numpy as np
except ImportError:
    print("the gguf package is not installed: skipped")
    sys.exit(77)

# Largest rms error over rms of the weights. Ternary projections must be the same numbers.
BOUNDS = {"F32": 0.0, "F16": 3e-4, "Q8_0": 8e-3, "Q4_1": 0.09, "Q4_K": 0.09, "TQ1_0": 0.0, "TQ2_0": 0.0}
COMPARED = ["token_embd.weight", "output.weight", "blk.0.attn_q.weight", "blk.1.attn_output.weight",
            "blk.1.ffn_down.weight", "blk.2.ffn_gate_inp.weight", "blk.3.ffn_up_exps.weight"]


def tensors(path):
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def values(tensor):
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)


def compare(preset, types, samara, folder):
    paths = {}
    for kind in ["f32", *types]:
        paths[kind] = folder / f"{preset}-{kind}.gguf"
        subprocess.run([samara, "synth", "--preset", preset, "--type", kind, "--seed", "5", "-o", str(paths[kind])],
                       check=True, stdout=subprocess.DEVNULL)
    reference = tensors(paths["f32"])
    failures = 0
    for kind in types:
        other = tensors(paths[kind])
        assert other.keys() == reference.keys(), f"{preset} {kind}: other tensors than f32"
        for name in (n for n in COMPARED if n in other):
            exact, found = values(reference[name]), values(other[name])
            error = np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2))
            stored = other[name].tensor_type.name
            ternary = preset.startswith("maple") and name.startswith("blk.")
            bound = 0.0 if ternary else BOUNDS[stored]
            failures += error > bound
            print(f"{preset} {kind} {name} {stored}: error {error:.2e}, bound {bound:.0e}")
    fields = gguf.GGUFReader(paths[types[0]]).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert len(tokens) == len(fields["tokenizer.ggml.token_type"].contents()) == len(set(tokens)) == 2048
    assert fields["tokenizer.ggml.model"].contents() == "gpt2" and fields["tokenizer.ggml.pre"].contents() == "qwen2"
    assert all(" " in merge for merge in fields["tokenizer.ggml.merges"].contents())
    return failures


def main():
    with tempfile.TemporaryDirectory() as name:
        failures = compare("maple-tiny", ["tq2_0", "tq1_0", "f16"], sys.argv[1], Path(name))
        failures += compare("llama-tiny", ["f16", "q8_0", "q4_1"], sys.argv[1], Path(name))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
