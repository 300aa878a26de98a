"""The scripts for machines with a GPU judge what they measured, without one: every bar can be missed, and a record says its GPU and its commit."""

from __future__ import annotations

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
