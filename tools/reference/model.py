"""The forward pass of Maple and of dense Llama in NumPy float64, from tokens to logits.

It follows the model's definition and knows nothing of the engine: all tokens at once, keys and values unrounded,
softmax and RoPE from NumPy. `round_activations` may imitate an engine that rounds what enters its matmuls.
"""

from dataclasses import dataclass

import numpy as np

HEAD_ROWS = 8192  # vocabulary rows dequantised at a time


@dataclass
class Result:
    logits: np.ndarray  # [tokens, vocabulary]
    router_logits: np.ndarray  # [tokens, layers, experts]; no layers for a dense model
    experts: np.ndarray  # [tokens, layers, experts_used] as used, in rank order
    own_experts: np.ndarray  # the same shape: what these router logits would choose
    residual_change: float  # rms of everything the blocks added over rms of the embedding


def forward(weights, tokens, forced_experts=None, round_activations=None):
    """Logits of every position. `forced_experts` [tokens, layers, used] replaces the router's choice, not its weights."""
    c = weights.config
    tokens = np.asarray(tokens)
    if tokens.size == 0 or tokens.min() < 0 or tokens.max() >= c.vocabulary:
        raise ValueError(f"token ids must be in [0, {c.vocabulary}) and there must be one at least")
    rounded = round_activations or exact
    positions = np.arange(len(tokens))
    moe_layers = c.layers if c.experts else 0
    router_logits = np.zeros((len(tokens), moe_layers, c.experts))
    experts = np.zeros((len(tokens), moe_layers, c.experts_used), dtype=np.int64)
    own_experts = np.zeros_like(experts)

    embedded = weights.rows("token_embd.weight", tokens)
    h = embedded
    for layer in range(c.layers):
        x = rms_norm(h, weights.tensor(f"blk.{layer}.attn_norm.weight"), c.rms_eps)
        h = h + attention(weights, layer, x, positions, rounded)

        x = rms_norm(h, weights.tensor(f"blk.{layer}.ffn_norm.weight"), c.rms_eps)
        if c.experts:
            # Engines route in float32 whatever they do elsewhere, so the router's input is never rounded.
            scores = x @ weights.tensor(f"blk.{layer}.ffn_gate_inp.weight").T
            router_logits[:, layer] = scores
            own_experts[:, layer] = top_experts(scores, c.experts_used)
            chosen = own_experts[:, layer] if forced_experts is None else forced_experts[:, layer]
            experts[:, layer] = chosen
            h = h + mixture(weights, layer, x, scores, chosen, rounded)
        else:
            h = h + feed_forward(weights, layer, x, rounded)

    x = rounded(rms_norm(h, weights.tensor("output_norm.weight"), c.rms_eps))
    logits = np.empty((len(tokens), c.vocabulary))
    for start in range(0, c.vocabulary, HEAD_ROWS):
        rows = slice(start, min(start + HEAD_ROWS, c.vocabulary))
        logits[:, rows] = x @ weights.rows(weights.head_name, rows).T
    change = rms(h - embedded) / rms(embedded)
    return Result(logits, router_logits, experts, own_experts, float(change))


def attention(weights, layer, x, positions, rounded):
    """Causal attention of grouped query heads; a sliding layer sees the last `window` keys, the current one included."""
    c = weights.config
    x = rounded(x)
    q, k, v = (x @ projection.T for projection in weights.attention(layer))
    q = q.reshape(len(x), c.heads, c.head_dim)
    k = k.reshape(len(x), c.kv_heads, c.head_dim)
    v = v.reshape(len(x), c.kv_heads, c.head_dim)
    if c.qk_norm:  # per head, before the rotation
        q = rms_norm(q, weights.tensor(f"blk.{layer}.attn_q_norm.weight"), c.rms_eps)
        k = rms_norm(k, weights.tensor(f"blk.{layer}.attn_k_norm.weight"), c.rms_eps)
    theta = c.rope_theta[layer]
    if theta is not None:
        q = rotate(q, positions, theta, c.rope_dims, c.rope_interleaved)
        k = rotate(k, positions, theta, c.rope_dims, c.rope_interleaved)

    visible = positions[:, None] >= positions[None, :]
    if c.window[layer] is not None:
        visible &= positions[:, None] - positions[None, :] < c.window[layer]
    mixed = np.empty_like(q)
    for head in range(c.heads):
        kv_head = head // (c.heads // c.kv_heads)
        scores = q[:, head] @ k[:, kv_head].T / np.sqrt(c.head_dim)
        mixed[:, head] = softmax(np.where(visible, scores, -np.inf)) @ v[:, kv_head]
    mixed = rounded(mixed.reshape(len(x), -1))
    return mixed @ weights.tensor(f"blk.{layer}.attn_output.weight").T


