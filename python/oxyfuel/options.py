"""What a compile can be told: one table of keys, each with its type, its meaning and the environment variable that sets it.

The same keys are attributes of `oxyfuel.config` (defaults of the process), arguments of `oxyfuel.config.patch()`, and keys of
`torch.compile(..., options={...})`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from . import errors
from .errors import OxyfuelError

Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
# Those under which calls on a GPU are recorded.
RECORDED = ("reduce-overhead", "max-autotune")


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """Everything a compile can be told."""

    mode: str = "default"
    numerics: str = "eager"
    fallback: str = "warn"
    fallback_random: bool = False
    deterministic: bool = False
    external: tuple[str, ...] = ()
    contractions: str = "auto"
    freezing: bool = False
    threads: int = 0
    target: str = ""
    output_pool: bool = True
    memory_limit: int = 0
    result_strides: str = "auto"
    cudagraphs: str = "auto"
    cudagraph_memory_limit: int = 0
    cudagraph_branches: bool = True
    verify: bool = False
    launch_blocking: bool = False
    disable: bool = False
    cache_dir: str | None = None
    trace_dir: str | None = None
    log: str = ""

    @property
    def recorded(self) -> bool:
        """Whether calls on a GPU are recorded."""
        return self.cudagraphs == "require" or (self.cudagraphs == "auto" and self.mode in RECORDED)

    @property
    def compiled_mode(self) -> str:
        """The mode by what calls do, whatever it was called: kernels that are recorded are others."""
        if self.recorded == (self.mode in RECORDED):
            return self.mode
        return {"default": "reduce-overhead", "reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs", "max-autotune-no-cudagraphs": "max-autotune"}[self.mode]

    @property
    def loose_strides(self) -> bool:
        """Whether rows of results on a GPU may be further apart than eager's."""
        return self.result_strides == "auto" and self.mode in RECORDED

    def native(self, external: list[str], threads: int, device: str = "cpu", frozen: Sequence[int] = (), images: bool = False) -> str:
        """The part that the Rust side reads, as JSON. `external` are nodes of the graph that torch runs; `threads` is what torch uses now; `device` is the graph's; `frozen` are inputs that stay what they are; `images` says that every convolution has a kernel of ours."""
        names = ("mode", "numerics", "contractions", "deterministic", "fallback_random", "target", "output_pool", "memory_limit", "verify", "launch_blocking", "cudagraph_branches", "cache_dir", "trace_dir")
        settings = {name: getattr(self, name) for name in names} | {"mode": self.compiled_mode}
        return json.dumps({**settings, "device": device, "external": external, "frozen": list(frozen), "images": images, "one_by_one": self.cudagraphs == "off", "threads": self.threads or threads, "follow_threads": self.threads == 0})


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """One option: how its values are read, what it takes in words, and its environment variable."""

    read: Callable[[Any], Any]
    takes: str
    variable: str | None = None


class _Wrong(Exception):
    pass


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise _Wrong


def _count(value: Any) -> int:
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _Wrong
    return value


def _one_of(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value in words:
            return str(value)
        raise _Wrong

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Wrong
    return value


def _path(value: Any) -> str | None:
    if value is None:
        return None
    if hasattr(value, "__fspath__"):
        value = value.__fspath__()
    return _text(value)


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise _Wrong
    return tuple(value)


KEYS: dict[str, Key] = {
    "mode": Key(_one_of(*MODES), " or ".join(MODES)),
    "numerics": Key(_one_of("eager", "fast"), "eager (round where eager rounds) or fast"),
    "fallback": Key(_one_of("warn", "error"), "warn (run a graph that does not compile as it is, with one warning) or error"),
    "fallback_random": Key(_bool, "true (eager's random numbers) or false"),
    "deterministic": Key(_bool, "true (the same bits whatever thread is faster; as torch.use_deterministic_algorithms) or false"),
    "external": Key(_names, "operators that torch runs itself, such as [\"aten.softmax\"]"),
    "contractions": Key(_one_of("auto", "own", "torch"), "auto (products, convolutions and attention run where that was measured to be faster), own or torch"),
    "freezing": Key(_bool, "true (weights of inference graphs do not change: what follows from them alone is computed once) or false"),
    "threads": Key(_count, "a number; 0 for as many as torch uses", "OXYFUEL_NUM_THREADS"),
    "target": Key(_text, "a target's name, such as avx2; empty for the best of this machine"),
    "output_pool": Key(_bool, "true (large outputs come from a pool that keeps their pages) or false"),
    "memory_limit": Key(_count, "the most bytes that a call may take for intermediates and results; 0 for no limit", "OXYFUEL_MEMORY_LIMIT"),
    "result_strides": Key(_one_of("auto", "eager"), "auto (where the mode records calls, rows of a large product may begin at multiples of 16 bytes) or eager (always eager's)"),
    "cudagraphs": Key(_one_of("auto", "require", "off"), "auto (calls on a GPU are recorded where the mode says so), require (a call that cannot be is an error) or off"),
    "cudagraph_memory_limit": Key(_count, "the most bytes that all recordings of a GPU may take; 0 for a quarter of its memory", "OXYFUEL_CUDAGRAPH_MEMORY_LIMIT"),
    "cudagraph_branches": Key(_bool, "true (in recorded calls, steps that need nothing of each other run at once) or false (all in order)"),
    "verify": Key(_bool, "true (check every kernel against the interpreter) or false", "OXYFUEL_VERIFY"),
    "launch_blocking": Key(_bool, "true (calls wait for the GPU after each kernel and operator, so that a fault names it) or false", "OXYFUEL_LAUNCH_BLOCKING"),
    "disable": Key(_bool, "true (run graphs as they are) or false", "OXYFUEL_DISABLE"),
    "cache_dir": Key(_path, "a directory for compiled plans, or None", "OXYFUEL_CACHE_DIR"),
    "trace_dir": Key(_path, "a directory for every stage of every compile as text, or None", "OXYFUEL_TRACE"),
    "log": Key(_text, "as TORCH_LOGS: +oxyfuel for more, -oxyfuel for less", "OXYFUEL_LOG"),
}


def check(name: str, value: Any, where: str) -> Any:
    """The value as it is kept, or an error that says what is allowed."""
    key = KEYS.get(name)
    if key is None:
        raise OxyfuelError(errors.UNKNOWN_OPTION, f"there is no option `{name}` ({where})", f"options are {', '.join(KEYS)}")
    try:
        return key.read(value)
    except (_Wrong, TypeError):
        raise OxyfuelError(
            errors.INVALID_OPTION, f"option `{name}` cannot be {value!r} ({where})", f"it takes {key.takes}"
        ) from None


def resolve(defaults: Options, mode: str | None, options: Mapping[str, Any] | None) -> Options:
    """The options of one `torch.compile`: its own over the process's."""
    values = {name: check(name, value, "options of torch.compile") for name, value in (options or {}).items()}
    if mode is not None:
        mode = check("mode", mode, "mode of torch.compile")
        if values.setdefault("mode", mode) != mode:
            raise OxyfuelError(errors.CONFLICTING_OPTIONS, f"mode is {mode!r} and options say {values['mode']!r}", "give one of them")
    return dataclasses.replace(defaults, **values)
