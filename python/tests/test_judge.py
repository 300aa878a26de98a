"""The judge itself: it must find what is wrong, survive a crash, and shrink."""

import argparse
import collections
import shutil
import subprocess

import pytest
import torch

import agree
from judge import counts, doors, first, grammar, models, opinfo, order, pool, program, programs, record, revision, share, verdict


class Liar(doors.Torch):
    """AOTAutograd, but every tanh is a sine."""

    def below_dynamo(self, function):
        def lying(graph, inputs):
            for node in graph.graph.nodes:
                if node.target == torch.ops.aten.tanh.default:
                    node.target = torch.ops.aten.sin.default
            graph.recompile()
            return doors._nop(graph, inputs)

        return doors.aot_function(function, fw_compiler=lying, keep_inference_input_mutations=True)


def case(function, *inputs, **how):
    return verdict.Case("case", function, inputs, **how)


def test_a_right_backend_agrees_and_a_lying_one_does_not():
    x = torch.randn(5)
    assert verdict.judge(case(torch.tanh, x), doors.door("torch")).verdict == "agree"
    said = verdict.judge(case(torch.tanh, x), Liar("liar"))
    assert (said.verdict, said.blame) == ("wrong", "compiler")


def test_gradients_are_judged():
    x = torch.randn(5, requires_grad=True)
    assert verdict.judge(case(torch.sigmoid, x, grad=True), doors.door("nop")).verdict == "agree"


def test_what_torch_cannot_trace_goes_through_dynamo():
    said = verdict.judge(case(torch.nonzero, torch.tensor([0, 1, 1])), doors.door("nop"))
    assert (said.verdict, said.route) == ("agree", "torch.compile")


def test_any_order_of_equal_elements_is_right_and_no_other():
    x = torch.tensor([[2.0, 1.0, 1.0, 3.0]])

    def said(name, places, **kwargs):
        runs = (verdict.Run(order.compared(name, (x.gather(1, p), p), ((x, 1), kwargs))) for p in (torch.tensor([places]), torch.tensor([[1, 2, 0, 3]])))
        return agree.problems(*runs)

    assert not said("sort", [1, 2, 0, 3])
    assert not said("sort", [2, 1, 0, 3])
    assert said("sort", [2, 1, 0, 3], stable=True)
    assert said("sort", [1, 1, 0, 3])
    assert said("sort", [1, 2, 3, 0])
    assert said("max", [2, 1, 0, 3])


def test_what_eager_refuses_is_skipped():
    assert verdict.judge(case(torch.cholesky, torch.tensor([1, 2])), doors.door("nop")).verdict == "skip"


def test_programs_repeat_and_run():
    for seed in range(30):
        p = programs.make(seed)
        assert p == programs.make(seed) and p.well_formed()
        p.function()(*p.make_inputs())


def test_every_rule_of_the_grammar_occurs():
    text = "\n".join(programs.make(seed).source() for seed in range(400))
    for word in ("@", "cumsum", ".sum(", "transpose", "index_select", ".to(torch.", "torch.cat", "_(", "] = ", "max_pool2d", "softmax", "torch.arange"):
        assert word in text, word


def test_a_failing_program_shrinks_to_its_cause():
    seed = next(s for s in range(500) if "torch.tanh" in programs.make(s).live().source() and len(programs.make(s).live().statements) > 5)
    small = program.shrink(programs.make(seed), lambda p: "torch.tanh" in p.source())
    assert len(small.statements) == 1 and "torch.tanh" in small.source()
    compile(small.script("oxyfuel"), "script", "exec")


def test_samples_are_the_same_in_every_process():
    job = {"op": "add", "dtype": "float32", "direction": opinfo.FORWARD, "limit": 4}
    one, two = (opinfo.samples(job)[1] for _ in range(2))
    assert len(one) == 4
    assert all(torch.equal(a.input, b.input) for a, b in zip(one, two, strict=True))


def test_every_operator_of_the_database_has_its_jobs():
    found = list(opinfo.jobs())
    assert len({opinfo.key(j) for j in found}) == len(found) > 2000
    assert {j["op"] for j in opinfo.jobs(["sort"])} == {"sort"}


class Muddler(doors.Torch):
    """AOTAutograd, but in a graph of two sines or more, the first and the last of them change places."""

    def below_dynamo(self, function):
        def muddling(graph, inputs):
            (output,) = (n for n in graph.graph.nodes if n.op == "output")
            sines = [n for n in graph.graph.nodes if n.target == torch.ops.aten.sin.default]
            if len(sines) > 1:
                swapped = {sines[0]: sines[-1], sines[-1]: sines[0]}
                output.args = ([swapped.get(n, n) for n in output.args[0]],)
                graph.recompile()
            return doors._nop(graph, inputs)

        return doors.aot_function(function, fw_compiler=muddling, keep_inference_input_mutations=True)


