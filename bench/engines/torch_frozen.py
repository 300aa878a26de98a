"""Whole models through the torch door, with weights frozen and without: against eager, Inductor, Inductor with freezing, ONNX Runtime and the machine's arithmetic.

    python bench/engines/torch_frozen.py [--model NAME] [--rounds N] [--contractions own] [--json FILE] [--record FILE]

Every model has a process of its own, in which the engines take turns call by call, with a pause between them. A result is compared with eager's before anything is timed.
The floor of a model is the time of its multiply-adds, as torch counts them, at the speed of a loop that touches no memory; the loop takes turns with the engines.
ONNX Runtime takes part where `onnxruntime` and `onnx` can be imported; the record says so where they cannot.
A bar that is missed makes the command fail, after all figures are written.
"""

import argparse
import copy
import datetime
import io
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from torch_door import HERE, JUDGE, LOWER, RECORD, ROUNDS, judge, machine, paired, path_of, ratio, tensors
from torch_models import MODELS, build

NAMES = ("resnet18", "gpt2", "bert")
# How many times as fast as the best of its peers: weights frozen, and not; and how many times the floor a call may take.
BARS = {"frozen": 1.2, "plain": 1.1, "floor": 1.3}
PEERS = {"frozen": ("eager", "inductor", "inductor frozen", "onnxruntime"), "plain": ("eager", "inductor")}
OURS = {"frozen": "oxyfuel frozen", "plain": "oxyfuel"}
TITLES = {"oxyfuel": "Oxyfuel", "oxyfuel frozen": "Oxyfuel, frozen", "eager": "eager", "inductor": "Inductor", "inductor frozen": "Inductor, frozen", "onnxruntime": "ONNX Runtime"}


def floats(torch, module, inputs, dtype):
    """The model and its inputs in another type: a reference."""
    return copy.deepcopy(module).to(dtype), tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


def onnx_session(torch, module, inputs):
    """The model as ONNX Runtime runs it: all of its optimisations, as many threads as the others; and the names of its inputs."""
    import onnxruntime

    class Tensors(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, *inputs):
            return tuple(tensors(torch, self.module(*inputs)))

    file = io.BytesIO()
    torch.onnx.export(Tensors().eval(), inputs, dynamo=True, verbose=False).save(file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Its threads wait for work at full speed, on the cores of whoever has the next turn.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])


