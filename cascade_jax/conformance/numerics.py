"""Whether the ways to run a network agree on this checkpoint: whole rows, a cache, packed rows, the sampler."""

import functools
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from cascade_jax.config import ModelConfig, SamplingConfig
from cascade_jax.conformance.finding import Finding
from cascade_jax.data.packing import pack, place
from cascade_jax.logprob import token_logprobs
from cascade_jax.model import apply
from cascade_jax.model.cache import Cache
from cascade_jax.rollout.engine import LocalEngine
from cascade_jax.stages import batches
from cascade_jax.types import Batch, Params, Prompt, Row, Sequence

EIGHTHS = (3, 5, 2, 4, 1, 5, 3, 2)  # lengths of the probes, in eighths of a row
ROWS = len(EIGHTHS)  # of every batch: as many as training has at least
FIX = (
    "run again with JAX_PLATFORMS=cpu; where it holds there, train with dtype=float32 on this device; where it does "
    "not, rounding decides what these weights say (look for huge weights), and RL on them would learn from noise."
)


class Allowed(NamedTuple):
    """The largest gaps without fault: of logits, in units of the largest; of log-probs, at one token and on average.

    Those of log-probs are for logits of spread 1 (standard deviation) and grow with it, as rounding does.
    """

    logits: float
    largest: float
    mean: float


# float32: what the tests hold the code to. bfloat16: three times what SmolLM2-135M shows on a CPU (0.06, 0.05, 0.007).
ALLOWED = {"float32": Allowed(1e-5, 2e-5, 2e-6), "bfloat16": Allowed(0.2, 0.15, 0.02)}


def decode_path(config: ModelConfig, params: Params, ids: Int[np.ndarray, " N"]) -> Finding:
    """Prefill, then one token at a time, give the logits of the full forward pass. ids: any text; pieces are used."""
    probes = _probes(config, ids)
    alone = _separate(config, probes)
    full = _logits(config, params, alone)
    rows, lengths = np.arange(ROWS), np.array([len(probe.ids) for probe in probes], np.int32)
    seen = lengths // 2
    logits, cache = _prefill(config, params, alone.ids_BT, seen)
    gaps = [_gaps(logits, full[rows, seen - 1])]
    for _ in range(int((lengths - seen).max())):
        live, now = seen < lengths, np.minimum(seen, lengths - 1)
        logits, cache = _decode(config, params, alone.ids_BT[rows, now], cache)
        gaps.append(_gaps(logits, full[rows, now])[live])
        seen = seen + 1
    return _of_logits("decode path", "the full forward pass", config, gaps)


def packing(config: ModelConfig, params: Params, ids: Int[np.ndarray, " N"]) -> Finding:
    """Packed rows give the logits of separate rows. ids: any text; pieces of it are used."""
    probes, length = _probes(config, ids), row_length(config)
    apart = _logits(config, params, _separate(config, probes))
    packed = _logits(config, params, pack(probes, length, rows=ROWS))
    sizes = [len(probe.ids) for probe in probes]
    gaps = [
        _gaps(packed[row, start : start + size], apart[i, :size])
        for i, (size, (row, start)) in enumerate(zip(sizes, place(sizes, length, rows=ROWS), strict=True))
    ]
    return _of_logits("packed rows", "separate rows", config, gaps)


def sampler_gap(
    config: ModelConfig, params: Params, ids: Int[np.ndarray, " N"], *, temperature: float = 1.0, top_p: float = 1.0
) -> Finding:
    """The engine's log-probs of what it drew are those that the trainer computes. ids: any text, cut into prompts."""
    length = row_length(config)
    bucket = max(EIGHTHS) * length // 8
    sampling = SamplingConfig(temperature, top_p, max_tokens=length - bucket)
    engine = LocalEngine(config, params, stop_ids=(), buckets=(bucket,))
    prompts = [Prompt(probe.ids, Row("probe", "", ()), domain="") for probe in _probes(config, ids)]
    groups = engine.generate(prompts, sampling, samples_per_prompt=1, seed=0)
    batch = batches.pack_rows(
        [batches.sequence(group, group.samples[0], {}) for group in groups], length, micro_batches=1
    )
    hidden = _hidden(config, params, batch.ids_BT, batch.segments_BT)
    scored = _scored(config, params, hidden, batch.targets_BT, temperature=temperature, top_p=top_p)
    gaps = np.abs(np.asarray(scored) - batch.fields["sampler_logprobs"])[batch.mask_BT]
    spread = float(np.asarray(_head(config, params, hidden)).std(-1)[batch.mask_BT].mean())
    return _of_logprobs(f"sampler, T {temperature:g} top_p {top_p:g}", config, gaps, spread / temperature)