def lines(op, backend, together=12):
    said = []
    job = {"op": op, "dtype": "float32", "direction": opinfo.FORWARD, "backend": backend, "limit": 8, "seed": 0, "together": together}
    opinfo.serve(job, said.append)
    return said, opinfo.summarise(job, [s for s in said if "sample" in s], {"seconds": 0})


def test_samples_are_compiled_together_behind_the_first():
    said, line = lines("atan2", "nop")
    assert [s["together"] for s in said if "together" in s] == [1, 1, line["samples"] - 2]
    assert line["agree"] == line["samples"] > 4
    assert line | {"together": 1} == lines("atan2", "nop", together=1)[1]


def test_a_wrong_sample_of_a_graph_of_many_is_found(monkeypatch):
    monkeypatch.setattr(doors, "door", {"liar": Liar("liar"), "torch": doors.Torch("torch"), "nop": doors.Nop("nop")}.get)
    monkeypatch.setattr(opinfo, "case_of", lambda op, sample, index, job: verdict.Case("", torch.tanh if index == 5 else torch.cos, (torch.randn(3),)))
    _, line = lines("atan2", "liar")
    assert [w["sample"] for w in line["wrong"]] == [5] and line["agree"] == line["samples"] - 1


def test_samples_that_are_wrong_only_together_are_named(monkeypatch):
    doors_by_name = {"muddler": Muddler("muddler"), "torch": doors.Torch("torch"), "nop": doors.Nop("nop")}
    monkeypatch.setattr(doors, "door", doors_by_name.get)
    torch.manual_seed(0)
    cases = [verdict.Case("sine", torch.sin, (torch.randn(3),)) for _ in range(5)]
    said = opinfo._blame(cases, [0, 1, 2, 3, 4], doors_by_name["muddler"])
    assert (said.verdict, said.blame) == ("wrong", "compiler") and said.what.startswith("samples [3, 4] in one graph")


def killed(tmp_path, *, alone):
    """The lines of a job of four samples, the third of which kills its process: also alone, or only in one graph with the fourth."""
    (tmp_path / "judge_victim.py").write_text(
        "import os\n"
        "def serve(job, say):\n"
        " i = job['from']\n"
        " while i < 4:\n"
        "  n = 2 if i >= job['alone'] else 1\n"
        "  say({'at': i, 'together': n})\n"
        f"  if i == 2 and (n == 2 or {alone}): os.abort()\n"
        "  for k in range(i, i + n): say({'sample': k, 'verdict': 'agree'})\n"
        "  i += n\n"
        " return {}\n"
    )
    seen = []
    runner = tmp_path / "run.py"
    runner.write_text("import sys\nsys.path.insert(0, sys.argv[1])\nfrom judge import pool\nimport judge_victim\npool.work(judge_victim.serve)\n")
    here = str(tmp_path)

    class Local(pool.Pool):
        def command(self):
            return [pool.sys.executable, str(runner), here]

    tests = str(pool.__file__).rsplit("/judge/", 1)[0]
    Local("victim", 1, 60, lambda *line: seen.append(line), {"PYTHONPATH": tests}).run([{"name": "job"}])
    ((_, samples, done),) = seen
    assert done["done"]
    return samples


def test_a_sample_that_kills_its_process_is_recorded_and_the_rest_still_runs(tmp_path):
    samples = killed(tmp_path, alone=True)
    assert [(s["sample"], s["verdict"]) for s in samples] == [(0, "agree"), (1, "agree"), (2, "wrong"), (3, "agree")]
    assert "crash" in samples[2]["what"]


def test_samples_that_kill_their_process_only_together_are_recorded(tmp_path):
    samples = killed(tmp_path, alone=False)
    assert [(s["sample"], s["verdict"]) for s in samples] == [(0, "agree"), (1, "agree"), (2, "agree"), (3, "agree"), (2, "wrong")]
    assert "in one graph, not alone" in samples[-1]["what"]


def test_results_of_other_code_are_not_taken_up(monkeypatch, capsys):
    monkeypatch.setattr(opinfo.revision, "code", lambda: "abc")
    done = {"a": {"commit": "abc"}, "b": {"commit": "abc+"}, "c": {}}
    assert opinfo.ours(done) == {"a": {"commit": "abc"}}
    assert "2 results of other code are run again" in capsys.readouterr().err


def test_a_count_that_rises_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(counts, "HERE", tmp_path)
    row = counts.row(3, 1, 0, {"aten.mm.default": 1})
    counts.write("x", {"add float32 forward": row}, {"aten.mm.default": "a product"}, partial=False)
    assert counts.load("x") == {"reasons": {"aten.mm.default": "a product"}, "rows": {"add float32 forward": row}}
    assert counts.rises("x", {"add float32 forward": row}) == []
    (said,) = counts.rises("x", {"add float32 forward": counts.row(3, 1, 0, {"aten.mm.default": 2})})
    assert said.startswith("add float32 forward: external 2, was 1")
    assert counts.rises("x", {"sub float32 forward": row}) != []




