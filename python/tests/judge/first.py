"""The counts of every operator, quickly: of the first sample of each that compiles, compiled and run, with no comparison.

`cargo xtask opinfo` counts over all samples, half an hour and more; this counts what a change of the compiler would change for an operator in the
time that a test has. The number of the sample is part of a row's name: a first sample that no longer compiles is a row that is
missing.
"""

import itertools
import warnings

import torch

import agree
from judge import counts, doors, opinfo, pool, verdict

NAME = "opinfo-first"
# Samples that are tried: what does not compile in so many is a program that Dynamo compiles nothing of.
TRIED = 3
PATIENCE = 120

# For operators that have none of the database's four dtypes.
OTHERS = ("complex64", "float8_e4m3fn")


def jobs():
    """Forward in the first dtype that the operator has on a CPU, and the gradient."""
    seen = set()
    for job in opinfo.jobs():
        kind = (job["op"], job["direction"])
        if kind not in seen:
            seen.add(kind)
            yield job
    for name, op in opinfo.database().items():
        found = [dtype for dtype in OTHERS if getattr(torch, dtype) in op.supported_dtypes("cpu")]
        if found and (name, opinfo.FORWARD) not in seen:
            yield {"op": name, "dtype": found[0], "direction": opinfo.FORWARD}


def compiled(case, door):
    """The counts of one case, None where no graph of it reaches the backend or it does not run."""
    for dynamo in (False, True):
        door.take_counts()
        try:
            with door.same_numbers(), verdict.CAPTURE:
                if dynamo:
                    torch._dynamo.reset()
                    call = door.compile(case.function, dynamic=False)
                else:
                    call = verdict.flat(door, case.function)
                verdict.run(call, case, agree.copy_inputs(case.inputs))
        except Exception:
            continue
        found = door.take_counts()
        if found.graphs:
            return found
    return None


def serve(job, say):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    door = doors.door("oxyfuel")
    op, stream = opinfo.stream(job)
    for i, sample in enumerate(itertools.islice(stream, TRIED)):
        if i < job.get("from", 0):
            continue
        say({"at": i})
        found = compiled(opinfo.case_of(op, sample, i, job), door)
        if found:
            say({"sample": i, "kernels": found.kernels, "interpreted": found.interpreted, "external": found.external, "reasons": found.reasons})
            break
    return {}


def count(jobs, workers=2):
    """Rows by name, reasons, and what went wrong."""
    rows, reasons, wrong = {}, {}, []

    def see(job, found, last):
        name = opinfo.key(job)
        if "error" in last:
            wrong.append(f"{name}: {last['error']}")
        wrong.extend(f"{name} #{s['sample']}: {s['what']}" for s in found if "what" in s)
        good = [s for s in found if "what" not in s]
        if good:
            (s,) = good
            rows[f"{name} #{s['sample']}"] = counts.row(1, s["kernels"], s["interpreted"], s["external"])
            reasons.update(s["reasons"])
        else:
            rows[f"{name} uncompiled"] = counts.row(0, 0, 0, {})

    pool.Pool("first", workers, PATIENCE, see).run(list(jobs))
    return rows, reasons, wrong
