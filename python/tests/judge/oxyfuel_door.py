"""The oxyfuel backend as the judge enters it: failures are errors, random numbers are eager's, every compile is counted."""

import functools
import importlib
import json

import torch
from functorch.compile import aot_function

from judge.doors import Counts, Door

OPTIONS = {"fallback": "error", "fallback_random": True}


class Oxyfuel(Door):
    def __init__(self, name, own_random=False):
        super().__init__(name)
        # With numbers of ours nothing can be compared, only counted.
        self.options = OPTIONS | {"fallback_random": not own_random}
        # The package exports the function under the module's name.
        self.module = importlib.import_module("oxyfuel.backend")
        if not hasattr(self.module.compile_graph, "counted"):
            self.module.compile_graph = _counted(self.module.compile_graph)
        _Seen.door = self
        # What comes from a cache is neither judged nor counted.
        torch._functorch.config.enable_autograd_cache = False

    def below_dynamo(self, function):
        from oxyfuel import config, decompositions, options, partition

        chosen = options.resolve(config.current(), None, self.options)
        compiler = functools.partial(self.module._compile, options=chosen)
        return aot_function(
            function,
            fw_compiler=functools.partial(compiler, role="forward"),
            bw_compiler=functools.partial(compiler, role="backward"),
            inference_compiler=functools.partial(compiler, role="inference"),
            partition_fn=functools.partial(partition.partition, options=chosen),
            decompositions=decompositions.table(chosen.fallback_random),
            keep_inference_input_mutations=True,
        )

    def compile(self, function, **how):
        return torch.compile(function, backend=self.module.backend, options=self.options, **how)


class _Seen:
    """The door that the counts of a compile go to."""

    door = None


def _counted(compile_graph):
    @functools.wraps(compile_graph)
    def counted(*args, **kwargs):
        code = compile_graph(*args, **kwargs)
        if _Seen.door is not None:
            _Seen.door.counts.graphs += 1
            # A graph in segments has a code for each, and what stands between them has no plan.
            for part in getattr(code, "codes", [code]):
                if hasattr(part.run, "explain"):
                    add_counts(_Seen.door.counts, part.run)
        return code

    counted.counted = True
    return counted


def add_counts(counts: Counts, compiled):
    said = json.loads(compiled.explain())
    counts.kernels += len(said["kernels"])
    counts.interpreted += said["interpreted"]
    for call in said["externals"]:
        counts.add(call["target"], call["reason"])
