"""compare.py must accept what is right and catch what is wrong."""

import json

import compare
import exchange
import model
import numpy as np
import pytest
from gguf_weights import Weights
from tiny_gguf import Shape

SHAPE = Shape(layers=2, full_every=2, experts=8, experts_used=2)
TOKENS = np.random.default_rng(7).integers(0, SHAPE.vocabulary, 40)


@pytest.fixture
def engine(tiny, tmp_path):
    """An engine's files for a tiny model, correct until a test changes them, and a way to compare them."""
    return Engine(tiny(shape=SHAPE), tmp_path)


class Engine:
    def __init__(self, path, folder):
        self.path, self.folder = path, folder
        self.weights = Weights(path)
        self.set_result(model.forward(self.weights, TOKENS))

    def set_result(self, result):
        self.result, self.logits, self.experts = result, result.logits.copy(), result.experts.copy()

    def compare(self, *flags):
        names = [str(self.folder / name) for name in ("ids.txt", "logits.f32", "experts.bin")]
        exchange.write_tokens(names[0], TOKENS)
        exchange.write_logits(names[1], self.logits)
        exchange.write_experts(names[2], self.experts)
        return compare.main(["-m", str(self.path), "--tokens", names[0], "--logits", names[1], "--experts", names[2],
                             *flags])

    def report(self, capsys, *flags):
        status = self.compare("--json", *flags)
        return status, json.loads(capsys.readouterr().out)


def test_the_references_own_files_pass_with_float32s_error(engine, capsys):
    status, report = engine.report(capsys)
    assert status == 0
    assert report["worst"] < 1e-6
    assert report["choices"]["own"] == report["choices"]["total"] == 40 * 2 * 2
    assert report["unforced_equal_share"] == 1


def test_an_error_of_one_token_is_caught_and_named(engine, capsys):
    engine.logits[17] += 2e-3 * np.random.default_rng(0).standard_normal(SHAPE.vocabulary) * model.rms(engine.logits)
    status, report = engine.report(capsys)
    assert status == 1
    assert report["worst_token"] == 17
    assert report["median"] < 1e-4 < 1e-3 < report["worst"]


def test_a_small_error_of_every_token_fails_the_median_alone(engine, capsys):
    noise = np.random.default_rng(0).standard_normal(engine.logits.shape)
    engine.logits += 3e-4 * noise * model.rms(engine.logits)
    status, report = engine.report(capsys)
    assert status == 1
    assert len(report["violations"]) == 1 and "median" in report["violations"][0]
    assert engine.compare("--median", "1e-3") == 0


def test_a_bias_of_a_vocabulary_entry_is_no_error(engine):
    engine.logits += 0.01 * np.random.default_rng(3).standard_normal(SHAPE.vocabulary)
    assert engine.compare() == 0


def test_a_wrong_expert_is_caught_though_its_logits_follow_from_it(engine, capsys):
    scores = engine.result.router_logits[11, 1]
    engine.experts[11, 1, 1] = scores.argmin()
    engine.set_result(model.forward(engine.weights, TOKENS, engine.experts))
    status, report = engine.report(capsys)
    assert status == 1
    assert report["worst"] < 1e-6
    assert report["choices"]["wrong"] == 1
    assert report["choices"]["first_wrong"] == [11, 1, int(scores.argmin())]


def test_a_wrong_expert_that_the_logits_do_not_show_is_caught_by_both(engine, capsys):
    engine.experts[11, 1, 1] = engine.result.router_logits[11, 1].argmin()
    status, report = engine.report(capsys)
    assert status == 1
    assert report["worst_token"] == 11 and report["worst"] > 1e-3 and report["choices"]["wrong"] == 1


def test_swapped_ranks_are_caught(engine, capsys):
    engine.experts[5, 0] = engine.experts[5, 0, ::-1]
    status, report = engine.report(capsys)
    assert status == 1 and report["choices"]["out_of_order"] == 1 and report["choices"]["wrong"] == 0


def test_a_choice_below_the_last_own_one_is_a_tie_up_to_the_threshold():
    scores = np.array([[[3.0, 2.0, 1.9995, 1.99, 0.0]]])
    tie = compare.judge_choices(np.array([[[0, 2]]]), scores, 1e-3)
    assert (tie.own, tie.ties, tie.wrong) == (1, 1, 0)
    assert tie.largest_tie == pytest.approx(5e-4)
    wrong = compare.judge_choices(np.array([[[0, 3]]]), scores, 1e-3)
    assert (wrong.own, wrong.ties, wrong.wrong, wrong.first_wrong) == (1, 0, 1, [0, 0, 3])


def test_sixteen_bit_activations_pass_and_eight_bit_ones_fail(tiny, tmp_path, capsys):
    engine = Engine(tiny(), tmp_path)
    for name, expected in (("int16", 0), ("int8", 1)):
        engine.set_result(model.forward(engine.weights, TOKENS, round_activations=model.ROUNDINGS[name]))
        status, report = engine.report(capsys, "--f16")
        assert status == expected
        assert "choices" in report["f16_activations"]


def test_a_llama_needs_no_experts(tiny, tmp_path):
    engine = Engine(tiny(shape=SHAPE, architecture="llama", type_name="Q4_1"), tmp_path)
    assert engine.compare() == 0
    engine.logits[3] *= 1.01
    assert engine.compare() == 1


def damage(path, change):
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda data: data.__delitem__(slice(-2, None)), "bytes; expected"),
        (lambda data: data.__setitem__(slice(0, 4), b"NOPE"), "no SMEX header"),
        (lambda data: data.__setitem__(4, 39), "tokens, layers, experts used"),
        (lambda data: data.__setitem__(slice(16, 18), b"\xff\xff"), "expert 65535"),
        (lambda data: data.__setitem__(slice(18, 20), data[16:18]), "one expert twice"),
    ],
)
def test_a_damaged_experts_file_is_an_error_and_not_a_verdict(engine, tmp_path, change, message):
    path = tmp_path / "experts.bin"
    exchange.write_experts(path, engine.experts)
    damage(path, change)
    with pytest.raises(ValueError, match=message):
        exchange.read_experts(path, *engine.experts.shape, SHAPE.experts)


def test_logits_of_the_wrong_size_or_not_finite_are_errors(engine, capsys):
    engine.logits[3, 5] = np.nan
    assert engine.compare() == 2
    engine.logits = engine.logits[:-1]
    assert engine.compare() == 2
    assert "expected" in capsys.readouterr().err
