"""A guest in somebody's process: threads, forks, memory, interrupts."""

from __future__ import annotations

import concurrent.futures
import gc
import importlib
import json
import multiprocessing
import os
import pathlib
import threading
import time
import weakref
from collections.abc import Callable

import oxyfuel
import pytest
import torch
from torch import nn

from agree import compiled

# The package's attribute of this name is the function.
door = importlib.import_module("oxyfuel.backend")


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_eight_threads_on_one_model() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).eval()
    fast = compiled(model)
    inputs = [torch.randn(16, 32) for _ in range(8)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        fast(inputs[0])

    def work(number: int) -> None:
        with torch.no_grad():
            for _ in range(50):
                torch.testing.assert_close(fast(inputs[number]), expected[number])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_the_gil_is_released_while_kernels_run() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = x.sin().exp().tanh()
        return x

    fast = compiled(f, options={"threads": 1})
    x = torch.randn(1 << 21)
    fast(x)
    ticks = 0
    stop = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0)

    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks
    fast(x)
    during = ticks - before
    stop.set()
    thread.join()
    assert during > 10


def child(queue: multiprocessing.Queue, fast: object, x: torch.Tensor) -> None:
    torch.set_num_threads(1)
    queue.put(fast(x).sum().item())


def test_after_a_fork() -> None:
    fast = compiled(lambda x: (x + 1).relu())
    x = torch.randn(64)
    expected = fast(x).sum().item()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue, fast, x))
    process.start()
    assert queue.get(timeout=60) == expected
    process.join(60)
    assert process.exitcode == 0


def fresh(queue: multiprocessing.Queue) -> None:
    x = torch.arange(8.0)
    queue.put(torch.compile(lambda x: (x * 2 + 1).sum(), backend="oxyfuel")(x).item())


def test_in_a_spawned_process() -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=fresh, args=(queue,))
    process.start()
    assert queue.get(timeout=120) == 64.0
    process.join(60)
    assert process.exitcode == 0


def leaks_nothing(call: Callable[[], object], calls: int = 10_000) -> None:
    for _ in range(calls // 10):
        call()
    gc.collect()
    objects, memory = len(gc.get_objects()), resident()
    for _ in range(calls):
        call()
    gc.collect()
    assert len(gc.get_objects()) - objects < 50
    assert resident() - memory < 4 << 20


def test_nothing_leaks_over_ten_thousand_calls() -> None:
    fast = compiled(lambda x, w: ((x @ w).relu() + 1, x[1:], x.shape[0]))
    x, w = torch.randn(32, 32), torch.randn(32, 32)
    with torch.no_grad():
        leaks_nothing(lambda: fast(x, w))


def test_nothing_leaks_over_ten_thousand_steps_of_training() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 4))
    fast = compiled(model)
    x = torch.randn(8, 16)

    def step() -> None:
        fast(x).square().mean().backward()
        model.zero_grad()

    leaks_nothing(step)


def test_nothing_leaks_over_ten_thousand_large_outputs() -> None:
    fast = compiled(lambda x: (x + 1, x[:1] * 2), options={"threads": 1})
    # Just above what is ours to keep: ten gigabytes in all, in pages that are used again.
    x = torch.randn((1 << 18) + 64)
    with torch.no_grad():
        leaks_nothing(lambda: fast(x))


def test_inputs_are_not_held_after_a_call() -> None:
    fast = compiled(lambda x: x + 1)
    x = torch.randn(8)
    fast(x)
    seen = weakref.ref(x)
    del x
    gc.collect()
    assert seen() is None


def test_dropping_a_model_frees_it() -> None:
    model = nn.Linear(64, 64)
    fast = torch.compile(model, backend="oxyfuel")
    fast(torch.randn(4, 64)).sum().backward()
    seen = [weakref.ref(model), weakref.ref(model.weight)]
    del model, fast
    torch._dynamo.reset()
    gc.collect()
    assert [ref() for ref in seen] == [None, None]


def test_dropping_a_model_gives_its_memory_back() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0).cumsum(1).sum()

    small = compiled(f)
    small(torch.randn(8, 8))
    oxyfuel.trim()
    x = torch.randn(4096, 4096)
    torch._dynamo.reset()
    graphs = []
    original = door.compile_graph

    def keep(*args: object) -> object:
        code = original(*args)
        graphs.append((weakref.ref(code), json.loads(code.run.explain())["memory"]["arena_bytes"]))
        return code

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(door, "compile_graph", keep)
        fast = compiled(f, dynamic=False)
        fast(x)
    ((code, arena),) = graphs
    assert arena >= x.nbytes
    held = resident()
    del fast
    torch._dynamo.reset()
    gc.collect()
    assert code() is None
    assert held - resident() > 0.9 * arena
    # Nothing was left to give back.
    assert oxyfuel.trim() == 0


