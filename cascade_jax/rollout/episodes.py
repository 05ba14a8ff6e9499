"""Episodes of several turns: all that are alive write their next turn in one batch of the engine, in lockstep.

The calls to the environments of a turn run together (`host`), and the tokens of each episode stay one chain (`chain`).
With several processes each hosts its share of the episodes, and all of them know every token, as the engine must.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from cascade_jax.config import SamplingConfig
from cascade_jax.data.chat import Chat
from cascade_jax.processes import shared
from cascade_jax.rollout.chain import Chain
from cascade_jax.rollout.engine import Engine
from cascade_jax.rollout.environment import Comparing, Environment, Observation, Opening, Trajectory
from cascade_jax.rollout.host import Broken, Host, checked
from cascade_jax.seeding import derive
from cascade_jax.types import Group, Prompt, Reply, Sample, Segment, Verdict

T = TypeVar("T")


@dataclass
class Try:
    """One sample of one prompt on its way. All processes hold the same; the episode itself lives in one of them."""

    number: int
    prompt: Prompt
    environment: Environment
    seed: int
    chain: Chain | None = None
    replies: list[Reply] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    version: int = 0
    stop: str = ""  # "done", "turns", "length" or "broken"; empty while it goes on
    broken: Broken | None = None
    verdict: Verdict | None = None

    def breaks(self, reason: Broken) -> None:
        self.stop, self.broken = "broken", reason

    def end(self) -> Trajectory | Broken:
        return self.broken or Trajectory(tuple(self.replies), tuple(self.observations), self.stop)


def run_episodes(
    engine: Engine,
    chat: Chat,
    environments: Mapping[str, Environment],
    prompts: Sequence[Prompt],
    sampling: SamplingConfig,
    *,
    thinking: Mapping[str, bool],
    longest: int,
    samples_per_prompt: int,
    seed: int,
    host: Host | None = None,
) -> list[Group]:
    """Groups in the order of the prompts, each sample with the verdict of its environment.

    environments, thinking: by domain. An episode ends when its environment says so, after the environment's number of
    turns, or on length: a turn of `sampling.max_tokens` tokens, or a next prompt of more than `longest`. What breaks on
    the environment's side ends in no verdict; its tokens up to then stay. The randomness of a turn is derived from
    (seed, place of the prompt, sample, turn), whatever the other episodes do; `place` is that of the prompt, or else
    that in `prompts`.
    """
    places = [i if prompt.place is None else prompt.place for i, prompt in enumerate(prompts)]
    tries = [
        Try(i * samples_per_prompt + g, prompt, environments[prompt.domain], derive(seed, "episode", place, g))
        for i, (place, prompt) in enumerate(zip(places, prompts, strict=True))
        for g in range(samples_per_prompt)
    ]
    with host or Host() as host:
        _open(host, chat, tries, samples_per_prompt, thinking, longest)
        _finish(host, tries)
        turn = 0
        while live := [one for one in tries if not one.stop]:
            ready = [dataclasses.replace(one.prompt, ids=one.chain.prompt, place=_place(one)) for one in live]
            drawn = engine.generate(ready, sampling, samples_per_prompt=1, seed=derive(seed, "turn", turn))
            for one, group in zip(live, drawn, strict=True):
                _write(one, group.samples[0])
            _step(host, tries, longest)
            _finish(host, tries)
            turn += 1
        groups = [tries[start : start + samples_per_prompt] for start in range(0, len(tries), samples_per_prompt)]
        _compare(host, groups)
    return [_group(prompt, group) for prompt, group in zip(prompts, groups, strict=True)]


def _open(
    host: Host,
    chat: Chat,
    tries: Sequence[Try],
    samples_per_prompt: int,
    thinking: Mapping[str, bool],
    longest: int,
) -> None:
    openings = _ask(host.start, tries, lambda one: (one.number, one.environment, one.prompt.row, one.seed))
    first: dict[int, np.ndarray] = {}
    for one, opening in zip(tries, openings, strict=True):
        try:
            one.chain = Chain(chat, _expected(Opening, opening), thinking=thinking[one.prompt.domain])
            ids = one.chain.prompt
            if len(ids) > longest:
                too_long = f"the episode opens with {len(ids)} tokens, more than the longest prompt of {longest}"
                one.chain = None
                one.breaks(Broken(too_long, alarming=False))
            elif not np.array_equal(ids, first.setdefault(one.number // samples_per_prompt, ids)):
                raise _Refused("the episode opens otherwise than another try at the same row")
        except Exception as error:  # of the environment's messages, in a template
            one.chain = None
            one.breaks(_broken(error))


def _place(one: Try) -> int:
    """What the randomness of a turn is derived from: where prompts have places of their own, from those alone."""
    return one.number if one.prompt.place is None else one.seed


def _write(one: Try, sample: Sample) -> None:
    one.replies.append(one.chain.wrote(sample))
    one.version = sample.version
    if sample.truncated:
        one.stop = "length"


def _step(host: Host, tries: Sequence[Try], longest: int) -> None:
    """The environments answer; where the answer does not fit any more the assistant never saw it."""
    waiting = [not one.stop for one in tries]
    answers = _ask(host.step, tries, lambda one: None if one.stop else (one.number, one.environment, one.replies[-1]))
    for one, answer in ((one, answer) for one, answer, was in zip(tries, answers, waiting, strict=True) if was):
        try:
            observation = _expected(Observation, answer)
            one.observations.append(observation)
            if observation.done:
                one.stop = "done"
            elif len(one.replies) >= one.environment.turns:
                one.stop = "turns"
            elif not observation.messages:
                raise _Refused("the environment neither answered nor ended the episode")
            else:
                one.chain.answered(observation)
                if len(one.chain.prompt) > longest:
                    one.observations.pop()
                    one.stop = "length"
        except Exception as error:
            one.breaks(_broken(error))


def _finish(host: Host, tries: Sequence[Try]) -> None:
    """Verdicts of those that have just ended, whose episodes are closed."""
    if not any(one.stop and one.verdict is None for one in tries):
        return
    ended = [one.stop != "" and one.verdict is None for one in tries]
    requests = {
        one.number: (one.number, one.environment, one.end()) for one, now in zip(tries, ended, strict=True) if now
    }
    verdicts = _ask(host.finish, tries, lambda one: requests.get(one.number))
    for one, verdict in zip(tries, verdicts, strict=True):
        one.verdict = verdict if one.verdict is None else one.verdict


def _compare(host: Host, groups: Sequence[Sequence[Try]]) -> None:
    """Verdicts that are relative to the other tries at the same row, where the environment gives such."""
    comparing = [group for group in groups if isinstance(group[0].environment, Comparing)]
    if not comparing:
        return

    def judged(part: Sequence[Sequence[Try]]) -> list[list[Verdict] | Broken]:
        return host.compare([(group[0].environment, partial(_compared, group)) for group in part])

    for group, answer in zip(comparing, shared(judged, comparing), strict=True):
        found = answer if isinstance(answer, list) and len(answer) == len(group) else [answer] * len(group)
        for one, verdict in zip(group, found, strict=True):
            if one.verdict.no_verdict is None:
                one.verdict = checked(verdict)


async def _compared(group: Sequence[Try]) -> list[Verdict]:
    trajectories = [Trajectory(tuple(one.replies), tuple(one.observations), one.stop) for one in group]
    environment = group[0].environment
    return await environment.compare_group(group[0].prompt.row, trajectories, [one.verdict for one in group])


def _ask(call: Callable[[list[Any]], list[Any]], tries: Sequence[Try], request: Callable[[Try], Any]) -> list[Any]:
    """What a host's call gives for each try, None where it requests nothing. Every process asks its own episodes."""

    def mine(part: Sequence[Try]) -> list[Any]:
        requests = [request(one) for one in part]
        answers = iter(call([given for given in requests if given is not None]))
        return [None if given is None else next(answers) for given in requests]

    return shared(mine, tries)


