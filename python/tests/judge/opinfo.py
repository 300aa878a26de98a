"""PyTorch's operator database against eager: every operator, every sample, forward in four dtypes, gradients in float32.

A job is one operator in one dtype and one direction. Results are lines of JSON in a file, so that a run can be stopped
and taken up again, and shards can be put together by concatenating their files.

Nearly all of a sample's time is torch's tracing, half of which is spent once a graph. So the first `ALONE` samples of a
job are graphs of their own, and the others are compiled `TOGETHER` to a graph: a program that takes a list of samples
and returns the list of their results. Shapes stay static, and every result is compared as if it were alone. Where such
a graph is anything but right, its samples are judged again one by one, and their verdicts count. If they are all right
alone, and torch's own graph of them together is right too, then the fault lies in what the compiler makes of them
together: that is wrong as well, and the fewest samples that show it are named.
"""

import argparse
import collections
import functools
import json
import pathlib
import random
import sys
import time
import zlib

import torch

from judge import counts, order, pool, record, revision, share, verdict

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int64": torch.int64, "bool": torch.bool}
FORWARD, GRAD = "forward", "gradient"
# Numbers that mean nothing: only shapes and strides are compared.
EMPTY = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
# Hundreds of samples each: last, so that a run that is stopped has seen every other operator.
LARGE = ("max_pool", "logspace", "unique", "masked.norm", "gaussian_nll", "searchsorted", "max_unpool", "svd", "histogram", "cdist", "multi_head_attention", "solve_triangular")
ALONE, TOGETHER = 2, 12
RESULTS = pathlib.Path(__file__).resolve().parents[3] / "target" / "judge" / "opinfo.jsonl"


@functools.cache
def database():
    from torch.testing._internal import common_methods_invocations as invocations
    from torch.testing._internal.common_methods_invocations import op_db

    # Seeding inside of the operator cannot be traced, and every run is seeded before it.
    invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {full_name(op): op for op in op_db}


