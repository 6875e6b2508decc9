"""Every damaged model, as (name, level, files). Deterministic: the same list, byte for byte, on every machine.

Levels:
  intact  undamaged; must be accepted
  parse   the reader of the format must refuse it
  load    well-formed as a file; the model loader must refuse it (missing tensors, wrong shapes, NaN scales)
  benign  one random bit of a header flipped: an error or a success (a flipped letter of a name nobody reads), no crash
"""

import json
import random
import struct

import gguf_model as g
import safetensors_model as s

NAN_HALF, INFINITE_HALF = b"\x00\x7e", b"\x00\x7c"
NAN_FLOAT = b"\x00\x00\xc0\x7f"


def all_cases():
    for base, model in (("maple", g.maple()), ("llama", g.llama())):
        for name, level, data in _gguf_cases(model, base):
            if isinstance(data, dict):
                yield f"{base}-{name}", level, data
            else:
                yield f"{base}-{name}", level, {"model.gguf": bytes(data)}
    yield from _split_cases(g.llama())
    for base, folder in (("mlx", s.mlx()), ("hf", s.hugging_face())):
        for name, level, files in _folder_cases(folder, base):
            yield f"{base}-{name}", level, files
    yield from _mlx_cases(s.mlx())
    yield from _hf_cases(s.hugging_face())


# --- GGUF ------------------------------------------------------------------------------------------------------------


def _overwrite(data, offset, value):
    out = bytearray(data)
    out[offset:offset + len(value)] = value
    return out


