"""The backend that `torch.compile(model, backend="oxyfuel")` calls.

    Dynamo's graph ─▶ AOTAutograd ─▶ forward, backward or inference graph in ATen ─▶ describe ─▶ Rust ─▶ a boxed callable

A graph that we fail to compile runs as it is, with one warning that names the cause; `options={"fallback": "error"}` makes it an error.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from . import _native, _torch, config, decompositions, errors
from .compiled import OutputCode, SegmentedCode, compile_graph
from .detours import without_detours
from .errors import OxyfuelError, OxyfuelWarning
from .explain import report
from .options import Options, resolve
from .partition import partition

log = logging.getLogger("oxyfuel")


def backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo's. `mode` and `options` are those of `torch.compile`."""
    kwargs.pop("name", None)
    if kwargs:
        raise TypeError(f"backend() got unexpected arguments: {', '.join(kwargs)}")
    chosen = resolve(config.current(), mode, options)
    if chosen.disable:
        return gm.forward
    if torch.are_deterministic_algorithms_enabled():
        # Dynamo guards it: a change of the setting compiles again.
        chosen = dataclasses.replace(chosen, deterministic=True)
    with _torch.cached_as(_key(chosen, _devices(example_inputs))):
        return without_detours(_aot(chosen)(gm, example_inputs))


def _devices(inputs: Sequence[Any]) -> tuple[str, ...]:
    """The CPU, and the GPUs that tensors are on."""
    gpus = {str(value.device) for value in inputs if isinstance(value, torch.Tensor) and value.device.type == "cuda"}
    return ("cpu", *sorted(gpus))


@functools.lru_cache(maxsize=None)
def _key(options: Options, devices: tuple[str, ...]) -> str:
    """Everything that compiled code depends on besides the graph."""
    machines = []
    for device in devices:
        try:
            machines.append(_native.fingerprint(options.native([], torch.get_num_threads(), device)))
        except OxyfuelError as error:
            if device == "cpu":
                raise
            # A graph that needs the GPU says so itself, when it is compiled.
            machines.append(str(error))
    return f"{' '.join(machines)} {options}"


def _aot(options: Options) -> Callable[..., Any]:
    compiler = functools.partial(_compile, options=options)
    return _torch.aot_autograd(
        fw_compiler=_torch.serialisable(functools.partial(compiler, role="forward")),
        bw_compiler=_torch.serialisable(functools.partial(compiler, role="backward")),
        inference_compiler=_torch.serialisable(functools.partial(compiler, role="inference")),
        partition_fn=functools.partial(partition, options=options),
        decompositions=decompositions.table(options.fallback_random),
        keep_inference_input_mutations=True,
    )


def _compile(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Options, role: str) -> OutputCode | SegmentedCode:
    started = time.perf_counter()
    cause = None
    code: OutputCode | SegmentedCode
    try:
        code = compile_graph(gm, options, role)
    except Exception as error:
        if options.fallback == "error" or _is_final(error):
            raise
        cause = _warn(role, error)
        code = OutputCode.eager(gm, role)
    else:
        _tell(code.notes, options)
    if role == "forward":
        _torch.report_output_strides(_strides(gm))
        _torch.donate_nothing()
    seconds = time.perf_counter() - started
    if cause is not None:
        report(gm, role, seconds, None, cause)
    else:
        code.tell(gm, seconds)
    log.debug("%s: compiled in %.1f ms", role, 1e3 * seconds, extra={"compiling": seconds})
    return code


def _is_final(error: Exception) -> bool:
    """The graph as it is would not help: there is no memory, more would be taken than the user allows, or it was to be recorded."""
    return isinstance(error, MemoryError) or (isinstance(error, OxyfuelError) and error.code in (errors.MEMORY_LIMIT, errors.CAPTURE_BROKEN))


def _strides(gm: torch.fx.GraphModule) -> list[tuple[Any, ...] | None]:
    """Outputs are laid out as the graph says, always."""
    (outputs,) = gm.graph.output_node().args
    values = [getattr(output, "meta", {}).get("val") for output in outputs]
    return [tuple(value.stride()) if isinstance(value, torch.Tensor) and value.layout == torch.strided else None for value in values]


_warned: set[str] = set()


def _tell(notes: Sequence[str], options: Options) -> None:
    """One warning for one folder and one kind of trouble with it; results are right all the same."""
    for note in notes:
        kind = note.partition(":")[0]
        option = "trace_dir" if errors.FILE_UNREADABLE in kind else "cache_dir"
        where = f"`{option}` {getattr(options, option)}"
        if f"{kind} {where}" not in _warned:
            _warned.add(f"{kind} {where}")
            warnings.warn(f"oxyfuel cannot use {where} and goes on without: {note}", OxyfuelWarning, stacklevel=2)


def _warn(role: str, error: Exception) -> str:
    """One warning for one cause; the cause."""
    cause = str(error) if isinstance(error, OxyfuelError) else f"{type(error).__name__}: {error}"
    if cause not in _warned:
        _warned.add(cause)
        warnings.warn(
            f"oxyfuel could not compile the {role} graph, which runs uncompiled: {cause}", OxyfuelWarning, stacklevel=2
        )
        log.debug("the cause in full", exc_info=error)
    return cause
