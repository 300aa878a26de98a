"""Steps of torch's optimisers: operators over lists of tensors are kernels of ours, and tensors of unlike shapes share launches."""

import copy

import oxyfuel
import pytest
import torch

SHAPES = [(64, 48), (48,), (300,), (48, 7), (64, 48), (5,), ()]


def parameters(dtype: torch.dtype) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    found = [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]
    for parameter in found:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(dtype)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["AdamW", "SGD", "RMSprop", "Adagrad"])
def test_a_step_agrees_with_eager(kind: str, dtype: torch.dtype) -> None:
    options = {"momentum": 0.9} if kind == "SGD" else {}
    ours, eager = parameters(dtype), parameters(dtype)
    first = getattr(torch.optim, kind)(ours, lr=0.01, foreach=True, **options)
    second = getattr(torch.optim, kind)(eager, lr=0.01, foreach=True, **options)
    step = torch.compile(first.step, backend="oxyfuel")
    for _ in range(3):
        step()
        second.step()
    for a, b in zip(ours, eager, strict=True):
        # Where numbers of halves nearly cancel, a step of rounding is all that is left.
        torch.testing.assert_close(a, b, **({"atol": 4e-3, "rtol": 1.6e-2} if dtype == torch.bfloat16 else {}))


def test_operators_over_lists_are_ours() -> None:
    def f(xs: list[torch.Tensor], ys: list[torch.Tensor]) -> list[torch.Tensor]:
        xs = torch._foreach_lerp(xs, ys, 0.1)
        xs = torch._foreach_addcmul(xs, ys, ys, 0.5)
        xs = torch._foreach_addcdiv(xs, ys, torch._foreach_add(torch._foreach_abs(ys), 1.0), [0.5] * len(xs))
        return torch._foreach_sub(torch._foreach_lerp(xs, ys, 0.75), torch._foreach_sqrt(torch._foreach_abs(ys)))

    xs, ys = ([torch.randn(shape) for shape in SHAPES[:4]] for _ in range(2))
    report = oxyfuel.explain(f, xs, ys)
    assert not report.graphs[0].external, report.graphs[0].external
    for a, b in zip(torch.compile(f, backend="oxyfuel")(copy.copy(xs), ys), f(xs, ys), strict=True):
        torch.testing.assert_close(a, b)
