"""The two public engines Samara is measured against: where they live and how they get there. Standard library only.

Both are llama.cpp: node-llama-cpp ships prebuilt binaries and picks one by CPU; llama-cpp-python is built here for the
CPU at hand. A folder holds both: DIR/venv (Python) and DIR/node (Node.js)."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

NODE_VERSION = "3.22.1"
PYTHON_VERSION = "0.3.36"
HERE = pathlib.Path(__file__).resolve().parent


def default_folder():
    cache = os.environ.get("SAMARA_CACHE") or pathlib.Path.home() / ".cache" / "samara"
    return pathlib.Path(cache) / "peers"


class Peers:
    def __init__(self, folder=None):
        self.folder = pathlib.Path(folder or default_folder()).resolve()

    @property
    def python(self):
        return self.folder / "venv" / "bin" / "python"

    @property
    def node_folder(self):
        return self.folder / "node"

    def install_python(self):
        """Builds llama-cpp-python for this CPU (about eight minutes on two cores) unless it is there."""
        if self._has_python():
            return
        print(f"building llama-cpp-python {PYTHON_VERSION} in {self.folder}/venv: several minutes", file=sys.stderr)
        self.folder.mkdir(parents=True, exist_ok=True)
        run([sys.executable, "-m", "venv", self.folder / "venv"])
        flags = f"{os.environ.get('CXXFLAGS', '')} -include {HERE}/gcc_tile_config.hpp"
        run([self.python, "-m", "pip", "install", "--quiet", "--no-binary", "llama-cpp-python",
             f"llama-cpp-python=={PYTHON_VERSION}"],
            env={**os.environ, "CMAKE_ARGS": "-DGGML_NATIVE=ON", "CXXFLAGS": flags})
        if not self._has_python():
            sys.exit(f"{self.folder}/venv: llama-cpp-python {PYTHON_VERSION} was installed but does not load")

    def install_node(self):
        """Installs node-llama-cpp with its prebuilt binaries unless it is there."""
        if self._has_node():
            return
        if not shutil.which("npm"):
            sys.exit("npm: not found; node-llama-cpp needs Node.js 20 or newer")
        print(f"installing node-llama-cpp {NODE_VERSION} in {self.node_folder}", file=sys.stderr)
        self.node_folder.mkdir(parents=True, exist_ok=True)
        (self.node_folder / "package.json").write_text('{"private": true}\n')
        # Its install script would look for or build other binaries; the prebuilt one is what is measured.
        run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error",
             f"node-llama-cpp@{NODE_VERSION}"], cwd=self.node_folder)
        if not self._has_node():
            sys.exit(f"{self.node_folder}: node-llama-cpp {NODE_VERSION} was installed but is not there")

    def _has_python(self):
        if not self.python.exists():
            return False
        found = subprocess.run([self.python, "-c", "import llama_cpp; print(llama_cpp.__version__)"],
                               capture_output=True, text=True)
        return found.returncode == 0 and found.stdout.strip() == PYTHON_VERSION

    def _has_node(self):
        package = self.node_folder / "node_modules" / "node-llama-cpp" / "package.json"
        return package.exists() and f'"version": "{NODE_VERSION}"' in package.read_text()

    def python_command(self, *arguments):
        return [self.python, HERE / "llama_reference.py", *map(str, arguments)]

    def node_command(self, *arguments):
        return ["node", HERE / "node_bench.mjs", self.node_folder, *map(str, arguments)]


def run(command, **options):
    """Runs an installation step; its output goes to standard error."""
    if subprocess.run([str(word) for word in command], stdout=sys.stderr, **options).returncode != 0:
        sys.exit(f"failed: {' '.join(str(word) for word in command)}")


def run_json(command, what):
    """Runs a program that prints one JSON object; its messages go to standard error."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{what} failed with {done.returncode}: {' '.join(words)}")
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        sys.exit(f"{what}: expected one JSON object, found {done.stdout[:200]!r}: {' '.join(words)}")


def samara_binary():
    return HERE.parent.parent / "build" / "bin" / "samara"


def add_common_options(parser):
    parser.add_argument("-m", "--model", required=True, help="GGUF file that both engines read")
    parser.add_argument("--samara", default=str(samara_binary()), help="our program, default %(default)s")
    parser.add_argument("--samara-model", help="a packed copy of the model for our side")
    parser.add_argument("--peers", help="folder with venv/ and node/, default ${SAMARA_CACHE:-~/.cache/samara}/peers")
    parser.add_argument("--threads", type=int, default=2, help="default %(default)s")
