"""One case, judged: run it in eager, run it compiled, compare, and where they differ say whose fault it is.

A compiled run that disagrees (or raises) is repeated with the compilers taken out: if AOTAutograd alone disagrees in
the same way the fault is torch's and the case says nothing about us; if it needs our decompositions to disagree, they
are to blame; else the compiler is.
"""

import dataclasses
import traceback
import warnings
from typing import Any, Callable

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

import agree
from agree import Run
from judge import doors


@dataclasses.dataclass
class Case:
    """A program over tensors. `inputs` may hold other leaves too; they are constants of the program."""

    name: str
    function: Callable[..., Any]
    inputs: tuple
    grad: bool = False
    # Outputs that gradients flow from; torch's database projects some of them first.
    project: Callable[[Any], Any] = lambda out: out
    values: bool = True
    seed: int = 0
    # Outputs as they are compared, of what came out and the inputs: eager's choice among equals need not be ours.
    compared: Callable[[Any, Any], Any] = lambda out, inputs: out


@dataclasses.dataclass
class Verdict:
    """`agree`, `skip` (torch cannot run it or compile it at all) or `wrong`."""

    verdict: str
    what: str = ""
    blame: str = ""
    route: str = "below dynamo"
    counts: doors.Counts = dataclasses.field(default_factory=doors.Counts)


def run(call, case: Case, inputs, cotangents=None) -> Run:
    """One run of a case on inputs of its own."""
    torch.manual_seed(case.seed)
    out = call(*inputs)
    if not case.grad:
        return Run(case.compared(out, inputs), inputs)
    sources = [t for t in pytree.tree_leaves(case.project(out)) if isinstance(t, torch.Tensor) and t.requires_grad]
    wanted = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor) and t.requires_grad and t.is_leaf]
    if cotangents is None:
        weights = [weight_like(t, i) for i, t in enumerate(sources)]
    else:
        weights = [w.to(t.dtype) for w, t in zip(cotangents, sources, strict=True)]
    # By `.grad`, as users see it: autograd lays a gradient out like its leaf, whatever strides the backward gave it.
    if sources and wanted:
        torch.autograd.backward(sources, weights, inputs=wanted)
    return Run(case.compared(out, inputs), inputs, [t.grad for t in wanted])


def weight_like(t, index):
    generator = torch.Generator().manual_seed(1000 + index)
    wide = torch.complex128 if t.dtype.is_complex else torch.float64
    weight = torch.randn(t.shape, generator=generator, dtype=wide).to(t.dtype).to(t.device)
    return weight


def judge(case: Case, door: doors.Door, *, dynamo=False, blame=True) -> Verdict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _judge(case, door, dynamo, blame)


def _judge(case, door, dynamo, blame):
    state = torch.random.get_rng_state()
    try:
        try:
            eager = run(case.function, case, agree.copy_inputs(case.inputs))
        except Exception as error:
            return Verdict("skip", f"eager raises {_one_line(error)}")
        said = _compare(case, door, eager, dynamo)
        counts = door.take_counts()
        if not said:
            return Verdict("agree", counts=counts, route=_route(dynamo))
        if not blame:
            return Verdict("wrong", said, route=_route(dynamo), counts=counts)
        plain = _compare(case, doors.door("torch"), eager, dynamo)
        if plain and not dynamo:
            # A program that is no single graph (its sizes depend on data, say) is one that Dynamo cuts.
            return _judge(case, door, True, blame)
        if plain:
            return Verdict("skip", f"torch's own aot_eager: {plain}", route=_route(dynamo), counts=counts)
        if _compare(case, doors.door("nop"), eager, dynamo):
            return Verdict("wrong", said, "decomposition", _route(dynamo), counts)
        return Verdict("wrong", said, "compiler", _route(dynamo), counts)
    finally:
        torch.random.set_rng_state(state)


def _route(dynamo):
    return "torch.compile" if dynamo else "below dynamo"


# Numbers and sizes that depend on data stay in the graph; where Dynamo cuts inside of torch's own files, it compiles nothing at all.
CAPTURE = torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)


def _compare(case, door, eager, dynamo) -> str:
    """What is wrong with the compiled run; empty when it agrees."""
    inputs = agree.copy_inputs(case.inputs)
    weights = None
    if case.grad:
        sources = [t for t in pytree.tree_leaves(case.project(eager.outputs)) if isinstance(t, torch.Tensor) and t.requires_grad]
        weights = [weight_like(t, i) for i, t in enumerate(sources)]
    try:
        with door.same_numbers(), CAPTURE:
            if dynamo:
                torch._dynamo.reset()
                call = door.compile(case.function, dynamic=False)
            else:
                call = flat(door, case.function)
            got = run(call, case, inputs, weights)
    except Exception as error:
        return f"raises {_one_line(error)}"

    def reference():
        with InDouble():
            return run(case.function, case, agree.to_double(case.inputs), weights)

    found = agree.problems(got, eager, reference, values=case.values)
    return "; ".join(found[:4])


def flat(door, function):
    """The function compiled below Dynamo: AOTAutograd sees the tensors alone, other leaves are constants."""

    def call(*inputs):
        leaves, spec = pytree.tree_flatten(inputs)
        at = _tensors(leaves)
        shape = {}

        def over_tensors(*tensors):
            filled = list(leaves)
            for i, t in zip(at, tensors, strict=True):
                filled[i] = t
            shape["leaves"], shape["spec"] = pytree.tree_flatten(function(*pytree.tree_unflatten(filled, spec)))
            return [shape["leaves"][i] for i in _tensors(shape["leaves"])]

        out = door.below_dynamo(over_tensors)(*(leaves[i] for i in at))
        filled = shape["leaves"]
        for i, t in zip(_tensors(filled), out, strict=True):
            filled[i] = t
        return pytree.tree_unflatten(filled, shape["spec"])

    return call


def _tensors(leaves):
    return [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]


class InDouble(TorchFunctionMode):
    """Runs a program in float64: dtypes that it names are widened too."""

    NARROW = (torch.float32, torch.bfloat16, torch.float16)
    METHODS = {torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16}

    def __enter__(self):
        self.default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error):
        torch.set_default_dtype(self.default)
        return super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in self.METHODS:
            return args[0].double()
        wide = pytree.tree_map(lambda x: torch.float64 if isinstance(x, torch.dtype) and x in self.NARROW else x, (args, kwargs or {}))
        return func(*wide[0], **wide[1])


def _one_line(error):
    text = str(error).strip().split("\n")[0][:300]
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {text} [{where.filename.rsplit('/', 1)[-1]}:{where.lineno}]"
