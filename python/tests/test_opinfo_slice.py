"""The operator database in the test command; `cargo xtask opinfo` runs all of it.

Two parts. A seeded slice of the jobs is compared with eager. And of every operator, forward and gradient, the first sample that compiles is
counted: no count of external operators and of interpreted kernels may rise, and no operator may be missing. Nothing is cut off by a clock.
"""

import os
import random

import pytest

from judge import counts, doors, first, opinfo, verdict

SEED, JOBS, SAMPLES = 3, 80, 2

BLESS = bool(os.environ.get("BLESS"))


def chosen():
    found = [j | {"limit": SAMPLES} for j in opinfo.jobs()]
    return random.Random(SEED).sample(found, JOBS)


@pytest.fixture(scope="module")
def results():
    """Key to (wrong results, counts)."""
    door = doors.door("oxyfuel")
    found = {}
    for job in chosen():
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
    assert len(results) == JOBS
    wrong = [w for found, _ in results.values() for w in found]
    assert not wrong, "\n".join(wrong)


def test_no_count_of_the_slice_rises(results):
    rows = {k: row for k, (_, row) in results.items()}
    if BLESS:
        counts.write("opinfo-slice", rows, {}, partial=False)
    said = counts.rises("opinfo-slice", rows, whole=True)
    assert not said, "\n".join(said)


def test_no_count_of_any_operator_rises():
    rows, reasons, wrong = first.count(first.jobs())
    assert not wrong, "\n".join(wrong)
    if BLESS:
        counts.write(first.NAME, rows, reasons, partial=False)
    said = counts.rises(first.NAME, rows, whole=True)
    assert not said, "\n".join(said)


def test_every_operator_of_the_database_is_counted():
    counted = {entry.rsplit(" ", 3)[0] for entry in counts.load(first.NAME)["rows"]}
    assert counted == {job["op"] for job in first.jobs()}


def test_the_page_of_operators_is_what_the_counts_say():
    assert counts.OPERATORS.read_text() == counts.operators()
