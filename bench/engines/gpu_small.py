#!/usr/bin/env python3
"""Single kernels and small graphs on a GPU through the torch door: usage: gpu_small.py [FILTER …] [--quick] [--json FILE]

The workloads of `definitions/` that are meant for a GPU, and small graphs, where what a call costs decides: eager, Inductor and ours, each of the compilers in `default` and in `reduce-overhead`, in turns in one process. A round takes calls one behind the other, between events of the
device and between two looks at the clock, and single calls from an idle device until their results are there. A ratio is the median over rounds of Inductor's time over ours in the same mode and the same round, with the 2.5 % and 97.5 % points of that median by resampling.

Inputs lie where they lay at the call before. What is copied at a call is seen by torch's profiler: copies inside the device, by the driver or by torch's kernels. The PQ indexer's kernels are counted with graphs off.

Closes with 'N passed, N failed'. A row passes when its results are eager's; when under `reduce-overhead` neither single calls nor calls one behind the other take longer than Inductor's (a ratio whose interval holds 1 is no difference); when ours then copies no input; and the indexer when it
is at most 10 kernels and a single call of it as one graph takes at most 120 us. FILTER is a part of a name or a title; a row that has any of them is measured. --quick takes fewer rounds.
"""

import gc
import json
import os
import re
import statistics
import sys
import tempfile
import time
import types

from gpu_rows import ABOVE, HERE, draw, gpu, head, interval, tensors, unpacked, workloads

MODES = ("default", "reduce-overhead")
ENGINES = ("oxyfuel", "inductor")
# Small graphs: sizes that are meant for CPUs take a GPU less time than their launches.
SMALL = (
    "add-relu-mul-1k", "add-relu-mul-1m", "gelu-bias", "softmax", "layer-norm", "sum-0", "rotary", "adamw-small", "mlp", "attention-decode-bf16", "linear-decode-bf16-4096",
    "gpt2-layer-bf16", "bert-layer", "llama-layer-bf16", "resnet-stage-b1",
)
INDEXER = "gpu-pq-indexer"
INDEXER_KERNELS, INDEXER_US = 10, 120
ROUNDS, QUICK_ROUNDS, WARM, SINGLE = 20, 8, 6, 5
# Microseconds of calls one behind the other in a round, and how many calls at least and at most.
ROUND_US, FEWEST, MOST = 2000, 3, 50
# Largest error by norm against eager, by bytes of an element.
BOUND = {2: 2e-2, 4: 1e-4}
# Kernels of torch's that only copy.
COPIES = re.compile(r"CopyFunctor|direct_copy_kernel|copy_device_to_device|foreach_copy|Memcpy DtoD")


# ---- what is judged ------------------------------------------------------------------------------------------------


def parsed(args):
    """Filters, whether it is to be quick, and where figures go; `None` where the arguments mean nothing."""
    args, target = list(args), None
    if "--json" in args:
        at = args.index("--json")
        if at + 1 == len(args):
            return None
        target = args[at + 1]
        del args[at : at + 2]
    flags = {a for a in args if a.startswith("-")}
    if flags - {"--quick"}:
        return None
    return [a for a in args if not a.startswith("-")], bool(flags), target


def rows(words):
    """The workloads that are measured: those that are meant for a GPU, then small ones; what the torch door leaves to torch is not."""
    there = workloads()
    small = {w.name: w for w in there if w.name in SMALL}
    chosen = [w for w in there if w.device == "gpu" and not w.rust_door_only] + [small[name] for name in SMALL]
    return [w for w in chosen if not words or any(word in w.name or word in w.title for word in words)]


def ratios(times):
    """Inductor's time over ours by mode and by kind of time. `times` has the rounds of each engine: device, one behind the other, single."""
    found = {}
    for mode in MODES:
        for place, what in enumerate(("device", "stream", "wall")):
            pairs = [theirs[place] / ours[place] for theirs, ours in zip(times[f"inductor {mode}"], times[f"oxyfuel {mode}"], strict=True)]
            found[f"{mode}, {what}"] = interval(pairs)
    return found


def no_slower(ratio):
    """The median is at least 1, or what is measured cannot tell."""
    middle, _, high = ratio
    return middle >= 1.0 or high >= 1.0


