"""A client of NeMo-Gym's agent servers: each runs whole rollouts against the model that it was given, behind /run."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cascade_jax.config.build import require
from cascade_jax.environment.nemo_gym.calls import Rebuilt, calls_of, rebuild
from cascade_jax.environment.nemo_gym.responses import record, replies
from cascade_jax.environment.nemo_gym.wire import ServerFailed, Session, checked_url, verdict_of
from cascade_jax.rollout.event_loop import event_loop
from cascade_jax.types import Group, Prompt, Sample, Verdict


@dataclass(frozen=True)
class AgentServer:
    """`url`: http://host:port. `seconds`: for one rollout. `concurrency`: rollouts at a time. May be a ConfigError."""

    url: str
    seconds: float = 1800.0
    concurrency: int = 64

    def __post_init__(self) -> None:
        checked_url(self.url, "url")
        require(self.seconds > 0, f"seconds={self.seconds} must be positive.")
        require(self.concurrency > 0, f"concurrency={self.concurrency} must be positive.")


@dataclass(frozen=True)
class Rollouts:
    """`delivered_fraction`: of the model calls of all rollouts, those whose tokens can be trained on."""

    groups: list[Group]
    delivered_fraction: float


def run_agents(server: AgentServer, prompts: Sequence[Prompt], *, samples_per_prompt: int, version: int) -> Rollouts:
    """Groups in the order of the prompts, whose ids become those that the agent really began with.

    A rollout whose tokens are not all there has no verdict: its reward would be for more than is trained. So has one
    that the server failed. `version`: of the policy that the agent's model server holds. From any thread, also where an
    event loop is running.
    """

    async def all_rollouts() -> list[_Rollout]:
        free = asyncio.Semaphore(server.concurrency)
        tasks = [_run(server, prompt, g, free) for prompt in prompts for g in range(samples_per_prompt)]
        return list(await asyncio.gather(*tasks))

    with event_loop() as run:
        rollouts = run(all_rollouts())
    groups = []
    for start, prompt in zip(range(0, len(rollouts), samples_per_prompt), prompts, strict=True):
        of_prompt = rollouts[start : start + samples_per_prompt]
        begun = next((r.rebuilt.segments[0].prompt for r in of_prompt if r.rebuilt.segments), prompt.ids)
        groups.append(Group(replace(prompt, ids=begun), tuple(_sample(r, begun, version) for r in of_prompt)))
    calls = sum(rollout.rebuilt.calls for rollout in rollouts)
    delivered = sum(r.rebuilt.delivered for r in rollouts if r.rebuilt.delivered == r.rebuilt.calls)
    return Rollouts(groups, delivered / calls if calls else 0.0)


NOTHING = Rebuilt((), 0, 0)


@dataclass(frozen=True)
class _Rollout:
    verdict: Verdict
    output: Sequence[Any] = ()
    rebuilt: Rebuilt = NOTHING
    cut_off: bool = False


async def _run(server: AgentServer, prompt: Prompt, number: int, free: asyncio.Semaphore) -> _Rollout:
    where = f"{server.url.rstrip('/')}/run"
    try:
        async with free:
            session = Session(server.url.rstrip("/"), seconds=server.seconds)
            try:
                asked = {**record(prompt.row), "_ng_rollout_index": number}
                answer = await session.post_for_object("/run", asked)
            finally:
                await session.close()
        verdict = verdict_of(answer, where)
        said = answer.get("response")
        if not isinstance(said, dict) or not isinstance(said.get("output"), list):
            raise ServerFailed(f"{where} answered no response with output items")
        calls = calls_of(said["output"])
    except (ServerFailed, ValueError) as error:
        return _Rollout(Verdict(math.nan, no_verdict=str(error)))
    faults = [call for call in calls if isinstance(call, str)]
    if (faults or not calls) and verdict.no_verdict is None:
        reason = (
            f"{len(faults)} of {len(calls)} calls of the model are lost: {faults[0] if faults else 'there is none'}"
        )
        verdict = replace(verdict, reward=math.nan, no_verdict=reason)
    return _Rollout(verdict, said["output"], rebuild(calls), bool(said.get("incomplete_details")))


def _sample(rollout: _Rollout, begun: np.ndarray, version: int) -> Sample:
    segments = rollout.rebuilt.segments if rollout.rebuilt.delivered == rollout.rebuilt.calls else ()
    own = bool(segments) and np.array_equal(segments[0].prompt, begun)
    said = replies(list(rollout.output))
    return Sample(
        ids=segments[0].ids if own else np.zeros(0, np.int32),
        logprobs=segments[0].logprobs if own else np.zeros(0, np.float32),
        mask=segments[0].mask if own else np.zeros(0, bool),
        stop_reason="broken" if not segments else "length" if rollout.cut_off else "stop",
        version=version,
        reply=said[-1] if said else None,
        later=segments[1:] if own else segments,
        turns=len(said),
        verdict=rollout.verdict,
    )