def row_length(config: ModelConfig) -> int:
    """Tokens in a probe row: short, and past one chunk where Mamba layers hand a state from chunk to chunk."""
    return max(64, config.chunk + 32) if "M" in config.pattern else 64


def _probes(config: ModelConfig, ids: np.ndarray) -> list[Sequence]:
    """Pieces of the text, one after the other, from its beginning again where it ends."""
    sizes = [eighths * row_length(config) // 8 for eighths in EIGHTHS]
    pieces = np.split(np.resize(ids, sum(sizes)).astype(np.int32), np.cumsum(sizes)[:-1])
    return [Sequence(piece, np.ones(len(piece), bool)) for piece in pieces]


def _separate(config: ModelConfig, probes: list[Sequence]) -> Batch:
    """A row for each, padded on the right."""
    rows = [pack([probe], row_length(config)) for probe in probes]
    return jax.tree.map(lambda *parts: np.concatenate(parts), *rows)


def _logits(config: ModelConfig, params: Params, batch: Batch) -> Float[np.ndarray, "B T V"]:
    return np.asarray(_head(config, params, _hidden(config, params, batch.ids_BT, batch.segments_BT)))


# One program through the layers serves every check; most of the time goes into compiling it.
@functools.partial(jax.jit, static_argnames="config")
def _hidden(
    config: ModelConfig, params: Params, ids_BT: Int[Array, "B T"], segments_BT: Int[Array, "B T"]
) -> Float[Array, "B T D"]:
    return apply.hidden(config, params, ids_BT, segments_BT)[0]


_head = jax.jit(apply.logits, static_argnames="config")
_decode = jax.jit(apply.decode, static_argnames="config")


@functools.partial(jax.jit, static_argnames="config")
def _prefill(
    config: ModelConfig, params: Params, ids_BT: Int[Array, "B T"], lengths_B: Int[Array, " B"]
) -> tuple[Float[Array, "B V"], Cache]:
    return apply.prefill(config, params, ids_BT, lengths_B, apply.empty_cache(config, *ids_BT.shape))


@functools.partial(jax.jit, static_argnames=("config", "temperature", "top_p"))
def _scored(
    config: ModelConfig,
    params: Params,
    hidden_BTD: Float[Array, "B T D"],
    targets_BT: Int[Array, "B T"],
    *,
    temperature: float,
    top_p: float,
) -> Float[Array, "B T"]:
    return token_logprobs(config, params, hidden_BTD, targets_BT, temperature=temperature, top_p=top_p)[0]


def _gaps(a: Float[np.ndarray, "N V"], b: Float[np.ndarray, "N V"]) -> Float[np.ndarray, " N"]:
    """The largest difference at each place, in units of the largest logit there."""
    with np.errstate(invalid="ignore"):  # logits that are not finite give NaN, which no limit allows
        return np.abs(np.asarray(a) - b).max(-1) / np.abs(b).max(-1)


def _of_logits(name: str, other: str, config: ModelConfig, gaps: list[np.ndarray]) -> Finding:
    places, largest, allowed = sum(map(len, gaps)), float(np.concatenate(gaps).max()), ALLOWED[config.dtype].logits
    good = largest <= allowed  # False for NaN
    text = f"logits at {places} places differ from {other} by {largest:.1e} of the largest ({allowed:g} allowed)"
    return Finding(name, good, text, "" if good else FIX)


def _of_logprobs(name: str, config: ModelConfig, gaps: Float[np.ndarray, " n"], spread: float) -> Finding:
    """spread: of the logits at the temperature; their rounding errors grow with it."""
    _, largest, mean = (limit * max(1.0, spread) for limit in ALLOWED[config.dtype])
    # A token at the very edge of top-p may be cut by the trainer; training gives it no weight.
    known = gaps[np.isfinite(gaps)]
    cut = gaps.size - known.size
    at_most, average = (float(known.max()), float(known.mean())) if known.size else (np.inf, np.inf)
    good = at_most <= largest and average <= mean and cut <= mean * gaps.size
    text = (
        f"log-probs of {gaps.size} tokens differ from the trainer's by {at_most:.1e} at most ({largest:.1e} allowed), "
        f"{average:.1e} on average ({mean:.1e} allowed)"
    )
    text += f"; {cut} are out of the trainer's top_p" if cut else ""
    return Finding(name, good, text, "" if good else FIX)
