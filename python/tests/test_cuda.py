"""CUDA tensors: torch's own operators run them, inside of our plan and with all that belongs to a plan."""

from __future__ import annotations

import copy
from typing import Any

import oxyfuel
import pytest
import torch
from torch import nn

from agree import agree, compiled

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_arithmetic() -> None:
    x = torch.randn(64, 33, device="cuda")
    f = lambda x: ((x + 1).relu() * x).sum(-1)  # noqa: E731
    close(compiled(f)(x), f(x))
    (graph,) = oxyfuel.explain(f, x, options={"fallback": "error"}).graphs
    assert graph.cause is None and graph.external and not graph.kernels


def test_batch_normalisation_in_training() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).cuda()
    other = copy.deepcopy(model)
    fast = compiled(model)
    for _ in range(3):
        x = torch.randn(4, 3, 8, 8, device="cuda")
        for net, run in ((model, fast), (other, other)):
            net.zero_grad()
            run(x).square().mean().backward()
        close([p.grad for p in model.parameters()], [p.grad for p in other.parameters()])
        close(list(model.buffers()), list(other.buffers()))


def test_a_buffer_that_is_written() -> None:
    def f(state: torch.Tensor, x: torch.Tensor) -> Any:
        before = state * 2
        state.mul_(0.5).add_(x)
        part = state[1:]
        part.relu_()
        return before, state, part.sum()

    mine, theirs = (torch.ones(4, 3, device="cuda") for _ in range(2))
    fast = compiled(f)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 3, device="cuda")
            got = fast(mine, x)
            close(got, f(theirs, x))
            assert got[1] is mine
            close(mine, theirs)


def test_on_both_sides() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = (x + 1).relu() * 2
        y.copy_(z)
        x.copy_(y * 3)
        return z, y + 1

    (x, a), (y, b) = ((torch.ones(5), torch.zeros(5, device="cuda")) for _ in range(2))
    with torch.no_grad():
        close(compiled(f)(x, a), f(y, b))
    close([x, a], [y, b])


def test_sizes_that_change_and_sizes_that_depend_on_data() -> None:
    def f(x: torch.Tensor) -> Any:
        found = torch.masked_select(x, x > 0)
        return found * 2, found.shape[0], x.sum(0)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        fast = compiled(f, fullgraph=True, dynamic=True)
        for size in (3, 7):
            x = torch.randn(size, 4, device="cuda")
            got, want = fast(x), f(x)
            close(got[0], want[0])
            assert got[1] == want[1]


def test_dropout_draws_eager_s_numbers_when_asked() -> None:
    x = torch.ones(1000, device="cuda")
    fast = compiled(lambda x: nn.functional.dropout(x, 0.5), options={"fallback_random": True})
    torch.manual_seed(3)
    got = fast(x)
    torch.manual_seed(3)
    agree(got, nn.functional.dropout(x, 0.5))
