"""An FX graph as plain data.

`describe` walks an ATen graph of AOTAutograd once and says it in JSON: symbols, inputs, nodes, outputs and write-backs. No rule and no
lowering lives here: what a node means is the Rust side's table. What cannot be said as data (subgraphs of higher-order operators,
generators, constants) goes into a list of objects beside the text, and the text names it by number.

    {"name": "add", "target": "aten.add.Tensor", "args": [{"node": "x"}, 1], "results": [{"kind": "tensor", "type": {...}}], ...}

- Sizes are expressions over symbols s0, s1, ..., renamed from sympy's; nodes that only compute sizes disappear into them.
- `getitem` disappears into `{"node": "split", "index": 1}`.
- A `copy_` into a graph input that nothing reads afterwards becomes a mutation; any other write is a call of torch's, in order with all that touch the same memory.
- A graph has one device: the GPU that holds most of its values, or the CPU. A value that is no plain tensor there is of kind `object`: only torch's own operators touch it.
- A number of the CPU's (a tensor without dims) that meets tensors of a GPU is copied there first, by a call of torch's.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import math
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from . import _torch, errors, layouts
from .errors import OxyfuelError
from .expressions import Inexpressible, Symbols

# Element types that the Rust side has; any other makes a tensor an object.
DTYPES: dict[torch.dtype, str] = {
    getattr(torch, name): name
    for name in (
        "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
    ).split()
    if hasattr(torch, name)
}

# Bytes of a constant that is said with its elements.
SMALL = 1024


# Bytes at whose multiples torch's allocators begin, at least.
BEGINS = 64

# Operators whose result is a number that only running them tells.
READERS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.sym_storage_offset.default)


def tells(node: fx.Node, value: torch.SymInt) -> bool:
    """Whether the node gives a symbol its number. A graph that was traced again names what it reads by new symbols and does not always say so."""
    return bool(node.meta.get("unbacked_bindings")) or (node.target in READERS and value.node.expr.is_Symbol)



@dataclasses.dataclass(slots=True)
class Description:
    """The text, and what the text names by number."""

    text: str
    objects: list[Any]
    device: str
    """Where everything is that kernels of ours touch."""
    written: tuple[int, ...]
    """Inputs that the graph writes."""
    beside: str | None
    """What of it is not done on that device, or asks it for a number: the first such node."""


# Whose operators are functions of their arguments, in whatever order.
OURS = ("aten", "prims", "oxyfuel")


class Call:
    """A call whose arguments have a form that the text does not know (dictionaries, slices): one object that takes the nodes in them
    one after the other."""

    def __init__(self, target: Any, args: Any, kwargs: Any) -> None:
        self.target, self.args, self.kwargs = target, args, kwargs

    def __call__(self, *values: Any) -> Any:
        args, kwargs = fx.node.map_aggregate((self.args, self.kwargs), lambda a: values[a.index] if isinstance(a, _Place) else a)
        return self.target(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        if getattr(self.target, "ordered", False) or isinstance(self.target, _torch.HigherOrderOperator):
            # Its arguments may be numbers that mean something in this process alone, such as which Triton kernel it launches.
            raise _torch.Uncacheable(f"a call of {self.target} belongs to its process")
        return self.__dict__


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    index: int


class Evaluate:
    """A size that the text cannot say, computed by sympy when the graph runs."""

    def __init__(self, expression: Any, symbols: list[Any]) -> None:
        self.expression, self.symbols = expression, symbols

    def __call__(self, *values: int) -> int:
        return int(self.expression.xreplace(dict(zip(self.symbols, map(_torch.sympy.Integer, values)))))


class Element:
    """A number that is read through views of a tensor of another device's, one after the other: one call instead of a call a view."""

    def __init__(self, views: list[tuple[Any, Any, Any]]) -> None:
        self.views = views

    def __call__(self, value: torch.Tensor) -> Any:
        for target, args, kwargs in self.views:
            value = target(value, *args, **kwargs)
        return value.item()


