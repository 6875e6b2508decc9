#!/usr/bin/env python3
"""Do Samara and llama.cpp find a text equally likely?

  bench/peer/compare_perplexity.py -m MODEL.gguf -f TEXT [--limit 0.005]

Both use one context that holds the whole text; llama.cpp gets the ids that `samara tokenize` prints, so that
tokenizers cannot differ. Exit code 0: the relative difference is at most --limit."""

import argparse
import json
import subprocess
import sys
import tempfile

import peers as peer_module


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer_module.add_common_options(parser)
    parser.add_argument("-f", "--file", required=True, help="the text")
    parser.add_argument("--limit", type=float, default=0.005, help="relative difference allowed, default %(default)s")
    parser.add_argument("--kv", choices=("f32", "f16"), default="f32", help="llama.cpp's KV cache, default %(default)s")
    args = parser.parse_args()

    peers = peer_module.Peers(args.peers)
    peers.install_python()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as ids:
        tokenize = [args.samara, "tokenize", "-m", args.model, "-f", args.file]
        if subprocess.run(tokenize, stdout=ids).returncode != 0:
            sys.exit(f"samara failed: {' '.join(tokenize)}")
        theirs = peer_module.run_json(
            peers.python_command("perplexity", "-m", args.model, "--tokens", ids.name, "--threads", args.threads, "--kv",
                                 args.kv), "llama.cpp")
    # One window that holds the whole text, as llama.cpp has it.
    ours = peer_module.run_json([args.samara, "perplexity", "-m", args.samara_model or args.model, "-f", args.file,
                                 "--context", theirs["tokens"], "--threads", args.threads, "--json"], "samara")
    if ours.get("tokens", theirs["tokens"]) != theirs["tokens"]:
        sys.exit(f"samara counted {ours['tokens']} tokens, llama.cpp {theirs['tokens']}: not the same text")
    difference = ours["perplexity"] / theirs["perplexity"] - 1
    print(json.dumps({"samara": ours["perplexity"], "llama_cpp": theirs["perplexity"], "tokens": theirs["tokens"],
                      "relative_difference": difference}))
    sys.exit(0 if abs(difference) <= args.limit else 1)


if __name__ == "__main__":
    main()
