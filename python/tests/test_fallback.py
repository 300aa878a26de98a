"""What we fail to compile runs as it is, and says so once."""

from __future__ import annotations

import importlib
import os
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import oxyfuel
import oxyfuel.compiled
import pytest
import torch
from oxyfuel import Options, OxyfuelError, OxyfuelWarning, _native

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


def graph_of(f: Callable[..., torch.Tensor], *args: torch.Tensor) -> Any:
    """The one graph that a function is compiled to."""
    graphs = []
    original = oxyfuel.compiled.compile_graph

    def keep(*args: object) -> object:
        graphs.append(original(*args))
        return graphs[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(door, "compile_graph", keep)
        compiled(f)(*args)
    (graph,) = graphs
    return graph


def test_wrong_inputs_after_the_compile_are_errors() -> None:
    graph = graph_of(lambda x: x + 1, torch.randn(3, 4))
    for inputs, code in (
        ([], "E0108"),
        ([torch.randn(4, 3)], "E0101"),
        ([torch.randn(3, 4).double()], "E0102"),
        ([None], "E0109"),
        ([3.5], "E0109"),
    ):
        with pytest.raises(OxyfuelError) as raised:
            graph(inputs)
        assert raised.value.code == code
    x = torch.randn(4, 3).t()
    torch.testing.assert_close(graph([x])[0], x + 1)


@pytest.mark.parametrize("option, code", [("cache_dir", "E0502"), ("trace_dir", "E0507")])
def test_a_folder_that_cannot_be_written_costs_one_warning(option: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_warned", set())
    options = {option: "/proc/nowhere"}
    x = torch.randn(3)
    with pytest.warns(OxyfuelWarning) as seen:
        torch.testing.assert_close(compiled(lambda x: x + 1, options=options)(x), x + 1)
        torch.testing.assert_close(compiled(lambda x: x * 2, options=options)(x), x * 2)
    (warning,) = [str(w.message) for w in seen if issubclass(w.category, OxyfuelWarning)]
    for part in (f"`{option}`", "/proc/nowhere", f"error[{code}]", "No such file or directory", "help: "):
        assert part in warning, warning
    # Another folder is another warning, and the same one is told by every explanation.
    with pytest.warns(OxyfuelWarning, match="elsewhere"):
        compiled(lambda x: x - 1, options={option: "/proc/elsewhere"})(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OxyfuelWarning)
        said = oxyfuel.explain(lambda x: x + 1, x, options=options)
    (note,) = said.graphs[0].said["notes"]
    assert code in note and "/proc/nowhere" in note and f"note: error[{code}]" in str(said)


def test_a_cache_of_torch_s_that_cannot_be_written_costs_nothing_but_time() -> None:
    program = (
        "import torch\n"
        "model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU())\n"
        "x = torch.randn(2, 3)\n"
        "y = torch.compile(model, backend='oxyfuel', options={'fallback': 'error'})(x)\n"
        "y.sum().backward()\n"
        "torch.testing.assert_close(y, model(x))\n"
        "assert model[0].weight.grad is not None\n"
    )
    # A folder that is there, and in which nobody can make another.
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": "/proc/self"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "AOTAutograd cache unable to write compiled graph" in done.stderr and "/proc/" in done.stderr, done.stderr


def test_traces_are_written(tmp_path: object) -> None:
    compiled(lambda x: x + 1, options={"trace_dir": str(tmp_path)})(torch.randn(3))
    names = {path.name for path in tmp_path.rglob("*.txt")}
    assert any("plan" in name for name in names), names


def test_verify_catches_code_that_is_wrong() -> None:
    x = torch.ones(37)
    plan = graph_of(lambda x: x * 3.140625 + 1, x).run.serialize()
    # The constant in the machine code; the program that the interpreter runs is text.
    good, bad = struct.pack("<f", 3.140625), struct.pack("<f", 2.5)
    assert good in plan
    for verify, bytes, result in ((True, plan, 4.140625), (False, plan.replace(good, bad), 3.5)):
        graph = _native.load(bytes, Options(verify=verify).native([], 1), [])
        assert torch.equal(graph([x])[0], torch.full_like(x, result))
    wrong = _native.load(plan.replace(good, bad), Options(verify=True).native([], 1), [])
    with pytest.raises(OxyfuelError, match="kernel") as raised:
        wrong([x])
    assert raised.value.code == "E0803"


def test_verified_kernels() -> None:
    x = torch.randn(5, 7)
    torch.testing.assert_close(compiled(lambda x: (x.sin() + 1).sum(-1), options={"verify": True})(x), (x.sin() + 1).sum(-1))
