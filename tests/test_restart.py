"""The restart loop with real children: what is started again, what is not, and how signals travel through it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Each start adds a line to a file; the Nth one does what the Nth word says.
CHILD = """
import os, signal, sys, time
log, words = sys.argv[1], sys.argv[2:-1]
open(log, "a").write("start\\n")
word = words[min(open(log).read().count("start"), len(words)) - 1]
if word == "progress":
    os.makedirs("run/stages/sft", exist_ok=True)
    open("run/manifest.json", "w").write('{"stages": {}}')
    open("run/stages/sft/metrics.jsonl", "a").write("{}\\n")
    sys.exit(75)
if word == "wait":
    def stop(number, frame):
        open(log, "a").write(f"signal {number}\\n")
        sys.exit(75 if number == signal.SIGTERM else 0)
    signal.signal(signal.SIGTERM, stop), signal.signal(signal.SIGINT, stop)
    open(log, "a").write("ready\\n")
    time.sleep(60)
if word.startswith("-"):
    os.kill(os.getpid(), -int(word))
sys.exit(int(word))
"""


def loop(tmp_path: Path, *words: str, attempts: int = 2) -> subprocess.Popen:
    command = [sys.executable, "-m", "launch.restart", f"--attempts={attempts}", "--"]
    command += [sys.executable, "-c", CHILD, str(tmp_path / "log"), *words, "--workdir=run"]
    return subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )


def starts(tmp_path: Path) -> int:
    return (tmp_path / "log").read_text().count("start")


@pytest.mark.parametrize(
    ("words", "code", "count"),
    [
        (("75", "0"), 0, 2),
        (("-9", "75", "0"), 0, 3),
        (("137", "0"), 0, 2),
        (("2",), 2, 1),
        (("1",), 1, 1),
        (("-2",), 130, 1),  # a person's Ctrl-C
    ],
)
def test_what_is_started_again(tmp_path: Path, words: tuple[str, ...], code: int, count: int):
    child = loop(tmp_path, *words, attempts=5)
    said = child.communicate(timeout=60)[1]
    assert (child.returncode, starts(tmp_path)) == (code, count), said


def test_it_gives_up_without_progress_and_counts_anew_with_it(tmp_path: Path):
    child = loop(tmp_path, "75", "progress", "75", "progress", "75", "75", "0", attempts=2)
    said = child.communicate(timeout=60)[1]
    assert child.returncode == 1 and starts(tmp_path) == 6, said
    assert "Giving up: 2 attempts in a row ended (exit code 75) without a new step." in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 0)])
def test_a_signal_is_passed_on_once_and_ends_the_loop(tmp_path: Path, number: int, code: int):
    child = loop(tmp_path, "wait", "0")
    log, deadline = tmp_path / "log", time.monotonic() + 30
    while not (log.exists() and "ready" in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.send_signal(number)
    said = child.communicate(timeout=30)[1]
    assert child.returncode == code, said
    assert log.read_text().splitlines() == ["start", "ready", f"signal {number}"]


def test_a_signal_during_the_wait_ends_the_loop(tmp_path: Path):
    child = loop(tmp_path, "75", "75", "75", attempts=9)
    for line in child.stderr:
        if "again in 4 s" in line:
            break
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=1.9) == 75 and starts(tmp_path) == 2


def test_mistakes(tmp_path: Path):
    for arguments in ([], ["--attempts=0", "--", "true"], ["--", "/no/such/program"]):
        child = subprocess.run(
            [sys.executable, "-m", "launch.restart", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert child.returncode == 2 and child.stderr.startswith("error: "), child.stderr
