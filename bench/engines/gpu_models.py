#!/usr/bin/env python3
"""Whole models on a GPU through the torch door: usage: gpu_models.py [FILTER] [--quick] [--training] [--with FILE ...] [--json FILE]

The models of `models.json` that are meant for a GPU, in eager, in Inductor and in ours, each of the compilers in `default` and in `reduce-overhead`, in turns in one process. A round gives every engine a
few calls between events of the device (device time) and between two looks at the clock with the device idle before and after (wall time). A ratio is the median over rounds of the peer's time over ours in
the same mode and the same round, with the 2.5 % and 97.5 % points of that median by resampling. First calls are cold and timed one after another; `capture` is that of a backend that does nothing.
Results are compared with eager's. A model whose definition says what its work is bound by must be explained so. By the clock, a model must reach in both modes the part of Inductor's speed that its definition gives as `speed` (in training `training_speed`) and the multiple of eager's that it gives as `eager`.
--training measures steps (forward, backward, gradients to none) of the models that have a `training_speed`, instead of inference. Every `speed` and every `training_speed` stands for a row; where all of them are there, the geometric mean of their ratios, inference and training together, must reach 1.05 in
each mode. --with takes the rows of an earlier file of --json, of the same GPU, commit and torch: they are counted, are part of the mean, and are written with the new ones; it may be given several times. Where rows are missing they are named, and the mean is not judged. --quick takes few rounds. Closes with
'N passed, N failed': a row passes when its results are right and its bars are met.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time

import torch_models
from gpu_rows import HERE, head, interval, unpacked

MODES = ("default", "reduce-overhead")
ROUNDS, CALLS, WARM = 20, 5, 3
# Largest error by norm against eager, by bytes of an element.
BOUND = {2: 3e-2, 4: 2e-3}
# The least geometric mean of Inductor's time over ours, in each mode.
MEAN = 1.05
# What rows must share with those of an earlier file.
SAME = ("gpu", "commit", "torch")


class Peer:
    """One engine: a call, and what its first one took."""

    def __init__(self, torch, module, inputs, options, training):
        self.torch, self.module, self.inputs, self.training = torch, module, inputs, training
        self.run = module if options is None else torch.compile(module, dynamic=False, **options)
        self.mark = options is not None and options.get("backend") == "inductor" and options.get("mode") == "reduce-overhead"
        torch.cuda.synchronize()
        start = time.perf_counter()
        self()
        torch.cuda.synchronize()
        self.first_s = time.perf_counter() - start

    def __call__(self):
        torch = self.torch
        if self.mark:
            torch.compiler.cudagraph_mark_step_begin()
        if self.training:
            return torch_models.step(torch, self.module, self.run, self.inputs)
        with torch.no_grad():
            return torch_models.result(torch, self.run(*self.inputs))

    def seen(self):
        """What is compared: the result, and in training the gradients that are largest."""
        out = [self().detach().clone()]
        if self.training:
            grads = [p.grad for p in self.module.parameters() if p.grad is not None]
            out += [grad.detach().clone() for grad in sorted(grads, key=lambda grad: -grad.numel())[:4]]
        return out

    def round(self, calls):
        """Microseconds of a call by events, and by the clock."""
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
        return begin.elapsed_time(end) * 1e3 / calls, (time.perf_counter() - start) * 1e6 / calls


def nothing(graph, inputs):
    """Dynamo and AOTAutograd, and then the graph as it is."""
    from torch._dynamo.backends.common import aot_autograd
    from functorch.compile import make_boxed_func

    return aot_autograd(fw_compiler=lambda gm, _: make_boxed_func(gm.forward))(graph, inputs)


def measure(torch, name, quick, training):
    import oxyfuel

    module, inputs = torch_models.build(name, "cuda")
    if training:
        torch_models.for_training(torch, module)
    peers = {"eager": Peer(torch, module, inputs, None, training)}
    want = peers["eager"].seen()
    first = {"capture": Peer(torch, module, inputs, {"backend": nothing}, training).first_s}
    errors, right = {}, True
    for backend in ("oxyfuel", "inductor"):
        for mode in MODES:
            key = f"{backend} {mode}"
            options = {"backend": backend, "options": {"mode": mode}} if backend == "oxyfuel" else {"backend": "inductor", "mode": mode}
            peer = Peer(torch, module, inputs, options, training)
            for _ in range(WARM):
                peer()
            norms = [((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-300)).item() for a, b in zip(peer.seen(), want)]
            errors[key], first[key] = max(norms), peer.first_s
            right &= backend != "oxyfuel" or max(norms) <= BOUND[want[0].element_size()] * (4 if training else 1)
            peers[key] = peer
    rounds, calls = (6, 3) if quick else (ROUNDS, CALLS)
    times = {key: [] for key in peers}
    for _ in range(rounds):
        for key, peer in peers.items():
            times[key].append(peer.round(calls))
    medians = {key: [statistics.median(t[i] for t in rounds_) for i in (0, 1)] for key, rounds_ in times.items()}
    ratios = {}
    for mode in MODES:
        for other in ("eager", f"inductor {mode}"):
            for place, what in enumerate(("device", "wall")):
                pairs = [a[place] / b[place] for a, b in zip(times[other], times[f"oxyfuel {mode}"])]
                ratios[f"{other} / oxyfuel {mode}, {what}"] = interval(pairs)
    said = [str(graph) for graph in oxyfuel.recordings()]
    definition = torch_models.GPU_MODELS[name]
    explained = None
    if "bound" in definition and not training:
        torch._dynamo.reset()
        with torch.no_grad():
            explained = oxyfuel.explain(module, *inputs).verdict
        right &= explained is not None and explained.roof == definition["bound"]
    missed = slow(definition, ratios, training)
    return {"verdict": explained and str(explained), "missed": missed, "name": name, "training": training, "us": medians, "ratios": ratios, "first_s": first, "errors": errors, "right": right, "recordings": said, "rounds": rounds, "calls_a_round": calls}


def slow(definition, ratios, training):
    """The bars of speed that a model misses, as sentences."""
    said = []
    for mode in MODES:
        inductor, eager = (ratios[f"{other} / oxyfuel {mode}, wall"][0] for other in (f"inductor {mode}", "eager"))
        bar = definition.get("training_speed" if training else "speed", 0)
        if inductor < bar:
            said.append(f"{mode}: {inductor:.3f} of Inductor's speed, for at least {bar}")
        if not training and eager < definition.get("eager", 0):
            said.append(f"{mode}: {eager:.3f} of eager's speed, for at least {definition['eager']}")
    return said


# ---- all rows together -----------------------------------------------------------------------------------------------


def title(name, training):
    return f"{name} training" if training else name


def wanted(definitions):
    """The rows that the mean is of: every bar beside Inductor, of inference and of training."""
    found = [title(name, False) for name, definition in definitions.items() if "speed" in definition]
    return found + [title(name, True) for name, definition in definitions.items() if "training_speed" in definition]


def missing(rows, definitions):
    there = {title(row["name"], row["training"]) for row in rows}
    return [name for name in wanted(definitions) if name not in there]


def means(rows, definitions):
    """The geometric mean of Inductor's time over ours in each mode, where every row of it is there; else nothing."""
    if missing(rows, definitions):
        return {}
    ratios = {title(row["name"], row["training"]): row["ratios"] for row in rows}
    return {mode: statistics.geometric_mean(ratios[name][f"inductor {mode} / oxyfuel {mode}, wall"][0] for name in wanted(definitions)) for mode in MODES}