def test_a_row_that_was_not_counted_or_of_other_samples_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(counts, "HERE", tmp_path)
    row = counts.row(3, 1, 0, {})
    assert counts.rises("x", {"add float32 forward": row}) != []  # nothing is recorded at all
    counts.write("x", {"add float32 forward": row, "sub float32 forward": row}, {}, partial=False)
    (said,) = counts.rises("x", {"add float32 forward": counts.row(2, 1, 0, {}), "sub float32 forward": row})
    assert said.startswith("add float32 forward: 2 samples, was 3")
    assert counts.rises("x", {"add float32 forward": row}) == []
    assert counts.rises("x", {"add float32 forward": row}, whole=True) == ["sub float32 forward: recorded, and not counted now"]


def test_every_operator_is_counted_forward_and_backward():
    jobs = list(first.jobs())
    assert {j["op"] for j in jobs} == {name for name, op in opinfo.database().items() if op.supported_dtypes("cpu")}
    assert len({(j["op"], j["direction"]) for j in jobs}) == len(jobs)


def test_the_first_sample_that_compiles_is_counted(monkeypatch):
    class Shy(doors.Torch):
        """Counts every graph but those of the first sample, which it refuses."""

        def below_dynamo(self, function):
            def counting(graph, inputs):
                if asked == ["below"]:
                    raise RuntimeError("no")
                self.counts.graphs += 1
                return doors._nop(graph, inputs)

            asked.append("below")
            return doors.aot_function(function, fw_compiler=counting, keep_inference_input_mutations=True)

        def backend(self):
            return "eager"

    asked, said = [], []
    monkeypatch.setattr(doors, "door", {"oxyfuel": Shy("shy")}.get)
    first.serve({"op": "atan2", "dtype": "float32", "direction": opinfo.FORWARD}, said.append)
    assert [s["sample"] for s in said if "sample" in s] == [1]


def test_a_record_is_written_for_whole_runs_and_said_on_the_page(tmp_path, monkeypatch):
    page = tmp_path / "torch.md"
    page.write_text(f"before\n{record.BEGIN}\nold\n{record.END}\nafter\n")
    monkeypatch.setattr(record, "RECORD", tmp_path / "judge.json")
    monkeypatch.setattr(record, "PAGE", page)
    monkeypatch.setattr(record, "ROOT", tmp_path)
    record.write("programs", record.programs(0, 30, collections.Counter(agree=26, skip=3, wrong=1, kernels=9)))
    line = {"op": "add", "dtype": "float32", "direction": "forward", "samples": 5, "agree": 4, "skipped": [{}], "wrong": [], "uncompiled": [1]}
    record.write("opinfo", record.operators([line, line | {"op": "sub", "commit": "abc"}]))
    found = record.json.loads((tmp_path / "judge.json").read_text())
    assert (found["programs"]["compared"], found["programs"]["skipped"], found["programs"]["seeds"]) == (27, 3, [0, 29])
    assert found["opinfo"]["commits"] == {"unknown": 1, "abc": 1}
    assert (found["opinfo"]["operators"], found["opinfo"]["agree"], found["opinfo"]["uncompiled"]) == (2, 8, 2)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "27 compared (seeds 0 to 29), 1 wrong; 3 more skipped" in text
    with pytest.raises(SystemExit, match="whole"):
        models.main(argparse.Namespace(model=["gpt2"], way=None, record=True, backend="oxyfuel", workers=0, patience=1, bless=False))


def test_the_page_says_what_the_record_says():
    whole = record.json.loads(record.RECORD.read_text()) if record.RECORD.exists() else {}
    page = record.PAGE.read_text()
    assert record.replaced(page, record.sentences(whole)) == page
    if p := whole.get("programs"):
        assert p["compared"] >= 10_000 and p["wrong"] == 0
    for suite in ("opinfo", "models"):
        assert whole.get(suite, {}).get("wrong", 0) == 0


def test_a_commit_is_named_and_a_changed_tree_is_told(tmp_path):
    if not shutil.which("git"):
        return

    def git(*args):
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org", *args], check=True, capture_output=True)

    assert revision.of(tmp_path) == "unknown"
    git("init", "-q")
    (tmp_path / "Cargo.toml").write_text("1")
    (tmp_path / "page.md").write_text("1")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    before = revision.of(tmp_path)
    (tmp_path / "page.md").write_text("2")
    assert revision.of(tmp_path) == before and len(before) >= 7
    (tmp_path / "Cargo.toml").write_text("2")
    assert revision.of(tmp_path) == before + "+"


