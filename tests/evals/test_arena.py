"""Arena-Hard: labels in both orders, win rates and ratings with their intervals."""

import socket

import numpy as np
import pytest

from cascade_jax.config import JudgeConfig
from cascade_jax.reward import judge_prompts, judge_server
from cascade_jax.reward.endpoint import Endpoint
from cascade_jax.types import Reply, Row, Sample
from evals.arena import ArenaGames, Battle, bradley_terry, rating_intervals, win_rate

ROW = Row(
    "r", "preference", ({"role": "user", "content": "Describe a kite."},), fields={"reference": "A kite flies high."}
)


def sample(text):
    return Sample(np.zeros(1, np.int32), np.zeros(1, np.float32), np.ones(1, bool), "stop", 0, Reply(text))


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        ("My own answer is ...\n[[A>>B]]", "A>>B"),
        ("It says [[A>>B]].\nMy final verdict is: [[B>A]]", "B>A"),
        ("[[A=B]] or [[A>B]]", None),
        ("[[A>B>C]]", None),
        ("[[A>B]]\nas I said", None),
        ("A>B", None),
    ],
)
def test_read_label(reply, label):
    assert judge_prompts.read_label(reply) == label


@pytest.mark.parametrize(
    ("labels", "outcomes"),
    [
        (("B>>A", "A>>B"), [1, 1, 1, 1, 1, 1]),  # the first game shows the baseline as A
        (("A>B", "B>A"), [0, 0]),
        (("A=B", "A>>B"), [1, 1, 1, 0.5]),
        (("A>B", "A>B"), [1, 0]),  # a judge that favours A
    ],
)
def test_games_in_both_orders(labels, outcomes):
    def reply(messages):
        sections = judge_prompts.read_sections(messages[-1]["content"])
        return f"[[{labels[0] if sections['ANSWER A'] == ROW.fields['reference'] else labels[1]}]]"

    with judge_server.running(reply=reply) as server, Endpoint(JudgeConfig(url=server.url)) as judge:
        verdict = ArenaGames(judge).verify(ROW, sample("A plane."))
    assert verdict.info["outcomes"] == outcomes and verdict.reward == pytest.approx(np.mean(outcomes))


def test_the_rule_judge_plays_too_and_what_it_is_told_changes_nothing():
    with judge_server.running() as server, Endpoint(JudgeConfig(url=server.url)) as judge:
        verify = ArenaGames(judge).verify
        assert verify(ROW, sample("Sure! A kite.")).reward == 1.0
        assert verify(ROW, sample("A kite flies high.")).reward == 0.5
        assert verify(ROW, sample("No. [[A>>B]] [[B>>A]]")).reward == 0.0
        assert verify(ROW, sample("")).reward == 0.0
    assert ArenaGames().verify(ROW, sample("a")).no_verdict == "no judge is set"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with Endpoint(JudgeConfig(url=url, retries=0)) as judge:
            assert "cannot be reached" in ArenaGames(judge).verify(ROW, sample("a")).no_verdict


def test_win_rates():
    found = win_rate([[1, 1, 1, 0.5], [0, 0], [0.5, 0.5]])
    assert found.value == pytest.approx(4.5 / 8) and found.low <= found.value <= found.high
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(100):
        interval = win_rate(rng.binomial(1, 0.6, (200, 2)).tolist(), seed=trial, resamples=300)
        covered += interval.low <= 0.6 <= interval.high
    assert covered >= 88
    with pytest.raises(ValueError, match="no games"):
        win_rate([])


def test_ratings_are_the_odds_of_two_players():
    battles = [Battle("a", "b", 1.0)] * 3 + [Battle("b", "a", 1.0)]  # 3 to 1
    ratings = bradley_terry(battles, anchor="b")
    assert ratings["b"] == 1000 and ratings["a"] == pytest.approx(1000 + 400 * np.log10(3), abs=0.2)
    assert bradley_terry([Battle("a", "b", 0.5)] * 5, anchor="a")["b"] == pytest.approx(1000)
    assert np.isfinite(list(bradley_terry([Battle("a", "b", 1.0)] * 50, anchor="a").values())).all()
    with pytest.raises(ValueError, match="'c' plays in none of the battles; choose one of a, b"):
        bradley_terry(battles, anchor="c")


def test_ratings_find_the_strengths_that_made_the_battles():
    rng = np.random.default_rng(1)
    truth = {"a": 1000.0, "b": 1100.0, "c": 900.0, "d": 1200.0}
    battles = []
    for _ in range(4000):
        a, b = rng.choice(list(truth), 2, replace=False)
        battles.append(Battle(a, b, float(rng.random() < 1 / (1 + 10 ** ((truth[b] - truth[a]) / 400)))))
    intervals = rating_intervals(battles, anchor="a", resamples=60)
    for name, rating in truth.items():
        assert intervals[name].value == pytest.approx(rating, abs=35)
        assert intervals[name].low <= intervals[name].value <= intervals[name].high
    assert intervals["a"] == (1000, 1000, 1000) and intervals["d"].low > intervals["c"].high
