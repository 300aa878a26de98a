"""Sizes that change: one plan for a graph with symbols, and no more compiles than Dynamo asks for."""

from __future__ import annotations

import random
from typing import Any

import oxyfuel
import pytest
import torch
from oxyfuel import backend

from agree import agree, compiled


class Counter:
    """The backend, counting."""

    def __init__(self) -> None:
        self.compiles = 0

    def __call__(self, gm: Any, inputs: Any, **kwargs: Any) -> Any:
        self.compiles += 1
        return backend(gm, inputs, options={"fallback": "error"})


def net(x: torch.Tensor) -> torch.Tensor:
    return ((x + 1).relu() * x).sum(-1) + x.mean()


@pytest.mark.parametrize("order", ["up", "down", "mixed"])
def test_a_sweep_of_batch_sizes_compiles_twice(order: str) -> None:
    sizes = list(range(2, 66))
    sizes = {"up": sizes, "down": sizes[::-1], "mixed": sizes[::2] + sizes[1::2]}[order]
    counter = Counter()
    f = torch.compile(net, backend=counter)
    for size in sizes:
        x = torch.randn(size, 8)
        agree(f(x), net(x))
    assert counter.compiles <= 2
    f(torch.randn(1, 8))
    assert counter.compiles <= 3


@pytest.mark.parametrize("seed", range(4))
def test_a_sweep_in_any_order(seed: int) -> None:
    sizes = list(range(2, 66))
    random.Random(seed).shuffle(sizes)
    assert compiles(sizes) <= 2


# Where the size 1 stands among the others.
@pytest.mark.parametrize("place", [0, 1, 2, 31, 64])
@pytest.mark.parametrize("seed", range(3))
def test_a_sweep_with_size_one_anywhere(place: int, seed: int) -> None:
    sizes = list(range(2, 66))
    if seed:
        random.Random(seed).shuffle(sizes)
    sizes.insert(place, 1)
    # Once more at the end: nothing of it was lost.
    assert compiles([*sizes, 1, *sizes[:4]]) <= 3


def compiles(sizes: list[int]) -> int:
    """How often a sweep compiles; all of it agrees with eager."""
    counter = Counter()
    f = torch.compile(net, backend=counter)
    for size in sizes:
        x = torch.randn(size, 8)
        agree(f(x), net(x))
    return counter.compiles


def test_dynamic_from_the_start() -> None:
    counter = Counter()
    f = torch.compile(net, backend=counter, dynamic=True)
    for size in (4, 9, 2):
        x = torch.randn(size, size + 3)
        agree(f(x), net(x))
    assert counter.compiles == 1


def test_marked_dims() -> None:
    counter = Counter()
    f = torch.compile(net, backend=counter)
    for size in (5, 6, 7):
        x = torch.randn(size, 8)
        torch._dynamo.mark_dynamic(x, 0)
        agree(f(x), net(x))
    assert counter.compiles == 1


def test_static_sizes_compile_each() -> None:
    counter = Counter()
    f = torch.compile(net, backend=counter, dynamic=False)
    for size in (3, 4, 5):
        x = torch.randn(size, 8)
        agree(f(x), net(x))
    assert counter.compiles == 3


def test_symbolic_training() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    f = compiled(model, dynamic=True)
    for size in (3, 5):
        x = torch.randn(size, 4)
        model.zero_grad()
        f(x).sum().backward()
        found = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).sum().backward()
        agree(found, [p.grad for p in model.parameters()])


def test_sizes_in_the_results() -> None:
    def f(x: torch.Tensor) -> Any:
        n = x.shape[0]
        return x.reshape(-1), n * 2, torch.zeros(n // 2 + 1), torch.arange(n)

    g = compiled(f, dynamic=True)
    for size in (3, 4, 8):
        x = torch.randn(size, 3)
        agree(g(x), f(x))


def test_a_size_that_no_text_says() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(int(x.shape[0] * 1.5)) + 1

    g = compiled(f, dynamic=True)
    for size in (3, 4, 8):
        agree(g(torch.randn(size)), f(torch.randn(size)))


def test_sizes_that_depend_on_data() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.nonzero() * 2).sum(0) + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        g = compiled(f, fullgraph=True)
        for seed in range(4):
            torch.manual_seed(seed)
            x = torch.randn(6) > 0
            agree(g(x), f(x))
        # Only what tells the size is torch's: what comes after it is a kernel.
        (graph,) = oxyfuel.explain(f, torch.randn(6) > 0).graphs
    assert [call["target"] for call in graph.external if "nonzero" in call["target"]] == ["aten.nonzero.default"]
    assert not [call for call in graph.external if call["target"].startswith(("aten.mul", "aten.sum", "aten.add"))], graph.external
    ops = {op for kernel in graph.kernels for op in kernel["ops"]}
    assert {"mul", "sum", "add"} <= ops, ops
    assert all(kernel["code"] == "machine" for kernel in graph.kernels)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32])
def test_sizes_that_depend_on_data_of_what_is_no_tensor_of_ours(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, where: torch.Tensor) -> Any:
        found = torch.masked_select(x, where) * 2
        return found, torch.ones(found.shape[0]) + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        g = compiled(f, fullgraph=True)
        for count in (0, 3, 5):
            x = torch.randn(6, dtype=dtype)
            agree(g(x, torch.arange(6) < count), f(x, torch.arange(6) < count))


def test_numbers_that_depend_on_data() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n = int(x.max().item())
        torch._check(n >= 0)
        torch._check(n < 100)
        return torch.ones(n) * 2

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        g = compiled(f, fullgraph=True)
        for n in (3, 7):
            x = torch.tensor([1, n])
            agree(g(x), f(x))


def test_a_number_out_of_a_tensor_may_be_negative() -> None:
    def f(x, n):
        k = n.item()
        return x + k, x * (k + 1), torch.full((3,), k)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        ours = torch.compile(f, backend="oxyfuel", fullgraph=True, options={"fallback": "error"})
        for number in (-5, 3):
            x, n = torch.arange(4.0), torch.tensor(number)
            assert all(torch.equal(a, b) for a, b in zip(ours(x, n), f(x, n)))


def test_a_truth_out_of_a_tensor_is_a_truth() -> None:
    def f(x):
        return x.item()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        ours = torch.compile(f, backend="oxyfuel", fullgraph=True, options={"fallback": "error"})
        for truth in (True, False):
            assert ours(torch.tensor(truth)) is truth


def test_parts_whose_sizes_are_data() -> None:
    def f(x, where):
        return [part + 1 for part in torch.tensor_split(x, where)]

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        ours = torch.compile(f, backend="oxyfuel", fullgraph=True, options={"fallback": "error"})
        for where in ([2, 5], [0, 9]):
            x, where = torch.arange(10.0), torch.tensor(where)
            assert all(torch.equal(a, b) for a, b in zip(ours(x, where), f(x, where), strict=True))