def test_kinds():
    assert [grammar.kind(d) for d in (torch.bfloat16, torch.int8, torch.bool)] == ["float", "int", "bool"]


@pytest.mark.parametrize("text, wide", [("x.to(torch.bfloat16)", True), ("x.half()", True), ("x.to(torch.int64)", False)])
def test_the_reference_run_is_in_float64(text, wide):
    with verdict.InDouble():
        assert (eval(text, {"x": torch.ones(2, dtype=torch.float64), "torch": torch}).dtype == torch.float64) == wide


def share_line(samples, **external):
    calls = {f"aten.{t}.default": {"count": n, "reason": "not in the table"} for t, n in external.items()}
    return {"direction": "forward", "samples": samples, "external": calls}


def test_the_share_counts_samples_of_core_operators():
    line = share_line
    lines = [line(10), line(10, sort=4), line(10, mm=7, sort=9), line(5, linalg_eig=5), line(8, topk=20), line(9, sort=1) | {"direction": "gradient"}]
    base, external, outside, inside = share.of(lines)
    assert (base, external) == (10 + 10 + 3 + 0 + 8, 4 + 3 + 8)
    assert outside == {"products": 7, share.NOT_CORE: 5}
    assert inside == {"aten.sort.default": 7, "aten.topk.default": 8}


def test_the_share_leaves_out_nothing_else():
    # What torch makes no graph of is left to torch; what cannot be compared says nothing.
    lines = [share_line(10) | {"uncompiled": [1, 2, 3]}, share_line(10) | {"skipped": [{"sample": 0, "what": ""}]}]
    assert share.of(lines) == (19, 3, {}, {share.NO_GRAPH: 3})
    # Complex numbers are no family of their own.
    host = {"aten.slice.Tensor": {"count": 4, "reason": "`self` is a tensor only the host understands"}}
    assert share.of([share_line(6) | {"external": host}])[:2] == (6, 4)
    size = {"operator.ge": {"count": 4, "reason": "not in the table"}, "aten.ge.Tensor": {"count": 1, "reason": "not in the table"}}
    assert share.of([share_line(6) | {"external": size}])[:2] == (2, 1)


def test_random_operators_are_counted_with_numbers_of_ours():
    line = share_line(10, bernoulli=10) | {"skipped": [{"sample": 4, "what": ""}]}
    assert share.of([line])[:2] == (9, 9)
    own = {"external": {"aten.sort.default": {"count": 2, "reason": "not in the table"}}, "failed": [4, 5]}
    base, external, _, inside = share.of([line | {"own_random": own}])
    assert (base, external, inside) == (9, 3, {"aten.sort.default": 2, share.NOT_OURS: 1})
    assert share.of([line | {"own_random": {"external": {}, "failed": []}}])[:2] == (9, 0)
    assert share.draws({"aten.rand_like.default": 1}) and not share.draws({"aten.mm.default": 1})


def test_the_share_is_judged_and_told():
    found = share.figures([share_line(1000, sort=60, mm=100)])
    assert (found["samples"], found["without_torch"], share.met(found)) == (900, 840, False)
    assert share.met(share.figures([share_line(1000, sort=50)])) and share.met(share.figures([]))
    text = share.page(found)
    assert "840 of the 900 forward samples" in text and "93.3% (bar 95%)" in text
    assert "| products | 100 |" in text and "| `aten.sort.default` | 60 |" in text


def test_counts_keep_the_share_of_the_last_whole_run(tmp_path, monkeypatch):
    monkeypatch.setattr(counts, "HERE", tmp_path)
    found = share.figures([share_line(100, sort=4)])
    counts.write("opinfo", {"add float32 forward": counts.row(1, 1, 0, {})}, {}, partial=False, shared=found)
    assert counts.load("opinfo")["share"] == found
    counts.write("opinfo", {"sub float32 forward": counts.row(1, 1, 0, {})}, {}, partial=True)
    assert counts.load("opinfo")["share"] == found
    assert share.sentence(found) in counts.operators()


def test_what_draws_is_counted_twice():
    """Once as it is compared, with eager's numbers, and once as users have it."""
    lines = []
    job = {"op": "bernoulli", "dtype": "float32", "direction": "forward", "backend": "oxyfuel", "limit": 3, "seed": 0, "together": 2}
    done = opinfo.serve(job, lines.append)
    assert any("aten.bernoulli" in target for said in lines for target in said.get("external", {}))
    assert done["own_random"] == {"external": {}, "failed": []}
    line = opinfo.summarise(job, [said for said in lines if "sample" in said], done | {"seconds": 0.0})
    base, external, _, _ = share.of([line])
    assert base == line["samples"] - len(line["skipped"]) > 0 and external == 0
