#!/usr/bin/env python3
"""Tests of `samara pull` and `samara models` against a server on this machine that drops, stalls, truncates and lies.

Usage: run.py PROGRAM [WORD...]    PROGRAM is samara-pull, or samara (then "pull" and "models" are its subcommands);
                                   with WORDs, only the tests that have one in their name

Prints "N passed, N failed"; the exit code is 1 when something failed. Standard library only."""

import os
import sys
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness  # noqa: E402
import transfers  # noqa: E402, F401
import choices  # noqa: E402, F401


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    harness.PROGRAM = os.path.abspath(sys.argv[1])
    chosen = [t for t in harness.TESTS if len(sys.argv) == 2 or any(word in t.__name__ for word in sys.argv[2:])]
    failed = 0
    for function in chosen:
        try:
            function()
            print(f"pass  {function.__name__}")
        except Exception:
            failed += 1
            print(f"FAIL  {function.__name__}\n{traceback.format_exc()}")
        sys.stdout.flush()
    print(f"{len(chosen) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
