"""Graphs of CUDA tensors on a machine without a GPU: traced with fake tensors, compiled for an H200, run on the device that computes nothing."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import oxyfuel
import pytest
import torch
from oxyfuel import _native
from oxyfuel.describe import CPU, describe, device_of
from oxyfuel.literals import on_the_gpu
from oxyfuel.options import Options
from oxyfuel.products import part_biases_of_convolutions
from oxyfuel.segments import Segments, cut
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

GPU = torch.device("cuda:0")
H200 = "sm_90a"


def traced(f: Any, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """The function as a graph of ATen whose results are a list. Inputs are taken for tensors of a GPU, but for those without dims."""
    with FakeTensorMode():
        fake = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=GPU if x.dim() else "cpu") for x in inputs]
        return make_fx(lambda *args: list(f(*args)), decomposition_table=oxyfuel.decompositions.table(False))(*fake)


def planned(gm: torch.fx.GraphModule, **options: Any) -> Any:
    said = describe(gm, "inference")
    assert said.device == "cuda:0"
    settings = Options(target=H200, **options).native([], 1, "null")
    return _native.compile(said.text, settings, said.objects)


def explained(graph: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """The kernels, and what torch runs."""
    said = json.loads(graph.explain())
    assert said["device"]["id"] == "null:0" and said["interpreted"] == 0
    return said["kernels"], [call["target"] for call in said["externals"]]


def test_pointwise_work_reductions_and_norms_are_kernels() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = F.layer_norm(x, x.shape[-1:], w)
        return torch.softmax(y, -1), y.sum(0), F.rms_norm(x.relu(), x.shape[-1:])

    graph = planned(traced(f, torch.randn(64, 256), torch.randn(256)))
    kernels, calls = explained(graph)
    assert kernels and not calls
    results = graph([torch.randn(64, 256), torch.randn(256)])
    assert [tuple(result.shape) for result in results] == [(64, 256), (256,), (64, 256)]


def test_launches_between_operators_of_torch_go_to_the_driver_at_once() -> None:
    """From the third call on, and never with `cudagraphs="off"`; what torch computes stands between them."""

    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = (x.cumsum(1).cumsum(0) @ w).cumsum(1).cumsum(0)
        return (y.exp(),)

    inputs = [torch.randn(600, 600), torch.randn(600, 600)]
    gm = traced(f, *inputs)
    for options, submitted in ({}, True), ({"cudagraphs": "off"}, False):
        graph = planned(gm, **options)
        assert explained(graph)[1] == ["aten.mm.default"]
        for call in range(5):
            (result,) = graph(list(inputs))
            assert result.shape == (600, 600)
            notes = [note for note in json.loads(graph.explain())["notes"] if "go to the driver as" in note]
            assert len(notes) == int(submitted and call >= 2), notes
            assert all(note.endswith("launches go to the driver as 2") for note in notes)


def test_where_an_input_begins_is_told() -> None:
    def aligned(x: torch.Tensor) -> list[int]:
        with FakeTensorMode() as mode:
            fake = [mode.from_tensor(x)]
            gm = make_fx(lambda x: [x + 1])(*fake)
        return [row["type"]["align"] for row in json.loads(describe(gm, "inference").text)["inputs"]]

    with FakeTensorMode(allow_non_fake_inputs=True):
        whole = torch.empty(64, 64, dtype=torch.bfloat16, device=GPU)
    assert [aligned(x) for x in (whole, whole[1:], whole[:, 8:], whole[:, 4:], whole[:, 1:])] == [[64], [64], [16], [8], [2]]
    assert aligned(torch.empty(8, 8)) == [64]


GIVEN: list[tuple[tuple[int, ...], int]] = []


@torch.library.custom_op("oxyfuel_tests::begins", mutates_args=())
def begins(x: torch.Tensor) -> torch.Tensor:
    GIVEN.append((tuple(x.shape), x.data_ptr() - x.untyped_storage().data_ptr()))
    return x.clone()


begins.register_fake(lambda x: torch.empty_like(x))


def test_operators_of_a_user_s_are_given_memory_that_begins_where_torch_s_does() -> None:
    """Torch's memory on a GPU begins at multiples of 512 bytes. What such an operator reads is therefore a tensor of its own, never a place in an arena or in another result; a view begins where eager's does."""

    def results(x: torch.Tensor) -> Any:
        a, b = (x * 2).relu(), (x + 1).exp()
        return torch.cat([a, b], 1), begins(b), begins(a), torch.stack([a, b, a + b])[1]

    def chains(x: torch.Tensor) -> Any:
        a = torch.softmax(x, 0)
        for _ in range(3):
            a = torch.softmax(a.cumsum(1) * 2, 0).cumsum(0)
            a = begins(a) + begins(a.cumsum(1)) + 1
        return (a,)

    def joined(x: torch.Tensor) -> Any:
        whole = F.pad(torch.cat([x * 2, begins(x + 1)]), (3, 5, 1, 2))
        return begins(whole), begins(whole[1:, 3:]), whole

    def views(x: torch.Tensor) -> Any:
        y = x.bfloat16() * 2
        parts = x, x[1:], (x + 1)[:, 1:], (x + 2).view(-1)[7:], y[1:], x.t().contiguous()[3:], *(x * 3).chunk(2)
        return [begins(part) for part in parts]

    def written(x: torch.Tensor) -> Any:
        y = x + 1
        y[2:].mul_(3)
        return begins(y), begins(y[2:]), y.cumsum(0)

    for shape in ((33, 5), (515, 1030)):
        for f in (results, chains, joined, views, written):
            x = torch.randn(shape)
            GIVEN.clear()
            f(x)
            want = sorted(GIVEN)
            graph = planned(traced(f, x))
            GIVEN.clear()
            graph([x])
            assert sorted(GIVEN) == want and want, f.__name__


def test_products_convolutions_and_attention_are_torch_s() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, image: torch.Tensor, filters: torch.Tensor) -> Any:
        return torch.relu(x @ w) + 1, torch.sigmoid(F.conv2d(image * 2, filters))

    shapes = (8, 16), (16, 4), (1, 3, 9, 9), (5, 3, 3, 3)
    inputs = [torch.randn(shape) for shape in shapes]
    graph = planned(traced(f, *inputs))
    kernels, calls = explained(graph)
    assert sorted(calls) == ["aten.convolution.default", "aten.mm.default"]
    # What stands between the two calls, the activation of one and the operand of the other, is small, and one launch.
    assert [kernel["gathered"] for kernel in kernels] == [1, None]
    # The host's calls are made, whatever kernels do.
    assert [tuple(result.shape) for result in graph(list(inputs))] == [(8, 4), (1, 5, 7, 7)]


def test_numbers_that_a_program_writes_are_literals() -> None:
    """As some versions of torch trace them: a constant of the CPU's and a copy of it."""
    graph = fx.Graph()
    root = nn.Module()
    root.register_buffer("number", torch.tensor(2.5))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x = graph.placeholder("x")
        x.meta["val"] = torch.empty(4, 6, device=GPU)
        number = graph.get_attr("number")
        copy = graph.call_function(torch.ops.aten.lift_fresh_copy.default, (number,))
        copy.meta["val"] = mode.from_tensor(torch.tensor(2.5))
        written = graph.call_function(torch.ops.aten.copy.default, (x, copy))
        written.meta["val"] = torch.empty(4, 6, device=GPU)
        alone = graph.call_function(torch.ops.aten.add.Tensor, (copy, 1))
        alone.meta["val"] = mode.from_tensor(torch.tensor(3.5))
        graph.output(([written, alone],))
        gm = fx.GraphModule(root, graph)
        assert on_the_gpu(gm, CPU) == 0
        assert on_the_gpu(gm, GPU) == 1
    (full,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.full.default)
    assert full.args == ([], 2.5) and full.kwargs["device"] == GPU
    assert written.args == (x, full)
    # What the CPU computes with it stays the CPU's.
    assert alone.args[0] is copy


