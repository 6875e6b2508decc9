"""A converted folder must hold the model that its companion GGUF holds, and say what it lost."""

import json
import sys

import gguf_to_hf
import gguf_to_mlx
import model
import numpy as np
import pytest
from gguf_weights import Weights
from safetensors_folder import bf16_bits
from tiny_gguf import Shape
from tokenizers import Tokenizer

SHAPE = Shape(layers=2, full_every=2, experts=4, experts_used=2)


def read_folder(folder):
    """{name: array} of every safetensors file in a folder; BF16 as float32. Written apart from the writer."""
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            payload = data[8 + size + begin : 8 + size + end]
            if entry["dtype"] == "BF16":
                values = (np.frombuffer(payload, "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                values = np.frombuffer(payload, {"F32": "<f4", "U32": "<u4"}[entry["dtype"]])
            assert name not in tensors
            tensors[name] = values.reshape(entry["shape"])
    return tensors


def unpack(words, bits):
    codes = np.stack([(words >> shift) & (2**bits - 1) for shift in range(0, 32, bits)], axis=-1)
    return codes.reshape(*words.shape[:-1], -1).astype(np.float64)


def affine(tensors, module):
    values = unpack(tensors[module + ".weight"], 4)
    grouped = values.reshape(len(values), -1, 64)
    grouped = grouped * tensors[module + ".scales"][..., None] + tensors[module + ".biases"][..., None]
    return grouped.reshape(values.shape)


def ternary(tensors, module):
    codes = unpack(tensors[module + ".weight"], 2)
    if module + ".row_alpha" in tensors:
        return (codes - 1) * tensors[module + ".row_alpha"][..., None]
    grouped = codes.reshape(*codes.shape[:-1], -1, 128)
    grouped = grouped * tensors[module + ".scales"][..., None] + tensors[module + ".biases"][..., None]
    return grouped.reshape(codes.shape)


def assert_projections_equal(weights, attention, expert):
    for layer in range(SHAPE.layers):
        matrices = [*weights.attention(layer), weights.tensor(f"blk.{layer}.attn_output.weight")]
        for part, matrix in zip("qkvo", matrices, strict=True):
            np.testing.assert_array_equal(attention(layer, part), matrix)
        for index in range(SHAPE.experts):
            for part, matrix in zip(("gate", "up", "down"), weights.expert(layer, index), strict=True):
                np.testing.assert_array_equal(expert(layer, index, part), matrix)


@pytest.mark.parametrize("scales", ["row_alpha", "group"])
@pytest.mark.parametrize("embedding", ["f32", "q4_1"])
@pytest.mark.parametrize("fused", [False, True])
def test_an_mlx_folder_holds_its_companion_to_the_last_bit(tiny, tmp_path, scales, embedding, fused):
    source = tiny(shape=SHAPE, fused=fused)
    log = gguf_to_mlx.convert(source, tmp_path / "mlx", scales, 0.5, tmp_path / "companion.gguf", embedding)
    assert [line.split(":")[0] for line in log] == ["model.word_embeddings", "lm_head"]
    companion, tensors = Weights(tmp_path / "companion.gguf"), read_folder(tmp_path / "mlx")
    np.testing.assert_array_equal(affine(tensors, "model.word_embeddings"), companion.tensor("token_embd.weight"))
    np.testing.assert_array_equal(affine(tensors, "lm_head"), companion.tensor("output.weight"))
    layers = "model.layers.{}."
    assert_projections_equal(
        companion,
        lambda layer, part: ternary(tensors, f"{layers.format(layer)}self_attn.{part}_proj"),
        lambda layer, index, part: ternary(tensors, f"{layers.format(layer)}mlp.switch_mlp.{part}_proj")[index],
    )
    for layer in range(SHAPE.layers):
        router = tensors[f"model.layers.{layer}.mlp.gate.weight"]
        np.testing.assert_array_equal(router, companion.tensor(f"blk.{layer}.ffn_gate_inp.weight"))
    index = json.loads((tmp_path / "mlx/model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(tensors)
    assert len(set(index["weight_map"].values())) > 1
    tokens = np.arange(20)
    lossy, exact = (model.forward(w, tokens).logits for w in (companion, Weights(source)))
    assert 0.01 < model.rms(lossy - exact) / model.rms(exact) < 0.5


def test_a_hugging_face_folder_holds_its_companion_to_the_last_bit(tiny, tmp_path):
    log = gguf_to_hf.convert(tiny(shape=SHAPE), tmp_path / "hf", 1, tmp_path / "companion.gguf")
    assert [line.split(":")[0] for line in log] == ["model.word_embeddings", "lm_head"]
    companion, tensors = Weights(tmp_path / "companion.gguf"), read_folder(tmp_path / "hf")
    np.testing.assert_array_equal(tensors["model.word_embeddings.weight"], companion.tensor("token_embd.weight"))
    np.testing.assert_array_equal(tensors["lm_head.weight"], companion.tensor("output.weight"))
    layers = "model.layers.{}."
    assert_projections_equal(
        companion,
        lambda layer, part: tensors[f"{layers.format(layer)}self_attn.{part}_proj.weight"],
        lambda layer, index, part: tensors[f"{layers.format(layer)}mlp.experts.{index}.{part}_proj.weight"],
    )


def test_one_file_without_a_shard_size_and_no_head_for_a_tied_model(tiny, tmp_path):
    gguf_to_mlx.convert(tiny(shape=SHAPE, tied=True), tmp_path)
    assert [file.name for file in tmp_path.glob("*.safetensors*")] == ["model.safetensors"]
    assert not [name for name in read_folder(tmp_path) if name.startswith("lm_head")]
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is True


def test_config_says_what_the_source_says(tiny, tmp_path):
    gguf_to_hf.convert(tiny(shape=SHAPE), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    expected = {
        "model_type": "maple", "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 16, "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-6,
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "vocab_size": 320,
        "swiglu_limit": 7.0, "tie_word_embeddings": False, "eos_token_id": 319,
    }
    assert {name: config[name] for name in expected} == expected


def test_the_tokenizer_splits_merges_and_keeps_special_tokens_whole(tiny, tmp_path):
    source = tiny(shape=SHAPE)
    gguf_to_hf.convert(source, tmp_path)
    tokens = Weights(source).key("tokenizer.ggml.tokens")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "in the é12<|im_end|>"
    ids = tokenizer.encode(text).ids
    assert [tokens[n] for n in ids] == ["in", "Ġthe", "Ġ", "Ã", "©", "1", "2", "<|im_end|>"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert "im_start" in json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"]


@pytest.mark.parametrize("row", [[0.5, -0.5, 0.25], [0.5, -0.5, 0.5000001], [0.3, 0.0, -0.3]])
def test_rows_that_are_not_ternary_or_whose_scale_is_no_bf16_are_refused_by_name(row):
    matrix = np.zeros((3, 128))
    matrix[2, :3] = row
    with pytest.raises(ValueError, match="blk.9.*row 2"):
        gguf_to_mlx.ternary_codes("blk.9", matrix, 128)


def test_a_source_that_is_not_ternary_leaves_no_weights_behind(tiny, tmp_path, monkeypatch, capsys):
    source = tiny(shape=SHAPE, type_name="F16", ternary=False)
    monkeypatch.setattr(sys, "argv", ["gguf_to_mlx", str(source), "-o", str(tmp_path), "--shard-mib", "0.01"])
    assert gguf_to_mlx.main() == 1
    assert "self_attn.q_proj: row 0" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_bf16_rounds_to_nearest_and_ties_to_even():
    values = np.array([1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, 1.0 + 2**-8 + 2**-20, -(1.0 + 2**-8)], dtype=np.float32)
    assert [hex(bits) for bits in bf16_bits(values)] == ["0x3f80", "0x3f80", "0x3f82", "0x3f81", "0xbf80"]
