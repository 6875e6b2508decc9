#!/usr/bin/env python3
"""Writes the damaged models, one folder each, and prints "name level path" for each.

usage: make.py [--only TEXT] [--one-by-one] FOLDER LEVEL...

With --one-by-one, waits for a line on standard input after each model and removes it then: all of them take 200 MB.
Levels are those of damages.py. Standard library only.
"""

import argparse
import shutil
import sys
from pathlib import Path

import damages


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--one-by-one", action="store_true")
    parser.add_argument("folder", type=Path)
    parser.add_argument("levels", nargs="+")
    options = parser.parse_args()
    for name, level, files in damages.all_cases():
        if level not in options.levels or options.only not in name:
            continue
        folder = options.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in files.items():
            (folder / file).write_bytes(data)
        is_folder = any(file.endswith(".safetensors") for file in files)
        print(name, level, folder if is_folder else folder / sorted(files)[0], flush=True)
        if options.one_by_one:
            sys.stdin.readline()
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
