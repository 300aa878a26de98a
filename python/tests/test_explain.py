"""What became of a model can be asked."""

from __future__ import annotations

import logging

import oxyfuel
import pytest
import torch
from torch import nn


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
