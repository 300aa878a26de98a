"""Group norm, forward and backward, compiled: no call of torch's own, and the numbers of eager."""

from __future__ import annotations

from typing import Any

import oxyfuel
import pytest
import torch
from torch.nn.functional import group_norm

from agree import Run, compiled, problems, to_double

# Batch, channels and places; groups.
SHAPES = [
    ((2, 32, 8, 8), 8),
    ((2, 6, 5, 3), 2),
    ((3, 21, 37), 7),
    ((1, 5, 1, 131), 1),
    ((4, 6), 2),
    ((2, 4, 3, 5, 7), 4),
    ((0, 6, 4), 3),
    ((1, 64, 33, 33), 32),
]


def run(function: Any, x: torch.Tensor, w: torch.Tensor | None, b: torch.Tensor | None, groups: int, grad: torch.Tensor) -> Run:
    leaves = [None if t is None else t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, w, b)]
    out = function(*leaves, groups)
    out.backward(grad)
    return Run(out.detach(), gradients=[t.grad for t in leaves if t is not None])


def normalized(x: torch.Tensor, w: torch.Tensor | None, b: torch.Tensor | None, groups: int) -> torch.Tensor:
    return group_norm(x, groups, w, b, 1e-5)


def compare(function: Any, x: torch.Tensor, w: torch.Tensor | None, b: torch.Tensor | None, groups: int) -> None:
    grad = torch.randn(x.shape).to(x.dtype)
    wide = [None if t is None else to_double(t) for t in (x, w, b)]
    found = problems(
        run(function, x, w, b, groups, grad),
        run(normalized, x, w, b, groups, grad),
        lambda: run(normalized, *wide, groups, to_double(grad)),
    )
    assert not found, "\n".join(found)


def parameters(x: torch.Tensor, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.randn(x.shape[1]).to(dtype or x.dtype) for _ in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_forward_and_backward(dtype: torch.dtype) -> None:
    for shape, groups in SHAPES:
        torch._dynamo.reset()
        function = compiled(normalized, dynamic=False)
        x = (torch.randn(shape) * 2 + 3).to(dtype)
        compare(function, x, *parameters(x), groups)
        compare(function, x, None, None, groups)


def test_halves_with_parameters_of_f32() -> None:
    x = torch.randn(2, 12, 7, 5).bfloat16()
    compare(compiled(normalized), x, *parameters(x, torch.float32), 3)


def test_channels_last() -> None:
    x = torch.randn(2, 12, 7, 5).to(memory_format=torch.channels_last)
    compare(compiled(normalized), x, *parameters(x), 3)


def test_only_some_gradients() -> None:
    x = torch.randn(3, 6, 11)
    w, b = parameters(x)
    for wanted in ((x, w), (x, b), (w, b), (w,), (b,)):
        for t in (x, w, b):
            t.requires_grad_(any(t is one for one in wanted))
        torch._dynamo.reset()
        expected = torch.autograd.grad(normalized(x, w, b, 2).square().sum(), wanted)
        found = torch.autograd.grad(compiled(normalized)(x, w, b, 2).square().sum(), wanted)
        for got, eager in zip(found, expected, strict=True):
            torch.testing.assert_close(got, eager)


def test_one_graph_for_batches_and_places_of_any_size() -> None:
    function = compiled(normalized, dynamic=True)
    for n, places in ((2, (9, 5)), (3, (4, 4)), (5, (1, 7)), (1, (6, 2))):
        x = torch.randn(n, 8, *places)
        compare(function, x, *parameters(x), 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_none_of_it_is_torch_s(dtype: torch.dtype) -> None:
    x = torch.randn(2, 6, 5, 3).to(dtype).requires_grad_()
    w, b = (t.requires_grad_() for t in parameters(x.detach()))
    said = oxyfuel.explain(lambda x, w, b: normalized(x, w, b, 2).sum(), x, w, b)
    assert not [call for graph in said.graphs for call in graph.external]
    function = compiled(lambda g, x, m, r, w: torch.ops.aten.native_group_norm_backward(g, x, m, r, w, 2, 6, 15, 2, [True, True, True]))
    with torch.no_grad():
        _, mean, rstd = torch.ops.aten.native_group_norm(x, w, b, 2, 6, 15, 2, 1e-5)
        args = (torch.randn_like(x), x, mean, rstd, w)
        graphs = oxyfuel.explain(lambda *a: torch.ops.aten.native_group_norm_backward(*a, 2, 6, 15, 2, [True, True, True]), *args).graphs
        assert [graph.external for graph in graphs] == [[]]
        expected = torch.ops.aten.native_group_norm_backward(*args, 2, 6, 15, 2, [True, True, True])
        for got, eager in zip(function(*args), expected, strict=True):
            torch.testing.assert_close(got, eager)
