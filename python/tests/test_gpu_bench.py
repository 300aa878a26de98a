"""The scripts for machines with a GPU judge what they measured, without one: every bar can be missed, and a record says its GPU and its commit."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ENGINES = Path(__file__).parents[2] / "bench" / "engines"


@pytest.fixture(scope="module", autouse=True)
def engines() -> Iterator[None]:
    sys.path.insert(0, str(ENGINES))
    yield
    sys.path.remove(str(ENGINES))


@pytest.fixture
def small() -> Any:
    import gpu_small

    return gpu_small


def test_arguments_are_filters_flags_and_a_file(small: Any) -> None:
    assert small.parsed([]) == ([], False, None)
    assert small.parsed(["softmax", "--quick", "--json", "f.json", "sum"]) == (["softmax", "sum"], True, "f.json")
    assert small.parsed(["--json"]) is None and small.parsed(["--fast"]) is None
    assert small.main(["--fast"]) == 2


def test_rows_are_those_of_a_gpu_and_small_graphs(small: Any) -> None:
    names = [row.name for row in small.rows([])]
    assert len(set(names)) == len(names) and small.INDEXER in names and "gpu-add-relu-mul-2e28" in names
    assert names[-len(small.SMALL) :] == list(small.SMALL)
    assert [row.name for row in small.rows(["indexer"])] == [small.INDEXER]


def test_without_a_gpu_it_says_so(small: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(small, "gpu", lambda: None)
    assert small.main([]) == 1 and "no GPU" in capsys.readouterr().out
    assert small.main(["no-such-row"]) == 2 and "no row has `no-such-row`" in capsys.readouterr().out


def taken(ours: float, theirs: float) -> dict[str, list[tuple[float, float, float]]]:
    """Rounds of engines: device, one behind the other, alone; noise that is the same for both."""
    noise = [1 + 0.2 * (number % 3) for number in range(20)]
    return {f"{engine} {mode}": [(10 * n, us * n, us * n + 5) for n in noise] for engine, us in (("oxyfuel", ours), ("inductor", theirs)) for mode in ("default", "reduce-overhead")}


def row(small: Any, ours: float = 10, theirs: float = 20, **more: Any) -> Any:
    nothing = {"names": [], "bytes": 0}
    us = {"oxyfuel default": [1, 1, 1], "oxyfuel reduce-overhead": [90, 95, 100]}
    copied = {"oxyfuel reduce-overhead": nothing, "inductor reduce-overhead": {"names": ["Memcpy DtoD"], "bytes": 7}}
    made = {"name": "a", "right": True, "us": us, "ratios": small.ratios(taken(ours, theirs)), "copies": copied, "kernels": {"oxyfuel default": 10}}
    return made | more


def test_ratios_are_of_the_same_round(small: Any) -> None:
    found = small.ratios(taken(10, 20))
    assert found["reduce-overhead, device"] == [1.0, 1.0, 1.0] and found["default, stream"] == [2.0, 2.0, 2.0]
    assert 1 < found["reduce-overhead, wall"][0] < 2


def test_each_bar_can_be_missed(small: Any) -> None:
    assert small.missed(row(small)) == []
    assert small.missed(row(small, right=False)) == ["results differ from eager's"]
    slow = small.missed(row(small, ours=20, theirs=19))
    assert len(slow) == 2 and "single calls" in slow[0] and "one behind the other" in slow[1]
    copied = {"oxyfuel reduce-overhead": {"names": ["Memcpy DtoD (Device -> Device)"], "bytes": 4}}
    assert small.missed(row(small, copies=copied)) == ["copies inside the device at a call: Memcpy DtoD (Device -> Device)"]
    many = row(small, name=small.INDEXER, kernels={"oxyfuel default": 11})
    assert small.missed(many) == ["11 kernels with graphs off, for at most 10"]
    assert small.missed(many | {"name": "another"}) == []
    late = row(small, name=small.INDEXER, us={"oxyfuel default": [1, 1, 1], "oxyfuel reduce-overhead": [90, 95, 120.5]})
    assert small.missed(late) == ["120.5 us as one graph, for at most 120"]


def test_a_difference_that_cannot_be_told_is_none(small: Any) -> None:
    assert small.no_slower([0.99, 0.98, 1.0]) and small.no_slower([1.0, 0.9, 1.1])
    assert not small.no_slower([0.99, 0.98, 0.999])


def test_copies_are_those_of_the_driver_and_of_torchs_kernels(small: Any) -> None:
    names = ["Memcpy DtoD (Device -> Device)", "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<CopyFunctor>", "k0_copy_add", "Memset (Device)", "void at::native::direct_copy_kernel_cuda"]
    events = [{"name": name, "args": {"bytes": 8}} if "Memcpy" in name else {"name": name} for name in names]
    found = small.copies(events)
    assert found["bytes"] == 8 and [name[:6] for name in found["names"]] == ["Memcpy", "void a", "void a"]


def test_results_are_compared_by_norm_and_integers_as_they_are(small: Any) -> None:
    import torch

    class Any_:
        unordered = (1,)

    want = [torch.ones(8), torch.tensor([3, 1, 2]), torch.tensor([True])]
    assert small.wrong(torch, Any_, [t.clone() for t in want], want) == (0.0, False)
    assert not small.wrong(torch, Any_, [want[0], torch.tensor([1, 2, 3]), want[2]], want)[1]
    for number, other in ((0, want[0] * 1.01), (0, want[0] * float("nan")), (1, torch.tensor([1, 2, 2])), (2, torch.tensor([False])), (0, want[0].double())):
        got = [other if at == number else tensor for at, tensor in enumerate(want)]
        assert small.wrong(torch, Any_, got, want)[1], number
    assert small.wrong(torch, Any_, want[:2], want)[1]


def test_a_record_says_its_gpu_and_its_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import gpu_rows

    assert {"gpu", "commit", "driver"} <= set(gpu_rows.head())
    assert gpu_rows.commit() == "unknown" or len(gpu_rows.commit()) >= 12
    (tmp_path / "commit").write_text("0123456789ab\n")
    monkeypatch.setattr(gpu_rows, "ABOVE", str(tmp_path))
    assert gpu_rows.commit() == "0123456789ab"


def test_each_bar_of_a_kernel_can_be_missed() -> None:
    from gpu_rows import better, judged

    row: dict[str, Any] = {
        "kernels": 10.0,
        "wall_us": {"replay": 120.0},
        "us": {"eager": 30.0, "inductor": 20.0, "copy": 19.0, "ours": 20.0},
        "ratios": {"eager": [1.5, 1.4, 1.6], "inductor": [1.0, 0.99, 1.01], "copy": [0.95, 0.94, 0.96]},
    }
    bar = {"better": 1.0, "copy": 0.9, "kernels": 10, "one_graph_us": 120}
    assert judged(bar, row) == ([], []) and judged(None, row) == ([], []) and better(row) == 1.0
    assert judged({"better": 1.01}, row)[0] == ["100.0 % of inductor's speed, for at least 101 %"]
    assert judged({"copy": 0.96}, row)[0] == ["95.0 % of copy's speed, for at least 96 %"]
    assert judged({"eager": 1.6}, row)[0] and not judged({"eager": 1.45}, row)[0]
    assert judged(bar, row | {"kernels": 11.0, "wall_us": {"replay": 120.5}})[0] == ["11 kernels, for at most 10", "120.5 us as one graph, for at most 120"]
    # A median that is good by luck is none.
    assert judged({"copy": 0.9}, row | {"ratios": {"copy": [0.95, 0.8, 1.0]}})[0]
    quick = row | {"us": {"eager": 30.0, "ours": 20.0}, "ratios": {"eager": [1.5, 1.4, 1.6]}}
    assert judged(bar, quick) == ([], ["better", "copy"]) and better(quick) is None


def test_the_rows_of_the_peers_table_have_their_bars() -> None:
    from gpu_rows import LIMITS, elements, workloads

    there = {w.name: w for w in workloads() if w.device == "gpu"}
    known = {"better", "copy", "eager", *LIMITS}
    assert all(set(w.bar or {}) <= known for w in there.values())
    assert there["gpu-pq-indexer"].bar == {"kernels": 10, "one_graph_us": 120}
    barred = [w for w in there.values() if "better" in (w.bar or {})]
    assert {w.torch for w in barred} == {"add_relu_mul", "gelu_bias", "mxint8_decode", "softmax", "layer_norm", "rms_norm", "sum_rows", "sum_all"}
    assert len(barred) == 10 and all(w.bar["better"] >= 1.0 for w in barred)
    size = {"f32": 4, "bf16": 2, "i8": 1, "u8": 1}
    for w in barred:
        # What goes in is at most what goes in and out: rows of 128 MB by that alone have the other bar for sure.
        if sum(size[dtype] * elements(shape) for _, dtype, shape in w.inputs) >= 128e6:
            assert w.bar["copy"] >= 0.9, w.name


def ratios(inductor: float, eager: float) -> dict[str, list[float]]:
    """Those of a model, the same in each mode."""
    found = {}
    for mode in ("default", "reduce-overhead"):
        found |= {f"inductor {mode} / oxyfuel {mode}, wall": [inductor] * 3, f"eager / oxyfuel {mode}, wall": [eager] * 3}
    return found


def model_row(name: str, training: bool = False, inductor: float = 1.1, missed: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"name": name, "training": training, "right": True, "missed": list(missed), "ratios": ratios(inductor, 2), "us": {}, "errors": {}, "first_s": {"capture": 1.0}, "verdict": None, "recordings": []}


def test_each_bar_of_a_model_can_be_missed() -> None:
    import gpu_models

    definition = {"speed": 0.98, "eager": 1.0}
    assert gpu_models.slow(definition, ratios(0.98, 1.0), False) == []
    assert len(gpu_models.slow(definition, ratios(0.97, 1.0), False)) == 2 == len(gpu_models.slow(definition, ratios(1.0, 0.9), False))
    assert gpu_models.slow(definition, ratios(0.5, 0.5), True) == [] and gpu_models.slow({"training_speed": 0.98}, ratios(0.5, 2), True)


def test_the_mean_is_of_inference_and_training_together() -> None:
    import gpu_models

    definitions: dict[str, dict[str, float]] = {"a": {"speed": 0.98, "training_speed": 0.98}, "b": {"speed": 0.98}, "c": {}}
    rows = [model_row("a", inductor=1.0), model_row("b", inductor=1.21), model_row("c", inductor=9.0), model_row("c", True, 9.0), model_row("a", True, 1.1)]
    means = gpu_models.means(rows, definitions)
    assert set(means) == set(gpu_models.MODES) and all(abs(mean - 1.1) < 1e-6 for mean in means.values())
    assert gpu_models.missing(rows, definitions) == []
    assert gpu_models.means(rows[1:], definitions) == {} and gpu_models.missing(rows[1:], definitions) == ["a"]
    assert gpu_models.means(rows[:4], definitions) == {} and gpu_models.missing(rows[:4], definitions) == ["a training"]


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """`gpu_models.py` on a GPU that measures what `speeds` says: called with arguments, it gives its exit code, what it printed and its record."""
    import json

    import gpu_models
    import torch

    facts = {"gpu": "a GPU", "commit": "0123456789ab", "torch": torch.__version__}
    speeds: dict[str, float] = {}

    def measure(_: Any, name: str, quick: bool, training: bool) -> dict[str, Any]:
        row = gpu_models.title(name, training)
        if speeds.get(row) == 0:
            raise RuntimeError("no memory")
        missed = gpu_models.slow(gpu_models.torch_models.GPU_MODELS[name], ratios(speeds.get(row, 1.1), 2), training)
        return model_row(name, training, speeds.get(row, 1.1), tuple(missed))

    monkeypatch.setattr(gpu_models, "head", lambda _: dict(facts))
    monkeypatch.setattr(gpu_models, "measure", measure)

    def call(*words: str, to: str = "record.json") -> tuple[int, str, dict[str, Any]]:
        path = tmp_path / to
        code = gpu_models.measured(torch, gpu_models.parsed([*words, "--json", str(path)]))
        return code, capsys.readouterr().out, json.loads(path.read_text()) if path.exists() else {}

    call.facts, call.speeds, call.folder = facts, speeds, tmp_path  # type: ignore[attr-defined]
    return call


def test_rows_of_two_runs_are_one_record_with_a_mean(models: Any) -> None:
    code, out, record = models(to="inference.json")
    assert code == 0 and "6 passed, 0 failed" in out and record["means"] == {}
    assert "the mean is not judged, rows are missing: gpu-gpt2 training, gpu-llama-1b-1x16 training" in out and record["missing"] == ["gpu-gpt2 training", "gpu-llama-1b-1x16 training"]
    before = ("--with", str(models.folder / "inference.json"))
    code, out, record = models("--training", *before)
    assert code == 0 and "10 passed, 0 failed" in out and "geometric mean 1.100 of 7 rows (met" in out and "not judged" not in out
    assert len(record["rows"]) == 8 and set(record["means"]) == {"default", "reduce-overhead"} and record["missing"] == []
    # Several files, and in a file that holds what an earlier one held.
    code, out, _ = models("gpt2", "--training", *before, to="most.json")
    assert code == 0 and "missing: gpu-llama-1b-1x16 training" in out
    code, out, record = models("llama", "--training", "--with", str(models.folder / "most.json"), to="most.json")
    assert code == 0 and len(record["rows"]) == 8 and record["means"]
    models("gpt2", "--training", to="gpt2.json")
    assert "10 passed, 0 failed" in models("llama", "--training", *before, "--with", str(models.folder / "gpt2.json"))[1]


def test_the_mean_of_all_rows_can_be_missed_and_rows_that_fail_are_no_part_of_it(models: Any) -> None:
    models(to="inference.json")
    before = ("--with", str(models.folder / "inference.json"))
    models.speeds |= {"gpu-gpt2 training": 0.98, "gpu-llama-1b-1x16 training": 0.98}
    assert "10 passed, 0 failed" in models("--training", *before)[1]
    # Each row is at its bar, and the mean of those of before is, too.
    models.speeds |= dict.fromkeys(("gpu-resnet18", "gpu-gpt2", "gpu-bert"), 1.05)
    models(to="inference.json")
    code, out, _ = models("--training", *before)
    assert code == 1 and "8 passed, 2 failed" in out and "MISSED: at least 1.05" in out
    models.speeds["gpu-gpt2 training"] = 0.97
    assert "7 passed, 3 failed" in models("--training", *before)[1]
    models.speeds["gpu-gpt2 training"] = 0
    code, out, record = models("--training", *before)
    assert code == 1 and "gpu-gpt2 training: FAIL RuntimeError: no memory" in out and "7 passed, 1 failed" in out and "missing: gpu-gpt2 training" in out and record["missing"]
    # A row that missed its bar before has missed it still.
    models.speeds |= {"gpu-bert": 0.5, "gpu-gpt2 training": 1.1}
    models(to="inference.json")
    code, out, _ = models("--training", *before)
    assert code == 1 and "measured before: gpu-bert: right; MISSED default: 0.500" in out


@pytest.mark.parametrize("key", ["gpu", "commit", "torch"])
def test_rows_of_another_gpu_or_commit_are_refused(models: Any, key: str) -> None:
    models(to="inference.json")
    before = ("--with", str(models.folder / "inference.json"))
    known, models.facts[key] = models.facts[key], "2.11.1" if key == "torch" else "another"
    with pytest.raises(SystemExit, match=f"inference.json is of {key} .*, and this run of .*: its rows are not taken"):
        models("--training", *before, to="no.json")
    assert not (models.folder / "no.json").exists()
    models.facts[key] = known
    assert models("--training", *before)[0] == 0
    # What is not known of both is not the same.
    models.facts[key] = "unknown"
    models(to="inference.json")
    with pytest.raises(SystemExit, match="its rows are not taken"):
        models("--training", *before)


def test_a_row_is_taken_once(models: Any) -> None:
    models(to="inference.json")
    before = ("--with", str(models.folder / "inference.json"))
    with pytest.raises(SystemExit, match="has gpu-bert, which is in what is measured now too"):
        models("bert", *before)
    with pytest.raises(SystemExit, match="has gpu-resnet18, which is in .*inference.json too"):
        models("--training", *before, *before)


def test_models_without_a_bar_for_it_are_not_trained(models: Any) -> None:
    assert [row["name"] for row in models("--training")[2]["rows"]] == ["gpu-gpt2", "gpu-llama-1b-1x16"]
    assert models("resnet18", "--training", to="none.json") == (2, "no model that is trained has `resnet18` in its name\n", {})
    with pytest.raises(SystemExit) as refused:
        models("--fast")
    assert refused.value.code == 2


# ---- first calls -----------------------------------------------------------------------------------------------------


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """`gpu_start.py` with processes that take what `seconds` and `own` say: called with arguments, it gives its exit code, what it printed, its rows and the processes."""
    import json

    import gpu_start
    import torch_door

    seconds = {"oxyfuel": 7.0, "aot_eager_decomp_partition": 6.0, "nothing": 6.8, "nothing-our-key": 6.8, "inductor": 20.0}
    own = {"oxyfuel": 0.5, "inductor": 10.0}

    def in_child(name: str, engine: str, cache: str, training: bool = False) -> dict[str, Any]:
        processes.append((name, engine, training))
        return {"seconds": seconds[engine], "steady": 0.1, "own": own.get(engine, 0.0), "loaded": 0.0, "cache": {"autograd_cache_hit": 1}}

    processes: list[tuple[str, str, bool]] = []
    monkeypatch.setattr(torch_door, "in_child", in_child)
    monkeypatch.setattr(gpu_start, "head", lambda _: {"gpu": "a GPU"})

    def call(*words: str) -> tuple[int, str, list[dict[str, Any]], list[tuple[str, str, bool]]]:
        path = tmp_path / "starts.json"
        processes.clear()
        code = gpu_start.measured(gpu_start.parsed([*words, "--processes", "1", "--json", str(path)]))
        return code, capsys.readouterr().out, json.loads(path.read_text())["rows"] if path.exists() else [], list(processes)

    call.seconds, call.own = seconds, own  # type: ignore[attr-defined]
    return call


@pytest.mark.parametrize("training", [False, True])
def test_each_bar_of_a_first_call_can_be_missed(starts: Any, training: bool) -> None:
    words = ("gpt2", "--training") if training else ("gpt2",)
    code, out, rows, _ = starts(*words)
    assert code == 0 and "2 passed, 0 failed" in out and ("first training call of gpu-gpt2" if training else "first call of gpu-gpt2") in out
    assert [(row["part"], row["training"], set(row["met"])) for row in rows] == [("first", training, {"above", "own_of_inductor"}), ("warm", training, {"above"})]
    for change, missed in (({"aot_eager_decomp_partition": 5.4}, [("above", 0)]), ({"nothing": 6.6}, [("above", 1)])):
        starts.seconds |= change
        code, out, rows, _ = starts(*words)
        assert code == 1 and "1 passed, 1 failed" in out and [(bar, at) for at, row in enumerate(rows) for bar, met in row["met"].items() if not met] == missed
        starts.seconds |= {"aot_eager_decomp_partition": 6.0, "nothing": 6.8}
    starts.own["oxyfuel"] = 1.1
    code, out, rows, _ = starts(*words)
    assert code == 1 and not rows[0]["met"]["own_of_inductor"]


def test_training_steps_are_measured_where_they_have_a_bar(starts: Any) -> None:
    _, _, rows, processes = starts("--training", "--at-once", "1")
    assert [(row["part"], row["name"]) for row in rows] == [(part, name) for part in ("first", "warm") for name in ("gpu-gpt2", "gpu-llama-1b-1x16")]
    assert all(training for _, _, training in processes)
    # The first one reads what all of them need from the machine's disk, and nobody asks what it took.
    engines = [engine for name, engine, _ in processes if name == "gpu-gpt2"]
    assert engines == ["aot_eager_decomp_partition", "oxyfuel", "aot_eager_decomp_partition", "inductor", *["oxyfuel", "nothing"] * 2]
    assert not any(training for _, _, training in starts("gpt2")[3])
    assert starts("resnet18", "--training")[:2] == (2, "no model that is trained has `resnet18` in its name\n")


def test_a_process_is_told_to_train(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch_door

    commands = []

    def run(command: list[str], **_: Any) -> Any:
        commands.append(command[2:])
        return type("Done", (), {"returncode": 0, "stdout": "{}"})

    monkeypatch.setattr(torch_door.subprocess, "run", run)
    torch_door.in_child("m", "nothing", "there")
    torch_door.in_child("m", "nothing", "there", True)
    assert commands == [["m", "nothing"], ["m", "nothing", "--training"]]


@pytest.mark.parametrize("engine", ["nothing", "aot_eager_decomp_partition"])
def test_a_training_step_goes_through_a_backend_that_does_nothing(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    import torch
    import torch_models
    import torch_start

    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    module[0].weight.requires_grad_(False)
    x = torch.randn(2, 4)
    monkeypatch.setattr(torch_models, "build", lambda name, device: (module.eval(), (x,)))
    seen = torch_start.first_call("m", engine, training=True)
    assert seen["seconds"] > 0 and seen["steady"] > 0 and module.training and module[1].p == 0.0
    shapes = [None if p.grad is None else tuple(p.grad.shape) for p in module.parameters()]
    assert shapes == [None, (8,), (3, 8), (3,)]
    torch_start.first_call("m", engine)
    assert torch.is_grad_enabled()


# ---- the host --------------------------------------------------------------------------------------------------------


def test_each_bar_of_the_host_can_be_missed() -> None:
    import gpu_host

    def door(plan: float, apart: float, replay: float, right: bool = True, single: float = 80, single_apart: float = 82) -> list[dict[str, Any]]:
        def row(side: int, asked: dict[str, float]) -> dict[str, Any]:
            # In every second turn all of them take longer, which changes no bar.
            turns = {name: [us, us + 9.0, us] for name, us in asked.items()}
            return {"kernels": 20, "side": side, "right": right, **gpu_host.summed_up(turns, turns)}

        # Each is above the backend of its own row.
        small = row(gpu_host.SIDE, {"ours default": plan, "ours one by one": single, "ours reduce-overhead": replay, "nothing": 20.0})
        return [small, row(gpu_host.LARGE, {"ours default": apart, "ours one by one": single_apart, "ours reduce-overhead": 1e3, "nothing": 22.0})]

    def missed(rows: list[dict[str, float]], torch_door: list[dict[str, Any]]) -> set[str]:
        return {name for name, met in gpu_host.judged(rows, torch_door).items() if not met}

    plans = {"ours": 60.0, "apart": 60.0, "single": 60.0, "apart_single": 60.0}
    rows = [{"kernels": 1, "driver": 4.0}, {"kernels": 20, **plans, "replay": 14.0, "driver": 80.0}]
    good = door(80, 82, 34)
    assert len(gpu_host.judged(rows, good)) == 11 and not missed(rows, good)
    bars = {"ours": "plan", "apart": "plan apart", "single": "plan one by one", "apart_single": "plan apart one by one"}
    assert set(gpu_host.judged(rows, [])) == {*bars.values(), "replay"}
    for key, bar in bars.items():
        assert missed([rows[0], rows[1] | {key: 60.5}], good) == {bar}
    assert missed([rows[0], rows[1] | {"replay": 14.1}], good) == {"replay"}
    doors = {
        "torch plan": door(80.1, 82, 34),
        "torch plan apart": door(80, 82.1, 34),
        "torch plan one by one": door(80, 82, 34, single=80.1),
        "torch plan apart one by one": door(80, 82, 34, single_apart=82.1),
        "torch replay": door(80, 82, 34.1),
        "torch results": door(80, 82, 34, right=False),
    }
    for bar, torch_door in doors.items():
        assert missed(rows, torch_door) == {bar}


def test_the_models_of_the_peers_table_have_their_bars() -> None:
    import json

    models = {m["name"]: m for m in json.loads((ENGINES.parent / "models.json").read_text())["models"] if m["device"] == "gpu"}
    assert {name for name, m in models.items() if m.get("speed", 0) >= 0.98} == set(models) - {"gpu-decoder-40b-1x1-4096"}
    assert {name for name, m in models.items() if m.get("training_speed", 0) >= 0.98} == {"gpu-gpt2", "gpu-llama-1b-1x16"}
    assert models["gpu-decoder-40b-1x1-4096"]["eager"] == 1.0


@pytest.mark.parametrize("script", ["gpu-bench", "gpu_small.py", "gpu_models.py", "gpu_host.py", "gpu_start.py", "gpu_custom.py", "../../tests/gpu/gpu-ops"])
def test_every_record_begins_with_gpu_and_commit(script: str) -> None:
    text = (ENGINES / script).read_text()
    dumps = [line for line in text.splitlines() if "json.dump" in line and "FILE" not in line and "{" in line]
    assert dumps and all("**head(" in line or "**facts" in line or "**serve" in line for line in dumps), dumps


# Programs that stand for those of the archive: each says what it is asked for, and one case ends its process.
LIBTEST = """#!/usr/bin/env python3
import os, sys
names = ["a", "b", "c", "d", "e"]
if "--list" in sys.argv:
    print("\\n".join(f"{name}: test" for name in names))
