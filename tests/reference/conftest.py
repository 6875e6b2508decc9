"""Puts the reference and the converters on the path and builds tiny models once a session."""

import os
import sys
from pathlib import Path

# Read when NumPy is imported: with small products OpenBLAS's threads only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest  # noqa: E402

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"
for folder in ("reference", "convert"):
    sys.path.insert(0, str(TOOLS / folder))

from gguf_weights import Weights  # noqa: E402
from tiny_gguf import write_tiny  # noqa: E402


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """tiny(**options of write_tiny) -> path of such a model, written on first use."""
    folder, known = tmp_path_factory.mktemp("models"), {}

    def build(**options):
        key = repr(sorted(options.items(), key=lambda item: item[0]))
        if key not in known:
            known[key] = folder / f"{len(known)}.gguf"
            write_tiny(known[key], **options)
        return known[key]

    return build


@pytest.fixture(scope="session")
def tiny_weights(tiny):
    return lambda **options: Weights(tiny(**options))
