"""What we fail to compile runs as it is, and says so once."""

from __future__ import annotations

import importlib
import warnings

import oxyfuel.compiled
import pytest
import torch
from oxyfuel import OxyfuelError, OxyfuelWarning

from agree import compiled

# The package's attribute of this name is the function.
door = importlib.import_module("oxyfuel.backend")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OxyfuelError("E0801", "broken on purpose", "mend it")

    monkeypatch.setattr(oxyfuel.compiled, "describe", fail)
    monkeypatch.setattr(door, "_warned", set())


def test_one_warning_names_the_cause(broken: None) -> None:
    f = torch.compile(lambda x: x + 1, backend="oxyfuel")
    g = torch.compile(lambda x: x * 2, backend="oxyfuel")
    x = torch.randn(3)
    with pytest.warns(OxyfuelWarning, match="E0801.*broken on purpose") as seen:
        torch.testing.assert_close(f(x), x + 1)
        torch.testing.assert_close(g(x), x * 2)
    assert len([w for w in seen if issubclass(w.category, OxyfuelWarning)]) == 1


def test_training_falls_back_too(broken: None) -> None:
    model = torch.nn.Linear(3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.compile(model, backend="oxyfuel")(torch.randn(4, 3)).sum().backward()
    assert model.weight.grad is not None


def test_an_option_makes_it_an_error(broken: None) -> None:
    with pytest.raises(Exception, match="broken on purpose"):
        compiled(lambda x: x + 1)(torch.randn(3))


def test_wrong_inputs_after_the_compile_are_errors() -> None:
    graphs = []
    original = oxyfuel.compiled.compile_graph

    def keep(*args: object) -> object:
        graphs.append(original(*args))
        return graphs[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(door, "compile_graph", keep)
        compiled(lambda x: x + 1)(torch.randn(3, 4))
    (graph,) = graphs
    for inputs, code in (
        ([], "E0108"),
        ([torch.randn(4, 3)], "E0101"),
        ([torch.randn(3, 4).double()], "E0102"),
    ):
        with pytest.raises(OxyfuelError) as raised:
            graph(inputs)
        assert raised.value.code == code
    with pytest.raises(Exception):
        graph([None])
    x = torch.randn(4, 3).t()
    torch.testing.assert_close(graph([x])[0], x + 1)


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: object) -> None:
    x = torch.randn(3)
    f = compiled(lambda x: x + 1, options={"cache_dir": "/proc/nowhere"})
    torch.testing.assert_close(f(x), x + 1)


def test_traces_are_written(tmp_path: object) -> None:
    compiled(lambda x: x + 1, options={"trace_dir": str(tmp_path)})(torch.randn(3))
    names = {path.name for path in tmp_path.rglob("*.txt")}
    assert any("plan" in name for name in names), names


def test_verified_kernels() -> None:
    x = torch.randn(5, 7)
    torch.testing.assert_close(compiled(lambda x: (x.sin() + 1).sum(-1), options={"verify": True})(x), (x.sin() + 1).sum(-1))
