"""Frozen weights: results are those of the model, a change is an error before anything runs, memory can be given back."""

import copy
import gc
from pathlib import Path

import pytest
import torch

import oxyfuel


def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 33)).eval()


def frozen(model, **options):
    return torch.compile(model, backend="oxyfuel", dynamic=False, options={"freezing": True, "fallback": "error", **options})


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    gc.collect()
    yield
    torch._dynamo.reset()


def test_linear_layers():
    model, x = layers(), torch.randn(40, 64)
    compiled = frozen(model)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("contractions", ["auto", "own", "torch"])
def test_a_batch_norm_behind_a_convolution(contractions):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).eval()
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2.0)
    x = torch.randn(2, 3, 16, 16)
    compiled = frozen(model, contractions=contractions)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_attention_of_ours():
    q, k, v = (torch.randn(2, 4, 24, 32) for _ in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    compiled = torch.compile(lambda q, k, v: attend(q, k, v, is_causal=True), backend="oxyfuel", options={"contractions": "own", "fallback": "error"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(q, k, v), attend(q, k, v, is_causal=True))


class Mixed(torch.nn.Module):
    """A convolution, attention over what it found, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.Linear(32, 40)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)))
        y = y.flatten(2).view(2, 4, 8, 400).transpose(2, 3).contiguous()
        y = torch.nn.functional.scaled_dot_product_attention(y, y, y)
        return self.out(y.transpose(1, 2).reshape(800, 32))


def test_of_a_frozen_model_nothing_is_torch_s():
    torch.manual_seed(0)
    model, x = Mixed().eval(), torch.randn(2, 3, 20, 20)
    with torch.no_grad():
        for contractions in ("auto", "own"):
            said = oxyfuel.explain(model, x, options={"freezing": True, "contractions": contractions})
            assert [call["target"] for graph in said.graphs for call in graph.external] == []
        # Weights that may change stay where they are; attention has none.
        said = oxyfuel.explain(model, x)
        assert sorted(call["target"] for graph in said.graphs for call in graph.external) == ["aten.addmm.default", "aten.convolution.default"]
        torch.testing.assert_close(frozen(model)(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_change_is_an_error_before_anything_runs():
    model, x = layers(), torch.randn(40, 64)
    compiled = frozen(model)
    with torch.no_grad():
        compiled(x)
        model[0].weight.mul_(2)
        with pytest.raises(oxyfuel.OxyfuelError, match="E0606"):
            compiled(x)
        assert oxyfuel.refreeze() >= 1
        torch.testing.assert_close(compiled(x), model(x))


def test_weights_are_released():
    model, x = layers(), torch.randn(40, 64)
    compiled = frozen(model)
    with torch.no_grad():
        want = compiled(x)
        bytes_given = oxyfuel.release(model)
        assert bytes_given == 4 * (64 * 128 + 128 * 33)
        assert model[0].weight.untyped_storage().nbytes() == 0
        torch.testing.assert_close(compiled(x), want)
        with pytest.raises(oxyfuel.OxyfuelError, match="E0606"):
            oxyfuel.refreeze()


def test_a_weight_that_another_graph_reads_is_not_released():
    model, x = layers(), torch.randn(40, 64)
    compiled = frozen(model)
    with torch.no_grad():
        compiled(x)
        few = compiled(x[:4])
        assert oxyfuel.release(model) == 0
        torch.testing.assert_close(compiled(x[:4]), few)


def test_other_graphs_say_that_a_weight_was_released():
    model, x = layers(), torch.randn(40, 64)
    compiled = frozen(model)
    with torch.no_grad():
        compiled(x)
        oxyfuel.release(model)
        with pytest.raises(oxyfuel.OxyfuelError, match="E0606"):
            compiled(x[:4])
        plain = torch.compile(lambda x, w: x @ w.t() + 1, backend="oxyfuel", options={"contractions": "own", "fallback": "error"})
        with pytest.raises(oxyfuel.OxyfuelError, match="E0606"):
            plain(x, model[0].weight)


def test_two_models_of_one_shape_keep_their_own_weights():
    model, x = layers(), torch.randn(40, 64)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(-0.5)
        first, second = frozen(model), frozen(other)
        for _ in range(2):
            torch.testing.assert_close(first(x), model(x))
            torch.testing.assert_close(second(x), other(x))


def test_training_freezes_nothing():
    model, x = layers(), torch.randn(40, 64)
    compiled = frozen(model)
    for _ in range(2):
        compiled(x).sum().backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.1 * weight.grad
        torch.testing.assert_close(compiled(x), model(x))


def test_explain_says_so():
    model, x = layers(), torch.randn(40, 64)
    with torch.no_grad():
        said = oxyfuel.explain(model, x, options={"freezing": True}, dynamic=False)
        plain = oxyfuel.explain(model, x, dynamic=False)
    assert "2 products read weights in panels" in str(said), said
    assert said.graphs[0].frozen is not None and plain.graphs[0].frozen is None


class Block(torch.nn.Module):
    """A basic block of a ResNet, between a stem that pools and a head."""

    def __init__(self, groups=1):
        super().__init__()
        conv, norm = torch.nn.Conv2d, torch.nn.BatchNorm2d
        self.stem, self.norm, self.pool = conv(3, 32, 7, stride=2, padding=3, bias=False), norm(32), torch.nn.MaxPool2d(3, 2, 1)
        self.first, self.norm1 = conv(32, 48, 3, stride=2, padding=1, bias=False, groups=groups), norm(48)
        self.second, self.norm2 = conv(48, 48, 3, padding=1, bias=False), norm(48)
        self.down, self.norm3 = conv(32, 48, 1, stride=2, bias=False), norm(48)
        self.mean, self.out = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Linear(48, 10)
        for each in (self.norm, self.norm1, self.norm2, self.norm3):
            each.running_mean.normal_()
            each.running_var.uniform_(0.5, 2.0)

    def forward(self, x):
        x = self.pool(torch.relu(self.norm(self.stem(x))))
        y = torch.relu(self.norm1(self.first(x)))
        y = torch.relu(self.norm2(self.second(y)) + self.norm3(self.down(x)))
        return self.out(torch.flatten(self.mean(y), 1))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_block_of_convolutions_is_ours(layout):
    torch.manual_seed(0)
    model, x = Block().eval(), torch.randn(4, 3, 48, 48).contiguous(memory_format=layout)
    compiled = frozen(model)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
        said = oxyfuel.explain(model, x, options={"freezing": True})
    (graph,) = said.graphs
    assert graph.external == []
    assert "and 4 convolutions read weights in panels" in graph.frozen


@pytest.mark.parametrize("freezing", [True, False])
def test_a_block_of_convolutions_in_bf16(freezing):
    torch.manual_seed(0)
    model = Block().eval()
    x = torch.randn(8, 3, 96, 96)
    with torch.no_grad():
        exact = model(x)
        model, x = model.to(torch.bfloat16), x.to(torch.bfloat16)
        eager = model(x)
        compiled = torch.compile(model, backend="oxyfuel", options={"freezing": freezing})
        for _ in range(2):
            error, theirs = ((y.float() - exact).abs().max() for y in (compiled(x), eager))
            assert error <= 2 * theirs + 0.01
        said = oxyfuel.explain(model, x, options={"freezing": freezing})
    external = [call["target"] for graph in said.graphs for call in graph.external]
    # A matrix unit sums all of them; without one they are torch's.
    assert external.count("aten.convolution.default") in (0, 4)
    if "amx_bf16" in Path("/proc/cpuinfo").read_text():
        assert "aten.convolution.default" not in external


def test_groups_that_fill_no_vectors_leave_all_to_torch():
    torch.manual_seed(0)
    model, x = Block(groups=4).eval(), torch.randn(4, 3, 48, 48)
    compiled = frozen(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
        said = oxyfuel.explain(model, x, options={"freezing": True})
    external = [call["target"] for graph in said.graphs for call in graph.external]
    assert external.count("aten.convolution.default") == 4
