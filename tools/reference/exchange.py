"""The files an engine and the reference exchange: token ids, logits and expert choices (see README.md)."""

from pathlib import Path

import numpy as np

EXPERTS_MAGIC = b"SMEX"


def read_tokens(path):
    return np.array([int(word) for word in Path(path).read_text().split()], dtype=np.int64)


def write_tokens(path, tokens):
    Path(path).write_text(" ".join(str(int(token)) for token in tokens) + "\n")


def read_logits(path, tokens, vocabulary):
    """Float32 [tokens, vocabulary], mapped."""
    size, expected = Path(path).stat().st_size, tokens * vocabulary * 4
    if size != expected:
        raise ValueError(f"{path}: {size} bytes; expected {expected} for {tokens} tokens x {vocabulary} vocabulary")
    return np.memmap(path, dtype="<f4", mode="r", shape=(tokens, vocabulary))


def write_logits(path, logits):
    logits.astype("<f4").tofile(path)


def read_experts(path, tokens, layers, used, experts):
    """Expert indices [tokens, layers, used] in rank order, every row checked to hold distinct known experts."""
    data = Path(path).read_bytes()
    if len(data) < 16 or data[:4] != EXPERTS_MAGIC:
        raise ValueError(f"{path}: no {EXPERTS_MAGIC.decode()} header")
    found = tuple(int(n) for n in np.frombuffer(data, "<u4", 3, 4))
    if found != (tokens, layers, used):
        raise ValueError(f"{path}: tokens, layers, experts used are {found}; expected {(tokens, layers, used)}")
    if len(data) != 16 + 2 * tokens * layers * used:
        raise ValueError(f"{path}: {len(data)} bytes; expected {16 + 2 * tokens * layers * used}")
    choices = np.frombuffer(data, "<u2", offset=16).reshape(found).astype(np.int64)
    if choices.max(initial=0) >= experts:
        raise ValueError(f"{path}: expert {choices.max()} in a model of {experts}")
    if (np.diff(np.sort(choices, axis=-1), axis=-1) == 0).any():
        raise ValueError(f"{path}: a token uses one expert twice in a layer")
    return choices


def write_experts(path, choices):
    header = EXPERTS_MAGIC + np.array(choices.shape, dtype="<u4").tobytes()
    Path(path).write_bytes(header + choices.astype("<u2").tobytes())
