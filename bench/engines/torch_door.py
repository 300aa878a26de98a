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
    """Microseconds of a call of `x + 1`, and of an external op.

    The backend to compare with, `nothing`, is as near to ours as one that compiles nothing can be: AOTAutograd's cache and wrappers, boxed, the overload called from
    Python. `wrappers` does not even call it: a new tensor comes back, and what is left is Dynamo's guards and AOTAutograd's wrappers.
    """
    import torch
    import torch_nothing

    import oxyfuel

    calls = 500

    def many(call, *args):
        def run():
            for _ in range(calls):
                call(*args)

        return run

    def one():
        """A new `x + 1`: Dynamo keeps what it compiled by code, and would try one engine's before it comes to the other's."""
        space = {}
        exec("def plus(x):\n    return x + 1", space)  # noqa: S102
        return space["plus"]

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
        engines = {"eager": many(one(), x)}
        backends = {
            "wrappers": torch_nothing.backend(torch_nothing.Nothing),
            "nothing": torch_nothing.backend(torch_nothing.OneCall),
            "oxyfuel": oxyfuel.backend,
        }
        for name, backend in backends.items():
            engines[name] = many(torch.compile(one(), backend=backend, dynamic=False), x)
        for run in engines.values():
            run()
        times = {k: [1e6 * s / calls for s in v] for k, v in paired(engines, rounds, 0.01).items()}

        def above(other):
            return statistics.median(a - b for a, b in zip(times["oxyfuel"], times[other], strict=True))

        line = {"us": {k: statistics.median(v) for k, v in times.items()}, "above_nothing_us": above("nothing"), "above_wrappers_us": above("wrappers")}
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
    print("one op: " + ", ".join(f"{k} {v:.1f} us" for k, v in line["us"].items()) + f"; above a backend that does nothing {line['above_nothing_us']:.1f} us", flush=True)
    print(f"an external op: {line['external_us']:.2f} us, from Python {line['python_us']:.2f} us, more by {line['external_above_python_us']:.2f} us", flush=True)
    return line


# ---- first calls, each in a process of its own ---------------------------------------------------------------------


def in_child(name, engine, cache):
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache), "OXYFUEL_CACHE_DIR": str(pathlib.Path(cache) / "oxyfuel")}
    done = subprocess.run([sys.executable, str(HERE / "torch_start.py"), name, engine], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{engine} on {name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# What a start is measured against, and how many seconds above it are allowed.
BASES = {"first": ("aot_eager_decomp_partition", 0.5), "warm": ("nothing", 0.15)}
# Inductor's own compile takes at least so many times ours.
SHARE = 40


def measure_start(part, inductor, names, processes):
    """Medians of fresh processes, engines taking turns. First: every process has an empty cache. Warm: one that the engine filled before."""
    warm = part == "warm"
    base, bar = BASES[part]
    engines = ["oxyfuel", base, *(["inductor"] if inductor else [])]
    lines = []
    for name in names:
        runs = {e: [] for e in engines}
        with contextlib.ExitStack() as stack:
            kept = {e: stack.enter_context(tempfile.TemporaryDirectory()) for e in engines}
            if warm:
                for e in engines:
                    in_child(name, e, kept[e])
            for turn in range(processes):
                for e in [*engines[turn % len(engines) :], *engines[: turn % len(engines)]]:
                    with tempfile.TemporaryDirectory() as fresh:
                        runs[e].append(in_child(name, e, kept[e] if warm else fresh))
                    if warm and not runs[e][-1]["cache"].get("autograd_cache_hit"):
                        raise SystemExit(f"{e} on {name} found nothing in its cache: {runs[e][-1]['cache']}")
        lines.append(start_line(name, runs, base, bar))
        said_start(part, base, bar, lines[-1])
    return lines


def start_line(name, runs, base, bar):
    """What the runs of a model say; differences and shares are those of runs of one turn."""
    engines = list(runs)

    def median(key):
        return {e: statistics.median(run[key] for run in runs[e]) for e in engines}

    def starting(engine):
        return [run["seconds"] - run["steady"] for run in runs[engine]]

    def above(other):
        return statistics.median(a - b for a, b in zip(starting("oxyfuel"), starting(other), strict=True))

    line = {"name": name, "processes": len(runs[base])} | {key: median(key) for key in ("seconds", "steady", "own", "loaded")}
    line["starting"] = {e: statistics.median(starting(e)) for e in engines}
    line["above"] = above(base)
    line["met"] = line["above"] <= bar
    if "inductor" in runs:
        line["above_inductor"] = above("inductor")
        if line["own"]["inductor"]:
            line["own_of_inductor"] = statistics.median(a["own"] / b["own"] for a, b in zip(runs["oxyfuel"], runs["inductor"], strict=True))
            line["met"] = line["met"] and line["own_of_inductor"] <= 1 / SHARE
        else:
            line["met"] = line["met"] and line["above_inductor"] <= 0
    return line


def said_start(part, base, bar, line):
    print(f"{part} call of {line['name']}: " + ", ".join(f"{e} {s:.2f} s ({line['seconds'][e]:.2f} less a call of {line['steady'][e]:.2f})" for e, s in line["starting"].items()))
    own = ", ".join(f"{e} {1e3 * s:.0f} ms" for e, s in line["own"].items() if s)
    loaded = ", ".join(f"{e} {1e3 * s:.1f} ms" for e, s in line["loaded"].items() if s)
    print(f"  above {base} {line['above']:+.3f} s of {bar} s" + (f"; own compilers: {own}" if own else "") + (f"; loading plans: {loaded}" if loaded else ""))
    if "own_of_inductor" in line:
        print(f"  own compile: 1/{1 / line['own_of_inductor']:.0f} of Inductor's, bar 1/{SHARE}")
    elif "above_inductor" in line:
        print(f"  above Inductor {line['above_inductor']:+.3f} s, bar 0")
    sys.stdout.flush()


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="models,overhead,first,warm", help="which of models, overhead, first and warm, with commas between them")
    parser.add_argument("--model", action="append", choices=MODELS, help="only this one; may be said several times")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="paired turns of models and calls")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="fresh processes of every first and warm call")
    parser.add_argument("--inductor", action="store_true", help="Inductor too; it needs a C++ compiler")
    parser.add_argument("--record", type=pathlib.Path, help="write the figures there, beside parts that the file has already; `default` names it after the processor")
    args = parser.parse_args()
    parts = args.parts.split(",")
    record = {"machine": machine()}
    if "models" in parts:
        record["models"] = measure_models(args.model or MODELS, args.rounds, args.inductor)
    if "overhead" in parts:
        record["overhead"] = measure_overhead(args.rounds)
    for part in BASES:
        if part in parts:
            record[part] = measure_start(part, args.inductor, args.model or FIRST, args.processes)
    if args.record:
        path = args.record
        if str(path) == "default":
            slug = "-".join("".join(c if c.isalnum() else " " for c in record["machine"]["cpu"].replace("(R)", "")).lower().split())
            path = RECORD / f"torch-door-{slug}.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(before | record, indent=1) + "\n")
        print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
