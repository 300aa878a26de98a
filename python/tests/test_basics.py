"""What a compiled function returns is what eager returns: values, strides, aliases, structure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from agree import compiled, same


def test_pointwise_and_reduction() -> None:
    same(lambda x: ((x + 1).relu() * 2).sum(-1), torch.randn(4, 8))


def test_products_stay_with_torch() -> None:
    same(lambda x, y: (x @ y).relu() + 1, torch.randn(4, 8), torch.randn(8, 4))


def test_kwargs_and_nested_outputs() -> None:
    def f(x: torch.Tensor, *, scale: float, other: dict[str, torch.Tensor]) -> Any:
        y = x * scale
        return {"a": y, "b": [y + 1, (other["z"], None, 3)], "same": y}

    x, z = torch.randn(3), torch.randn(2)
    result = compiled(f)(x, scale=2.0, other={"z": z})
    torch.testing.assert_close(result["a"], x * 2)
    assert result["b"][1][0] is z
    assert result["b"][1][1:] == (None, 3)
    assert result["same"] is result["a"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(8, 6).t(),
        lambda: torch.randn(4, 6)[:, ::2],
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(4, 1).expand(4, 5),
        lambda: torch.randn(9).as_strided((4, 3), (2, 1)),
        lambda: torch.randn(()),
        lambda: torch.randn(0, 3),
        lambda: torch.randn(33)[1:],
        lambda: torch.randn(5, 1, 7).permute(2, 0, 1),
    ],
    ids=["transposed", "gaps", "channels-last", "expanded", "overlapping", "0-d", "empty", "unaligned", "permuted"],
)
def test_inputs_of_every_layout(make: Any) -> None:
    x = make()
    same(lambda x: (x * 2 + 1, x.sum(), x.unsqueeze(0)), x)


def test_an_unaligned_byte_offset() -> None:
    bytes = torch.zeros(41, dtype=torch.uint8)
    x = bytes[1:41]
    same(lambda x: x + 1, x)


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool],
    ids=str,
)
def test_element_types(dtype: torch.dtype) -> None:
    x = torch.randint(0, 5, (4, 5)).to(dtype)
    same(lambda x: (x * x, x == 1, x.float().mean()), x)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float8(dtype: torch.dtype) -> None:
    x = torch.randn(64)
    same(lambda x: x.to(dtype), x)
    same(lambda x: x.to(torch.float32) * 2, x.to(dtype))


def test_complex_numbers_stay_with_torch() -> None:
    x = torch.randn(4, dtype=torch.complex64)
    same(lambda x: (x * 2, x.abs() + 1, torch.view_as_real(x)), x)


def test_outputs_that_are_inputs_or_views() -> None:
    x = torch.randn(4, 6)
    a, b, c, d = compiled(lambda x: (x, x.view(6, 4), x[1:], (x + 1).t()))(x)
    assert a is x
    assert b.data_ptr() == x.data_ptr() and b.shape == (6, 4)
    assert c.data_ptr() == x[1:].data_ptr()
    assert d.stride() == (x + 1).t().stride()


def test_views_of_one_result_share_memory() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, y[1:], y.view(-1)

    y, tail, flat = compiled(f)(torch.randn(4, 6))
    y.zero_()
    assert tail.abs().sum() == 0 and flat.abs().sum() == 0


def test_results_of_two_calls_are_apart() -> None:
    f = compiled(lambda x: x + 1)
    x = torch.randn(5)
    a, b = f(x), f(x)
    a.zero_()
    torch.testing.assert_close(b, x + 1)


def test_mutated_inputs() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x[1:].mul_(y)
        return x.sum()

    x, y = torch.randn(4, 3), torch.randn(3)
    mine, theirs = x.clone(), x.clone()
    torch.testing.assert_close(compiled(f)(mine, y), f(theirs, y))
    torch.testing.assert_close(mine, theirs)


def test_mutation_through_a_view() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.t().relu_()
        return x * 2

    x = torch.randn(4, 3).t()
    mine, theirs = x.clone(memory_format=torch.preserve_format), x.clone(memory_format=torch.preserve_format)
    torch.testing.assert_close(compiled(f)(mine), f(theirs))
    torch.testing.assert_close(mine, theirs)


def test_a_written_slice_of_an_input() -> None:
    """A step of a key-value cache."""

    def f(cache: torch.Tensor, rows: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, at, rows)
        return cache[:8].sum(0)

    cache, rows, at = torch.randn(64, 4), torch.randn(2, 4), torch.tensor([5, 3])
    mine, theirs = cache.clone(), cache.clone()
    torch.testing.assert_close(compiled(f)(mine, rows, at), f(theirs, rows, at))
    torch.testing.assert_close(mine, theirs)


def test_constants_of_the_graph() -> None:
    table = torch.arange(6.0)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + table, torch.tensor([1.0, 2.0]), torch.ones(3), torch.arange(4)

    same(f, torch.randn(6))


def test_integers_in_and_out() -> None:
    same(lambda x, n: (x[:n] * n, n + 1), torch.randn(8), 3)


def test_modules_keep_their_keys() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    keys = list(model.state_dict())
    model.compile(backend="oxyfuel")
    model(torch.randn(5, 3))
    assert list(model.state_dict()) == keys


def test_buffers_are_updated() -> None:
    torch.manual_seed(0)
    model, other = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    x = torch.randn(5, 4)
    torch.testing.assert_close(compiled(model)(x), other(x))
    torch.testing.assert_close(model.running_mean, other.running_mean)
    torch.testing.assert_close(model.running_var, other.running_var)
    assert model.num_batches_tracked == 1


def test_autocast() -> None:
    model = nn.Linear(8, 8)
    x = torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, result = model(x), compiled(model)(x)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected)


def test_modes_are_guards() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    fast = compiled(model)
    x = torch.randn(3, 4)
    model.eval()
    with torch.no_grad():
        result = fast(x)
        assert not result.requires_grad
        torch.testing.assert_close(result, model(x))
    with torch.inference_mode():
        assert fast(x).is_inference()
    assert fast(x).requires_grad
    model.train()
    assert (fast(torch.ones(64, 4)) == 0).any()


def test_parts_that_are_not_compiled() -> None:
    @torch.compiler.disable
    def outside(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    same(lambda x: outside(x + 1) * 2, torch.randn(3))


def test_stance() -> None:
    # Says who runs it.
    f = compiled(lambda x: x + 1 if torch.compiler.is_compiling() else x - 1)
    x = torch.randn(3)
    with torch.compiler.set_stance("force_eager"):
        assert torch.equal(f(x), x - 1)
    assert torch.equal(f(x), x + 1)
    with torch.compiler.set_stance("force_eager"):
        assert torch.equal(f(x), x - 1)


def test_deterministic_mode() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        same(lambda x, i: torch.zeros(4).index_add(0, i, x), torch.randn(9), torch.arange(9) % 4)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("train", [False, True])
def test_constants_of_a_graph(train: bool) -> None:
    def f(x):
        return x * torch.tensor(2.5) + torch.tensor([1.0, 2.0, 3.0]) + torch.tensor([1, 0, 2])

    x = torch.randn(4, 3, requires_grad=train)
    ours = torch.compile(f, backend="oxyfuel", fullgraph=True, options={"fallback": "error"})(x)
    torch.testing.assert_close(ours, f(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.logaddexp(y, x)[None],
        lambda x, y: torch.logaddexp2(y, x).movedim(1, 0),
        lambda x, y: torch.copysign(y, x).reshape(-1),
        lambda x, y: torch.add(y, x, alpha=2).mT + 1,
        lambda x, y: nn.functional.logsigmoid(x).mT.reshape(-1),
        lambda x, y: torch.logit(x.sigmoid(), 0.1).exp(),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_follows_a_result_that_torch_traces_with_other_strides_lies_as_eagers(function: Any, dtype: torch.dtype) -> None:
    same(function, torch.randn(4, 17).to(dtype).mT, torch.randn(4))
    same(function, torch.randn(2, 4, 17).to(dtype).permute(2, 0, 1), torch.randn(1, 4).expand(2, 4))


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_unique_slices_lie_as_eagers(dim: int) -> None:
    x = torch.tensor([[1.0, 2.0, 1.0, 2.0], [3.0, 4.0, 3.0, 4.0], [1.0, 2.0, 1.0, 2.0]])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        same(lambda x: torch.unique(x, dim=dim, return_inverse=True), x)
        same(lambda x: torch.unique_consecutive(x, dim=dim), x.repeat_interleave(2, dim))
        same(lambda x: torch.unique_consecutive(x, dim=-1), x.flatten().sort().values)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y, i: y[i],
        lambda x, y, i: torch.minimum(x, i.bool()),
        lambda x, y, i: torch.hypot(x, i.double()),
        lambda x, y, i: x.index_fill(1, i[0], 1.0),
    ],
)
def test_what_is_picked_and_compared_lies_as_eagers(function: Any) -> None:
    i = torch.arange(12).reshape(3, 4).mT % 3
    same(function, torch.randn(1, 3).bfloat16().expand(4, 3), torch.randn(5, 6)[1:], i)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.hypot(nn.functional.hardtanh(x), y),
        lambda x, y: torch.hypot(nn.functional.relu6(x), y),
        lambda x, y: torch.hypot(nn.functional.prelu(x, torch.tensor([0.25])), y),
        lambda x, y: torch.atan2(x.nan_to_num().flip(2), y),
        lambda x, y: torch.maximum(x + 1, y),
        lambda x, y: torch.maximum(x.isposinf(), y),
        lambda x, y: x * 2 + y,
        lambda x, y: x.sin() * y,
    ],
)
def test_strides_of_single_rows_order_the_dims_that_follow_as_eagers(function: Any) -> None:
    y = torch.randn(8, 6).double()[:, ::2]
    for x in (torch.randn(3, 1).mT[None], torch.randn(1, 1, 3), torch.randn(1, 2, 3)[:, :1], torch.randn(40).as_strided((1, 1, 3), (2, 50, 1))):
        same(function, x, y)


@pytest.mark.parametrize("train", [False, True])
def test_what_torch_writes_row_major_whatever_it_reads(train: bool) -> None:
    def normalised(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1]), training=train)

    image = torch.randn(2, 6, 4, 5).contiguous(memory_format=torch.channels_last)
    for x in (torch.randn(5, 3).mT, torch.randn(4, 3, 2).mT, image, image[:, :2], image.mT, image[:, :, :1]):
        same(normalised, x)
        same(lambda x: nn.functional.relu(normalised(x)).mT + 1, x)
        same(lambda x: 2**x, x)
        same(lambda x: nn.functional.rrelu(x, training=False) * 2, x)


def test_a_row_of_equal_numbers_is_normalised_to_zero() -> None:
    x = torch.randn(100, 1).expand(100, 3)
    assert same(lambda x: nn.functional.layer_norm(x, (3,)), x).count_nonzero() == 0


def test_the_logarithm_of_a_sum_of_exponentials_rounds_as_eager_does() -> None:
    x = torch.randn(3, 129).half()
    same(lambda x: torch.log_softmax(x, 1).logsumexp(1), x)
    same(lambda x: x.logsumexp((0, 1), keepdim=True), torch.full((2, 3), float("-inf")))


def test_a_copy_of_an_input_is_not_the_input() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x | x
        y.copy_(x)
        return y[::2]

    same(f, torch.arange(7))


def test_a_diagonal_of_columns_shares_memory_with_its_matrix() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.clamp(-0.5, 0.75)
        return y, y.diagonal(), y.diagonal(1), y.diagonal(-2)

    same(f, torch.randn(17, 3, 16).permute(2, 1, 0))
    same(f, torch.randn(16, 3, 17))
