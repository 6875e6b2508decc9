"""What both layouts of a Maple folder share: configuration, tokenizer, norms and router, and the companion GGUF."""

import sys
from pathlib import Path

from gguf import GGUFValueType, GGUFWriter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "reference"))
from gguf_weights import Weights  # noqa: E402

from safetensors_folder import bf16_values, write_json  # noqa: E402

CONTROL, USER_DEFINED = 3, 4  # tokenizer.ggml.token_type
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LETTERS_AND_REST = r"[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    "qwen2": CONTRACTIONS + "|" + LETTERS_AND_REST % r"\p{N}",
    "llama-bpe": CONTRACTIONS + "|" + LETTERS_AND_REST % r"\p{N}{1,3}",
}


def open_maple(path):
    weights = Weights(path)
    if weights.config.architecture != "maple":
        raise ValueError(f"{path}: architecture {weights.config.architecture}; only maple has these layouts")
    return weights


def write_config(folder, weights, extra):
    """config.json with Hugging Face's field names."""
    c = weights.config
    inner = weights.shape("blk.0.ffn_down_exps.weight")[2]
    sliding = [window is not None for window in c.window]
    clamps = [float(clamp) for clamp in c.clamp]
    config = {
        "architectures": ["MapleForCausalLM"],
        "model_type": "maple",
        "num_hidden_layers": c.layers,
        "hidden_size": c.hidden,
        "intermediate_size": weights.key("maple.feed_forward_length", inner),
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "layer_types": ["sliding_attention" if flag else "full_attention" for flag in sliding],
        "sliding_window": weights.key("maple.attention.sliding_window"),
        "rope_theta": next((theta for theta in c.rope_theta if theta is not None), 10000.0),
        "partial_rotary_factor": c.rope_dims / c.head_dim,
        "rms_norm_eps": float(f"{c.rms_eps:.7g}"),
        "num_experts": c.experts,
        "num_experts_per_tok": c.experts_used,
        "moe_intermediate_size": inner,
        "first_k_dense_replace": 0,
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "swiglu_limit": clamps[0] if len(set(clamps)) == 1 else clamps,
        "attention_bias": False,
        "vocab_size": c.vocabulary,
        "max_position_embeddings": weights.key("maple.context_length", 131072),
        "tie_word_embeddings": not weights.has("output.weight"),
        **extra,
    }
    for name, key in (("eos_token_id", "eos"), ("bos_token_id", "bos"), ("pad_token_id", "padding")):
        if f"tokenizer.ggml.{key}_token_id" in weights.fields():
            config[name] = weights.key(f"tokenizer.ggml.{key}_token_id")
    write_json(Path(folder) / "config.json", config)


def write_tokenizer(folder, weights):
    """tokenizer.json and tokenizer_config.json. Returns why not, or None when they were written."""
    fields = weights.fields()
    if "tokenizer.ggml.tokens" not in fields or weights.key("tokenizer.ggml.model", "none") != "gpt2":
        return "no byte-level BPE tokenizer in the source"
    pre = weights.key("tokenizer.ggml.pre", "default")
    if pre not in (*SPLITS, "smollm", "gpt-2"):
        return f"pre-tokenizer {pre!r} is not known"
    tokens, types = weights.key("tokenizer.ggml.tokens"), weights.key("tokenizer.ggml.token_type")
    added = [n for n, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED)]
    skipped = set(added)
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": n, "content": tokens[n], "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": types[n] == CONTROL}
            for n in added
        ],
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": _pre_tokenizer(pre),
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: n for n, token in enumerate(tokens) if n not in skipped},
            "merges": [merge.split(" ", 1) for merge in weights.key("tokenizer.ggml.merges")],
        },
    }
    write_json(Path(folder) / "tokenizer.json", tokenizer)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast",
                "add_bos_token": bool(weights.key("tokenizer.ggml.add_bos_token", False))}
    for name in ("eos", "bos"):
        if f"tokenizer.ggml.{name}_token_id" in fields:
            settings[f"{name}_token"] = tokens[weights.key(f"tokenizer.ggml.{name}_token_id")]
    if "tokenizer.chat_template" in fields:
        settings["chat_template"] = weights.key("tokenizer.chat_template")
    write_json(Path(folder) / "tokenizer_config.json", settings)
    return None


def _pre_tokenizer(pre):
    def byte_level(use_regex):
        return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}

    if pre == "gpt-2":
        return byte_level(True)
    if pre == "smollm":
        return {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level(True)]}
    split = {"type": "Split", "pattern": {"Regex": SPLITS[pre]}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, byte_level(False)]}


def write_norms_and_router(out, weights, layer):
    """A layer's small tensors: BF16 where every value fits, else F32."""
    prefix = f"model.layers.{layer}."
    for source, target in (
        ("attn_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("ffn_gate_inp", "mlp.gate"),
    ):
        write_small(out, weights, f"blk.{layer}.{source}.weight", f"{prefix}{target}.weight")


def write_small(out, weights, source, target):
    values = weights.tensor(source).astype("<f4")
    if (bf16_values(values) == values).all():
        out.add_bf16(target, values)
    else:
        out.add(target, "F32", values.shape, values)


def write_companion(path, weights, replaced):
    """A GGUF of the same model whose `replaced` tensors {name: (type, stored data)} hold what the folder holds; all
    else is copied. For tests that compare an engine's two readings of one model."""
    writer = GGUFWriter(path, weights.config.architecture)
    for name, field in weights.fields().items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind,
                                 field.types[-1] if kind == GGUFValueType.ARRAY else None)
    for name in weights.tensor_names():
        kind, data = replaced.get(name, (weights.tensor_type(name), weights.raw(name)))
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
