"""The torch door, measured: models against eager, what a call costs, and how long the first call takes.

    python bench/engines/torch_door.py [--parts models,overhead,first,warm] [--inductor] [--record FILE]

Engines take turns call by call, with a pause between them; a model's result is checked against eager before it is timed, and so is what torch runs of it.
Every model has a process of its own. A first call is timed in a fresh process, five times; so is a first call that finds everything in a cache.
A bar that is missed makes the command fail, after all figures are written.
"""

import argparse
import contextlib
import datetime
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
JUDGE = HERE.parents[1] / "python" / "tests"
PARTS = ("models", "overhead", "first", "warm")
ROUNDS, PAUSE = 30, 0.04
# The models whose start is measured.
FIRST = ("resnet18", "gpt2", "bert")
PROCESSES = 5

# The bars. A model's speed of eager's: the median, and 0.95 of it for the lower bound.
SPEED, LOWER = 0.98, 0.95
# Microseconds: one op above a backend that does nothing, an external op above calling it from Python.
CALL, EXTERNAL = 4.0, 2.0
# What torch may run of a model's forward.
LEFT_TO_TORCH = ("products", "convolutions")


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


def judge():
    """The judge's modules: what counts external operators there counts them here."""
    if str(JUDGE) not in sys.path:
        sys.path.insert(0, str(JUDGE))
    from judge import doors, revision, share

    return doors, revision, share


def outside(calls, reasons):
    """The operators that torch runs and that are neither products (attention is one) nor convolutions."""
    _, _, share = judge()
    return sorted(target for target in calls if share.left_out(target, reasons[target]) not in LEFT_TO_TORCH)


def measure_model(name, rounds, inductor):
    import torch

    doors, _, _ = judge()
    door = doors.door("oxyfuel")
    module, inputs = build(name)
    ours = door.compile(module, dynamic=False)
    engines = {"eager": lambda: module(*inputs), "oxyfuel": lambda: ours(*inputs)}
    with torch.no_grad():
        want, got = tensors(torch, module(*inputs)), tensors(torch, ours(*inputs))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
        del want, got
        counts = door.take_counts()
        if inductor:
            theirs = torch.compile(module, backend="inductor", dynamic=False)
            theirs(*inputs)
            engines["inductor"] = lambda: theirs(*inputs)
        times = paired(engines, rounds)
    return model_line(name, times, counts)


def model_line(name, times, counts):
    line = {"name": name, "ms": {k: 1e3 * statistics.median(v) for k, v in times.items()}, "of_eager": ratio(times["eager"], times["oxyfuel"])}
    if "inductor" in times:
        line["of_inductor"] = ratio(times["inductor"], times["oxyfuel"])
    line |= {"graphs": counts.graphs, "kernels": counts.kernels, "interpreted": counts.interpreted, "external": dict(sorted(counts.external.items()))}
    line["outside"] = outside(counts.external, counts.reasons)
    line["bar"] = SPEED
    fast = line["of_eager"]["median"] >= SPEED and line["of_eager"]["low"] >= LOWER * SPEED
    line["met"] = fast and counts.graphs > 0 and not counts.interpreted and not line["outside"]
    return line


def said_model(line):
    of_eager = line["of_eager"]
    said = f"{line['name']:<20} " + "  ".join(f"{k} {v:8.2f} ms" for k, v in line["ms"].items())
    said += f"  speed of eager's {of_eager['median']:.3f} [{of_eager['low']:.3f}, {of_eager['high']:.3f}]"
    said += f"  {line['kernels']} kernels, {sum(line['external'].values())} calls of torch's"
    if line["interpreted"] or line["outside"]:
        said += f"; interpreted {line['interpreted']}, left to torch {line['outside']}"
    print(said, flush=True)


def measure_models(names, rounds, inductor):
    """One process a model: what one leaves in memory and on threads is no part of the next."""
    lines = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            line = pathlib.Path(folder) / "line.json"
            command = [sys.executable, str(HERE / "torch_door.py"), "--one-model", name, "--rounds", str(rounds), "--line", str(line)]
            done = subprocess.run([*command, *(["--inductor"] if inductor else [])], stderr=subprocess.PIPE, text=True)
            if done.returncode:
                raise SystemExit(f"{name}: {done.stderr[-2000:]}")
            lines.append(json.loads(line.read_text()))
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
    line["met"] = {"call": line["above_nothing_us"] <= CALL, "external": line["external_above_python_us"] <= EXTERNAL}
    print("one op: " + ", ".join(f"{k} {v:.1f} us" for k, v in line["us"].items()) + f"; above a backend that does nothing {line['above_nothing_us']:+.1f} us of {CALL} us", flush=True)
    print(f"an external op: {line['external_us']:.2f} us, from Python {line['python_us']:.2f} us, more by {line['external_above_python_us']:+.2f} us of {EXTERNAL} us", flush=True)
    return line


