"""Kernels of a user's: launched in their order, on memory as eager makes it."""

from __future__ import annotations

import operator
import pickle
from typing import Any

import pytest
import torch
from oxyfuel import _torch
from oxyfuel.describe import Call
from oxyfuel.foreign import Launch, make_in_place
from torch import fx

from agree import compiled

SEEN: list[Any] = []


@torch.library.custom_op("oxyfuel_tests::look", mutates_args=())
def look(x: torch.Tensor, name: str) -> torch.Tensor:
    # Memory of torch's begins at multiples of 64 bytes; a part of it where it begins in eager.
    SEEN.append((name, tuple(x.shape), tuple(x.stride()), x.data_ptr() % 64, x.dtype))
    return x.clone()


look.register_fake(lambda x, name: torch.empty_like(x))


def test_operators_of_a_user_s_run_in_their_order_on_eager_s_strides() -> None:
    def f(x: torch.Tensor, image: torch.Tensor) -> Any:
        a = look((x * 2).t(), "transposed")
        b = look(torch.relu(x + 1)[:, 4:], "a part")
        c = look(image * 3, "channels last")
        # Dims of one element: a kernel may look at their strides, too.
        for view in (x.view(1, 64, 1, 96), x[None].transpose(0, 1), (x * 2).view(64, 1, 96), (x * 2).sum(1, keepdim=True)):
            c = c + look(view, "ones").sum()
        return a.sum() + b.sum() + c.sum(), look((x + 1).transpose(0, 1).contiguous(), "dense")

    x, image = torch.randn(64, 96), torch.randn(2, 8, 16, 16).to(memory_format=torch.channels_last)
    SEEN.clear()
    f(x, image)
    want, SEEN[:] = list(SEEN), []
    compiled(f)(x, image)
    assert SEEN == want


def graph_of(source: Any, users: int = 1, **how: Any) -> tuple[fx.GraphModule, fx.Node]:
    """x, memory made by `source`, and a kernel that writes it."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(4, 6)
    memory = graph.call_function(source, (x,) if source is torch.ops.aten.empty_like.default else (x, 0.0))
    memory.meta["val"] = torch.empty(4, 6).t().contiguous().t()
    kwargs = {"kernel_idx": 3, "constant_args_idx": 5, "grid": [(7, 1, 1)], "tma_descriptor_metadata": {}, "kwargs": {"x": x, "out": memory}, "tensors_to_clone": ["out"], **how}
    call = graph.call_function(_torch.triton_functional, (), kwargs)
    out = graph.call_function(operator.getitem, (call, "out"))
    graph.output((out, memory) if users > 1 else (out,))
    return fx.GraphModule({}, graph), call


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def launch(**how: Any) -> None:
        found.append(how)
        how["kwargs"]["out"].copy_(how["kwargs"]["x"] * 2)

    monkeypatch.setattr(_torch, "triton_mutation", launch)
    return found


def test_memory_that_a_kernel_alone_writes_is_made_and_not_copied(launched: list[dict[str, Any]]) -> None:
    gm, call = graph_of(torch.ops.aten.empty_like.default)
    make_in_place(gm)
    assert isinstance(call.target, Launch) and not gm.graph.find_nodes(op="call_function", target=torch.ops.aten.empty_like.default)
    x = torch.randn(4, 6)
    (out,) = gm(x)
    assert torch.equal(out, x * 2) and out.stride() == (1, 4)
    (how,) = launched
    assert how["kwargs"]["out"] is out and (how["kernel_idx"], how["grid"]) == (3, [(7, 1, 1)])


def test_memory_that_somebody_else_reads_is_copied(launched: list[dict[str, Any]]) -> None:
    for source, users, how in (
        (torch.ops.aten.full_like.default, 1, {}),
        (torch.ops.aten.empty_like.default, 2, {}),
        (torch.ops.aten.empty_like.default, 1, {"tensor_bases": {"out": None}}),
    ):
        gm, call = graph_of(source, users, **how)
        make_in_place(gm)
        assert call.target is _torch.triton_functional
    assert not launched


def test_what_belongs_to_a_process_is_in_no_cache() -> None:
    for target in (Launch({}), _torch.triton_functional):
        with pytest.raises(_torch.Uncacheable):
            pickle.dumps(Call(target, (), {}))
    assert pickle.loads(pickle.dumps(Call(operator.add, (1, 2), {})))() == 3
