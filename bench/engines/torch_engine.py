"""PyTorch as an engine of the driver (`cargo xtask bench --peers`): one command a line comes in, one line of JSON goes out.

    prepare WORKLOAD            inputs made, every mode run once -> {"inductor_s": ..., "outputs": n, "has": ["run eager", ...]}
    run  MODE WARM TIMED        -> {"ns": [...]}                 MODE is eager, inductor, frozen, library or door
    into MODE WARM TIMED        the same with preallocated outputs; of a workload that is an update, over the inputs that it updates
    copy BYTES WARM TIMED       a copy between two tensors that moves so many bytes
    compare NUMBER FILE         our output of that number against eager's -> {"ok": true, "error": ...}
    door                        the torch door's outputs against eager's -> {"ok": true, "error": ...}
    about                       -> {"torch": version, "threads": n}
    quit

The mode `frozen` is Inductor with freezing, of workloads that have weights; it is there where the second argument is `frozen`, and given outputs are not, then. The mode `library` is torch's own kernel of the whole workload, where it has one: `NAME_library` of `torch_workloads`. It works in place; for new outputs it
works on copies of the inputs that it changes. The mode `door` is `torch.compile(backend="oxyfuel")`; it is there where the second argument is `door`, and needs the package.

Inputs are those of `bench/definitions`, made from a seed bit for bit as `oxyfuel` makes them (crates/cli/src/fill.rs).
"""

import json
import pathlib
import sys
import time
import types

import numpy as np
import torch

import torch_workloads

DEFINITIONS = pathlib.Path(__file__).resolve().parent.parent / "definitions"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "i8": torch.int8, "u8": torch.uint8, "f16": torch.float16, "i64": torch.int64}
# Relative and absolute tolerance of torch.testing, and the distance from 1 to the next number.
TOLERANCE = {torch.float32: (1.3e-6, 1e-5, 2.0**-23), torch.bfloat16: (1.6e-2, 1e-5, 2.0**-7), torch.float16: (1e-3, 1e-5, 2.0**-10)}
# Units in the last place of the largest magnitude that another order of summation may cost.
ORDER_ULPS = 64


def find(name):
    for path in sorted(DEFINITIONS.glob("*.json")):
        for definition in json.loads(path.read_text())["definitions"]:
            for instance in definition["instances"]:
                if instance["name"] == name:
                    return definition, instance
    raise KeyError(f"no workload {name}")


