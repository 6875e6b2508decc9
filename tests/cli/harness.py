"""What the tests of the command line stand on: runs of the program, with and without a terminal, and how to judge them."""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import resource
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time

PROGRAM = None  # set by run.py
MODELS = None  # folder of the models made once by run.py
DEADLINE = 120  # seconds for one run: a hang is a failure, not a wait
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def model(name="tiny.gguf"):
    return str(MODELS / name)


class Run:
    """One finished run of the program."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        return json.loads(self.out)

    def __repr__(self):
        return f"exit code {self.code}\n--- standard output\n{self.out!r}\n--- standard error\n{self.err!r}"


def environment(**more):
    return {**os.environ, "TERM": "xterm", "SAMARA_CACHE": str(MODELS / "cache"), **more}


def samara(*words, stdin=b"", stdout=subprocess.PIPE, file_limit=None, env=None):
    """Runs the program to its end; bytes in, bytes out. `file_limit`: the largest file it may write."""

    def limit():
        if file_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    process = subprocess.Popen([PROGRAM, *words], stdin=subprocess.PIPE, stdout=stdout, stderr=subprocess.PIPE,
                               env=environment(**(env or {})), preexec_fn=limit)
    try:
        out, err = process.communicate(stdin, timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise AssertionError(f"the program hangs: {words}")
    return Run(process.returncode, out, err)


def refused(*words, code, says, **named):
    """Runs and expects one clear line of failure: `code`, and every word of `says` on standard error."""
    run = samara(*words, **named)
    expect(run.code == code, f"exit code {code} of {words}", run)
    for word in says:
        expect(word.encode() in run.err, f"'{word}' in the message of {words}", run)
    for trace in (b"exception", b"terminate called", b"std::", b"basic_string"):
        expect(trace not in run.err, f"no '{trace.decode()}' in the message of {words}", run)
    return run


def succeeds(*words, **named):
    run = samara(*words, **named)
    expect(run.code == 0, f"exit code 0 of {words}", run)
    return run


def expect(condition, what, run=None):
    if not condition:
        raise AssertionError(f"expected: {what}\n{run if run is not None else ''}")


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory(prefix="samara-cli-") as path:
        yield pathlib.Path(path)


class Terminal:
    """The program on a terminal of its own."""

    def __init__(self, *words, columns=80, env=None):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

        def own_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen([PROGRAM, *words], stdin=slave, stdout=slave, stderr=slave,
                                        env=environment(**(env or {})), preexec_fn=own_terminal)
        os.close(slave)
        self.seen = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)

    def _read(self, seconds):
        if not select.select([self.master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the program closed its side
            return False
        self.seen += data
        return bool(data)

    def until(self, text):
        """Reads until `text` appeared; returns everything up to its end."""
        end = time.monotonic() + DEADLINE
        while text not in self.seen:
            if time.monotonic() > end or not self._read(0.1):
                raise AssertionError(f"waited in vain for {text!r}; read {self.seen!r}")
        at = self.seen.index(text) + len(text)
        passed, self.seen = self.seen[:at], self.seen[at:]
        return passed

    def until_line_editor(self):
        """Reads up to the prompt, and on until the line editor has set the terminal up: before, the terminal itself
        would edit the line."""
        passed = self.until(b"> ")
        end = time.monotonic() + DEADLINE
        while termios.tcgetattr(self.master)[3] & termios.ICANON:
            if time.monotonic() > end:
                raise AssertionError("no line editor")
            time.sleep(0.01)
        return passed

    def type(self, text):
        os.write(self.master, text)

    def end(self):
        """Reads to the end of the program; returns a Run with everything read in `out`."""
        stop = time.monotonic() + DEADLINE
        while time.monotonic() < stop and self._read(0.1):
            pass
        return Run(self.process.wait(timeout=10), self.seen, b"")

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)
