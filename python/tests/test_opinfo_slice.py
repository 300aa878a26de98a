"""A seeded slice of the operator database through the real backend; `cargo xtask opinfo` runs all of it.

The slice is a fixed part of the jobs, so its counts of external operators and of interpreted kernels are recorded, and
may not rise.
"""

import os
import random
import time

import pytest

from judge import counts, doors, opinfo, verdict

SEED, JOBS, SAMPLES, SECONDS = 3, 80, 2, 75

BLESS = bool(os.environ.get("BLESS"))


def chosen():
    found = [j | {"limit": SAMPLES} for j in opinfo.jobs()]
    return random.Random(SEED).sample(found, JOBS)


@pytest.fixture(scope="module")
def results():
    """Key to (wrong results, counts); what does not fit into the time is left out, the order being the same each time."""
    door = doors.door("oxyfuel")
    start, found = time.monotonic(), {}
    for job in chosen():
        if time.monotonic() - start > SECONDS and not BLESS:
            break
        op, samples = opinfo.samples(job)
        wrong, seen = [], doors.Counts()
        for i, sample in enumerate(samples):
            case = opinfo.case_of(op, sample, i, job)
            v = verdict.judge(case, door)
            if v.verdict == "wrong":
                wrong.append(f"{case.name}: [{v.blame}] {v.what} {opinfo.describe(sample)}")
            seen.add_all(v.counts)
        found[opinfo.key(job)] = (wrong, counts.row(len(samples), seen.kernels, seen.interpreted, seen.external))
    return found


def test_the_slice_agrees_with_eager(results):
    assert results
    wrong = [w for found, _ in results.values() for w in found]
    assert not wrong, "\n".join(wrong)


def test_no_count_of_the_slice_rises(results):
    rows = {k: row for k, (_, row) in results.items()}
    if BLESS:
        counts.write("opinfo-slice", rows, {}, partial=False)
    said = counts.rises("opinfo-slice", rows)
    assert not said, "\n".join(said)


def test_the_page_of_operators_is_what_the_counts_say():
    assert counts.OPERATORS.read_text() == counts.operators()
