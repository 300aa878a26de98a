"""Operators of ours (`torch.ops.oxyfuel.*`) and the rule that writes them into joint graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import test_cache
from agree import compiled
from oxyfuel.rewrite import rewrite

aten, ours = torch.ops.aten, torch.ops.oxyfuel

# What each is called with after the seed and the stream, and the dtypes that it draws.
CALLS: dict[str, tuple[tuple[Any, ...], list[torch.dtype]]] = {
    "uniform": ((-1.0, 3.0), [torch.float32, torch.float64, torch.bfloat16]),
    "normal": ((2.0, 0.5), [torch.float32, torch.float16]),
    "exponential": ((2.0,), [torch.float32]),
    "bernoulli": ((0.3,), [torch.bool, torch.float32]),
    "integers": ((-2, 3), [torch.int64, torch.int32, torch.float32]),
}
CASES = [(name, dtype) for name, (_, dtypes) in CALLS.items() for dtype in dtypes]


def draw(name: str, dtype: torch.dtype, seed: int = 5, stream: int = 0, size: Any = (40, 50), stride: Any = None) -> torch.Tensor:
    return getattr(ours, name)(torch.tensor(seed), stream, *CALLS[name][0], size=size, stride=stride, dtype=dtype)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_numbers_follow_from_the_arguments(name: str, dtype: torch.dtype) -> None:
    a = draw(name, dtype)
    assert (a.dtype, a.shape, a.stride()) == (dtype, (40, 50), (50, 1))
    assert torch.equal(a, draw(name, dtype))
    assert not torch.equal(a, draw(name, dtype, seed=6))
    assert not torch.equal(a, draw(name, dtype, stream=1))
    b = draw(name, dtype, stride=(1, 40))
    assert b.stride() == (1, 40) and torch.equal(a, b)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_compiled_and_not_they_draw_the_same(name: str, dtype: torch.dtype) -> None:
    def f(seed: torch.Tensor) -> torch.Tensor:
        return getattr(ours, name)(seed, 3, *CALLS[name][0], size=[40, 50], stride=[1, 40], dtype=dtype) + 0

    seed = torch.tensor(17)
    assert torch.equal(compiled(f)(seed), f(seed))


@pytest.mark.parametrize("name", CALLS)
def test_torch_s_own_checks_of_an_operator(name: str) -> None:
    spread, (dtype, *_) = CALLS[name]
    arguments = (torch.tensor(5), 0, *spread)
    torch.library.opcheck(getattr(ours, name).default, arguments, {"size": [4, 5], "stride": [1, 4], "dtype": dtype})
    torch.library.opcheck(getattr(ours, name).default, arguments, {"size": [], "dtype": dtype})


def test_seeds_come_from_torch_s_generator() -> None:
    torch.manual_seed(3)
    a, b = ours.seed(), ours.seed()
    torch.manual_seed(3)
    assert a == ours.seed() and a != b and a.dtype == torch.int64 and a.shape == ()


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(RuntimeError, match="E0"):
        ours.normal(torch.tensor(0), 0, 0.0, 1.0, size=[3], dtype=torch.int64)
    with pytest.raises(RuntimeError, match="stream"):
        ours.normal(torch.tensor(0), -1, 0.0, 1.0, size=[3], dtype=torch.float32)


def saved(y: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in y.grad_fn.saved_tensors)  # type: ignore[union-attr]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_seed_is_kept_for_the_backward_instead_of_what_was_dropped(dynamic: bool, dtype: torch.dtype) -> None:
    f = compiled(lambda x: nn.functional.dropout(x + 1, 0.25), dynamic=dynamic)
    x = torch.ones(100, 200, dtype=dtype, requires_grad=True)
    y = f(x)
    assert saved(y) == 8
    y.backward(torch.full_like(y, 2), retain_graph=True)
    first = x.grad.clone()  # type: ignore[union-attr]
    assert torch.equal(first, y.detach()) and abs((y == 0).float().mean().item() - 0.25) < 0.02
    y.backward(torch.full_like(y, 2))
    assert torch.equal(x.grad, 2 * first)  # type: ignore[arg-type]
    assert not torch.equal(f(x), y)


def test_under_fallback_random_what_was_dropped_is_kept() -> None:
    f = compiled(lambda x: nn.functional.dropout(x + 1, 0.25), options={"fallback_random": True})
    x = torch.ones(100, 200, requires_grad=True)
    torch.manual_seed(1)
    y = f(x)
    assert saved(y) == 100 * 200
    torch.manual_seed(1)
    assert torch.equal(y, nn.functional.dropout(x + 1, 0.25))


def test_dropout_of_what_is_no_number_and_of_everything() -> None:
    x = torch.full((1000,), float("nan"), requires_grad=True)
    assert compiled(lambda x: nn.functional.dropout(x, 0.5))(x).isnan().all()
    y = compiled(lambda x: nn.functional.dropout(x, 1.0))(torch.ones(100, requires_grad=True))
    assert torch.equal(y, torch.zeros(100))


class _DrawsBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * torch.rand_like(grad)


def test_what_the_backward_draws_it_draws_anew() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(_DrawsBack.apply(x), 0.5)

    x = torch.ones(1000, requires_grad=True)
    y = compiled(f)(x)
    (a,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (b,) = torch.autograd.grad(y.sum(), x)
    assert not torch.equal(a, b) and torch.equal(a == 0, b == 0)


def test_a_checkpoint_keeps_a_seed_and_joins_the_cache(tmp_path: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: nn.functional.dropout(x.sin(), 0.5).exp(), x, use_reentrant=False)

    x = torch.ones(1000, requires_grad=True)
    y = compiled(f)(x)
    assert saved(y) == 4 * 1000 + 8
    y.sum().backward()
    assert torch.equal(x.grad == 0, y == 1)  # type: ignore[union-attr]


def test_a_second_process_compiles_nothing_of_a_model_that_drops(tmp_path: Path) -> None:
    layers = "torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.GELU(), torch.nn.Linear(16, 4)"
    first = test_cache.run(tmp_path, layers=layers)
    assert first["saved"] == 2 and first["compiles"] == 3
    second = test_cache.run(tmp_path, layers=layers)
    assert second["compiles"] == 0 and second["hits"] == 2
    assert second["sum"] == first["sum"] and second["grad"] == first["grad"]


def test_sizes_that_no_node_has_are_asked_of_a_tensor() -> None:
    gm = make_fx(lambda x: [aten.rand_like.default(x)], tracing_mode="symbolic")(torch.zeros(3, 4))
    assert rewrite(gm, 1, own_random=True) == -3
    called = [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]
    assert called == ["oxyfuel.seed.default", "aten.sym_size.int", "aten.sym_size.int", "oxyfuel.uniform.default"]
    (y,) = gm(torch.zeros(7, 2))
    assert y.shape == (7, 2) and y.min() >= 0


def test_a_draw_of_a_size_that_the_graph_does_not_say_stays() -> None:
    gm = make_fx(lambda x: [aten.rand.default([x.shape[0] * 2])], tracing_mode="symbolic")(torch.zeros(3, 4))
    (size,) = [node for node in gm.graph.nodes if node.target is aten.sym_size.int]
    (double,) = size.users
    double.meta.pop("val")
    rewrite(gm, 1, own_random=True)
    assert gm(torch.zeros(3, 4))[0].shape == (6,)


@pytest.mark.parametrize("left, right", [(torch.int8, torch.int8), (torch.uint8, torch.int8)])
@pytest.mark.parametrize("m, k, n", [(33, 40, 24), (128, 256, 72)])
def test_products_of_bytes(left, right, m, k, n):
    """`_int_mm` is ours where products are: sums of bytes in i32, eager's to the bit."""
    a = torch.randint(0, 127, (m, k), dtype=left) if left == torch.uint8 else torch.randint(-128, 128, (m, k), dtype=left)
    b = torch.randint(-128, 128, (k, n), dtype=right)
    want = a.int() @ b.int()
    compiled = torch.compile(lambda a, b: torch._int_mm(a, b) + 1, backend="oxyfuel", dynamic=False, options={"contractions": "own", "fallback": "error"})
    assert torch.equal(compiled(a, b), want + 1)
    assert torch.equal(torch.compile(lambda a, b: torch._int_mm(a, b), backend="oxyfuel", dynamic=False)(a, b), want)
