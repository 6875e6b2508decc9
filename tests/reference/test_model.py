"""What must hold of the forward pass, whatever the weights."""

import dataclasses

import model
import numpy as np
import pytest
from gguf_weights import Weights
from tiny_gguf import Shape

SMALL = Shape(layers=2, full_every=2, experts=8, experts_used=2)


def some_tokens(count, vocabulary=320, seed=5):
    return np.random.default_rng(seed).integers(0, vocabulary, count)


class Changed:
    """Weights with another configuration or other tensors, everything else delegated."""

    def __init__(self, weights, tensors=None, **config):
        self._weights, self._tensors = weights, tensors or {}
        self.config = dataclasses.replace(weights.config, **config)

    def tensor(self, name, index=None):
        return self._tensors[name] if name in self._tensors else self._weights.tensor(name, index)

    def attention(self, layer):
        names = [f"blk.{layer}.attn_{part}.weight" for part in "qkv"]
        return [self.tensor(name) for name in names]

    def __getattr__(self, name):
        return getattr(self._weights, name)


def test_sliding_window_equals_full_attention_up_to_the_window_and_differs_after(tiny_weights):
    weights = tiny_weights(shape=SMALL)
    window = SMALL.window
    wide = Changed(weights, window=(None, None))
    tokens = some_tokens(window + 4)
    sliding, full = model.forward(weights, tokens).logits, model.forward(wide, tokens).logits
    np.testing.assert_array_equal(sliding[:window], full[:window])
    assert np.abs(sliding[window:] - full[window:]).max(axis=1).min() > 1e-3


def test_a_token_does_not_depend_on_later_tokens(tiny_weights):
    weights = tiny_weights(shape=SMALL)
    tokens = some_tokens(24)
    whole, part = model.forward(weights, tokens).logits, model.forward(weights, tokens[:13]).logits
    np.testing.assert_allclose(whole[:13], part, rtol=1e-10, atol=1e-10)


def test_a_full_layer_without_positions_does_not_see_the_order_of_earlier_tokens(tiny_weights):
    weights = tiny_weights(shape=SMALL)
    only_full = Changed(weights, window=(None, None), rope_theta=(None, None), layers=1)
    tokens = some_tokens(10)
    shuffled = np.concatenate([tokens[:9][::-1], tokens[9:]])
    last = model.forward(only_full, tokens).logits[-1]
    np.testing.assert_allclose(last, model.forward(only_full, shuffled).logits[-1], atol=1e-10)
    with_rope = Changed(only_full, rope_theta=(10000.0, None))
    assert np.abs(last - model.forward(with_rope, shuffled).logits[-1]).max() > 1e-3


def test_rope_rotates_the_leading_dimensions_of_half_split_pairs_and_keeps_their_length():
    x = np.random.default_rng(0).standard_normal((7, 3, 16))
    rotated = model.rotate(x, np.arange(7), 10000.0, 8, interleaved=False)
    np.testing.assert_array_equal(rotated[..., 8:], x[..., 8:])
    np.testing.assert_array_equal(rotated[0], x[0])
    length = np.hypot(x[..., :4], x[..., 4:8])
    np.testing.assert_allclose(np.hypot(rotated[..., :4], rotated[..., 4:8]), length, rtol=1e-12)
    angle = 6 * 10000.0 ** (-2 / 8)  # pair 1 at position 6
    np.testing.assert_allclose(rotated[6, :, 1], x[6, :, 1] * np.cos(angle) - x[6, :, 5] * np.sin(angle), rtol=1e-12)


def test_rope_scores_depend_on_the_distance_of_positions_alone():
    q, k = np.random.default_rng(1).standard_normal((2, 1, 1, 16))
    at = lambda x, position: model.rotate(x, np.array([position]), 10000.0, 16, True).ravel()  # noqa: E731
    assert at(q, 9) @ at(k, 4) == pytest.approx(at(q, 25) @ at(k, 20), rel=1e-12)


def test_interleaved_pairs_of_permuted_heads_equal_half_split_pairs(tiny_weights):
    weights = tiny_weights(architecture="llama", type_name="F32", shape=SMALL)
    c = weights.config
    half = c.head_dim // 2
    # Row 2i of a permuted head is row i of the half-split one, row 2i+1 is row i + half.
    back = np.concatenate([np.arange(0, c.head_dim, 2), np.arange(1, c.head_dim, 2)])
    tensors = {}
    for layer in range(c.layers):
        for part, heads in (("q", c.heads), ("k", c.kv_heads)):
            name = f"blk.{layer}.attn_{part}.weight"
            rows = weights.tensor(name).reshape(heads, c.head_dim, c.hidden)
            tensors[name] = rows[:, back].reshape(-1, c.hidden)
    assert list(back[:2]) == [0, 2] and back[half] == 1
    half_split = Changed(weights, tensors, rope_interleaved=False)
    tokens = some_tokens(20)
    expected = model.forward(weights, tokens).logits
    np.testing.assert_allclose(model.forward(half_split, tokens).logits, expected, atol=1e-9)
    assert np.abs(model.forward(Changed(weights, rope_interleaved=False), tokens).logits - expected).max() > 1e-2


