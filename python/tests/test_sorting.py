"""Sorts and the first places of one, compiled: elements as eager has them, positions by what stands there, since which of equal elements comes first is nobody's promise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import oxyfuel
import pytest
import torch

from agree import Run, compiled, problems
from judge import order

NAN, INF = math.nan, math.inf
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]


def few_values(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Many equal elements."""
    return torch.randint(0, 4, shape).to(dtype)


def compare(name: str, function: Callable[..., Any], x: torch.Tensor, *args: Any, ours: bool = True) -> None:
    """Both ways: as the judge compares them, and without a call of torch where the kernels are ours."""
    torch._dynamo.reset()
    expected = function(x, *args)
    result = compiled(lambda x: function(x, *args), dynamic=False)(x)
    found = problems(*(Run(order.compared(name, out, ((x, *args), {}))) for out in (result, expected)))
    assert not found, "\n".join(found)
    external = oxyfuel.explain(lambda x: function(x, *args), x).graphs[0].external
    assert bool(external) != ours, external


@pytest.mark.parametrize("dtype", DTYPES)
def test_sorts_of_equal_elements(dtype: torch.dtype) -> None:
    for descending in (False, True):
        for dim in (0, 1, -1):
            compare("sort", torch.sort, few_values(5, 37, 3, dtype=dtype), dim, descending)
            compare("argsort", torch.argsort, few_values(5, 37, 3, dtype=dtype), dim, descending)


def test_a_sort_that_need_not_be_stable_is() -> None:
    x = few_values(3, 700, dtype=torch.float32)
    got = compiled(lambda x: torch.sort(x, dim=1, descending=True))(x)
    expected = torch.sort(x, dim=1, descending=True, stable=True)
    assert torch.equal(got[1], expected[1])
    unstable = compiled(lambda x: torch.ops.aten.sort.stable(x, stable=None, dim=1, descending=True))(x)
    assert torch.equal(unstable[1], expected[1])


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != torch.bool])
@pytest.mark.parametrize("largest", [True, False])
def test_the_first_places(dtype: torch.dtype, largest: bool) -> None:
    for shape, dim in (((4, 31), 1), ((32, 5), 0), ((3, 9, 2), -2)):
        x = few_values(*shape, dtype=dtype)
        for k in (0, 1, 5):
            compare("topk", torch.topk, x, k, dim, largest)
        compare("topk", torch.topk, x, shape[dim], dim, largest)


def test_a_few_places_of_a_long_row_are_chosen_by_torch() -> None:
    compare("topk", torch.topk, torch.randn(3, 500), 5, ours=False)
    compare("median", torch.median, torch.randn(3, 500), 1, ours=False)
    compare("kthvalue", torch.kthvalue, torch.randn(3, 500), 7, 1, ours=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_one_place(dtype: torch.dtype) -> None:
    x = few_values(5, 31, 3, dtype=dtype)
    for dim in (0, 1, -1):
        compare("median", torch.median, x, dim)
        compare("nanmedian", torch.nanmedian, x, dim, True)
        compare("kthvalue", torch.kthvalue, x, 2, dim)


@pytest.mark.parametrize("largest", [True, False])
def test_the_first_places_in_any_order(largest: bool) -> None:
    x = few_values(7, 29, dtype=torch.float32)
    values, places = compiled(lambda x: torch.topk(x, 9, largest=largest, sorted=False))(x)
    assert torch.equal(x.gather(1, places), values)
    assert torch.equal(values.sort(1).values, torch.topk(x, 9, largest=largest).values.sort(1).values)


@pytest.mark.parametrize("descending", [False, True])
def test_nan_is_above_everything(descending: bool) -> None:
    x = torch.tensor([[NAN, 0.0, -0.0, INF, NAN, -INF, -0.0], [1.0, NAN, -1.0, NAN, 2.0, INF, INF]])
    compare("sort", torch.sort, x, 1, descending)
    compare("topk", torch.topk, x, 3, 1, descending)
    compare("topk", torch.topk, x, 6, 1, descending)


def test_numbers_without_dimensions() -> None:
    x = torch.tensor(3.0)
    compare("sort", torch.sort, x, 0, True)
    compare("topk", torch.topk, x, 1, -1)


def test_a_size_that_changes() -> None:
    def f(x: torch.Tensor) -> Any:
        return torch.sort(x, dim=-1), torch.topk(x, 3)

    fast = compiled(f, dynamic=True)
    for n in (5, 64, 301):
        x = torch.randperm(4 * n).reshape(4, n).float()
        assert not problems(Run(fast(x)), Run(f(x)))


def test_gradients_go_back_to_where_elements_stood() -> None:
    x = torch.randn(6, 50, requires_grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (torch.sort(x, dim=1, descending=True).values[:, :7] * torch.arange(7.0)).sum() + torch.topk(x.sin(), 5, dim=0).values.square().sum()

    f(x).backward()
    expected, x.grad = x.grad, None
    compiled(f)(x).backward()
    torch.testing.assert_close(x.grad, expected)
