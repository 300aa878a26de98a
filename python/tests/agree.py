"""What "agrees with eager" means, in one place; every comparison of the torch door goes through `problems`.

Per tensor, all of:

- same dtype, shape, device and layout; same strides, except along dimensions of size 1 and in empty tensors;
- integers and bools are equal; NaN and infinities stand in the same places;
- every float is within `torch.testing.assert_close`'s default tolerance of eager, or, for the tensor as a whole, the
  RMS and the largest error against a float64 reference are at most twice eager's own plus one ulp of the tensor's
  largest magnitude. The reference costs a second run of the program, so it is a function, called only when needed. A
  float64 that eager itself computed in float32 (its own error is thousands of ulps) has float32's tolerance.

Between tensors: an output that is one of the inputs in eager is that input; outputs that are one object in eager are
one object; an output shares its storage with an input exactly when it does in eager.
"""

import dataclasses
import math
from typing import Any, Callable

import torch
from torch.utils import _pytree as pytree

# The factor on eager's own error that the design allows.
ALLOWED = 2.0


@dataclasses.dataclass
class Run:
    """One run of a program: what came out, the inputs as they are after it, and their gradients.

    Gradients are compared as values: who shares memory with whom among them is autograd's affair.
    """

    outputs: Any
    inputs: Any = ()
    gradients: Any = ()


# Ulps of float64 that eager is wrong by where it went through float32: half of the bits between them.
IN_FLOAT32 = 2.0**14


def problems(got: Run, eager: Run, reference: Callable[[], Run] | None = None, *, values=True, strides=True) -> list[str]:
    """Every way in which `got` differs from `eager`; an empty list when they agree.

    `values=False` is for programs whose numbers mean nothing (`empty*`): shapes and strides are still compared.
    """
    sides = [("output", got.outputs, eager.outputs), ("input", got.inputs, eager.inputs), ("gradient", got.gradients, eager.gradients)]
    found = []
    double: list[Any] = []

    def reference_leaf(side, index):
        if reference is None:
            return None
        if not double:
            try:
                run = reference()
                double.append([pytree.tree_leaves(x) for x in (run.outputs, run.inputs, run.gradients)])
            except Exception:  # a program without a float64 form has no reference
                double.append(None)
        if double[0] is None:
            return None
        leaves = double[0][side]
        return leaves[index] if index < len(leaves) else None

    for side, (what, a, b) in enumerate(sides):
        left, left_spec = pytree.tree_flatten(a)
        right, right_spec = pytree.tree_flatten(b)
        if len(left) != len(right) or left_spec != right_spec:
            found.append(f"{what}s: structure {left_spec} instead of {right_spec}")
            continue
        for i, (x, y) in enumerate(zip(left, right, strict=True)):
            said = leaf_problem(x, y, lambda: reference_leaf(side, i), values=values, strides=strides)
            if said:
                found.append(f"{what} {i}: {said}")
    if not found:
        found += sharing_problems(got, eager)
    return found


def leaf_problem(got, eager, reference=lambda: None, *, values=True, strides=True) -> str | None:
    """How one leaf of an output tree differs, in one sentence, or None."""
    if not isinstance(eager, torch.Tensor):
        if isinstance(got, torch.Tensor):
            return f"a tensor instead of {eager!r}"
        same = got == eager or (isinstance(got, float) and isinstance(eager, float) and math.isnan(got) and math.isnan(eager))
        if isinstance(eager, float) and isinstance(got, float) and not same:
            same = math.isclose(got, eager, rel_tol=1.3e-6, abs_tol=1e-5)
        return None if same else f"{got!r} instead of {eager!r}"
    if not isinstance(got, torch.Tensor):
        return f"{type(got).__name__} instead of a tensor"
    for name in ("dtype", "shape", "device", "layout", "is_quantized"):
        a, b = getattr(got, name), getattr(eager, name)
        if a != b:
            return f"{name} {a} instead of {b}"
    if got.requires_grad != eager.requires_grad:
        return f"requires_grad {got.requires_grad} instead of {eager.requires_grad}"
    got, eager = got.detach(), eager.detach()
    if eager.layout != torch.strided:
        return _plain_problem(_dense(got), _dense(eager), lambda: _dense(reference()), values)
    if strides:
        a, b = _meaningful_strides(got), _meaningful_strides(eager)
        if a != b:
            return f"strides {got.stride()} instead of {eager.stride()} for shape {tuple(eager.shape)}"
        if got.is_conj() != eager.is_conj() or got.is_neg() != eager.is_neg():
            return "conjugate or negative bit differs"
    if eager.is_quantized:
        got, eager = got.dequantize(), eager.dequantize()
    return _plain_problem(got, eager, reference, values)


