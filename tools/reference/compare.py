#!/usr/bin/env python3
"""Compares an engine's logits and expert choices with the float64 reference.

Routing amplifies rounding: one near tie that falls the other way changes a token's keys and so everything after it.
So the reference is forced to the engine's choices, the logits must then agree closely, and every choice must be the
reference's own or a tie. The reference also runs unforced, to report how many choices a free run shares.

Exit status: 0 within the thresholds, 1 outside them, 2 when a file cannot be used.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass

# Thousands of small products: OpenBLAS's threads spend their time waiting for each other (3.6 s a pass against 0.7 s
# on two busy cores). Read when NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402

import exchange  # noqa: E402
import model  # noqa: E402
from gguf_weights import Weights  # noqa: E402


@dataclass
class Choices:
    """How an engine's expert choices stand to the reference's router logits, given those choices so far."""

    total: int
    own: int  # among the reference's own
    ties: int  # others, within the tie threshold of the reference's last choice
    largest_tie: float  # largest gap of a tie, in router logits
    wrong: int  # others, beyond the threshold
    largest_gap: float  # largest gap of all choices that are not the reference's own
    out_of_order: int  # neighbours in rank order whose reference logits are the other way round by more than a tie
    first_wrong: list  # [token, layer, expert], or empty


def centred_nrmse(logits, reference):
    """Per token: rms of the difference over rms of the reference, each vocabulary entry's mean over tokens removed."""
    if len(reference) < 2:
        raise ValueError("at least two tokens are needed, since the mean over tokens is removed")
    difference = logits - reference
    difference -= difference.mean(axis=0)
    return model.rms(difference, axis=1) / model.rms(reference - reference.mean(axis=0), axis=1)


def judge_choices(choices, router_logits, tie):
    """Compares `choices` [tokens, layers, used] with what `router_logits` [tokens, layers, experts] would choose."""
    used = choices.shape[-1]
    own = model.top_experts(router_logits, used)
    last = np.take_along_axis(router_logits, own[..., -1:], axis=-1)
    chosen = np.take_along_axis(router_logits, choices, axis=-1)
    is_own = (choices[..., :, None] == own[..., None, :]).any(axis=-1)
    gap = np.where(is_own, 0.0, last - chosen)
    is_tie, is_wrong = ~is_own & (gap < tie), ~is_own & (gap >= tie)
    first = [int(n) for n in np.argwhere(is_wrong)[0]] if is_wrong.any() else []
    return Choices(
        total=int(choices.size),
        own=int(is_own.sum()),
        ties=int(is_tie.sum()),
        largest_tie=float(gap[is_tie].max(initial=0.0)),
        wrong=int(is_wrong.sum()),
        largest_gap=float(gap.max(initial=0.0)),
        out_of_order=int((np.diff(chosen, axis=-1) >= tie).sum()),
        first_wrong=first[:2] + [int(choices[tuple(first)])] if first else [],
    )


def equal_share(choices, others):
    """Share of `choices` that are also in `others`, whatever their rank; 1 for a model without experts."""
    return float((choices[..., :, None] == others[..., None, :]).any(axis=-1).mean()) if choices.size else 1.0


def position_correlation(logits):
    """Mean correlation between the logits of different positions; near 1 the model says one thing everywhere."""
    x = logits - logits.mean(axis=1, keepdims=True)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return float(((x @ x.T).sum() - len(x)) / (len(x) * (len(x) - 1)))


def compare(weights, tokens, logits, choices, tie=1e-3, roundings=()):
    """The report as a dict. `choices` is None for a model without experts; `roundings` names activations to imitate."""
    logits = np.asarray(logits, dtype=np.float64)
    if not np.isfinite(logits).all():
        raise ValueError("the logits hold values that are not finite")
    forced = model.forward(weights, tokens, choices)
    error = centred_nrmse(logits, forced.logits)
    report = {
        "tokens": len(tokens),
        "median": float(np.median(error)),
        "worst": float(error.max()),
        "worst_token": int(error.argmax()),
        "same_argmax": float((logits.argmax(axis=1) == forced.logits.argmax(axis=1)).mean()),
        "position_correlation": position_correlation(forced.logits),
        "residual_change": forced.residual_change,
        "nrmse": error.tolist(),
    }
    if choices is not None:
        report["choices"] = asdict(judge_choices(choices, forced.router_logits, tie))
        report["unforced_equal_share"] = equal_share(choices, model.forward(weights, tokens).experts)
    for name in roundings:
        report[f"{name}_activations"] = rounding_error(weights, tokens, name, tie)
    return report


