"""The benchmark of the torch door judges what it measured: every bar can be missed, and a record says which code it is of."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ENGINES = Path(__file__).parents[2] / "bench" / "engines"


@pytest.fixture(scope="module")
def door() -> Any:
    sys.path.insert(0, str(ENGINES))
    try:
        import torch_door

        yield torch_door
    finally:
        sys.path.remove(str(ENGINES))


def counts(**external: int) -> Any:
    calls = {f"aten.{name}.default": n for name, n in external.items()}
    return SimpleNamespace(graphs=1, kernels=3, interpreted=0, external=calls, reasons=dict.fromkeys(calls, "not in the table"))


def test_a_model_has_to_be_as_fast_as_eager_and_compiled(door: Any) -> None:
    times = {"eager": [1.0] * 30, "oxyfuel": [0.9] * 30}
    spine = counts(addmm=4, convolution=2, _scaled_dot_product_flash_attention_for_cpu=2)
    assert door.model_line("m", times, spine)["met"]
    slow = door.model_line("m", {"eager": [0.97] * 30, "oxyfuel": [1.0] * 30}, spine)
    assert not slow["met"] and door.missed({"models": [slow]})
    left = door.model_line("m", times, counts(addmm=4, gelu=1))
    assert (left["outside"], left["met"]) == (["aten.gelu.default"], False)
    interpreted = counts()
    interpreted.interpreted = 1
    assert not door.model_line("m", times, interpreted)["met"]


def runs(**seconds: float) -> dict[str, list[dict[str, Any]]]:
    own = {"oxyfuel": 0.02, "inductor": 20.0}
    return {engine: [{"seconds": s, "steady": 0.3, "own": own.get(engine, 0.0), "loaded": 0.0}] * 5 for engine, s in seconds.items()}


def test_a_first_call_is_judged_as_it_is_not_less_a_steady_one(door: Any) -> None:
    base, bar = "base", 0.5
    assert door.start_line("m", runs(oxyfuel=2.0, base=1.6, inductor=30.0), base, bar)["met"] == {"above": True, "own_of_inductor": True}
    # A steady call of ours is slower: less that call, the start would be within its bar.
    found = runs(oxyfuel=2.2, base=1.6, inductor=30.0)
    found["oxyfuel"] = [run | {"steady": 1.0} for run in found["oxyfuel"]]
    line = door.start_line("m", found, base, bar)
    assert line["above"] > bar > line["above_starting"]
    assert not line["met"]["above"] and door.missed({"first": [line]}) == ["first call of m: above"]
    long = runs(oxyfuel=1.0, base=1.6, inductor=30.0)
    long["oxyfuel"] = [run | {"own": 0.6} for run in long["oxyfuel"]]
    assert not door.start_line("m", long, base, bar)["met"]["own_of_inductor"]


def test_a_warm_call_is_no_slower_than_inductors(door: Any) -> None:
    found = runs(oxyfuel=2.0, nothing=1.9, inductor=1.95)
    found["inductor"] = [run | {"own": 0.0} for run in found["inductor"]]
    assert door.start_line("m", found, "nothing", 0.15)["met"] == {"above": True, "above_inductor": False}


def test_what_a_call_costs_has_bars(door: Any) -> None:
    assert door.missed({"overhead": {"met": {"call": False, "external": True}}}) == ["what a call costs: call"]


def test_a_warm_start_must_find_everything_in_the_cache(door: Any) -> None:
    door.check_hits("m", "nothing", {"autograd_cache_hit": 2})
    for counters in ({}, {"autograd_cache_hit": 1, "autograd_cache_miss": 1}, {"autograd_cache_bypass": 1}):
        with pytest.raises(SystemExit, match="did not find everything"):
            door.check_hits("m", "nothing", counters)


def test_a_record_knows_the_commit_of_each_part(door: Any) -> None:
    one = door.merged({}, {"models": [], "overhead": {}}, {"models": {"commit": "a"}, "overhead": {"commit": "a"}})
    assert not one["mixed"] and door.of_others(one, ["models"], "a") == []
    assert door.of_others(one, ["models"], "b") == ["overhead"]
    assert door.of_others(one, ["models", "overhead"], "b") == []
    two = door.merged(one, {"models": []}, {"models": {"commit": "b"}})
    assert two["mixed"]
    # A part that does not say its commit is of another one.
    assert door.of_others({"warm": []}, ["first"], "a") == ["warm"]
    assert door.merged({"warm": []}, {}, {})["mixed"]


def test_a_record_of_parts_of_two_commits_is_refused(door: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"overhead": {}, "runs": {"overhead": {"commit": "another"}}}))
    monkeypatch.setattr(sys, "argv", ["torch_door.py", "--parts", "models", "--record", str(path)])
    monkeypatch.setattr(door, "measure_models", lambda *_: pytest.fail("measured before it was refused"))
    with pytest.raises(SystemExit) as refused:
        door.main()
    assert refused.value.code == 2


def test_a_missed_bar_fails_the_command_and_is_recorded(door: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    slow = door.model_line("m", {"eager": [0.5] * 30, "oxyfuel": [1.0] * 30}, counts())
    monkeypatch.setattr(sys, "argv", ["torch_door.py", "--parts", "models", "--record", str(path)])
    monkeypatch.setattr(door, "measure_models", lambda *_: [slow])
    assert door.main() == 1
    assert not json.loads(path.read_text())["models"][0]["met"]
