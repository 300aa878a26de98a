"""Writes that are no mutations of ours are calls of torch's inside of the plan, in order with whatever touches the same memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import oxyfuel
import pytest
import torch
from oxyfuel.compiled import compile_graph
from oxyfuel.options import Options
from torch.fx.experimental.proxy_tensor import make_fx

from agree import Run, agree, compiled, copy_inputs, problems


def written_the_same(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Compiled for good, twice: results, inputs and who shares memory with whom."""
    fast = compiled(function)
    for _ in range(2):
        mine, theirs = copy_inputs(inputs), copy_inputs(inputs)
        with torch.no_grad():
            got, want = Run(fast(*mine), mine), Run(function(*theirs), theirs)
        assert not problems(got, want)


def test_complex_numbers_in_place() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        before = torch.view_as_real(x) * 2
        x.mul_(2j).add_(y)
        y.mul_(x.abs())
        return before, x, x.imag + 1, y.sum()

    written_the_same(f, torch.randn(4, 3, dtype=torch.complex64), torch.randn(4, 3))
    written_the_same(f, torch.randn(3, 4, dtype=torch.complex128).t(), torch.randn(8, 6, dtype=torch.float64)[::2, ::2])


def test_the_write_is_a_call_in_the_plan_and_the_rest_are_kernels() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2j)
        return (y + 1).relu() * 2

    (graph,) = oxyfuel.explain(f, torch.randn(4, dtype=torch.complex64), torch.randn(5), options={"fallback": "error"}).graphs
    assert graph.cause is None
    assert [call["target"] for call in graph.external][-1] == "aten.copy_.default"
    assert {"add", "relu", "mul"} <= {op for kernel in graph.kernels for op in kernel["ops"]}


def test_complex_numbers_over_real_ones() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.copy_((y * 2j).real)
        return x + 1

    written_the_same(f, torch.randn(4), torch.randn(4, dtype=torch.complex64))


def test_four_bit_floats_in_place() -> None:
    def flip(x: torch.Tensor) -> torch.Tensor:
        x.view(torch.uint8).bitwise_xor_(3)
        return x

    def move(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.copy_(y)

    def codes(start: int) -> torch.Tensor:
        return torch.arange(start, start + 8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)

    for function, starts in (flip, [0]), (move, [0, 100]):
        mine, theirs = ([codes(start) for start in starts] for _ in range(2))
        assert compiled(function)(*mine) is mine[0]
        function(*theirs)
        assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bit_floats_in_place(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.copy_(x.float() * 2 + y)
        return x.float() + 1

    written_the_same(f, torch.randn(4, 6).to(dtype), torch.randn(4, 6))


def test_complex_numbers_in_place_in_training() -> None:
    class Phase(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))
            self.register_buffer("seen", torch.zeros(3, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.seen.mul_(0.5).add_(x.mean(0) * 1j)
            return x * self.weight + self.seen.imag

    mine, theirs = Phase(), Phase()
    fast = compiled(mine)
    for _ in range(3):
        x = torch.randn(4, 3)
        results = []
        for model, run in ((mine, fast), (theirs, theirs)):
            loss = run(x).square().sum()
            loss.backward()
            results.append((loss.detach(), model.weight.grad.clone(), model.seen.clone()))
        agree(*results)


# ---- graphs that AOTAutograd does not make: whatever writes, the plan is what the graph says -----------------------------------------------


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*inputs)


def check_graph(function: Callable[..., list[torch.Tensor]], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    gm = traced(function, *copy_inputs(inputs))
    code = compile_graph(gm, Options(fallback="error"), "inference")
    mine, theirs = list(copy_inputs(inputs)), list(copy_inputs(inputs))
    got, want = list(code(list(mine))), function(*theirs)
    found = problems(Run(got, mine), Run(want, theirs))
    assert not found, "\n".join([*found, gm.code])
    return gm


def views_after(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    part = x[1:]
    x.add_(1)
    return [part * 2 + x.sum(), part]


def twice(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    x.copy_(y)
    x.copy_(x * 2 + y)
    return [x.sum(0), x]


def read_after(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    x.copy_(y + 1)
    y.copy_(x * 2)
    return [x + y]


def one_into_the_other(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    x.copy_(y + 1)
    y.copy_(x)
    return [y.relu()]


def of_the_graph_s_own(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    z = x * 2
    z.view(-1)[::2].add_(1)
    w = (y + 1).relu()
    return [z + w, w]


def into_a_list(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    a, b = x * 2, y.clone()
    torch._foreach_add_([a, b], 1.0)
    return [a + b]


HAND_MADE = [views_after, twice, read_after, one_into_the_other, of_the_graph_s_own, into_a_list]


@pytest.mark.parametrize("function", HAND_MADE, ids=lambda function: function.__name__)
def test_writes_in_the_middle(function: Callable[..., list[torch.Tensor]]) -> None:
    check_graph(function, torch.randn(6, 4), torch.randn(6, 4))
    check_graph(function, torch.randn(7, 8)[1:, ::2], torch.randn(6, 4))
    # Not where vectors begin.
    check_graph(function, torch.randn(25)[1:].view(6, 4), torch.randn(6, 4))


def program(seed: int) -> Callable[..., list[torch.Tensor]]:
    """Views, pure operators and writes in any order, over values of one shape."""

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        pick = random.Random(seed)
        values = list(inputs)
        for _ in range(10):
            x, y = pick.choice(values), pick.choice([value for value in values if value.shape == (4, 4)])
            match pick.randrange(7):
                case 0:
                    values.append(x + y[: len(x)])
                case 1:
                    values.append((x * 0.5).sin())
                case 2:
                    values.append(x[:2])
                case 3 if x.shape == (4, 4):
                    values.append(x.t())
                case 3:
                    values.append(x.flip(0))
                case 4:
                    x.mul_(0.5)
                case 5:
                    x[:, 1:3].add_(y[: len(x), :2].clone())
                case _:
                    x.copy_(y[: len(x)] + 1)
        return [value.sum(1) for value in values] + [values[-1].clone()]

    return run


@pytest.mark.parametrize("seed", range(40))
def test_any_program_that_writes(seed: int) -> None:
    torch.manual_seed(seed)
    check_graph(program(seed), torch.randn(4, 4), torch.randn(4, 4))