def earlier(files, facts, measured):
    """The rows of earlier files. They must be of what `facts` says, and none may be there twice or be measured now."""
    rows, there = [], dict.fromkeys(measured, "what is measured now")
    # Versions of torch compare as versions do, and raise beside what is none.
    now = {key: str(facts[key]) for key in SAME}
    for path in files:
        with open(path) as file:
            record = json.load(file)
        for key in SAME:
            if str(record.get(key)) != now[key] or now[key] in ("None", "unknown"):
                raise SystemExit(f"{path} is of {key} {record.get(key)}, and this run of {now[key]}: its rows are not taken")
        for row in record["rows"]:
            name = title(row["name"], row["training"])
            if name in there:
                raise SystemExit(f"{path} has {name}, which is in {there[name]} too: only one of them can be taken")
            there[name] = path
        rows += record["rows"]
    return rows


# ---- output ----------------------------------------------------------------------------------------------------------


def good(row):
    return row["right"] and not row["missed"]


def show(row):
    print(verdict(row))
    for key, (device, wall) in row["us"].items():
        first = f", first call {row['first_s'][key]:.2f} s, error {row['errors'][key]:.1e}" if key in row["errors"] else ""
        print(f"  {key}: {device:.1f} us of the device, {wall:.1f} us{first}")
    print(f"  first call of a backend that does nothing: {row['first_s']['capture']:.2f} s")
    for key, (middle, low, high) in row["ratios"].items():
        print(f"  {key}: {middle:.3f} [{low:.3f}, {high:.3f}]")
    if row["verdict"]:
        print(row["verdict"])
    for line in row["recordings"]:
        print(f"  {line}", flush=True)


def verdict(row):
    return f"{title(row['name'], row['training'])}: {'right' if row['right'] else 'WRONG'}{''.join('; MISSED ' + said for said in row['missed'])}"


def parsed(words):
    parser = argparse.ArgumentParser(usage=__doc__.replace("%", "%%"))
    parser.add_argument("filter", nargs="?", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--with", dest="earlier", action="append", default=[])
    parser.add_argument("--json")
    return parser.parse_args(words)


def main():
    args = parsed(sys.argv[1:])
    folder = unpacked()
    sys.path[:0] = [folder.name, HERE]
    # First calls are cold.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder.name, "inductor")
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    import torch
    from torch._dynamo import config

    config.cache_size_limit = 64
    return measured(torch, args)


def measured(torch, args):
    definitions = torch_models.GPU_MODELS
    names = [name for name in torch_models.gpu_names(args.training) if args.filter in name]
    if not names:
        print(f"no model{' that is trained' if args.training else ''} has `{args.filter}` in its name")
        return 2
    facts = head(torch)
    rows = earlier(args.earlier, facts, [title(name, args.training) for name in names])
    for row in rows:
        print(f"measured before: {verdict(row)}")
    failed = 0
    for name in names:
        try:
            row = measure(torch, name, args.quick, args.training)
        except Exception as failure:
            print(f"{title(name, args.training)}: FAIL {type(failure).__name__}: {str(failure)[:800]}", flush=True)
            failed += 1
        else:
            rows.append(row)
            show(row)
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        if args.json:
            with open(args.json, "w") as file:
                json.dump({**facts, "means": means(rows, definitions), "missing": missing(rows, definitions), "rows": rows}, file, indent=1)
    passed = sum(map(good, rows))
    failed += len(rows) - passed
    for mode, mean in means(rows, definitions).items():
        print(f"inductor / oxyfuel {mode}, wall: geometric mean {mean:.3f} of {len(wanted(definitions))} rows ({'met' if mean >= MEAN else 'MISSED'}: at least {MEAN})")
        passed, failed = passed + (mean >= MEAN), failed + (mean < MEAN)
    if left := missing(rows, definitions):
        print(f"the mean is not judged, rows are missing: {', '.join(left)}")
    print(facts)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
