"""Hashes of whole models' logits, as committed in expected.json: shared by run and update."""

import json
import os
import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
EXPECTED = FOLDER / "expected.json"


class Program:
    """tests/equality/hash_logits.cpp, built."""

    def __init__(self, path):
        self.path = path
        version, *self.isas = self._output([]).split()
        self.numerics = int(version)

    def _output(self, arguments):
        done = subprocess.run([self.path, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr.strip())
        return done.stdout.strip()

    def hash(self, entry, isa):
        return self._output([entry["preset"], entry["type"], entry["seed"], entry["outliers"], entry["tokens"], isa])


def name(entry):
    return "{preset} {type}, seed {seed}, {outliers} outliers, {tokens} tokens".format(**entry)


def has_tokenizer():
    """Whether Qwen's tokenizer, which maple-wide needs, is where tools/fetch_qwen_tokenizer puts it."""
    cache = os.environ.get("SAMARA_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "samara")
    return os.path.exists(os.path.join(cache, "tokenizers", "qwen3", "tokenizer.json"))


def read():
    return json.loads(EXPECTED.read_text())


def write(expected):
    EXPECTED.write_text(json.dumps(expected, indent=2) + "\n")
