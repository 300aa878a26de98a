"""Every private name of PyTorch that this package uses, and the versions for which they were checked.

Nothing else in the package may import a name of torch that begins with an underscore or lives in a private module. A version outside of
the range is an error with a code, not a crash somewhere later.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import logging
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import torch

from .errors import UNSUPPORTED_TORCH, OxyfuelError

# First version that works, and the first that was not tried.
SUPPORTED = ((2, 11), (2, 16))


def version_of(text: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check_version(version: str) -> None:
    """An error unless the version is one whose private names are known."""
    pair = version_of(version)
    low, high = SUPPORTED
    if not low <= pair < high:
        raise OxyfuelError(
            UNSUPPORTED_TORCH,
            f"torch {version} is not supported",
            f"install torch {low[0]}.{low[1]} to {high[0]}.{high[1] - 1}",
        )


check_version(torch.__version__)
VERSION = version_of(torch.__version__)

import sympy  # noqa: E402  (torch depends on it)
from torch._decomp import _core_aten_decompositions_post_autograd  # noqa: E402
from torch._dynamo import convert_frame  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402, F401
from torch._dynamo.callback import callback_handler  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch._functorch import config as functorch_config  # noqa: E402
from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler  # noqa: E402
from torch._functorch import partitioners  # noqa: E402
from torch._guards import TracingContext  # noqa: E402
from torch._higher_order_ops.effects import with_effects  # noqa: E402, F401
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache as Uncacheable  # noqa: E402, F401
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional as triton_functional  # noqa: E402, F401
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation as triton_mutation  # noqa: E402, F401
from torch._inductor import codecache  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402
from torch._inductor.output_code import OutputCode  # noqa: E402
from torch._ops import HigherOrderOperator, OpOverload  # noqa: E402, F401
from torch._prims_common import clone_preserve_strides, suggest_memory_format  # noqa: E402, F401
from torch._subclasses.fake_tensor import FakeTensor  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402, F401
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols  # noqa: E402, F401
from torch.utils import _pytree as pytree  # noqa: E402
from torch.utils._python_dispatch import _disable_current_modes as disable_modes  # noqa: E402
from torch.utils._sympy.numbers import int_oo  # noqa: E402

log = logging.getLogger("oxyfuel")

# Structures of containers to a list of what is in them, and back.
flatten, unflatten = pytree.tree_flatten, pytree.tree_unflatten

# Whether somebody records what runs.
profiler_enabled = torch._C._autograd._profiler_enabled

# A context whose time such a profiler shows by its name, with what runs on a GPU for it.
profiler_range = torch._C._profiler._RecordFunctionFast

num_threads = torch.get_num_threads

# Makes a CPU tensor from sizes, strides and dtype, without the dispatcher's detours.
empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu

# The same on any device: sizes, strides, and by name the dtype and the device.
empty_strided = torch.empty_strided


def _only_stream(index: int) -> int:
    """Of a torch without GPUs, which is never asked."""
    return 0


# The stream on which operators of a GPU run now, as the driver's handle, by the GPU's number.
current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _only_stream)


def set_stream(stream: Any) -> None:
    """Operators of the stream's GPU run on it from now on."""
    torch.cuda.set_stream(stream)


def is_ordinary(value: torch.Tensor) -> bool:
    """Whether a traced value stands for a plain tensor, not for somebody's subclass."""
    return type(value) in (FakeTensor, torch.Tensor, torch.nn.Parameter)


