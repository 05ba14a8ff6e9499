"""How hard rows are for a policy: several answers to each, and the share of them that pass."""

import dataclasses
from collections.abc import Mapping, Sequence

from cascade_jax.config import SamplingConfig
from cascade_jax.data.chat import Chat
from cascade_jax.data.difficulty import COLUMNS, measured
from cascade_jax.domains import Domain, judge_groups, roll_out
from cascade_jax.rollout.engine import Engine
from cascade_jax.rollout.episode import make_prompt
from cascade_jax.types import Row, Verdict


def profile(
    engine: Engine,
    chat: Chat,
    domains: Mapping[str, Domain],
    rows: Sequence[Row],
    sampling: SamplingConfig,
    *,
    samples: int,
    longest_prompt: int,
    seed: int,
) -> list[Row]:
    """The rows with pass_rate, pass_rate_total and pass_rate_passed. `domains`: row kind -> how it is judged.

    An answer passes with reward 1. Those without a verdict do not count; a row without any, or whose prompt has more
    than `longest_prompt` tokens, has total 0 and no rate.
    """
    prompts = [make_prompt(chat, row, row.kind, thinking=domains[row.kind].thinking) for row in rows]
    places = [place for place, prompt in enumerate(prompts) if len(prompt.ids) <= longest_prompt]
    verdicts: dict[int, list[Verdict]] = {}
    if places:
        fitting = [prompts[place] for place in places]
        groups = roll_out(
            engine, chat, domains, fitting, sampling, longest=longest_prompt, samples_per_prompt=samples, seed=seed
        )
        verdicts = dict(zip(places, judge_groups(domains, groups, seed=seed)[1], strict=True))
    return [_with_rate(row, verdicts.get(place, [])) for place, row in enumerate(rows)]


def _with_rate(row: Row, verdicts: Sequence[Verdict]) -> Row:
    rewards = [verdict.reward for verdict in verdicts if verdict.no_verdict is None]
    columns = measured(sum(reward >= 1 for reward in rewards), len(rewards))
    extra = {name: value for name, value in row.extra.items() if name not in COLUMNS}
    return dataclasses.replace(row, extra={**extra, **columns})
