"""The torch door, measured: models against eager, what a call costs, and how long the first call takes.

    python bench/engines/torch_door.py [--parts models,overhead,first,warm] [--inductor] [--record FILE]

Engines take turns call by call, with a pause between them; a model's result is checked against eager before it is timed.
A first call is timed in a fresh process, five times; so is a first call that finds everything in a cache.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

from torch_models import MODELS, build

HERE = pathlib.Path(__file__).resolve().parent
RECORD = HERE.parent / "record"
ROUNDS, PAUSE = 30, 0.04
# The models whose start is measured.
FIRST = ("resnet18", "gpt2", "bert")
PROCESSES = 5


# ---- models --------------------------------------------------------------------------------------------------------


def tensors(torch, out):
    from torch.utils import _pytree as pytree

    out = out.to_tuple() if hasattr(out, "to_tuple") else out
    return [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]


def timed(call):
    start = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - start
    del result
    return seconds


def paired(engines, rounds, pause=PAUSE):
    """Seconds of each engine by round; each round is one turn of everyone."""
    times = {name: [] for name in engines}
    for _ in range(rounds):
        for name, call in engines.items():
            time.sleep(pause)
            call()  # wakes its threads
            times[name].append(timed(call))
    return times


def ratio(others, ours):
    """The median of paired ratios and its 95 % bounds by order statistics."""
    found = sorted(a / b for a, b in zip(others, ours, strict=True))
    n = len(found)
    reach = 0.98 * n**0.5
    low, high = max(0, int(n / 2 - reach)), min(n - 1, int(n / 2 + reach))
    return {"median": statistics.median(found), "low": found[low], "high": found[high], "rounds": n}


def measure_models(names, rounds, inductor):
    import torch

    import oxyfuel

    lines = []
    for name in names:
        module, inputs = build(name)
        torch._dynamo.reset()
        ours = torch.compile(module, backend=oxyfuel.backend, dynamic=False, options={"fallback": "error", "fallback_random": True})
        engines = {"eager": lambda: module(*inputs), "oxyfuel": lambda: ours(*inputs)}
        with torch.no_grad():
            want, got = tensors(torch, module(*inputs)), tensors(torch, ours(*inputs))
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
            if inductor:
                theirs = torch.compile(module, backend="inductor", dynamic=False)
                theirs(*inputs)
                engines["inductor"] = lambda: theirs(*inputs)
            times = paired(engines, rounds)
        line = {"name": name, "ms": {k: 1e3 * statistics.median(v) for k, v in times.items()}, "of_eager": ratio(times["eager"], times["oxyfuel"])}
        if inductor:
            line["of_inductor"] = ratio(times["inductor"], times["oxyfuel"])
        lines.append(line)
        print(f"{name:<20} " + "  ".join(f"{k} {v:8.2f} ms" for k, v in line["ms"].items()) + f"  speed of eager's {line['of_eager']['median']:.3f} [{line['of_eager']['low']:.3f}, {line['of_eager']['high']:.3f}]", flush=True)
    return lines


# ---- what a call costs ---------------------------------------------------------------------------------------------


def measure_overhead(rounds):
    import torch
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    import oxyfuel

    nothing = aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward))
    calls = 500

    def compiled(function, backend):
        torch._dynamo.reset()
        return torch.compile(function, backend=backend, dynamic=False)

    def many(call, *args):
        def run():
            for _ in range(calls):
                call(*args)

        return run

    def one(x):
        return x + 1

    def ops(count):
        def chain(x):
            for _ in range(count):
                x = torch.mm(x, x)
            return x

        return chain

    def direct(count):
        mm = torch.ops.aten.mm.default

        def chain(x):
            for _ in range(count):
                x = mm(x, x)
            return x

        return chain

    with torch.no_grad():
        x, e = torch.randn(8), torch.eye(2)
        engines = {"eager": many(one, x)}
        engines["nothing"] = many(compiled(one, nothing), x)
        engines["oxyfuel"] = many(compiled(one, oxyfuel.backend), x)
        for run in engines.values():
            run()
        times = {k: [1e6 * s / calls for s in v] for k, v in paired(engines, rounds, 0.01).items()}
        above = statistics.median(a - b for a, b in zip(times["oxyfuel"], times["nothing"], strict=True))
        line = {"us": {k: statistics.median(v) for k, v in times.items()}, "above_nothing_us": above}
        external = {"fallback": "error", "external": ["aten.mm"]}
        few, more = 2, 42
        chains = {}
        for count in (few, more):
            torch._dynamo.reset()
            chains[f"oxyfuel {count}"] = many(torch.compile(ops(count), backend=oxyfuel.backend, dynamic=False, options=external), e)
            chains[f"python {count}"] = many(direct(count), e)
        for run in chains.values():
            run()
        t = {k: [1e6 * s / calls for s in v] for k, v in paired(chains, rounds, 0.01).items()}

        def each(name):
            return [(a - b) / (more - few) for a, b in zip(t[f"{name} {more}"], t[f"{name} {few}"], strict=True)]

        line["external_us"] = statistics.median(each("oxyfuel"))
        line["python_us"] = statistics.median(each("python"))
        line["external_above_python_us"] = statistics.median(a - b for a, b in zip(each("oxyfuel"), each("python"), strict=True))
    print("one op: " + ", ".join(f"{k} {v:.1f} us" for k, v in line["us"].items()) + f"; above a backend that does nothing {above:.1f} us", flush=True)
    print(f"an external op: {line['external_us']:.2f} us, from Python {line['python_us']:.2f} us, more by {line['external_above_python_us']:.2f} us", flush=True)
    return line


# ---- first calls, each in a process of its own ---------------------------------------------------------------------


def nothing_serialisable():
    """A backend whose compiled graphs do nothing, and join AOTAutograd's cache."""
    import torch
    from oxyfuel import _torch

    backend = _torch.aot_autograd(fw_compiler=_torch.serialisable(_nothing), inference_compiler=_torch.serialisable(_nothing))

    def call(graph, inputs):
        with _torch.cached_as("nothing"):
            return backend(graph, inputs)

    del torch
    return call


