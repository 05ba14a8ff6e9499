"""Many programs at once: bounded, leaving nothing behind, and without a verdict where a worker dies."""

import asyncio
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cascade_jax.reward.code import Code
from cascade_jax.reward.sandbox import Limits, SandboxBroken
from cascade_jax.reward.sandbox.judge import Case, Submission, judge
from cascade_jax.reward.sandbox.pool import SandboxPool

DOUBLE = Submission("print(int(input()) * 2)")
TESTS = [Case("3\n", "6\n")]


def test_five_hundred_programs_leave_nothing(isolation: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mark = str(secrets.randbelow(10**6) + 10**6)
    before, files = set(children()), len(os.listdir("/proc/self/fd"))
    sources = [
        "open('left', 'w').write('x'); print(int(input()) * 2)",
        f"import os\nif os.fork() == 0:\n  os.setsid()\n  os.execvp('sleep', ['sleep', '{mark}'])\n"
        "print(int(input()) * 2)",
        "print(int(input()) * 2)",
        "import os; os.kill(os.getpid(), 9)",
        "syntax error",
    ]
    pool = SandboxPool()
    with ThreadPoolExecutor(8) as threads:
        jobs = [threads.submit(pool.run, judge, Submission(sources[i % 5]), TESTS) for i in range(500)]
        passed = sum(job.result().scores == (1.0,) for job in jobs)
    pool.close()
    assert passed == 300
    assert os.listdir(tmp_path) == []
    assert set(children()) <= before and len(os.listdir("/proc/self/fd")) <= files
    assert not any(mark.encode() in line for line in command_lines())


def test_more_than_the_queue_holds_are_held_back():
    pool, gate, begun = SandboxPool(workers=2, queue=1), threading.Event(), []

    def work(i: int) -> int:
        begun.append(i)
        gate.wait(20)
        return i

    with ThreadPoolExecutor(6) as threads:
        jobs = [threads.submit(pool.run, work, i) for i in range(6)]
        deadline = time.monotonic() + 10
        while len(begun) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert len(begun) == 2 and pool._executor._work_queue.qsize() == 1
        gate.set()
        assert [job.result() for job in jobs] == list(range(6))
    pool.close()
    with pytest.raises(ValueError, match="workers=0"):
        SandboxPool(workers=0)


def test_asyncio_goes_on_while_programs_run(isolation: None):
    pool, ticks = SandboxPool(workers=2, queue=2), []

    async def tick() -> None:
        while True:
            ticks.append(1)
            await asyncio.sleep(0.01)

    async def main() -> list:
        ticker = asyncio.create_task(tick())
        found = await asyncio.gather(*(pool.run_async(judge, DOUBLE, TESTS) for _ in range(12)))
        ticker.cancel()
        return found

    assert [judgement.scores for judgement in asyncio.run(main())] == [(1.0,)] * 12
    assert len(ticks) > 3
    pool.close()


def test_a_killed_worker_gives_no_verdict(isolation: None, row: Callable, sample: Callable):
    verifier = Code(limits=Limits(seconds=20.0))
    asked = row("code", unit_tests={"inputs": ["1"], "outputs": ["1"], "fn_name": None})
    before = set(children())

    def kill() -> None:
        deadline = time.monotonic() + 15
        while not (new := set(children()) - before) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)
        for pid in new:
            os.kill(pid, 9)

    killer = threading.Thread(target=kill)
    killer.start()
    verdict = verifier.verify(asked, sample("```python\nimport time\ntime.sleep(15)\nprint(1)\n```"))
    killer.join()
    assert verdict.no_verdict is not None and "died" in verdict.no_verdict and verdict.reward != verdict.reward
    assert verifier.verify(asked, sample("```python\nprint(1)\n```")).reward == 1.0
    verifier.close()


def test_over_a_ray_cluster(isolation: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray", reason="needs Ray (pip install ray)")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        pool = SandboxPool(address="auto", workers=2)
        assert pool.run(judge, DOUBLE, TESTS).scores == (1.0,)
        assert pool.run(judge, Submission("print(7)"), TESTS).scores == (0.0,)
        with pytest.raises(SandboxBroken, match="has died"):
            pool.run(_end)
        pool.close()
    finally:
        ray.shutdown()


def _end() -> None:
    os.kill(os.getpid(), 9)


def children() -> list[int]:
    """Processes that this one has started, zombies too."""
    return [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]


def command_lines() -> list[bytes]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:
            continue
    return lines
