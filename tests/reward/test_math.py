"""Math answers: the exact path, math-verify behind it, and answers that hang or blow up the checker and get killed."""

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cascade_jax.reward.math import MathAnswer, as_fraction, exactly_equal

HANGS = r"\boxed{9^{9^{9^{9}}}}"


@pytest.fixture(scope="module")
def verifier():
    with_workers = MathAnswer(workers=2)
    yield with_workers
    with_workers.close()


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("4", "4", True),
        ("4", "5", False),
        ("-3", "3", False),
        ("+3", "3", True),
        ("1,000", "1000", True),
        ("1/2", r"\frac{1}{2}", True),
        ("1/2", r"\dfrac12", True),
        (r"-\frac{1}{2}", "-2/4", True),
        ("1/2", "1/3", False),
        ("0.5", r"\frac12", True),
        ("0.333", "1/3", None),
        ("1/0", "1/0", True),
        ("1/0", "2", None),
        ("x + 1", "x+1", True),
        ("x", "y", None),
        ("9" * 300, "9" * 300, True),
        ("9" * 300, "8", None),
        ("007", "7", True),
        ("1,00", "100", None),
    ],
)
def test_exact_comparison(gold, answer, same):
    assert exactly_equal(gold, answer) is same


def test_as_fraction_reads_numbers_only():
    assert as_fraction("3/6") == as_fraction(r"\tfrac{1}{2}") == as_fraction("0.5")
    assert [as_fraction(text) for text in ("", "x", "1e5", "1.5/2", "--1", r"\frac{1}{0}", "1/2/3")] == [None] * 7


@pytest.mark.parametrize(
    ("gold", "text", "reward"),
    [
        ("4", r"so \boxed{4}.", 1),
        ("4", r"\boxed{3} no, \boxed{4}", 1),
        ("4", r"\boxed{4} no, \boxed{3}", 0),
        ("4", "4", 0),
        ("$4$", r"\boxed{\(4\)}", 1),
        (r"\boxed{4}", r"\boxed{4}", 1),
        ("4", r"\boxed{" + "1" * 2000 + "}", 0),
        ("4", r"\boxed{}", 0),
    ],
)
def test_the_last_box_counts_and_no_worker_is_needed(row, sample, gold, text, reward):
    fresh = MathAnswer()
    verdict = fresh.verify(row("math", expected_answer=gold), sample(text))
    assert verdict.reward == reward and verdict.no_verdict is None
    assert not fresh.pool._live


@pytest.mark.parametrize(
    ("gold", "answer", "reward"),
    [
        (r"2\sqrt{2}", r"\sqrt{8}", 1),
        (r"\{1,2\}", r"\{2,1\}", 1),
        ("(1,2)", "(2,1)", 0),
        ("5", "x=5", 1),
        ("x+1", "1+x", 1),
        ("0.333333333", "1/3", 1),
        ("4", r"4\sqrt(2)", 0),
        (r"4\sqrt{2}", r"4\sqrt(2)", 1),
        ("2^{-99}", "2^{-98}", 0),
        ("2^{-99}", r"\frac{1}{2^{99}}", 1),
        ("0", "10^{-9}", 0),
        ("1", r"1, 2, \ldots", 0),
        ("1, 2, 3", r"1, 2, 3, \ldots", 0),
        ("7", r"\frac{", 0),
        ("7", "hello", 0),
    ],
)
def test_algebra(verifier, row, sample, gold, answer, reward):
    verdict = verifier.verify(row("math", expected_answer=gold), sample(rf"\boxed{{{answer}}}"))
    assert verdict.no_verdict is None and verdict.reward == reward


def test_works_in_any_thread(verifier, row, sample):
    asked = row("math", expected_answer=r"2\sqrt{2}")
    answers = [sample(rf"\boxed{{{x}}}") for x in (r"\sqrt{8}", r"\sqrt{7}") * 4]
    with ThreadPoolExecutor(8) as executor:
        rewards = [v.reward for v in executor.map(lambda answer: verifier.verify(asked, answer), answers)]
    assert rewards == [1.0, 0.0] * 4


