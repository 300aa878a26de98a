"""Channels last around convolutions: the rule for torch's on graphs, here with tensors of the CPU, and compiled; and convolutions of ours whose weights are not frozen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import oxyfuel
from oxyfuel.images import _gains, channels_last

aten = torch.ops.aten


def conv(x: torch.Tensor, w: torch.Tensor, padding: int = 1, groups: int = 1) -> torch.Tensor:
    return aten.convolution.default(x, w, None, [1, 1], [padding, padding], [1, 1], False, [0, 0], groups)


def whole(*shape: int) -> torch.Tensor:
    """Numbers so small that every sum is exact, whatever its order."""
    return torch.randint(-2, 3, shape).float()


def tensors(channels: int = 96, size: int = 6) -> list[torch.Tensor]:
    return [whole(2, 3, size, size), whole(channels, 3, 3, 3), whole(channels, channels, 3, 3)]


def traced(f: Any, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    return make_fx(f, tracing_mode="fake")(*inputs)


def calls(gm: torch.fx.GraphModule, target: Any) -> list[torch.fx.Node]:
    return list(gm.graph.find_nodes(op="call_function", target=target))


def agrees(gm: torch.fx.GraphModule, f: Any, inputs: list[torch.Tensor]) -> None:
    """Values and strides of before, and traced values that lie as those do that are computed."""
    for got, want in zip(gm(*inputs), f(*inputs), strict=True):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
    seen = {}

    class Run(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            seen[n] = super().run_node(n)
            return seen[n]

    Run(gm).run(*inputs)
    for node, value in seen.items():
        if isinstance(value, torch.Tensor):
            assert node.meta["val"].stride() == value.stride(), node.format_node()


def block(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> list[torch.Tensor]:
    a = torch.relu(conv(x, first))
    b = conv(a, second) + a
    pooled, _ = aten.max_pool2d_with_indices.default(b, [2, 2], [2, 2])
    return [torch.relu(b), aten.mean.dim(pooled, [2, 3])]


def test_what_is_computed_between_convolutions_follows() -> None:
    inputs = tensors()
    gm = traced(block, *inputs)
    assert channels_last(gm, "cpu") == 2
    for node in (*calls(gm, aten.convolution.default), *calls(gm, aten.relu.default)):
        assert node.meta["val"].is_contiguous(memory_format=torch.channels_last)
    # The image, two weights, and the result whose layout is seen.
    assert len(calls(gm, aten.clone.default)) == 4
    agrees(gm, block, inputs)


def test_views_and_strides_are_given_what_they_need() -> None:
    def f(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> list[torch.Tensor]:
        y = conv(x, first)
        flat = aten.view.default(y, [2, -1])
        window = aten.as_strided.default(y, [2, 5], [96 * 36, 1], 0)
        return [flat * 2, window + 1, aten.sum.dim_IntList(y, [1])]

    inputs = tensors()
    gm = traced(f, *inputs)
    assert channels_last(gm, "cpu") == 1
    agrees(gm, f, inputs)


def test_inputs_that_are_written_keep_their_layout() -> None:
    def f(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor, state: torch.Tensor) -> list[torch.Tensor]:
        y = conv(x, first)
        aten.copy_.default(state, y)
        return [torch.relu(y)]

    inputs = [*tensors(), torch.zeros(2, 96, 6, 6)]
    gm = traced(f, *inputs)
    assert channels_last(gm, "cpu") == 1
    agrees(gm, f, inputs)
    state = torch.zeros(2, 96, 6, 6)
    gm(*inputs[:3], state)
    torch.testing.assert_close(state, conv(inputs[0], inputs[1]))


def test_images_that_lie_so_already_are_not_copied() -> None:
    inputs = [x.contiguous(memory_format=torch.channels_last) for x in tensors()]
    gm = traced(block, *inputs)
    assert channels_last(gm, "cpu") == 0
    assert not calls(gm, aten.clone.default)


@pytest.mark.parametrize(
    "f, inputs",
    [
        (lambda x, w, _: [conv(x, w)], tensors(channels=32)),  # few channels
        (lambda x, w, _: [conv(x[:, :1].expand(2, 96, 6, 6), w[:, :1].contiguous(), groups=96)], tensors()),  # a group a channel
        (lambda x, w, _: [conv(x, w)], [x.double() for x in tensors()]),
        (lambda x, w, _: [aten.convolution.default(x, w[0], None, [1], [1], [1], False, [0], 1)], [torch.randn(2, 96, 8), torch.randn(1, 96, 96, 3), torch.zeros(1)]),  # one dim
    ],
)
def test_others_stay_as_they_are(f: Any, inputs: list[torch.Tensor]) -> None:
    gm = traced(f, *inputs)
    assert channels_last(gm, "cpu") == 0


@pytest.mark.parametrize(
    "device, dtype, tf32, gains",
    [
        ("cuda", torch.float32, True, True),
        ("cuda", torch.float32, False, False),  # no matrix unit may be used
        ("cuda", torch.bfloat16, False, True),
        ("cpu", torch.float32, False, True),
        ("cpu", torch.bfloat16, True, False),  # not measured
    ],
)
def test_which_convolutions_gain(monkeypatch: pytest.MonkeyPatch, device: str, dtype: torch.dtype, tf32: bool, gains: bool) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    (node,) = calls(traced(lambda x, w, _: [conv(x, w)], *tensors()), aten.convolution.default)
    for operand in node.args[:2]:
        seen = operand.meta["val"]
        operand.meta["val"] = SimpleNamespace(shape=seen.shape, dtype=dtype, device=torch.device(device), dim=seen.dim)
    assert _gains(node) == gains


def test_only_on_the_device_that_is_named() -> None:
    assert channels_last(traced(block, *tensors())) == 0


@pytest.mark.parametrize("options, want", [({}, 0), ({"contractions": "torch", "freezing": True}, 2), ({"contractions": "own", "freezing": True}, 0), ({"freezing": True}, 2)])
def test_on_a_cpu_where_torch_computes_them(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], want: int) -> None:
    changed = []

    def counted(gm: torch.fx.GraphModule, device: str = "cuda") -> int:
        changed.append(channels_last(gm, device))
        return changed[-1]

    monkeypatch.setattr(oxyfuel.compiled, "channels_last", counted)
    inputs = tensors(size=16)
    torch._dynamo.reset()
    with torch.no_grad():
        got = torch.compile(block, backend="oxyfuel", options={"fallback": "error", **options})(*inputs)
    assert sum(changed) == want
    for x, want_x in zip(got, block(*inputs), strict=True):
        torch.testing.assert_close(x, want_x)
        assert x.stride() == want_x.stride()


class Block(torch.nn.Module):
    """A stem, and a residual block with norms."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        conv, norm = torch.nn.Conv2d, torch.nn.BatchNorm2d
        self.stem, self.norm, self.pool = conv(3, channels, 7, stride=2, padding=3, bias=False), norm(channels), torch.nn.MaxPool2d(3, 2, 1)
        self.first, self.norm1 = conv(channels, channels, 3, padding=1, bias=False), norm(channels)
        self.second, self.norm2 = conv(channels, channels, 3, padding=1), norm(channels)
        for module in (self.norm, self.norm1, self.norm2):
            torch.nn.init.normal_(module.running_mean)
            torch.nn.init.uniform_(module.running_var, 0.5, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.norm(self.stem(x))))
        y = torch.relu(self.norm1(self.first(x)))
        return torch.relu(self.norm2(self.second(y)) + x)


