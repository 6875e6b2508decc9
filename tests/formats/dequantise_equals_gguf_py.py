#!/usr/bin/env python3
"""Our dequantisation equals the `gguf` package's, bit for bit, for every type and for the conversions of 16-bit floats.

usage: dequantise_equals_gguf_py.py FORMATS_OPEN [MODEL.gguf ...]

FORMATS_OPEN is the test program of that name. Blocks are random bytes, with scales that include zeros of both signs,
subnormals, the largest finite values and infinities. Needs numpy and gguf (PyPI); exits with 77 without. A NaN only has to meet a NaN.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, GGUFReader, GGUFWriter
    from gguf.quants import dequantize
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

# Where a block keeps its F16 scales.
SCALE_OFFSETS = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.TQ1_0: [52], T.TQ2_0: [64],
}
EXTREME_HALVES = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00, 0x7C00, 0xFC00, 0x7E00], np.uint16)
ROWS, BLOCKS = 96, 3


def random_blocks(rng, kind):
    weights, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS * BLOCKS, size), dtype=np.uint8)
    for offset in SCALE_OFFSETS[kind]:
        sane = (rng.standard_normal(len(blocks)) * 0.1).astype(np.float16).view(np.uint16)
        extreme = rng.choice(EXTREME_HALVES, len(blocks))
        third = np.arange(len(blocks)) % 3  # a third sane, a third extreme, a third any bits at all
        anything = blocks[:, offset:offset + 2].copy().view(np.uint16)[:, 0]
        scales = np.where(third == 0, sane, np.where(third == 1, extreme, anything))
        blocks[:, offset:offset + 2] = scales.astype(np.uint16)[:, None].view(np.uint8)
    return blocks.reshape(ROWS, BLOCKS * size)


def write_all_types(path):
    rng = np.random.default_rng(20)
    writer = GGUFWriter(path, "maple")
    for kind in SCALE_OFFSETS:
        writer.add_tensor(f"{kind.name}.weight", random_blocks(rng, kind), raw_dtype=kind)
    stacked = random_blocks(rng, T.TQ2_0).reshape(4, ROWS // 4, -1)
    writer.add_tensor("stacked.weight", stacked, raw_dtype=T.TQ2_0)
    every_half = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    writer.add_tensor("F16.weight", every_half.view(np.float16))
    writer.add_tensor("BF16.weight", every_half.view(np.uint8), raw_dtype=T.BF16)
    writer.add_tensor("F32.weight", rng.integers(0, 2**32, (8, 64), dtype=np.uint32).view(np.float32))
    writer.add_tensor("I8.weight", rng.integers(-128, 128, (8, 64)).astype(np.int8))
    writer.add_tensor("one_dimension.weight", rng.standard_normal(77).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def compare(program, path):
    with tempfile.NamedTemporaryFile() as dump:
        subprocess.run([program, path, "--dump", dump.name], check=True, stdout=subprocess.DEVNULL)
        ours = np.fromfile(dump.name, np.float32)
    position = 0
    bad = 0
    for tensor in GGUFReader(path).tensors:
        if tensor.tensor_type == T.I8:
            expected = tensor.data.astype(np.float32).ravel()
        else:
            with np.errstate(all="ignore"):
                expected = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).ravel()
        found = ours[position:position + len(expected)]
        position += len(expected)
        both_nan = np.isnan(expected) & np.isnan(found)
        different = int(np.sum((expected.view(np.uint32) != found.view(np.uint32)) & ~both_nan))
        bad += different
        if different or path.endswith("all_types.gguf"):
            print(f"{tensor.name}: {len(expected)} weights, {int(both_nan.sum())} NaN, {different} different")
    if position != len(ours):
        print(f"expected {position} weights, found {len(ours)}")
        bad += 1
    print(f"{Path(path).name}: {position} weights, {bad} different")
    return bad


def main():
    program, *models = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "all_types.gguf")
        write_all_types(path)
        bad = sum(compare(program, p) for p in [path, *models])
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
