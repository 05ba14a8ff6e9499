"""Multiple choice: what each mode reads as an answer, and what commits to nothing."""

import pytest

from cascade_jax.reward.boxed import last_boxed
from cascade_jax.reward.mcqa import MultipleChoice

OPTIONS = [{"A": "Paris"}, {"B": "Rome"}, {"C": "Oslo"}, {"D": "New York"}]


def grade(row, sample, text, mode="strict_single_letter_boxed", gold="B", options=OPTIONS, **fields):
    asked = row("mcqa", options=options, expected_answer=gold, grading_mode=mode, **fields)
    return MultipleChoice().verify(asked, sample(text))


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{B}",
        r"\boxed{ (B) }",
        r"\boxed{\text{B}}",
        r"$\boxed{\textbf{B.}}$",
        r"First \boxed{A}, no: \boxed{B}",
        r"\boxed{B} and then an open \boxed{A",
    ],
)
def test_strict_reads_the_last_box(row, sample, text):
    assert grade(row, sample, text).reward == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "B",
        r"\boxed{b}",
        r"\boxed{A, B}",
        r"\boxed{A or B}",
        r"\boxed{B. Rome}",
        r"\boxed{}",
        r"\boxed{E}",
        r"\boxed{B} \boxed{A}",
        r"\boxed{B",
        "The answer is B.",
    ],
)
def test_strict_refuses(row, sample, text):
    verdict = grade(row, sample, text)
    assert verdict.reward == 0.0 and verdict.no_verdict is None


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (r"\boxed{b}", 1),
        (r"\boxed{B. Rome}", 1),
        (r"\boxed{B) rome.}", 1),
        (r"\boxed{Rome}", 1),
        (r"\boxed{\text{ROME}}", 1),
        (r"\boxed{Rome or Oslo}", 0),
        (r"\boxed{A) or B)}", 0),
        (r"\boxed{B. Paris}", 0),
        (r"\boxed{York}", 0),
        ("Rome", 0),
    ],
)
def test_lenient_boxed(row, sample, text, reward):
    assert grade(row, sample, text, "lenient_boxed").reward == reward


@pytest.mark.parametrize(
    ("text", "mode", "reward"),
    [
        ("Answer: B", "lenient_answer_colon", 1),
        ("answer : b", "lenient_answer_colon", 1),
        ("Answer: Rome", "lenient_answer_colon", 1),
        ("Answer: A\nAnswer: B", "lenient_answer_colon", 1),
        ("Answer: B\nAnswer: A", "lenient_answer_colon", 0),
        ("Answer: A or B", "lenient_answer_colon", 0),
        ("**Answer:** B", "lenient_answer_colon_md", 1),
        ("**Answer: B**", "lenient_answer_colon_md", 1),
        ("__Answer__: `Rome`", "lenient_answer_colon_md", 1),
        ("B", "lenient_answer_colon", 0),
    ],
)
def test_answer_colon(row, sample, text, mode, reward):
    assert grade(row, sample, text, mode).reward == reward


def test_a_regex_of_the_row_comes_first(row, sample):
    for pattern in (r"final:\s*(\w)", [r"never (\w)", r"final:\s*(\w)"]):
        template = {"template_metadata": {"output_regex": pattern}}
        assert grade(row, sample, r"FINAL: A, final: b \boxed{C}", **template).reward == 1.0
        assert grade(row, sample, r"no such thing \boxed{B}", **template).reward == 1.0
    assert grade(row, sample, "x", template_metadata={"output_regex": "("}).no_verdict is not None


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("Answer: B", 1),
        ("Answer: B or A", 0),
        ("Answer: B, C", 0),
        ("Answer: B/C", 0),
        ("Answer: (B) and (C)", 0),
        ("Answer: B or B", 1),
        ("Answer: B, a fine city", 1),
        ("Answer: B.\nA is wrong.", 1),
        ("Answer: B or Z", 1),
    ],
)
def test_a_regex_does_not_let_hedges_through(row, sample, text, reward):
    template = {"template_metadata": {"output_regex": r"Answer: \(?([A-Z])\)?"}}
    assert grade(row, sample, text, **template).reward == reward


def test_options_that_share_a_text_decide_nothing(row, sample):
    doubled = [{"A": "same"}, {"B": "Same"}, {"C": "other"}]
    assert grade(row, sample, r"\boxed{same}", "lenient_boxed", options=doubled).reward == 0.0
    assert grade(row, sample, r"\boxed{B}", "lenient_boxed", options=doubled).reward == 1.0


def test_bad_rows_and_empty_answers(row, sample):
    assert grade(row, sample, r"\boxed{B}", gold="E").no_verdict is not None
    assert grade(row, sample, r"\boxed{B}", "no_such_mode").no_verdict is not None
    assert grade(row, sample, None).no_verdict is not None
    assert grade(row, sample, " ").reward == 0.0


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed{1} \boxed{2", "1"),
        ("none", None),
        (r"\boxed{x}}", "x"),
    ],
)
def test_last_boxed_balances_braces(text, inside):
    assert last_boxed(text) == inside
