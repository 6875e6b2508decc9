"""accuracy.py against stand-in engines: the reference itself, rounding its activations as an engine would."""

import json
import sys
from pathlib import Path

import accuracy
import pytest

TOOLS = Path(accuracy.__file__).parent
ENGINE = """#!{python}
import argparse, sys
from pathlib import Path
sys.path.insert(0, {tools!r})
import exchange, model, tiny_gguf
from gguf_weights import Weights
parser = argparse.ArgumentParser()
parser.add_argument("command")
for flag in ("--preset", "-o", "--type", "--seed", "--outliers", "-m", "--tokens", "--out", "--experts"):
    parser.add_argument(flag)
o = parser.parse_args()
if o.command == "synth":
    shape = tiny_gguf.Shape(layers=2, full_every=2, experts=8, experts_used=2)
    tiny_gguf.write_tiny(o.o, shape=shape, type_name=o.type.upper(), seed=int(o.seed))
    sys.exit()
weights = Weights(o.m + ".gguf" if Path(o.m).is_dir() else o.m)
result = model.forward(weights, exchange.read_tokens(o.tokens), round_activations=model.ROUNDINGS[{rounding!r}])
exchange.write_logits(o.out, result.logits)
if o.experts:
    exchange.write_experts(o.experts, result.experts)
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    def run(rounding, cases):
        engine = tmp_path / "engine"
        engine.write_text(ENGINE.format(python=sys.executable, tools=str(TOOLS), rounding=rounding))
        engine.chmod(0o755)
        monkeypatch.setattr(accuracy, "QUICK", cases)
        monkeypatch.setattr(accuracy, "PROMPT_TOKENS", 40)
        monkeypatch.setattr(sys, "argv", ["accuracy", "--samara", str(engine), "--quick", "--json"])
        status = accuracy.main()
        return status, json.loads(capsys.readouterr().out)

    return run


def test_sixteen_bit_activations_are_within_the_limits_in_every_layout(run):
    cases = [accuracy.Case("synth", "tq2_0", layout=layout) for layout in ("gguf", "mlx-row", "mlx-group", "hf")]
    status, report = run("int16", [*cases, accuracy.Case("tiny", "q8_0", architecture="llama")])
    assert status == 0 and report["passed"]
    assert report["total"]["total"] == 4 * 40 * 2 * 2
    assert [model["layout"] for model in report["models"]] == ["gguf", "mlx-row", "mlx-group", "hf", "gguf"]


def test_eight_bit_activations_are_outside_them(run):
    status, report = run("int8", [accuracy.Case("synth", "tq2_0")])
    assert status == 1 and report["models"][0]["violations"]


def test_with_outliers_the_limit_is_what_float16_does(run):
    case = accuracy.Case("synth", "tq2_0", outliers=32)
    assert run("int16", [case])[0] == 0
    status, report = run("int8", [case])
    assert status == 1 and "F16" in report["models"][0]["violations"][0]


def test_an_engine_that_fails_is_reported_and_fails_the_run(run):
    status, report = run("no such rounding", [accuracy.Case("synth", "tq2_0")])
    assert status == 1 and report["models"] == []