def shape_env_of(gm: torch.fx.GraphModule) -> Any:
    """The environment that owns the graph's symbols, if it has any."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return value.node.shape_env
        if isinstance(value, FakeTensor) and value.fake_mode.shape_env is not None:
            return value.fake_mode.shape_env
    return None


def range_of(shape_env: Any, symbol: Any) -> dict[str, int | None]:
    """What is known of a symbol: smallest and largest value (none: unbounded), and the value it had while tracing."""
    known = shape_env.var_to_range.get(symbol)
    # A number out of a tensor may be negative.
    low = -(1 << 63) if known is None or not known.lower.is_Integer else int(known.lower)
    high = None if known is None or known.upper in (int_oo, sympy.oo) or not known.upper.is_Integer else int(known.upper)
    values = shape_env.backed_var_to_val if hasattr(shape_env, "backed_var_to_val") else shape_env.var_to_val
    hint = values.get(symbol)
    return {"min": low, "max": high, "hint": None if hint is None else int(hint)}


# Tagged as drawing random numbers, for a dropout that it refuses to do.
DRAWS_NOTHING = frozenset({torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default})


def is_impure(node: torch.fx.Node) -> bool:
    """Whether a call has effects; drawing random numbers is one."""
    if node.target in DRAWS_NOTHING:
        return False
    tags = getattr(node.target, "tags", ())
    return bool(node.is_impure()) or torch.Tag.nondeterministic_seeded in tags


def min_cut(joint: torch.fx.GraphModule, inputs: Any, *, repeatable: list[Any], **kwargs: Any) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """PyTorch's cut of a joint graph: what is cheap to compute again is not kept for the backward. `repeatable` are operators of ours that are."""
    _may_repeat(tuple(repeatable))
    return partitioners.min_cut_rematerialization_partition(joint, inputs, **kwargs)


@functools.cache
def _may_repeat(packets: tuple[Any, ...]) -> None:
    """Adds operators to those that the cut may compute again. Nobody else's graph has them, so they may stay there."""
    theirs = partitioners.get_default_op_list

    @functools.wraps(theirs)
    def with_ours() -> Any:
        known = theirs()
        known.recomputable_ops.update(packets)
        known.fusible_ops.update(packets)
        return known

    partitioners.get_default_op_list = with_ours


def overload(name: str) -> Any:
    """An operator by its whole name: `aten.add.Tensor`."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found


def fake_mode_of(value: Any) -> Any:
    """The mode in which a traced value was made; nothing where it is a real one."""
    return value.fake_mode if isinstance(value, FakeTensor) else contextlib.nullcontext()


def report_output_strides(strides: list[tuple[Any, ...] | None]) -> None:
    """Tells AOTAutograd how the outputs of a forward graph are laid out, before it compiles the backward."""
    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        context.output_strides.clear()
        context.output_strides.extend(strides)


def donate_nothing() -> None:
    """Tells AOTAutograd that a backward leaves what the forward kept for it as it is: it may be run again (`retain_graph=True`), as in eager."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def serialisable(compiler: Any) -> Any:
    """The compiler as AOTAutograd's cache wants it: what it returns can be pickled."""
    return SerializableAOTDispatchCompiler(OutputCode, compiler)


def core_decompositions() -> dict[Any, Callable[..., Any]]:
    """Operator to its parts, down to core ATen.

    The table that torch offers also lists whatever is composite by its very definition, which the dispatcher takes apart unasked; finding these operators takes a
    tenth of a second in every process. Only those that have a kernel besides would stay whole.
    """
    parts = dict(_core_aten_decompositions_post_autograd())
    composite, kernels = (set(torch._C._dispatch_get_registrations_for_dispatch_key(key)) for key in ("CompositeImplicitAutograd", "CPU"))
    for name in composite & kernels:
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if space == "aten":
            found = getattr(getattr(torch.ops.aten, packet), overload or "default")
            parts.setdefault(found, found.decompose)
    return parts


@contextlib.contextmanager
def cached_as(key: str) -> Iterator[None]:
    """What AOTAutograd compiles in here is kept in its cache, whole, under a key of ours beside its own.

    The key would otherwise say nothing of the backend: a graph compiled by Inductor must never be taken for one of ours. The backward is compiled together with the
    forward, since an entry holds both.
    """
    _leave_inductor_out()
    marked = {**inductor_config.unsafe_marked_cacheable_functions, "oxyfuel": key}
    wanted = {"bundled_autograd_cache": True, "force_non_lazy_backward_lowering": True}
    # Not every supported version has both.
    known = {name: value for name, value in wanted.items() if hasattr(functorch_config, name)}
    token = _ours.set(True)
    try:
        with functorch_config.patch(known), inductor_config.patch(unsafe_marked_cacheable_functions=marked):
            yield
    finally:
        _ours.reset(token)


# Whether keys that this thread makes now are for entries of ours.
_ours: contextvars.ContextVar[bool] = contextvars.ContextVar("oxyfuel_key", default=False)


