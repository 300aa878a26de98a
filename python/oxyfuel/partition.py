"""How a joint graph of forward and backward is cut in two."""

from __future__ import annotations

from typing import Any

import torch

from . import _torch
from .options import Options


def partition(
    joint: torch.fx.GraphModule, joint_inputs: Any, *, options: Options, **kwargs: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """PyTorch's min-cut: what is cheap to compute again is not kept for the backward."""
    return _torch.min_cut_rematerialization_partition(joint, joint_inputs, **kwargs)
