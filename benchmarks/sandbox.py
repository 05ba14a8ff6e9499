"""What the sandbox costs: programs per second beside bare interpreters, and 40 tests of one answer beside one test.

    python -m benchmarks.sandbox [--programs=200] [--rounds=5]

Both sides of a ratio are measured in turns, in this run, so that what else the machine does hits both; the median of
the rounds is printed. The bare pool starts `python3 -I -S` with the same interpreter, without any isolation.
"""

import os
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from absl import app, flags

from cascade_jax.reward.sandbox.backend import chosen
from cascade_jax.reward.sandbox.judge import Case, Submission, judge
from cascade_jax.reward.sandbox.pool import SandboxPool

FLAGS = flags.FLAGS
flags.DEFINE_integer("programs", 200, "short programs in each round")
flags.DEFINE_integer("rounds", 5, "rounds, of which the median counts")

_SOURCE = "n = int(input())\nprint(sum(i * i for i in range(n)))\n"
_TESTS = [Case(f"{n}\n", f"{sum(i * i for i in range(n))}\n") for n in range(40)]


def bare(python: str) -> bool:
    """One test by a process without isolation."""
    done = subprocess.run([python, "-I", "-S", "-c", _SOURCE], input=b"30\n", capture_output=True, check=True)
    return done.stdout.decode().split() == _TESTS[30].answer.split()


def sandboxed(count: int) -> bool:
    """`count` tests of one answer in one sandbox."""
    return judge(Submission(_SOURCE), _TESTS[30:31] if count == 1 else _TESTS[:count]).scores == (1.0,) * count


def seconds(work: Callable[[], bool]) -> float:
    """Wall clock of work that must come out right."""
    begun = time.perf_counter()
    if not work():
        raise RuntimeError("a program did not come out right, so its time means nothing")
    return time.perf_counter() - begun


def main(_: list[str]) -> None:
    backend, workers = chosen(), 2 * len(os.sched_getaffinity(0))
    print(f"{backend}; {workers} at once on {len(os.sched_getaffinity(0))} cores")
    count = FLAGS.programs
    pool = SandboxPool(workers=workers)
    rates: dict[str, list[float]] = {"bare": [], "sandbox": []}
    times: dict[int, list[float]] = {1: [], 40: []}
    with ThreadPoolExecutor(workers) as threads, ThreadPoolExecutor(workers) as callers:
        for _ in range(FLAGS.rounds):
            rates["bare"].append(count / seconds(lambda: all(threads.map(bare, [backend.python] * count))))
            asks = [partial(pool.run, sandboxed, 1)] * count
            rates["sandbox"].append(count / seconds(lambda asks=asks: all(callers.map(lambda ask: ask(), asks))))
            for tests, found in times.items():
                found.append(statistics.median(seconds(lambda n=tests: sandboxed(n)) for _ in range(15)))
    pool.close()
    bare_rate, rate = (statistics.median(rates[name]) for name in ("bare", "sandbox"))
    one, forty = (statistics.median(times[tests]) for tests in (1, 40))
    print(f"programs per second: bare {bare_rate:.0f}, sandbox {rate:.0f}, ratio {rate / bare_rate:.2f} (at least 0.5)")
    print(f"one answer: 1 test {one * 1e3:.1f} ms, 40 tests {forty * 1e3:.1f} ms, ratio {forty / one:.2f} (at most 3)")


if __name__ == "__main__":
    app.run(main)