def _dense(t):
    if t is None or t.layout == torch.strided:
        return t
    if t.layout == torch.jagged:
        return t.values()
    return t.to_dense()


def _meaningful_strides(t):
    if t.numel() == 0:
        return ()
    return tuple(s if n > 1 else None for n, s in zip(t.shape, t.stride(), strict=True))


def _plain_problem(got, eager, reference, values):
    if not values or eager.numel() == 0 or eager.is_meta:
        return None
    if not (eager.dtype.is_floating_point or eager.dtype.is_complex):
        if torch.equal(got, eager):
            return None
        wrong = got != eager
        return f"{int(wrong.sum())} of {eager.numel()} differ, first {_first(wrong, got, eager)}"
    if eager.dtype.is_complex:
        got, eager = torch.view_as_real(got.resolve_conj()), torch.view_as_real(eager.resolve_conj())
    dtype = eager.dtype
    a, b = got.double(), eager.double()
    if torch.equal(a, b):
        return None
    for name, test in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        wrong = test(a) != test(b)
        if wrong.any():
            return f"{name} in other places, first {_first(wrong, got, eager)}"
    finite = torch.isfinite(b)
    relative, absolute = _tolerance(dtype)
    error = torch.where(finite, (a - b).abs(), 0.0)
    wrong = error > absolute + relative * torch.where(finite, b.abs(), 0.0)
    if not wrong.any():
        return None
    magnitude = float(torch.where(finite, b.abs(), 0.0).max())
    ulp = torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(magnitude)) if magnitude > 0 else torch.finfo(dtype).tiny
    said = f"{int(wrong.sum())} of {eager.numel()} out of tolerance, first {_first(wrong, got, eager)}"
    exact = reference()
    if exact is None or not isinstance(exact, torch.Tensor):
        return said + " (no float64 reference)"
    exact = _dense(exact.detach())
    if exact.dtype.is_complex:
        exact = torch.view_as_real(exact.resolve_conj())
    if exact.shape != b.shape:
        return said + " (the float64 reference has another shape)"
    exact = exact.double()
    known = finite & torch.isfinite(exact)
    if (wrong & ~known).any():
        return said + " (where the float64 reference is not finite)"
    ours, theirs = (torch.where(known, (x - exact).abs(), 0.0) for x in (a, b))
    rms = [float(e.square().sum().div(max(int(known.sum()), 1)).sqrt()) for e in (ours, theirs)]
    largest = [float(e.max()) for e in (ours, theirs)]
    if dtype == torch.float64 and largest[1] > IN_FLOAT32 * ulp:
        relative, absolute = _tolerance(torch.float32)
        if not (error > absolute + relative * torch.where(finite, b.abs(), 0.0)).any():
            return None
    for name, (x, y) in (("RMS", rms), ("largest", largest)):
        if x > ALLOWED * y + ulp:
            return f"{said}; {name} error {x:.3g}, eager's own {y:.3g}, ulp {ulp:.3g}"
    return None


def _tolerance(dtype):
    if dtype.itemsize == 1:  # float8: assert_close knows no default
        return 0.0, 0.0
    return torch.testing._comparison.default_tolerances(dtype)


def _first(wrong, got, eager):
    at = tuple(wrong.nonzero()[0].tolist()) if wrong.dim() else ()
    return f"{got[at].item()!r} instead of {eager[at].item()!r} at {list(at)}"


