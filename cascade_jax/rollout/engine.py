"""What writes the continuations: the protocol that every engine keeps, and the engine that runs in this process."""

from collections.abc import Sequence
from typing import Protocol

import jax
import numpy as np

from cascade_jax.config import ModelConfig, SamplingConfig
from cascade_jax.mesh import ROLLOUT_AXES, batch_shares
from cascade_jax.model import apply
from cascade_jax.rollout.sampler import Drawn, sample
from cascade_jax.types import Group, Params, Prompt, Sample


class Engine(Protocol):
    """Turns prompts into groups of samples, in the order of the prompts."""

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingConfig, *, samples_per_prompt: int, seed: int
    ) -> list[Group]:
        """The same weights, seed and place (the prompt's own, or else that in `prompts`) give the same samples."""
        ...

    def load(self, params: Params, version: int) -> None:
        """The weights to sample from, from now on; `version` is written on every sample."""
        ...


class LocalEngine:
    """Samples on this process's devices, with a bounded number of compiled programs.

    A call sorts its prompts by length and cuts them into batches of one size: the next power of two, or as many as
    `batch` allows. Each batch is padded to the smallest bucket that holds its longest prompt.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: Params,
        *,
        stop_ids: Sequence[int],
        buckets: Sequence[int],
        batch: int = 512,
        version: int = 0,
    ) -> None:
        """buckets: prompt lengths that programs are compiled for. batch: the most samples decoded at a time."""
        self.config = config
        self.load(params, version)
        self.stop_ids = tuple(int(i) for i in stop_ids)
        self.buckets = tuple(sorted(buckets))
        self.batch = batch

    def load(self, params: Params, version: int) -> None:
        self.params = apply.placed(self.config, apply.cast(self.config, params), at_rest=False)
        self.version = version

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingConfig, *, samples_per_prompt: int, seed: int
    ) -> list[Group]:
        """ValueError where a prompt is empty or longer than the largest bucket."""
        self._check(prompts)
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index].ids))
        size = min(_power_of_two(len(prompts)), max(1, self.batch // samples_per_prompt))
        shares = batch_shares(ROLLOUT_AXES)
        size = -(-size // shares) * shares
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        groups: dict[int, Group] = {}
        for part in parts:
            drawn = self._draw(
                [(_place(prompts, index), prompts[index].ids) for index in part],
                size,
                sampling,
                samples_per_prompt,
                seed,
            )
            for row, index in enumerate(part):
                groups[index] = Group(prompts[index], _samples(drawn, row, self.version))
        return [groups[index] for index in range(len(prompts))]

    def _draw(
        self,
        prompts: Sequence[tuple[int, np.ndarray]],
        size: int,
        sampling: SamplingConfig,
        samples_per_prompt: int,
        seed: int,
    ) -> Drawn:
        """prompts: (place, ids) of each. Rows without a prompt have length 0."""
        longest = max(len(ids) for _, ids in prompts)
        bucket = next(length for length in self.buckets if length >= longest)
        ids_PT = np.zeros((size, bucket), np.int32)
        lengths_P = np.zeros(size, np.int32)
        index_P = np.zeros(size, np.int32)
        for row, (place, ids) in enumerate(prompts):
            ids_PT[row, : len(ids)] = ids
            lengths_P[row] = len(ids)
            index_P[row] = place
        return sample(
            self.config,
            self.params,
            ids_PT,
            lengths_P,
            key=jax.random.key(seed),
            index_P=index_P,
            samples_per_prompt=samples_per_prompt,
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            stop_ids=self.stop_ids,
        )

    def _check(self, prompts: Sequence[Prompt]) -> None:
        for index, prompt in enumerate(prompts):
            if not 0 < len(prompt.ids) <= self.buckets[-1]:
                raise ValueError(
                    f"Prompt {index} (row {prompt.row.id}) has {len(prompt.ids)} tokens, allowed are 1 to "
                    f"{self.buckets[-1]}; drop the row or add a larger length to `buckets`."
                )


def _place(prompts: Sequence[Prompt], index: int) -> int:
    """What the randomness of a prompt's samples is derived from."""
    own = prompts[index].place
    return index if own is None else own


def _samples(drawn: Drawn, row: int, version: int) -> tuple[Sample, ...]:
    """The samples of one prompt, cut to their lengths."""
    samples = []
    for g, length in enumerate(drawn.lengths_PG[row]):
        samples.append(
            Sample(
                ids=drawn.ids_PGN[row, g, :length],
                logprobs=drawn.logprobs_PGN[row, g, :length],
                mask=np.ones(length, bool),
                stop_reason="stop" if drawn.stopped_PG[row, g] else "length",
                version=version,
            )
        )
    return tuple(samples)


def _power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << max(count - 1, 0).bit_length()
