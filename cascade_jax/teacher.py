"""Log-probs of given tokens under a frozen model: a domain's teacher in distillation, the reference of a KL term."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import numpy as np
from jaxtyping import Array, Float

from cascade_jax.config import ModelConfig
from cascade_jax.data.packing import pack, place
from cascade_jax.logprob import token_logprobs
from cascade_jax.mesh import batch_shares, by_rows
from cascade_jax.model import apply
from cascade_jax.offload import to_device
from cascade_jax.processes import on_host
from cascade_jax.types import Batch, Params
from cascade_jax.types import Sequence as Tokens


@partial(jax.jit, static_argnames=("config", "temperature", "top_p", "top_k"))
def teacher_logprobs(
    config: ModelConfig,
    params: Params,
    batch: Batch,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
) -> Float[Array, "B T"]:
    """Log-prob of each target of a packed batch, float32; -inf for a target that top-p or top-k cuts."""
    hidden_BTD, _ = apply.hidden(config, params, batch.ids_BT, batch.segments_BT)
    logprobs_BT, _ = token_logprobs(
        config, params, hidden_BTD, batch.targets_BT, temperature=temperature, top_p=top_p, top_k=top_k
    )
    return logprobs_BT


def score(
    config: ModelConfig,
    teachers: Mapping[str, Params],
    sequences: Sequence[Tokens],
    domains: Sequence[str],
    *,
    length: int,
    rows: int = 8,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
) -> list[np.ndarray]:
    """For each sequence, (T,) float32 log-probs of its tokens given those before, under the one teacher of its domain.

    The first token follows nothing and gets 0. Domains that share their teacher's params are packed together, and what
    was sampled twice is scored once. Every pass takes `rows` rows of `length` tokens, so one program serves all
    teachers and all calls; teachers in the host's memory are on the devices one at a time, and only here. ValueError
    where a domain has no teacher or a sequence is longer than `length`.
    """
    unknown = sorted(set(domains) - set(teachers))
    if unknown:
        raise ValueError(f"The domains {unknown} have no teacher, only {sorted(teachers)} have; name one for each.")
    shared: dict[int, tuple[Params, dict[bytes, list[int]]]] = {}
    for index, domain in enumerate(domains):
        params = teachers[domain]
        same = shared.setdefault(id(params), (params, {}))[1]
        same.setdefault(np.asarray(sequences[index].ids, np.int32).tobytes(), []).append(index)
    forward = partial(teacher_logprobs, config, temperature=temperature, top_p=top_p, top_k=top_k)
    scored: list[np.ndarray] = [np.zeros(0, np.float32)] * len(sequences)
    for params, same in shared.values():
        mine = [sequences[indices[0]] for indices in same.values()]
        found = _score(partial(forward, to_device(params)), mine, length, rows)
        for indices, logprobs in zip(same.values(), found, strict=True):
            for index in indices:
                scored[index] = logprobs
    return scored


def _score(
    forward: Callable[[Batch], Float[Array, "B T"]], sequences: Sequence[Tokens], length: int, rows: int
) -> list[np.ndarray]:
    """Packs, scores `rows` rows at a time, and cuts the sequences out again, in order."""
    rows = -(-rows // batch_shares()) * batch_shares()
    placements = place([len(sequence.ids) for sequence in sequences], length)
    passes = -(-max(row + 1 for row, _ in placements) // rows)
    batch = pack([Tokens(s.ids, s.trained) for s in sequences], length, rows=passes * rows)
    parts = [forward(by_rows(jax.tree.map(lambda a, i=i: a[i * rows : (i + 1) * rows], batch))) for i in range(passes)]
    logprobs_BT = np.concatenate(on_host(parts))
    scored = []
    for sequence, (row, start) in zip(sequences, placements, strict=True):
        predicted = logprobs_BT[row, start : start + len(sequence.ids) - 1]
        scored.append(np.concatenate([np.zeros(1, np.float32), predicted]))
    return scored