def rounding_error(weights, tokens, name, tie):
    """The same figures for an engine that is exact but for rounding its activations in the named way."""
    engine = model.forward(weights, tokens, round_activations=model.ROUNDINGS[name])
    forced = model.forward(weights, tokens, engine.experts if weights.config.experts else None)
    error = centred_nrmse(engine.logits, forced.logits)
    report = {"median": float(np.median(error)), "worst": float(error.max())}
    if weights.config.experts:
        report["choices"] = asdict(judge_choices(engine.experts, forced.router_logits, tie))
        report["unforced_equal_share"] = equal_share(engine.experts, model.forward(weights, tokens).experts)
    return report


def violations(report, median, worst):
    """What is outside the thresholds, in words; a threshold of None is not applied."""
    found = []
    for name, limit in (("median", median), ("worst", worst)):
        if limit is not None and not report[name] <= limit:
            found.append(f"{name} NRMSE {report[name]:.2e} is above {limit:.0e}")
    choices = report.get("choices")
    if choices and choices["wrong"]:
        token, layer, expert = choices["first_wrong"]
        found.append(
            f"{choices['wrong']} choices are neither the reference's own nor a tie (largest gap "
            f"{choices['largest_gap']:.2e}), the first: expert {expert} for token {token} in layer {layer}"
        )
    if choices and choices["out_of_order"]:
        found.append(f"{choices['out_of_order']} choices are out of rank order")
    return found


def print_report(report):
    for token, error in enumerate(report["nrmse"]):
        print(f"token {token:5d}  nrmse {error:.3e}")
    print(f"nrmse: median {report['median']:.3e}, worst {report['worst']:.3e} (token {report['worst_token']})")
    print(f"same greedy token: {report['same_argmax']:.2%} of {report['tokens']}")
    print_choices("", report)
    print(f"correlation of logits between positions {report['position_correlation']:.3f}; "
          f"blocks change the residual by {report['residual_change']:.2f} embeddings")
    for key in (key for key in report if key.endswith("_activations")):
        name, rounding = key.replace("_", " "), report[key]
        print(f"{name}: nrmse median {rounding['median']:.3e}, worst {rounding['worst']:.3e}")
        print_choices(f"{name}: ", rounding)


def print_choices(prefix, report):
    if "choices" not in report:
        return
    c = report["choices"]
    print(f"{prefix}choices {c['total']}: own {c['own']}, ties {c['ties']} (largest {c['largest_tie']:.2e}), "
          f"wrong {c['wrong']}, out of order {c['out_of_order']}; unforced equal {report['unforced_equal_share']:.4%}")


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True, help="GGUF file, maple or llama")
    parser.add_argument("--tokens", required=True, help="token ids, decimal, separated by white space")
    parser.add_argument("--logits", required=True, help="float32 [tokens, vocabulary]")
    parser.add_argument("--experts", help="expert choices with their header (a model with experts needs them)")
    parser.add_argument("--median", type=float, help="largest median NRMSE (default 1e-4; llama 1e-3)")
    parser.add_argument("--worst", type=float, default=1e-3, help="largest NRMSE of a token (default 1e-3)")
    parser.add_argument("--no-limit", action="store_true", help="report the NRMSE, fail on choices alone")
    parser.add_argument("--tie", type=float, default=1e-3, help="router logits closer than this tie (default 1e-3)")
    for name in ("f16", "int8", "int16"):
        parser.add_argument(f"--{name}", dest="roundings", action="append_const", const=name,
                            help=f"also report the error of {name} activations")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse_arguments(arguments)
    try:
        weights = Weights(options.model)
        config, choices = weights.config, None
        tokens = exchange.read_tokens(options.tokens)
        logits = exchange.read_logits(options.logits, len(tokens), config.vocabulary)
        if config.experts:
            if not options.experts:
                raise ValueError("this model has experts: --experts is needed")
            shape = (len(tokens), config.layers, config.experts_used)
            choices = exchange.read_experts(options.experts, *shape, config.experts)
        report = compare(weights, tokens, logits, choices, options.tie, options.roundings or ())
    except (ValueError, OSError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    median = options.median if options.median is not None else (1e-4 if config.experts else 1e-3)
    found = violations(report, *((None, None) if options.no_limit else (median, options.worst)))
    report["violations"] = found
    if options.json:
        print(json.dumps(report))
    else:
        print_report(report)
    for violation in found:
        print(f"compare: {violation}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
