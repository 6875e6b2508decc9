#!/usr/bin/env python3
"""Prints how signals travel through a synthetic Maple file, in the float64 reference: are its weights a fair test?

What to look for: the blocks together add about what the embedding put into the residual; attention does not average all keys;
the clamp is met now and then; experts are chosen evenly; logits of different positions are correlated below 0.5.
Outlier channels are left out of the residual's figures.

    measure_signal.py MODEL.gguf [TOKENS]
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "reference"))
import model  # noqa: E402
from gguf_weights import Weights  # noqa: E402


def observe(weights, tokens):
    """Runs the reference with its attention, mixture and swiglu wrapped; returns the result and rows of figures."""
    attention, mixture, swiglu = model.attention, model.mixture, model.swiglu
    embedding = weights.rows("token_embd.weight", tokens)
    channel = np.sqrt(np.mean(embedding**2, axis=0))
    usual = channel < 5 * np.median(channel)
    state = {"h": embedding, "clamped": 0, "inner": 0}
    layers = []

    def size(x):
        return model.rms(x[:, usual])

    def watch_attention(*arguments):
        out = attention(*arguments)
        state["h"] = state["h"] + out
        layers.append({"attention": size(out), "input": np.abs(arguments[2]).max() / model.rms(arguments[2])})
        return out

    def watch_mixture(*arguments):
        out = mixture(*arguments)
        state["h"] = state["h"] + out
        chosen = arguments[4]
        counts = np.bincount(chosen.ravel(), minlength=weights.config.experts)
        share = np.take_along_axis(model.softmax(arguments[3]), chosen, axis=1)
        share /= share.sum(axis=1, keepdims=True)
        layers[-1].update(experts=size(out), residual=size(state["h"]), busiest=counts.max() / counts.mean(),
                          unused=(counts == 0).mean(), top=share[:, 0].mean(), scores=arguments[3].std(),
                          same=correlation(state["h"][:, usual]))
        return out

    def watch_swiglu(gate, up, clamp):
        state["clamped"] += np.count_nonzero(gate > clamp) + np.count_nonzero(np.abs(up) > clamp)
        state["inner"] += 2 * gate.size
        return swiglu(gate, up, clamp)

    model.attention, model.mixture, model.swiglu = watch_attention, watch_mixture, watch_swiglu
    try:
        result = model.forward(weights, tokens)
    finally:
        model.attention, model.mixture, model.swiglu = attention, mixture, swiglu
    return result, size(embedding), layers, state["clamped"] / state["inner"]


def correlation(rows):
    """Mean and largest correlation between rows [positions, values] of different positions."""
    r = np.corrcoef(rows)
    r = r[~np.eye(len(r), dtype=bool)]
    return np.abs(r).mean(), r.max()


def main():
    weights = Weights(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    tokens = np.random.default_rng(1).permutation(weights.config.vocabulary)[:count]
    result, embedding, layers, clamped = observe(weights, tokens)
    print(f"embedding rms {embedding:.3f}")
    print("layer  attention  experts  residual  max/rms in  scores  top share  busiest  unused  correlation mean, max")
    for i, layer in enumerate(layers):
        print(f"{i:5}  {layer['attention']:9.3f}  {layer['experts']:7.3f}  {layer['residual']:8.3f}  {layer['input']:10.1f}"
              f"  {layer['scores']:6.2f}  {layer['top']:9.2f}  {layer['busiest']:7.2f}  {layer['unused']:6.2f}"
              f"  {layer['same'][0]:.3f}, {layer['same'][1]:.3f}")
    mean, largest = correlation(result.logits)
    print(f"clamped {clamped:.2e} of gate and up; logits rms {model.rms(result.logits):.2f}; "
          f"logits of different positions: correlation mean {mean:.3f}, largest {largest:.3f}")
    order = np.sort(result.router_logits, axis=-1)
    used = weights.config.experts_used
    print(f"router ties closer than 1e-3: {(order[..., -used] - order[..., -used - 1] < 1e-3).mean():.4f} of choices")


if __name__ == "__main__":
    main()
