"""One first call, timed in this very process: `python torch_start.py MODEL ENGINE [--training]`. With --training a call is a training step.

Prints JSON: `seconds` from the words `torch.compile` to the first result (the import of the engine included), `steady` of a later call, `own` inside the engine's
own compiler, `loaded` of what it took from a cache, and what AOTAutograd's cache counted.

The engines differ in what a first call computes, from the whole model to nothing: bars are about `seconds`, and `seconds` less `steady` stands beside them.
"""

import contextlib
import json
import logging
import sys
import time

import torch
import torch_door
import torch_models

# Calls after the first; the least of them counts.
STEADY = 3


def nothing():
    import torch_nothing

    return torch_nothing.backend(torch_nothing.Nothing)


def nothing_our_key():
    """The same, but its key in the cache leaves Inductor and Triton out, as ours does."""
    import torch_nothing
    from oxyfuel import _torch

    inner = torch_nothing.backend(torch_nothing.Nothing)

    def call(graph, inputs):
        with _torch.cached_as("nothing"):
            return inner(graph, inputs)

    return call


def oxyfuel():
    import oxyfuel as package

    return package.backend


# By name; a name of torch's own stands for itself.
BACKENDS = {"nothing": nothing, "nothing-our-key": nothing_our_key, "oxyfuel": oxyfuel}


# ---- the time inside a compiler ------------------------------------------------------------------------------------


class Seconds(logging.Handler):
    """Adds up what Oxyfuel's log says its own work took: rules on joint graphs, compiles, plans taken from a cache."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.compiling = self.loading = 0.0

    def emit(self, record):
        self.compiling += getattr(record, "compiling", 0.0)
        self.loading += getattr(record, "loading", 0.0)


@contextlib.contextmanager
def watched(engine):
    """Yields a function that says the seconds inside the engine's own compiler, and those of loading what it once compiled."""
    if engine == "oxyfuel":
        log, seconds = logging.getLogger("oxyfuel"), Seconds()
        log.setLevel(logging.DEBUG)
        log.addHandler(seconds)
        yield lambda: (seconds.compiling, seconds.loading)
        log.removeHandler(seconds)
    elif engine == "inductor":
        # Its own counters: from a graph of AOTAutograd to a callable. Torch's passes on joint graphs are not in it.
        from torch._dynamo.utils import compilation_time_metrics

        yield lambda: (sum(compilation_time_metrics.get("compile_fx_inner", [])), 0.0)
    else:
        yield lambda: (0.0, 0.0)


def first_call(name, engine, training=False):
    module, inputs = torch_models.build(name, torch_models.device(name))
    if training:
        torch_models.for_training(torch, module)
    wait = torch.cuda.synchronize if torch_models.device(name) == "cuda" else lambda: None

    def call(run):
        if training:
            torch_models.step(torch, module, run, inputs)
        else:
            run(*inputs)
        wait()

    with torch.set_grad_enabled(training), watched(engine) as inside:
        # What torch's operators do once in a process is no engine's.
        call(module)
        start = time.perf_counter()
        compiled = torch.compile(module, backend=BACKENDS.get(engine, lambda: engine)(), dynamic=False)
        call(compiled)
        seconds = time.perf_counter() - start
        own, loaded = inside()
        steady = min(torch_door.timed(lambda: call(compiled)) for _ in range(STEADY))
    from torch._dynamo.utils import counters

    return {"seconds": seconds, "steady": steady, "own": own, "loaded": loaded, "cache": dict(counters["aot_autograd"])}


if __name__ == "__main__":
    print(json.dumps(first_call(*sys.argv[1:3], training="--training" in sys.argv[3:])))