class Extent:
    """A size of a tensor that the text takes for an object."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def __call__(self, value: torch.Tensor) -> int:
        return int(value.shape[self.dim])


def describe(gm: fx.GraphModule, name: str) -> Description:
    """Says the graph as data, or raises an `OxyfuelError` that names what cannot be said."""
    return _Describer(gm).run(name)


CPU = torch.device("cpu")


def device_of(gm: fx.GraphModule) -> torch.device:
    """Where kernels of ours run: on the GPU that holds most of the graph's values, the first of several that hold as many; where none holds any, on the CPU."""
    held: collections.Counter[torch.device] = collections.Counter()
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor) and item.device.type == "cuda":
                held[item.device] += 1
    return held.most_common(1)[0][0] if held and torch.version.hip is None else CPU


def is_plain(value: Any, device: torch.device) -> bool:
    """Whether a value is a tensor that kernels of ours on that device may read."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and value.device == device
        and value.dtype in DTYPES
        and not value.is_conj()
        and not value.is_neg()
        and not _torch.is_zero(value)
        and _torch.is_ordinary(value)
    )


def _weighed(node: fx.Node) -> torch.dtype | None:
    """What weighed counts are of: f32 for such weights, else f64. None where nothing is weighed."""
    weights = node.args[1] if len(node.args) > 1 else node.kwargs.get("weights")
    if not isinstance(weights, fx.Node):
        return None
    return torch.float32 if weights.meta["val"].dtype == torch.float32 else torch.float64


def only_copied(node: fx.Node, index: int) -> bool:
    """Whether a result is read by casts alone, which say themselves what they make of it."""
    readers = [user for user in node.users if user.target is operator.getitem and user.args[1] == index]
    return all(user.target is torch.ops.aten._to_copy.default and "dtype" in user.kwargs for reader in readers for user in reader.users)


# Results that have the element type of an argument, and which, or one of their own: where tracing says another, the host's own calls alone may look at them, and casts.
MISTOLD: dict[str, dict[int, int | torch.dtype | Callable[[fx.Node], torch.dtype | None]]] = {
    "aten.bincount.default": {0: _weighed},
    "aten._batch_norm_with_update_functional.default": {4: 3, 5: 4},
    "aten._native_batch_norm_legit_functional.default": {3: 3, 4: 4},
    "aten.unique_dim.default": {1: torch.int64, 2: torch.int64},
    "aten.unique_consecutive.default": {1: torch.int64, 2: torch.int64},
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Target:
    """What is known of a callable, whatever it is called with."""

    name: str | None
    """By which the run side finds it; none where it has no name."""
    ordered: bool | None
    """Whether its calls keep their order; none where that depends on the call."""
    mutable: bool
    """Whether it writes an argument."""
    shares: bool
    """Whether a result may be the memory of an argument."""
    mislaid: bool


class _Describer:
    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm = gm
        self.device = device_of(gm)
        # Numbers of the CPU's that a GPU's operators read: where they are on the GPU.
        self.brought: dict[fx.Node, Any] = {}
        self.symbols = Symbols(_torch.shape_env_of(gm))
        self.objects: list[Any] = []
        self.object_of: dict[int, int] = {}
        self.nodes: list[dict[str, Any]] = []
        # What a use of an FX node becomes.
        self.uses: dict[fx.Node, Any] = {}
        self.results: dict[fx.Node, list[dict[str, Any]]] = {}
        # By id: operators are slow to hash, and a graph calls few of them many times.
        self.targets: dict[int, _Target] = {}
        # Tokens that order effects: traced as tensors, and nothing at all when the graph runs.
        self.tokens = {node.args[0] for node in gm.graph.nodes if node.target is _torch.with_effects}
        # Symbols that have a number by now.
        self.told: set[Any] = set()
        # States of generators, which only calls of torch's touch: where they lie is known when a call has run.
        self.states = self.generators() if self.device != CPU else set()
        # Views that nothing but the reading of a number looks at, and what each such reading looks through.
        self.passed: set[fx.Node] = set()
        self.through: dict[fx.Node, list[fx.Node]] = {}
        # Values whose memory calls of torch's write: objects, whose readers keep their order with the writers.
        self.in_place: set[fx.Node] = set()

    def run(self, name: str) -> Description:
        inputs: list[dict[str, Any]] = []
        outputs: list[Any] = []
        write_backs = self.writes()
        mutations: list[dict[str, Any]] = []
        constants: list[dict[str, Any]] = []
        placeholders: dict[fx.Node, int] = {}
        for node in self.gm.graph.find_nodes(op="placeholder"):
            placeholders[node] = len(inputs)
            inputs.append(self.input(node))
        if self.symbols.shape_env is not None:
            # Numbers and tensors tell first: nothing has to be called for them.
            values = [(node.meta.get("val"), {"node": node.name}, said["kind"]) for node, said in zip(placeholders, inputs, strict=True)]
            self.told.update(value.node.expr for value, _, _ in values if isinstance(value, torch.SymInt))
            self.extents(sorted(values, key=lambda value: value[2] == "object"))
        self.look_through()
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "get_attr":
                self.uses[node] = self.attribute(node, constants)
            elif node in write_backs:
                target, source = node.args[0], node.args[1]
                mutations.append({"input": placeholders[target], "value": self.arg(source)})
                self.uses[node] = self.uses[target]
            elif node.op == "call_function":
                self.call(node)
            elif node.op == "output":
                outputs = [self.arg(value) for value in node.args[0]]
            else:
                raise _unsupported(f"node {node.name} is a {node.op}")
        description = {
            "version": 1,
            "name": name,
            "symbols": self.symbols.described(),
            "inputs": inputs,
            "constants": constants,
            "nodes": self.nodes,
            "outputs": outputs,
            "mutations": mutations,
            "objects": len(self.objects),
        }
        # Made here, of plain data: it has no circles.
        text = json.dumps(description, check_circular=False, separators=(",", ":"))
        written = tuple(place for node, place in placeholders.items() if node in self.in_place or any(m["input"] == place for m in mutations))
        return Description(text, self.objects, str(self.device), written, None if self.device == CPU else self.beside())

    def beside(self) -> str | None:
        """The first node that works elsewhere than on the graph's device, or that the host waits for."""
        for node in self.gm.graph.nodes:
            value = self.value(node)
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, torch.Tensor) and item.device != self.device:
                    return str(node.name)
            if node.target in READERS or node.meta.get("unbacked_bindings"):
                return str(node.name)
        return None

    def generators(self) -> set[fx.Node]:
        """Inputs that are the state of a generator to a call."""
        found: set[fx.Node] = set()
        for node in self.gm.graph.nodes:
            if isinstance(node.target, _torch.OpOverload):
                arguments, _ = _torch.random_state(node.target)
                found.update(source for place in arguments if place < len(node.args) for source in _nodes(node.args[place]))
        return {node for node in found if node.op == "placeholder"}

    def target(self, node: fx.Node) -> _Target:
        """What is known of the callable of a call."""
        target = node.target
        known = self.targets.get(id(target))
        if known is None:
            plain = isinstance(target, _torch.OpOverload)
            known = self.targets[id(target)] = _Target(
                name=_target_name(target),
                ordered=_is_ordered(node) if plain else None,
                mutable=plain and _torch.is_mutable(target),
                shares=plain and _torch.shares(target),
                mislaid=plain and target in layouts.MISLAID,
            )
        return known

    def writes(self) -> set[fx.Node]:
        """The `copy_` nodes that are said as mutations. Whatever else is written is left to torch, and `in_place` says where.

        A mutation takes place when everything has been read. Its target is a graph input that kernels of ours may write, and nothing reads or writes it afterwards. All other
        writes are calls of torch's in their order, and so is then every call that touches the memory that they write.
        """
        found: dict[fx.Node, fx.Node] = {}
        calls = [node for node in self.gm.graph.nodes if node.op == "call_function"]
        if not any(self.target(node).mutable for node in calls):
            return set()
        # What a value is a part of.
        whole: dict[fx.Node, fx.Node] = {}
        for node in calls:
            late = {value for value in node.all_input_nodes if whole.get(value, value) in found}
            same = self.same_memory(node)
            if same:
                whole[node] = whole.get(same[0], same[0])
            if node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder":
                target, source = node.args[:2]
                plain = isinstance(source, fx.Node) and all(is_plain(end.meta.get("val"), self.device) for end in (target, source))
                if plain and not late:
                    found[target] = node
                    continue
                self.in_place.add(target)
            elif self.target(node).mutable:
                self.in_place.update(_nodes(_torch.shared(node.target, node.args, node.kwargs, written=True)))
            self.in_place.update(late)
        # The input itself is what it holds then; a part of it that was looked at before would be old.
        results = _nodes(self.gm.graph.output_node().args[0])
        self.in_place.update(value for value in results if value not in found.values() and value in whole and whole[value] in found)
        self.in_place.update(self.misplaced(found))
        while self.in_place:
            before = len(self.in_place)
            self.spread()
            # What torch's calls compute is written by them.
            self.in_place.update(target for target, node in found.items() if node.args[1] in self.in_place)
            if len(self.in_place) == before:
                break
        return {node for target, node in found.items() if target not in self.in_place}

    def misplaced(self, write_backs: dict[fx.Node, fx.Node]) -> Iterator[fx.Node]:
        """Inputs that overlap are traced as windows on one, and a result that is such a window is found again by where it begins, which a result of ours does not keep."""
        written = {node.args[1] for node in write_backs.values()}
        for value in self.gm.graph.output_node().args[0] if written else ():
            if isinstance(value, fx.Node) and value.target is torch.ops.aten.as_strided.default and value.args[0] in written:
                place = value.meta["val"].storage_offset()
                if isinstance(place, torch.SymInt) or place != 0:
                    yield value

    def spread(self) -> None:
        """Adds to `in_place` whatever may be the same memory."""
        for node in [*self.gm.graph.nodes, *reversed(self.gm.graph.nodes)]:
            same = self.same_memory(node)
            if same and (node in self.in_place or not self.in_place.isdisjoint(same)):
                self.in_place.update(same, [node])

    def same_memory(self, node: fx.Node) -> list[fx.Node]:
        """The values whose memory a value may be."""
        if node.target is operator.getitem:
            return _nodes(node.args[0])
        if node.op != "call_function" or not self.target(node).shares:
            return []
        return _nodes(_torch.shared(node.target, node.args, node.kwargs))

    def input(self, node: fx.Node) -> dict[str, Any]:
        value = node.meta.get("val")
        if node in self.tokens or node in self.in_place or node in self.states:
            # A token looks like a tensor while tracing; what comes in its place is anything.
            self.uses[node] = {"node": node.name}
            return {"name": node.name, "kind": "object"}
        if isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
            said = self.int(value)
            self.uses[node] = {"expr": said}
            return {"name": node.name, "kind": "int", "value": said}
        self.uses[node] = {"node": node.name}
        return {"name": node.name, **self.result(value)}

    def call(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and not tells(node, value):
            self.uses[node] = {"expr": self.int(value)}
            return
        if node in self.passed or (node.target is operator.getitem and self.fold(node)):
            return
        known = self.target(node)
        if known.mislaid:
            operands = fx.node.map_arg(node.args, lambda arg: arg.meta["val"])
            value = layouts.as_run(node.target, operands, node.kwargs, value)
        sequence = isinstance(value, (list, tuple))
        results = [self.result(item) for item in value] if sequence else [self.result(value)]
        if value is None and node.users:
            # The partitioner's own calls (random state that is saved and set again) are not traced: what is read of them is known when they have run.
            results = [{"kind": "object"}]
        if node.target is _torch.with_effects:
            results[0] = {"kind": "object"}
        if node in self.in_place:
            results = [{"kind": "object"} if result["kind"] == "tensor" else result for result in results]
        if self.device != CPU and isinstance(node.target, _torch.OpOverload):
            for index in _torch.random_state(node.target)[1]:
                results[index] = {"kind": "object"}
        target = known.name
        for index, source in MISTOLD.get(target, {}).items() if target else ():
            if isinstance(source, int):
                dtype = node.args[source].meta["val"].dtype
            else:
                dtype = source if isinstance(source, torch.dtype) else source(node)
            if dtype is not None and (value[index] if sequence else value).dtype != dtype:
                known_here = sequence and results[index]["kind"] == "tensor" and dtype in DTYPES and only_copied(node, index)
                results[index] = {"kind": "tensor", "type": results[index]["type"] | {"dtype": DTYPES[dtype]}} if known_here else {"kind": "object"}
        try:
            if target is None:
                raise Inexpressible
            args: list[Any]
            if node in self.through:
                target, args, kwargs = self.element(node)
            else:
                with self.bringing(node, results):
                    args = [self.arg(arg) for arg in node.args]
                    kwargs = {key: self.arg(arg) for key, arg in node.kwargs.items()}
        except Inexpressible:
            target, args, kwargs = self.wrapped(node)
        said: dict[str, Any] = {
            "name": node.name,
            "target": target,
            "args": args,
            "kwargs": kwargs,
            "results": results,
            "sequence": sequence,
            "ordered": self.touches(node) or (_is_ordered(node) if known.ordered is None else known.ordered),
        }
        place = _place(node)
        if place:
            said["at"] = place
        self.nodes.append(said)
        self.uses[node] = {"node": node.name}
        self.results[node] = results
        if self.symbols.shape_env is not None:
            uses = [{"node": node.name, "index": i} for i in range(len(results))] if sequence else [{"node": node.name}]
            self.extents([(item, use, result["kind"]) for item, use, result in zip(value if sequence else [value], uses, results, strict=True)])
        if node.target in READERS and isinstance(value, torch.SymBool):
            self.truth(node, value.node.expr)

    @contextlib.contextmanager
    def bringing(self, node: fx.Node, results: list[dict[str, Any]]) -> Iterator[None]:
        """Within, numbers of the CPU's that an elementwise operator of a GPU reads are said as copies of them on the GPU, each made once. Eager takes them as they are."""
        elementwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
        if self.device == CPU or not elementwise or all(result["kind"] != "tensor" for result in results):
            yield
            return
        before = {source: self.uses[source] for source in node.all_input_nodes if self.is_number(source)}
        for source, use in before.items():
            if source not in self.brought:
                value = self.value(source)
                said = {"name": f"{source.name}_brought", "target": "aten._to_copy.default", "args": [use], "kwargs": {"device": self.arg(self.device)}}
                results = [{"kind": "tensor", "type": self.type(value)}]
                self.nodes.append({**said, "results": results, "sequence": False, "ordered": self.touches(source)})
                self.brought[source] = {"node": said["name"]}
            self.uses[source] = self.brought[source]
        try:
            yield
        finally:
            self.uses.update(before)

    def is_number(self, node: fx.Node) -> bool:
        """Whether a value is one number in the CPU's memory that nothing writes."""
        value = self.value(node)
        return is_plain(value, CPU) and value.dim() == 0 and node not in self.in_place

    def value(self, node: fx.Node) -> Any:
        """What was traced, or the constant itself."""
        return attribute_of(self.gm, node.target) if node.op == "get_attr" else node.meta.get("val")

    def touches(self, node: fx.Node) -> bool:
        """Whether a call reads or writes memory that calls of torch's write."""
        return bool(self.in_place) and (node in self.in_place or not self.in_place.isdisjoint(node.all_input_nodes))

    def extents(self, values: list[tuple[Any, dict[str, Any], str]]) -> None:
        """Sizes that only an object tells are asked of it; what a tensor tells is read where it is made. The values with their uses and kinds."""
        for value, use, kind in values:
            for dim, size in enumerate(value.shape) if isinstance(value, torch.Tensor) else ():
                expression = size.node.expr if isinstance(size, torch.SymInt) else None
                if expression is None or not expression.is_Symbol or expression in self.told:
                    continue
                self.told.add(expression)
                if kind == "object":
                    self.number(str(self.int(size)), Extent(dim), [use])

    def look_through(self) -> None:
        """Finds numbers that are read through views of tensors that are not the graph's device's."""
        if self.device == CPU:
            return
        for node in self.gm.graph.find_nodes(op="call_function", target=torch.ops.aten._local_scalar_dense.default):
            views: list[fx.Node] = []
            source = node.args[0]
            while self.is_passing(source):
                views.insert(0, source)
                source = source.args[0]
            if views:
                self.passed.update(views)
                self.through[node] = views

    def is_passing(self, node: fx.Node) -> bool:
        """Whether a value is a view that one reader has, of numbers and a tensor of another device's that nothing writes."""
        if node.op != "call_function" or len(node.users) != 1 or node in self.in_place or not isinstance(node.target, _torch.OpOverload):
            return False
        others = _nodes((node.args[1:], node.kwargs))
        return node.target.is_view and not others and self.value(node).device != self.device and self.value(node.args[0]).device != self.device

    def element(self, node: fx.Node) -> tuple[str, list[Any], dict[str, Any]]:
        """A number read through views, as one call."""
        views = self.through[node]
        number = self.object(Element([(view.target, view.args[1:], view.kwargs) for view in views]))["object"]
        return f"object.{number}", [self.arg(views[0].args[0])], {}

    def fold(self, node: fx.Node) -> bool:
        """A part of a sequence of results is said where it is used."""
        source, index = node.args
        results = self.results.get(source)
        if results is None or not isinstance(index, int) or "index" in self.uses[source]:
            return False
        if not isinstance(source.meta.get("val"), (list, tuple)):
            return False
        index = range(len(results))[index]
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            self.uses[node] = {"expr": self.int(value)}
        else:
            self.uses[node] = {"node": source.name, "index": index}
        return True

    def wrapped(self, node: fx.Node) -> tuple[str, list[Any], dict[str, Any]]:
        """The call as an object that takes the nodes in its arguments in order."""
        found: list[Any] = []

        def place(value: Any) -> Any:
            if not isinstance(value, (fx.Node, torch.SymInt)):
                return value
            said = self.arg(value)
            if "object" in said:
                return self.objects[said["object"]]
            found.append(said)
            return _Place(len(found) - 1)

        args, kwargs = fx.node.map_aggregate((node.args, node.kwargs), place)
        number = self.object(Call(node.target, args, kwargs))["object"]
        return f"object.{number}", found, {}

    def result(self, value: Any) -> dict[str, Any]:
        if value is None:
            return {"kind": "none"}
        if isinstance(value, torch.SymInt):
            said = self.int(value)
            # Only a symbol of its own can be bound by a call.
            return {"kind": "int", "value": said} if re.fullmatch(r"s\d+", str(said)) else {"kind": "object"}
        if not is_plain(value, self.device):
            return {"kind": "object"}
        return {"kind": "tensor", "type": self.type(value)}

    def type(self, value: torch.Tensor) -> dict[str, Any]:
        """What is known of a tensor on the graph's device."""
        return {
            "dtype": DTYPES[value.dtype],
            "shape": [self.int(n) for n in value.shape],
            "strides": [self.int(n) for n in value.stride()],
            "device": str(self.device),
            "requires_grad": value.requires_grad,
            "align": self.alignment(value),
        }

    def alignment(self, value: torch.Tensor) -> int:
        """Bytes that divide a tensor's address: its place within memory that begins at such multiples tells. What of that matters is the compiler's to say."""
        place = value.storage_offset()
        return math.gcd(place * value.itemsize, BEGINS) if isinstance(place, int) else 1

    def int(self, value: int | torch.SymInt) -> int | str:
        """A size as a number or as text."""
        if not isinstance(value, torch.SymInt):
            return int(value)
        expression = value.node.expr
        try:
            return self.symbols.text(expression)
        except Inexpressible:
            return self.evaluated(expression)

    def evaluated(self, expression: Any) -> str:
        """A new symbol for a size that the text cannot say; a call computes it."""
        known = self.symbols.evaluated.get(expression)
        if known is None:
            free = sorted(expression.free_symbols, key=str)
            args = [{"expr": self.symbols.text(symbol)} for symbol in free]
            known = self.symbols.evaluated[expression] = self.symbols.fresh()
            self.number(known, Evaluate(expression, free), args)
        return known

    def truth(self, node: fx.Node, expression: Any) -> None:
        """A bool that was read is traced as `symbol == 1`; the symbol is the bool as a number."""
        free = list(expression.free_symbols)
        if len(free) == 1:
            self.number(str(self.symbols.text(free[0])), int, [{"node": node.name}])

    def number(self, symbol: str, function: Any, args: list[Any]) -> None:
        """A call that gives a symbol its number."""
        said = {"name": f"size_{symbol}", "target": f"object.{self.object(function)['object']}", "args": args, "kwargs": {}}
        self.nodes.append({**said, "results": [{"kind": "int", "value": symbol}], "sequence": False, "ordered": False})

    def attribute(self, node: fx.Node, constants: list[dict[str, Any]]) -> Any:
        """A small tensor is said with its elements, since nothing in a functional graph writes it; everything else is an object."""
        value = attribute_of(self.gm, node.target)
        ours = node not in self.in_place and is_plain(value, self.device)
        small = ours and type(value) is torch.Tensor and value.numel() * value.element_size() <= SMALL
        if not small or not value.is_contiguous():
            return self.object(value)
        constants.append({"name": node.name, "type": self.result(value)["type"], "data": _torch.bytes_of(value).hex()})
        return {"node": node.name}

    def object(self, value: Any) -> dict[str, Any]:
        """A value that the text names by number."""
        number = self.object_of.get(id(value))
        if number is None:
            number = self.object_of[id(value)] = len(self.objects)
            self.objects.append(value)
        return {"object": number}

    def arg(self, value: Any) -> Any:
        """An argument as data."""
        match value:
            case fx.Node():
                return self.uses[value]
            case None | bool() | str():
                return value
            case torch.SymInt():
                return {"expr": self.int(value)}
            case int():
                return value
            case float():
                return value if math.isfinite(value) else {"float": str(value)}
            case torch.dtype():
                return {"dtype": str(value).removeprefix("torch.")}
            case torch.device():
                return {"device": str(value)}
            case torch.layout():
                return {"layout": str(value).removeprefix("torch.")}
            case torch.memory_format():
                return {"memory_format": str(value).removeprefix("torch.")}
            case list():
                return [self.arg(item) for item in value]
            case tuple():
                return {"tuple": [self.arg(item) for item in value]}
            case _ if _has_nodes(value):
                raise Inexpressible
            case _:
                return self.object(value)


def _has_nodes(value: Any) -> bool:
    found = False

    def see(item: Any) -> Any:
        nonlocal found
        found = found or isinstance(item, (fx.Node, torch.SymInt))
        return item

    fx.node.map_aggregate(value, see)
    return found


def _nodes(values: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg(values, lambda node: found.append(node))
    return found


def attribute_of(gm: fx.GraphModule, path: Any) -> Any:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _target_name(target: Any) -> str | None:
    """The name by which the run side finds the callable; none where it has no name."""
    if isinstance(target, _torch.OpOverload):
        return str(target)
    if isinstance(target, _torch.HigherOrderOperator):
        name = target.name()
        return f"higher_order.{name}" if getattr(torch.ops.higher_order, name, None) is target else None
    name = getattr(target, "__name__", "")
    return f"operator.{name}" if getattr(operator, name, None) is target else None


def _is_ordered(node: fx.Node) -> bool:
    """Whether a call has effects, so that it keeps its place among the others that have; of an operator, all calls or none."""
    if isinstance(node.target, _torch.HigherOrderOperator) or getattr(node.target, "ordered", False) or _torch.is_impure(node):
        return True
    if not isinstance(node.target, _torch.OpOverload):
        return False
    # Whoever returns nothing is called for what it does, and operators of a user's are launched in the order of the program.
    return node.target.namespace not in OURS or _torch.returns_nothing(node.target)


_FRAME = re.compile(r'File "([^"]*)", line (\d+)')


def _place(node: fx.Node) -> dict[str, Any] | None:
    """The innermost line of the program behind a call."""
    trace = node.meta.get("stack_trace")
    # From the back: a trace is long.
    frame = _FRAME.match(trace, max(trace.rfind('File "'), 0)) if trace else None
    return {"file": frame[1], "line": int(frame[2])} if frame else None


def _unsupported(message: str) -> OxyfuelError:
    return OxyfuelError(errors.UNSUPPORTED_GRAPH, message)