def _gguf_cases(model, architecture):
    whole = model.serialise()
    header = model.header_bytes
    yield "intact", "intact", whole
    for at in [0, 1, 3, 4, 7, 8, 12, 16, 23, 24, 30] + [header * i // 12 for i in range(1, 12)]:
        yield f"cut-at-{at}", "parse", whole[:at]
    for label, at in (("data", header + (len(whole) - header) // 2), ("last-byte", len(whole) - 1)):
        yield f"cut-{label}", "parse", whole[:at]
    yield from _gguf_header_cases(model, whole)
    yield from _gguf_key_cases(model)
    yield from _gguf_tensor_cases(model)
    yield from _gguf_flips(model, whole)
    yield from _gguf_load_cases(model, architecture)


def _gguf_header_cases(model, whole):
    yield "magic", "parse", b"GGML" + whole[4:]
    yield "magic-reversed", "parse", b"FUGG" + whole[4:]
    for version in (0, 1, 4, 0x03000000, 0xFFFFFFFF):
        yield f"version-{version}", "parse", _overwrite(whole, 4, struct.pack("<I", version))
    tensors, keys = len(model.tensors), len(model.keys)
    for count in (tensors + 1, tensors + 1000, 1 << 20, 1 << 32, 1 << 63, (1 << 64) - 1):
        yield f"tensor-count-{count}", "parse", _overwrite(whole, 8, struct.pack("<Q", count))
    for count in (keys - 1, keys + 1, 1 << 20, 1 << 32, 1 << 63, (1 << 64) - 1):
        yield f"key-count-{count}", "parse", _overwrite(whole, 16, struct.pack("<Q", count))


def _gguf_key_cases(model):
    def with_key(*key):
        m = model.copy()
        m.keys.append(list(key))
        return m.serialise()

    nest = (g.UINT8, [1])
    for _ in range(10):
        nest = (g.ARRAY, [nest])
    yield "array-nested-deep", "parse", with_key("bomb", g.ARRAY, nest)
    m = model.copy()
    m.keys.insert(0, ["bomb", g.ARRAY, (g.ARRAY, [(g.UINT8, [])] * 900000)])
    yield "array-of-many-arrays", "parse", m.serialise()
    yield "array-of-many-strings", "parse", _many_empty_strings(model, 4000000)
    yield "array-of-strings-then-cut", "parse", _many_empty_strings(model, 3000000)[:24001000]
    yield "bool-7", "parse", with_key("flag", g.BOOL, 7)
    yield "array-of-bool-7", "parse", with_key("flags", g.ARRAY, (g.BOOL, [0, 1, 7]))
    yield "key-twice", "parse", with_key(*model.keys[2])
    yield "key-empty", "parse", with_key("", g.UINT8, 1)
    yield "key-long", "parse", with_key("k" * 70000, g.UINT8, 1)
    for alignment in (0, 1, 3, 48, 1 << 31):
        yield f"alignment-{alignment}", "parse", with_key("general.alignment", g.UINT32, alignment)
    yield "alignment-string", "parse", with_key("general.alignment", g.STRING, "32")
    yield "alignment-moves-data", "parse", with_key("general.alignment", g.UINT32, 1 << 20)


def _many_empty_strings(model, count):
    m = model.copy()
    m.keys.insert(0, ["bomb", g.ARRAY, (g.STRING, [])])
    data = m.serialise()
    at = next(f[2] for f in m.fields if f[1] == "array bomb")
    return data[:at] + struct.pack("<Q", count) + bytes(8 * count) + data[at + 8:]


def _gguf_tensor_cases(model):
    first, second = model.tensors[0][0], model.tensors[2][0]

    def edited(edit):
        m = model.copy()
        edit(m)
        return m.serialise()

    def shape(name, extents):
        return edited(lambda m: m.tensor(name).__setitem__(1, extents))

    def kind(name, number):
        return edited(lambda m: m.tensor(name).__setitem__(2, number))

    def offset(name, value):
        return edited(lambda m: m.offsets.__setitem__(name, value))

    yield "tensor-twice", "parse", edited(lambda m: m.tensors.append(m.tensors[1]))
    yield "tensor-name-empty", "parse", edited(lambda m: m.tensors[1].__setitem__(0, ""))
    yield "tensor-name-long", "parse", edited(lambda m: m.tensors[1].__setitem__(0, "n" * 300))
    yield "tensor-no-dimensions", "parse", shape(second, [])
    yield "tensor-five-dimensions", "parse", shape(second, model.tensor(second)[1] + [1, 1, 1])
    yield "tensor-zero-extent", "parse", shape(second, [0, 256])
    yield "tensor-shape-overflow", "parse", shape(second, [1 << 40, 1 << 40])
    yield "tensor-shape-max", "parse", shape(second, [(1 << 64) - 256, 1])
    yield "tensor-bytes-overflow", "parse", shape(second, [1 << 62, 1])
    yield "tensor-shape-wraps-to-small", "parse", shape(second, [1 << 32, 1 << 32, 1 << 32])
    yield "tensor-larger-than-file", "parse", shape(second, [256, 1 << 30])
    yield "tensor-row-not-whole-blocks", "parse", shape(second, [24, 2])
    for number in (4, 5, 10, 16, 23, 31, 39, 999, 1000, 1002, (1 << 32) - 1):
        yield f"tensor-type-{number}", "parse", kind(second, number)
    yield "tensor-offset-unaligned", "parse", offset(second, 8)
    yield "tensor-offset-same", "parse", offset(second, 0)
    yield "tensor-offset-overlaps-end", "parse", offset(model.tensors[1][0], 32)
    yield "tensor-offset-past-end", "parse", offset(second, 1 << 30)
    yield "tensor-offset-wraps", "parse", offset(second, (1 << 64) - 32)
    yield "tensor-offset-wraps-2", "parse", offset(first, (1 << 63))


def _gguf_flips(model, whole):
    rng = random.Random(5)
    # In these fields, these bits always make an error: lengths and counts beyond the file, unknown types, bad offsets.
    aimed = [(f, bits) for f in model.fields for kind, bits in (
        ("length", range(24, 64)), ("count", range(24, 64)), ("type", range(8, 32)), ("dimensions", range(4, 32)),
        ("offset", range(0, 5)), ("offset", range(24, 64)), ("version", range(3, 32))) if f[0] == kind]
    for field, bits in rng.sample(aimed, 24):
        bit = rng.choice(bits)
        flipped = bytearray(whole)
        flipped[field[2] + bit // 8] ^= 1 << bit % 8
        yield f"flip-{field[0]}-{field[2]}-bit-{bit}", "parse", flipped
    for _ in range(30):
        bit = rng.randrange(model.header_bytes * 8)
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        yield f"flip-any-bit-{bit}", "benign", flipped


def _gguf_load_cases(model, architecture):
    def edited(edit):
        m = model.copy()
        edit(m)
        return m.serialise()

    def without_tensor(name):
        return edited(lambda m: m.tensors.remove(m.tensor(name)))

    def with_value(key, kind, value):
        return edited(lambda m: m.key(key).__setitem__(slice(1, 3), [kind, value]))

    def patched(name, at, value):
        return edited(lambda m: m.tensor(name).__setitem__(3, bytes(_overwrite(m.tensor(name)[3], at, value))))

    for name in [t[0] for t in model.tensors if not t[0].startswith("blk.0")]:
        if name != "output.weight":  # absent: the head is tied to the embedding
            yield f"without-{name}", "load", without_tensor(name)
    a = architecture + "."
    for key in ("block_count", "context_length", "embedding_length", "attention.head_count",
                "attention.layer_norm_rms_epsilon"):
        yield f"without-{key}", "load", edited(lambda m, key=key: m.keys.remove(m.key(a + key)))
        yield f"string-{key}", "load", with_value(a + key, g.STRING, "many")
    yield "without-architecture", "load", edited(lambda m: m.keys.remove(m.key("general.architecture")))
    yield "unknown-architecture", "load", with_value("general.architecture", g.STRING, "oak")
    for key in ("block_count", "embedding_length", "attention.head_count", "attention.head_count_kv"):
        yield f"zero-{key}", "load", with_value(a + key, g.UINT32, 0)
        yield f"huge-{key}", "load", with_value(a + key, g.UINT32, 0xFFFFFFFF)
    for label, value in (("nan", float("nan")), ("infinite", float("inf")), ("negative", -1.0)):
        yield f"epsilon-{label}", "load", with_value(a + "attention.layer_norm_rms_epsilon", g.FLOAT32, value)
        yield f"freq-base-{label}", "load", with_value(a + "rope.freq_base", g.FLOAT32, value)
    yield "rope-odd", "load", with_value(a + "rope.dimension_count", g.UINT32, 31)
    yield "rope-wide", "load", with_value(a + "rope.dimension_count", g.UINT32, 4096)
    yield "wrong-type-norm", "load", edited(lambda m: _retype(m.tensor("blk.1.attn_norm.weight"), g.I8))
    yield "wrong-type-projection", "load", edited(lambda m: _retype(m.tensor("blk.1.attn_q.weight"), g.I8))
    yield "wrong-shape-norm", "load", edited(lambda m: _halve(m.tensor("blk.1.attn_norm.weight")))
    yield "wrong-shape-projection", "load", edited(lambda m: _halve(m.tensor("blk.1.attn_k.weight")))
    yield "nan-norm", "load", patched("blk.1.attn_norm.weight", 8, NAN_FLOAT)
    scale_at = 64 if architecture == "maple" else 0
    yield "nan-scale", "load", patched("blk.1.attn_q.weight", scale_at, NAN_HALF)
    yield "infinite-scale", "load", patched("blk.1.attn_q.weight", scale_at, INFINITE_HALF)
    yield "nan-embedding", "load", patched("token_embd.weight", 0, NAN_HALF)
    if architecture != "maple":
        return
    yield "experts-used-too-many", "load", with_value(a + "expert_used_count", g.UINT32, g.EXPERTS + 1)
    yield "experts-used-none", "load", with_value(a + "expert_used_count", g.UINT32, 0)
    yield "pattern-short", "load", with_value(a + "attention.sliding_window_pattern", g.ARRAY, (g.BOOL, [1]))
    yield "window-zero", "load", with_value(a + "attention.sliding_window", g.UINT32, 0)
    yield "clamp-nan", "load", with_value(a + "swiglu_clamp_exp", g.FLOAT32, float("nan"))
    yield "nan-router", "load", patched("blk.1.ffn_gate_inp.weight", 16, NAN_FLOAT)
    yield "nan-expert-scale", "load", patched("blk.1.ffn_down_exps.weight", 66 * 700 + 64, NAN_HALF)


def _retype(tensor, kind):
    weights, size = g.BLOCKS[kind]
    count = 1
    for extent in tensor[1]:
        count *= extent
    tensor[2], tensor[3] = kind, bytes(count // weights * size)


def _halve(tensor):
    tensor[1] = [*tensor[1][:-1], tensor[1][-1] // 2]
    tensor[3] = tensor[3][:len(tensor[3]) // 2]


def _split_cases(model):
    half = len(model.tensors) // 2

    def pieces(edit=lambda first, second: None):
        first, second = model.copy(), g.Gguf()
        first.tensors, second.tensors = first.tensors[:half], first.tensors[half:]
        for number, part in enumerate((first, second)):
            part.keys += [["split.no", g.UINT16, number], ["split.count", g.UINT16, 2],
                          ["split.tensors.count", g.INT32, len(model.tensors)]]
        edit(first, second)
        return {"m-00001-of-00002.gguf": bytes(first.serialise()), "m-00002-of-00002.gguf": bytes(second.serialise())}

    def set_key(part, key, value):
        part.key(key)[2] = value

    yield "split-intact", "intact", pieces()
    whole = pieces()
    yield "split-second-missing", "parse", {"m-00001-of-00002.gguf": whole["m-00001-of-00002.gguf"]}
    yield "split-misnamed", "parse", {"m.gguf": whole["m-00001-of-00002.gguf"]}
    yield "split-only-second", "parse", {"m-00002-of-00002.gguf": whole["m-00002-of-00002.gguf"]}
    yield "split-second-cut", "parse", {**whole, "m-00002-of-00002.gguf": whole["m-00002-of-00002.gguf"][:-1]}
    yield "split-second-is-first", "parse", {**whole, "m-00002-of-00002.gguf": whole["m-00001-of-00002.gguf"]}
    yield "split-numbers", "parse", pieces(lambda a, b: set_key(b, "split.no", 5))
    yield "split-counts-differ", "parse", pieces(lambda a, b: set_key(b, "split.count", 3))
    yield "split-count-huge", "parse", pieces(lambda a, b: set_key(a, "split.count", 65535))
    yield "split-tensor-count", "parse", pieces(lambda a, b: set_key(a, "split.tensors.count", 7))
    yield "split-tensor-count-negative", "parse", pieces(lambda a, b: set_key(a, "split.tensors.count", -1))
    yield "split-tensor-twice", "parse", pieces(lambda a, b: b.tensors.__setitem__(0, a.tensors[0]))


# --- safetensors -----------------------------------------------------------------------------------------------------


def _folder_cases(folder, base):
    files = folder.files()
    shard = sorted(folder.shards)[0]
    whole = files[shard]
    header_length = struct.unpack("<Q", whole[:8])[0]

    def with_shard(data):
        return {**files, shard: bytes(data)}

    yield "intact", "intact", files
    for at in (0, 1, 7, 8, 9, 8 + header_length // 2, 8 + header_length - 1, 8 + header_length, len(whole) - 1):
        yield f"cut-at-{at}", "parse", with_shard(whole[:at])
    yield "one-byte-more", "parse", with_shard(whole + b"\0")
    for length in (0, 1, header_length - 9, header_length + 8, len(whole), 1 << 32, (1 << 63), (1 << 64) - 1):
        yield f"header-length-{length}", "parse", with_shard(_overwrite(whole, 0, struct.pack("<Q", length)))
    yield from _header_cases(folder, files, shard)
    yield from _config_cases(folder, files)


def _header_cases(folder, files, shard):
    data = folder.data(shard)
    name = folder.shards[shard][2][0]

    def raw(header):
        return {**files, shard: s.pack(header, data)}

    def edited(**fields):
        header = folder.header(shard)
        for key, value in fields.items():
            if value is None:
                del header[name][key]
            else:
                header[name][key] = value
        return raw(json.dumps(header).encode())

    good = json.dumps(folder.header(shard)).encode()
    begin, end = folder.header(shard)[name]["data_offsets"]
    shape = folder.header(shard)[name]["shape"]
    yield "json-unclosed", "parse", raw(good[:-1])
    yield "json-array", "parse", raw(b"[1,2,3]")
    yield "json-number", "parse", raw(b"7")
    yield "json-rubbish", "parse", raw(b"\xff\xfe" * 40)
    yield "json-invalid-utf8", "parse", raw(good.replace(b"weight", b"wei\xffht", 1))
    yield "json-nested-deep", "parse", raw(b'{"x":' + b"[" * 100000 + b"]" * 100000 + b"}")
    yield "json-nested-deep-metadata", "parse", raw(b'{"__metadata__":' + b'{"a":' * 50000 + b"1" + b"}" * 50001)
    yield "json-comment", "parse", raw(b"/* */" + good)
    yield "json-many-numbers", "parse", raw(b'{"x":{"shape":[' + b"1," * 3000000 + b"1]}}")
    yield "tensor-twice", "parse", raw(good[:-1] + b", " + json.dumps(name).encode() + b": {}}")
    yield "tensor-name-long", "parse", raw(good.replace(name.encode(), b"n" * 5000, 1))
    yield "tensor-is-number", "parse", raw(good[:-1] + b', "x": 3}')
    for key in ("dtype", "shape", "data_offsets"):
        yield f"without-{key}", "parse", edited(**{key: None})
    yield "extra-field", "parse", edited(strides=[1])
    for dtype in ("F8_E9", "", "bf16", 7, None, ["BF16"]):
        if dtype is not None:
            yield f"dtype-{dtype}", "parse", edited(dtype=dtype)
    for label, value in (("negative", [-1]), ("zero", [0]), ("real", [1.5]), ("text", ["8"]), ("huge", [1 << 62, 8]),
                         ("overflow", [1 << 40, 1 << 40]), ("beyond-64-bits", [1 << 70]), ("empty", []),
                         ("five", [1, 1, 1, 1, 1]), ("nested", [[1]]), ("number", 8), ("other", [shape[0] + 1])):
        yield f"shape-{label}", "parse", edited(shape=value)
    for label, value in (("reversed", [end, begin]), ("one", [begin]), ("three", [begin, end, end]),
                         ("past-end", [begin, 1 << 50]), ("negative", [-8, end]), ("short", [begin, end - 2]),
                         ("overlap", [begin - 2, end - 2]), ("gap", [begin + 2, end + 2]),
                         ("wraps", [(1 << 64) - 8, 8]), ("text", "0-8"), ("first", [0, end - begin])):
        yield f"offsets-{label}", "parse", edited(data_offsets=value)


def _config_cases(folder, files):
    def config(**values):
        edited = dict(folder.config)
        for key, value in values.items():
            if value is None:
                del edited[key]
            else:
                edited[key] = value
        return {**files, "config.json": json.dumps(edited).encode()}

    without = dict(files)
    del without["config.json"]
    yield "config-absent", "parse", without
    yield "config-cut", "parse", {**files, "config.json": files["config.json"][:100]}
    yield "config-array", "parse", {**files, "config.json": b"[]"}
    yield "config-nested-deep", "parse", {**files, "config.json": b'{"a":' * 1000 + b"1" + b"}" * 1000}
    yield "config-large", "parse", {**files, "config.json": files["config.json"] + b" " * (2 << 20)}
    yield "config-key-twice", "parse", {**files, "config.json": b'{"model_type":"oak",' + files["config.json"][1:]}
    for key in ("model_type", "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
                "head_dim", "sliding_window", "layer_types", "rope_theta", "num_experts", "num_experts_per_tok",
                "moe_intermediate_size", "rms_norm_eps", "vocab_size", "max_position_embeddings"):
        yield f"config-without-{key}", "parse", config(**{key: None})
    for key, value in (("model_type", "oak"), ("model_type", 3), ("hidden_size", 0), ("hidden_size", -256),
                       ("hidden_size", "256"), ("hidden_size", 1 << 40), ("num_hidden_layers", 1 << 31),
                       ("num_hidden_layers", 2.5), ("layer_types", ["full_attention"]), ("layer_types", ["a", "b"]),
                       ("layer_types", "sliding_attention"), ("num_experts_per_tok", 5), ("num_key_value_heads", 3),
                       ("partial_rotary_factor", 1.5), ("partial_rotary_factor", 0.3), ("rms_norm_eps", "small"),
                       ("eos_token_id", -1)):
        yield f"config-{key}-{value if not isinstance(value, list) else 'list'}", "parse", config(**{key: value})


def _mlx_cases(folder):
    q = "model.layers.1.self_attn.q_proj"
    experts = "model.layers.1.mlp.switch_mlp.down_proj"

    def edited(edit):
        f = folder.copy()
        edit(f)
        return f.files()

    def replaced(name, *tensor):
        return edited(lambda f: f.tensor(name).__setitem__(slice(1, 4), list(tensor)))

    def added(*tensor):
        return edited(lambda f: f.shards["model.safetensors"].append(list(tensor)))

    rows = g.HEADS * g.HEAD_DIM
    yield "mlx-row-alpha-absent", "parse", edited(lambda f: f.remove(q + ".row_alpha"))
    yield "mlx-weight-absent", "parse", edited(lambda f: f.remove(q + ".weight"))
    yield "mlx-scales-absent", "parse", edited(lambda f: f.remove("lm_head.scales"))
    yield "mlx-biases-absent", "parse", edited(lambda f: f.remove("lm_head.biases"))
    yield "mlx-row-alpha-short", "parse", replaced(q + ".row_alpha", "BF16", [rows - 1], bytes(2 * rows - 2))
    yield "mlx-row-alpha-f32", "parse", replaced(q + ".row_alpha", "F32", [rows], bytes(4 * rows))
    yield "mlx-row-alpha-flat", "parse", replaced(experts + ".row_alpha", "BF16", [g.EXPERTS * g.HIDDEN],
                                                  bytes(2 * g.EXPERTS * g.HIDDEN))
    yield "mlx-words-narrow", "parse", replaced(q + ".weight", "U32", [rows, 15], bytes(rows * 60))
    yield "mlx-words-one-dimension", "parse", replaced(q + ".weight", "U32", [16], bytes(64))
    yield "mlx-words-f32", "parse", replaced(q + ".weight", "F32", [rows, 16], bytes(rows * 64))
    yield "mlx-both-scales", "parse", added(q + ".scales", "BF16", [rows, 2], bytes(rows * 4))
    yield "mlx-unknown-tensor", "parse", added("model.layers.1.mystery.weight", "BF16", [4], bytes(8))
    yield "mlx-layer-leading-zero", "parse", added("model.layers.01.self_attn.q_proj.weight", "BF16", [4], bytes(8))
    yield "mlx-embedding-twice", "parse", added("model.embed_tokens.weight", "BF16", [4], bytes(8))
    yield "mlx-norm-with-scales", "parse", added("model.norm.scales", "BF16", [4], bytes(8))
    nan = b"\xc0\x7f"
    yield "mlx-nan-row-alpha", "load", edited(lambda f: _patch(f.tensor(q + ".row_alpha"), 10, nan))
    yield "mlx-nan-expert-alpha", "load", edited(lambda f: _patch(f.tensor(experts + ".row_alpha"), 900, nan))
    yield "mlx-nan-norm", "load", edited(lambda f: _patch(f.tensor("model.norm.weight"), 6, nan))
    yield "mlx-nan-head-scale", "load", edited(lambda f: _patch(f.tensor("lm_head.scales"), 4, nan))
    for name in ("model.norm.weight", "model.layers.1.mlp.gate.weight", "model.layers.1.self_attn.q_norm.weight"):
        yield f"mlx-without-{name}", "load", edited(lambda f, name=name: f.remove(name))


def _hf_cases(folder):
    files = folder.files()
    first, second = sorted(folder.shards)
    index = "model.safetensors.index.json"

    def edited(edit):
        f = folder.copy()
        edit(f)
        return f.files()

    def indexed(edit):
        content = folder.index()
        edit(content)
        return {**files, index: json.dumps(content).encode()}

    expert = "model.layers.1.mlp.experts.2.up_proj.weight"
    yield "hf-shard-absent", "parse", {k: v for k, v in files.items() if k != second}
    yield "hf-index-cut", "parse", {**files, index: files[index][:-5]}
    yield "hf-index-empty", "parse", {**files, index: b"{}"}
    yield "hf-index-no-weights", "parse", indexed(lambda c: c["weight_map"].clear())
    yield "hf-index-map-is-list", "parse", indexed(lambda c: c.__setitem__("weight_map", [1]))
    yield "hf-index-number", "parse", indexed(lambda c: c["weight_map"].__setitem__(expert, 5))
    yield "hf-index-other-folder", "parse", indexed(lambda c: c["weight_map"].__setitem__(expert, "../x.safetensors"))
    yield "hf-index-absolute", "parse", indexed(lambda c: c["weight_map"].__setitem__(expert, "/dev/zero.safetensors"))
    yield "hf-index-wrong-shard", "parse", indexed(lambda c: c["weight_map"].__setitem__(expert, first))
    yield "hf-index-extra-tensor", "parse", indexed(lambda c: c["weight_map"].__setitem__("more.weight", first))
    yield "hf-index-forgets-tensor", "parse", indexed(lambda c: c["weight_map"].pop(expert))
    yield "hf-expert-absent", "parse", edited(lambda f: f.remove(expert))
    yield "hf-expert-too-many", "parse", edited(lambda f: f.shards[second].append(
        [expert.replace(".2.", f".{g.EXPERTS}."), "BF16", [g.EXPERT_WIDTH, g.HIDDEN],
         bytes(2 * g.EXPERT_WIDTH * g.HIDDEN)]))
    yield "hf-expert-huge-number", "parse", edited(lambda f: f.shards[second].append(
        ["model.layers.1.mlp.experts.18446744073709551615.up_proj.weight", "BF16", [4], bytes(8)]))
    yield "hf-expert-other-shape", "parse", edited(lambda f: f.tensor(expert).__setitem__(2, [1, 65536]))
    yield "hf-expert-other-type", "parse", edited(lambda f: f.tensor(expert).__setitem__(
        slice(1, 4), ["F32", [g.EXPERT_WIDTH, g.HIDDEN], bytes(4 * g.EXPERT_WIDTH * g.HIDDEN)]))
    yield "hf-tensor-in-both-shards", "parse", edited(lambda f: f.shards[first].append(f.tensor(expert)))
    yield "hf-experts-also-stacked", "parse", edited(lambda f: f.shards[first].append(
        ["model.layers.1.mlp.switch_mlp.up_proj.weight", "BF16", [4], bytes(8)]))
    for name in ("model.word_embeddings.weight", "lm_head.weight", "model.layers.0.self_attn.k_proj.weight"):
        yield f"hf-without-{name}", "load", edited(lambda f, name=name: f.remove(name))
    nan = b"\xc0\x7f"
    yield "hf-nan-projection", "load", edited(
        lambda f: _patch(f.tensor("model.layers.0.self_attn.k_proj.weight"), 1000, nan))
    yield "hf-nan-expert", "load", edited(lambda f: _patch(f.tensor(expert), 1000, nan))


def _patch(tensor, at, value):
    tensor[3] = bytes(_overwrite(tensor[3], at, value))