def _nothing(graph, inputs):
    import torch

    (outputs,) = graph.graph.output_node().args
    forms = [(tuple(v.shape), tuple(v.stride()), v.dtype) for v in (o.meta["val"] for o in outputs if o is not None) if isinstance(v, torch.Tensor)]
    return nothing_class()(forms)


def nothing_class():
    if "Nothing" not in globals():
        from oxyfuel import _torch

        class Nothing(_torch.OutputCode):
            def __init__(self, forms):
                self.forms = forms
                self._boxed_call = True

            def __call__(self, inputs):
                import torch

                inputs.clear()
                return [torch.empty_strided(*form[:2], dtype=form[2]) for form in self.forms]

            def prepare_for_serialization(self):
                pass

            def post_compile(self, *args):
                pass

            def set_triton_bundle(self, bundle):
                pass

        Nothing.__module__, Nothing.__qualname__ = "torch_door", "Nothing"
        globals()["Nothing"] = Nothing
    return globals()["Nothing"]


def first_call(name, engine):
    """In the child: seconds of the first call, and of the compilers alone."""
    import torch

    module, inputs = build(name)
    own = 0.0
    if engine == "oxyfuel":
        import oxyfuel

        backend = oxyfuel.backend
    elif engine == "nothing":
        import torch_door

        torch_door.nothing_class()
        backend = torch_door.nothing_serialisable()
    else:
        backend = engine
    with torch.no_grad():
        module(*inputs)
        start = time.perf_counter()
        torch.compile(module, backend=backend, dynamic=False)(*inputs)
        seconds = time.perf_counter() - start
        again = min(timed(lambda: module(*inputs)) for _ in range(3))
    from torch._dynamo.utils import counters

    hits = dict(counters["aot_autograd"])
    print(json.dumps({"seconds": seconds, "eager": again, "own": own, "hits": hits}))


def in_child(name, engine, cache):
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "OXYFUEL_CACHE_DIR": str(pathlib.Path(cache) / "oxyfuel"),
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    done = subprocess.run([sys.executable, str(HERE / "torch_door.py"), "--child", name, engine], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{engine} on {name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_first(warm, inductor, names):
    """Medians of fresh processes, engines taking turns. Cold: every process has an empty cache. Warm: one that the engine filled before."""
    engines = ["oxyfuel", "nothing" if warm else "aot_eager_decomp_partition", *(["inductor"] if inductor else [])]
    lines = []
    for name in names:
        seconds = {e: [] for e in engines}
        with contextlib.ExitStack() as stack:
            kept = {e: stack.enter_context(tempfile.TemporaryDirectory()) for e in engines}
            if warm:
                for e in engines:
                    in_child(name, e, kept[e])
            for _ in range(PROCESSES):
                for e in engines:
                    with tempfile.TemporaryDirectory() as fresh:
                        seconds[e].append(in_child(name, e, kept[e] if warm else fresh)["seconds"])
        line = {"name": name, "seconds": {e: statistics.median(v) for e, v in seconds.items()}}
        base = line["seconds"][engines[1]]
        line["above"] = line["seconds"]["oxyfuel"] - base
        if inductor and not warm:
            line["inductor_above"] = line["seconds"]["inductor"] - base
        lines.append(line)
        print(f"{'warm' if warm else 'first'} call of {name:<10} " + ", ".join(f"{e} {s:.2f} s" for e, s in line["seconds"].items()) + f"; above {engines[1]} {line['above']:.3f} s", flush=True)
    return lines


def machine():
    import torch

    cpu = platform.processor() or "cpu"
    with contextlib.suppress(OSError):
        for row in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if row.startswith("model name"):
                cpu = row.split(":", 1)[1].strip()
                break
    return {"cpu": cpu, "cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}


def main():
    if sys.argv[1:2] == ["--child"]:
        return first_call(*sys.argv[2:4])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="models,overhead,first,warm")
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--inductor", action="store_true", help="beside eager, Inductor too")
    parser.add_argument("--record", type=pathlib.Path, help="write the figures there; `default` names the file after the processor")
    args = parser.parse_args()
    parts = args.parts.split(",")
    record = {"machine": machine()}
    if "models" in parts:
        record["models"] = measure_models(args.model or MODELS, args.rounds, args.inductor)
    if "overhead" in parts:
        record["overhead"] = measure_overhead(args.rounds)
    for part in ("first", "warm"):
        if part in parts:
            record[part] = measure_first(part == "warm", args.inductor, args.model or FIRST)
    if args.record:
        path = args.record
        if str(path) == "default":
            slug = "-".join("".join(c if c.isalnum() else " " for c in record["machine"]["cpu"].replace("(R)", "")).lower().split())
            path = RECORD / f"torch-door-{slug}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
