#!/usr/bin/env python3
"""The `gguf` package opens our packed files: metadata kept, tensors in place, weights and hashes as documented.

usage: packed_opens_in_gguf_py.py PACK_FILE

PACK_FILE is the test program of that name. Needs numpy and gguf (PyPI); exits with 77 without. The layouts are decoded
here anew from docs/packed-file.md, so that the page is tested, too.
"""

import hashlib
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "reference"))
from tiny_gguf import write_tiny  # noqa: E402

FLOAT32, FLOAT16, BFLOAT16, TERNARY, TERNARY_BLOCKS, NIBBLE, NIBBLE_K, BYTE = range(8)
CHANGED = ("general.alignment", "GGUF.version", "GGUF.tensor_count", "GGUF.kv_count")


def fields(reader):
    return {name: field.contents() for name, field in reader.fields.items()}


def weights_of(reader):
    return {t.name: dequantize(t.data, t.tensor_type).astype(np.float32).reshape(tuple(t.shape[::-1].tolist()))
            for t in reader.tensors}


def up(n, multiple):
    return -(-n // multiple) * multiple


def f32(data):
    return np.ascontiguousarray(data).view(np.float32)


def codes_of(blocks, per_byte):
    """[..., 64 bytes] -> [..., 16 rows, 4*per_byte columns]: byte 4r+j, field p holds row r, column 4p+j."""
    bits = 8 // per_byte
    rows = blocks.reshape(*blocks.shape[:-1], 16, 1, 4) >> (bits * np.arange(per_byte, dtype=np.uint8))[:, None]
    return (rows & (2**bits - 1)).reshape(*blocks.shape[:-1], 16, 4 * per_byte)


def rows_from(codes, value, m):
    """[row groups, parts, blocks, 16, columns] and the formula for a value -> [rows, cols]"""
    values = value(codes.astype(np.float32))
    return values.transpose(0, 3, 1, 2, 4).reshape(values.shape[0] * 16, -1)[:m["rows"], :m["cols"]]


def decode(blob, m):
    """A blob of bytes -> float32 [rows, cols], as docs/packed-file.md says."""
    rows, cols, group = m["rows"], m["cols"], m["group"]
    groups = up(rows, 16) // 16
    if m["layout"] == FLOAT32:
        return f32(blob).reshape(rows, cols)
    if m["layout"] == FLOAT16:
        return blob.view(np.float16).astype(np.float32).reshape(rows, cols)
    if m["layout"] == BFLOAT16:
        return f32(blob.view(np.uint16).astype(np.uint32) << 16).reshape(rows, cols)
    if m["layout"] in (TERNARY, TERNARY_BLOCKS):
        part = up(cols, 16) if m["layout"] == TERNARY else 256
        parts = up(cols, part) // part
        size = groups * parts * part * 4
        scale = f32(blob[size:]).reshape(groups, parts, 1, 16, 1)
        codes = codes_of(blob[:size].reshape(groups, parts, part // 16, 64), 4)
        return rows_from(codes, lambda c: scale * (c - np.float32(1)), m)
    if m["layout"] == NIBBLE_K:
        records = blob.reshape(groups, -1, 2368)
        halves = np.ascontiguousarray(records[..., :64]).view(np.float16).astype(np.float32)
        small = records[..., 64:320].astype(np.float32).reshape(groups, -1, 2, 8, 16)
        scale = (halves[..., None, :16] * small[:, :, 0]).reshape(groups, -1, 1, 16, 1)
        minimum = (halves[..., None, 16:] * small[:, :, 1]).reshape(groups, -1, 1, 16, 1)
        codes = codes_of(records[..., 320:].reshape(groups, scale.shape[1], 4, 64), 2)
        return rows_from(codes, lambda c: scale * c - minimum, m)
    per_byte = 2 if m["layout"] == NIBBLE else 1
    records = blob.reshape(groups, -1, 128 + group * 16 // per_byte)
    scale = f32(records[..., :64]).reshape(groups, -1, 1, 16, 1)
    minimum = f32(records[..., 64:128]).reshape(groups, -1, 1, 16, 1)
    codes = codes_of(records[..., 128:].reshape(groups, records.shape[1], -1, 64), per_byte)
    return rows_from(codes, lambda c: scale * (c - np.float32(m["offset"])) + minimum, m)


def shape_of(numbers):
    return dict(zip(("layout", "group", "offset", "rows", "cols"), (int(n) for n in numbers), strict=True))


def size_of(m):
    groups, cols, group = up(m["rows"], 16) // 16, m["cols"], m["group"] or 1
    return {
        FLOAT32: 4 * m["rows"] * cols,
        FLOAT16: 2 * m["rows"] * cols,
        BFLOAT16: 2 * m["rows"] * cols,
        TERNARY: groups * (up(cols, 16) * 4 + 64),
        TERNARY_BLOCKS: groups * (up(cols, 256) * 4 + up(cols, 256) // 256 * 64),
        NIBBLE: groups * (up(cols, group) // group * (128 + 8 * group)),
        NIBBLE_K: groups * (up(cols, 256) // 256 * 2368),
        BYTE: groups * (up(cols, group) // group * (128 + 16 * group)),
    }[m["layout"]]


def source_weight(source, name, keys):
    """A weight by its own name, cut out of a fused tensor if need be."""
    if name in source:
        return source[name]
    if name == "output.weight":
        return source["token_embd.weight"]
    prefix, part = name.rsplit(".", 2)[:2]
    if part in ("attn_q", "attn_k", "attn_v"):
        attention = f"{keys['general.architecture']}.attention."
        q = keys[attention + "head_count"] * keys[attention + "key_length"]
        kv = keys[attention + "head_count_kv"] * keys[attention + "key_length"]
        begin = {"attn_q": 0, "attn_k": q, "attn_v": q + kv}[part]
        return source[f"{prefix}.attn_qkv.weight"][begin:begin + (q if part == "attn_q" else kv)]
    both = source[f"{prefix}.ffn_gate_up_exps.weight"]
    half = both.shape[1] // 2
    return both[:, :half] if part == "ffn_gate_exps" else both[:, half:]


class Check:
    def __init__(self, source_path, packed_path):
        self.source_reader, self.packed = GGUFReader(source_path), GGUFReader(packed_path)
        self.before, self.after = fields(self.source_reader), fields(self.packed)
        self.tensors = {t.name: t for t in self.packed.tensors}
        self.source = weights_of(self.source_reader)
        self.layouts = set()
        self.compared = 0

    def run(self, expected_layout):
        self.metadata()
        self.sections()
        self.matrices()
        self.experts()
        self.plain_tensors()
        assert self.layouts == {expected_layout}, self.layouts
        return self.compared

    def metadata(self):
        for name, value in self.before.items():
            assert name in CHANGED or self.after[name] == value, f"{name}: {value} became {self.after.get(name)}"
        assert self.after["general.alignment"] == 16384
        assert self.after["samara.packed.version"] == 1

    def sections(self):
        names, hashes = self.after["samara.section.names"], self.after["samara.section.sha256"]
        assert sorted(names) == sorted(self.tensors), "sections are not the tensors"
        for name, digest in zip(names, hashes, strict=True):
            assert self.tensors[name].data_offset % 16384 == 0, name
            assert hashlib.sha256(self.tensors[name].data.tobytes()).hexdigest() == digest, name

    def matrices(self):
        shapes = np.reshape(self.after["samara.matrix.shapes"], (-1, 5))
        names, tensors = self.after["samara.matrix.names"], self.after["samara.matrix.tensors"]
        for name, tensor, numbers in zip(names, tensors, shapes, strict=True):
            m = shape_of(numbers)
            blob = np.frombuffer(self.tensors[tensor].data.tobytes(), np.uint8)
            assert len(blob) == size_of(m), name
            self.same(decode(blob, m), source_weight(self.source, name, self.before), name)
            if ".attn_" in name:
                self.layouts.add(m["layout"])

    def experts(self):
        for numbers in np.reshape(self.after.get("samara.experts.layouts", []), (-1, 21)).astype(int):
            layer, count, size = numbers[:3]
            records = self.tensors[f"samara.blk.{layer}.experts"].data.view(np.uint8).reshape(count, size)
            for part, start in (("gate", 3), ("up", 9), ("down", 15)):
                m, offset = shape_of(numbers[start:start + 5]), numbers[start + 5]
                self.layouts.add(m["layout"])
                expected = source_weight(self.source, f"blk.{layer}.ffn_{part}_exps.weight", self.before)
                for expert in range(count):
                    blob = np.ascontiguousarray(records[expert, offset:offset + size_of(m)])
                    self.same(decode(blob, m), expected[expert], f"layer {layer} expert {expert} {part}")

    def plain_tensors(self):
        originals = {t.name: t for t in self.source_reader.tensors}
        assert np.array_equal(self.tensors["token_embd.weight"].data, originals["token_embd.weight"].data)
        for name, weights in self.source.items():
            if weights.ndim == 1:
                assert self.tensors[name].tensor_type == T.F32
                self.same(self.tensors[name].data, weights, name)

    def same(self, found, expected, what):
        assert found.shape == expected.shape, f"{what}: {found.shape} against {expected.shape}"
        assert np.array_equal(found, expected), f"{what}: {np.sum(found != expected)} weights differ"
        self.compared += found.size


def write_random_blocks(path):
    """A file of every type that the package cannot quantise to: random bytes under sane scales."""
    rng = np.random.default_rng(3)
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", rng.standard_normal((40, 512)).astype(np.float16))
    for name, kind, scales in (("output", T.Q4_K, (0, 2)), ("blk.0.attn_q", T.TQ2_0, (64,)),
                               ("blk.0.ffn_gate", T.Q5_K, (0, 2)), ("blk.0.ffn_up", T.Q6_K, (208,)),
                               ("blk.0.attn_k", T.TQ1_0, (52,))):
        blocks = rng.integers(0, 256, (80, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
        for offset in scales:
            values = (rng.standard_normal(80) * 0.1).astype(np.float16)
            blocks[:, offset:offset + 2] = values[:, None].view(np.uint8)
        writer.add_tensor(name + ".weight", blocks.reshape(40, -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    program = sys.argv[1]
    cases = [
        ("maple TQ2_0", {"type_name": "TQ2_0", "embedding_type": "F16"}, TERNARY),
        ("maple TQ1_0, Q4_1 head", {"type_name": "TQ1_0", "embedding_type": "Q4_1"}, TERNARY),
        ("maple F16, ternary rows", {"type_name": "F16"}, TERNARY),
        ("maple F32, ternary rows", {"type_name": "F32", "embedding_type": "F32"}, TERNARY),
        ("maple fused", {"type_name": "TQ2_0", "fused": True}, TERNARY),
        ("maple tied, quantised", {"type_name": "TQ2_0", "embedding_type": "Q8_0", "tied": True}, TERNARY),
        ("llama Q8_0, tied floats", {"architecture": "llama", "type_name": "Q8_0", "tied": True}, BYTE),
        ("llama Q4_0", {"architecture": "llama", "type_name": "Q4_0", "embedding_type": "Q5_0"}, NIBBLE),
        ("llama Q4_1", {"architecture": "llama", "type_name": "Q4_1", "embedding_type": "Q5_1"}, NIBBLE),
        ("llama F16", {"architecture": "llama", "type_name": "F16"}, FLOAT16),
        ("llama BF16", {"architecture": "llama", "type_name": "BF16", "embedding_type": "BF16"}, BFLOAT16),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for title, options, layout in cases:
            source, packed = f"{folder}/source.gguf", f"{folder}/packed.gguf"
            write_tiny(source, **options)
            subprocess.run([program, source, packed], check=True, stdout=subprocess.DEVNULL)
            subprocess.run([program, "--verify", packed], check=True)
            print(f"{title}: {Check(source, packed).run(layout)} weights equal")
            assert sorted(p.name for p in Path(folder).iterdir()) == ["packed.gguf", "source.gguf"]
        write_random_blocks(source)
        subprocess.run([program, source, packed], check=True, stdout=subprocess.DEVNULL)
        print(f"random blocks: {Check(source, packed).run(TERNARY_BLOCKS)} weights equal")


if __name__ == "__main__":
    main()
