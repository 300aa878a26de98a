#!/usr/bin/env python3
"""What the host pays for calls on a GPU: usage: gpu_host.py [--no-torch] [--json FILE]

Plans of 1 to 40 kernels of ours in the Rust door (`gpu serve`): microseconds until a call has been asked for, the device idle before, in the modes `default` and `reduce-overhead`; and beside them as many launches of a kernel that does nothing by the driver itself, called by ctypes
(what calls by ctypes cost is taken off). Medians of 200 calls. Small kernels that follow each other share launches; the same plans of larger matrices, each kernel a launch of its own, stand beside them: given to the driver at once, as by default, and one by one (`cudagraphs=off`). The same programs in the torch door take
turns with Inductor and with a backend that only makes the results (torch_nothing.py), which is what Dynamo and AOTAutograd cost. Bars: 60 us for 20 kernels, small ones and those that are launches of their own, given at once and one by one, in the torch door above that backend; and a replay at most 10 us above one launch of the driver's, there too. --no-torch leaves
the torch door out. Closes with 'N passed, N failed'.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from gpu_rows import gpu, head, unpacked
from gpu_small import Peer

GPU = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bin", "gpu")
COUNTS = (1, 2, 5, 10, 20, 40)
CALLS = 200
# Turns of the engines of the torch door, and calls of each in one.
TURNS, CALLS_A_TURN, WARM = 40, 5, 8
# Microseconds: 20 kernels, and a replay above one launch.
PLAN, REPLAY = 60, 10
SIDE, LARGE = 64, 256
NOTHING = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry nothing(.param .u64 a, .param .u64 b) { ret; }
"""


def graph(count, side):
    """As many kernels: sums along one dim and the other in turns share none."""
    lines, value = [], "%x"
    for number in range(count):
        dim = 1 - number % 2
        shape = f"{side}, 1" if dim else f"1, {side}"
        lines.append(f"  %s{number}: f32[{shape}] = sum {value}, dims=[{dim}], keepdim=true")
        lines.append(f"  %y{number}: f32[{side}, {side}] = sub {value}, %s{number}")
        value = f"%y{number}"
    return "\n".join([f"graph @f(%x: f32[{side}, {side}] cpu align 256) {{", *lines, f"  return {value}", "}", ""])


