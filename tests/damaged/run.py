#!/usr/bin/env python3
"""Runs a command on every damaged model and checks that it fails as a tool should.

usage: run.py [--level parse|load] [--only TEXT] COMMAND...

COMMAND is run with {} replaced by the model's path (added at the end when there is no {}), for example
    run.py build/bin/formats_open
    run.py --level load build/bin/samara run --raw -p hello -n 1 -m {}

A damaged model must give: exit status 1 to 125, one line on standard error that names the file, at most 1 s of CPU
time, at most 200 MB of resident memory. An intact one must succeed. At the level `parse` (the default) the models that
only the model loader can refuse are left out. Standard library only. Last line: "N passed, N failed".
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CPU_SECONDS, RESIDENT_BYTES, WALL_SECONDS = 1.0, 200_000_000, 60


def run_limited(command):
    """(exit status, standard error, CPU seconds, peak resident bytes); the status is negative for a signal."""
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(["timeout", "-s", "KILL", str(WALL_SECONDS), *command], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        text = errors.read().decode(errors="replace")
    return child.returncode, text, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def complaints(level, path, status, text, seconds, resident):
    """What is wrong with how the command behaved; empty when all is well."""
    found = []
    lines = [line for line in text.splitlines() if line.strip()]
    if level == "intact":
        if status != 0:
            found.append(f"an intact model was refused: {text.strip()}")
        return found
    if status < 0 or status > 125:
        found.append(f"died with status {status}: {text.strip()[:200]}")
    elif status == 0 and level != "benign":
        found.append("was accepted")
    elif status != 0:
        if len(lines) != 1:
            found.append(f"expected one line on standard error, found {len(lines)}: {text[:300]!r}")
        elif str(path if path.is_dir() else path.parent) not in text and path.name not in text:
            found.append(f"the message does not name the file: {lines[0]}")
        elif len(lines[0]) > 1000 or not lines[0].isprintable():
            found.append(f"the message is not one readable line: {lines[0][:200]!r}")
    if seconds > CPU_SECONDS:
        found.append(f"took {seconds:.2f} s of CPU time")
    if resident > RESIDENT_BYTES:
        found.append(f"took {resident / 1e6:.0f} MB")
    return found


def models(folder, only, levels):
    """(name, level, path) of each model, which exists until the next is asked for. Another process makes them, because
    the system counts the memory of the process that starts a command as the command's."""
    maker = [sys.executable, str(Path(__file__).parent / "make.py"), "--one-by-one", "--only", only, folder, *levels]
    with subprocess.Popen(maker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            name, level, path = line.rstrip("\n").split(" ", 2)
            yield name, level, Path(path)
            process.stdin.write("\n")
            process.stdin.flush()
    if process.returncode != 0:
        raise SystemExit(f"{maker[1]} failed")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", choices=("parse", "load"), default="parse")
    parser.add_argument("--only", default="", help="run the cases whose name contains this text")
    parser.add_argument("--verbose", action="store_true", help="print each message")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    levels = {"intact", "parse", "benign"} | ({"load"} if options.level == "load" else set())
    counts = dict.fromkeys(sorted(levels), 0)
    failed, slowest, largest = 0, 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        for name, level, path in models(folder, options.only, sorted(levels)):
            command = [part.replace("{}", str(path)) for part in options.command]
            if command == options.command:
                command.append(str(path))
            status, text, seconds, resident = run_limited(command)
            counts[level] += 1
            slowest, largest = max(slowest, seconds), max(largest, resident)
            if options.verbose:
                print(f"{name}: {text.strip()}")
            wrong = complaints(level, path, status, text, seconds, resident)
            failed += bool(wrong)
            for line in wrong:
                print(f"FAILED {name} ({level}): {line}")
    total = sum(counts.values())
    print("models: " + ", ".join(f"{count} {level}" for level, count in counts.items()) +
          f"; most CPU time {slowest:.3f} s, most memory {largest / 1e6:.0f} MB")
    print(f"{total - failed} passed, {failed} failed")
    sys.exit(1 if failed or total == 0 else 0)


if __name__ == "__main__":
    main()
