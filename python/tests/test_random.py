"""Random operators in kernels of ours: seeded by torch's generator, spread as they must be, and torch's own under fallback_random."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import oxyfuel
from agree import agree, compiled

N = 20_000


def draws() -> dict[str, Any]:
    return {
        "rand": lambda x: torch.rand_like(x) + 0,
        "rand of a size": lambda x: torch.rand(x.shape),
        "randn": lambda x: torch.randn_like(x),
        "randint": lambda x: torch.randint(-2, 3, x.shape),
        "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.3)),
        "bernoulli_": lambda x: x.clone().bernoulli_(0.3),
        "uniform_": lambda x: x.clone().uniform_(-1, 3),
        "normal_": lambda x: x.clone().normal_(2, 0.5),
        "exponential_": lambda x: x.clone().exponential_(2.0),
        "dropout": lambda x: nn.functional.dropout(x + 1, 0.25),
    }


# Mean and deviation of each.
MOMENTS = {
    "rand": (0.5, math.sqrt(1 / 12)),
    "rand of a size": (0.5, math.sqrt(1 / 12)),
    "randn": (0.0, 1.0),
    "randint": (0.0, math.sqrt(2)),
    "bernoulli": (0.3, math.sqrt(0.21)),
    "bernoulli_": (0.3, math.sqrt(0.21)),
    "uniform_": (1.0, 4 * math.sqrt(1 / 12)),
    "normal_": (2.0, 0.5),
    "exponential_": (0.5, 0.5),
    "dropout": (1.0, math.sqrt(0.25 / 0.75)),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_repeatable_and_spread_as_eager(name: str) -> None:
    f = draws()[name]
    g = compiled(f)
    x = torch.zeros(N)
    torch.manual_seed(5)
    a = g(x)
    torch.manual_seed(5)
    assert torch.equal(a, g(x))
    b = g(x)
    assert not torch.equal(a, b)
    mean, deviation = MOMENTS[name]
    for sample in (a, b, f(x)):
        assert abs(sample.double().mean().item() - mean) < 5 * deviation / math.sqrt(N)
        assert abs(sample.double().std().item() - deviation) < 0.05 * deviation
    assert (a.dtype, a.shape, a.stride()) == (f(x).dtype, f(x).shape, f(x).stride())


@pytest.mark.parametrize("name", MOMENTS)
def test_eager_s_numbers_under_fallback_random(name: str) -> None:
    f = draws()[name]
    g = compiled(f, options={"fallback_random": True})
    x = torch.zeros(100)
    torch.manual_seed(5)
    mine = g(x)
    torch.manual_seed(5)
    agree(mine, f(x))


def test_one_seed_a_call_and_every_operator_its_own_numbers() -> None:
    def f(x: torch.Tensor) -> Any:
        return torch.rand_like(x), torch.rand_like(x), nn.functional.dropout(x + 1, 0.5)

    x = torch.zeros(64, 64)
    said = oxyfuel.explain(f, x)
    calls = [call["target"] for graph in said.graphs for call in graph.external]
    assert calls == ["aten.randint.low"], calls
    a, b, _ = compiled(f)(x)
    assert not torch.equal(a, b)


def test_backward_drops_what_forward_dropped() -> None:
    g = compiled(lambda x: nn.functional.dropout(x, 0.5))
    x = torch.ones(N, requires_grad=True)
    y = g(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_a_generator_of_the_program_s_own_is_asked() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(8, generator=torch.Generator().manual_seed(3))

    x = torch.zeros(8)
    agree(compiled(f)(x), f(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_floats(dtype: torch.dtype) -> None:
    a = compiled(lambda x: torch.rand_like(x))(torch.zeros(N, dtype=dtype))
    assert a.dtype == dtype and a.min() >= 0 and a.max() < 1
    assert abs(a.double().mean().item() - 0.5) < 0.02