class _Refused(Exception):
    """What an environment gave cannot be used."""


def _expected(kind: type[T], given: Any) -> T:
    if isinstance(given, Broken):
        raise _Refused(given.reason)
    if not isinstance(given, kind):
        raise _Refused(f"the environment gave a {type(given).__name__} in place of an {kind.__name__}")
    return given


def _broken(error: Exception) -> Broken:
    return Broken(
        str(error) if isinstance(error, _Refused) else f"what the environment said cannot be written: {error}"
    )


def _group(prompt: Prompt, tries: Sequence[Try]) -> Group:
    opened = next((one.chain.segments[0].prompt for one in tries if one.chain is not None), prompt.ids)
    return Group(dataclasses.replace(prompt, ids=opened), tuple(_sample(one) for one in tries))


def _sample(one: Try) -> Sample:
    empty = np.zeros(0, np.int32)
    first, *later = one.chain.segments if one.chain is not None else (Segment(empty, empty, empty, empty.astype(bool)),)
    return Sample(
        ids=first.ids,
        logprobs=first.logprobs.astype(np.float32),
        mask=first.mask,
        stop_reason="stop" if one.stop == "done" else one.stop,
        version=one.version,
        reply=one.replies[-1] if one.replies else None,
        later=tuple(later),
        turns=len(one.replies),
        verdict=one.verdict,
    )
