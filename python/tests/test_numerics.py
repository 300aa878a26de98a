"""Numerics and determinism: options that change results do what they say, and nothing more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * y + x) * y - x


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fast_rounds_once(dtype: torch.dtype) -> None:
    x, y = torch.randn(64, 33).to(dtype), torch.randn(64, 33).to(dtype)
    once = chain(x.double(), y.double())
    fast = torch.compile(chain, backend="oxyfuel", options={"numerics": "fast"})(x, y)
    # Half a unit in the last place of the result, and what f32 adds: far below another half.
    spacing = torch.maximum(once.abs(), torch.tensor(torch.finfo(dtype).tiny)) * torch.finfo(dtype).eps
    assert ((fast.double() - once).abs() <= 0.51 * spacing + 1e-6).all()
    eager = chain(x, y)
    assert not torch.equal(fast, eager)
    assert (fast.double() - once).abs().mean() < (eager.double() - once).abs().mean()


def test_eager_numerics_round_where_eager_does() -> None:
    x, y = torch.randn(64, 33).bfloat16(), torch.randn(64, 33).bfloat16()
    torch.testing.assert_close(torch.compile(chain, backend="oxyfuel")(x, y), chain(x, y))


def test_fast_leaves_f32_alone() -> None:
    x, y = torch.randn(64, 33), torch.randn(64, 33)
    fast = torch.compile(chain, backend="oxyfuel", options={"numerics": "fast"})(x, y)
    torch._dynamo.reset()
    assert torch.equal(fast, torch.compile(chain, backend="oxyfuel")(x, y))


def test_the_same_bits_over_runs_and_threads() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.softmax(x, -1), x.exp().sum(0)

    x = torch.randn(100, 3000)
    before = torch.get_num_threads()
    compiled = torch.compile(f, backend="oxyfuel")
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            first = compiled(x)
            for _ in range(10):
                assert all(map(torch.equal, compiled(x), first))
    finally:
        torch.set_num_threads(before)


def put(x: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return x.index_put((index,), values)


@pytest.mark.parametrize("how", ["option", "torch"])
def test_a_place_written_twice_keeps_the_last(how: str) -> None:
    index = torch.arange(4096) * 7 % 4
    values = torch.arange(4096.0)[:, None].expand(4096, 64).contiguous()
    expected = torch.stack([values[index == place][-1] for place in range(4)])
    torch.use_deterministic_algorithms(how == "torch")
    try:
        compiled = torch.compile(put, backend="oxyfuel", options={"deterministic": how == "option"})
        for _ in range(10):
            assert torch.equal(compiled(torch.zeros(4, 64), index, values), expected)
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_torch_refuses_in_deterministic_mode_is_refused(deterministic: None) -> None:
    x = torch.randn(1, 1, 4, 4)
    pooled, places = nn.functional.max_pool2d(x, 2, return_indices=True)

    def unpool(pooled: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return nn.functional.max_unpool2d(pooled, places, 2)

    with pytest.raises(RuntimeError, match="deterministic"):
        unpool(pooled, places)
    with pytest.raises(RuntimeError, match="deterministic"):
        torch.compile(unpool, backend="oxyfuel")(pooled, places)


@torch.library.custom_op("oxyfuel_tests::unordered", mutates_args=())
def unordered(x: torch.Tensor) -> torch.Tensor:
    if torch.are_deterministic_algorithms_enabled():
        raise RuntimeError("unordered does not have a deterministic implementation")
    return x + 1


@unordered.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_the_setting_reaches_operators_of_torch_inside_of_a_plan() -> None:
    compiled = torch.compile(lambda x: unordered(x) * 2, backend="oxyfuel")
    x = torch.randn(3)
    assert torch.equal(compiled(x), (x + 1) * 2)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="deterministic"):
            compiled(x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(compiled(x), (x + 1) * 2)