@functools.cache
def _leave_inductor_out() -> None:
    """Makes keys for entries of ours say nothing of Inductor's code generators and of Triton; all other keys stay as they are.

    No line of our code comes from either, and asking them costs every process a second: all of Inductor is imported, and Triton's libraries are read. What torch says of
    its own sources, of devices and of settings stays in the key.
    """

    def no_choices(settings: dict[str, Any]) -> None:
        if "inductor_choices_class" in settings:
            settings["inductor_choices_class"] = None

    def replace(owner: Any, name: str, ours: Callable[..., Any]) -> None:
        members = vars(owner)
        # Not every supported version has all of them.
        if name in members:
            # Past `setattr`: a module of settings refuses what is no setting.
            members[name] = _instead(members[name], ours)

    replace(inductor_config, "_cache_config_serializer", no_choices)
    replace(codecache, "init_backend_registration", lambda: None)
    system = codecache.CacheBase.get_system
    if hasattr(system, "__wrapped__"):
        replace(codecache, "triton_key", lambda: None)
        # What it remembers for others must not come from a key of ours.
        codecache.CacheBase.get_system = staticmethod(_instead(system, functools.cache(system.__wrapped__)))


def _instead(function: Any, ours: Callable[..., Any]) -> Any:
    """The function, except where this thread makes a key for an entry of ours."""

    @functools.wraps(function)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (ours if _ours.get() else function)(*args, **kwargs)

    for name in ("cache_clear", "cache_info"):
        if hasattr(function, name):
            setattr(chosen, name, getattr(function, name))
    return chosen


class BoxedCode(OutputCode):
    """What AOTAutograd and its cache look up on a compiled graph, under their names."""

    def __init__(self) -> None:
        # Of the object, not of the class: wrappers that torch puts around it copy what the object says of itself.
        self._boxed_call = True

    def prepare_for_serialization(self) -> None:
        """Nothing has to be left out."""

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Nothing is left to do after loading."""

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There is none."""


# What AOTAutograd's generated wrapper of a graph takes: the compiled graph, what makes the context of a call, whom to tell before it, the arguments.
_GENERATED = ("_compiled_fn_", "_first_ctx_", "_on_before_call_", "args")


def generated_wrapper(forward: Any) -> tuple[Callable[..., Any], BoxedCode] | None:
    """What is inside of AOTAutograd's callable of an inference graph: the code that torch generated for the graph's aliases, mutations, autocast and the like, which takes
    what [_GENERATED] says, and the compiled graph. None where the callable is made of other parts than those known.
    """
    try:
        outer = _around(getattr(forward, "_torchdynamo_orig_callable", forward))
        inner = _around(_unpacked(outer["compiled_fn"]))
        generated, compiled = inner["_codegen_runtime_wrapper"], _unpacked(inner["_inner_compiled_fn"])
        taken = generated.__code__.co_varnames[: generated.__code__.co_argcount]
        known = taken == _GENERATED and not outer["params_buffers_flat"] and isinstance(compiled, BoxedCode)
    except (AttributeError, KeyError, ValueError):
        return None
    return (generated, compiled) if known else None


def same_attributes(callable: Any, forward: Any) -> Any:
    """The callable with what others look up on AOTAutograd's, but for what makes that one not traced: whoever asked for it sees to that."""
    vars(callable).update({name: value for name, value in vars(forward).items() if not name.startswith("_torchdynamo")})
    return callable


def _around(function: Any) -> dict[str, Any]:
    """What a function uses of the function around it, by name."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}


def _unpacked(function: Any) -> Any:
    """A function that AOTAutograd's cache has packed up, or any other."""
    return getattr(function, "compiled_fn", function)


def bytes_of(value: torch.Tensor) -> bytes:
    """The elements of a dense tensor as they lie. Nothing of it is traced."""
    if value.device.type != "cpu":
        with disable_modes():
            value = value.detach().cpu()
    return ctypes.string_at(value.data_ptr(), value.nbytes) if value.nbytes else b""


def number_of(value: torch.Tensor) -> Any:
    """The one element of a tensor. Nothing of it is traced."""
    with disable_modes():
        return value.item()


def is_zero(value: torch.Tensor) -> bool:
    """Whether a tensor stands for zeros and has no memory."""
    return bool(value._is_zerotensor())


def is_mutable(op: Any) -> bool:
    """Whether an operator writes an argument."""
    return bool(op._schema.is_mutable)


