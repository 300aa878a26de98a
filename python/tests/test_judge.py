"""The judge itself: it must find what is wrong, survive a crash, and shrink."""

import pytest
import torch

from judge import counts, doors, grammar, opinfo, pool, program, programs, verdict


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


def test_a_sample_that_kills_its_process_is_recorded_and_the_rest_still_runs(tmp_path, monkeypatch):
    (tmp_path / "judge_victim.py").write_text(
        "import os\ndef serve(job, say):\n for i in range(job['from'], 4):\n  say({'at': i})\n  if i == 2: os.abort()\n  say({'sample': i, 'verdict': 'agree'})\n return {}\n"
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
    assert [s["verdict"] for s in samples] == ["agree", "agree", "wrong", "agree"]
    assert "crash" in samples[2]["what"] and done["done"]


def test_a_count_that_rises_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(counts, "HERE", tmp_path)
    row = counts.row(3, 1, 0, {"aten.mm.default": 1})
    counts.write("x", {"add float32 forward": row}, {"aten.mm.default": "a product"}, partial=False)
    assert counts.load("x") == {"reasons": {"aten.mm.default": "a product"}, "rows": {"add float32 forward": row}}
    assert counts.rises("x", {"add float32 forward": row}) == []
    (said,) = counts.rises("x", {"add float32 forward": counts.row(3, 1, 0, {"aten.mm.default": 2})})
    assert said.startswith("add float32 forward: external 2, was 1")
    assert counts.rises("x", {"sub float32 forward": row}) != []


def test_kinds():
    assert [grammar.kind(d) for d in (torch.bfloat16, torch.int8, torch.bool)] == ["float", "int", "bool"]


@pytest.mark.parametrize("text, wide", [("x.to(torch.bfloat16)", True), ("x.half()", True), ("x.to(torch.int64)", False)])
def test_the_reference_run_is_in_float64(text, wide):
    with verdict.InDouble():
        assert (eval(text, {"x": torch.ones(2, dtype=torch.float64), "torch": torch}).dtype == torch.float64) == wide
