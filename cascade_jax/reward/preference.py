"""Rewards from pairwise comparisons within a group (Nemotron 3 Nano report, Eqs. 2-6), and win rates for evaluation."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from cascade_jax.reward.batch import rewards_of, split_like
from cascade_jax.reward.judge import Comparison, Judge, Judgement, Scores
from cascade_jax.reward.verdict import Verdict, reply_of, unjudged
from cascade_jax.types import UNCLOSED_THOUGHT, Group, Reply, Row, Sample

Heard = tuple[int, int, float, float, float]  # (i, j, score_i, score_j, ranking)
FALLBACK = Scores(3.0, 3.0, 3.5)  # in place of replies that could not be read
PLACEHOLDER = "(no answer)"  # what the judge is shown in place of an empty answer


@dataclass(frozen=True)
class PreferenceSettings:
    """What a group is asked and how its scores become rewards: the settings of a domain of preferences (recipe 9)."""

    pairs: Literal["all", "circular"] = "all"  # circular: each sample with the next one, n questions of n (n - 1) / 2
    both_orders: bool = False  # each pair asked twice, with either sample first
    think_weight: float = 0.5
    answer_weight: float = 0.5
    bonus: float = 0.5
    bonus_quantile: float = 0.8


def pairwise_rewards(
    comparisons: Sequence[Heard],
    think_lengths_G: Int[np.ndarray, "G"] | Sequence[int],
    answer_lengths_G: Int[np.ndarray, "G"] | Sequence[int],
    *,
    think_weight: float = 0.5,
    answer_weight: float = 0.5,
    bonus: float = 0.5,
    bonus_quantile: float = 0.8,
) -> Float[np.ndarray, "G"]:
    """Rewards of a group, float32; NaN for a sample without any comparison, which then takes no part in anything.

    A comparison is (i, j, score_i, score_j, ranking), ranking 1 (i far better) to 6 (j far better). Base reward: the
    mean score, ties moved apart by the ranking. Lengths of thinking and answers move a reward by up to the weights, 0
    on average over the group. The shortest thinking and the shortest answer (empty ones aside; all of them if they tie,
    none if the whole group ties) earn the bonus if their base reward is at or above the group's quantile.
    """
    thinking, answers = np.asarray(think_lengths_G), np.asarray(answer_lengths_G)
    totals, counts = np.zeros(len(answers)), np.zeros(len(answers))
    for i, j, score_i, score_j, ranking in comparisons:
        shift = tie_shift(score_i, score_j, ranking)
        totals[[i, j]] += score_i + shift, score_j - shift
        counts[[i, j]] += 1
    rewards = np.full(len(answers), np.nan)
    part = counts > 0
    if not part.any():
        return rewards.astype(np.float32)
    base = totals[part] / counts[part]
    good = base >= np.quantile(base, bonus_quantile)
    total = base + think_weight * _brevity(thinking[part]) + answer_weight * _brevity(answers[part])
    total += bonus * (_shortest(thinking[part]) & good) + bonus * (_shortest(answers[part]) & good)
    rewards[part] = total
    return rewards.astype(np.float32)


def tie_shift(score_i: float, score_j: float, ranking: float) -> float:
    """What i gains and j loses: on equal scores the ranking decides."""
    return 3.5 - ranking if score_i == score_j else 0.0


def preference_verdicts(judge: Judge, group: Group, *, seed: int, **settings: Any) -> list[Verdict]:
    """The pairs of the group compared, in an order that follows from the seed; `settings`: PreferenceSettings."""
    return preference_groups(judge, [group], seed=seed, **settings)[1][0]


def preference_groups(
    judge: Judge, groups: Sequence[Group], *, seed: int, **settings: Any
) -> tuple[Float[np.ndarray, "P G"], list[list[Verdict]]]:
    """rewards_PG (float32, NaN where no verdict was had) and the verdicts, all comparisons of all groups asked at once.

    A sample whose text or thought was cut gets the least reward of its group (recipe 9.2). A judge that cannot be
    reached leaves comparisons out; one whose replies cannot be read counts as undecided (3, 3, 3.5) between samples
    that it has told apart elsewhere. A sample of which it said nothing has no verdict.
    """
    chosen = PreferenceSettings(**settings)
    pairs = [_pairs(group, seed, chosen) for group in groups]
    judgements = iter(judge.compare([comparison for group in pairs for _, _, comparison in group]))
    flat: list[Verdict] = []
    for group, asked in zip(groups, pairs, strict=True):
        flat += _group_verdicts(group, [(i, j, next(judgements)) for i, j, _ in asked], chosen)
    verdicts = split_like(groups, flat)
    return rewards_of(verdicts), verdicts


def win_rates(judge: Judge, items: Sequence[tuple[Row, Sample, str]]) -> list[Verdict]:
    """1 where the judge prefers the sample to the text, 0.5 for a tie, 0 for a loss; asked in both orders."""
    asked = [
        _comparison(row, *order)
        for row, sample, text in items
        if sample.reply is not None and text
        for order in ((_shown(sample), text), (text, _shown(sample)))
    ]
    judgements = iter(judge.compare(asked))
    verdicts = []
    for _, sample, text in items:
        if sample.reply is None:
            verdicts.append(unjudged("the sample was not read back into a reply"))
        elif not text:
            verdicts.append(unjudged("the row has no reference to compare with"))
        else:
            verdicts.append(_win(next(judgements), next(judgements)))
    return verdicts


def win_rate(judge: Judge, row: Row, sample: Sample, reference_text: str | None = None) -> Verdict:
    """The sample against a text, by default the row's `reference`."""
    text = row.fields.get("reference") if reference_text is None else reference_text
    return win_rates(judge, [(row, sample, text or "")])[0]