def is_mutable_call(target: Any) -> bool:
    return isinstance(target, OpOverload) and is_mutable(target)


def returns_nothing(op: Any) -> bool:
    return not op._schema.returns


def shares(op: Any) -> bool:
    """Whether a result of an operator may be the memory of an argument."""
    # The one is a view, and says that it is none.
    return op is torch.ops.aten._unsafe_view.default or any(parameter.alias_info is not None for parameter in op._schema.arguments)


def shared(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, written: bool = False) -> list[Any]:
    """The arguments whose memory the results may be (`written`: those that the call writes)."""
    found = []
    for place, parameter in enumerate(op._schema.arguments):
        alias = parameter.alias_info
        if alias is not None and (alias.is_write or not written):
            found.append(args[place] if place < len(args) else kwargs.get(parameter.name))
    return [args[0]] if op is torch.ops.aten._unsafe_view.default and not written else found


# Whether what is asked of the current stream of a GPU is recorded; asked of a torch with GPUs alone.
is_capturing: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing


# How work of float32 is done on a GPU, whichever of torch's names said so: `tf32`, `ieee` or `none`. `allow_tf32` cannot be read where some of it was said by the newer names.
_float32_precision: Callable[[str, str], str] = torch._C._get_fp32_precision_getter


def tf32() -> tuple[bool, bool, bool]:
    """Whether products, convolutions and recurrent layers of torch's may round float32 to TF32 on a GPU."""
    return _float32_precision("cuda", "matmul") == "tf32", _float32_precision("cuda", "conv") == "tf32", _float32_precision("cuda", "rnn") == "tf32"


def autocast(kind: str) -> torch.dtype | None:
    """The element type that autocast takes on a kind of device; none where there is no autocast."""
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


@contextlib.contextmanager
def no_cached_casts() -> Iterator[None]:
    """Within, autocast casts a parameter wherever it is read, and keeps nothing of it."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def launch_of(graph: torch.cuda.CUDAGraph) -> Callable[[], None]:
    """What launches a recording: without the layer of Python above it, where that does nothing but call. From torch 2.15 on it tells whoever asked to know of replays."""
    if hasattr(torch.cuda.graphs, "register_graph_replay_start_hook"):
        return graph.replay
    launch: Callable[[], None] = functools.partial(torch._C._CUDAGraph.replay, graph)
    return launch


# Copies each tensor of a list into one of another.
copy_each = torch._foreach_copy_

# Whether the tensors of a list that stand at these positions lie at these addresses: `(list, addresses, positions)`.
same_places: Callable[[list[Any], list[int | None], list[int]], bool] = torch._C._tensors_data_ptrs_at_indices_equal


# How many tensors and other owners a storage has, by its address (`storage_address`).
storage_count: Callable[[int], int] = torch._C._storage_Use_Count


def storage_of(value: torch.Tensor) -> Any:
    return value.untyped_storage()


def storage_address(storage: Any) -> int:
    """The address of a storage itself, not of its memory."""
    return int(storage._cdata)


def _wrapper() -> int:
    """What a storage's own object of Python's adds to the count."""
    value = torch.empty(1)
    storage = value.untyped_storage()
    return storage_count(storage_address(storage)) - 1


WRAPPER = _wrapper()


def clear_workspaces() -> None:
    """Lets go of what cuBLAS works in; the next product asks for it again, from the memory that is then in use."""
    torch._C._cuda_clearCublasWorkspaces()


def abandon(graph: Any, index: int, pool: tuple[int, int]) -> None:
    """Ends a recording in which something failed; that says more than what ending it says. Where the driver has given it up, torch stops halfway: its allocator and its generator still wait for the end."""
    try:
        graph.capture_end()
        return
    except RuntimeError as error:
        log.debug("a recording that had failed: %s", error)
    try:
        torch._C._cuda_endAllocateToPool(index, pool)
    except RuntimeError as error:
        log.debug("its memory: %s", error)
    # The end of a recording is the end of all that the generator waits for.
    other = torch.cuda.CUDAGraph()
    other.capture_begin(capture_error_mode="thread_local")
    torch.zeros((), device=torch.device("cuda", index))
    other.capture_end()


def pool_bytes(pool: tuple[int, int]) -> int:
    """What a recording has taken from the GPU."""
    try:
        segments = torch.cuda.memory_snapshot(pool)
    except TypeError:
        segments = torch.cuda.memory_snapshot()
    return sum(segment["total_size"] for segment in segments if tuple(segment.get("segment_pool_id", pool)) == tuple(pool))


def version(value: torch.Tensor) -> int:
    """Grows with every write; tensors of inference mode do not count."""
    return 0 if value.is_inference() else int(value._version)


def static_inputs() -> tuple[int, ...]:
    """The inputs of the graph that is being compiled which stay where they are: parameters and buffers."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return tuple(getattr(metadata, "static_input_indices", None) or ())


