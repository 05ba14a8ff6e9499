"""Agentless repair: the format of answers, how they are applied, and grades by tests and by a judge on a real port."""

import difflib
import threading

import pytest

from cascade_jax.config import ConfigError, JudgeConfig
from cascade_jax.data.repair_prompts import FORMAT, rank_files, repair_messages, shown_files
from cascade_jax.domains import Domain, with_judge
from cascade_jax.reward import VERIFIERS, judge_prompts, judge_server
from cascade_jax.reward.endpoint import Endpoint
from cascade_jax.reward.swe.edits import Edit, Inapplicable, Unparsable, apply_edits, parse_edits
from cascade_jax.reward.swe.gold import difference, patched
from cascade_jax.reward.swe.instance import InstanceError

CALC = "def add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return add(a, a)\n"
RIGHT = CALC.replace("a - b", "a + b")
FILES = {"calc.py": CALC, "pkg/names.py": "A = 1\nB = 2\nA = 1\n"}
TESTS = "import calc\n\ndef test_add():\n    assert calc.twice(2) == 4\n"
FIELDS = {
    "relevant_file_contents": FILES,
    "problem_statement": "add subtracts",
    "test_files": {"test_calc.py": TESTS},
    "FAIL_TO_PASS": ["test_calc.py::test_add"],
    "patch": "".join(difflib.unified_diff(CALC.splitlines(True), RIGHT.splitlines(True), "a/calc.py", "b/calc.py")),
}


def block(*edits, path="calc.py", fence="```python"):
    parts = [f"### {path}"] if path else []
    for search, replace in edits:
        parts += ["<<<<<<< SEARCH", *search, "=======", *replace, ">>>>>>> REPLACE"]
    return "\n".join([fence, *parts, "```"])


MINUS, PLUS = ["    return a - b"], ["    return a + b"]
GOOD = block((MINUS, PLUS))


def test_several_files_and_blocks():
    answer = f"First.\n{block((MINUS, PLUS), (['def twice(a):'], ['def double(a):']))}\nThen.\n"
    answer += block((["B = 2"], ["B = 3", "C = 4"]), path="pkg/names.py", fence="```")
    assert parse_edits(answer)[2] == Edit("pkg/names.py", ("B = 2",), ("B = 3", "C = 4"))
    changed = apply_edits(FILES, parse_edits(answer))
    assert changed == {
        "calc.py": RIGHT.replace("twice", "double"),
        "pkg/names.py": "A = 1\nB = 3\nC = 4\nA = 1\n",
    }


def test_two_paths_in_one_block_and_edits_that_build_on_each_other():
    answer = block((MINUS, PLUS), (PLUS, ["    return b + a"]))[: -len("\n```")]
    answer += "\n\n### pkg/names.py\n<<<<<<< SEARCH\nB = 2\n=======\n>>>>>>> REPLACE\n```"
    changed = apply_edits(FILES, parse_edits(answer))
    assert changed == {"calc.py": CALC.replace("a - b", "b + a"), "pkg/names.py": "A = 1\nA = 1\n"}


@pytest.mark.parametrize(
    "answer",
    [
        "I cannot find it.",
        "return a + b",
        block((MINUS, PLUS)).replace("```", ""),  # no fence
        block((MINUS, PLUS))[:-4],  # the fence is not closed
        block((MINUS, PLUS), path=""),
        block((MINUS, PLUS)).replace("=======\n", ""),
        block((MINUS, PLUS)).replace(">>>>>>> REPLACE\n", ""),
        block((MINUS, PLUS)).replace("<<<<<<< SEARCH\n", ""),
        block(([], PLUS)),
        block((MINUS, PLUS)).replace("```python\n", "```python\nHere it is:\n"),
        "```python\n### calc.py\n```",
        FIELDS["patch"],
    ],
)
def test_answers_without_the_format(row, sample, answer):
    with pytest.raises(Unparsable):
        parse_edits(answer)
    verdict = VERIFIERS["swe_repair"]().verify(row("swe_repair", **FIELDS), sample(answer))
    assert (verdict.reward, verdict.no_verdict) == (-1.0, None)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (block((["return a - b"], ["return a + b"])), "0 times"),  # the indentation
        (block((["        return a - b"], PLUS)), "0 times"),
        (block((["    return a"], PLUS)), "0 times"),  # a part of a line
        (block((["A = 1"], ["A = 2"]), path="pkg/names.py"), "2 times"),
        (block((MINUS, PLUS), path="other.py"), "no file other.py"),
        (block((MINUS, PLUS), path="../calc.py"), "no file"),
        (block((MINUS, MINUS)), "changes nothing"),
        (block((MINUS, PLUS), (PLUS, MINUS)), "leave the code as it is"),
        (block((MINUS, PLUS), (MINUS, PLUS)), "0 times"),  # the second is gone with the first
    ],
)
def test_edits_that_cannot_be_made_earn_nothing(row, sample, answer, why):
    verdict = VERIFIERS["swe_repair"]().verify(row("swe_repair", **FIELDS), sample(answer))
    assert (verdict.reward, verdict.no_verdict) == (0.0, None)
    assert why in verdict.info["reason"]


