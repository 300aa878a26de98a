"""Attention that is written out, for torch's fused kernels.

    bmm(softmax(bmm(q, k) * scale + mask), v)  ─▶  scaled_dot_product_attention(q, k, v, mask, scale=scale)

The Rust side finds it (`crates/transform/src/attention.rs`; what it says is in `crates/capture/src/sites.rs`), in an inference graph and, with its gradients, in a joint graph before that is cut: the scores, which grow
with the square of the length, are in nobody's memory then. Which fused kernel takes the operands torch decides: its attention is traced on them, and what comes of that is put in. Where that is products again, the
graph stays as it is.

Kernels of ours find attention by themselves when a graph is compiled; this is for the products that torch runs, and for gradients, which are cut off before.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from . import _native, _torch
from .describe import describe
from .rewrite import DECISIONS, Editor, Unsaid

aten = torch.ops.aten

FORWARD, BACKWARD = "oxyfuel.attention", "oxyfuel.attention_backward"
# What a trace has of operands that it takes from autograd.
_THE_SAME = (aten.detach.default, aten.alias.default)
# What torch's attention is where none of its fused kernels takes the operands.
_PARTS = (aten.bmm.default, aten._softmax.default, aten._safe_softmax.default, aten._scaled_dot_product_attention_math.default)


def fuse_attention(gm: fx.GraphModule) -> int:
    """Edits the graph in place; how many attentions there were that torch computes by one kernel now."""
    if not _may_have_some(gm):
        return 0
    found = json.loads(_native.find_attention(describe(gm, "attention").text))["sites"]
    editor = Editor(gm.graph)
    # Where a call writes memory, a copy may be there to keep what was in it.
    copies = not any(_torch.is_mutable_call(node.target) and node.target is not aten.copy_.default for node in gm.graph.nodes)
    made = sum(_Site(editor, site, copies).apply() for site in found)
    if made:
        gm.graph.lint()
        gm.recompile()
    return made


def _may_have_some(gm: fx.GraphModule) -> bool:
    """Whether the graph has a softmax and two products: to describe a graph takes longer than to look."""
    softmaxes, *products = (gm.graph.find_nodes(op="call_function", target=target) for target in (aten._softmax.default, aten.bmm.default, aten.mm.default))
    return bool(softmaxes) and sum(map(len, products)) >= 2


class _Site:
    """One attention, all or nothing."""

    def __init__(self, editor: Editor, said: dict[str, Any], copies: bool) -> None:
        self.editor, self.graph, self.said = editor, editor.graph, said
        # Views and copies may be looked through; else views alone.
        self.through = (aten.view.default, aten.clone.default) if copies else (aten.view.default,)
        self.made: list[fx.Node] = []
        self.gone: set[fx.Node] = set()
        # What the host hung on the node that the next ones come before.
        self.meta: dict[str, Any] = {}
        # Of an attention with gradients: the trace, and what its nodes are in the graph.
        self.traced: dict[str, tuple[fx.Graph, dict[fx.Node, Any]]] = {}
        # Of each call: what it gives.
        self.results: dict[str, list[fx.Node]] = {}

    def apply(self) -> bool:
        try:
            for edit in self.said["new"]:
                self.insert(edit)
            replaced = [(self.value(edit["value"]), self.as_before(edit)) for edit in self.said["replace"]]
        except Unsaid:
            for node in reversed(self.made):
                self.graph.erase_node(node)
            return False
        for old, new in replaced:
            old.replace_all_uses_with(new, propagate_meta=False)
            # Another attention may read it.
            self.editor.nodes[old.name] = new
        for old, _ in replaced:
            self.clean(old)
        for node in reversed(self.made):
            self.clean(node)
        return True

    # ---- what is put in ----------------------------------------------------------------------------------------------

    def insert(self, edit: dict[str, Any]) -> None:
        before = self.editor.nodes[edit["before"]]
        if any(before.meta.get(key) is not None for key in DECISIONS):
            # Somebody decided what of this is computed again.
            raise Unsaid
        self.meta = before.meta
        args = [self.value(arg) for arg in edit["args"]]
        with self.graph.inserting_before(before):
            if edit["target"] == FORWARD:
                self.forward(edit["name"], args)
            elif edit["target"] == BACKWARD:
                self.backward(edit["name"], *args)
            else:
                kwargs = {key: self.value(arg) for key, arg in edit["kwargs"].items()}
                self.results[edit["name"]] = [self.operator(_torch.overload(edit["target"]), args, kwargs)]

    def value(self, said: Any) -> Any:
        if isinstance(said, dict) and said.get("node") in self.results:
            return self.results[said["node"]][said.get("index", 0)]
        if isinstance(said, dict) and "index" in said:
            return self.part(self.editor.nodes[said["node"]], said["index"])
        return self.editor.argument(said, None)

    def part(self, node: fx.Node, index: int) -> fx.Node:
        parts = self.editor.parts(node, index)
        if not parts:
            raise Unsaid
        return parts[0]

    def add(self, target: Any, args: Any, kwargs: Any, value: Any) -> fx.Node:
        node = self.graph.call_function(target, tuple(args), kwargs)
        node.meta = {**self.meta, "val": value}
        self.made.append(node)
        return node

    def operator(self, target: Any, args: list[Any], kwargs: dict[str, Any]) -> fx.Node:
        values, named = fx.node.map_arg((args, kwargs), lambda arg: arg.meta["val"])
        with _torch.fake_mode_of(self.meta["val"]):
            try:
                value = target(*values, **named)
            except (RuntimeError, ValueError):
                if target is not aten.view.default:
                    raise
                # No strides can express it.
                args[0] = self.operator(aten.clone.default, args[:1], {"memory_format": torch.contiguous_format})
                return self.operator(target, args, kwargs)
        return self.add(target, args, kwargs, value)

    def forward(self, name: str, args: list[Any]) -> None:
        *operands, mask, causal, scale = args
        given = [*(self.in_rows(self.original(node)) for node in operands), *([] if mask is None else [mask])]
        trained = any(edit["target"] == BACKWARD and edit["args"][0] == name for edit in self.said["new"])
        traced = _traced([node.meta["val"] for node in given], causal, scale, trained)
        inputs = [node for node in traced.nodes if node.op == "placeholder"]
        known: dict[fx.Node, Any] = dict(zip(inputs, given, strict=False))
        gradient = inputs[-1] if trained else None
        late = {gradient}
        for node in traced.nodes:
            if not late.isdisjoint(node.all_input_nodes):
                late.add(node)
        self.put(traced, known, [node for node in traced.nodes if node not in late])
        (outputs,) = traced.output_node().args
        self.results[name] = [known[outputs[0]]]
        self.traced[name] = traced, known

    def original(self, node: fx.Node) -> fx.Node:
        """The same values where they lay before they were copied for a product."""
        found, below = node, node
        while below.target in self.through:
            below = below.args[0]
            if below.meta["val"].shape == node.meta["val"].shape:
                found = below
        if found.target is not aten.permute.default:
            return found
        turned = self.original(found.args[0])
        if turned.target is aten.permute.default and [turned.args[1][dim] for dim in found.args[1]] == list(range(len(found.args[1]))):
            return self.original(turned.args[0])
        return found if turned is found.args[0] else self.operator(aten.permute.default, [turned, found.args[1]], {})

    def in_rows(self, node: fx.Node) -> fx.Node:
        """The same values, elements of a row side by side, as fused kernels want them."""
        if node.meta["val"].stride(-1) == 1:
            return node
        return self.operator(aten.clone.default, [node], {"memory_format": torch.contiguous_format})

    def backward(self, name: str, forward: str, grad: fx.Node) -> None:
        traced, known = self.traced[forward]
        inputs = [node for node in traced.nodes if node.op == "placeholder"]
        known[inputs[-1]] = grad
        self.put(traced, known, [node for node in traced.nodes if node not in known])
        (outputs,) = traced.output_node().args
        self.results[name] = [known[node] for node in outputs[1:]]

    def put(self, traced: fx.Graph, known: dict[fx.Node, Any], nodes: list[fx.Node]) -> None:
        for node in nodes:
            if node.op != "call_function":
                continue
            if node.target in _THE_SAME:
                known[node] = known[node.args[0]]
                continue
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
            known[node] = self.operator(node.target, list(args), dict(kwargs))

    # ---- in the place of what was there ------------------------------------------------------------------------------

    def as_before(self, edit: dict[str, Any]) -> fx.Node:
        """The new value, lying as the old one did."""
        old, new = self.value(edit["value"]), self.value(edit["with"])
        was, now = old.meta["val"], new.meta["val"]
        if was.shape != now.shape or was.dtype != now.dtype:
            raise Unsaid
        if was.stride() == now.stride():
            return new
        if not was.is_contiguous():
            raise Unsaid
        self.meta = old.meta
        with self.graph.inserting_before(old):
            return self.operator(aten.clone.default, [new], {"memory_format": torch.contiguous_format})

    def clean(self, node: fx.Node) -> None:
        """Takes out a node that nobody reads, and what only it read."""
        if node in self.gone or node.users or node.op != "call_function" or _torch.is_mutable_call(node.target) or _torch.is_impure(node):
            return
        operands = node.all_input_nodes
        self.graph.erase_node(node)
        self.gone.add(node)
        for operand in operands:
            self.clean(operand)


def _traced(given: list[torch.Tensor], causal: bool, scale: float, trained: bool) -> fx.Graph:
    """torch's attention on queries, keys, values and perhaps a mask as a graph: the result, with `trained` also the gradients of the first three for one of the result, which is the last input. `Unsaid` where torch has no kernel for them."""
    groups = given[1].shape[1]
    repeats = given[0].shape[1] // groups
    # Heads that are shared are repeated for kernels that do not know of them.
    for times in dict.fromkeys((1, repeats)):
        with _torch.disable_modes(), _torch.fake_mode_of(given[0]):
            try:
                graph = _traced_so(given, causal, scale, trained, times)
            except (RuntimeError, AssertionError, NotImplementedError):
                # On a machine without the GPU nobody can say which kernel it would be.
                continue
        if not any(node.target in _PARTS for node in graph.nodes):
            return graph
    raise Unsaid


def _traced_so(given: list[torch.Tensor], causal: bool, scale: float, trained: bool, times: int) -> fx.Graph:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if times > 1:
            k, v = (x.unsqueeze(2).expand(-1, -1, times, -1, -1).reshape(x.shape[0], -1, *x.shape[2:]) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1])

    def with_gradients(*values: torch.Tensor) -> list[torch.Tensor]:
        *operands, grad = values
        wanted = [x.detach().requires_grad_() for x in operands[:3]]
        out = attend(*wanted, *operands[3:])
        return [out, *torch.autograd.grad(out, wanted, grad)]

    if not trained:
        with torch.no_grad():
            return _torch.make_fx(lambda *values: [attend(*values)])(*given).graph
    q, _, v, *_ = given
    with torch.enable_grad():
        return _torch.make_fx(with_gradients)(*given, q.new_empty((*q.shape[:3], v.shape[3]))).graph
