"""Jobs in worker processes that may die: a sample that kills its process is a result like any other.

A worker is `python -m judge worker MODULE`: it reads one job a line, and writes one line of JSON before each sample
(`{"at": k}`), one after it (`{"sample": k, ...}`), and `{"done": ...}` at the end of the job. When it dies or says
nothing for `patience` seconds, the sample that it was at is recorded as a crash and the job goes on behind it in a new
process. A worker that is at several samples of one graph says how many (`{"at": k, "together": n}`); when that kills it,
the job goes on with the same samples one by one, and if none of them falls alone, the first is recorded for all.
"""

import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]


class Pool:
    def __init__(self, module, workers, patience, see, environment=None):
        self.module, self.patience, self.see = module, patience, see
        # Workers find the judge wherever they are started.
        path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
        self.environment = {**os.environ, "PYTHONPATH": path, **(environment or {})}
        self.workers = workers

    def run(self, jobs):
        """Runs every job; `see(job, samples, done)` is called once for each, in one thread at a time."""
        todo = queue.Queue()
        for job in jobs:
            todo.put(job)
        lock = threading.Lock()
        threads = [threading.Thread(target=self._serve, args=(todo, lock), daemon=True) for _ in range(self.workers)]
        for t in threads:
            t.start()
        for t in threads:
            while t.is_alive():
                t.join(0.5)

    def _serve(self, todo, lock):
        process = None
        while True:
            try:
                job = todo.get_nowait()
            except queue.Empty:
                break
            samples, start, served = [], time.monotonic(), None
            skip, alone, fell = 0, 0, []
            while served is None:
                if process is None or process.poll() is not None:
                    process = self._start()
                more, (at, several), served = self._ask(process, {**job, "from": skip, "alone": alone})
                samples += more
                if served is None:
                    process.kill()
                    code = process.wait()
                    how = f"killed its process ({code})" if code != -9 else f"took more than {self.patience} s, or was killed"
                    if at is None:  # died before the first sample
                        served = {"error": f"the worker {how}"}
                        break
                    if several > 1:
                        fell.append((range(at, at + several), how))
                        skip, alone = at, at + several
                    else:
                        samples.append(_crash(at, how))
                        skip = at + 1
            for some, how in fell:
                if not any(s["sample"] in some and s["verdict"] == "wrong" for s in samples):
                    samples.append(_crash(some.start, f"{how} with the {len(some) - 1} behind it in one graph, not alone"))
            with lock:
                self.see(job, samples, {**served, "seconds": round(time.monotonic() - start, 2)})
        if process is not None:
            process.stdin.close()
            process.wait()

    def command(self):
        return [sys.executable, "-m", "judge", "worker", self.module]

    def _start(self):
        return subprocess.Popen(
            self.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if not os.environ.get("JUDGE_STDERR") else None,
            text=True,
            env=self.environment,
        )

    def _ask(self, process, job):
        """One job: its sample lines, the sample it was at when it fell silent, and its last line (None: it died)."""
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        except OSError:
            return [], (None, 1), None
        samples, at = [], (None, 1)
        timer = None

        def expire():
            process.kill()

        try:
            while True:
                # Before the first sample a worker may have all of torch to load.
                timer = threading.Timer(self.patience * (5 if at[0] is None else 1), expire)
                timer.daemon = True
                timer.start()
                line = process.stdout.readline()
                timer.cancel()
                if not line:
                    return samples, at, None
                try:
                    said = json.loads(line)
                except ValueError:  # a library that prints
                    continue
                if "at" in said:
                    at = (said["at"], said.get("together", 1))
                elif "sample" in said:
                    samples.append(said)
                elif "done" in said:
                    return samples, at, said
        finally:
            if timer is not None:
                timer.cancel()


def _crash(at, how):
    return {"sample": at, "verdict": "wrong", "what": f"crash: {how}", "blame": "compiler"}


def work(serve):
    """The worker's side: `serve(job, say)` yields nothing and says one dictionary at a time."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def say(line):
        pipe.write(json.dumps(line) + "\n")
        pipe.flush()

    for line in sys.stdin:
        job = json.loads(line)
        say({"done": True, **(serve(job, say) or {})})
