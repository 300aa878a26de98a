"""How a joint graph of forward and backward is cut in two: our rules first, then PyTorch's min-cut.

The rules come first because the cut decides what is kept for the backward: it should see no work twice, and random numbers that can be drawn again.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch

from . import _torch, ops
from .attention import fuse_attention
from .describe import device_of
from .options import Options
from .rewrite import rewrite

log = logging.getLogger("oxyfuel")


def partition(
    joint: torch.fx.GraphModule, joint_inputs: Any, *, options: Options, **kwargs: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """PyTorch's min-cut: what is cheap to compute again is not kept for the backward."""
    started = time.perf_counter()
    try:
        less = rewrite(joint, kwargs["num_fwd_outputs"], own_random=not options.fallback_random)
        # Gradients of torch's attention on a GPU come in another order every time.
        if not options.external and not (options.deterministic and device_of(joint).type == "cuda"):
            fuse_attention(joint)
        seconds = time.perf_counter() - started
        log.debug("joint graph: %d nodes less in %.1f ms", less, 1e3 * seconds, extra={"compiling": seconds})
    except Exception as error:
        # Without the rules the graph is right too; its parts are compiled later, where a failure is told.
        if options.fallback == "error":
            raise
        log.info("no rules on the joint graph: %s", error)
    return _torch.min_cut(joint, joint_inputs, repeatable=[getattr(torch.ops.oxyfuel, name) for name in ops.DRAWS], **kwargs)