def onnx_engine(torch, module, inputs):
    session = onnx_session(torch, module, inputs)
    feed = {spec.name: x.numpy() for spec, x in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: [torch.from_numpy(y) for y in session.run(None, feed)]


def engines(torch, module, inputs, own):
    """By name: a call of the model; and why one is missing."""
    import oxyfuel

    compiled = {
        "oxyfuel": {"backend": oxyfuel.backend, "options": own},
        "oxyfuel frozen": {"backend": oxyfuel.backend, "options": {**own, "freezing": True}},
        "inductor": {"backend": "inductor"},
        "inductor frozen": {"backend": "inductor", "options": {"freezing": True}},
    }
    found = {"eager": lambda: module(*inputs)}
    for name, how in compiled.items():
        # A copy of its own: frozen weights of one engine are no other's business.
        model = torch.compile(copy.deepcopy(module), dynamic=False, **how)
        found[name] = lambda model=model: model(*inputs)
    missing = {}
    try:
        found["onnxruntime"] = onnx_engine(torch, module, inputs)
    except ImportError as e:
        missing["onnxruntime"] = str(e)
    return found, missing


def check(torch, found, module, inputs):
    """Every engine agrees with eager, by the rule of the tests."""
    if str(JUDGE) not in sys.path:
        sys.path.insert(0, str(JUDGE))
    import agree

    def run(call):
        return agree.Run([x.detach().contiguous() for x in tensors(torch, call())])

    def reference():
        double, given = floats(torch, module, inputs, torch.float64)
        return run(lambda: double(*given))

    kept = []

    def once():
        if not kept:
            kept.append(reference())
        return kept[0]

    eager = run(found["eager"])
    wrong = {}
    for name, call in found.items():
        got = run(call)
        if said := agree.problems(got, eager, once, strides=False):
            wrong[name] = said
    return wrong


def multiply_adds(torch, module, inputs):
    """Operations of products, convolutions and attention, two a multiply-add."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        module(*inputs)
    return counter.get_total_flops()


def peak(torch):
    """Operations a second that multiply-adds on vectors reach now, all threads at work."""
    from oxyfuel import _native
    from oxyfuel.options import Options

    figures = json.loads(_native.figures(Options().native([], torch.get_num_threads())))
    return figures["flops_per_second"]


def measure(name, rounds, own, only):
    import torch

    module, inputs = build(name)
    with torch.no_grad():
        flops = multiply_adds(torch, module, inputs)
        found, missing = engines(torch, module, inputs, own)
        if only:
            found = {e: call for e, call in found.items() if e in ("eager", *only)}
        wrong = check(torch, found, module, inputs)
        if any(engine.startswith("oxyfuel") for engine in wrong):
            raise SystemExit(f"{name}: {wrong}")
        reached = []

        def loop():
            reached.append(peak(torch))

        for call in found.values():
            for _ in range(3):
                call()
        times = paired({**found, "peak": loop}, rounds)
    # Each turn of the loop is two measurements: one wakes its threads.
    rates = [max(pair) for pair in zip(reached[::2], reached[1::2], strict=True)]
    times.pop("peak")
    return line_of(name, times, flops, rates, missing, wrong)


def line_of(name, times, flops, rates, missing, wrong):
    """What the rounds of a model say; ratios are those of one round."""
    line = {"name": name, "rounds": len(rates), "flops": flops, "peak_flops_per_second": statistics.median(rates)}
    floors = [flops / rate for rate in rates]
    line["ms"] = {engine: 1e3 * statistics.median(seconds) for engine, seconds in times.items()} | {"floor": 1e3 * statistics.median(floors)}
    line["missing"], line["disagree"] = missing, wrong
    line["ratio"], line["met"] = {}, {}
    for form, ours in OURS.items():
        if ours not in times:
            continue
        ratios = {peer: ratio(times[peer], times[ours]) for peer in PEERS[form] if peer in times}
        best = min(ratios, key=lambda peer: ratios[peer]["median"])
        line["ratio"][form] = {"of": ratios, "best": best, "bar": BARS[form]}
        line["met"][form] = ratios[best]["median"] >= BARS[form] and ratios[best]["low"] >= LOWER * BARS[form]
    if OURS["frozen"] in times:
        above = ratio(times[OURS["frozen"]], floors)
        line["above_floor"] = above | {"bar": BARS["floor"]}
        line["met"]["floor"] = above["median"] <= BARS["floor"]
    return line


def table(record):
    """The figures as a page."""
    names = [e for e in TITLES if any(e in line["ms"] for line in record["models"])]
    text = "| model | " + " | ".join(f"{TITLES[e]} ms" for e in names) + " | floor ms | frozen: to the best (95 %) | not frozen: to the better (95 %) | frozen, times the floor |\n"
    text += "|---" * (len(names) + 5) + "|\n"

    def against(line, form):
        found = line["ratio"].get(form)
        if not found:
            return "-"
        of = found["of"][found["best"]]
        met = "met" if line["met"][form] else "missed"
        return f"{of['median']:.2f} ({of['low']:.2f}…{of['high']:.2f}) of {TITLES[found['best']]}, bar {found['bar']} {met}"

    for line in record["models"]:
        text += f"| {line['name']} | " + " | ".join(f"{line['ms'][e]:.1f}" if e in line["ms"] else "-" for e in names) + f" | {line['ms']['floor']:.1f}"
        above = line.get("above_floor")
        floor = f"{above['median']:.2f} ({above['low']:.2f}…{above['high']:.2f}), bar {above['bar']} {'met' if line['met']['floor'] else 'missed'}" if above else "-"
        text += f" | {against(line, 'frozen')} | {against(line, 'plain')} | {floor} |\n"
    for line in record["models"]:
        for engine, why in line["missing"].items():
            text += f"\n{line['name']}: no {TITLES[engine]} ({why}).\n"
        for engine, why in line["disagree"].items():
            text += f"\n{line['name']}: {TITLES[engine]} does not agree with eager ({'; '.join(why)}).\n"
    m, (low, high) = record["machine"], (f(line["peak_flops_per_second"] for line in record["models"]) for f in (min, max))
    text += f"\n{m['cpu']}, {m['threads']} threads for every engine, torch {m['torch']}; {min(line['rounds'] for line in record['models'])} rounds; commit {record['commit']}, {record['at']}. "
    text += f"Multiply-adds of f32 without memory reach {low / 1e9:.0f} to {high / 1e9:.0f} GFLOP/s. A ratio is the peer's time by ours in the same round: above 1 is ours. "
    return text + "The floor is the time of the model's products, convolutions and attention at that speed.\n"


def missed(record):
    return [f"{line['name']}: {bar}" for line in record["models"] for bar, met in line["met"].items() if not met]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=MODELS, help="only this one; may be said several times")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of every engine")
    parser.add_argument("--engine", action="append", choices=TITLES, help="only this one beside eager; may be said several times")
    parser.add_argument("--contractions", default="auto", choices=("auto", "own", "torch"), help="who computes products, convolutions and attention of ours")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures there")
    parser.add_argument("--record", type=pathlib.Path, help="write the figures and the page there, models that are not measured now kept; `default` names it after the processor")
    parser.add_argument("--one-model", choices=MODELS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one_model:
        line = measure(args.one_model, args.rounds, {"contractions": args.contractions}, args.engine)
        args.json.write_text(json.dumps(line))
        return 0
    _, revision, _ = judge()
    record = {"machine": machine(), "commit": revision.code(), "at": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ"), "models": []}
    path = args.record and path_of(args.record, record["machine"]["cpu"])
    if path and str(args.record) == "default":
        path = RECORD / path.name.replace("torch-door-", "torch-frozen-")
    for name in args.model or NAMES:
        # One process a model: what one leaves in memory and on threads is no part of the next.
        with tempfile.TemporaryDirectory() as folder:
            line = pathlib.Path(folder) / "line.json"
            command = [sys.executable, str(HERE / "torch_frozen.py"), "--one-model", name, "--rounds", str(args.rounds), "--contractions", args.contractions, "--json", str(line)]
            for engine in args.engine or ():
                command += ["--engine", engine]
            start = time.monotonic()
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
            if done.returncode:
                raise SystemExit(f"{name}: {done.stderr[-3000:]}")
            record["models"].append(json.loads(line.read_text()))
            print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    said = missed(record)
    print(table(record), flush=True)
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    if path:
        write(path, record)
    for sentence in said:
        print(f"MISSED {sentence}")
    return 1 if said else 0


def write(path, record):
    """The record and its page; models of an older one of the same commit stay."""
    before = json.loads(path.read_text()) if path.exists() else {}
    if before.get("commit") == record["commit"]:
        now = {line["name"]: line for line in record["models"]}
        old = {line["name"]: line for line in before["models"]}
        both = old | now
        record = record | {"models": [both[name] for name in MODELS if name in both]}
    path.write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text(table(record))


if __name__ == "__main__":
    sys.exit(main())
