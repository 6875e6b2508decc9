#!/usr/bin/env python3
"""Makes tiny_tokenizer.json from tiny_corpus.txt (needs PyPI `tokenizers`).

A byte-level BPE of 2048 ids with the pre-tokenizer that GGUF calls `qwen2`, for small synthetic models and tests. Run
it only to change the vocabulary: every committed hash of logits depends on the ids.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = Path(__file__).parent
VOCABULARY = 2048
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def train():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - len(SPECIAL) - len(ADDED), min_frequency=1,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([(HERE / "tiny_corpus.txt").read_text(encoding="utf-8")], trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    tokenizer.add_tokens([AddedToken(s, special=False, normalized=False) for s in ADDED])
    assert tokenizer.get_vocab_size() == VOCABULARY
    return json.loads(tokenizer.to_str())


def compact(document):
    """The document as JSON with a few entries a line: small, and still readable in a diff."""
    def lines(items):
        return ",\n".join(", ".join(items[i:i + 8]) for i in range(0, len(items), 8))

    def text(value):
        return json.dumps(value, ensure_ascii=False)

    parts = []
    for key, value in document.items():
        if key == "added_tokens":
            value = "[\n" + ",\n".join(text(token) for token in value) + "\n]"
        elif key == "model":
            vocabulary = sorted(value["vocab"].items(), key=lambda item: item[1])
            merges = [m if isinstance(m, str) else " ".join(m) for m in value["merges"]]
            inner = [f"{text(k)}: {text(v)}" for k, v in value.items() if k not in ("vocab", "merges")]
            inner.append('"vocab": {\n' + lines([f"{text(k)}: {v}" for k, v in vocabulary]) + "\n}")
            inner.append('"merges": [\n' + lines([text(m) for m in merges]) + "\n]")
            value = "{\n" + ",\n".join(inner) + "\n}"
        else:
            value = text(value)
        parts.append(f"{text(key)}: {value}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    (HERE / "tiny_tokenizer.json").write_text(compact(train()), encoding="utf-8")