def test_hanging_answers_are_killed_together_and_the_pool_goes_on(row, sample):
    verifier = MathAnswer(workers=2, seconds=1.5)
    algebra = row("math", expected_answer=r"2\sqrt{2}")
    with ThreadPoolExecutor(2) as executor:  # both workers are up and warm
        assert all(
            v.reward == 1.0
            for v in executor.map(lambda _: verifier.verify(algebra, sample(r"\boxed{\sqrt{8}}")), range(2))
        )
    workers = {worker._process.pid for worker in verifier.pool._live}
    start = time.monotonic()
    with ThreadPoolExecutor(2) as executor:
        verdicts = list(
            executor.map(lambda _: verifier.verify(row("math", expected_answer="7"), sample(HANGS)), range(2))
        )
    assert time.monotonic() - start < 2 * 1.5 + 1.0
    for verdict in verdicts:
        assert verdict.no_verdict is not None and math.isnan(verdict.reward) and verdict.info["cause"] == "answer"
    assert not any(alive(pid) for pid in workers)
    assert verifier.verify(algebra, sample(r"\boxed{\sqrt{8}}")).reward == 1.0
    verifier.close()
    assert not verifier.pool._live


def test_a_hanging_gold_is_told_apart(row, sample):
    verifier = MathAnswer(workers=1, seconds=1.0)
    verdict = verifier.verify(row("math", expected_answer="9^{9^{9^{9}}}"), sample(r"\boxed{7}"))
    assert verdict.no_verdict is not None and verdict.info["cause"] == "gold"
    verifier.close()


def test_memory_is_capped(row, sample):
    verifier = MathAnswer(workers=1, seconds=4.0, megabytes=500)
    assert verifier.verify(row("math", expected_answer="x+1"), sample(r"\boxed{1+x}")).reward == 1.0
    (worker,) = verifier.pool._live
    with open(f"/proc/{worker._process.pid}/limits") as file:
        limit = next(line for line in file if line.startswith("Max address space"))
    assert limit.split()[3] == str(500 * 2**20)
    verdict = verifier.verify(row("math", expected_answer="7"), sample(r"\boxed{2^{10^{11}}}"))  # 12 GB as an integer
    assert verdict.reward != 1.0
    assert verdict.no_verdict is None or verdict.info["cause"] == "answer"
    verifier.close()


def test_a_worker_that_died_while_idle_is_replaced(row, sample):
    verifier = MathAnswer(workers=1)
    asked, answer = row("math", expected_answer="x+1"), sample(r"\boxed{1+x}")
    assert verifier.verify(asked, answer).reward == 1.0
    (worker,) = verifier.pool._live
    os.kill(worker._process.pid, signal.SIGKILL)
    worker._process.wait()
    assert verifier.verify(asked, answer).reward == 1.0
    verifier.close()


def test_rows_without_answer_and_samples_without_text(verifier, row, sample):
    assert verifier.verify(row("math"), sample(r"\boxed{1}")).no_verdict is not None
    assert verifier.verify(row("math", expected_answer="1"), sample(None)).no_verdict is not None
    assert verifier.verify(row("math", expected_answer="1"), sample("")).reward == 0.0


PARENT = """
    import sys, threading
    import numpy as np
    from cascade_jax.reward.math import MathAnswer
    from cascade_jax.types import Reply, Row, Sample
    def verify(gold, text):
        sample = Sample(np.zeros(1, np.int32), np.zeros(1, np.float32), np.ones(1, bool), "stop", 0, Reply(text))
        return verifier.verify(Row("a", "math", (), (), {"expected_answer": gold}), sample)
    verifier = MathAnswer(workers=2, seconds=2.0)
    busy = threading.Thread(target=verify, args=("7", HANGS), daemon=True)
    busy.start()
    verify("x+1", r"\\boxed{1+x}")
    while len(verifier.pool._live) < 2: pass
    print(*[worker._process.pid for worker in verifier.pool._live], flush=True)
"""


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_no_worker_outlives_its_trainer(end):
    program = textwrap.dedent(PARENT).replace("HANGS", repr(HANGS)) + (
        "sys.exit(0)" if end == "exit" else "busy.join()\nsys.stdin.read()"
    )
    trainer = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(120, trainer.kill)
    watchdog.start()
    workers = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(workers) == 2
    if end == "kill":
        trainer.kill()
    assert trainer.wait(60) == (0 if end == "exit" else -signal.SIGKILL)
    watchdog.cancel()
    deadline = time.monotonic() + 15  # the busy one is ended by its own timer
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))
    trainer.stdout.close()
    trainer.stdin.close()


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_do_not_import_jax(verifier, row, sample):
    verifier.verify(row("math", expected_answer="x+1"), sample(r"\boxed{1+x}"))
    worker = next(iter(verifier.pool._live))
    with open(f"/proc/{worker._process.pid}/maps") as file:
        mapped = file.read()
    assert "sympy" in mapped or "python" in mapped
    assert "jaxlib" not in mapped
