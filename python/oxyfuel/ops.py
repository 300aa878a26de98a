"""Operators of ours: `torch.ops.oxyfuel.*`, which our rules write into joint graphs.

    seed(device=)                                               a number of torch's generator of that device
    uniform(seed, stream, low, high, size=, stride=, dtype=)    numbers that follow from the arguments alone; so do normal, exponential, bernoulli, integers

An operator of torch that draws random numbers has an effect, so a backward that needs them again must be given all of them. A draw under a seed may be
repeated: the seed is kept instead. Compiled graphs have these operators in their kernels (`crates/capture/src/ours.rs`); what is here runs where a graph is run
uncompiled, and gives the same numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from .compiled import compile_graph
from .options import Options

# What says how the numbers are spread, after the seed and the stream.
DRAWS = {
    "uniform": "float low, float high",
    "normal": "float mean, float deviation",
    "exponential": "float rate",
    "bernoulli": "float probability",
    "integers": "int low, int high",
}

_library = torch.library.Library("oxyfuel", "DEF")
_library.define("seed(*, Device? device=None) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
for _name, _spread in DRAWS.items():
    _library.define(
        f"{_name}(Tensor seed, int stream, {_spread}, *, SymInt[] size, SymInt[]? stride=None, ScalarType dtype) -> Tensor",
        tags=(torch.Tag.pt2_compliant_tag,),
    )


def _seed(device: torch.device | None = None) -> torch.Tensor:
    return torch.randint(0, (1 << 63) - 1, (), device=device)


def _like_seed(device: torch.device | None = None) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64, device=device)


def _empty(size: Any, stride: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    if stride is None:
        return torch.empty(size, dtype=dtype, device=device)
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def _like_draw(seed: torch.Tensor, *spread: Any, size: Any, stride: Any = None, dtype: torch.dtype) -> torch.Tensor:
    return _empty(size, stride, dtype, seed.device)


def _draw(name: str) -> Callable[..., torch.Tensor]:
    def run(seed: torch.Tensor, *spread: Any, size: Any, stride: Any = None, dtype: torch.dtype) -> torch.Tensor:
        call = _compiled(name, spread, tuple(size), None if stride is None else tuple(stride), dtype, seed.device)
        (numbers,) = call([seed])
        return numbers

    return run


@functools.lru_cache(maxsize=256)
def _compiled(
    name: str, spread: tuple[Any, ...], size: tuple[int, ...], stride: tuple[int, ...] | None, dtype: torch.dtype, device: torch.device
) -> Any:
    """A graph of this one call."""
    graph = fx.Graph()
    seed = graph.placeholder("seed")
    seed.meta["val"] = _like_seed(device)
    kwargs = {"size": list(size), "stride": None if stride is None else list(stride), "dtype": dtype}
    numbers = graph.call_function(getattr(torch.ops.oxyfuel, name).default, (seed, *spread), kwargs)
    numbers.meta["val"] = _empty(size, stride, dtype, device)
    graph.output([numbers])
    return compile_graph(fx.GraphModule({}, graph), Options(), "inference").run


_library.impl("seed", _seed, "CompositeExplicitAutograd")
torch.library.register_fake("oxyfuel::seed", _like_seed, lib=_library)
for _name in DRAWS:
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _draw(_name), _key)
    torch.library.register_fake(f"oxyfuel::{_name}", _like_draw, lib=_library)
