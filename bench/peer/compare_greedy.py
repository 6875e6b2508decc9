#!/usr/bin/env python3
"""Do Samara and llama.cpp choose the same tokens?

  bench/peer/compare_greedy.py -m MODEL.gguf --tokens IDS.txt [-n 200] [--tie 0]

Both continue the ids greedily. Prints the first difference and how close llama.cpp's two best logits were there.
Exit code 0: no difference, or a first one with a margin of at most --tie."""

import argparse
import json
import sys

import peers as peer_module


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer_module.add_common_options(parser)
    parser.add_argument("--tokens", required=True, help="file of token ids, separated by white space")
    parser.add_argument("-n", "--count", type=int, default=200, help="tokens to generate, default %(default)s")
    parser.add_argument("--tie", type=float, default=0.0, help="margin in logits that counts as a tie, default 0")
    parser.add_argument("--kv", choices=("f32", "f16"), default="f32", help="llama.cpp's KV cache, default %(default)s")
    args = parser.parse_args()

    peers = peer_module.Peers(args.peers)
    peers.install_python()
    ours = peer_module.run_json([args.samara, "logits", "-m", args.samara_model or args.model, "--tokens", args.tokens,
                                 "--greedy", args.count, "--threads", args.threads, "--json"], "samara")["tokens"]
    theirs = peer_module.run_json(
        peers.python_command("greedy", "-m", args.model, "--tokens", args.tokens, "-n", args.count, "--threads",
                             args.threads, "--kv", args.kv), "llama.cpp")
    if len(ours) != args.count:
        sys.exit(f"samara: expected {args.count} tokens, found {len(ours)}")
    pairs = zip(ours, theirs["tokens"], strict=True)
    first = next((i for i, (mine, its) in enumerate(pairs) if mine != its), None)
    result = {"tokens": args.count, "first_difference": first, "smallest_margin": min(theirs["margins"])}
    if first is not None:
        result |= {"margin": theirs["margins"][first], "samara": ours[first], "llama_cpp": theirs["tokens"][first]}
    print(json.dumps(result))
    sys.exit(0 if first is None or theirs["margins"][first] <= args.tie else 1)


if __name__ == "__main__":
    main()