def test_biases_of_convolutions_are_added_where_they_are_read() -> None:
    def f(image: torch.Tensor, filters: torch.Tensor, bias: torch.Tensor) -> Any:
        return torch.relu(F.conv2d(image, filters, bias)), F.conv2d(image, filters, bias)

    gm = traced(f, torch.randn(2, 8, 9, 9), torch.randn(16, 8, 3, 3), torch.randn(16))
    assert part_biases_of_convolutions(gm) == 1
    biases = [node.args[2] for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)]
    # A result that nobody of ours reads keeps its own.
    assert [bias is None for bias in biases] == [True, False]
    kernels, calls = explained(planned(gm))
    assert len(kernels) == 1 and calls == ["aten.convolution.default"] * 2


def test_channels_one_by_one_keep_their_bias() -> None:
    def f(image: torch.Tensor, filters: torch.Tensor, bias: torch.Tensor) -> Any:
        return (torch.relu(F.conv2d(image, filters, bias, groups=8)),)

    assert part_biases_of_convolutions(traced(f, torch.randn(2, 8, 9, 9), torch.randn(8, 1, 3, 3), torch.randn(8))) == 0


def test_what_lies_between_kernels_is_memory_of_the_host() -> None:
    """A sum over everything is read by everything: nothing can be one kernel."""
    x = torch.randn(1000, 1000)
    graph = planned(traced(lambda x: ((x / x.sum()).exp().sum(-1, keepdim=True) * x,), x))
    said = json.loads(graph.explain())
    assert said["memory"]["arena"] not in (0, "0")
    asked: list[tuple[Any, ...]] = []

    class See(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append((str(func), kwargs.get("dtype"), args[0]))
            return func(*args, **(kwargs or {}))

    with See():
        graph([x])
    assert [(name, dtype) for name, dtype, _ in asked] == [("aten.empty_strided.default", torch.uint8), ("aten.empty_strided.default", torch.float32)]
    assert asked[0][2] == [int(said["memory"]["arena"])] and asked[1][2] == [1000, 1000]


def test_numbers_of_the_cpu_are_brought_over_once() -> None:
    def f(x: torch.Tensor, number: torch.Tensor) -> Any:
        return x * number, torch.where(x > 0, number, x), number + 1

    graph = planned(traced(f, torch.randn(4, 5), torch.tensor(2.0)))
    kernels, calls = explained(graph)
    # What is on the CPU stays there: its own operators are torch's.
    assert len(kernels) == 1 and sorted(calls) == ["aten._to_copy.default", "aten.add.Tensor"]


def test_a_constant_of_the_cpu_among_tensors_of_a_gpu() -> None:
    kernels, calls = explained(planned(traced(lambda x: (torch.where(x > 0, x, torch.tensor(7.0)),), torch.randn(3, 4))))
    assert len(kernels) == 1 and set(calls) <= {"aten._to_copy.default", "aten.clone.default", "aten.lift_fresh_copy.default"}


def test_the_seed_is_drawn_where_the_tensors_are() -> None:
    graph = traced(lambda x: (F.dropout(x, 0.5),), torch.randn(100, 4))
    said = json.loads(describe(graph, "inference").text)
    assert all(item["type"]["device"] == "cuda:0" for node in said["nodes"] for item in node["results"] if item["kind"] == "tensor")
    kernels, calls = explained(planned(graph))
    assert kernels and calls == ["aten.randint.low"]


def test_a_joint_graph_keeps_a_seed_of_the_gpu() -> None:
    text = json.loads(describe(traced(lambda x: (torch.rand_like(x) * x,), torch.randn(8, 8)), "joint").text)
    text["outputs"] = [text["outputs"][0], text["outputs"][0]]
    edits = json.loads(_native.rewrite_joint(json.dumps(text), 1, True))
    seeds = [node for node in edits["new"] if node["target"] == "oxyfuel.seed.default"]
    assert not seeds or seeds[0]["kwargs"] == {"device": {"device": "cuda:0"}}


def test_the_gpu_that_holds_most_is_the_graph_s() -> None:
    with FakeTensorMode():
        a, b = torch.empty(3, device="cuda:0"), torch.empty(3, device="cuda:1")
        gm = make_fx(lambda a, b: [a + 1, (b + 1) * 2])(a, b)
    assert device_of(gm) == torch.device("cuda:1")
    said = json.loads(describe(gm, "inference").text)
    assert [item["kind"] for item in said["inputs"]] == ["object", "tensor"]


def test_a_count_over_several_dims_is_part_of_its_kernel() -> None:
    count = lambda x, y: ((torch.arange(12, device=x.device).view(3, 4) * 2 + x).exp(), torch.softmax(y.sin(), -1))  # noqa: E731
    kernels, calls = explained(planned(traced(count, torch.randn(3, 4), torch.randn(7, 9))))
    assert any("exp" in kernel["ops"] for kernel in kernels) and not calls


def test_a_target_that_is_none_is_named() -> None:
    said = describe(traced(lambda x: (x + 1,), torch.randn(3)), "inference")
    with pytest.raises(oxyfuel.OxyfuelError) as raised:
        _native.compile(said.text, Options(target="no such").native([], 1, "null"), said.objects)
    assert raised.value.code == "E0402"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_driver_it_says_so() -> None:
    gm = traced(lambda x: (x + 1,), torch.randn(3))
    said = describe(gm, "inference")
    with pytest.raises(oxyfuel.OxyfuelError) as raised:
        _native.compile(said.text, Options().native([], 1, said.device), said.objects)
    assert raised.value.code in ("E0701", "E0702")


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(oxyfuel.OxyfuelError) as raised:
        _native.fingerprint(Options().native([], 1, "tpu:0"))
    assert raised.value.code == "E0702" and "tpu:0" in raised.value.message


def test_models_of_every_kind_have_plans() -> None:
    """Whole layers: nothing of them runs in an interpreter, and torch runs what it has libraries for."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    parameters = dict(layer.named_parameters())

    def f(x: torch.Tensor, *values: torch.Tensor) -> Any:
        return (torch.func.functional_call(layer, dict(zip(parameters, values, strict=True)), (x, x.new_zeros(6, 6))),)

    gm = traced(f, torch.randn(2, 6, 32), *(p.detach() for p in parameters.values()))
    kernels, calls = explained(planned(gm))
    assert kernels
    assert all("mm" in call or "attention" in call or call == "aten._to_copy.default" for call in calls), calls


def test_memory_has_a_summary() -> None:
    text = oxyfuel.memory_summary("cpu")
    assert text.startswith("cpu (") and "in use by us" in text and "kept for reuse" in text
    if not torch.cuda.is_available():
        assert oxyfuel.memory_summary().startswith("cpu (")
        with pytest.raises((oxyfuel.OxyfuelError, RuntimeError)):
            oxyfuel.memory_summary("cuda:0")


def test_the_state_of_a_generator_is_wherever_attention_left_it() -> None:
    """Tracing says that it is on the GPU; on a GPU it is on the CPU unless a graph is recorded."""
    with FakeTensorMode():
        q = torch.empty(2, 4, 16, 8, device=GPU, dtype=torch.bfloat16)

        def forward(q: torch.Tensor) -> Any:
            return list(torch.ops.aten._scaled_dot_product_efficient_attention.default(q, q, q, None, True, 0.1))

        gm = make_fx(forward)(q)
        said = json.loads(describe(gm, "forward").text)
        assert [item["kind"] for item in said["nodes"][0]["results"]] == ["tensor", "tensor", "object", "object"]
        out, scale, seed, offset = forward(q)

        def backward(q: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, seed: torch.Tensor, offset: torch.Tensor) -> Any:
            back = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
            return list(back(out, q, q, q, None, out, scale, seed, offset, 0.1, [True, True, True, False])[:3])

        gm = make_fx(backward)(q, out, scale, seed, offset)
    assert [item["kind"] for item in json.loads(describe(gm, "backward").text)["inputs"]] == ["tensor", "tensor", "tensor", "object", "object"]


def test_what_stands_in_the_way_of_a_recording_is_known_before() -> None:
    from oxyfuel.compiled import _facts

    def facts(f: Any, *inputs: torch.Tensor, role: str = "inference", mode: str = "reduce-overhead", steps: int = 9, **options: Any) -> Any:
        gm = traced(f, *inputs)
        return _facts(gm, describe(gm, role), steps, Options(mode=mode, **options), role)

    x = torch.randn(3, 4)
    plain = lambda x: (x.exp(),)  # noqa: E731
    assert facts(plain, x, mode="default") is None and facts(plain, x, mode="max-autotune").obstacle is None
    assert facts(plain, x).device == "cuda:0"
    # Both graphs of a training step are recorded; what a forward kept for its backward stays where it is.
    assert facts(plain, x, role="forward").obstacle is None and facts(plain, x, role="backward").static == (0,)
    assert facts(lambda tangents_1, y: (tangents_1 * y,), x, x, role="backward").static in ((1,), (0, 1))
    assert "steps" in facts(plain, x, steps=2).obstacle
    assert "GPU alone" in facts(lambda x, n: (x * n,), x, torch.tensor(2.0)).obstacle
    assert "GPU alone" in facts(lambda x: (x.cpu(),), x).obstacle
    assert facts(lambda x, y: (x.add_(y) * 2,), x, x).written == (0,)
    assert facts(plain, x, cudagraphs="off") is None and facts(plain, x, mode="default", cudagraphs="require", steps=1).required
    assert facts(plain, x, cudagraph_memory_limit=77).limit == 77
    with pytest.raises(oxyfuel.OxyfuelError) as raised:
        facts(lambda x: (x.cpu(),), x, cudagraphs="require")
    assert raised.value.code == "E0713" and "GPU alone" in raised.value.message


def test_a_graph_that_is_not_recorded_is_called_as_it_is() -> None:
    from oxyfuel.recorded import Facts, Recorder

    given: list[Any] = []
    recorder = Recorder(lambda inputs: given.extend(inputs) or (1,), Facts("cuda:0", (), (), "for a reason"))
    assert recorder([5, 6]) == (1,) and given == [5, 6] and recorder.replayed == 0


def around_the_cpu(x: torch.Tensor, w: torch.Tensor, n: torch.Tensor) -> Any:
    a = torch.softmax(x * n, -1)
    b = (a.cpu() + 1).cuda()
    return a.exp() * b + w, w.sum(0), b


def test_a_graph_is_cut_around_what_is_not_done_on_the_gpu() -> None:
    x, w, n = torch.randn(64, 32), torch.randn(64, 32), torch.tensor(2.0)
    gm = traced(around_the_cpu, x, w, n)
    parts = cut(gm, GPU)
    assert parts is not None and [part.on_gpu for part in parts] == [False, True, False, True]
    # The number comes first; what does not wait for the CPU is in the first segment.
    names = [[str(node.target) for node in part.gm.graph.nodes if node.op == "call_function"] for part in parts]
    assert names[0] == ["aten._to_copy.default"] and names[2] == ["aten._to_copy.default", "aten.add.Tensor", "aten._to_copy.default"]
    assert "aten.sum.dim_IntList" in names[1] and "aten.exp.default" in names[1] and names[3] == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert not parts[1].beside and not parts[3].beside
    reads, away, there, back = (*parts[0].beside.values(), *parts[2].beside.values())
    assert reads.startswith("it reads ") and away == there == "its result is on cpu" and back.startswith("it reads add") and all(why.endswith("which is on cpu") for why in (reads, back))

    # Every segment is a graph of the GPU alone.
    for part in parts:
        assert not part.on_gpu or describe(part.gm, "inference").beside is None
    # Here the CPU stands for the GPU: what each part is given and gives is what the whole is.
    for part in parts:
        for node in part.gm.graph.find_nodes(op="call_function", target=torch.ops.aten._to_copy.default):
            node.kwargs = {**node.kwargs, "device": CPU}
        part.gm.recompile()
    segments = Segments(gm, parts, [lambda values, part=part: part.gm(*values) for part in parts])
    given = [x, w, n]
    got = segments(given)
    a = torch.softmax(x * n, -1)
    for mine, theirs in zip(got, (a.exp() * (a + 1) + w, w.sum(0), a + 1), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert given == []


def test_writes_come_behind_every_segment_that_reads_what_was_there() -> None:
    def f(state: torch.Tensor, x: torch.Tensor) -> Any:
        y = (x.cpu() * 2).cuda() + state
        state.add_(x)
        return (y,)

    parts = cut(traced(f, torch.zeros(8), torch.ones(8)), GPU)
    assert parts is not None and [part.on_gpu for part in parts] == [False, True]
    targets = [str(node.target) for node in parts[1].gm.graph.nodes if node.op == "call_function"]
    assert any("add_" in target or "copy_" in target for target in targets)
    assert targets.index("aten.add.Tensor") < next(i for i, target in enumerate(targets) if target.endswith("_.Tensor") or "copy_" in target)


def test_nothing_is_cut_where_sizes_change_or_the_gpu_has_nothing_to_do() -> None:
    assert cut(traced(lambda x: (x.cpu(),), torch.randn(3)), GPU) is None
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
        x, i = torch.empty(20, 4, device=GPU), torch.empty(3, dtype=torch.int64)
        assert cut(make_fx(lambda x, i: [x.exp() * i[0].item()])(x, i), GPU) is None


def test_a_graph_in_segments_is_explained_segment_by_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    from oxyfuel import compiled

    explain = importlib.import_module("oxyfuel.explain")

    native = Options.native
    monkeypatch.setattr(Options, "native", lambda self, external, threads, device, *rest: native(self, external, threads, "null", *rest))
    gm = traced(around_the_cpu, torch.randn(64, 32), torch.randn(64, 32), torch.tensor(2.0))
    code = compiled.compile_graph(gm, Options(target=H200, mode="reduce-overhead"), "inference")
    assert isinstance(code, compiled.SegmentedCode)
    assert [part.recorder is not None for part in code.codes] == [False, True, False, True]
    with explain._recorded() as reports:
        code.tell(gm, 0.1)
    assert [report.role for report, _, _ in reports] == ["inference beside the segments", "inference segment 1 of 2", "inference beside the segments", "inference segment 2 of 2"]
    assert "add" in reports[2][0].cause and reports[1][0].kernels and reports[3][0].kernels
    for report, _, recorder in reports:
        report.recording = None if recorder is None else recorder.said()
    # Here both segments are short ones.
    outside = explain._outside([report for report, _, _ in reports])
    assert outside.recorded == 0 and outside.steps == len(outside.outside) == sum(len(report.steps) for report, _, _ in reports)
    reasons = {(one.graph, one.step): one.reason for one in outside.outside}
    assert reasons[("inference beside the segments", "add")] == "its result is on cpu" and "take less time than" in reasons[("inference segment 1 of 2", reports[1][0].steps[0])]
    # One that has to be launched as one is an error still.
    with pytest.raises(oxyfuel.OxyfuelError):
        compiled.compile_graph(traced(around_the_cpu, torch.randn(4, 4), torch.randn(4, 4), torch.tensor(2.0)), Options(target=H200, cudagraphs="require"), "inference")


def test_weighed_counts_are_of_the_weights_type() -> None:
    # Tracing says that they are counts.
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        mode.shape_env = None
        x, w = torch.zeros(4, dtype=torch.int64, device=GPU), torch.zeros(4, device=GPU)
        graph = torch.fx.Graph()
        nodes = [graph.placeholder(name) for name in ("x", "w")]
        for node, value in zip(nodes, (x, w), strict=True):
            node.meta["val"] = value
        results = [graph.call_function(torch.ops.aten.bincount.default, args) for args in ((nodes[0],), (nodes[0], nodes[1]))]
        for node in results:
            node.meta["val"] = torch.empty(7, dtype=torch.int64, device=GPU)
        graph.output(results)
    said = json.loads(describe(torch.fx.GraphModule({}, graph), "inference").text)
    assert [node["results"][0]["kind"] for node in said["nodes"]] == ["tensor", "object"]


def test_a_number_read_through_views_of_the_cpu_s_is_one_call() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
        x, i = torch.empty(20, 4, device=GPU), torch.empty(3, dtype=torch.int64)
        gm = make_fx(lambda x, i: [x * i[1:2].squeeze(0).item(), x + i[2].item()])(x, i)
    said = describe(gm, "inference")
    calls = [node["target"] for node in json.loads(said.text)["nodes"] if not node["target"].startswith("aten.m") and not node["target"].startswith("aten.add")]
    assert len(calls) == 2 and all(call.startswith("object.") for call in calls)
    assert [element(torch.tensor([5, 6, 7])) for element in said.objects] == [6, 7]


def test_the_indexer_is_at_most_ten_launches() -> None:
    """As tensor operators: nothing is copied for the sake of a repeated index, a written slice or a put."""
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench" / "engines"))
    try:
        from torch_workloads import pq_indexer
    finally:
        del sys.path[0]

    inputs = torch.randn(1, 32, 1, 128), torch.randn(1, 8, 8, 64, 16), torch.randint(0, 64, (1, 32640, 8, 8))
    gm = traced(torch.func.functionalize(pq_indexer, remove="mutations"), *inputs)
    gm.graph.eliminate_dead_code()
    # Some versions of torch trace numbers that are written as constants of the CPU's.
    on_the_gpu(gm, GPU)
    kernels, calls = explained(planned(gm))
    assert calls == ["aten.bmm.default"]
    # Phases are launches of their own, unless all of them share one.
    assert sum(1 if kernel["gathered"] else len(kernel["grids"]) for kernel in kernels) + len(calls) <= 10
    # The look-up reads the codes where they are.
    (lookup,) = [kernel for kernel in kernels if "gather" in kernel["ops"]]
    assert lookup["bytes"] < 1.3 * inputs[2].numel() * 8
    assert not any("slice_scatter" in kernel["ops"] and kernel["bytes"] > 2**21 for kernel in kernels if kernel is not lookup)