def copies(events):
    """The copies inside the device among a call's events, and their bytes as far as they say how many."""
    found = [e for e in events if COPIES.search(e["name"])]
    return {"names": [e["name"][:80] for e in found], "bytes": sum(int(e.get("args", {}).get("bytes", 0)) for e in found)}


def missed(row):
    """The bars that a row does not reach, as sentences."""
    said = [] if row["right"] else ["results differ from eager's"]
    for what, how in (("wall", "single calls"), ("stream", "calls one behind the other")):
        ratio = row["ratios"][f"reduce-overhead, {what}"]
        if not no_slower(ratio):
            said.append(f"{how} run at {ratio[0]:.3f} [{ratio[1]:.3f}, {ratio[2]:.3f}] of Inductor's speed under reduce-overhead")
    if copied := row["copies"]["oxyfuel reduce-overhead"]["names"]:
        said.append(f"copies inside the device at a call: {', '.join(copied)}")
    if row["name"] == INDEXER:
        if row["kernels"]["oxyfuel default"] > INDEXER_KERNELS:
            said.append(f"{row['kernels']['oxyfuel default']} kernels with graphs off, for at most {INDEXER_KERNELS}")
        if row["us"]["oxyfuel reduce-overhead"][2] > INDEXER_US:
            said.append(f"{row['us']['oxyfuel reduce-overhead'][2]:.1f} us as one graph, for at most {INDEXER_US}")
    return said


# ---- measuring -----------------------------------------------------------------------------------------------------


class Peer:
    """One engine."""

    def __init__(self, torch, function, inputs, options):
        self.torch, self.inputs = torch, inputs
        # Dynamo keeps with a function's code what it made of it: each engine has that to itself, as in a program with one.
        own = types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__, function.__closure__)
        self.run = own if options is None else torch.compile(own, dynamic=False, **options)
        self.mark = options is not None and options["backend"] == "inductor" and options["mode"] == "reduce-overhead"

    def __call__(self):
        if self.mark:
            self.torch.compiler.cudagraph_mark_step_begin()
        return self.run(*self.inputs)

    def single(self):
        """Microseconds from a call on an idle device until its results are there."""
        self.torch.cuda.synchronize()
        start = time.perf_counter()
        self()
        self.torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e6

    def round(self, calls):
        """Microseconds of a call: on the device and by the clock, one behind the other; and alone."""
        torch = self.torch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self()
        torch.cuda.synchronize()
        start = time.perf_counter()
        begin.record()
        for _ in range(calls):
            self()
        end.record()
        torch.cuda.synchronize()
        stream = (time.perf_counter() - start) * 1e6 / calls
        return begin.elapsed_time(end) * 1e3 / calls, stream, statistics.median(self.single() for _ in range(SINGLE))

    def seen(self):
        """What the device does at one call, by torch's profiler."""
        from torch.profiler import ProfilerActivity, profile

        torch = self.torch
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            self()
            torch.cuda.synchronize()
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            profiler.export_chrome_trace(file.name)
            with open(file.name) as trace:
                events = json.load(trace)["traceEvents"]
        return [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]


