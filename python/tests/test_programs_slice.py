"""Random torch programs against eager; `cargo xtask programs` runs as many as it is told."""

from judge import doors, programs

PROGRAMS = 120


def test_random_programs_agree_with_eager():
    door = doors.door("oxyfuel")
    judged = 0
    for seed in range(1_000_000, 1_000_000 + PROGRAMS):
        program = programs.make(seed)
        said = programs.judge(program, door)
        assert said.verdict != "wrong", f"seed {seed} [{said.blame}] {said.what}\n{program.script('oxyfuel')}"
        judged += said.verdict == "agree"
    # A few are skipped: eager itself refuses them.
    assert judged > 0.9 * PROGRAMS
