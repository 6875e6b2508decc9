#!/usr/bin/env python3
"""Tests of the `samara` program from outside: hostile flags, files and terminals, interrupts, and what it promises.

Usage: run.py PROGRAM [WORD...]    with WORDs, only the tests that have one in their name

Prints "N passed, N failed"; the exit code is 1 when something failed. Standard library only: the models are synthetic."""

import os
import pathlib
import sys
import tempfile
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness  # noqa: E402
import chat  # noqa: E402, F401
import commands  # noqa: E402, F401
import files  # noqa: E402, F401
import flags  # noqa: E402, F401


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    harness.PROGRAM = os.path.abspath(sys.argv[1])
    chosen = [t for t in harness.TESTS if len(sys.argv) == 2 or any(word in t.__name__ for word in sys.argv[2:])]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="samara-cli-models-") as models:
        harness.MODELS = pathlib.Path(models)
        harness.succeeds("synth", "--preset", "maple-tiny", "-o", harness.model())
        harness.succeeds("pack", "-m", harness.model(), "-o", harness.model("packed.gguf"))
        for function in chosen:
            try:
                function()
                print(f"pass  {function.__name__}", flush=True)
            except Exception:
                failed += 1
                print(f"FAIL  {function.__name__}\n{traceback.format_exc()}", flush=True)
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
