#!/usr/bin/env python3
"""Whole models on a GPU through the torch door: usage: gpu_models.py [FILTER] [--quick] [--training] [--json FILE]

The models of `models.json` that are meant for a GPU, in eager, in Inductor and in ours, each of the compilers in `default` and in `reduce-overhead`, in turns in one process. A round gives every engine a
few calls between events of the device (device time) and between two looks at the clock with the device idle before and after (wall time). A ratio is the median over rounds of the peer's time over ours in
the same mode and the same round, with the 2.5 % and 97.5 % points of that median by resampling. First calls are cold and timed one after another; `capture` is that of a backend that does nothing.
Results are compared with eager's. A model whose definition says what its work is bound by must be explained so. By the clock, a model must reach in both modes the part of Inductor's speed that its definition gives as `speed` (in training `training_speed`) and the multiple of eager's that it gives as `eager`; and
where all models that have a `speed` are measured, the geometric mean of their ratios must reach 1.05 in each mode. --training measures steps (forward, backward, gradients to none) instead of inference. --quick takes few rounds. Closes with 'N passed, N failed': a row passes when its
results are right and its bars are met.
"""

import gc
import json
import os
import statistics
import sys
import time

from gpu_rows import HERE, head, interval, unpacked

MODES = ("default", "reduce-overhead")
ROUNDS, CALLS, WARM = 20, 5, 3
# Largest error by norm against eager, by bytes of an element.
BOUND = {2: 3e-2, 4: 2e-3}
# The least geometric mean of Inductor's time over ours, in each mode.
MEAN = 1.05


def result(torch, out):
    """The tensor that the models return first."""
    if isinstance(out, torch.Tensor):
        return out
    return out[0] if isinstance(out, (tuple, list)) else next(iter(out.values()))


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
        if not self.training:
            with torch.no_grad():
                return result(torch, self.run(*self.inputs))
        self.module.zero_grad(set_to_none=True)
        out = result(torch, self.run(*self.inputs))
        out.float().square().mean().backward()
        return out

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
    import torch_models

    module, inputs = torch_models.build(name, "cuda")
    if training:
        module.train()
        for part in module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob"):
            if hasattr(getattr(module, "config", None), key):
                setattr(module.config, key, 0.0)
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


def means(rows, definitions, training):
    """The geometric mean of Inductor's time over ours in each mode, where every model with a bar was measured; else nothing."""
    ratios = {row["name"]: row["ratios"] for row in rows}
    key = "training_speed" if training else "speed"
    names = [name for name, definition in definitions.items() if key in definition]
    if not set(names) <= set(ratios):
        return {}
    return {mode: statistics.geometric_mean(ratios[name][f"inductor {mode} / oxyfuel {mode}, wall"][0] for name in names) for mode in MODES}


def show(row):
    what = " training" if row["training"] else ""
    print(f"{row['name']}{what}: {'right' if row['right'] else 'WRONG'}{''.join('; MISSED ' + said for said in row['missed'])}")
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


def main():
    args, target = sys.argv[1:], None
    if "--json" in args:
        at = args.index("--json")
        target = args[at + 1]
        del args[at : at + 2]
    words, flags = [a for a in args if not a.startswith("--")], {a for a in args if a.startswith("--")}
    if flags - {"--quick", "--training"} or len(words) > 1:
        print(__doc__)
        return 2
    folder = unpacked()
    sys.path[:0] = [folder.name, HERE]
    # First calls are cold.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder.name, "inductor")
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    import torch
    import torch_models
    from torch._dynamo import config

    config.cache_size_limit = 64
    names = [name for name in torch_models.GPU_MODELS if not words or words[0] in name]
    rows, passed, failed = [], 0, 0
    facts = head(torch)
    for name in names:
        try:
            rows.append(measure(torch, name, "--quick" in flags, "--training" in flags))
            show(rows[-1])
            good = rows[-1]["right"] and not rows[-1]["missed"]
            passed, failed = passed + good, failed + (not good)
        except Exception as failure:
            print(f"{name}: FAIL {type(failure).__name__}: {str(failure)[:800]}", flush=True)
            failed += 1
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        if target:
            with open(target, "w") as file:
                json.dump({**facts, "means": means(rows, torch_models.GPU_MODELS, "--training" in flags), "rows": rows}, file, indent=1)
    for mode, mean in means(rows, torch_models.GPU_MODELS, "--training" in flags).items():
        print(f"inductor / oxyfuel {mode}, wall: geometric mean {mean:.3f} ({'met' if mean >= MEAN else 'MISSED'}: at least {MEAN})")
        passed, failed = passed + (mean >= MEAN), failed + (mean < MEAN)
    print(facts)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