def mixture(weights, layer, x, scores, chosen, rounded):
    """Sum of the chosen experts, weighted by the softmax over all experts, renormalised over the chosen ones."""
    clamp = weights.config.clamp[layer]
    share = np.take_along_axis(softmax(scores), chosen, axis=1)
    share /= share.sum(axis=1, keepdims=True)
    x = rounded(x)
    out = np.zeros_like(x)
    for expert in np.unique(chosen):
        token, rank = np.nonzero(chosen == expert)
        gate, up, down = weights.expert(layer, expert)
        inner = swiglu(x[token] @ gate.T, x[token] @ up.T, clamp)
        np.add.at(out, token, share[token, rank, None] * (rounded(inner) @ down.T))
    return out


def feed_forward(weights, layer, x, rounded):
    gate, up, down = (weights.tensor(f"blk.{layer}.ffn_{part}.weight") for part in ("gate", "up", "down"))
    x = rounded(x)
    return rounded(swiglu(x @ gate.T, x @ up.T, None)) @ down.T


def swiglu(gate, up, clamp):
    """silu(gate) * up; Maple bounds the gate from above and `up` on both sides."""
    if clamp is not None:
        gate = np.minimum(gate, clamp)
        up = np.clip(up, -clamp, clamp)
    with np.errstate(over="ignore"):  # exp(-gate) may be inf: silu is then -0
        return gate / (1 + np.exp(-gate)) * up


def rotate(x, positions, theta, dims, interleaved):
    """RoPE of the first `dims` of x [tokens, heads, head_dim] by angle position * theta^(-2i/dims) for pair i."""
    angles = positions[:, None, None] * theta ** (-np.arange(0, dims, 2) / dims)
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = pair_indices(dims, interleaved)
    a, b = x[..., first], x[..., second]
    out = x.copy()
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out


def pair_indices(dims, interleaved):
    if interleaved:
        return np.arange(0, dims, 2), np.arange(1, dims, 2)
    return np.arange(dims // 2), np.arange(dims // 2, dims)


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rms(x, axis=None):
    return np.sqrt(np.mean(x * x, axis=axis))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def top_experts(scores, used):
    """The `used` largest in descending order; of equal logits the lower index comes first."""
    return np.argsort(-scores, axis=-1, kind="stable")[..., :used]


# -- what an engine may do to the vectors that enter its matmuls ------------------------------------------------------


def exact(x):
    return x


def float16(x):
    return x.astype(np.float16).astype(np.float64)


def int8_per_256(x):
    """8-bit integers with one scale for 256 values (or for the vector, where 256 does not divide it)."""
    group = 256 if x.shape[-1] % 256 == 0 else x.shape[-1]
    return _integers(x.reshape(*x.shape[:-1], -1, group), 127).reshape(x.shape)


def int16_per_vector(x):
    """16-bit integers with one scale for the vector; 32639 is the largest value two int8 planes hold."""
    return _integers(x, 32639)


def _integers(x, largest):
    scale = np.abs(x).max(axis=-1, keepdims=True) / largest
    return np.rint(np.divide(x, scale, out=np.zeros_like(x), where=scale > 0)) * scale


ROUNDINGS = {"exact": exact, "f16": float16, "int8": int8_per_256, "int16": int16_per_vector}