else:
    wanted = sys.argv[sys.argv.index("--exact") + 1 :]
    assert os.environ.get("OXYFUEL_NEED_GPU") == os.environ.get("WANT_NEED")
    with open(os.environ["LOG"], "a") as log:
        log.writelines(f"{os.path.basename(sys.argv[0])} {name}\\n" for name in wanted)
    print(f"test result: ok. {len(wanted)} passed; 0 failed; 0 ignored")
"""
CASES = """#!/usr/bin/env python3
import os, sys
names = ["one", "two", "two", "crash", "random 39", "random 40", "random 41"]
if sys.argv[1] == "cases":
    print("\\n".join(names))
else:
    for number in (int(word) for word in sys.argv[2:] if not word.startswith("--")):
        print(f"case {number} {names[number]}", flush=True)
        with open(os.environ["LOG"], "a") as log:
            log.write(f"case {number}\\n")
        if names[number] == "crash":
            sys.exit(3)
        print(f"ok {names[number]} (1 ms): ", flush=True)
    print("end")
"""


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A program of the archive as a module."""
    from importlib.machinery import SourceFileLoader
    from importlib.util import module_from_spec, spec_from_loader

    loader = SourceFileLoader(name.replace("-", "_"), str(ENGINES.parents[1] / "tests" / "gpu" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def gpu_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`gpu-test` in an archive of such programs: called with arguments, it gives its exit code and what ran."""
    module = script("gpu-test", monkeypatch)
    for name, text in (("RUNTIME", LIBTEST), ("DOOR", LIBTEST), ("GPU", CASES)):
        program = tmp_path / name.lower()
        program.write_text(text)
        program.chmod(0o755)
        monkeypatch.setattr(module, name, str(program))
    log = tmp_path / "log"
    monkeypatch.setenv("LOG", str(log))
    monkeypatch.setenv("WANT_NEED", "1")

    def call(*args: str) -> tuple[int, list[str]]:
        log.write_text("")
        code = module.main(["--no-torch", *args])
        return code, log.read_text().splitlines()

    call.module = module  # type: ignore[attr-defined]
    return call


def test_shards_are_the_whole_together(gpu_test: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, whole = gpu_test()
    # The case that ends its process fails alone, and those behind it run.
    assert code == 1 and "16 passed, 1 failed" in capsys.readouterr().out and len(whole) == 17
    for shards in (1, 2, 3, 20):
        parts = [gpu_test("--shards", str(shards), "--shard", str(shard))[1] for shard in range(shards)]
        assert sorted(line for some in parts for line in some) == sorted(whole)
        assert max(map(len, parts)) - min(map(len, parts)) <= 3


def test_filters_and_quick_runs_leave_cases_out(gpu_test: Any) -> None:
    assert gpu_test("two") == (0, ["case 1", "case 2"])
    assert gpu_test("random", "--quick") == (0, ["case 4"])
    assert gpu_test("nothing has this name") == (1, [])


@pytest.mark.parametrize("args", [["--shards", "2"], ["--shards", "2", "--shard", "2"], ["--shard", "1"], ["--shards", "0", "--shard", "0"], ["--shards", "2", "--shard", "-1"]])
def test_a_shard_that_is_none_is_refused(gpu_test: Any, args: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        gpu_test(*args)
    assert refused.value.code == 2


def test_a_shard_ends_and_what_it_did_not_reach_has_failed(gpu_test: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_test.module, "SHARD_SECONDS", 0)
    assert gpu_test("--shards", "1", "--shard", "0") == (1, [])
    out = capsys.readouterr().out
    assert "7 cases were not reached" in out and "0 passed, 17 failed" in out


def test_without_torch_its_door_has_failed_and_without_a_gpu_nothing_is_needed(gpu_test: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_test.module.importlib.util, "find_spec", lambda name: None)
    assert gpu_test.module.main(["two"]) == 1 and "no torch here" in capsys.readouterr().out
    monkeypatch.delenv("WANT_NEED")
    assert gpu_test.module.main(["--null", "a"]) in (0, 1)
    assert "FAIL" not in capsys.readouterr().out.replace("FAIL crash", "")


def test_programs_find_the_library_of_products_that_came_with_torch(gpu_test: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site" / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    (folder / "libcublasLt.so.13").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/before")
    searched = gpu_test.module.environment(argparse.Namespace(null=False))["LD_LIBRARY_PATH"].split(os.pathsep)
    assert searched[0] == "/before" and str(folder) in searched


# Stands for the process of a shard: jobs of each kind, one that ends its process, and what is behind it.
SHARD = """
import json, os, sys, time
def say(line):
    print(json.dumps(line), flush=True)
good = {"verdicts": {"agree": 2}, "wrong": [], "skipped": [], "more": {}, "calls": {}}
jobs = {"good": good, "skips": {**good, "verdicts": {"agree": 1, "skip": 1}, "skipped": ["skips #1: eager raises"]}, "crash": None, "raises": {**good, "wrong": ["raises: cannot be judged"]}, "more": {**good, "more": {"aten.sort.default": 1}}, "slow": good}
if "never" in sys.argv:
    time.sleep(60)
jobs = [job for job in jobs.items() if sys.argv[1] in job[0]]
say({"jobs": len(jobs)})
for number, (name, line) in enumerate(jobs):
    if number < int(sys.argv[sys.argv.index("--from-job") + 1]):
        continue
    say({"begins": number, "job": name})
    if name == "crash":
        sys.exit(3)
    if name == "slow":
        time.sleep(float(os.environ["SLOW"]))
    say({"done": number, "job": name, **line})
"""


@pytest.fixture
def gpu_ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`gpu-ops` with such processes."""
    module = script("gpu-ops", monkeypatch)
    program = tmp_path / "shard.py"
    program.write_text(SHARD)
    monkeypatch.setattr(module, "PROGRAM", str(program))
    monkeypatch.setenv("SLOW", "0")
    return module


def test_operators_that_raise_or_lose_their_process_fail_and_skips_are_listed(gpu_ops: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    assert gpu_ops.main(["--shards", "1", "--json", str(tmp_path / "record.json")]) == 1
    out = capsys.readouterr().out
    assert "3 passed, 3 failed" in out and "FAIL raises: cannot be judged" in out and "FAIL crash: the process ended" in out
    assert "skipped skips #1: eager raises" in out and "6 of 6 jobs" in out and "FAIL more: more calls of torch's than on the CPU, {'aten.sort.default': 1} of {}" in out
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["jobs"], record["reached"], record["failed"], record["skipped"]) == (6, 6, 3, ["skips #1: eager raises"])
    assert gpu_ops.main(["good", "--shards", "2"]) == 0
    capsys.readouterr()
    (tmp_path / "shard.py").write_text("raise SystemExit('no torch')")
    assert gpu_ops.main(["--shards", "1"]) == 1
    out = capsys.readouterr().out
    assert "the process of shard 0 ended between jobs (1): no torch" in out and "0 passed, 1 failed" in out


def test_each_operator_of_torch_s_is_compared_by_itself(gpu_ops: Any) -> None:
    # One that is called less makes up for nothing, whatever they are in all.
    assert gpu_ops.rises({"aten.sort.default": 1, "aten.mul.Tensor": 1}, {"aten.mul.Tensor": 4}) == {"aten.sort.default": 1}
    assert gpu_ops.rises({"operator.ge": 2}, {"operator.le": 2}) == {"operator.ge": 2} and gpu_ops.rises({}, {"aten.sort.default": 1}) == {}
    # Which of the objects of a graph it is says nothing, and neither does whether a bias is added by the product.
    assert gpu_ops.rises({"object.1": 2, "aten.mm.default": 3}, {"object.0": 1, "object.2": 1, "aten.addmm.default": 3}) == {}
    # An attention is as many products as it is where none of torch's kernels does it.
    flash, here = "aten._scaled_dot_product_flash_attention{}.default", "aten._scaled_dot_product_flash_attention_for_cpu{}.default"
    assert gpu_ops.rises({flash.format(""): 1, flash.format("_backward"): 1}, {here.format(""): 1, here.format("_backward"): 1}) == {}
    assert gpu_ops.rises({flash.format(""): 1, flash.format("_backward"): 1}, {"aten.bmm.default": 6}) == {}
    assert gpu_ops.rises({"aten.bmm.default": 3}, {here.format(""): 1}) == {"products": 1}
    # Convolutions are not products.
    assert gpu_ops.rises({"aten.convolution.default": 1}, {"aten.mm.default": 1}) == {"aten.convolution.default": 1}


def test_each_sample_is_compared_by_itself(gpu_ops: Any) -> None:
    from types import SimpleNamespace as Fake

    here: list[dict[str, int]] = [{"aten.sort.default": 1}, {}, {"aten.sort.default": 1, "aten.mm.default": 1}, {"aten.topk.default": 1}]
    there: list[dict[str, int] | None] = [{}, {"aten.sort.default": 5}, {"aten.sort.default": 3, "aten.addmm.default": 1}, None]
    samples = [Fake(input=0, args=(), kwargs={}, output_process_fn_grad=None) for _ in here]
    opinfo = Fake(samples=lambda job: (None, samples), case_of=lambda op, sample, index, job: Fake(name="a case", index=index), key=str)
    verdict = Fake(judge=lambda case, door: Fake(verdict="agree", counts=Fake(external=here[case.index])))
    first = Fake(compiled=lambda case, door: None if there[case.index] is None else Fake(external=there[case.index]))
    line = gpu_ops.judged({}, Fake(take_counts=lambda: None), first, opinfo, verdict)
    # The first sample's is not hidden by the third's; where torch has nothing on the CPU, there is nothing to compare with.
    assert line["more"] == {"aten.sort.default": 1} and line["verdicts"] == {"agree": 4} and not line["wrong"]
    assert line["calls"]["cuda"] == {"aten.sort.default": 2, "aten.mm.default": 1} and line["calls"]["cpu"] == {"aten.sort.default": 3, "aten.addmm.default": 1}


def test_operators_that_were_not_reached_have_failed(gpu_ops: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SLOW", "60")
    assert gpu_ops.main(["s", "--shards", "1", "--seconds", "2"]) == 1
    out = capsys.readouterr().out
    # What runs when the time is over was not judged.
    assert "1 of 4 jobs of shard 0 were not reached within 2 s" in out and "1 passed, 3 failed" in out
    # Even where no process came so far as to say how many there are.
    assert gpu_ops.main(["never", "--shards", "1", "--seconds", "1"]) == 1
    out = capsys.readouterr().out
    assert "shard 0 did not begin within 1 s" in out and "0 passed, 1 failed" in out


def test_the_torch_tests_are_listed_without_torch(tmp_path: Path) -> None:
    import shutil
    import subprocess

    for file in (ENGINES.parents[1] / "tests" / "gpu" / "torch-tests.py", Path(__file__).with_name("test_cuda.py")):
        shutil.copy(file, tmp_path)
    done = subprocess.run([sys.executable, "-S", str(tmp_path / "torch-tests.py"), "--list"], capture_output=True, text=True, check=True)
    assert "test_training_steps_are_recorded" in done.stdout.splitlines()


# ---- all records -----------------------------------------------------------------------------------------------------

# Stands for any program of the archive: it says what it was asked for, writes its record, and fails where its name says so.
RECORDED = """
import pathlib, sys
words = sys.argv[1:]
if "--with" in words:
    assert pathlib.Path(words[words.index("--with") + 1]).read_text() == "record"
if "--json" in words:
    pathlib.Path(words[words.index("--json") + 1]).write_text("record")
print("asked for", *words)
failed = "gpu_host" in sys.argv[0]
print("0 passed, 1 failed" if failed else "1 passed, 0 failed")
sys.exit(failed)
"""


@pytest.fixture
def gpu_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`gpu-records` in an archive of such programs, on a machine with a GPU."""
    module = script("gpu-records", monkeypatch)
    (tmp_path / "torch").mkdir()
    for programs in module.PARTS.values():
        for _, words in programs:
            (tmp_path / words[0]).write_text(RECORDED)
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "slug", lambda: "h200")
    return module


def test_all_records_lie_in_one_folder(gpu_records: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "made" / "here"
    assert gpu_records.main(["--to", str(folder)]) == 1
    out = capsys.readouterr().out
    # The one that fails ends no other, and what it wrote is kept.
    programs = sum(map(len, gpu_records.PARTS.values()))
    assert f"{programs - 1} passed, 1 failed" in out and "host: 0 passed, 1 failed" in out
    records = {path.name for path in folder.glob("*.json")}
    wanted = {f"h200-{name}.json" for programs in gpu_records.PARTS.values() for name, words in programs if "{json}" in words} - {"h200-rows.json"} | {"h200.json"}
    assert records == wanted | {"h200-tests.json"} and "h200-training.json" in wanted
    assert "--shard 3" in (folder / "test-3.log").read_text()


def test_parts_are_taken_by_name(gpu_records: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_records.main(["--to", str(tmp_path / "to"), "--parts", "custom,small"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["custom", "small", "2 passed, 0 failed"]
    # Training is judged with the models of the folder.
    assert gpu_records.main(["--to", str(tmp_path / "to"), "--parts", "training"]) == 1
    assert "FileNotFound" in (tmp_path / "to" / "training.log").read_text()
    assert gpu_records.main(["--to", str(tmp_path / "to"), "--parts", "models,training"]) == 0
    with pytest.raises(SystemExit) as refused:
        gpu_records.main(["--parts", "modells"])
    assert refused.value.code == 2 and "there is no part modells; there are tests" in capsys.readouterr().err


def test_what_the_shards_close_with_is_a_record(gpu_records: Any, tmp_path: Path) -> None:
    import json

    folder = tmp_path / "to"
    assert gpu_records.main(["--to", str(folder), "--parts", "tests"]) == 0
    record = json.loads((folder / "h200-tests.json").read_text())
    assert {"gpu", "commit", "driver", "torch", "cuda"} <= set(record)
    assert {key: record[key] for key in ("shards", "passed", "failed", "silent")} == {"shards": 4, "passed": 4, "failed": 0, "silent": []}
    # A shard that fails is counted, and one that ends without a word is a failure that has a name.
    (folder / "test-1.log").write_text("FAIL softmax\n331 passed, 2 failed\n")
    (folder / "test-3.log").write_text("5 passed, 0 failed\nKilled\n")
    assert gpu_records.tally(folder) == {"shards": 4, "passed": 333, "failed": 3, "silent": ["test-3"]}
    (folder / "test-0.log").write_text("")
    assert gpu_records.tally(folder)["silent"] == ["test-0", "test-3"]


def test_without_a_gpu_there_are_no_records(gpu_records: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_records, "slug", lambda: "")
    assert gpu_records.main(["--to", str(tmp_path / "none")]) == 1 and "no GPU" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()
    assert gpu_records.main(["--list"]) == 0 and "proofs: gpu-bench --proofs" in capsys.readouterr().out


def test_programs_of_the_records_are_in_the_archive(gpu_records: Any) -> None:
    table = (ENGINES.parents[1] / "crates" / "xtask" / "src" / "gpu_pack.rs").read_text()
    for programs in gpu_records.PARTS.values():
        for _, words in programs:
            assert f'"{words[0]}"' in table, words[0]
