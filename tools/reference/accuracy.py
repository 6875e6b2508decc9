#!/usr/bin/env python3
"""Judges an engine binary by the float64 reference: makes models, runs `samara logits`, compares, prints a table.

Models: `samara synth --preset maple-tiny` in several types and seeds, the same weights as safetensors folders, small
models of many tensor types from tiny_gguf.py, and SmolLM2 when given. Within the limits means: NRMSE of the median token
at most 1e-4 and of the worst 1e-3 (llama: both 1e-3), every expert choice the reference's own or a tie, in rank order,
and logits that differ between positions. With outlier channels the limit is instead what F16 activations would do to
the same model: no larger median, no more choices beyond a tie.

Exit status: 0 within the limits, 1 outside them or when the engine fails.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # see compare.py

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "convert"))

import numpy as np  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

import compare  # noqa: E402
import exchange  # noqa: E402
import gguf_to_hf  # noqa: E402
import gguf_to_mlx  # noqa: E402
import model_folder  # noqa: E402
import tiny_gguf  # noqa: E402
from gguf_weights import Weights  # noqa: E402

PROMPT_TOKENS = 300
CHOICES_WANTED = 100_000
MEDIAN, WORST, LLAMA, CORRELATION = 1e-4, 1e-3, 1e-3, 0.5


@dataclass
class Case:
    kind: str  # "synth", "tiny" (tiny_gguf.py) or "file"
    type: str  # of the projections
    seed: int = 0
    outliers: int = 0
    layout: str = "gguf"  # or mlx-row, mlx-group, hf
    architecture: str = "maple"
    fused: bool = False
    tied: bool = False
    path: str = ""

    @property
    def name(self):
        if self.kind == "file":
            return Path(self.path).stem[:16]
        variant = " fused" * self.fused + " tied" * self.tied
        return ("maple-tiny" if self.kind == "synth" else f"tiny {self.architecture}") + variant


QUICK = [
    Case("synth", "tq2_0", seed=1),
    Case("synth", "tq1_0", seed=2),
    Case("tiny", "tq2_0", seed=3, fused=True),
    Case("tiny", "q4_1", seed=4, architecture="llama"),
]
FULL = [
    *(Case("synth", kind, seed=seed) for kind, seed in
      (("tq2_0", 1), ("tq2_0", 2), ("tq1_0", 3), ("tq1_0", 4), ("f16", 5), ("f16", 6))),
    *(Case("synth", "tq2_0", seed=7, layout=layout) for layout in ("mlx-row", "mlx-group", "hf")),
    *(Case("synth", kind, seed=seed, outliers=32) for kind, seed in (("tq2_0", 1), ("tq1_0", 8), ("f16", 9))),
    Case("synth", "tq2_0", seed=1, outliers=32, layout="mlx-row"),
    Case("tiny", "tq2_0", seed=10, fused=True),
    Case("tiny", "f32", seed=11),
    *(Case("tiny", kind, seed=12, architecture="llama", tied=kind == "q8_0") for kind in
      ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1")),
]


class Judge:
    def __init__(self, samara, folder, kv):
        self.samara, self.folder, self.kv = samara, Path(folder), kv

    def judge(self, case):
        """The comparison of one case, with its violations; the files it made are gone afterwards."""
        with tempfile.TemporaryDirectory(dir=self.folder) as work:
            work = Path(work)
            source = self.make_model(case, work)
            model, reference = self.lay_out(case, source, work)
            weights = Weights(reference)
            tokens = prompt(case, weights, work)
            logits, choices = self.run_engine(model, weights.config, tokens, work)
            roundings = ["f16"] if case.outliers else []
            report = compare.compare(weights, tokens, logits, choices, roundings=roundings)
        del report["nrmse"]
        violations = find_violations(case, report) if self.kv == "int16" else []
        return {"name": case.name, **vars(case), **report, "violations": violations}

    def make_model(self, case, work):
        if case.kind == "file":
            return Path(case.path)
        path = work / "model.gguf"
        if case.kind == "tiny":
            embedding = "F16" if case.type.startswith("tq") else case.type.upper()
            tiny_gguf.write_tiny(path, case.architecture, None, case.type.upper(), embedding, case.seed,
                                 tied=case.tied, fused=case.fused)
            return path
        outliers = ["--outliers", str(case.outliers)] if case.outliers else []
        self.call("synth", "--preset", "maple-tiny", "-o", path, "--type", case.type, "--seed", str(case.seed),
                  *outliers)
        return path

    def lay_out(self, case, source, work):
        """(what the engine reads, the GGUF that the reference reads)."""
        if case.layout == "gguf":
            return source, source
        folder, companion = work / "folder", work / "folder.gguf"
        if case.layout == "hf":
            gguf_to_hf.convert(source, folder, 64, companion)
        else:
            scales = {"mlx-row": "row_alpha", "mlx-group": "group"}[case.layout]
            gguf_to_mlx.convert(source, folder, scales, 16 if scales == "group" else None, companion)
        return folder, companion

    def run_engine(self, model, config, tokens, work):
        ids, logits, experts = work / "ids.txt", work / "logits.f32", work / "experts.bin"
        exchange.write_tokens(ids, tokens)
        wanted = ["--experts", experts] if config.experts else []
        if self.kv != "int16":
            wanted += ["--kv", self.kv]
        self.call("logits", "-m", model, "--tokens", ids, "--out", logits, *wanted)
        choices = None
        if config.experts:
            shape = (len(tokens), config.layers, config.experts_used)
            choices = exchange.read_experts(experts, *shape, config.experts)
        return np.array(exchange.read_logits(logits, len(tokens), config.vocabulary)), choices

    def call(self, *arguments):
        command = [str(self.samara), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["no message"]
            raise RuntimeError(f"`{' '.join(command)}` exited with {done.returncode}: {last[0]}")


def prompt(case, weights, work):
    """Token ids longer than the sliding window: English for a real model, random for a random one."""
    if case.kind != "file":
        return np.random.default_rng([2026, case.seed]).integers(0, weights.config.vocabulary, PROMPT_TOKENS)
    reason = model_folder.write_tokenizer(work, weights)
    if reason:
        raise RuntimeError(f"{case.path}: {reason}")
    text = " ".join((HERE / "prompt.txt").read_text().split())
    ids = Tokenizer.from_file(str(work / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    return np.array(ids[:PROMPT_TOKENS])


def find_violations(case, report):
    if case.outliers:
        return outlier_violations(report)
    llama = "choices" not in report
    found = compare.violations(report, LLAMA if llama else MEDIAN, LLAMA if llama else WORST)
    if case.kind != "file" and report["position_correlation"] >= CORRELATION:
        found.append(f"logits of different positions correlate by {report['position_correlation']:.2f}")
    return found


def outlier_violations(report):
    found, rounded = [], report["f16_activations"]
    if not report["median"] <= rounded["median"]:
        found.append(f"median NRMSE {report['median']:.2e} is above that of F16 activations, {rounded['median']:.2e}")
    wrong, allowed = report["choices"]["wrong"], rounded["choices"]["wrong"]
    if wrong > allowed:
        found.append(f"{wrong} choices beyond a tie; F16 activations make {allowed}")
    return found


def total(reports):
    """Sums over the models without outliers, which the limits are about."""
    choices = [r["choices"] for r in reports if "choices" in r and not r["outliers"]]
    return {key: sum(c[key] for c in choices) for key in ("total", "own", "ties", "wrong")}


HEADER = (f"{'model':22} {'type':6} {'layout':9} {'seed':>4} {'outl.':>5} {'choices':>8} {'median':>8} {'worst':>8} "
          f"{'ties':>4} {'gap':>7} {'wrong':>5} {'unforced':>9} {'corr.':>6} {'change':>6}")


def row(report):
    def figures(r):
        c = r.get("choices")
        errors = f"{r['median']:8.1e} {r['worst']:8.1e}"
        if not c:
            return f"{'-':>8} {errors} {'-':>4} {'-':>7} {'-':>5} {'-':>9}"
        return (f"{c['total']:8d} {errors} {c['ties']:4d} {c['largest_gap']:7.1e} {c['wrong']:5d} "
                f"{r['unforced_equal_share']:9.4%}")

    lines = [f"{report['name']:22} {report['type']:6} {report['layout']:9} {report['seed']:4d} "
             f"{report['outliers']:5d} {figures(report)} {report['position_correlation']:6.3f} "
             f"{report['residual_change']:6.2f}"]
    if "f16_activations" in report:
        lines.append(f"{'  beside it: F16 activations':50} {figures(report['f16_activations'])}")
    return "\n".join(lines + [f"  VIOLATION: {violation}" for violation in report["violations"]])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samara", default=HERE.parent.parent / "build/bin/samara", help="default build/bin/samara")
    parser.add_argument("--quick", action="store_true", help="four models in place of all")
    parser.add_argument("--smollm2", metavar="PATH", help="SmolLM2's GGUF file, judged too")
    parser.add_argument("--kv", choices=("int16", "int8"), default="int16",
                        help="how keys and values are kept; int8 is measured, not judged")
    parser.add_argument("--work", help="folder for the models, one at a time (default: the system's)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    cases = list(QUICK if options.quick else FULL)
    if options.smollm2:
        cases.append(Case("file", "as is", architecture="llama", path=options.smollm2))

    def say(text):
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    reports, failed = [], False
    say(HEADER)
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        judge = Judge(options.samara, folder, options.kv)
        for case in cases:
            try:
                reports.append(judge.judge(case))
            except (RuntimeError, ValueError, OSError) as error:
                failed = True
                say(f"{case.name:22} {case.type:6} {case.layout:9} {case.seed:4d} {case.outliers:5d} FAILED: {error}")
                continue
            failed |= bool(reports[-1]["violations"])
            say(row(reports[-1]))
    sums = total(reports)
    say(f"without outliers: {sums['total']} choices, {sums['own']} the reference's own, {sums['ties']} ties, "
        f"{sums['wrong']} wrong")
    if not options.quick and sums["total"] < CHOICES_WANTED:
        say(f"VIOLATION: fewer than {CHOICES_WANTED} choices")
        failed = True
    if options.json:
        print(json.dumps({"passed": not failed, "total": sums, "models": reports}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
