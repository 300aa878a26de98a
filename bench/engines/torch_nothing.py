"""Backends that do nothing, or one call: what torch itself costs.

They stand where ours does: compiled by AOTAutograd for its cache (whose key is made as for Inductor), boxed, without wrappers of torch's that an ordinary function gets.
A module of their own, because a cache finds compiled graphs by its name.
"""

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config
from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler
from torch._inductor import config as inductor_config
from torch._inductor.output_code import OutputCode


def backend(compiler):
    """A backend of torch.compile around one of the classes below."""
    # One for each: torch takes the forward's for the backward where there is none, and what it wraps around that one costs every call several microseconds.
    roles = ("fw_compiler", "bw_compiler", "inference_compiler")
    compilers = {role: SerializableAOTDispatchCompiler(OutputCode, compiler) for role in roles}
    aot = aot_autograd(**compilers, keep_inference_input_mutations=True)
    wanted = {"bundled_autograd_cache": True, "force_non_lazy_backward_lowering": True}
    # The key says nothing of the backend unless it is told.
    marked = {"nothing": compiler.__qualname__}

    def call(graph, inputs):
        known = {name: value for name, value in wanted.items() if hasattr(config, name)}
        with config.patch(known), inductor_config.patch(unsafe_marked_cacheable_functions=marked):
            return aot(graph, inputs)

    return call


class _Code(OutputCode):
    def __init__(self):
        self._boxed_call = True

    def prepare_for_serialization(self):
        pass

    def post_compile(self, *args):
        pass

    def set_triton_bundle(self, bundle):
        pass


class Nothing(_Code):
    """New tensors of the right forms, nothing in them. Inputs that a graph returns (a forward keeps parameters for its backward) are returned, and where a backward has no gradient there is none."""

    def __init__(self, graph, _):
        super().__init__()
        (outputs,) = graph.graph.output_node().args
        inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self.returned = [(place, inputs.index(output)) for place, output in enumerate(outputs) if output in inputs]
        self.forms = [None if output is None or output in inputs else _form(output.meta["val"]) for output in outputs]

    def __call__(self, inputs):
        made = [form and torch.empty_strided(form[0], form[1], dtype=form[2], device=form[3]) for form in self.forms]
        for place, number in self.returned:
            made[place] = inputs[number]
        inputs.clear()
        return made


def _form(value):
    return tuple(value.shape), tuple(value.stride()), value.dtype, value.device


class OneCall(_Code):
    """A graph of one call on one tensor and a number: the overload is called, as the graph itself would call it, and that is all."""

    def __init__(self, graph, _):
        super().__init__()
        (node,) = (node for node in graph.graph.nodes if node.op == "call_function")
        self.overload, (_, self.number) = node.target, node.args

    def __getstate__(self):
        return self.__dict__ | {"overload": str(self.overload)}

    def __setstate__(self, state):
        space, name, overload = state["overload"].split(".")
        self.__dict__ = state | {"overload": getattr(getattr(getattr(torch.ops, space), name), overload)}

    def __call__(self, inputs):
        (x,) = inputs
        inputs.clear()
        return (self.overload(x, self.number),)
