"""Random torch programs against eager, for a minute; `cargo xtask programs` runs as many as it is told."""

import time

from judge import doors, programs

SECONDS, MOST = 50, 120


def test_random_programs_agree_with_eager():
    door = doors.door("oxyfuel")
    start, judged = time.monotonic(), 0
    for seed in range(1_000_000, 1_000_000 + MOST):
        if time.monotonic() - start > SECONDS:
            break
        program = programs.make(seed)
        said = programs.judge(program, door)
        assert said.verdict != "wrong", f"seed {seed} [{said.blame}] {said.what}\n{program.script('oxyfuel')}"
        judged += said.verdict == "agree"
    assert judged