def explained(model: torch.nn.Module, x: torch.Tensor, **options: Any) -> list[str]:
    """What torch computes of a model; its results agree with eager's, and lie as those do."""
    torch._dynamo.reset()
    said = oxyfuel.explain(model, x, options={"fallback": "error", **options})
    compiled = torch.compile(model, backend="oxyfuel", dynamic=False, options={"fallback": "error", **options})
    got, want = compiled(x), model(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert got.stride() == want.stride()
    return [call["target"] for graph in said.graphs for call in graph.external]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_weights_that_may_change_are_brought_into_panels_at_every_call(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    model = Block().eval().to(memory_format=layout)
    x = torch.randn(2, 3, 64, 64).to(memory_format=layout)
    with torch.no_grad():
        assert explained(model, x) == []
        compiled = torch.compile(model, backend="oxyfuel", dynamic=False, options={"fallback": "error"})
        before = compiled(x)
        # Without a new version: nothing of a weight may be kept.
        model.first.weight.data.mul_(2)
        model.norm1.running_var.data.mul_(3)
        got, want = compiled(x), model(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(got, before, rtol=1e-2)


def test_panels_that_are_more_than_eager_holds_are_not_made() -> None:
    torch.manual_seed(0)
    model = Block(256).eval()
    with torch.no_grad():
        external = explained(model, torch.randn(1, 3, 32, 32))
    assert external.count("aten.convolution.default") == 3


class Inverted(torch.nn.Module):
    """What MobileNets, ConvNeXts and ResNeXts have between two convolutions of 1 x 1: kernels for single channels, a gate of what whole images say, groups, and columns that are skipped."""

    def __init__(self) -> None:
        super().__init__()
        conv = torch.nn.Conv2d
        self.stem, self.wide = conv(3, 16, 3, stride=2, padding=1), conv(16, 64, 1, bias=False)
        self.each, self.norm = conv(64, 64, 5, padding=2, groups=64, bias=False), torch.nn.BatchNorm2d(64)
        self.squeeze, self.gate = conv(64, 24, 1), conv(24, 64, 1)
        self.groups, self.skips = conv(64, 64, 3, stride=2, padding=1, groups=8), conv(64, 64, 3, padding=2, dilation=2, groups=64)
        self.narrow = conv(64, 40, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.wide(torch.nn.functional.hardswish(self.stem(x)))
        x = torch.nn.functional.relu6(self.norm(self.each(x)))
        x = x * torch.nn.functional.hardsigmoid(self.gate(torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        return self.narrow(self.skips(torch.relu(self.groups(x))))


@pytest.mark.parametrize("freezing", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_convolutions_in_groups_and_of_single_pixels_are_ours(freezing: bool, batch: int) -> None:
    torch.manual_seed(0)
    model = Inverted().eval()
    with torch.no_grad():
        assert explained(model, torch.randn(batch, 3, 50, 46), freezing=freezing) == []


@pytest.mark.parametrize("options", [{"contractions": "torch"}, {"external": ["aten.convolution"]}])
def test_torch_computes_them_where_that_is_asked_for(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Block().eval()
    with torch.no_grad():
        external = explained(model, torch.randn(2, 3, 64, 64), **options)
    assert external.count("aten.convolution.default") == 3


def test_what_a_forward_keeps_is_torch_s() -> None:
    torch.manual_seed(0)
    model, x = Block().train(), torch.randn(2, 3, 64, 64)
    torch._dynamo.reset()
    said = oxyfuel.explain(model, x, options={"fallback": "error"})
    external = [call["target"] for graph in said.graphs for call in graph.external]
    assert external.count("aten.convolution.default") == 3