def sharing_problems(got: Run, eager: Run) -> list[str]:
    """How identity and shared storage of outputs differ."""
    found = []
    got_out, eager_out = (pytree.tree_leaves(r.outputs) for r in (got, eager))
    got_in, eager_in = (pytree.tree_leaves(r.inputs) for r in (got, eager))
    for i, y in enumerate(eager_out):
        x = got_out[i]
        if not isinstance(y, torch.Tensor) or not isinstance(x, torch.Tensor):
            continue
        for j, v in enumerate(eager_in):
            u = got_in[j]
            if not isinstance(v, torch.Tensor):
                continue
            if (y is v) != (x is u):
                found.append(f"output {i} {'is not' if y is v else 'is'} input {j} itself")
            elif _share(y, v) != _share(x, u):
                found.append(f"output {i} {'does not share' if _share(y, v) else 'shares'} the storage of input {j}")
            elif _share(y, v) and y.storage_offset() != x.storage_offset():
                found.append(f"output {i} begins at {x.storage_offset()} of input {j}'s storage instead of {y.storage_offset()}")
        for j in range(i):
            if isinstance(eager_out[j], torch.Tensor) and isinstance(got_out[j], torch.Tensor):
                if (y is eager_out[j]) != (x is got_out[j]):
                    found.append(f"outputs {j} and {i} are {'two objects' if y is eager_out[j] else 'one object'}")
                elif _share(y, eager_out[j]) and not _share(x, got_out[j]):
                    found.append(f"outputs {j} and {i} do not share their storage")
    return found


def _share(a, b):
    if a.layout != torch.strided or b.layout != torch.strided or a.numel() == 0 or b.numel() == 0:
        return False
    if a.device != b.device:
        return False
    try:
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # tensor subclasses without a storage
        return False


def to_double(tree):
    """The inputs of the reference run: every float tensor in float64, every complex one in complex128, as fresh tensors."""

    def one(x):
        if not isinstance(x, torch.Tensor):
            return x
        if x.dtype.is_floating_point:
            return x.detach().to(torch.float64).requires_grad_(x.requires_grad)
        if x.dtype.is_complex:
            return x.detach().to(torch.complex128).requires_grad_(x.requires_grad)
        return x.clone()

    return pytree.tree_map(one, tree)


def copy_inputs(tree):
    """Fresh tensors with the same values, strides, offsets and sharing: what one run gets, so that it may mutate it."""
    storages: dict[int, torch.Tensor] = {}
    tensors: dict[int, torch.Tensor] = {}

    def one(x):
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) in tensors:
            return tensors[id(x)]
        y = _copy(x, storages)
        tensors[id(x)] = y
        return y

    return pytree.tree_map(one, tree)


def _copy(x, storages):
    plain = type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout == torch.strided and not x.is_quantized
    if not plain or x.device.type == "meta":
        return x.detach().clone().requires_grad_(x.requires_grad)
    detached = x.detach()
    storage = detached.untyped_storage()
    key = storage._cdata
    if key not in storages:
        storages[key] = storage.clone()
    y = torch.empty(0, dtype=x.dtype, device=x.device)
    y.set_(storages[key], detached.storage_offset(), detached.size(), detached.stride())
    if detached.is_conj():
        y = y.conj()
    if detached.is_neg():
        y = torch._neg_view(y)
    return y.requires_grad_(x.requires_grad)


# ---- for tests of one function ------------------------------------------------------------------------------------


def compiled(f: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
    """Compiled for good: a graph that does not compile is an error."""
    options = {"fallback": "error", **kwargs.pop("options", {})}
    return torch.compile(f, backend="oxyfuel", options=options, **kwargs)


def same(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Both ways with the same arguments: values, element types, shapes and strides."""
    expected = f(*args)
    result = compiled(f, **kwargs)(*args)
    agree(result, expected)
    return result


def agree(result: Any, expected: Any) -> None:
    found = problems(Run(result), Run(expected))
    assert not found, "\n".join(found)
