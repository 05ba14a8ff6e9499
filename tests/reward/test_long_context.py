"""Recall of what was hidden, graphs, and answers that list or copy."""

import numpy as np
import pytest

from cascade_jax.data.long_context import LongRows
from cascade_jax.reward import VERIFIERS
from cascade_jax.reward.long_context import LongContext, own_share

VERIFY = LongContext().verify


def encode(text):
    return text.split()


@pytest.mark.parametrize(
    ("text", "mode", "reward"),
    [
        ("the numbers are 17 and **29**.", "all", 1.0),
        ("17", "all", 0.5),
        ("17", "any", 1.0),
        ("117 and 290", "all", 0.0),
        ("117", "any", 0.0),
        ("17, 29, 31", "all", 0.0),
        ("17 31", "any", 0.0),
        ("none", "all", 0.0),
        ("", "any", 0.0),
    ],
)
def test_recall(row, sample, text, mode, reward):
    hidden = row("long_context", expected_answer=["17", "29"], grading_mode=mode, candidates=r"(?<!\d)\d{2}(?!\d)")
    verdict = VERIFY(hidden, sample(text, reasoning="17 29"))
    assert (verdict.reward, verdict.no_verdict) == (reward, None)


def test_without_candidates_recall_is_rulers(row, sample):
    plain = row("long_context", expected_answer=["Kite", "bell"], grading_mode="all")
    assert VERIFY(plain, sample("a kite, a BELL and a plane")).reward == 1.0
    assert VERIFY(row("long_context", expected_answer="kite"), sample("kite")).reward == 1.0


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("So: [a1, b2]", 1.0),
        ("[c3] no: ['b2', \"a1\"]", 1.0),
        ("[a1]", 2 / 3),
        ("[a1, b2, c3, d4]", 2 / 3),
        ("[c3]", 0.0),
        ("a1, b2", 0.0),
        ("[]", 0.0),
    ],
)
def test_graphs(row, sample, text, reward):
    graph = row("long_context", expected_answer='["a1", "b2"]', grading_mode="graph_f1")
    assert VERIFY(graph, sample(text)).reward == pytest.approx(reward)


def test_what_is_copied_earns_nothing(row, sample):
    prompt = " ".join(f"w{i}" for i in range(400))
    hidden = row("long_context", ask=prompt, expected_answer=["w7"])
    assert VERIFY(hidden, sample("w7")).reward == 1.0
    assert VERIFY(hidden, sample(" ".join(prompt.split()[:20]))).reward == 1.0  # a sentence may be quoted
    assert VERIFY(hidden, sample(prompt)).reward == 0.0
    half = VERIFY(hidden, sample(" ".join([*prompt.split()[:50], *(f"own{i}" for i in range(50))])))
    assert half.reward == pytest.approx(0.5) and half.components["copied"] == pytest.approx(0.5)
    graph = row("long_context", ask=prompt + " [w7]", expected_answer=["w7"], grading_mode="graph_f1")
    assert VERIFY(graph, sample(prompt + " [w7]")).reward == 0.0


def test_own_share_equals_the_slow_version():
    rng = np.random.default_rng(0)
    for _ in range(50):
        prompt = rng.choice(["a", "b", "c"], 60).tolist()
        text = [*rng.choice(["a", "b"], 10).tolist(), *prompt[20:32], *rng.choice(["b", "c"], 8).tolist()]
        grams = {tuple(prompt[i : i + 5]) for i in range(len(prompt) - 4)}
        covered = [
            any(tuple(text[j : j + 5]) in grams for j in range(max(0, i - 4), min(i, len(text) - 5) + 1))
            for i in range(len(text))
        ]
        assert own_share(" ".join(text), " ".join(prompt), run=5) == pytest.approx(1 - np.mean(covered))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "expected_answer"),
        ({"expected_answer": [""]}, "expected_answer"),
        ({"expected_answer": ["a"], "grading_mode": "most"}, "grading_mode 'most'"),
        ({"expected_answer": ["a"], "candidates": "("}, "unterminated"),
    ],
)
def test_rows_at_fault(row, sample, fields, reason):
    assert reason in VERIFY(row("long_context", **fields), sample("a")).no_verdict


@pytest.mark.parametrize(
    "task",
    [
        "needle",
        "needle_multi_key",
        "needle_among_needles",
        "needle_multi_value",
        "needle_multi_query",
        "variables",
        "common_words",
        "documents",
        "documents_choice",
        "graph_parents",
    ],
)
def test_generated_rows_accept_gold_and_refuse_tricks(sample, task):
    for row in LongRows(task, 3, tokens=2000, encode=encode, seed=5):
        verify = VERIFIERS[row.kind]().verify
        gold = row.fields["expected_answer"]
        prompt = row.messages[0]["content"]
        right = f"\\boxed{{{gold}}}" if row.kind == "mcqa" else f"[{', '.join(gold)}]"
        assert verify(row, sample(right)).reward == 1.0
        everything = " ".join(dict.fromkeys(prompt.split()))
        for text in ("", "I do not know", prompt, everything, f"[{everything}]", row.messages[0]["content"][-200:]):
            assert (verdict := verify(row, sample(text))).reward < 0.1 and verdict.no_verdict is None, text[:99]
