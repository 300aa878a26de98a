"""Calls past AOTAutograd's wrappers do what calls through them do."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
import torch

import oxyfuel
from oxyfuel import _torch
from oxyfuel.detours import without_detours

from agree import compiled


@pytest.fixture
def callables(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What the backend handed to Dynamo."""
    made: list[tuple[Any, Any]] = []

    def seen(forward: Any) -> Any:
        made.append((forward, without_detours(forward)))
        return made[-1][1]

    monkeypatch.setattr(sys.modules["oxyfuel.backend"], "without_detours", seen)
    return made


def test_an_inference_graph_is_called_past_them(callables: list[tuple[Any, Any]]) -> None:
    f = compiled(lambda x: torch.relu(x) * 2)
    x = torch.randn(8)
    for _ in range(3):
        torch.testing.assert_close(f(x), torch.relu(x) * 2)
    ((forward, call),) = callables
    if _torch.VERSION < (2, 15):
        # Their parts are others there.
        assert call is forward
    else:
        assert call is not forward


def test_a_training_graph_keeps_them(callables: list[tuple[Any, Any]]) -> None:
    f = compiled(lambda x: torch.relu(x) * 2)
    x = torch.randn(8, requires_grad=True)
    for _ in range(3):
        f(x).sum().backward()
    assert x.grad is not None
    assert all(call is forward for forward, call in callables)


def test_unknown_parts_keep_the_callable() -> None:
    def forward(*args: Any) -> Any:
        return args

    assert without_detours(forward) is forward

    class Callable:
        pass

    other = Callable()
    assert without_detours(other) is other


def test_results_that_are_views_of_inputs() -> None:
    f = compiled(lambda x: (x.view(2, 4), x + 1))
    x = torch.randn(8)
    for _ in range(3):
        view, new = f(x)
        assert view.data_ptr() == x.data_ptr() and view._base is x
        torch.testing.assert_close(new, x + 1)


def test_writes_are_counted() -> None:
    def update(x: torch.Tensor, y: torch.Tensor) -> None:
        x.add_(y)

    f = compiled(update)
    x, y = torch.zeros(8), torch.ones(8)
    for call in range(1, 4):
        version = x._version
        f(x, y)
        assert x._version > version
        assert torch.equal(x, torch.full((8,), float(call)))


def test_a_write_to_what_a_gradient_needs_is_noticed() -> None:
    def update(x: torch.Tensor) -> None:
        x.mul_(2)

    f = compiled(update)
    f(torch.ones(8))
    x, w = torch.ones(8), torch.ones(8, requires_grad=True)
    loss = (x * w).sum()
    f(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_modes_of_torch_are_left_as_they_were() -> None:
    w = torch.randn(8, 8)
    f = compiled(lambda x: x @ w)
    x = torch.randn(8, 8)
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            before = torch.is_grad_enabled()
            for _ in range(3):
                assert not f(x).requires_grad
                assert torch.is_grad_enabled() == before
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            assert f(x).dtype == torch.bfloat16
            assert torch.is_autocast_enabled("cpu")


def test_an_error_leaves_the_modes_too() -> None:
    calls = 0

    def second_fails(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ValueError("the second call")
        return x + 1

    with torch.library._scoped_library("oxyfuel_test_detours", "FRAGMENT") as library:
        library.define("fails(Tensor x) -> Tensor")
        library.impl("fails", second_fails, "CompositeExplicitAutograd")
        torch.library.register_fake("oxyfuel_test_detours::fails", torch.empty_like, lib=library)
        f = compiled(lambda x: torch.ops.oxyfuel_test_detours.fails(x) * 2)
        x = torch.randn(8)
        f(x)
        with pytest.raises(ValueError, match="the second call"):
            f(x)
        assert torch.is_grad_enabled()
        torch.testing.assert_close(f(x), (x + 1) * 2)


def test_results_of_symbolic_sizes() -> None:
    f = compiled(lambda x: torch.relu(x) + 1, dynamic=True)
    for n in (8, 9, 8, 17):
        x = torch.randn(n)
        torch.testing.assert_close(f(x), torch.relu(x) + 1)


def test_the_first_call_still_looks_at_operators_of_users() -> None:
    """A result that is an argument, which such an operator may not return: whatever torch says about it in its own backend, it says here."""

    def messages(backend: str) -> list[str]:
        torch._dynamo.reset()
        f = torch.compile(lambda x: torch.ops.oxyfuel_test_detours.same(x) + 1, backend=backend, fullgraph=True)
        said = []
        for _ in range(3):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                try:
                    f(torch.randn(8))
                except RuntimeError as error:
                    said.append(str(error))
            said += [str(warning.message) for warning in seen if "alias" in str(warning.message)]
        return said

    with torch.library._scoped_library("oxyfuel_test_detours", "FRAGMENT") as library:
        library.define("same(Tensor x) -> Tensor")
        library.impl("same", lambda x: x, "CompositeExplicitAutograd")
        torch.library.register_fake("oxyfuel_test_detours::same", torch.empty_like, lib=library)
        assert messages("oxyfuel") == messages("aot_eager") != []


def test_profilers_see_every_call() -> None:
    f = compiled(lambda x: torch.relu(x) * 2)
    x = torch.randn(4096)
    for _ in range(2):
        f(x)
    with oxyfuel.profile() as seen:
        f(x)
        f(x)
    assert "relu" in str(seen)
    with torch.profiler.profile() as profile:
        f(x)
    assert any("oxyfuel::" in event.key for event in profile.key_averages())
