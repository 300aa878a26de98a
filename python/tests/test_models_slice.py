"""Every model through torch.compile in every way, its counts at least; a part of them against eager. `cargo xtask models` compares all of them.

Two processes share the work; one that falls or hangs is a failure, and so is a model that is missing.
"""

import pytest

from judge import counts, models, pool

COMPARED = {(name, "eval") for name in models.MODELS} | {("resnet18", "train"), ("gpt2", "backward"), ("bert", "train")}
PATIENCE = 300


@pytest.fixture(scope="module")
def results():
    """(model, way) to its verdict, what is wrong with it and its counts."""
    found = {}

    def see(job, samples, last):
        found[job["model"], job["way"]] = samples[-1] if samples else {"verdict": "wrong", "what": last.get("error", "the worker died")}

    pairs = [(name, way) for name in models.MODELS for way in models.WAYS]
    jobs = [{"model": m, "way": w, "backend": "oxyfuel", "compare": (m, w) in COMPARED} for m, w in pairs]
    # A core each.
    pool.Pool("models", 2, PATIENCE, see, {"OMP_NUM_THREADS": "1"}).run(jobs)
    return found


def test_models_agree_with_eager(results):
    wrong = [f"{name} {way}: {s['what']}" for (name, way), s in results.items() if s["verdict"] != "agree"]
    assert not wrong, "\n".join(wrong)
    assert set(results) >= COMPARED


def test_no_count_of_any_model_rises(results):
    rows = {f"{name} {way}": counts.row(1, s.get("kernels", 0), s.get("interpreted", 0), s.get("external", {})) for (name, way), s in results.items()}
    said = counts.rises("models", rows, whole=True)
    assert not said, "\n".join(said)


def test_the_recorded_counts_are_of_every_model_in_every_way():
    assert set(counts.load("models")["rows"]) == {f"{name} {way}" for name in models.MODELS for way in models.WAYS}