def _win(forward: Judgement, backward: Judgement) -> Verdict:
    if forward.scores is None or backward.scores is None:
        return unjudged(forward.failure or backward.failure)
    margin = _margin(forward.scores) - _margin(backward.scores)
    return Verdict(float(np.sign(margin) + 1) / 2, {"margin": margin})


def _margin(scores: Scores) -> float:
    return scores.score_1 - scores.score_2 + 2 * tie_shift(*scores)


def _group_verdicts(
    group: Group, judged: Sequence[tuple[int, int, Judgement]], settings: PreferenceSettings
) -> list[Verdict]:
    replies = [sample.reply or Reply("") for sample in group.samples]
    thinking = np.array([len(reply.reasoning.strip()) for reply in replies])
    answers = np.array([len(reply.content.strip()) for reply in replies])
    cut = np.array([_cut(sample) for sample in group.samples])
    # An unfinished text would have gone on: it is nobody's example of brevity.
    thinking[cut], answers[cut] = thinking.max(), answers.max()
    heard = _heard(judged)
    weights = {name: value for name, value in vars(settings).items() if name not in ("pairs", "both_orders")}
    rewards = pairwise_rewards(heard, thinking, answers, **weights)
    base = pairwise_rewards(heard, thinking, answers, think_weight=0.0, answer_weight=0.0, bonus=0.0)
    verdicts = []
    for k, sample in enumerate(group.samples):
        mine = [judgement for i, j, judgement in judged if k in (i, j)]
        unreadable = sum(judgement.unreadable for judgement in mine)
        if sample.reply is None:
            verdicts.append(unjudged("the sample was not read back into a reply"))
        elif np.isnan(rewards[k]):
            failures = (judgement.failure for judgement in mine if judgement.failure)
            why = next(failures, "the group has nothing to compare it with")
            verdicts.append(unjudged(why, unreadable=unreadable))
        else:
            reward = np.nanmin(rewards) if cut[k] else rewards[k]
            shares = {"score": float(base[k]), "unreadable": unreadable / len(mine)}
            verdicts.append(Verdict(float(reward), shares))
    return verdicts


def _cut(sample: Sample) -> bool:
    return sample.truncated or (sample.reply is not None and sample.reply.malformed == UNCLOSED_THOUGHT)


def _heard(judged: Sequence[tuple[int, int, Judgement]]) -> list[Heard]:
    """What the judge said, and the fallback where its reply could not be read, among samples it said something of."""
    known = {k for i, j, judgement in judged if judgement.scores is not None for k in (i, j)}
    return [
        (i, j, *(judgement.scores or FALLBACK))
        for i, j, judgement in judged
        if judgement.scores is not None or (judgement.unreadable and {i, j} <= known)
    ]


def _pairs(group: Group, seed: int, settings: PreferenceSettings) -> list[tuple[int, int, Comparison]]:
    """(i, j, comparison) with i shown first. The order hangs on the texts, so that equal pairs are asked once."""
    row = group.prompt.row
    shown = {i: _shown(sample) for i, sample in enumerate(group.samples) if sample.reply is not None}
    pairs = []
    for i, j in _chosen(list(shown), settings.pairs):
        low, high = sorted((shown[i], shown[j]))
        coin = hashlib.sha256(f"{seed}\0{row.id}\0{low}\0{high}".encode("utf-8", "surrogatepass")).digest()[0] & 1
        order = (i, j) if (shown[i] == low) ^ bool(coin) else (j, i)
        for first, second in [order, order[::-1]] if settings.both_orders else [order]:
            pairs.append((first, second, _comparison(row, shown[first], shown[second])))
    return pairs


def _chosen(samples: Sequence[int], pairs: str) -> list[tuple[int, int]]:
    every = list(itertools.combinations(samples, 2))
    if pairs == "all" or len(samples) < 3:
        return every
    return list(zip(samples, [*samples[1:], samples[0]], strict=True))


def _shown(sample: Sample) -> str:
    """The final answer alone: what stands before a stray end of a thought is no part of it."""
    return reply_of(sample).content.rpartition("</think>")[2].strip() or PLACEHOLDER


def _comparison(row: Row, first: str, second: str) -> Comparison:
    return Comparison(row.messages, first, second, row.fields.get("principle") or "")


def _brevity(lengths: np.ndarray) -> np.ndarray:
    """1 for the shortest, 0 for the longest, minus the group's mean; 0 where all are equal."""
    spread = lengths.max() - lengths.min()
    if spread == 0:
        return np.zeros(len(lengths))
    weights = 1 - (lengths - lengths.min()) / spread
    return weights - weights.mean()


def _shortest(lengths: np.ndarray) -> np.ndarray:
    filled = lengths > 0
    if not filled.any() or lengths.max() == lengths.min():
        return np.zeros(len(lengths), bool)
    return lengths == lengths[filled].min()
