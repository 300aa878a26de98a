"""What became of a model can be asked."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Callable

import oxyfuel
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode


def test_kernels_calls_and_reasons() -> None:
    said = oxyfuel.explain(lambda x, w: (x @ w).relu() + 1, torch.randn(4, 8), torch.randn(8, 3))
    (graph,) = said.graphs
    assert graph.role == "inference"
    assert len(graph.kernels) == 1 and graph.kernels[0]["code"] == "machine"
    assert [call["target"] for call in graph.external] == ["aten.mm.default"]
    assert graph.external[0]["reason"]
    assert graph.eager_bytes > graph.kernel_bytes
    text = str(said)
    assert "torch runs aten.mm.default" in text and "compiled in" in text


def test_counts_are_exact() -> None:
    x, w = torch.randn(64, 100), torch.randn(100, 32)
    said = oxyfuel.explain(lambda x, w: ((x + 1) * 2) @ w, x, w)
    (graph,) = said.graphs
    (kernel,) = graph.kernels
    assert (kernel["bytes_read"], kernel["bytes_written"], kernel["flops"]) == (25600, 25600, 12800)
    assert kernel["launches"] == 1 and kernel["flops_per_byte"] == 0.25
    (call,) = graph.external
    assert call["flops"] == 2 * 64 * 100 * 32
    # An addition, a product, and a matrix product, each from memory to memory.
    assert graph.eager_bytes == 4 * 25600 + 25600 + 100 * 32 * 4 + 64 * 32 * 4


def test_a_verdict_says_what_it_is_worth() -> None:
    said = oxyfuel.explain(lambda x: (x.sin() + 1).relu() * 2, torch.randn(1000))
    verdict = said.verdict
    assert verdict is not None
    assert verdict.eager_operators == 4
    assert verdict.compiled_bytes == 8000 and verdict.eager_bytes == 4 * 8000
    assert abs(sum(verdict.shares.values()) - 1) < 1e-6
    assert verdict.bound == max(verdict.shares, key=verdict.shares.get)
    assert abs(verdict.gain - verdict.eager_seconds / verdict.compiled_seconds) < 1e-9
    assert verdict.advice and verdict.assumptions
    data = json.loads(said.to_json())
    assert data["verdict"]["gain"] == verdict.gain and data["graphs"][0]["said"]["figures"]["levels"]
    assert "gain about" in str(said)


def test_what_a_call_costs_is_measured_outside_of_the_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    explain = importlib.import_module("oxyfuel.explain")
    modes = []

    def best(call: Callable[[], object]) -> float:
        modes.append(_get_current_dispatch_mode())
        return 1e-6

    monkeypatch.setattr(explain, "_best", best)
    explain._host.cache_clear()
    try:
        oxyfuel.explain(lambda x: x + 1, torch.randn(4))
    finally:
        explain._host.cache_clear()
    assert modes == [None, None]


def test_what_a_decomposition_made_counts_as_one_operator() -> None:
    x = torch.randn(32, 64, requires_grad=True)
    said = oxyfuel.explain(lambda x: torch.softmax(x, -1), x)
    forward, backward = sorted(said.graphs, key=lambda graph: graph.role, reverse=True)
    assert (forward.verdict["eager_operators"], backward.verdict["eager_operators"]) == (1, 1)
    # Its gradient reads two tensors and writes one.
    assert backward.eager_bytes == 3 * 32 * 64 * 4


def test_attention_and_convolutions_are_counted() -> None:
    q = torch.randn(2, 4, 16, 8)
    said = oxyfuel.explain(nn.functional.scaled_dot_product_attention, q, q, q)
    assert [call["flops"] for graph in said.graphs for call in graph.external] == [2 * 2 * (2 * 4 * 16 * 16 * 8)]
    said = oxyfuel.explain(nn.Conv2d(8, 16, 3, padding=1).eval().requires_grad_(False), torch.randn(2, 8, 10, 10))
    assert [call["flops"] for graph in said.graphs for call in graph.external] == [2 * (2 * 16 * 100) * (8 * 9)]


def test_symbolic_sizes_are_those_of_the_call() -> None:
    said = oxyfuel.explain(lambda x: x.relu() + 1, torch.randn(37, 8), dynamic=True)
    (graph,) = said.graphs
    assert graph.kernels[0]["bytes"] == 2 * 37 * 8 * 4
    assert said.verdict is not None


def test_forward_and_backward() -> None:
    model = nn.Linear(4, 2)
    said = oxyfuel.explain(model, torch.randn(3, 4))
    assert {graph.role for graph in said.graphs} == {"forward", "backward"}


def test_breaks_are_reported() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        print("stop")
        return x * 2

    said = oxyfuel.explain(f, torch.randn(3))
    assert len(said.graphs) == 2
    assert said.breaks


SCALE = 2.0


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x * SCALE).sum(-1)


def test_every_recompile_is_said_with_all_its_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = torch.compile(scaled, backend="oxyfuel")
    fast(torch.randn(3, 4))
    assert oxyfuel.recompiles(fast) == []
    fast(torch.randn(3, 4).double())
    fast(torch.randn(2, 3, 4))
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
    fast(torch.randn(3, 4))
    # One reason for each version that there was.
    wanted = [("dtype mismatch",), ("dtype mismatch", "rank mismatch"), ("rank mismatch", "dtype mismatch", "SCALE")]
    said = oxyfuel.explain(fast, torch.randn(3, 4))
    assert said.recompiles == oxyfuel.recompiles(fast) == oxyfuel.recompiles(scaled)
    assert [len(again.reasons) for again in said.recompiles] == [1, 2, 3]
    for again, reasons in zip(said.recompiles, wanted, strict=True):
        assert again.function == "scaled" and "test_explain.py" in again.place
        assert all(part in reason for part, reason in zip(reasons, again.reasons, strict=True)), again
        assert all(line.strip() in str(said) for reason in again.reasons for line in reason.splitlines())
    assert len(json.loads(said.to_json())["recompiles"]) == 3
    # What an explanation compiles is no version of the program's.
    fast(torch.randn(3, 4).half())
    assert len(oxyfuel.recompiles(fast)) == 4 and len(oxyfuel.recompiles(fast)[-1].reasons) == 4


def test_older_versions_of_torch_chain_what_they_compiled() -> None:
    class Entry:
        def __init__(self, next: object) -> None:
            self.next = next

    second = Entry(None)
    first = Entry(second)
    assert oxyfuel._torch._versions(first) == [first, second] == oxyfuel._torch._versions([first, second])


def test_reasons_that_cannot_be_read_break_no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(entries: object) -> list[object]:
        raise TypeError("another form")

    monkeypatch.setattr(oxyfuel._torch, "_versions", unreadable)
    fast = torch.compile(lambda x: x + 1, backend="oxyfuel", dynamic=False)
    for x in (torch.ones(2), torch.ones(2, 2)):
        torch.testing.assert_close(fast(x), x + 1)


def test_recompiles_of_a_module_and_of_what_comes_after_a_cut() -> None:
    class Cut(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + 1
            torch._dynamo.graph_break()
            return x * 2

    fast = torch.compile(Cut(), backend="oxyfuel", dynamic=False)
    for size in (3, 4):
        fast(torch.randn(size))
    again = oxyfuel.recompiles(fast)
    assert len(again) == 2 and all("size mismatch" in item.reasons[0] for item in again), again
    assert sum("resume" in item.function for item in again) == 1


def test_recompiles_in_the_very_call_are_said() -> None:
    def part(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x * 2

    def f(x: torch.Tensor) -> torch.Tensor:
        return part(x).sum() + part(x.double()).sum()

    said = oxyfuel.explain(f, torch.randn(3))
    assert any(again.function != "f" and "dtype mismatch" in again.reasons[0] for again in said.recompiles), said


def test_what_does_not_compile_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    import oxyfuel.compiled

    def fail(*args: object) -> None:
        raise oxyfuel.OxyfuelError("E0801", "broken on purpose")

    monkeypatch.setattr(oxyfuel.compiled, "describe", fail)
    with pytest.warns(oxyfuel.OxyfuelWarning):
        said = oxyfuel.explain(lambda x: x + 1, torch.randn(3))
    assert "broken on purpose" in str(said)


def test_logging_is_the_standard_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="oxyfuel"):
        torch.compile(lambda x: x + 2, backend="oxyfuel")(torch.randn(3))
    assert any("compiled in" in record.getMessage() for record in caplog.records)


def test_profiles_name_the_graph() -> None:
    fast = torch.compile(lambda x: x * 3, backend="oxyfuel")
    x = torch.randn(3)
    fast(x)
    with torch.profiler.profile() as profile:
        fast(x)
    assert any(event.key == "oxyfuel::inference" for event in profile.key_averages())
