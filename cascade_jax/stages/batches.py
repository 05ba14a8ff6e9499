"""From groups to a packed batch, and the forward pass that every loss starts from."""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cascade_jax.config import ModelConfig, SamplingConfig
from cascade_jax.data.packing import pack
from cascade_jax.logprob import token_logprobs
from cascade_jax.mesh import batch_shares, by_rows
from cascade_jax.model import apply
from cascade_jax.types import Batch, Group, Params, Sample, Segment, Sequence, Weighted

SMALLEST = 8  # rows: padding to it costs less than compiling for less


def sequence(
    group: Group, sample: Sample, fields: Mapping[str, float | np.ndarray], *, trained: bool = True
) -> Sequence:
    """Prompt + sample. Each field is a number for every sampled token, or an array (n,) over them; 0 on the prompt."""
    return _sequence(Segment(group.prompt.ids, sample.ids, sample.logprobs, sample.mask), fields, trained)


def sequences(group: Group, sample: Sample, fields: Mapping[str, float], *, trained: bool = True) -> list[Sequence]:
    """`sequence`, and one for each later segment of an episode; none where nothing was written at all."""
    first = [sequence(group, sample, fields, trained=trained)] if len(sample.ids) else []
    return first + [_sequence(segment, fields, trained) for segment in sample.later]


def _sequence(segment: Segment, fields: Mapping[str, float | np.ndarray], trained: bool) -> Sequence:
    prompt, count = segment.prompt, len(segment.ids)

    def spread(value: float | np.ndarray) -> np.ndarray:
        return np.concatenate([np.zeros(len(prompt)), np.broadcast_to(value, count)]).astype(np.float32)

    mask = np.concatenate([np.zeros(len(prompt), bool), segment.mask & trained])
    ids = np.concatenate([prompt, segment.ids]).astype(np.int32)
    per_token = {"sampler_logprobs": segment.logprobs, **fields}
    return Sequence(ids, mask, {name: spread(value) for name, value in per_token.items()})


def pack_rows(sequences: list[Sequence], length: int, *, micro_batches: int) -> Batch:
    """Packed rows, their number rounded up to a power of two: few shapes, so few compiled programs."""
    batch = pack(sequences, length)
    return by_rows(pack(sequences, length, rows=row_bucket(batch.ids_BT.shape[0], micro_batches)))


def row_bucket(rows: int, micro_batches: int) -> int:
    """The smallest power of two, from SMALLEST on, that holds `rows`, rounded up for micro-batches and mesh."""
    size, parts = 1 << (max(SMALLEST, rows) - 1).bit_length(), micro_batches * batch_shares()
    return -(-size // parts) * parts


def forward(
    model: ModelConfig, sampling: SamplingConfig, params: Params, batch: Batch
) -> tuple[Float[Array, "B T"], Float[Array, "B T"], apply.Aux]:
    """Log-probs and entropy of the batch's targets in the distribution that they were sampled from."""
    hidden, aux = apply.hidden(model, params, batch.ids_BT, batch.segments_BT)
    logprobs, entropy = token_logprobs(
        model,
        params,
        hidden,
        batch.targets_BT,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
    )
    return logprobs, entropy, aux


def with_expert_counts(model: ModelConfig, metrics: dict[str, Weighted], aux: apply.Aux) -> dict[str, Weighted]:
    """The loads that the router's correction bias is moved by, where the model has experts."""
    return {**metrics, "expert_counts": Weighted(aux.expert_counts, jnp.ones(()))} if "E" in model.pattern else metrics


def mean(values: list[float] | np.ndarray) -> Weighted:
    """A host-side average as a metric; weight 0 for an empty list."""
    return Weighted(np.float64(np.sum(values)), np.float64(len(values)))


Loss = Callable[[Params, Batch], tuple[Weighted, dict[str, Weighted]]]