def test_ends_of_lines_and_of_files_stay():
    assert apply_edits({"a": "x\r\ny\r\n"}, [Edit("a", ("x",), ("z", "w"))]) == {"a": "z\r\nw\r\ny\r\n"}
    assert apply_edits({"a": "x\ny"}, [Edit("a", ("y",), ("z",))]) == {"a": "x\nz"}
    assert apply_edits({"a": "x\n\fy\n"}, parse_edits(block((["\fy"], ["y"]), path="a"))) == {"a": "x\ny\n"}
    with pytest.raises(Inapplicable):
        apply_edits({"a": ""}, [Edit("a", ("x",), ("y",))])


def test_code_that_holds_fences_and_markers():
    files = {"a.md": "```\nx\n```\ntitle\n=======\n"}
    answer = "````\n### a.md\n<<<<<<< SEARCH\n```\nx\n```\n=======\n```\ny\n=======\n```\n>>>>>>> REPLACE\n````"
    assert apply_edits(files, parse_edits(answer)) == {"a.md": "```\ny\n=======\n```\ntitle\n=======\n"}
    same = answer.replace("````", "```")  # inside of an edit a fence is a line like any other
    assert apply_edits(files, parse_edits(same)) == {"a.md": "```\ny\n=======\n```\ntitle\n=======\n"}


def test_tests_tell(row, sample):
    verifier = VERIFIERS["swe_repair"]()
    asked = row("swe_repair", **FIELDS)
    right = verifier.verify(asked, sample(f"The sign.\n{GOOD}", reasoning="Hm."))
    assert (right.reward, right.components["tests_passed"]) == (1.0, 1.0)
    wrong = verifier.verify(asked, sample(block((MINUS, ["    return a * b + 1"]))))
    assert (wrong.reward, wrong.no_verdict, wrong.info["failed"]) == (0.0, None, ["test_calc.py::test_add"])
    endless = VERIFIERS["swe_repair"](tests_seconds=2).verify(asked, sample(block((MINUS, ["    while True: pass"]))))
    assert (endless.reward, endless.no_verdict) == (0.0, None)
    empty = verifier.verify(asked, sample(""))
    assert (empty.reward, empty.no_verdict) == (0.0, None)


def test_rows_that_cannot_be_graded_have_no_verdict(row, sample):
    verifier = VERIFIERS["swe_repair"]()
    for changed in ({"FAIL_TO_PASS": []}, {"relevant_file_contents": {}}, {"repository": "/nowhere"}):
        verdict = verifier.verify(row("swe_repair", **{**FIELDS, **changed}), sample(GOOD))
        assert verdict.no_verdict and verdict.reward != verdict.reward
    with pytest.raises(ValueError, match="allowed are tests, judge"):
        VERIFIERS["swe_repair"](grading="judges")


