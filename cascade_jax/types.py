"""What the stations hand to each other, and the dimension letters used in names and annotations.

P prompts, G samples per prompt, B rows, T tokens, D width, V vocabulary, H heads, K kv heads, N state, E experts.
Every mask is bool and True means "takes part".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

Params = dict[str, Any]  # nested dict of arrays


class Weighted(NamedTuple):
    """A mean that has not been divided yet, so that it adds exactly over micro-batches and hosts."""

    total: Array
    weight: Array

    def __add__(self, other: "Weighted") -> "Weighted":
        return Weighted(self.total + other.total, self.weight + other.weight)

    @property
    def mean(self) -> Array:
        """total / weight; 0, with gradient 0, where the weight is 0."""
        empty = self.weight == 0
        return jnp.where(empty, 0.0, self.total) / jnp.where(empty, 1.0, self.weight)


def combine(a: Mapping[str, Weighted], b: Mapping[str, Weighted]) -> dict[str, Weighted]:
    """Metrics of two parts of one batch: sums, but the maximum for names that end in `_max` (weight 1)."""

    def one(name: str) -> Weighted:
        if name.endswith("_max"):
            return Weighted(jnp.maximum(a[name].total, b[name].total), jnp.ones_like(a[name].weight))
        return a[name] + b[name]

    return {name: one(name) for name in a}


@dataclass(frozen=True)
class Row:
    """One validated row of a data set (NeMo-Gym JSONL). `kind` names the verifier, `fields` holds what it needs."""

    id: str
    kind: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)  # unknown columns, kept as they came


@dataclass(frozen=True)
class Prompt:
    """A rendered row, ready to be continued. ids: (T,) int32, ending where the assistant starts to write.

    `place`: what an engine derives the randomness of its samples from, in place of the prompt's place in the list.
    """

    ids: np.ndarray
    row: Row
    domain: str
    place: int | None = None


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: Mapping[str, Any]


UNCLOSED_THOUGHT = "the thought is not closed"


@dataclass(frozen=True)
class Reply:
    """Sampled ids, read back. `malformed` says what was wrong with the format, else it is None."""

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    malformed: str | None = None


@dataclass(frozen=True)
class Segment:
    """A stretch of an episode that does not continue the tokens before it. prompt: (m,); the rest as in Sample."""

    prompt: np.ndarray
    ids: np.ndarray
    logprobs: np.ndarray
    mask: np.ndarray


@dataclass(frozen=True)
class Sample:
    """One continuation. ids, logprobs, mask: (n,); logprobs are those of the distribution that was sampled from.

    An episode of several turns is one sample: its ids hold what the environment said too (mask False, log-prob 0), and
    `later` holds what came after the chain of tokens broke. `reply` is the last one.
    """

    ids: np.ndarray  # int32, the stop id included
    logprobs: np.ndarray  # float32
    mask: np.ndarray  # bool, True where the token is trained
    stop_reason: str  # "stop" or "length"; of an episode also "turns" (its turn limit), or "broken" (its environment)
    version: int  # of the policy that wrote it
    reply: Reply | None = None
    later: tuple[Segment, ...] = ()
    turns: int = 1  # that the assistant wrote
    verdict: "Verdict | None" = None  # of the environment, where there is one

    @property
    def truncated(self) -> bool:
        """Whether a limit, of tokens or of turns, ended it."""
        return self.stop_reason in ("length", "turns")

    @property
    def written(self) -> int:
        """How many tokens the policy wrote."""
        return int(self.mask.sum()) + sum(int(segment.mask.sum()) for segment in self.later)


@dataclass(frozen=True)
class Group:
    """All samples of one prompt."""

    prompt: Prompt
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class Verdict:
    """A reward, or the reason why none could be had; then `reward` is NaN and the sample is kept out of training.

    `components` are numbers for the metrics, `info` is for transcripts: what was extracted, what failed.
    """

    reward: float
    components: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    no_verdict: str | None = None


@dataclass(frozen=True)
class Sequence:
    """What packing takes: ids (T,) int32, trained (T,) bool, fields (T,) that belong to the token itself."""

    ids: np.ndarray
    trained: np.ndarray
    fields: Mapping[str, np.ndarray] = field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """Packed rows. Position t predicts targets_BT[b, t]; mask and fields at t belong to that target."""

    ids_BT: Int[Array, "B T"]
    segments_BT: Int[Array, "B T"]  # 0 = padding, 1.. = packed sequences
    targets_BT: Int[Array, "B T"]  # the next id of the same segment, 0 where there is none
    mask_BT: Bool[Array, "B T"]
    fields: dict[str, Float[Array, "B T"]] = field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """All that an update changes. `step` counts optimizer steps, those with a gradient that is not finite too."""

    params: Params
    optimizer_state: Any
    step: Int[Array, ""]