def ours(count, side, folder):
    """Microseconds of the host by call: by default, with launches one by one, and of a replay; and until the results of a call are there, by default and one by one."""
    text, data = os.path.join(folder, "graph.txt"), os.path.join(folder, "input")
    with open(text, "w") as file:
        file.write(graph(count, side))
    with open(data, "wb") as file:
        file.write(bytes(4 * side * side))
    process = subprocess.Popen([GPU, "serve", text, data], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.stdout.readline()

    def ask(command):
        process.stdin.write(command + "\n")
        process.stdin.flush()
        return process.stdout.readline()

    plain, done = map(float, ask(f"wall {CALLS}").split())
    ask("submit off")
    single, single_done = map(float, ask(f"wall {CALLS}").split())
    ask("graph on")
    replay = float(ask(f"wall {CALLS}").split()[0])
    process.communicate("quit\n", timeout=30)
    return {"ours": plain, "done": done, "single": single, "single_done": single_done, "replay": replay}


class Driver:
    """The driver's own launches."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context, module, self.function = (ctypes.c_void_p() for _ in range(4))
        number = ctypes.c_int()
        self.check(self.cuda.cuInit(0))
        self.check(self.cuda.cuDeviceGet(ctypes.byref(number), 0))
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number))
        self.check(self.cuda.cuCtxSetCurrent(context))
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(module), NOTHING))
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(self.function), module, b"nothing"))
        self.words = (ctypes.c_uint64 * 2)()
        places = [ctypes.addressof(self.words) + 8 * i for i in range(2)]
        self.places = (ctypes.c_void_p * 2)(*places)
        self.seen = ctypes.c_void_p()

    def check(self, code):
        if code:
            raise SystemExit(f"the driver answers {code}")

    def launch(self):
        return self.cuda.cuLaunchKernel(self.function, SIDE, 1, 1, 256, 1, 1, 0, None, self.places, None)

    def nothing(self):
        return self.cuda.cuCtxGetCurrent(ctypes.byref(self.seen))

    def host(self, call, count):
        times = []
        for _ in range(CALLS):
            self.check(self.cuda.cuCtxSynchronize())
            start = time.perf_counter()
            for _ in range(count):
                call()
            times.append((time.perf_counter() - start) * 1e6)
        return statistics.median(times)

    def launches(self, count):
        return self.host(self.launch, count) - self.host(self.nothing, count)


# ---- the torch door --------------------------------------------------------------------------------------------------


def chain(count):
    """The same program for torch, with means: numbers stay as large as they are."""

    def run(x):
        for number in range(count):
            x = x - x.mean(1 - number % 2, keepdim=True)
        return x

    return run


def engines():
    """What a program is compiled by, in each of its modes."""
    import torch_nothing

    modes = ("default", "reduce-overhead")
    ours = {f"ours {mode}": {"backend": "oxyfuel", "options": {"mode": mode}} for mode in modes}
    ours["ours one by one"] = {"backend": "oxyfuel", "options": {"cudagraphs": "off"}}
    theirs = {f"inductor {mode}": {"backend": "inductor", "mode": mode} for mode in modes}
    return {**ours, **theirs, "nothing": {"backend": torch_nothing.backend(torch_nothing.Nothing)}}


def in_torch(torch, count, side):
    """Microseconds until a call has been asked for and until its results are there, by engine; and whether ours are eager's results."""
    x = torch.randn(side, side, device="cuda")
    want = chain(count)(x.double())
    peers, right = {}, True
    for name, options in engines().items():
        peers[name] = Peer(torch, chain(count), [x], options)
        for _ in range(WARM):
            got = peers[name]()
        if name.startswith("ours"):
            right &= bool((got.double() - want).norm() <= 1e-5 * want.norm())
        del got
    asked, done = ({name: [] for name in peers} for _ in range(2))
    for _ in range(TURNS):
        for name, run in peers.items():
            times = []
            for _ in range(1 + CALLS_A_TURN):
                torch.cuda.synchronize()
                start = time.perf_counter()
                run()
                asked_for = time.perf_counter()
                torch.cuda.synchronize()
                times.append((asked_for - start, time.perf_counter() - start))
            for times_of, kind in ((asked, 0), (done, 1)):
                times_of[name].append(1e6 * statistics.median(time[kind] for time in times[1:]))
    return {"kernels": count, "side": side, "right": right, **summed_up(asked, done)}


def summed_up(asked, done):
    """By engine: medians of the turns' times, and of what a turn took above that of the backend that only makes the results, right after or before it: a machine that is slower for a while is slower for both."""

    def above(name):
        return statistics.median(mine - theirs for mine, theirs in zip(asked[name], asked["nothing"], strict=True))

    return {name: {"asked": statistics.median(asked[name]), "done": statistics.median(done[name]), "above": above(name)} for name in asked}


def torch_rows(torch):
    rows = []
    for side in (SIDE, LARGE):
        for count in (1, 5, 20):
            rows.append(row := in_torch(torch, count, side))
            said = ", ".join(f"{name} {row[name]['asked']:.1f} us (done after {row[name]['done']:.1f})" for name in engines())
            print(f"torch door, {count} kernels of {side} x {side}: {said}{'' if row['right'] else '; WRONG'}", flush=True)
    return rows


def judged(rows, torch_door):
    """The bars, by name."""
    by_count = {row["kernels"]: row for row in rows}
    launch = by_count[1]["driver"]
    of = {"plan": "ours", "plan apart": "apart", "plan one by one": "single", "plan apart one by one": "apart_single"}
    met = {name: by_count[20][key] <= PLAN for name, key in of.items()} | {"replay": by_count[20]["replay"] - launch <= REPLAY}
    if torch_door:
        met["torch results"] = all(row["right"] for row in torch_door)
        for mode, name in (("default", "torch plan"), ("one by one", "torch plan one by one")):
            met[name] = above_nothing(torch_door, SIDE, mode) <= PLAN
            met[name.replace("plan", "plan apart")] = above_nothing(torch_door, LARGE, mode) <= PLAN
        met["torch replay"] = above_nothing(torch_door, SIDE, "reduce-overhead") - launch <= REPLAY
    return met


def above_nothing(torch_door, side, mode):
    """What 20 kernels cost above the backend that only makes the results."""
    (row,) = (row for row in torch_door if (row["kernels"], row["side"]) == (20, side))
    return row[f"ours {mode}"]["above"]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    if gpu() is None:
        print("no GPU: the driver (libcuda.so.1) is not there or has no device, and nothing is measured")
        return 1
    driver, rows = Driver(), []
    with tempfile.TemporaryDirectory() as folder:
        for count in COUNTS:
            small, large = ours(count, SIDE, folder), ours(count, LARGE, folder)
            apart = {f"apart_{name}".removesuffix("_ours"): figure for name, figure in large.items()}
            rows.append(row := {"kernels": count, **small, **apart, "driver": driver.launches(count)})
            of = ("ours", "done", "replay", "apart", "apart_done", "apart_single", "apart_single_done", "driver")
            said = "{:.1f} us (done after {:.1f}), as one graph {:.1f} us; each a launch of its own {:.1f} us (done after {:.1f}), one by one {:.1f} us (done after {:.1f}); launches by the driver itself {:.1f} us"
            print(f"{count} kernels: {said.format(*map(row.get, of))}", flush=True)
    torch, torch_door = None, []
    if not args.no_torch:
        with unpacked() as package:
            sys.path.insert(0, package)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(package, "inductor")
            import torch

            torch.set_grad_enabled(False)
            torch_door = torch_rows(torch)
    met = judged(rows, torch_door)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({**head(torch), "rows": rows, "torch_door": torch_door, "met": met}, file, indent=1)
    for name, good in met.items():
        print(f"{name}: {'met' if good else 'missed'}")
    print(f"{sum(met.values())} passed, {len(met) - sum(met.values())} failed")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
