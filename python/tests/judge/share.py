"""How much of the operator database runs without an operator of torch.

The bar is a sentence: "At least 95 % of the operator database's samples (four dtypes, forward) that decompose to core ops other than products, convolutions, FFT and
data-dependent sizes run without an external op." So the base leaves out the families below, what has no parts in core ATen, and samples that could not be compared; nothing else.
A sample that neither AOTAutograd nor Dynamo makes a graph of is one that does not run without torch. Random operators are counted as users have them, with numbers of ours: the judge
compares with eager's numbers, so what it compiles with ours is counted apart (`own_random` of a line).

The results hold the calls of a job, not those of each sample, so the number of samples that make one is a bound: as many as there are calls, at most all of the job.
Samples that call a family of the table are no part of the base, whatever else they call.
"""

import collections
import functools

import torch

# Families that the base leaves out: overload packets of ATen or, with a dot, whole names. A name that ends in `*` is a prefix.
LEFT_OUT = {
    "products": ("mm", "bmm", "addmm", "addmv", "addbmm", "_trilinear", "_scaled_dot_product_*", "_linear_cross_entropy_*"),
    "convolutions": ("convolution",),
    "fft": ("_fft_*",),
    "sizes or numbers that only the data says": (
        "_assert_scalar",
        "_local_scalar_dense",
        "bincount",
        "masked_select",
        "nonzero",
        "operator.ge",
        "operator.le",
        "repeat_interleave",
        "unique_*",
        "_unique2",
    ),
}
# The same, told by the reason rather than by the operator.
REASONS = {
    "only its result tells how large it is": "sizes or numbers that only the data says",
    "bounds whose order is not known": "sizes or numbers that only the data says",
}
# Operators that draw numbers: torch's, where eager's numbers are asked for.
RANDOM = (
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
)
# One number from torch's generator, which our own follow from: no part of any sample.
SEED = "the seed of the graph's random numbers"
NOT_CORE = "no parts in core ATen"
NO_GRAPH = "no graph: the program branches on its data"
NOT_OURS = "does not compile with random numbers of ours"
BAR = 0.95


def _is_one_of(target, names):
    name = target.split(".")[1]
    return any(target == n if "." in n else name.startswith(n[:-1]) if n.endswith("*") else name == n for n in names)


def draws(calls):
    """Whether one of these operators of torch draws numbers."""
    return any(_is_one_of(target, RANDOM) for target in calls)


@functools.cache
def left_out(target, reason):
    """The family that takes a sample with this call out of the base, or None."""
    for said, family in REASONS.items():
        if said in reason:
            return family
    for family, names in LEFT_OUT.items():
        if _is_one_of(target, names):
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
    """(samples of the base, those of them that do not run without torch, samples left out by family, samples of the base by what they are left to)."""
    base = external = 0
    outside, inside = collections.Counter(), collections.Counter()
    for line in lines:
        if line["direction"] != "forward":
            continue
        skipped = {s["sample"] for s in line.get("skipped", ())}
        uncompiled = set(line.get("uncompiled", ()))
        samples = line["samples"] - len(skipped)
        own = line.get("own_random")
        made = line["external"] if own is None else own["external"]
        calls = {t: (e["count"], left_out(t, e["reason"])) for t, e in made.items()}
        away = collections.Counter()
        for n, family in calls.values():
            if family:
                away[family] = max(away[family], min(n, samples))
        here = samples - min(samples, sum(away.values()))
        found = {t: min(n, here) for t, (n, family) in calls.items() if not family and here}
        if own is not None and (failed := set(own["failed"]) - skipped - uncompiled):
            found[NOT_OURS] = min(len(failed), here)
        if uncompiled:
            found[NO_GRAPH] = min(len(uncompiled), here)
        outside.update(away)
        base += here
        external += min(here, sum(found.values()))
        inside.update(found)
    return base, external, outside, inside


def figures(lines):
    """The same as data."""
    base, external, outside, inside = of(lines)
    share = (base - external) / base if base else None
    return {"bar": BAR, "samples": base, "without_torch": base - external, "share": share, "left_out": dict(outside.most_common()), "left_to_torch": dict(inside.most_common())}


def sentence(found):
    return (
        f"{found['without_torch']:,} of the {found['samples']:,} forward samples that come apart into core operators other than products, convolutions, FFT and data-dependent sizes "
        f"run without an operator of torch: {found['share']:.1%} (bar {found['bar']:.0%})."
    )


def met(found):
    return found["share"] is None or found["share"] >= found["bar"]


def report(found):
    if found["share"] is None:
        return
    print("\n" + sentence(found))
    for family, n in found["left_out"].items():
        print(f"  left out {n:>6}  {family}")
    for target, n in found["left_to_torch"].items():
        print(f"  external {n:>6}  {target}")


def page(found):
    """The sentence and the families, for `docs/operators.md`."""
    text = [sentence(found) + "\n\n| not counted | samples |\n|---|---:|\n"]
    text += [f"| {family} | {n:,} |\n" for family, n in found["left_out"].items()]
    text.append("\nOf those that are counted, left to torch (a sample may call several):\n\n| operator | samples |\n|---|---:|\n")
    text += [f"| {target if ' ' in target else f'`{target}`'} | {n:,} |\n" for target, n in found["left_to_torch"].items()]
    text.append(
        "\nA sample that torch makes no graph of counts as left to torch. Random operators count as users have them, with our own numbers; the comparison above them is with eager's "
        "(`fallback_random`).\n\n"
    )
    return "".join(text)