def full_name(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def jobs(only=None, dtypes=tuple(DTYPES), directions=(FORWARD, GRAD), device="cpu"):
    for name, op in database().items():
        if only and name not in only and op.name not in only:
            continue
        for dtype in dtypes:
            if FORWARD in directions and DTYPES[dtype] in op.supported_dtypes(device):
                yield {"op": name, "dtype": dtype, "direction": FORWARD}
        if GRAD in directions and "float32" in dtypes and op.supports_autograd and torch.float32 in op.supported_backward_dtypes(device):
            yield {"op": name, "dtype": "float32", "direction": GRAD}


def key(job):
    return f"{job['op']} {job['dtype']} {job['direction']}"


def stream(job):
    """The operator of a job and its samples, made one after the other; the same ones in every process."""
    seed_all(zlib.crc32(key(job).encode()) + job.get("seed", 0))
    op = database()[job["op"]]
    return op, iter(op.sample_inputs(job.get("device", "cpu"), getattr(torch, job["dtype"]), requires_grad=job["direction"] == GRAD))


def samples(job):
    """Every sample of a job."""
    op, found = stream(job)
    found = list(found)
    limit = job.get("limit")
    if limit and len(found) > limit:
        # Spread over the list, whose neighbours are much alike.
        found = [found[i * len(found) // limit] for i in range(limit)]
    return op, found


def seed_all(seed):
    import numpy

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def case_of(op, sample, index, job):
    def function(args, kwargs):
        return op(*args, **kwargs)

    return verdict.Case(
        name=f"{key(job)} #{index}",
        function=function,
        inputs=((sample.input, *sample.args), dict(sample.kwargs)),
        grad=job["direction"] == GRAD,
        project=sample.output_process_fn_grad,
        values=op.name not in EMPTY,
        seed=index,
        compared=functools.partial(order.compared, op.name),
    )


def together(cases):
    """One case of several: a program over the list of their inputs."""

    def function(*inputs):
        return [case.function(*given) for case, given in zip(cases, inputs, strict=True)]

    def project(outputs):
        return [case.project(out) for case, out in zip(cases, outputs, strict=True)]

    def compared(outputs, inputs):
        return [case.compared(out, given) for case, out, given in zip(cases, outputs, inputs, strict=True)]

    first = cases[0]
    return verdict.Case(f"{first.name} and {len(cases) - 1} more", function, tuple(case.inputs for case in cases), first.grad, project, first.values, first.seed, compared)


def serve(job, say):
    """One job in a worker."""
    from judge import doors

    torch.set_num_threads(1)
    door = doors.door(job["backend"])
    try:
        op, found = samples(job)
    except Exception as error:
        return {"error": f"the samples cannot be made: {type(error).__name__}: {error}"}
    cases = [case_of(op, sample, i, job) for i, sample in enumerate(found)]
    # Once a sample is no single graph, its neighbours will hardly be: they go the way that it went in the end.
    dynamo = bool(job.get("dynamo"))
    drawn = False
    i, alone = job.get("from", 0), max(ALONE, job.get("alone", 0))

    def tell(line):
        nonlocal drawn
        drawn |= share.draws(line["external"])
        say(line)

    while i < len(cases):
        some = range(i, i + 1 if i < alone or dynamo else min(i + job["together"], len(cases)))
        say({"at": i, "together": len(some)})
        v = _verdict(together([cases[k] for k in some]), door, blame=False) if len(some) > 1 else None
        if v and v.verdict == "agree":
            for k in some:
                tell(_line(k, v if k == i else verdict.Verdict("agree"), found[k]))
        else:
            right = True
            for k in some:
                say({"at": k})
                one = _verdict(cases[k], door, dynamo)
                tell(_line(k, one, found[k]))
                right &= one.verdict == "agree"
                dynamo |= one.route == "torch.compile"
            if v and right and not dynamo:
                tell(_line(i, _blame(cases, list(some), door), found[i]))
        i = some.stop
    if drawn and job["direction"] == FORWARD and job["backend"] == "oxyfuel":
        return {"own_random": _with_own_numbers(cases, job["together"], say)}
    return {}


def _with_own_numbers(cases, size, say):
    """The operators that are left to torch where random numbers are ours: counted, since there is nothing to compare with."""
    from judge import doors, first
    from judge.oxyfuel_door import Oxyfuel

    door, found, failed = Oxyfuel("oxyfuel", own_random=True), doors.Counts(), []
    for at in range(0, len(cases), size):
        some = cases[at : at + size]
        say({"at": at, "together": len(some)})
        made = first.compiled(together(some), door) if len(some) > 1 else None
        if made:
            found.add_all(made)
            continue
        for k, case in enumerate(some, at):
            say({"at": k})
            if made := first.compiled(case, door):
                found.add_all(made)
            else:
                failed.append(k)
    calls = {target: {"count": n, "reason": found.reasons[target]} for target, n in found.external.items() if found.reasons[target] != share.SEED}
    return {"external": calls, "failed": failed}


def _verdict(case, door, dynamo=False, blame=True):
    try:
        return verdict.judge(case, door, dynamo=dynamo, blame=blame)
    except Exception as error:  # the comparison itself has no form for this value
        return verdict.Verdict("wrong", f"cannot be judged: {type(error).__name__}: {error}", "judge")


def _blame(cases, some, door):
    """The verdict on samples that are right alone and were not together."""
    from judge import doors

    def wrong(which, by=door):
        v = _verdict(together([cases[k] for k in which]), by, blame=False)
        return v.what if v.verdict == "wrong" else ""

    by_torch = wrong(some, doors.door("torch"))
    if by_torch or not wrong(some):
        return verdict.Verdict("agree", counts=door.take_counts())
    for k in list(some):
        fewer = [other for other in some if other != k]
        if fewer and wrong(fewer):
            some = fewer
    blame = "decomposition" if wrong(some, doors.door("nop")) else "compiler"
    return verdict.Verdict("wrong", f"samples {some} in one graph: {wrong(some)}", blame, counts=door.take_counts())


def _line(index, v, sample):
    line = {"sample": index, "verdict": v.verdict, "route": v.route}
    if v.verdict != "agree":
        line |= {"what": v.what, "blame": v.blame}
    if v.verdict == "wrong":
        line["inputs"] = describe(sample)
    c = v.counts
    # Right, but in eager: Dynamo compiled none of it, so no backend was asked.
    if v.verdict == "agree" and v.route == "torch.compile" and not c.graphs:
        line["uncompiled"] = True
    return line | {"kernels": c.kernels, "interpreted": c.interpreted, "external": c.external, "reasons": c.reasons}


def describe(sample):
    def one(x):
        if isinstance(x, torch.Tensor):
            return f"{str(x.dtype)[6:]}{list(x.shape)}" + ("" if x.layout != torch.strided or x.is_contiguous() else f"/{list(x.stride())}")
        if isinstance(x, (list, tuple)):
            return "[" + ", ".join(one(y) for y in x) + "]"
        return repr(x)

    parts = [one(sample.input), *(one(a) for a in sample.args), *(f"{k}={one(v)}" for k, v in sample.kwargs.items())]
    return "(" + ", ".join(parts)[:400] + ")"


def summarise(job, found, done):
    """The line of the result file for one job."""
    # The last word on a sample counts.
    found = list({s["sample"]: s for s in found}.values())
    line = {"key": key(job), **{k: job[k] for k in ("op", "dtype", "direction", "backend", "limit", "seed", "together")}}
    line |= {"samples": len(found), "seconds": done["seconds"], "commit": revision.code()}
    line["uncompiled"] = [s["sample"] for s in found if s.get("uncompiled")]
    line["agree"] = sum(s["verdict"] == "agree" for s in found)
    line["through_dynamo"] = sum(s.get("route") == "torch.compile" for s in found)
    line["skipped"] = [{k: s[k] for k in ("sample", "what")} for s in found if s["verdict"] == "skip"]
    line["wrong"] = [{k: s.get(k, "") for k in ("sample", "what", "blame", "inputs", "route")} for s in found if s["verdict"] == "wrong"]
    if "error" in done:
        line["wrong"].append({"sample": -1, "what": done["error"], "blame": "judge", "inputs": "", "route": ""})
    external, reasons = collections.Counter(), {}
    for s in found:
        external.update(s.get("external", {}))
        reasons |= s.get("reasons", {})
    line["external"] = {t: {"count": n, "reason": reasons[t]} for t, n in sorted(external.items())}
    line["kernels"] = sum(s.get("kernels", 0) for s in found)
    line["interpreted"] = sum(s.get("interpreted", 0) for s in found)
    if "own_random" in done:
        line["own_random"] = done["own_random"]
    return line


def arguments(parser: argparse.ArgumentParser):
    parser.add_argument("--backend", default="oxyfuel", help="oxyfuel, nop or torch")
    parser.add_argument("--op", action="append", help="only this operator (name, or name.variant)")
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--direction", action="append", choices=(FORWARD, GRAD))
    parser.add_argument("--limit", type=int, help="at most so many samples a job, spread evenly")
    parser.add_argument("--together", type=int, default=TOGETHER, help=f"samples a graph, behind the first {ALONE} of a job")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th job, beginning with the i-th")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--patience", type=float, default=120, help="seconds a sample may take")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="the file of results; jobs that are in it are not run again")
    parser.add_argument("--fresh", action="store_true", help="forget the results of before")
    parser.add_argument("--mixed", action="store_true", help="keep results of other commits, which are run again otherwise")
    parser.add_argument("--dynamo", action="store_true", help="every sample through torch.compile")
    parser.add_argument("--bless", action="store_true", help="write the counts and docs/operators.md from the results")
    parser.add_argument("--report", action="store_true", help="run nothing; report on the results there are")
    parser.add_argument("--record", action="store_true", help="write the outcome of a whole run to bench/record/judge.json and docs/torch.md")


def ours(done):
    """The results of the code that is judged."""
    mine = {key: line for key, line in done.items() if line.get("commit") == revision.code()}
    if len(mine) < len(done):
        print(f"{len(done) - len(mine)} results of other code are run again (--mixed keeps them)", file=sys.stderr, flush=True)
    return mine


def main(args):
    shard, of = map(int, args.shard.split("/"))
    args.results.parent.mkdir(parents=True, exist_ok=True)
    if args.fresh:
        args.results.unlink(missing_ok=True)
    done = {line["key"]: line for line in read(args.results)}
    if not args.report and not args.mixed:
        done = ours(done)
    wanted = list(jobs(args.op, args.dtype or tuple(DTYPES), args.direction or (FORWARD, GRAD)))[shard::of]
    common = {"backend": args.backend, "limit": args.limit, "seed": args.seed, "together": args.together, "dynamo": args.dynamo}
    todo = [] if args.report else [job | common for job in wanted if key(job) not in done]
    todo.sort(key=lambda job: any(name in job["op"] for name in LARGE))
    lines = [done[key(job)] for job in wanted if key(job) in done]
    start, total = time.monotonic(), len(todo)
    finished = 0

    with args.results.open("a") as file:

        def see(job, found, last):
            nonlocal finished
            finished += 1
            line = summarise(job, found, last)
            lines.append(line)
            file.write(json.dumps(line) + "\n")
            file.flush()
            for w in line["wrong"]:
                print(f"WRONG {line['key']} #{w['sample']} [{w['blame']}] {w['what'][:300]}  {w['inputs'][:200]}", flush=True)
            if finished % 20 == 0 or finished == total:
                bad = sum(len(l["wrong"]) for l in lines)
                print(f"[{finished}/{total} jobs, {time.monotonic() - start:.0f} s] {sum(l['samples'] for l in lines)} samples, {bad} wrong", file=sys.stderr, flush=True)

        pool.Pool("opinfo", args.workers, args.patience, see).run(todo)
    report(lines)
    shared = share.figures(lines)
    share.report(shared)
    ok = not any(line["wrong"] for line in lines)
    whole = of == 1 and not (args.op or args.dtype or args.direction or args.limit)
    if args.bless:
        reasons = {t: e["reason"] for line in lines for t, e in line["external"].items()}
        counts.write("opinfo", rows(lines), reasons, partial=not whole, shared=shared if whole else None)
        counts.write_operators()
    elif args.together == TOGETHER and not args.limit and not counts.check("opinfo", rows(lines), whole and not args.report):
        ok = False
    if whole and args.backend == "oxyfuel" and not share.met(shared):
        print("SHARE BELOW ITS BAR")
        ok = False
    if args.record:
        if not whole or len(lines) < len(wanted):
            raise SystemExit("only a whole run is recorded: every operator, dtype, direction and sample")
        record.write("opinfo", record.operators(lines) | {"share": shared})
    return 0 if ok else 1


def read(path):
    if path.exists():
        for line in path.read_text().splitlines():
            yield json.loads(line)


def rows(lines):
    """The rows of the counts."""
    return {
        line["key"]: counts.row(line["samples"], line["kernels"], line["interpreted"], {t: e["count"] for t, e in line["external"].items()})
        for line in lines
    }


def report(lines):
    """The table at the end of a run."""
    rows = collections.defaultdict(collections.Counter)
    for line in lines:
        for name in (f"{line['dtype']} {line['direction']}", "all"):
            rows[name].update(
                jobs=1,
                samples=line["samples"],
                agree=line["agree"],
                skipped=len(line["skipped"]),
                wrong=len(line["wrong"]),
                dynamo=line["through_dynamo"],
                uncompiled=len(line.get("uncompiled", ())),
                external=sum(e["count"] for e in line["external"].values()),
                interpreted=line["interpreted"],
                kernels=line["kernels"],
            )
    columns = ("jobs", "samples", "agree", "skipped", "wrong", "dynamo", "uncompiled", "kernels", "external", "interpreted")
    print(f"{'':<20}" + "".join(f"{c:>13}" for c in columns))
    for name, row in sorted(rows.items(), key=lambda entry: entry[0] == "all"):
        print(f"{name:<20}" + "".join(f"{row[c]:>13}" for c in columns))
    by_blame = collections.Counter((w["blame"], line["op"]) for line in lines for w in line["wrong"])
    for (blame, op), n in by_blame.most_common():
        print(f"  wrong {n:>5}  {op} [{blame}]")
    skipped = collections.Counter(s["what"][:110] for line in lines for s in line["skipped"])
    for what, n in skipped.most_common(40):
        print(f"  skipped {n:>5}  {what}")
