"""Attention that is written out: torch's fused kernels instead, where torch computes products, and in training before the joint graph is cut."""

from __future__ import annotations

import copy
import math
from typing import Any

import oxyfuel
import pytest
import torch
from oxyfuel import attention
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from agree import compiled

aten = torch.ops.aten
FUSED = aten._scaled_dot_product_flash_attention_for_cpu.default
FUSED_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def heads(batch: int = 2, count: int = 4, rows: int = 33, width: int = 16, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(batch, count, rows, width, dtype=dtype) for _ in range(3)]


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.25 + mask, -1) @ v


def filled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.transpose(-2, -1) * 0.25).masked_fill(mask, -math.inf)
    return torch.softmax(scores, -1) @ v


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(q.shape[-2])
    scores = torch.where(rows[:, None] >= rows, q @ k.transpose(-2, -1) * 0.25, -math.inf)
    return torch.softmax(scores, -1) @ v


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(q.shape) for x in (k, v))
    return plain(q, k, v)


def traced(f: Any, *inputs: torch.Tensor) -> fx.GraphModule:
    return make_fx(lambda *args: [f(*args)], decomposition_table=oxyfuel.decompositions.table(False), tracing_mode="fake")(*inputs)


def count(gm: fx.GraphModule, *targets: Any) -> int:
    return sum(node.target in targets for node in gm.graph.nodes)


def blind_mask(rows: int = 33) -> torch.Tensor:
    """Where to look, with one row that may look nowhere."""
    look = torch.rand(rows, rows) < 0.7
    look[:, 0] = True
    look[5] = False
    return look


CASES = {
    "plain": (plain, heads()),
    "causal": (causal, heads()),
    "masked": (masked, [*heads(), torch.randn(33, 33)]),
    "masked by rows and heads": (masked, [*heads(), torch.randn(2, 4, 1, 33)]),
    "filled": (filled, [*heads(), ~blind_mask()]),
    "added infinities": (masked, [*heads(), torch.zeros(33, 33).masked_fill(~blind_mask(), -math.inf)]),
    "grouped": (grouped, [heads()[0], *heads(count=2)[:2]]),
    "joined heads": (lambda x: plain(*(part.view(2, 33, 4, 16).transpose(1, 2) for part in x.chunk(3, -1))).transpose(1, 2).reshape(2, 33, 64), [torch.randn(2, 33, 192)]),
}


@pytest.mark.parametrize("name", CASES)
def test_is_one_call_and_gives_what_it_gave(name: str) -> None:
    function, inputs = CASES[name]
    gm = traced(function, *inputs)
    (want,) = gm(*inputs)
    strides = [node.meta["val"].stride() for node in gm.graph.output_node().args[0]]
    assert attention.fuse_attention(gm) == 1
    assert count(gm, FUSED) == 1 and count(gm, aten.bmm.default, aten._softmax.default, aten.mm.default) == 0
    (got,) = gm(*inputs)
    torch.testing.assert_close(got, want, equal_nan=True)
    assert [node.meta["val"].stride() for node in gm.graph.output_node().args[0]] == strides
    assert not any(node.target in (aten.detach.default, aten.alias.default) for node in gm.graph.nodes)


@torch.library.custom_op("oxyfuel_tests::scribble", mutates_args=("x",))
def scribble(x: torch.Tensor) -> None:
    x.fill_(7.0)


scribble.register_fake(lambda x: None)


def test_a_copy_that_keeps_what_was_there_is_read() -> None:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        before = aten.clone.default(q, memory_format=torch.contiguous_format)
        torch.ops.oxyfuel_tests.scribble(q)
        return plain(before, k, v)

    q, k, v = heads()
    gm = traced(f, q, k, v)
    want = plain(q, k, v)
    attention.fuse_attention(gm)
    torch.testing.assert_close(gm(q.clone(), k, v)[0], want)


def test_one_attention_may_read_another() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x @ w, -1) @ w
        return torch.softmax(y @ w, -1) @ w

    x, w = torch.randn(16, 64), torch.randn(64, 64)
    gm = traced(f, x, w)
    (want,) = gm(x, w)
    assert attention.fuse_attention(gm) == 2
    assert count(gm, FUSED) == 2 and count(gm, aten.mm.default) == 0
    torch.testing.assert_close(gm(x, w)[0], want)


