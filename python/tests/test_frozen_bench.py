"""What the bench of frozen models makes of its rounds: bars, the best peer, the page, and records that are joined."""

import json
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "engines"))
import torch_frozen as bench

# Seconds of a round; the floor is 0.5 s.
TIMES = {"oxyfuel": 1.0, "oxyfuel frozen": 0.6, "eager": 1.2, "inductor": 1.4, "inductor frozen": 0.9, "onnxruntime": 0.75}
RATES, FLOPS = 2e9, 1e9


def line(name="bert", missing=None, rounds=30, **seconds):
    times = {engine: [t] * rounds for engine, t in {**TIMES, **seconds}.items() if engine not in (missing or {})}
    return bench.line_of(name, times, FLOPS, [RATES] * rounds, missing or {}, {})


def test_the_best_peer_counts():
    found = line()
    assert found["ratio"]["frozen"]["best"] == "onnxruntime" and found["ratio"]["plain"]["best"] == "eager"
    assert found["ratio"]["frozen"]["of"]["onnxruntime"]["median"] == pytest.approx(1.25)
    assert found["above_floor"]["median"] == pytest.approx(1.2)
    assert found["met"] == {"frozen": True, "plain": True, "floor": True}


@pytest.mark.parametrize("bar, seconds", [("frozen", {"onnxruntime": 0.7}), ("plain", {"eager": 1.05}), ("floor", {"oxyfuel frozen": 0.66, "onnxruntime": 0.9})])
def test_a_bar_is_missed(bar, seconds):
    found = line(**seconds)
    assert [name for name, met in found["met"].items() if not met] == [bar]
    assert bench.missed({"models": [found]}) == [f"bert: {bar}"]


def test_a_median_with_a_low_bound_is_no_proof():
    noisy = [0.75, 0.75, 0.6, 0.6, 0.75] * 12
    found = bench.line_of("bert", {"oxyfuel frozen": [0.6] * 60, "eager": noisy}, FLOPS, [RATES] * 60, {}, {})
    assert found["ratio"]["frozen"]["of"]["eager"]["median"] == pytest.approx(1.25)
    assert not found["met"]["frozen"]


def test_the_page_says_who_was_missing(tmp_path):
    record = {"machine": {"cpu": "some", "threads": 2, "torch": "2"}, "commit": "abc", "at": "now", "models": [line(missing={"onnxruntime": "not installed"})]}
    said = bench.table(record)
    assert "no ONNX Runtime (not installed)" in said and "of Inductor, frozen, bar 1.2 met" in said
    path = tmp_path / "torch-frozen-some.json"
    bench.write(path, record)
    # Models of the same commit stay, those of another one do not.
    bench.write(path, record | {"models": [line("gpt2")]})
    assert [row["name"] for row in json.loads(path.read_text())["models"]] == ["gpt2", "bert"]
    bench.write(path, record | {"commit": "def", "models": [line("gpt2")]})
    assert [row["name"] for row in json.loads(path.read_text())["models"]] == ["gpt2"]
    assert path.with_suffix(".md").read_text().startswith("| model |")
