"""Episodes of several turns that can be judged again: what the assistant wrote is kept, and played once more."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from cascade_jax.rollout.environment import Environment, Episode, Observation, Opening, Trajectory
from cascade_jax.rollout.host import Broken, Host
from cascade_jax.types import Reply, Row, Verdict
from evals.folder import reply_as_json, reply_from_json

KEPT = "episode"  # the key of a verdict's info with what a replay needs
AT_ONCE = 64  # episodes that are open at a time


def is_environment(judge: Any) -> TypeGuard[Environment]:
    """Whether it judges episodes of several turns; else it is a verifier of answers."""
    return hasattr(judge, "episode")


@dataclass(frozen=True)
class Kept:
    """An environment whose verdicts carry the replies that led to them."""

    environment: Environment
    turns: int
    resources: tuple[str, ...]

    def episode(self, row: Row, *, seed: int) -> Episode:
        return _KeptEpisode(self.environment.episode(row, seed=seed), seed)


def kept(environment: Environment) -> Kept:
    return Kept(environment, environment.turns, environment.resources)


@dataclass
class _KeptEpisode:
    episode: Episode
    seed: int
    steps: int = field(default=0)  # replies that the environment has read; the last of a cut episode it may not have

    async def start(self) -> Opening:
        return await self.episode.start()

    async def step(self, reply: Reply) -> Observation:
        self.steps += 1
        return await self.episode.step(reply)

    async def verdict(self, trajectory: Trajectory) -> Verdict:
        verdict = await self.episode.verdict(trajectory)
        replies = [reply_as_json(reply) for reply in trajectory.replies]
        found = {"seed": self.seed, "stop": trajectory.stop, "steps": self.steps, "replies": replies}
        return replace(verdict, info={**verdict.info, KEPT: found})

    async def close(self) -> None:
        await self.episode.close()


def replay(environment: Environment, work: Sequence[tuple[Row, dict[str, Any]]]) -> list[Verdict]:
    """The verdicts of kept episodes, played again without a model: row, and what `Kept` kept of it."""
    verdicts: list[Verdict] = []
    with Host() as host:
        for start in range(0, len(work), AT_ONCE):
            verdicts += _played(host, environment, dict(enumerate(work[start : start + AT_ONCE], start)))
    return verdicts


def _played(host: Host, environment: Environment, work: dict[int, tuple[Row, dict[str, Any]]]) -> list[Verdict]:
    replies = {n: [reply_from_json(reply) for reply in kept["replies"]] for n, (_, kept) in work.items()}
    observations: dict[int, list[Observation]] = {n: [] for n in work}
    opened = host.start([(n, environment, row, kept["seed"]) for n, (row, kept) in work.items()])
    broken = {n: given for n, given in zip(work, opened, strict=True) if isinstance(given, Broken)}
    for turn in range(max(kept["steps"] for _, kept in work.values())):
        live = [n for n, (_, kept) in work.items() if n not in broken and turn < kept["steps"]]
        given = host.step([(n, environment, replies[n][turn]) for n in live])
        for n, observation in zip(live, given, strict=True):
            if isinstance(observation, Broken):
                broken[n] = observation
            else:
                observations[n].append(observation)
    ends = {n: broken.get(n) or _trajectory(kept, replies[n], observations[n]) for n, (_, kept) in work.items()}
    return host.finish([(n, environment, end) for n, end in ends.items()])


def _trajectory(kept: dict[str, Any], replies: Sequence[Reply], observations: Sequence[Observation]) -> Trajectory:
    """As it was judged: where a limit cut it, the answer to the last reply did not count."""
    answered = len(replies) - 1 if kept["stop"] == "length" else len(replies)
    return Trajectory(tuple(replies), tuple(observations[:answered]), kept["stop"])