def test_trim_gives_back_what_is_kept_for_later_calls() -> None:
    fast = compiled(lambda x: x + 1)
    x = torch.randn(1 << 24)
    y = fast(x)
    oxyfuel.trim()
    del y
    held = resident()
    assert oxyfuel.trim() >= x.nbytes
    assert held - resident() > 0.9 * x.nbytes
    assert oxyfuel.trim() == 0
    torch.testing.assert_close(fast(x), x + 1)


def test_an_exception_of_an_operator_arrives_as_it_is() -> None:
    # One that checks for itself: some versions of torch drop the check that stands beside `cholesky`.
    fast = compiled(lambda x: torch.linalg.cholesky_ex(x, check_errors=True).L + 1)
    with pytest.raises(torch.linalg.LinAlgError):
        fast(-torch.eye(3))
    torch.testing.assert_close(fast(torch.eye(3)), torch.eye(3) + 1)


def test_an_interrupt_in_an_operator_arrives() -> None:
    @torch.library.custom_op("oxyfuel_tests::interrupt", mutates_args=())
    def interrupt(x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    interrupt.register_fake(torch.empty_like)
    fast = compiled(lambda x: interrupt(x + 1))
    with pytest.raises(KeyboardInterrupt):
        fast(torch.randn(3))


def test_thread_counts_are_honoured_before_and_after_the_compile() -> None:
    before = torch.get_num_threads()
    x = torch.randn(1 << 18)
    try:
        torch.set_num_threads(1)
        fast = compiled(lambda x: x.sin())
        for threads in (1, 2, 1, 2):
            torch.set_num_threads(threads)
            torch.testing.assert_close(fast(x), x.sin())
    finally:
        torch.set_num_threads(before)


def names_of_threads(ours: int) -> list[str]:
    """The names of this process's threads, once `ours` are the runtime's.

    A thread names itself when it first runs, which may be after the call that started it has returned."""
    deadline = time.monotonic() + 30
    while True:
        tasks = f"/proc/{os.getpid()}/task"
        names = [pathlib.Path(tasks, task, "comm").read_text().strip() for task in os.listdir(tasks)]
        if sum(name.startswith("oxyfuel-") for name in names) >= ours or time.monotonic() > deadline:
            return names
        time.sleep(0.01)


def large(queue: multiprocessing.Queue, options: dict[str, object], ours: int) -> None:
    torch.set_num_threads(2)
    fast = torch.compile(lambda x: x.sin(), backend="oxyfuel", options=options)
    for _ in range(3):
        fast(torch.zeros(1 << 20))
    queue.put(names_of_threads(ours))


def test_torchs_threads_run_our_kernels_too() -> None:
    for options, ours in ({}, 0), ({"threads": 2}, 1):
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=large, args=(queue, options, ours))
        process.start()
        names = queue.get(timeout=120)
        process.join(60)
        assert sum(name.startswith("oxyfuel-") for name in names) == ours, names


def parallel_child(queue: multiprocessing.Queue, fast: object, x: torch.Tensor) -> None:
    queue.put((fast(x)[-1].item(), names_of_threads(1)))


def test_a_forked_child_has_threads_of_its_own() -> None:
    fast = compiled(lambda x: x.sin() + 1)
    x = torch.zeros(1 << 20)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        fast(x)
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        process = context.Process(target=parallel_child, args=(queue, fast, x))
        process.start()
        value, names = queue.get(timeout=60)
        process.join(60)
    finally:
        torch.set_num_threads(before)
    assert value == 1.0
    assert "oxyfuel-1" in names


def test_large_outputs_keep_their_pages() -> None:
    fast = compiled(lambda x: x + 1)
    x = torch.randn(1 << 20)
    places = set()
    for _ in range(20):
        y = fast(x)
        places.add(y.data_ptr())
        torch.testing.assert_close(y, x + 1)
        del y
    assert len(places) <= 2
    held = [fast(x) for _ in range(4)]
    assert len({y.data_ptr() for y in held}) == 4
    held[0].mul_(2)
    torch.testing.assert_close(held[1], x + 1)


def test_large_outputs_without_the_pool() -> None:
    x = torch.randn(1 << 20)
    torch.testing.assert_close(compiled(lambda x: x * 2, options={"output_pool": False})(x), x * 2)
