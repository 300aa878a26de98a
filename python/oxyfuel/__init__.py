"""torch.compile rebuilt in Rust.

    import torch
    model = torch.compile(model, backend="oxyfuel")

Nothing has to be imported for that: installing the package registers the backend. This module offers what goes beyond it: `config`, the
defaults of the process, `explain`, which says what became of a model, `recompiles`, which says what was compiled again, `trim`, which gives kept memory
back, `memory_summary`, which says where memory is, `profile`, which says where time goes, `recordings`, which says what is launched as one on a GPU, `cuda_graph`, which records any callable, `refreeze` and `release` for weights that were frozen, and the errors.
"""

from __future__ import annotations

from . import _torch as _torch  # checks torch's version before anything else of it is touched
from . import config, logs
from ._native import __version__, trim
from .backend import backend
from .captured import CudaGraph, cuda_graph
from .errors import OxyfuelError, OxyfuelWarning
from .explain import Explanation, GraphReport, explain
from .frozen import refreeze, release
from .memory import memory_summary
from .options import Options
from .profiles import Profile, profile
from .recompiles import Recompile, recompiles
from .recorded import Recording, recordings

__all__ = [
    "CudaGraph",
    "Explanation",
    "GraphReport",
    "Options",
    "OxyfuelError",
    "OxyfuelWarning",
    "Profile",
    "Recompile",
    "Recording",
    "__version__",
    "backend",
    "config",
    "cuda_graph",
    "explain",
    "memory_summary",
    "profile",
    "recompiles",
    "recordings",
    "refreeze",
    "release",
    "trim",
]

logs.setup(config.log)
