"""Episodes in the workplace: the model's calls change one copy of the tables, the row's calls another, both must end
alike (Workplace Assistant of NeMo-Gym, after WorkBench, Styles et al. 2024).

Row fields: `ground_truth` [{name, arguments}], as JSON or as its text, as are the arguments; `environment_name`
("workbench" in the published rows, "workplace_assistant" in NeMo-Gym); of ours: `tables` {table: [record]}, which
stand in for the tables of the environment.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cascade_jax.environment.workplace.tables import Database, Tables, base_tables, complete
from cascade_jax.environment.workplace.tool import ToolError
from cascade_jax.environment.workplace.tools import OFFERED, run
from cascade_jax.reward.tool_call import format_fault, malformed, matching, same_value
from cascade_jax.reward.verdict import reply_of, unanswered, unjudged, wrong
from cascade_jax.rollout.environment import Observation, Opening, Trajectory
from cascade_jax.types import Reply, Row, Sample, ToolCall, Verdict

_NAMES = (None, "workbench", "workplace_assistant")


@dataclass(frozen=True)
class Workplace:
    """1 where the calls leave the tables as the row's calls do, else 0. Lookups cost nothing, more changes all.

    `folder` is csv_data of NeMo-Gym's workplace_assistant, which its published rows need; without it the tables are a
    small workplace made out of `seed`. A reply whose format is broken ends the episode with -malformed_penalty.
    """

    turns: int = 6
    resources: tuple[str, ...] = ()
    folder: str = ""
    seed: int = 0
    malformed_penalty: float = 0.0

    def episode(self, row: Row, *, seed: int) -> "WorkplaceEpisode":
        """ValueError: the row's tables are not those of a workplace. FileNotFoundError: `folder` does not hold them."""
        return WorkplaceEpisode(row, self._tables(row), self.malformed_penalty)

    def verify(self, row: Row, sample: Sample) -> Verdict:
        """Judges a sample of one turn, all calls of which are in one answer."""
        try:
            episode = self.episode(row, seed=0)
        except (ValueError, FileNotFoundError) as error:
            return unjudged(f"the workplace cannot be opened: {error}")
        if (early := unanswered(sample)) is not None:
            return early
        episode.answer(reply_of(sample))
        return episode.judged()

    def _tables(self, row: Row) -> Tables:
        tables = row.fields.get("tables")
        return base_tables(self.folder, self.seed) if tables is None else complete(tables)


class WorkplaceEpisode:
    """One try at one row. Holds a copy of the tables, nothing else, so there is nothing to leave behind."""

    def __init__(self, row: Row, tables: Tables, malformed_penalty: float) -> None:
        self._row, self._tables, self._penalty = row, tables, malformed_penalty
        self._database = Database(tables)
        self._tools = row.tools or tuple(tool.schema for tool in OFFERED)
        self._made: list[ToolCall] = []
        self._errors = 0
        self._fault: str | None = None

    async def start(self) -> Opening:
        """The row's messages, with all tools of the workplace where the row has none of its own."""
        return Opening(self._row.messages, self._tools)

    async def step(self, reply: Reply) -> Observation:
        """Results of the calls, errors among them. An answer without calls ends the episode."""
        return self.answer(reply)

    def answer(self, reply: Reply) -> Observation:
        """`step` for callers without an event loop."""
        self._fault = format_fault(reply)
        if self._fault is not None or not reply.tool_calls:
            return Observation(done=True)
        return Observation(tuple(self._result(call) for call in reply.tool_calls))

    def _result(self, call: ToolCall) -> dict[str, Any]:
        number = len(self._made)
        self._made.append(call)
        try:
            content = run(self._database, call, [tool["function"]["name"] for tool in self._tools])
        except ToolError as error:
            self._errors += 1
            content = f"Error: {error}"
        return {"role": "tool", "content": content, "tool_call_id": f"call_{number}"}

    async def verdict(self, trajectory: Trajectory) -> Verdict:
        """By the end state, also of an episode that was cut off: what it did not get to do is missing there."""
        return self.judged()

    def judged(self) -> Verdict:
        """The verdict on the calls so far."""
        try:
            gold = gold_calls(self._row.fields)
            wanted = self._after(gold)
        except (ValueError, ToolError) as error:
            return unjudged(f"the row's calls cannot be run: {error}")
        if self._fault is not None:
            return malformed(self._fault, self._penalty)
        found = self._database.end_state()
        different = [table for table in wanted if wanted[table] != found[table]]
        components = {"calls": float(len(self._made)), "errors": float(self._errors)}
        if different:
            return Verdict(0.0, components, {"reason": f"the end state differs in {', '.join(different)}"})
        unchanged = not any(gone or changed for gone, changed in wanted.values())
        if unchanged and matching(gold, self._made, _same_call) < len(gold):
            return wrong("the row asks for lookups alone, and not all of them were made")
        return Verdict(1.0, components)

    def _after(self, calls: Iterable[ToolCall]) -> Mapping[str, Any]:
        database = Database(self._tables)
        for call in calls:
            run(database, call)
        return database.end_state()

    async def close(self) -> None:
        """Nothing is open."""


def gold_calls(fields: Mapping[str, Any]) -> list[ToolCall]:
    """The calls of a row. ValueError: they cannot be read, there are none, or the environment has another name."""
    if fields.get("environment_name") not in _NAMES:
        raise ValueError(
            f"environment_name is {fields['environment_name']!r}; allowed are workbench, workplace_assistant"
        )
    calls = _parsed(fields.get("ground_truth"))
    calls = [calls] if isinstance(calls, Mapping) else calls
    if not isinstance(calls, list) or not calls:
        raise ValueError("ground_truth holds no calls, so there is no end state to compare with")
    parsed = []
    for call in calls:
        call = _parsed(call)
        arguments = _parsed(call.get("arguments") or {}) if isinstance(call, Mapping) else None
        if not isinstance(arguments, Mapping) or not isinstance(call.get("name"), str):
            raise ValueError(f"{call!r} is no call; it must have a name and arguments, an object or its JSON text")
        parsed.append(ToolCall(call["name"], arguments))
    return parsed


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _same_call(call: ToolCall, other: ToolCall) -> bool:
    return call.name == other.name and same_value(call.arguments, other.arguments, ignore_case=True)
