"""Verdicts on programs: right ones pass, wrong ones fail, and none can pass without the right output."""

import asyncio
import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cascade_jax.reward.code import Code, last_block
from cascade_jax.reward.competitive import Competitive, problem_score
from cascade_jax.reward.sandbox import Limits
from cascade_jax.reward.sandbox.checkers import read_result, same_tokens, same_values
from cascade_jax.types import Verdict

SECRET = secrets.token_hex(8)


@pytest.fixture(scope="module")
def code(isolation: None) -> Iterator[Code]:
    verifier = Code(limits=Limits(seconds=5.0))
    yield verifier
    verifier.close()


@pytest.fixture
def judged(code: Code, row: Callable, sample: Callable) -> Callable[..., Verdict]:
    def run(
        source: str, inputs: list, outputs: list, *, fn_name: str | None = None, tag: str = "python", **fields: Any
    ):
        tests = {"inputs": inputs, "outputs": outputs, "fn_name": fn_name}
        answer = sample(f"Here it is.\n```{tag}\n{source}\n```\nThat is all.")
        return code.verify(row("code", unit_tests=tests, **fields), answer)

    return run


def test_stdin_style_stops_at_the_first_failure(judged: Callable):
    inputs, outputs = ["1\n", "2\n", "-3\n", "8"], ["2\n", "4", "-6\n\n", "16"]
    right = judged("print(int(input()) * 2)", inputs, outputs)
    assert (right.reward, right.components["fraction"], right.no_verdict) == (1.0, 1.0, None)
    partly = judged("n = int(input())\nprint(n * 2 if n > 0 else 7)", inputs, outputs)
    assert (partly.reward, partly.components["fraction"]) == (0.0, 0.5)
    assert (partly.info["failure"], partly.info["test"]) == ("a wrong output", 2)
    for source, failure in (
        ("print(", "does not compile"),
        ("raise SystemExit(4)", "status 4"),
        ("1 / 0", "ZeroDivisionError"),
        ("", "a wrong output"),
    ):
        verdict = judged(source, inputs, outputs)
        assert verdict.reward == 0.0 and verdict.no_verdict is None and failure in verdict.info["failure"]


@pytest.mark.parametrize(
    "source",
    [
        "import sys\ndef main():\n  n = int(sys.stdin.buffer.readline())\n  print(2 * n)\n"
        "if __name__ == '__main__':\n  main()",
        "import atexit\nn = int(input())\natexit.register(lambda: print(2 * n))",
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(2**26)\n"
        "threading.Thread(target=lambda: print(2 * int(input()))).start()",
        "n = int(open(0).read())\nprint(n + n)\nexit()",
        "import os\nos.write(1, str(2 * int(os.read(0, 99))).encode())\nos._exit(0)",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n  n: int\nprint(A(int(input())).n * 2)",
        "print(Counter(input().split()).total() and 4)",
    ],
)
def test_the_ways_that_programs_of_contests_are_written(judged: Callable, source: str):
    verdict = judged(source, ["2\n"], ["4\n"])
    assert verdict.reward == 1.0, verdict


def test_function_style(judged: Callable):
    inputs, outputs = ["[1, 2]\n3", "[]\n0"], ["[1, 2, 3]", "[0]"]
    for source in (
        "def join(a, b): return a + [b]",
        "class Solution:\n  def join(self, a: List[int], b: int) -> List[int]:\n    print('noise'); return (*a, b)",
    ):
        assert judged(source, inputs, outputs, fn_name="join").reward == 1.0
    for source in (
        "def join(a, b): return a",
        "def join(a, b): print(a + [b])",
        "def other(a, b): return a + [b]",
        "class E:\n  def __eq__(self, other): return True\ndef join(a, b): return E()",
        "class L(list):\n  def __eq__(self, other): return True\ndef join(a, b): return L()",
        "class S(str):\n  def __repr__(self): return '[1, 2, 3]'\ndef join(a, b): return S()",
    ):
        verdict = judged(source, inputs, outputs, fn_name="join")
        assert verdict.reward == 0.0 and verdict.no_verdict is None