def test_clamp_bounds_the_gate_from_above_and_up_on_both_sides():
    gate, up = np.array([-20.0, 3.0, 9.0, 9.0]), np.array([1.0, 2.0, 9.0, -9.0])
    silu = lambda x: x / (1 + np.exp(-x))  # noqa: E731
    expected = [silu(-20.0), silu(3.0) * 2, silu(7.0) * 7, silu(7.0) * -7]
    np.testing.assert_allclose(model.swiglu(gate, up, 7.0), expected, rtol=1e-12)
    np.testing.assert_allclose(model.swiglu(gate, up, None), silu(gate) * up, rtol=1e-12)


def test_the_tiny_model_meets_its_clamp(tiny_weights):
    weights = tiny_weights(shape=SMALL)
    tokens = some_tokens(20)
    free = Changed(weights, clamp=(1e9, 1e9))
    assert np.abs(model.forward(weights, tokens).logits - model.forward(free, tokens).logits).max() > 1e-3


def test_expert_shares_are_a_softmax_over_the_chosen_logits(tiny_weights):
    weights = tiny_weights(shape=SMALL)
    rng = np.random.default_rng(2)
    x, scores = rng.standard_normal((1, SMALL.hidden)), rng.standard_normal((1, SMALL.experts))
    chosen = model.top_experts(scores, 2)
    each = [model.mixture(weights, 0, x, scores, chosen[:, rank : rank + 1], model.exact) for rank in (0, 1)]
    share = np.exp(scores[0, chosen[0]])
    share /= share.sum()
    together = model.mixture(weights, 0, x, scores, chosen, model.exact)
    np.testing.assert_allclose(together, share[0] * each[0] + share[1] * each[1], rtol=1e-10)


def test_experts_come_in_descending_order_and_ties_go_to_the_lower_index():
    scores = np.array([[0.5, 2.0, 0.5, 3.0, 2.0, -1.0]])
    assert model.top_experts(scores, 4).tolist() == [[3, 1, 4, 0]]


def test_forcing_the_own_choices_changes_nothing_and_forcing_others_does(tiny_weights):
    weights = tiny_weights(shape=SMALL)
    tokens = some_tokens(20)
    free = model.forward(weights, tokens)
    np.testing.assert_array_equal(model.forward(weights, tokens, free.experts).logits, free.logits)
    other = (free.experts + 1) % SMALL.experts
    assert np.abs(model.forward(weights, tokens, other).logits - free.logits).max() > 1e-2


@pytest.mark.parametrize("type_name", ["F32", "F16", "TQ1_0", "TQ2_0"])
def test_ternary_weights_give_the_same_logits_in_every_type_that_holds_them(tiny_weights, type_name):
    tokens = some_tokens(12)
    expected = model.forward(tiny_weights(shape=SMALL, type_name="TQ2_0"), tokens).logits
    np.testing.assert_array_equal(model.forward(tiny_weights(shape=SMALL, type_name=type_name), tokens).logits, expected)


def test_fused_tensors_split_into_query_key_value_and_gate_up(tiny_weights):
    fused = tiny_weights(shape=SMALL, fused=True)
    c = fused.config
    assert [part.shape[0] // c.head_dim for part in fused.attention(0)] == [c.heads, c.kv_heads, c.kv_heads]
    whole = fused.tensor("blk.0.ffn_gate_up_exps.weight", 3)
    gate, up, down = fused.expert(0, 3)
    np.testing.assert_array_equal(np.concatenate([gate, up]), whole)
    assert down.shape == (c.hidden, SMALL.inner)


def test_a_tied_head_is_the_embedding(tiny_weights):
    tied = tiny_weights(shape=SMALL, tied=True)
    assert tied.head_name == "token_embd.weight"
    assert model.forward(tied, some_tokens(4)).logits.shape == (4, SMALL.vocabulary)


@pytest.mark.parametrize("type_name", ["F16", "Q8_0", "Q4_1", "Q4_0", "Q5_1", "BF16"])
def test_llama_in_a_quantised_type_stays_near_its_float_weights(tiny_weights, type_name):
    tokens = some_tokens(16)
    expected = model.forward(tiny_weights(architecture="llama", shape=SMALL, type_name="F32"), tokens).logits
    logits = model.forward(tiny_weights(architecture="llama", shape=SMALL, type_name=type_name), tokens).logits
    limit = {"F16": 2e-3, "BF16": 2e-2, "Q8_0": 3e-2}.get(type_name, 0.4)
    assert 0 < model.rms(logits - expected) / model.rms(expected) < limit


def test_positions_of_the_tiny_model_say_different_things_and_blocks_matter(tiny_weights):
    from compare import position_correlation

    result = model.forward(tiny_weights(), some_tokens(64))
    assert abs(position_correlation(result.logits)) < 0.5
    assert 0.5 < result.residual_change < 3


def test_rounded_activations_are_ordered_by_their_bits(tiny_weights):
    weights = tiny_weights(shape=SMALL)
    tokens = some_tokens(40)
    free = model.forward(weights, tokens)
    error = {
        name: model.rms(model.forward(weights, tokens, free.experts, rounding).logits - free.logits)
        for name, rounding in model.ROUNDINGS.items()
    }
    assert error["exact"] == 0 < error["int16"] < error["f16"] < error["int8"]


def test_a_model_with_a_tensor_the_pass_would_ignore_is_refused(tiny, tmp_path):
    data = tiny(shape=SMALL, architecture="llama", type_name="F32").read_bytes()
    changed = tmp_path / "changed.gguf"
    changed.write_bytes(data.replace(b"blk.1.ffn_norm.weight", b"blk.1.ffn_bias.weight"))
    with pytest.raises(ValueError, match="blk.1.ffn_bias.weight"):
        Weights(changed)