def test_from_several_threads(row, sample):
    verifier, asked, rewards = VERIFIERS["swe_repair"](), row("swe_repair", **FIELDS), {}

    def run(name, answer):
        rewards[name] = verifier.verify(asked, sample(answer)).reward

    answers = {"right": GOOD, "wrong": block((MINUS, ["    return 0"])), "none": "x"}
    threads = [threading.Thread(target=run, args=item) for item in answers.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rewards == {"right": 1.0, "wrong": 0.0, "none": -1.0}


@pytest.fixture
def judged(row, sample):
    def judged(answer, *replies, **settings):
        """The verdict of a judge that gives these replies in turn, and the questions that it was asked."""
        asked, given, lock = [], iter(replies), threading.Lock()

        def reply(messages):
            with lock:
                asked.append(messages[-1]["content"])
                return next(given)

        with judge_server.running(reply=reply) as server, Endpoint(JudgeConfig(url=server.url, retries=0)) as judge:
            verifier = VERIFIERS["swe_repair"](grading="judge", judge=judge, **settings)
            fields = {name: value for name, value in FIELDS.items() if name not in ("test_files", "FAIL_TO_PASS")}
            return verifier.verify(row("swe_repair", **fields), sample(answer)), asked

    return judged


def test_a_judge_tells(judged):
    other = block((MINUS, ["    return b + a"]))
    verdict, asked = judged(other, "It does.\nYES", "NO", "YES", "**YES**")
    assert (verdict.reward, verdict.no_verdict) == (0.75, None)
    sections = judge_prompts.read_sections(asked[0])
    assert sections["ISSUE"] == "add subtracts" and "+    return a + b" in sections["REFERENCE PATCH"]
    assert "-    return a - b\n+    return b + a" in sections["CANDIDATE PATCH"]
    assert judged(other, "NO", verdicts=1)[0].reward == 0.0
    assert judged(other, "YES or NO", verdicts=1)[0].no_verdict


def test_what_the_judge_need_not_be_asked(judged):
    """The gold repair, whatever way it is written; no change; no format."""
    whole = block((CALC.splitlines()[:2], RIGHT.splitlines()[:2]))
    for answer, reward in ((GOOD, 1.0), (whole, 1.0), (block((MINUS, MINUS)), 0.0), ("x", -1.0)):
        verdict, asked = judged(answer)
        assert (verdict.reward, verdict.no_verdict, asked) == (reward, None, [])


def test_a_judge_that_is_down_gives_no_verdict(row, sample):
    with judge_server.running() as server:
        url = server.url
    with Endpoint(JudgeConfig(url=url, retries=0)) as judge:
        verifier = VERIFIERS["swe_repair"](grading="judge", judge=judge)
        assert verifier.verify(row("swe_repair", **FIELDS), sample(block((MINUS, ["    return 1"])))).no_verdict
    unset = VERIFIERS["swe_repair"](grading="judge")
    assert unset.verify(row("swe_repair", **FIELDS), sample(block((MINUS, ["    return 1"])))).no_verdict
    with pytest.raises(ConfigError):
        Endpoint(JudgeConfig(url="nowhere"))


@pytest.mark.parametrize("seed", range(5))
def test_patches_are_applied_as_they_were_made(seed):
    """`patched` undoes `difference`, whatever the files."""
    import random

    rng = random.Random(seed)
    old = {
        name: "".join(rng.choice(("a\n", "b\n", "\n", "c d\n")) for _ in range(rng.randrange(1, 40))) for name in "xyz"
    }
    new = {}
    for name, text in old.items():
        lines = text.splitlines(True)
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(len(lines) + 1)
            lines[at : at + rng.randrange(3)] = [f"new {rng.randrange(9)}\n"] * rng.randrange(3)
        new[name] = "".join(lines)
    new = {name: text for name, text in new.items() if text != old[name]}
    assert patched(old, difference(old, new)) == new
    with pytest.raises(InstanceError):
        patched({name: f"other\n{text}" for name, text in old.items()}, difference(old, new))


def test_prompts_show_the_gold_files_and_what_a_search_finds():
    files = {f"m{i}.py": f"def f{i}():\n    return {i}\n" for i in range(9)}
    files |= {"net/retry.py": "def retry(times):\n    pass\n", "net/socket.py": "retry = 3\n"}
    given = {"longest": 10_000, "tokens": len, "seed": 0}
    issue = "retry gives up too early"
    assert rank_files(issue, files)[:2] == ["net/retry.py", "net/socket.py"]
    assert list(shown_files(issue, files, ["m3.py"], retrieved=0, **given)) == ["m3.py"]
    shown = shown_files(issue, files, ["m3.py"], retrieved=5, **given)
    assert len(shown) == 5 and {"m3.py", "net/retry.py", "net/socket.py"} <= set(shown)
    orders = {tuple(shown_files(issue, files, ["m3.py"], retrieved=5, **{**given, "seed": s})) for s in range(20)}
    assert len({order.index("m3.py") for order in orders}) == 5  # its place tells nothing
    [message] = repair_messages(issue, shown)
    assert FORMAT in message["content"] and all(f"### {path}\n" in message["content"] for path in shown)
    short = {**given, "longest": len(repair_messages(issue, {"m3.py": files["m3.py"]})[0]["content"]) + 30}
    assert list(shown_files(issue, files, ["m3.py"], retrieved=5, **short)) == ["m3.py"]
    with pytest.raises(ValueError, match="do not fit"):
        shown_files(issue, files, ["m3.py"], retrieved=5, **{**given, "longest": 10})
    with pytest.raises(ValueError, match="no file gone"):
        shown_files(issue, files, ["gone.py"], retrieved=5, **given)


def test_the_format_that_prompts_show_is_the_one_that_is_parsed():
    [edit] = parse_edits(FORMAT)
    assert edit == Edit("folder/file.py", ("    return a - b",), ("    return a + b",))


@pytest.mark.parametrize("grading", ["tests", "judge"])
def test_a_run_gives_the_verifier_its_judge(grading):
    domain = Domain("repair", {}, "swe_repair", True, VERIFIERS["swe_repair"](grading=grading))
    with with_judge({"repair": domain}, JudgeConfig()) as ready:
        assert (ready["repair"].verifier.judge is not None) == (grading == "judge")
