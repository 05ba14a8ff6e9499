"""Where the episodes of a step live: their calls run together on an event loop of their own, bounded and guarded.

Whatever an environment does, a call comes back: with its result, or with what broke.
"""

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from cascade_jax.rollout.environment import Environment, Episode, Observation, Opening, Trajectory
from cascade_jax.rollout.event_loop import event_loop
from cascade_jax.types import Reply, Row, Verdict

T = TypeVar("T")
Call = Callable[[], Awaitable[T]]

CALLS: Mapping[str, int] = {"sandbox": max(2, os.cpu_count() or 1), "judge": 16}  # that use a resource at a time
OTHER_CALLS = 32  # at a time, for every other resource
SECONDS = 3600.0  # for one call
CLOSE_SECONDS = 60.0


@dataclass(frozen=True)
class Broken:
    """A call that failed on our side: no verdict, with this reason. Not `alarming`: a row that does not fit."""

    reason: str
    alarming: bool = True


class Host:
    """Opens episodes, asks them, and closes every one, whatever happened. Use as a context.

    Each call takes requests, one for each episode, and returns what came of them in order. It may be used from any
    thread, also where an event loop is running.
    """

    def __init__(self, *, calls: Mapping[str, int] = CALLS, seconds: float = SECONDS) -> None:
        """calls: resource -> how many calls use it at a time. seconds: after which a call counts as broken."""
        self._calls, self._seconds = calls, seconds
        self._open: dict[int, Episode] = {}
        self._bounds: dict[str, asyncio.Semaphore] = {}
        self._running: set[asyncio.Task] = set()

    def __enter__(self) -> "Host":
        self._context = event_loop("episodes")
        self._run = self._context.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._close_all())
        finally:
            self._context.__exit__(None, None, None)

    def start(self, requests: Sequence[tuple[int, Environment, Row, int]]) -> list[Opening | Broken]:
        """requests: number, environment, row, seed. The number names the episode from now on."""

        async def one(number: int, environment: Environment, row: Row, seed: int) -> Opening:
            self._open[number] = environment.episode(row, seed=seed)
            return await self._open[number].start()

        return self._all(
            [(environment, partial(one, number, environment, *rest)) for number, environment, *rest in requests]
        )

    def step(self, requests: Sequence[tuple[int, Environment, Reply]]) -> list[Observation | Broken]:
        """requests: number, environment, reply."""
        return self._all(
            [(environment, partial(self._open[number].step, reply)) for number, environment, reply in requests]
        )

    def finish(self, requests: Sequence[tuple[int, Environment, Trajectory | Broken]]) -> list[Verdict]:
        """requests: number, environment, and the trajectory to judge, or what broke. The episode is closed after it."""

        async def judged(number: int, environment: Environment, end: Trajectory | Broken) -> Verdict:
            if isinstance(end, Trajectory):
                end = await self._guarded(environment, partial(self._open[number].verdict, end))
            verdict, closed = checked(end), await self._close(number, environment)
            return verdict if closed is None else replace(verdict, info={**verdict.info, "close": closed.reason})

        return self._run(_gathered([judged(*request) for request in requests]))

    def compare(self, requests: Sequence[tuple[Environment, Call[list[Verdict]]]]) -> list[list[Verdict] | Broken]:
        """Calls that judge all tries at a row together."""
        return self._all(requests)

    async def _close(self, number: int, environment: Environment | None = None) -> Broken | None:
        episode = self._open.pop(number, None)
        if episode is None:
            return None
        closed = await self._guarded(environment, episode.close, seconds=CLOSE_SECONDS)
        return closed if isinstance(closed, Broken) else None

    async def _close_all(self) -> None:
        await asyncio.gather(*self._running, return_exceptions=True)  # cancelled where there are any
        await _gathered([self._close(number) for number in list(self._open)])

    def _all(self, calls: Sequence[tuple[Environment, Call[T]]]) -> list[T | Broken]:
        return self._run(_gathered([self._guarded(environment, call) for environment, call in calls]))

    async def _guarded(
        self, environment: Environment | None, call: Call[T], *, seconds: float = math.inf
    ) -> T | Broken:
        """The call's result once its resources are free; what it raises, and a call that takes too long, is Broken."""
        seconds, task = min(seconds, self._seconds), asyncio.current_task()
        self._running.add(task)
        try:
            async with AsyncExitStack() as stack:
                for name in sorted(environment.resources) if environment is not None else ():
                    await stack.enter_async_context(self._bound(name))
                async with asyncio.timeout(seconds) as limit:
                    return await call()
        except TimeoutError as error:
            late = f"the environment did not answer within {seconds:g} s"
            return Broken(late if limit.expired() else f"the environment broke: {_said(error)}")
        except BaseException as error:  # a SystemExit of an environment's would end the loop and all who wait for it
            if isinstance(error, GeneratorExit) or (isinstance(error, asyncio.CancelledError) and task.cancelling()):
                raise
            return Broken(f"the environment broke: {_said(error)}")
        finally:
            self._running.discard(task)

    def _bound(self, name: str) -> asyncio.Semaphore:
        if name not in self._bounds:
            self._bounds[name] = asyncio.Semaphore(self._calls.get(name, OTHER_CALLS))
        return self._bounds[name]


async def _gathered(calls: Sequence[Awaitable[T]]) -> list[T]:
    return list(await asyncio.gather(*calls))


def checked(given: Any) -> Verdict:
    """What an environment said, or no verdict where that is none."""
    if isinstance(given, Broken):
        return Verdict(math.nan, {} if given.alarming else {"masked": 1.0}, no_verdict=given.reason)
    if not isinstance(given, Verdict):
        return Verdict(math.nan, no_verdict=f"the environment gave a {type(given).__name__} for a verdict")
    if given.no_verdict is None and not math.isfinite(given.reward):
        return replace(given, no_verdict=f"the environment gave the reward {given.reward}")
    return given


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