def kept(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    weights = torch.softmax(q @ k.transpose(-2, -1), -1)
    return weights @ v + weights.sum()


def of_the_result(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1)
    return torch.softmax(scores + scores.mean(), -1) @ v


@pytest.mark.parametrize("function", [kept, of_the_result])
def test_stays_where_its_insides_are_wanted(function: Any) -> None:
    gm = traced(function, *heads())
    before = [node.target for node in gm.graph.nodes]
    assert attention.fuse_attention(gm) == 0
    assert [node.target for node in gm.graph.nodes] == before


def test_stays_where_its_weights_are_a_result() -> None:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(q @ k.transpose(-2, -1), -1)
        return weights @ v, weights  # type: ignore[return-value]

    gm = make_fx(lambda *args: list(f(*args)), decomposition_table=oxyfuel.decompositions.table(False), tracing_mode="fake")(*heads())
    assert attention.fuse_attention(gm) == 0


def test_stays_where_torch_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's attention of such operands would be products again: nothing of what was tried is left in the graph."""
    gm = traced(plain, *heads())
    before = str(gm.graph)
    monkeypatch.setattr(attention, "_PARTS", (FUSED,))
    assert attention.fuse_attention(gm) == 0
    assert str(gm.graph) == before


class Attends(nn.Module):
    def __init__(self, how: Any = plain, groups: int = 4) -> None:
        super().__init__()
        self.how, self.groups = how, groups
        self.q, self.kv, self.out = nn.Linear(64, 64), nn.Linear(64, 32 * groups), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
        q = self.q(x).view(*x.shape[:2], 4, 16).transpose(1, 2)
        k, v = (part.view(*x.shape[:2], self.groups, 16).transpose(1, 2) for part in self.kv(x).chunk(2, -1))
        return self.out(self.how(q, k, v, *mask).transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize(
    ("how", "groups", "mask"),
    [
        (plain, 4, None),
        (causal, 4, None),
        (grouped, 2, None),
        (masked, 4, torch.randn(33, 33)),
        (filled, 4, ~(blind_mask() | torch.eye(33, dtype=torch.bool))),
    ],
)
def test_in_training_no_scores_are_kept(how: Any, groups: int, mask: torch.Tensor | None, monkeypatch: pytest.MonkeyPatch) -> None:
    from oxyfuel import partition

    cut: list[tuple[fx.GraphModule, fx.GraphModule]] = []
    real = partition._torch.min_cut

    def min_cut(*args: Any, **kwargs: Any) -> Any:
        cut.append(real(*args, **kwargs))
        return cut[-1]

    monkeypatch.setattr(partition._torch, "min_cut", min_cut)
    model = Attends(how, groups)
    other = copy.deepcopy(model)
    inputs = [torch.randn(2, 33, 64), *([] if mask is None else [mask])]
    with torch._functorch.config.patch(enable_autograd_cache=False):
        got = compiled(model)(*inputs)
    got.square().mean().backward()
    want = other(*inputs)
    want.square().mean().backward()
    torch.testing.assert_close(got, want)
    for p, o in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, o.grad)
    ((forward, backward),) = cut
    assert count(forward, FUSED) == 1 and count(backward, FUSED_BACKWARD) == 1
    assert count(forward, aten.bmm.default) == count(backward, aten.bmm.default) == 0
    saved = [node.meta["val"] for node in forward.graph.output_node().args[0] if isinstance(node, fx.Node)]
    assert not any(value.numel() >= 2 * 4 * 33 * 33 for value in saved if isinstance(value, torch.Tensor))


def test_what_a_bias_of_scores_learns_from_is_kept() -> None:
    bias = torch.randn(33, 33, requires_grad=True)
    q, k, v = heads()
    got = compiled(masked)(q, k, v, bias)
    got.square().mean().backward()
    mine, bias.grad = bias.grad, None
    masked(q, k, v, bias).square().mean().backward()
    torch.testing.assert_close(mine, bias.grad)


def test_the_fused_call_is_what_the_program_could_have_called() -> None:
    q, k, v = heads()
    gm = traced(plain, q, k, v)
    assert attention.fuse_attention(gm) == 1
    torch.testing.assert_close(gm(q, k, v)[0], F.scaled_dot_product_attention(q, k, v))