def hashes(seed, count):
    """The finaliser of splitmix64 over a counter."""
    with np.errstate(over="ignore"):
        z = (np.arange(count, dtype=np.uint64) + np.uint64(seed << 40)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def make(spec, instance, seed):
    shape = [instance["params"][name] for name in spec["shape"]]
    dtype = spec["dtype"].strip("{}")
    dtype = DTYPES[instance["types"].get(dtype, dtype)]
    h = hashes(seed, int(np.prod(shape, dtype=np.int64)))
    if spec["fill"] == "normal":
        total = sum(((h >> np.uint64(s)) & np.uint64(0xFFFF)).astype(np.int32) for s in (0, 16, 32, 48)) - 131070
        x = total.astype(np.float32) * (np.float32(1.0) / np.float32(37837.227)) * np.float32(spec.get("scale", 1.0))
    else:
        low, high = spec["low"], spec["high"]
        x = (h % np.uint64(high - low + 1)).astype(np.int64) + low
    return settled(torch.from_numpy(x).to(dtype).reshape(shape))


def settled(tensor):
    """The tensor in memory that begins with a cache line and has huge pages where the system gives them: NumPy's, since torch asks for none. Where inputs happen to lie would otherwise decide rows."""
    room = torch.from_numpy(np.empty(tensor.nbytes + 64, dtype=np.uint8))
    skip = -room.data_ptr() % 64
    return room[skip : skip + tensor.nbytes].view(tensor.dtype).reshape(tensor.shape).copy_(tensor)


def twin(function, mode):
    """The same function with code of its own: Dynamo keeps what it compiled with the code, whoever the compiler was."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{mode}")
    return types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)


def listed(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


class Engine:
    def __init__(self, words):
        self.backends = {"inductor": "inductor"}
        if "door" in words:
            self.backends["door"] = "oxyfuel"
        self.freezes = "frozen" in words
        self.copied = torch.ones(1), torch.ones(1)

    def prepare(self, name):
        definition, instance = find(name)
        torch._dynamo.reset()
        self.inputs = [make(spec, instance, i + 1) for i, spec in enumerate(definition["inputs"])]
        eager = getattr(torch_workloads, definition["torch"])
        given = getattr(torch_workloads, definition["torch"] + "_out", None)
        library = getattr(torch_workloads, definition["torch"] + "_library", None)

        names = [spec["name"] for spec in definition["inputs"]]
        updated = [names.index(name) for name in definition.get("updates", [])]

        def into(outs, *inputs):
            for out, result in zip(outs, listed(eager(*inputs)), strict=True):
                out.copy_(result)

        self.expected = listed(eager(*self.inputs))
        # An update is written over inputs of its own, which are not those that results are computed from anew.
        self.state = [settled(tensor) for tensor in self.inputs] if updated else self.inputs
        self.outs = [self.state[number] for number in updated] or [torch.empty_like(tensor) for tensor in self.expected]
        self.unordered = definition.get("unordered", [])
        self.functions = {("run", "eager"): eager}
        first = {}
        for mode, backend in self.backends.items():
            compiled = torch.compile(twin(eager, mode), dynamic=False, backend=backend)
            start = time.perf_counter()
            result = compiled(*self.inputs)
            first[mode] = time.perf_counter() - start
            if mode == "door":
                self.by_door = listed(result)
            self.functions["run", mode] = compiled
            if self.freezes:
                continue
            compiled_into = torch.compile(twin(into, mode), dynamic=False, backend=backend)
            self.filled(compiled_into, mode)
            self.functions["into", mode] = compiled_into
        weights = definition.get("weights", [])
        if self.freezes and weights:
            self.functions["run", "frozen"] = self.frozen(eager, len(weights))
        if given and not self.freezes:
            self.filled(given, "eager")
            self.functions["into", "eager"] = given
        if library and not self.freezes:

            def anew(*inputs):
                tensors = [tensor.clone() if number in updated else tensor for number, tensor in enumerate(inputs)]
                library(*tensors)
                return [tensors[number] for number in updated]

            def in_place(outs, *inputs):
                library(*inputs)

            self.agree_all(anew(*self.inputs), "torch's own kernel")
            self.filled(in_place, "torch's own kernel")
            self.functions["run", "library"] = anew
            self.functions["into", "library"] = in_place
        has = [" ".join(words) for words in self.functions]
        return {"inductor_s": first["inductor"], "outputs": len(self.expected), "has": has}

    def frozen(self, function, count):
        """Inductor's code for the function with its last arguments as constants."""
        first = len(self.inputs) - count
        self.free, weights = self.inputs[:first], self.inputs[first:]

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weights = torch.nn.ParameterList(torch.nn.Parameter(tensor, requires_grad=False) for tensor in weights)

            def forward(self, *inputs):
                return function(*inputs, *self.weights)

        with torch._inductor.config.patch(freezing=True):
            compiled = torch.compile(Model().eval(), dynamic=False)
            self.agree_all(listed(compiled(*self.free)), "Inductor with freezing")
        return compiled

    def filled(self, function, mode):
        """Runs a function with given outputs, and fails unless they hold the results then."""
        if self.state is self.inputs:
            for out in self.outs:
                out.zero_()
        else:
            for own, tensor in zip(self.state, self.inputs, strict=True):
                own.copy_(tensor)
        function(self.outs, *self.state)
        self.agree_all(self.outs, f"{mode} with given outputs")

    def agree_all(self, tensors, who):
        for number, tensor in enumerate(tensors):
            answer = self.agrees(number, tensor)
            if not answer["ok"]:
                raise AssertionError(f"{who}, output {number}: {answer['error']}")

    def copy(self, size, warm, timed):
        count = max(int(size) // 8, 16)
        if self.copied[0].numel() != count:
            self.copied = torch.ones(count), torch.ones(count)
        source, target = self.copied
        return self.time(target.copy_, (source,), warm, timed)

    def turn(self, verb, mode, warm, timed):
        args = (self.outs, *self.state) if verb == "into" else self.free if mode == "frozen" else self.inputs
        return self.time(self.functions[verb, mode], args, warm, timed)

    def time(self, function, args, warm, timed):
        for _ in range(int(warm)):
            function(*args)
        ns = []
        for _ in range(int(timed)):
            start = time.perf_counter_ns()
            result = function(*args)
            ns.append(time.perf_counter_ns() - start)
            del result
        return {"ns": ns}

    def check_door(self):
        for number, ours in enumerate(self.by_door):
            answer = self.agrees(number, ours)
            if not answer["ok"]:
                return {"ok": False, "error": f"output {number}: {answer['error']}"}
        return {"ok": True}

    def compare(self, number, file):
        ours = torch.from_numpy(np.load(file))
        if self.expected[int(number)].dtype == torch.bfloat16:
            ours = ours.view(torch.bfloat16)
        return self.agrees(int(number), ours)

    def agrees(self, number, ours):
        want = self.expected[number]
        if number in self.unordered:
            ours, want = ours.sort(-1).values, want.sort(-1).values
        if ours.shape != want.shape or ours.dtype != want.dtype:
            return {"ok": False, "error": f"{ours.dtype}{list(ours.shape)} for {want.dtype}{list(want.shape)}"}
        if not want.dtype.is_floating_point:
            return {"ok": bool(torch.equal(ours, want)), "error": "integers differ"}
        relative, absolute, ulp = TOLERANCE[want.dtype]
        a, b = ours.double(), want.double()
        error = (a - b).abs()
        allowed = torch.maximum(absolute + relative * b.abs(), ORDER_ULPS * ulp * b.abs().max())
        return {"ok": bool((error <= allowed).all()), "error": f"largest difference {error.max().item():.3g}"}


def main():
    if len(sys.argv) > 1:
        torch.set_num_threads(int(sys.argv[1]))
    torch.set_grad_enabled(False)
    engine = Engine(sys.argv[2:])
    # Compilers that torch calls may print; the pipe is for answers alone.
    pipe, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        verb, *words = line.split()
        try:
            if verb == "quit":
                break
            if verb == "prepare":
                answer = engine.prepare(*words)
            elif verb in ("run", "into"):
                answer = engine.turn(verb, *words)
            elif verb == "copy":
                answer = engine.copy(*words)
            elif verb == "door":
                answer = engine.check_door()
            elif verb == "compare":
                answer = engine.compare(*words)
            elif verb == "about":
                answer = {"torch": torch.__version__, "threads": torch.get_num_threads()}
            else:
                answer = {"error": f"unknown command {verb}"}
        except Exception as error:  # whatever a library throws is one answer, not the end of the run
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=pipe, flush=True)


main()
