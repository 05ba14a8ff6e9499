"""Arena-Hard v2: each answer plays two games against a baseline, in both orders, and a judge gives one of five labels.

Ratings are those of Bradley and Terry (1952), found by logistic regression, with bootstrap intervals.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from cascade_jax.reward import judge_prompts
from cascade_jax.reward.endpoint import Endpoint, Request
from cascade_jax.reward.judged import question_of
from cascade_jax.reward.verdict import Verdict, reply_of, unanswered, unjudged
from cascade_jax.types import Row, Sample

_WEIGHT = 3  # games that "far better" counts for (Li et al. 2024, arXiv 2406.11939, section 5)
_OUTCOMES = {"A>>B": [1.0] * _WEIGHT, "A>B": [1.0], "A=B": [0.5], "B>A": [0.0], "B>>A": [0.0] * _WEIGHT}
_ELO = 400 / math.log(10)
_PRIOR = 1e-3  # of the regression: keeps the rating of a model that always wins finite


class Battle(NamedTuple):
    """`outcome` of a against b: 1 won, 0 lost, 0.5 drawn."""

    a: str
    b: str
    outcome: float


class Interval(NamedTuple):
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ArenaGames:
    """Reward: the share of the games that the sample wins against the row's `reference`, a draw for half a game.

    `info["outcomes"]` holds the games, a clear win or loss as three of them.
    """

    judge: Endpoint | None = None

    def verify(self, row: Row, sample: Sample) -> Verdict:
        baseline = row.fields.get("reference")
        if not baseline:
            return unjudged("the row has no reference to compare with")
        early = unanswered(sample)
        if early is not None:
            return early
        if self.judge is None:
            return unjudged("no judge is set")
        prompt, text = question_of(row), reply_of(sample).content
        games = [judge_prompts.label(prompt, baseline, text), judge_prompts.label(prompt, text, baseline)]
        second, first = self.judge.ask_all([Request(game) for game in games], judge_prompts.read_label)
        if first.value is None or second.value is None:
            return unjudged(first.failure or second.failure)
        won = [*_OUTCOMES[first.value], *(1 - outcome for outcome in _OUTCOMES[second.value])]
        return Verdict(float(np.mean(won)), {}, {"outcomes": won, "labels": [second.value, first.value]})


def win_rate(outcomes: Sequence[Sequence[float]], *, seed: int = 0, resamples: int = 1000) -> Interval:
    """The mean of all games (a list per row) and the 95 % interval of a bootstrap over rows. ValueError: no games."""
    totals, counts = np.array([[sum(games), len(games)] for games in outcomes]).reshape(-1, 2).T
    if counts.sum() == 0:
        raise ValueError("There are no games to count; every row needs a verdict with its outcomes.")
    drawn = np.random.default_rng(seed).integers(len(counts), size=(resamples, len(counts)))
    rates = totals[drawn].sum(1) / np.maximum(counts[drawn].sum(1), 1)
    return Interval(float(totals.sum() / counts.sum()), *map(float, np.quantile(rates, [0.025, 0.975])))


def bradley_terry(battles: Sequence[Battle], *, anchor: str, rating: float = 1000.0) -> dict[str, float]:
    """Ratings on the scale of Elo, `anchor` at `rating`: 400 points are odds of 10 to 1.

    ValueError: the anchor plays in no battle.
    """
    names = sorted({name for battle in battles for name in (battle.a, battle.b)})
    if anchor not in names:
        raise ValueError(f"{anchor!r} plays in none of the battles; choose one of {', '.join(names) or '(none)'}.")
    strengths = _fit(*_design(battles, names))
    strengths = strengths - strengths[names.index(anchor)]
    return {name: float(rating + _ELO * strength) for name, strength in zip(names, strengths, strict=True)}


def rating_intervals(
    battles: Sequence[Battle], *, anchor: str, seed: int = 0, resamples: int = 200
) -> Mapping[str, Interval]:
    """The ratings with 95 % intervals of a bootstrap over battles; those without the anchor are drawn again."""
    rng, drawn = np.random.default_rng(seed), []
    best = bradley_terry(battles, anchor=anchor)
    while len(drawn) < resamples:
        again = [battles[i] for i in rng.integers(len(battles), size=len(battles))]
        if any(anchor in (battle.a, battle.b) for battle in again):
            drawn.append(bradley_terry(again, anchor=anchor))
    return {
        name: Interval(value, *map(float, np.quantile([one.get(name, value) for one in drawn], [0.025, 0.975])))
        for name, value in best.items()
    }


def _design(
    battles: Sequence[Battle], names: Sequence[str]
) -> tuple[Float[np.ndarray, "N M"], Float[np.ndarray, " N"]]:
    """+1 for the first player and -1 for the second, and the outcomes."""
    games = np.zeros((len(battles), len(names)))
    for row, battle in zip(games, battles, strict=True):
        row[names.index(battle.a)] += 1
        row[names.index(battle.b)] -= 1
    return games, np.array([battle.outcome for battle in battles])


def _fit(games: Float[np.ndarray, "N M"], outcomes: Float[np.ndarray, " N"]) -> Float[np.ndarray, " M"]:
    """Newton's method on the log-likelihood, which is concave."""
    strengths = np.zeros(games.shape[1])
    for _ in range(100):
        chance = 1 / (1 + np.exp(-games @ strengths))
        slope = games.T @ (outcomes - chance) - _PRIOR * strengths
        curve = (games * (chance * (1 - chance))[:, None]).T @ games + _PRIOR * np.eye(len(strengths))
        step = np.linalg.solve(curve, slope)
        strengths = strengths + step * min(1.0, 2.0 / max(np.abs(step).max(), 1e-12))  # far steps overshoot
        if np.abs(step).max() < 1e-9:
            break
    return strengths
