#!/usr/bin/env python3
"""What the host pays for calls on a GPU: usage: gpu_host.py [--json FILE]

Plans of 1 to 40 kernels of ours in the Rust door (`gpu serve`): microseconds until a call has been asked for, the device idle before, without graphs and as one recorded graph; and beside them as many launches of a kernel that does nothing by the driver itself, called by ctypes
(what calls by ctypes cost is taken off). Medians of 200 calls. Small kernels that follow each other share launches; the same plans of larger matrices, each kernel a launch of its own, stand beside them. Bars: 60 us for 20 kernels, and a replay at most 10 us above one
launch of the driver's. Closes with 'N passed, N failed'.
"""

import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from gpu_rows import head

GPU = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bin", "gpu")
COUNTS = (1, 2, 5, 10, 20, 40)
CALLS = 200
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
    """Host time of a call, and of a replay; and until the results of a call are there."""
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
    ask("graph on")
    replay = float(ask(f"wall {CALLS}").split()[0])
    process.communicate("quit\n", timeout=30)
    return plain, replay, done


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


def main():
    driver, rows = Driver(), []
    with tempfile.TemporaryDirectory() as folder:
        for count in COUNTS:
            plain, replay, done = ours(count, SIDE, folder)
            apart, _, apart_done = ours(count, LARGE, folder)
            rows.append({"kernels": count, "ours": plain, "done": done, "replay": replay, "apart": apart, "apart_done": apart_done, "driver": driver.launches(count)})
            print(f"{count} kernels: {plain:.1f} us (done after {done:.1f}), as one graph {replay:.1f} us; each a launch of its own {apart:.1f} us; launches by the driver itself {rows[-1]['driver']:.1f} us", flush=True)
    by_count = {row["kernels"]: row for row in rows}
    met = {"plan": by_count[20]["ours"] <= PLAN, "replay": by_count[20]["replay"] - by_count[1]["driver"] <= REPLAY}
    if "--json" in sys.argv:
        with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
            json.dump({**head(), "rows": rows, "met": met}, file, indent=1)
    for name, good in met.items():
        print(f"{name}: {'met' if good else 'missed'}")
    print(f"{sum(met.values())} passed, {len(met) - sum(met.values())} failed")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
