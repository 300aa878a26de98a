"""How much of the operator database runs without an operator of torch: of the samples that come apart into core ATen, less the families below.

The results hold the calls of a job, not those of each sample, so the number of samples that make one is a bound: as many as there are calls, at most all of the job.
Samples that call a family of the table are no part of the base, whatever else they call.
"""

import collections
import functools

import torch

# Families that the base leaves out: overload packets, and why. A name that ends in `*` is a prefix.
LEFT_OUT = {
    "products": ("mm", "bmm", "addmm", "addmv", "addbmm", "_trilinear", "_scaled_dot_product_*", "_linear_cross_entropy_*"),
    "convolutions": ("convolution",),
    "fft": ("_fft_*",),
    "complex numbers": ("_conj", "_conj_physical", "complex", "polar", "view_as_complex", "view_as_real"),
    "sizes or numbers that only the data says": (
        "_assert_scalar",
        "_local_scalar_dense",
        "_to_sparse",
        "bincount",
        "ge",
        "le",
        "masked_select",
        "nonzero",
        "repeat_interleave",
        "sym_storage_offset",
        "unique_*",
        "_unique2",
    ),
    "random numbers, which the judge wants to be eager's": (
        "bernoulli",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "multinomial",
        "native_dropout",
        "normal",
        "normal_functional",
        "rand*",
        "rrelu_with_noise_functional",
        "uniform",
    ),
}
# The same, told by the reason rather than by the operator.
REASONS = {
    "is a tensor only the host understands": "complex numbers",
    "result 0 is no tensor": "complex numbers",
    "only its result tells how large it is": "sizes or numbers that only the data says",
    "writes to places that only the data says": "sizes or numbers that only the data says",
    "bounds whose order is not known": "sizes or numbers that only the data says",
}
NOT_CORE = "no parts in core ATen"
NO_GRAPH = "no graph: the program branches on its data"
BAR = 0.95


@functools.cache
def left_out(target, reason):
    """The family that takes a sample with this call out of the base, or None."""
    for said, family in REASONS.items():
        if said in reason:
            return family
    name = target.split(".")[1]
    for family, names in LEFT_OUT.items():
        if any(name.startswith(n[:-1]) if n.endswith("*") else name == n for n in names):
            return family
    return None if is_core(target) else NOT_CORE


def is_core(target):
    """Whether PyTorch calls the overload core, or the operator's default, or has their parts."""
    from torch._decomp import core_aten_decompositions

    space, name, overload = (target.split(".") + ["default"])[:3]
    packet = getattr(torch.ops.aten, name, None) if space == "aten" else None
    if packet is None:
        return False
    overloads = [getattr(packet, o) for o in packet.overloads() if o in ("default", overload)]
    return any(torch.Tag.core in o.tags or o in core_aten_decompositions() for o in overloads)


def of(lines):
    """(samples of the base, those of them with an operator of torch, samples left out by family, samples by operator of torch)."""
    base = external = 0
    outside, inside = collections.Counter(), collections.Counter()
    for line in lines:
        if line["direction"] != "forward":
            continue
        calls = {t: (e["count"], left_out(t, e["reason"])) for t, e in line["external"].items()}
        away = collections.Counter()
        for n, family in calls.values():
            if family:
                away[family] = max(away[family], min(n, line["samples"]))
        if line.get("uncompiled"):
            away[NO_GRAPH] = len(line["uncompiled"])
        here = line["samples"] - min(line["samples"], sum(away.values()))
        outside.update(away)
        base += here
        external += min(here, sum(n for n, family in calls.values() if not family))
        inside.update({t: min(n, here) for t, (n, family) in calls.items() if not family and here})
    return base, external, outside, inside


def report(lines):
    base, external, outside, inside = of(lines)
    if not base:
        return
    share = (base - external) / base
    print(f"\nforward, core ATen less the families below: {base - external} of {base} samples run without an operator of torch ({share:.1%}, bar {BAR:.0%})")
    for family, n in outside.most_common():
        print(f"  left out {n:>6}  {family}")
    for target, n in inside.most_common():
        print(f"  external {n:>6}  {target}")
