"""Seconds of a step, part by part: what bounds each is the slowest of arithmetic, memory and links."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cascade_jax.plan.chips import Chip
from cascade_jax.plan.flops import Work


@dataclass(frozen=True)
class Part:
    """One part's seconds on each resource, if it had nothing else to do; `bound` names the largest."""

    compute: float
    memory: float
    links: float

    @property
    def seconds(self) -> float:
        return max(self.compute, self.memory, self.links)

    @property
    def bound(self) -> Literal["compute", "memory", "links"]:
        times = {"compute": self.compute, "memory": self.memory, "links": self.links}
        return max(times, key=times.__getitem__)


def roofline(chip: Chip, work: Mapping[str, Work]) -> dict[str, Part]:
    """part -> its seconds. Parts run in turn, and within one all three resources at a time: a lower bound."""
    return {
        name: Part(part.flops / chip.flops, part.memory / chip.bandwidth, part.links / chip.links)
        for name, part in work.items()
        if part != Work()
    }


def seconds(parts: Mapping[str, Part]) -> float:
    return sum(part.seconds for part in parts.values())