FORGERIES = {
    "exits": "import os\nos._exit(0)",
    "exits at import": "import sys\nsys.exit(0)",
    "exits at the end": "import atexit, os\natexit.register(os._exit, 0)",
    "markers": "print('OK\\nPASSED\\nran 0 no 0 0.1 0 0\\n1.0\\ntrue')",
    "builtins": "import builtins\nfor n in ('print', 'len', 'open', 'exec', 'isinstance', 'ValueError'):\n"
    "  setattr(builtins, n, lambda *a, **k: True)",
    "json": "import json, sys, marshal\n"
    "json.loads = json.dumps = marshal.loads = marshal.dumps = lambda *a, **k: True\n"
    "class O:\n  def __eq__(s, o): return True\n  def __getattr__(s, n): return lambda *a, **k: s\nsys.stdout = O()",
    "descriptors": "import os\nline = b'ran 0 no 0 0.1 5 0\\nright'\n"
    "for fd in range(64):\n  try: os.write(fd, (len(line)).to_bytes(4, 'big') + line)\n  except OSError: pass",
    "resident": "import sys\nf = sys._getframe()\nwhile f:\n  for n, v in list(f.f_globals.items()):\n"
    "    if callable(v): f.f_globals[n] = lambda *a, **k: 0\n  f = f.f_back",
    "memory": "import gc\nfor o in gc.get_objects():\n  try: t = repr(o)\n  except Exception: continue\n"
    "  i = t.find('right')\n  if i >= 0: print(t[i:i+21])",
    "maps": "import re\nfor p in ('self', '1'):\n  try:\n    for l in open(f'/proc/{p}/maps'):\n"
    "      a, b = (int(x, 16) for x in l.split()[0].split('-'))\n"
    "      try:\n        f = open(f'/proc/{p}/mem', 'rb'); f.seek(a); d = f.read(b - a)\n"
    "      except (OSError, OverflowError, ValueError): continue\n"
    "      for m in re.findall(rb'right[0-9a-f]{16}', d): print(m.decode())\n  except OSError: pass",
    "files": "import os\nfor d, _, fs in (x for top in ('/tmp', '/dev/shm', '/etc', '/var') for x in os.walk(top)):\n"
    "  for f in fs:\n    try: t = open(os.path.join(d, f), 'rb').read(99999)\n    except OSError: continue\n"
    "    i = t.find(b'right')\n    if i >= 0: print(t[i:i+21].decode())",
    "kills": "import os\nfor p in (os.getppid(), 1, -1):\n  try: os.kill(p, 9)\n  except OSError: pass",
    "leaves one behind": "import os, time\nif os.fork() == 0:\n  os.setsid()\n"
    "  if os.fork() == 0:\n    while True: time.sleep(9)",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_no_verdict_can_be_forged(judged: Callable, name: str):
    verdict = judged(FORGERIES[name], ["5", "6"], [f"right{SECRET}", f"right{SECRET}2"])
    assert verdict.reward == 0.0 and verdict.no_verdict is None, verdict
    answer = json.dumps(f"right{SECRET}")
    verdict = judged(f"{FORGERIES[name]}\ndef f(x): return True", ["5"], [answer], fn_name="f")
    assert verdict.reward == 0.0 and verdict.no_verdict is None, verdict


def test_limits_are_the_programs_fault(judged: Callable):
    deaf = "import signal, time\nfor n in range(1, 32):\n  try: signal.signal(n, 1)\n  except OSError: pass\n"
    for source, failure in (
        ("while True: pass", "over the time limit"),
        (f"{deaf}time.sleep(60)", "over the time limit"),
        ("x = bytearray(2 << 30)", "MemoryError"),
        ("while True: print('x' * 99999)", "File too large"),
    ):
        verdict = judged(source, ["1"], ["1"], time_limit=1.0)
        assert verdict.reward == 0.0 and verdict.no_verdict is None and failure in verdict.info["failure"], verdict


@pytest.mark.parametrize(
    "source",
    [
        "n = int(input())\ntry:\n  for i in range(999): open(f'{i}', 'wb').write(bytes(60 << 20))\n"
        "except OSError: pass\nprint(n)",
        "import os, shutil\nprint(input())\nshutil.rmtree(os.getcwd())",
        "import os\nprint(input(), flush=True)\nwhile True:\n  try: os.fork()\n  except OSError: pass",
    ],
)
def test_what_a_program_spoils_for_its_next_tests_is_its_fault(judged: Callable, source: str):
    verdict = judged(source, ["1", "2", "3", "4", "5", "6"], ["1", "2", "3", "4", "5", "6"], time_limit=1.0)
    assert verdict.reward == 0.0 and verdict.no_verdict is None, verdict


def test_checkers(judged: Callable):
    tests = {"inputs": ["3\n"], "outputs": ["b\na\n0.333333\n"]}
    assert judged("print('b  a', 1 / 3)", **tests).reward == 1.0
    assert judged("print('b', 'a', 1 / 3, sep='\\n')", **tests, checker="lines").reward == 0.0
    assert judged("print('b', 'a', '0.333333 ', sep='\\n')", **tests, checker="lines").reward == 1.0
    assert judged("print('0.333333', 'b', 'a', sep='\\n')", **tests, checker="lines").reward == 0.0
    assert judged("print('0.333333', 'b', 'a', sep='\\n')", **tests, checker="unordered").reward == 1.0
    pair = "def check(input, output, answer):\n  a, b = map(int, output.split())\n  return a + b == int(input)"
    tests = {"inputs": ["9"], "outputs": ["4 5"], "checker": pair}
    assert judged("print(2, 7)", **tests).reward == 1.0
    for source in ("print(2, 6)", "print('9')", "class C:\n  pass\ndef check(*a): return 1.0\nprint(1, 1)"):
        verdict = judged(source, **tests)
        assert verdict.reward == 0.0 and verdict.no_verdict is None
    for checker in ("def check(input, output, answer): return 1 / 0", "nonsense", "def check(i, o, a): return 'yes'"):
        verdict = judged("print(2, 7)", **tests | {"checker": checker})
        assert verdict.no_verdict is not None and verdict.reward != verdict.reward


def test_what_is_compared_outside():
    assert same_tokens("1.0000001 x", "1.0 x") and not same_tokens("1.1", "1.0")
    assert not same_tokens("10000001.0", "10000000") and not same_tokens("1_0", "10") and same_tokens("007", "7")
    assert not same_tokens("nan", "1.5") and not same_tokens("1", "1 1") and not same_tokens("", "0")
    assert same_values((1, 2.0000001, {"a": None}), [1, 2, {"a": None}]) and not same_values(True, 1)
    assert same_values({1: "x"}, {"1": "x"}) and not same_values("1", 1) and not same_values(None, [])
    assert read_result(b'{"tuple": [1, {"dict": [[1, "x"]]}]}') == (1, {1: "x"})
    for text in (b"", b"[1", b"[" * 100_000, b'{"other": 1}', b'{"dict": [1]}', b'{"set": [[1]]}'):
        with pytest.raises(ValueError, match="cannot be read"):
            read_result(text)


def test_an_answer_without_a_program_is_wrong(code: Code, row: Callable, sample: Callable):
    asked = row("code", unit_tests={"inputs": ["1"], "outputs": ["1"], "fn_name": None})
    for text in ("", "print(1)", "```python\nprint(1)", "```\n```"):
        verdict = code.verify(asked, sample(text))
        assert verdict.reward == 0.0 and verdict.no_verdict is None
    assert code.verify(asked, sample(None)).no_verdict is not None
    assert code.verify(row("code"), sample("```\nprint(1)\n```")).no_verdict is not None
    assert code.verify(asked, sample("```\nprint(2)\n```\nNo:\n~~~py\nprint(1)\n~~~")).reward == 1.0
    assert last_block("````md\n```\nx\n```\n````") == ("md", "```\nx\n```\n")


def test_cpp(judged: Callable):
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    source = "#include <iostream>\nint main() { long long n; std::cin >> n; std::cout << n * n; }"
    assert judged(source, ["3", "4"], ["9", "16"], language="cpp").reward == 1.0
    assert judged(source, ["3", "4"], ["9", "17"], tag="cpp").components["fraction"] == 0.5
    broken = judged("int main() { return x; }", ["3"], ["9"], tag="c++")
    assert broken.reward == 0.0 and "not declared" in broken.info["failure"]


def test_subtasks(isolation: None, row: Callable, sample: Callable):
    tests = {f"{i}": {"input": f"{n}", "output": f"{abs(n)}", "group": "g"} for i, n in enumerate((1, 5, -2, -7))}
    subtasks = {
        "small": {"score": 30, "score_precision": 2, "aggregation": "min", "test_names": ["0", "1"]},
        "all": {"score": 70.0, "score_precision": 2, "aggregation": "min", "test_names": ["0", "1", "2", "3"]},
        "each": {"score": 10, "score_precision": 1, "aggregation": "sum", "test_names": ["2", "0", "3", "1"]},
    }
    problem = {"subtasks": subtasks, "all_tests": tests, "grader_files": {}, "compile": "", "run": ""}
    verifier = Competitive()

    def points(source: str, name: str, **more: Any) -> float:
        asked = row("competitive", problem={**problem, **more}, subtask=name, problem_id="p", language="python")
        verdict = verifier.verify(asked, sample(f"```python\n{source}\n```"))
        assert verdict.no_verdict is None and verdict.reward == verdict.info["points"] / subtasks[name]["score"]
        return verdict.info["points"]

    identity, right = "print(input())", "print(abs(int(input())))"
    assert [points(identity, name) for name in subtasks] == [30, 0, 5]
    assert [points(right, name) for name in subtasks] == [30, 70, 10]
    half = "def check(input, output, answer): return 1.0 if output.split() == answer.split() else 0.5"
    assert [points(identity, name, checker=half) for name in subtasks] == [30, 35, 7.5]
    assert problem_score([{"small": 30, "all": 0}, {"small": 0, "all": 35}]) == 65
    by_script = {"compile": "cp p.py answer.py", "run": "cat extra; python3 answer.py", "grader_files": {"extra": ""}}
    assert points(right, "all", **by_script) == 70
    missing = verifier.verify(row("competitive", subtask="all", problem_id="p"), sample("```\n1\n```"))
    assert missing.no_verdict is not None
    verifier.close()


def test_under_asyncio(code: Code, row: Callable, sample: Callable):
    asked = row("code", unit_tests={"inputs": ["1"], "outputs": ["1"], "fn_name": None})
    answers = [sample(f"```\nprint({i})\n```") for i in range(6)]

    async def judge_all() -> list[Verdict]:
        return await asyncio.gather(*(asyncio.to_thread(code.verify, asked, answer) for answer in answers))

    assert [verdict.reward for verdict in asyncio.run(judge_all())] == [0, 1, 0, 0, 0, 0]