def wrong(torch, workload, got, want):
    """The largest error by norm, and whether it is too large; integers have to be the same."""
    worst, bad = 0.0, len(got) != len(want)
    for number, (a, b) in enumerate(zip(got, want)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf"), True
        if not b.is_floating_point():
            if number in workload.unordered:
                a, b = a.sort(-1).values, b.sort(-1).values
            bad |= not torch.equal(a, b)
            continue
        norm = b.double().norm().clamp_min(1e-300)
        error = ((a.double() - b.double()).norm() / norm).item()
        worst = max(worst, error)
        # An error that is no number is too large.
        bad |= not error <= BOUND[b.element_size()]
    return worst, bad


def as_right(errors, wrongs):
    """Whether ours are eager's results, or as close to them as Inductor's: torch's convolutions are in TF32 unless told, and not the same ones for every memory format."""
    theirs = max((errors[key] for key in errors if key.startswith("inductor")), default=0.0)
    return all(not wrongs[key] or 0 < errors[key] <= 1.5 * theirs for key in errors if key.startswith("oxyfuel"))


def measure(torch, workload, quick):
    import torch_workloads

    torch.manual_seed(1)
    function = getattr(torch_workloads, workload.torch)
    inputs = [draw(torch, *spec) for spec in workload.inputs]
    peers = {"eager": Peer(torch, function, inputs, None)}
    for engine in ENGINES:
        for mode in MODES:
            options = {"backend": engine, "options": {"mode": mode}} if engine == "oxyfuel" else {"backend": engine, "mode": mode}
            peers[f"{engine} {mode}"] = Peer(torch, function, inputs, options)
    want = [t.clone() for t in tensors(peers["eager"]())]
    errors, wrongs, first = {}, {}, {}
    for key, peer in peers.items():
        first[key] = peer.single() / 1e6
        for _ in range(WARM):
            peer()
        got = [t.clone() for t in tensors(peer())]
        errors[key], bad = wrong(torch, workload, got, want)
        wrongs[key] = bad
        del got
    del want
    counted = {key: peer.seen() for key, peer in peers.items()}
    calls = {key: int(min(max(ROUND_US / peer.single(), FEWEST), MOST)) for key, peer in peers.items()}
    rounds = QUICK_ROUNDS if quick else ROUNDS
    times = {key: [] for key in peers}
    for _ in range(rounds):
        for key, peer in peers.items():
            times[key].append(peer.round(calls[key]))
    row = {
        "name": workload.name,
        "title": workload.title,
        "bytes_in": sum(t.numel() * t.element_size() for t in inputs),
        "us": {key: [statistics.median(t[i] for t in taken) for i in range(3)] for key, taken in times.items()},
        "ratios": ratios(times),
        "copies": {key: copies(events) for key, events in counted.items()},
        "kernels": {key: sum(e["cat"] == "kernel" for e in events) for key, events in counted.items()},
        "other_device_work": {key: sum(e["cat"] != "kernel" for e in events) for key, events in counted.items()},
        "first_s": first,
        "errors": errors,
        "right": as_right(errors, wrongs),
        "rounds": rounds,
        "calls_a_round": calls,
    }
    return {**row, "missed": missed(row)}


def show(row):
    print(f"{row['title']} ({row['name']}): {'ok' if not row['missed'] else 'FAIL ' + '; '.join(row['missed'])}")
    for key, (device, stream, wall) in row["us"].items():
        copied = row["copies"][key]
        print(
            f"  {key}: {device:.1f} us of the device, {stream:.1f} us one behind the other, {wall:.1f} us alone; {row['kernels'][key]} kernels, "
            f"{len(copied['names'])} copies of {copied['bytes']:,} bytes; error {row['errors'][key]:.1e}, first call {row['first_s'][key]:.2f} s"
        )
    for key, (middle, low, high) in row["ratios"].items():
        print(f"  inductor / oxyfuel {key}: {middle:.3f} [{low:.3f}, {high:.3f}]", flush=True)


def main(args):
    asked = parsed(args)
    if asked is None:
        print(__doc__)
        return 2
    words, quick, target = asked
    wanted = rows(words)
    if not wanted:
        print(f"no row has `{'` or `'.join(words)}` in its name; there are {', '.join(w.name for w in rows([]))}")
        return 2
    if gpu() is None:
        print("no GPU: the driver (libcuda.so.1) is not there or has no device, and nothing is measured")
        return 1
    folder = unpacked()
    sys.path[:0] = [folder.name, HERE, ABOVE]
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder.name, "inductor")
    import torch
    from torch._dynamo import config

    if not torch.cuda.is_available():
        print(f"no GPU that torch {torch.__version__} can use, and nothing is measured")
        return 1
    config.cache_size_limit = 64
    torch.set_grad_enabled(False)
    facts, made, failed = head(torch), [], 0
    for workload in wanted:
        try:
            made.append(measure(torch, workload, quick))
            show(made[-1])
            failed += bool(made[-1]["missed"])
        except Exception as failure:
            print(f"{workload.title} ({workload.name}): FAIL {type(failure).__name__}: {str(failure)[:800]}", flush=True)
            failed += 1
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        if target:
            with open(target, "w") as file:
                json.dump({**facts, "rows": made}, file, indent=1)
    walls = [row["ratios"]["reduce-overhead, wall"][0] for row in made]
    if walls:
        least = min(made, key=lambda row: row["ratios"]["reduce-overhead, wall"][0])
        print(f"inductor / oxyfuel reduce-overhead, wall: geometric mean {statistics.geometric_mean(walls):.3f}, least {min(walls):.3f} ({least['title']})")
    print(facts)
    print(f"{len(wanted) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
