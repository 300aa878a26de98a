"""Training: forward and backward agree with eager, parameters move the same way."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import oxyfuel
import pytest
import torch
from torch import nn
from torch._guards import TracingContext
from torch.utils.checkpoint import checkpoint

from agree import agree, compiled


def step(model: nn.Module, run: Any, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    loss = run(x).square().mean()
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters()]


def both(model: nn.Module, x: torch.Tensor, **kwargs: Any) -> None:
    other = copy.deepcopy(model)
    agree(step(model, compiled(model, **kwargs), x), step(other, other, x))


def test_a_step() -> None:
    both(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)), torch.randn(6, 8))


def test_a_convolution() -> None:
    both(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()), torch.randn(2, 3, 10, 10))


def test_channels_last() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).to(memory_format=torch.channels_last)
    both(model, torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last))


def test_gradients_of_inputs() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.sin() * y).cumsum(0).softmax(-1)

    x, y = torch.randn(4, 5, requires_grad=True), torch.randn(5, requires_grad=True)
    grad = torch.randn(4, 5)
    found = torch.autograd.grad(compiled(f)(x, y), (x, y), grad)
    agree(found, torch.autograd.grad(f(x, y), (x, y), grad))


def test_gradients_with_other_strides_than_traced() -> None:
    f = compiled(lambda x: x * x)
    x = torch.randn(4, 5, requires_grad=True)
    for grad in (torch.randn(4, 5), torch.randn(5, 4).t(), torch.ones(()).expand(4, 5)):
        (found,) = torch.autograd.grad(f(x), x, grad)
        torch.testing.assert_close(found, 2 * x.detach() * grad)


def test_three_steps_with_an_optimiser() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    other = copy.deepcopy(model)
    fast = compiled(model)
    x = torch.randn(16, 4)
    for net, run in ((model, fast), (other, other)):
        optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
        for _ in range(3):
            optimiser.zero_grad()
            run(x).square().mean().backward()
            optimiser.step()
    agree(list(model.parameters()), list(other.parameters()))


def test_activation_checkpointing() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False) + x

    both(Block(), torch.randn(3, 8))


def test_dropout_is_eager_s_under_fallback_random() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.3))
    other = copy.deepcopy(model)
    fast = compiled(model, options={"fallback_random": True})
    x = torch.randn(4, 8)
    torch.manual_seed(7)
    mine = step(model, fast, x)
    torch.manual_seed(7)
    agree(mine, step(other, other, x))


def test_dropout_is_repeatable_and_of_its_rate() -> None:
    f = compiled(lambda x: nn.functional.dropout(x, 0.25))
    x = torch.ones(10_000)
    torch.manual_seed(3)
    a = f(x)
    torch.manual_seed(3)
    assert torch.equal(a, f(x))
    assert not torch.equal(a, f(x))
    assert abs((a == 0).float().mean().item() - 0.25) < 0.02
    torch.testing.assert_close(a.max().item(), 1 / 0.75)


@pytest.mark.parametrize("retain", [False, True])
def test_a_graph_that_is_kept(retain: bool) -> None:
    f = compiled(lambda x: (x.cumsum(0).exp() * x).sum())
    x = torch.randn(3, requires_grad=True)
    y = f(x)
    y.backward(retain_graph=retain)
    if retain:
        first = x.grad.clone()
        y.backward()
        torch.testing.assert_close(x.grad, 2 * first)


@pytest.mark.parametrize("fallback_random", [False, True])
def test_a_checkpoint_drops_again_what_it_dropped(fallback_random: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: nn.functional.dropout(x * 2, 0.5), x, use_reentrant=False, preserve_rng_state=True)

    x = torch.ones(1000, requires_grad=True)
    y = torch.compile(f, backend="oxyfuel", options={"fallback": "error", "fallback_random": fallback_random})(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert 0 < y.count_nonzero() < 1000


def test_strides_of_the_forward_are_reported_before_the_backward_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Any] = []
    events: list[tuple[str, list[Any]]] = []
    theirs = TracingContext.report_output_strides
    ours = oxyfuel.backend.__globals__["compile_graph"]

    @contextlib.contextmanager
    def report() -> Iterator[Any]:
        with theirs() as strides:
            reported.append(strides)
            yield strides

    def spied(gm: Any, options: Any, role: str) -> Any:
        code = ours(gm, options, role)
        events.append((role, [list(strides or ()) for strides in reported]))
        run = code.run

        def seen(inputs: list[Any]) -> Any:
            results = run(inputs)
            events.append((f"{role} ran", [tuple(r.stride()) if isinstance(r, torch.Tensor) else None for r in results]))
            return results

        seen.notes = run.notes  # type: ignore[attr-defined]
        code.run = seen
        return code

    monkeypatch.setattr(TracingContext, "report_output_strides", staticmethod(report))
    monkeypatch.setitem(oxyfuel.backend.__globals__, "compile_graph", spied)
    # Results and what is kept for the backward, not all of them row-major.
    x = torch.randn(4, 5, requires_grad=True)
    y = compiled(lambda x: (x.t() * 2).sin().exp() * x.t().cos())(x)
    y.sum().backward()
    assert [name for name, _ in events] == ["forward", "backward", "forward ran", "backward ran"]
    (known,) = events[1][1]
    assert known and [None if strides is None else tuple(strides) for strides in known] == events[2][1]
    assert (1, 5) in known