# ---- first calls, each in a process of its own ---------------------------------------------------------------------


def in_child(name, engine, cache, training=False):
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache), "OXYFUEL_CACHE_DIR": str(pathlib.Path(cache) / "oxyfuel")}
    command = [sys.executable, str(HERE / "torch_start.py"), name, engine, *(["--training"] if training else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{engine} on {name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# What a start is measured against, and how many seconds above it are allowed.
BASES = {"first": ("aot_eager_decomp_partition", 0.5), "warm": ("nothing", 0.15)}
# Beside it, for the record: torch alone where the key of its cache is made as ours is.
BESIDE = {"first": (), "warm": ("nothing-our-key",)}
# Inductor's own compile takes at least so many times ours.
SHARE = 40


def measure_start(part, inductor, names, processes, bases=BASES, share=SHARE, training=False):
    """Medians of fresh processes, engines taking turns. First: every process has an empty cache. Warm: one that the engine filled before. In training a call is a step, and what no bar asks for is left out."""
    warm = part == "warm"
    base, bar = bases[part]
    engines = ["oxyfuel", base, *(() if training else BESIDE[part]), *(["inductor"] if inductor else [])]
    lines = []
    for name in names:
        runs = {e: [] for e in engines}
        with contextlib.ExitStack() as stack:
            kept = {e: stack.enter_context(tempfile.TemporaryDirectory()) for e in engines}
            if warm:
                for e in engines:
                    in_child(name, e, kept[e], training)
            for turn in range(processes):
                for e in [*engines[turn % len(engines) :], *engines[: turn % len(engines)]]:
                    with tempfile.TemporaryDirectory() as fresh:
                        runs[e].append(in_child(name, e, kept[e] if warm else fresh, training))
                    if warm:
                        check_hits(name, e, runs[e][-1]["cache"])
        lines.append(start_line(name, runs, base, bar, share))
        said_start(f"{part} training" if training else part, base, bar, share, lines[-1])
    return lines


def check_hits(name, engine, counters):
    """A warm start takes everything from AOTAutograd's cache."""
    missed = {key: n for key, n in counters.items() if key in ("autograd_cache_miss", "autograd_cache_bypass") and n}
    if not counters.get("autograd_cache_hit") or missed:
        raise SystemExit(f"{engine} on {name} did not find everything in its cache: {counters}")


def start_line(name, runs, base, bar, share=SHARE):
    """What the runs of a model say; differences and shares are those of runs of one turn.

    The bar is about the call itself (`above`). Less a steady call (`above_starting`) stands beside it, because the engines compute different things in
    their first call, from the whole model to nothing.
    """
    engines = list(runs)

    def median(key):
        return {e: statistics.median(run[key] for run in runs[e]) for e in engines}

    def whole(engine):
        return [run["seconds"] for run in runs[engine]]

    def starting(engine):
        return [run["seconds"] - run["steady"] for run in runs[engine]]

    def above(other, seconds):
        return statistics.median(a - b for a, b in zip(seconds("oxyfuel"), seconds(other), strict=True))

    line = {"name": name, "processes": len(runs[base])} | {key: median(key) for key in ("seconds", "steady", "own", "loaded")}
    line["starting"] = {e: statistics.median(starting(e)) for e in engines}
    line["bar"] = bar
    line["above"], line["above_starting"] = above(base, whole), above(base, starting)
    met = {"above": line["above"] <= bar}
    if "nothing-our-key" in runs:
        line["above_our_key"], line["above_our_key_starting"] = above("nothing-our-key", whole), above("nothing-our-key", starting)
    if "inductor" in runs:
        line["above_inductor"], line["above_inductor_starting"] = above("inductor", whole), above("inductor", starting)
        if line["own"]["inductor"]:
            line["own_of_inductor"] = statistics.median(a["own"] / b["own"] for a, b in zip(runs["oxyfuel"], runs["inductor"], strict=True))
            met["own_of_inductor"] = line["own_of_inductor"] <= 1 / share
        else:
            met["above_inductor"] = line["above_inductor"] <= 0
    line["met"] = met
    return line


def said_start(part, base, bar, share, line):
    print(f"{part} call of {line['name']}: " + ", ".join(f"{e} {s:.2f} s ({line['starting'][e]:.2f} less a call of {line['steady'][e]:.2f})" for e, s in line["seconds"].items()))
    own = ", ".join(f"{e} {1e3 * s:.0f} ms" for e, s in line["own"].items() if s)
    loaded = ", ".join(f"{e} {1e3 * s:.1f} ms" for e, s in line["loaded"].items() if s)
    print(f"  above {base} {line['above']:+.3f} s of {bar} s (less a call {line['above_starting']:+.3f} s)" + (f"; own compilers: {own}" if own else "") + (f"; loading plans: {loaded}" if loaded else ""))
    if "own_of_inductor" in line:
        print(f"  own compile: 1/{1 / line['own_of_inductor']:.0f} of Inductor's, bar 1/{share}")
    elif "above_inductor" in line:
        print(f"  above Inductor {line['above_inductor']:+.3f} s, bar 0")
    if "above_our_key" in line:
        print(f"  above torch alone with a key like ours {line['above_our_key']:+.3f} s (less a call {line['above_our_key_starting']:+.3f} s)")
    sys.stdout.flush()


# ---- the record ----------------------------------------------------------------------------------------------------


def machine():
    import torch

    cpu = platform.processor() or "cpu"
    with contextlib.suppress(OSError):
        for row in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if row.startswith("model name"):
                cpu = row.split(":", 1)[1].strip()
                break
    return {"cpu": cpu, "cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}


def path_of(record, cpu):
    """The file of a record; `default` is that of the processor."""
    if str(record) != "default":
        return record
    slug = "-".join("".join(c if c.isalnum() else " " for c in cpu.replace("(R)", "")).lower().split())
    return RECORD / f"torch-door-{slug}.json"


def missed(record):
    """One sentence for each bar that is missed, of the parts that are there."""
    said = [f"{line['name']}: speed of eager's {line['of_eager']['median']:.3f}, {line['interpreted']} interpreted, left to torch {line['outside']}" for line in record.get("models", ()) if not line["met"]]
    said += [f"what a call costs: {bar}" for bar, met in record.get("overhead", {}).get("met", {}).items() if not met]
    return said + [f"{part} call of {line['name']}: {bar}" for part in BASES for line in record.get(part, ()) for bar, met in line["met"].items() if not met]


def of_others(before, parts, commit):
    """The parts of an older record that this run does not measure and that are not of this commit."""
    runs = before.get("runs", {})
    return sorted(part for part in PARTS if part in before and part not in parts and runs.get(part, {}).get("commit", "unknown") != commit)


def merged(before, parts, runs):
    """The older record with the new parts in place of theirs, `runs` says the commit and the time of each; `mixed` where they are not all of one."""
    whole = before | parts
    whole["runs"] = {**before.get("runs", {}), **runs}
    commits = {whole["runs"].get(part, {}).get("commit", "unknown") for part in PARTS if part in whole}
    whole["mixed"] = len(commits) > 1 or "unknown" in commits
    return whole


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="which of models, overhead, first and warm, with commas between them")
    parser.add_argument("--model", action="append", choices=MODELS, help="only this one; may be said several times")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="paired turns of models and calls")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="fresh processes of every first and warm call")
    parser.add_argument("--inductor", action=argparse.BooleanOptionalAction, help="Inductor too (it needs a C++ compiler); of first and warm calls by default where a record is written")
    parser.add_argument("--record", type=pathlib.Path, help="write the figures there, beside parts of the same commit that the file has already; `default` names it after the processor")
    parser.add_argument("--mixed", action="store_true", help="keep parts of other commits in the record, which says so")
    parser.add_argument("--one-model", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--line", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one_model:
        line = measure_model(args.one_model, args.rounds, args.inductor)
        said_model(line)
        args.line.write_text(json.dumps(line))
        return 0
    parts = args.parts.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"no part {', '.join(unknown)}: {', '.join(PARTS)}")
    _, revision, _ = judge()
    record, commit = {"machine": machine()}, revision.code()
    path, before, runs = None, {}, {}
    if args.record:
        path = path_of(args.record, record["machine"]["cpu"])
        before = json.loads(path.read_text()) if path.exists() else {}
        if args.model:
            parser.error("a record holds all models")
        others = of_others(before, parts, commit)
        if others and not args.mixed:
            parser.error(f"{path.name} holds {', '.join(others)} of another commit than {commit}: measure all parts, or say --mixed")
    inductor = bool(args.record) if args.inductor is None else args.inductor
    start = time.monotonic()

    def begin(part):
        print(f"[{(time.monotonic() - start) / 60:.0f} min] {part}", flush=True)

    for part in (part for part in PARTS if part in parts):
        begin(part)
        if part == "models":
            record[part] = measure_models(args.model or MODELS, args.rounds, args.inductor)
        elif part == "overhead":
            record[part] = measure_overhead(args.rounds)
        else:
            record[part] = measure_start(part, inductor, args.model or FIRST, args.processes)
        if path:
            runs[part] = {"commit": commit, "at": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ")}
            path.write_text(json.dumps(merged(before, record, runs), indent=1) + "\n")
            print(f"written to {path}", flush=True)
    begin("done")
    said = missed(record)
    for sentence in said:
        print(f"MISSED {sentence}")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
