#!/usr/bin/env python3
"""Kernels of a user's inside of compiled graphs: usage: gpu_custom.py [FILTER] [--json FILE]

Triton kernels, one in CUDA's own language and one in PTX, between other operators: outside of any graph (the program in eager) and inside of graphs that we compile, `default` and `reduce-overhead`, in turns. torch's profiler gives the device time of that kernel alone. Before each
call everything that the GPU keeps in its cache is replaced. A row passes when the median of 200 inside is 0.98 to 1.02 of that outside, the launch has the same grid and blocks and the results are those of eager; what the kernel is given has eager's strides and alignment.
Closes with 'N passed, N failed'.
"""

import functools
import json
import statistics
import subprocess
import sys
import tempfile

import torch
import triton
import triton.language as tl
from gpu_rows import HERE, head, unpacked
from torch.profiler import ProfilerActivity, profile

RUNS = 200
# Times that the profiler is asked in one process.
ATTEMPTS = 3
LOW, HIGH = 0.98, 1.02
# Among the words of a process that measures one kernel for another process.
ALONE = "--alone"
MODES = ("default", "reduce-overhead")


@triton.jit
def scale_gate(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    a = tl.load(x + at, mask=inside)
    b = tl.load(y + at, mask=inside)
    tl.store(out + at, a * tl.sigmoid(b), mask=inside)


@triton.jit
def row_norm(x, out, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    a = tl.load(x + row * stride + at, mask=at < columns, other=0.0)
    scale = tl.rsqrt(tl.sum(a * a, 0) / columns + 1e-6)
    tl.store(out + row * stride + at, a * scale, mask=at < columns)


def plain(x, y):
    out = torch.empty_like(x)
    count = x.numel()
    scale_gate[(triton.cdiv(count, 1024),)](x, y, out, count, BLOCK=1024)
    return out


@torch.library.triton_op("oxyfuel_bench::row_norm", mutates_args=())
def registered(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(row_norm)[(x.shape[0],)](x, out, x.stride(0), x.shape[1], BLOCK=8192)
    return out


SOURCE = """extern "C" __global__ void halve_add(const float *x, const float *y, float *out, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) out[at] = 0.5f * x[at] + y[at];
}"""


@torch.library.custom_op("oxyfuel_bench::halve_add", mutates_args=())
def own(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    count = x.numel()
    compiled_source()(grid=((count + 255) // 256, 1, 1), block=(256, 1, 1), args=(x, y, out, count))
    return out


own.register_fake(lambda x, y: torch.empty_like(x))


@functools.cache
def compiled_source():
    return torch.cuda._compile_kernel(SOURCE, "halve_add")


# out[at] = max(x[at], y[at]), for at < count.
PTX = """.version 7.0
.target sm_80
.address_size 64

.visible .entry larger(.param .u64 px, .param .u64 py, .param .u64 pout, .param .u32 pcount)
{
    .reg .pred %beyond;
    .reg .b32 %at, %block, %width, %count;
    .reg .f32 %a, %b;
    .reg .b64 %x, %y, %out, %offset;
    mov.u32 %at, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mad.lo.u32 %at, %block, %width, %at;
    ld.param.u32 %count, [pcount];
    setp.ge.u32 %beyond, %at, %count;
    @%beyond ret;
    ld.param.u64 %x, [px];
    ld.param.u64 %y, [py];
    ld.param.u64 %out, [pout];
    mul.wide.u32 %offset, %at, 4;
    add.u64 %x, %x, %offset;
    add.u64 %y, %y, %offset;
    add.u64 %out, %out, %offset;
    ld.global.f32 %a, [%x];
    ld.global.f32 %b, [%y];
    max.f32 %a, %a, %b;
    st.global.f32 [%out], %a;
    ret;
}
"""


@torch.library.custom_op("oxyfuel_bench::larger", mutates_args=())
def loaded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    count = x.numel()
    loaded_text()(grid=((count + 255) // 256, 1, 1), block=(256, 1, 1), args=(x, y, out, count))
    return out


loaded.register_fake(lambda x, y: torch.empty_like(x))


@functools.cache
def loaded_text():
    return torch.cuda._utils._cuda_load_module(PTX, ["larger"])["larger"]


# By title: the kernel's name on the device, and who calls it.
KERNELS = {
    "a Triton kernel, called as it is": ("scale_gate", plain),
    "a Triton kernel, by triton_op": ("row_norm", registered),
    "a CUDA kernel, by custom_op": ("halve_add", own),
    "a kernel in PTX, by custom_op": ("larger", loaded),
}


def seen(calls, other):
    """The kernels of all calls in turns, by torch's profiler."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(RUNS):
            for call in calls.values():
                other.zero_()
                call()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        return [e for e in json.load(open(file.name))["traceEvents"] if e.get("cat") == "kernel"]


def measure(title, name, kernel):

    def program(x, y):
        return torch.relu(kernel(x * 2 + 1, y)) + 1

    x, y = torch.randn(4096, 8192, device="cuda"), torch.randn(4096, 8192, device="cuda")
    # Larger than the cache of the GPU.
    other = torch.empty(64 << 20, device="cuda")
    runs = {"outside": program}
    want = program(x, y)
    right = True
    with torch.no_grad():
        for mode in MODES:
            runs[mode] = torch.compile(program, backend="oxyfuel", dynamic=False, options={"fallback": "error", "mode": mode})
            for _ in range(5):
                got = runs[mode](x, y)
            right &= torch.allclose(got, want, rtol=1e-5, atol=1e-5) and got.stride() == want.stride()
            del got
        calls = {key: lambda run=run: run(x, y) for key, run in runs.items()}
        for call in calls.values():
            call()
        torch.cuda.synchronize()
        # torch's profiler has been seen to leave out every launch of one kernel: it is asked again, and then in a process that has profiled nothing yet.
        for _ in range(ATTEMPTS):
            launched = seen(calls, other)
            events = sorted((e for e in launched if e["name"] == name), key=lambda e: e["ts"])
            if events:
                break
    if not events:
        return elsewhere(title)
    assert len(events) == RUNS * len(calls), (title, len(events), sorted({e["name"][:60] for e in launched}))
    row = {"name": title, "runs": RUNS, "right": bool(right), "us": {}, "share_of_outside": {}, "kernels": sorted({e["name"][:60] for e in launched})}
    shapes = {}
    for place, key in enumerate(calls):
        mine = events[place :: len(calls)]
        row["us"][key] = statistics.median(e["dur"] for e in mine)
        shapes[key] = {(tuple(e["args"]["grid"]), tuple(e["args"]["block"])) for e in mine}
    row["same_launch"] = len(set.union(*shapes.values())) == 1
    for mode in MODES:
        row["share_of_outside"][mode] = row["us"][mode] / row["us"]["outside"]
    row["passed"] = bool(right) and row["same_launch"] and all(LOW <= share <= HIGH for share in row["share_of_outside"].values())
    return row


def elsewhere(title):
    """The row of one kernel, measured in a process of its own."""
    assert ALONE not in sys.argv, f"{title}: torch's profiler knows no launch of it"
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([sys.executable, __file__, title, ALONE, "--json", file.name], stdout=subprocess.DEVNULL, check=False)
        (row,) = json.load(open(file.name))["rows"]
    if "failure" in row:
        raise RuntimeError(row["failure"])
    return row


def handed_over():
    """Strides and alignment of what a user's operator is given, inside and outside."""
    seen = []

    @torch.library.custom_op("oxyfuel_bench::look", mutates_args=())
    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append((tuple(x.shape), tuple(x.stride()), x.data_ptr() % 16, x.dtype))
        return x.clone()

    look.register_fake(lambda x: torch.empty_like(x))

    def program(x, image):
        a = look((x * 2).t())
        b = look(torch.relu(x + 1)[:, 4:])
        c = look(image * 3)
        return a.sum() + b.sum() + c.sum(), look((x + 1).transpose(0, 1).contiguous())

    x = torch.randn(64, 96, device="cuda")
    image = torch.randn(2, 8, 16, 16, device="cuda").to(memory_format=torch.channels_last)
    with torch.no_grad():
        program(x, image)
        want, seen[:] = list(seen), []
        fast = torch.compile(program, backend="oxyfuel", options={"fallback": "error"})
        fast(x, image)
    passed = seen == want
    return {"name": "strides and alignment", "passed": passed, "inside": str(seen), "outside": str(want)}


def main():
    args, target = sys.argv[1:], None
    if "--json" in args:
        at = args.index("--json")
        target = args[at + 1]
        del args[at : at + 2]
    args = [arg for arg in args if arg != ALONE]
    if len(args) > 1 or any(a.startswith("--") for a in args):
        print(__doc__)
        return 2
    folder = unpacked()
    sys.path[:0] = [folder.name, HERE]
    rows = []
    for title, (name, kernel) in KERNELS.items():
        if args and args[0] not in title:
            continue
        torch._dynamo.reset()
        try:
            rows.append(measure(title, name, kernel))
            us, shares = rows[-1]["us"], rows[-1]["share_of_outside"]
            times = ", ".join(f"{key} {time:.2f} us" + (f" ({shares[key]:.3f})" if key in shares else "") for key, time in us.items())
            print(f"{'ok' if rows[-1]['passed'] else 'FAIL'} {title}: {times}; same launch {rows[-1]['same_launch']}, right {rows[-1]['right']}", flush=True)
        except Exception as failure:
            rows.append({"name": title, "passed": False, "failure": f"{type(failure).__name__}: {str(failure)[:800]}"})
            print(f"FAIL {title}: {rows[-1]['failure']}", flush=True)
    if not args:
        torch._dynamo.reset()
        rows.append(handed_over())
        print(f"{'ok' if rows[-1]['passed'] else 'FAIL'} {rows[-1]['name']}" + ("" if rows[-1]["passed"] else f": {rows[-1]}"))
    if target:
        with open(target, "w") as file:
            json.dump({**head(torch), "rows": rows}, file, indent=1)
    passed = sum(row["passed"] for row in rows)
    print(f"{passed} passed, {len(rows) - passed} failed")
    return 0 if rows and passed == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