# What attention on a GPU calls the state of its random numbers.
_STATE = {"philox_seed", "philox_offset", "rng_state", "unused"}


@functools.cache
def random_state(op: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The arguments and the results of an operator that are the state of a generator. Where they lie (on the GPU, or on the CPU) is known when it has run; tracing guesses."""
    arguments, results = op._schema.arguments, op._schema.returns
    return tuple(tuple(i for i, item in enumerate(items) if item.name in _STATE) for items in (arguments, results))  # type: ignore[return-value]


def on_recompile(see: Callable[[CodeType, Any, list[tuple[Any, str]]], None]) -> None:
    """From now on, whenever Dynamo compiles a function again: its code, the backend, and for every version that there was the backend of that one and why it did not do."""
    theirs = convert_frame.get_and_maybe_log_recompilation_reasons

    @functools.wraps(theirs)
    def asked(entries: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        reasons = theirs(entries, frame, *args, **kwargs)
        try:
            backend = args[0] if args else kwargs.get("backend")
            # A reason begins with the number of the version that it is about.
            owners = {str(entry.compile_id): getattr(entry, "backend", None) for entry in _versions(entries)}
            see(frame.f_code, _chosen(backend), [(_chosen(owners.get(reason.partition(":")[0])), reason) for reason in reasons])
        except (AttributeError, TypeError) as error:
            # Another version's forms: reasons are for people to read, a compile needs none.
            log.debug("the reasons of a recompile cannot be read: %s", error)
        return reasons

    convert_frame.get_and_maybe_log_recompilation_reasons = asked


def _versions(entries: Any) -> list[Any]:
    """A list in newer versions of torch; in older ones each knows the next."""
    if isinstance(entries, Sequence):
        return list(entries)
    found = []
    while entries is not None:
        found.append(entries)
        entries = entries.next
    return found


def _chosen(backend: Any) -> Any:
    """The backend as the user gave it."""
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    return getattr(backend, "compiler_fn", backend)


@contextlib.contextmanager
def while_compiling(begins: Callable[[], None], ends: Callable[[], None]) -> Iterator[None]:
    """Tells when Dynamo begins and ends to compile anything, capture and backend included."""
    start, end = (lambda *_: begins()), (lambda *_: ends())
    callback_handler.register_start_callback(start)
    callback_handler.register_end_callback(end)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(start)
        callback_handler.remove_end_callback(end)


def original(function: Any) -> Any:
    """What was given to `torch.compile`, of what came from it."""
    function = getattr(function, "_orig_mod", function)
    return getattr(function, "_torchdynamo_orig_callable", function)


@contextlib.contextmanager
def graph_breaks() -> Iterator[list[str]]:
    """Collects why Dynamo cuts graphs; nothing comes from AOTAutograd's cache meanwhile."""
    breaks: list[str] = []
    before = dict(counters["graph_break"])
    with functorch_config.patch(enable_autograd_cache=False):
        yield breaks
    for reason, count in counters["graph_break"].items():
        breaks.extend([reason] * (count - before.get(reason, 0)))


# A window on a tensor: sizes, strides and the offset from the tensor's own first element.
window = torch._C._dynamo.guards._reinterpret_tensor


def resolve(name: str, objects: list[Any]) -> Any:
    """What the name of a call stands for: an operator, a function of `operator`, or one of the graph's objects."""
    space, _, rest = name.partition(".")
    if space == "object":
        return objects[int(rest)]
    if space == "operator":
        return getattr(operator, rest)
    found = overload(name)
    # What an overload calls when it is called.
    return found._op if isinstance(found, OpOverload) else found


def constant(kind: str, name: str) -> Any:
    """A dtype, device, layout or memory format."""
    return torch.device(name) if kind == "device" else getattr(torch, name)
