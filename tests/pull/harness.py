"""What the tests of `samara pull` stand on: a program, a server and a folder for each test, and how to judge a run."""

import contextlib
import json
import os
import pathlib
import random
import subprocess
import tempfile
import time

from server import Behaviour, Server

PROGRAM = None  # set by run.py
DEADLINE = 300  # s; only a hang takes that long, even on a machine that does other work
CONTENT = random.Random(1).randbytes(1_500_000)
TESTS = []


def test(function):
    TESTS.append(function)
    return function


class Run:
    """One finished run of the program."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def events(self):
        return [json.loads(line) for line in self.out.splitlines()]

    def __repr__(self):
        return f"exit code {self.code}\n--- standard output\n{self.out}\n--- standard error\n{self.err}"


class Place:
    """A folder, an environment and a server for one test."""

    def __init__(self, server, folder):
        self.server, self.folder = server, pathlib.Path(folder)
        self.behaviour = server.behaviour
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder / "home"), "LC_ALL": "C.UTF-8",
                            "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "")}
        self.out = self.folder / "out"

    def pull_prefix(self):
        return [PROGRAM, "pull"] if pathlib.Path(PROGRAM).name == "samara" else [PROGRAM]

    def command(self, *flags, model="some/repo", **options):
        """The command with short times; `options` override, None leaves one out: timeout=1, base_url=None."""
        chosen = {"base_url": self.server.url, "output": self.out, "backoff": 0.05, "timeout": 2, "min_free": 0}
        chosen.update(options)
        words = [(f"--{name.replace('_', '-')}", str(value)) for name, value in chosen.items() if value is not None]
        return [*self.pull_prefix(), model, *(word for pair in words for word in pair), *flags]

    def start(self, command):
        return subprocess.Popen(command, env=self.environment, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def finish(self, process):
        try:
            out, err = process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError("the program hangs")
        return Run(process.returncode, out, err)

    def pull(self, *arguments, **named):
        return self.finish(self.start(self.command(*arguments, **named)))

    def run(self, *arguments):
        return self.finish(self.start(arguments))

    @property
    def target(self):
        return self.out / pathlib.PurePosixPath(self.behaviour.path).name

    @property
    def part(self):
        return pathlib.Path(f"{self.target}.part")

    def check_complete(self, run):
        expect(run.code == 0, "exit code 0", run)
        expect(self.target.read_bytes() == self.behaviour.content, "the file has the published content", run)
        expect(sorted(p.name for p in self.out.iterdir()) == [self.target.name], "nothing else is left", run)

    def check_failed(self, run, *words):
        expect(run.code == 1, "exit code 1", run)
        expect(not self.target.exists(), "no finished file", run)
        for word in words:
            expect(word in run.err, f"the message has '{word}'", run)


def expect(condition, what, run=None):
    if not condition:
        raise AssertionError(f"expected: {what}\n{run if run is not None else ''}")


@contextlib.contextmanager
def place(content=CONTENT, **settings):
    behaviour = Behaviour(content)
    for name, value in settings.items():
        setattr(behaviour, name, value)
    with tempfile.TemporaryDirectory(prefix="samara-pull-") as folder, Server(behaviour) as server:
        yield Place(server, folder)


def ranges(behaviour):
    return [request.get("Range") for request in behaviour.file_requests]


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("waited 20 s in vain")
        time.sleep(0.02)
