"""Weights that would spoil a run from its first step."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cascade_jax.conformance.finding import Finding
from cascade_jax.data.tokenizer import Tokenizer
from cascade_jax.leaves import by_path
from cascade_jax.model.convert.load import ZERO_NORM
from cascade_jax.optimizer import is_router_bias
from cascade_jax.types import Params

SHOWN = 6  # names in one line


def finite(params: Params) -> Finding:
    """No weight is NaN or infinite."""
    broken = [path for path, good in by_path(jax.device_get(_are_finite(params))).items() if not good]
    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    if not broken:
        return Finding("weights", True, f"all {numbers:,} numbers are finite")
    text = f"NaN or infinite numbers in {_listed(broken)}"
    return Finding("weights", False, text, "fetch or convert the checkpoint again, or take an earlier one.")


def router_bias(params: Params) -> Finding | None:
    """The routers' correction biases are float32. None where the network has none."""
    biases = [(path, leaf) for path, leaf in by_path(params).items() if is_router_bias(path)]
    coarse = [f"{path} ({leaf.dtype})" for path, leaf in biases if leaf.dtype != jnp.float32]
    if not biases:
        return None
    if not coarse:
        return Finding("router biases", True, f"all {len(biases)} are float32")
    text = f"{_listed(coarse)}: the balancing steps are lost in rounding, and near ties go to other experts"
    return Finding("router biases", False, text, "convert again from a source that stores them in float32.")


def zero_embeddings(params: Params, tokenizer: Tokenizer, used: Iterable[int]) -> Finding:
    """No token that the template writes (`used`) has an embedding of zeros; rows that nothing writes may be zero.

    The norm of a zero vector has a derivative of 1/sqrt(eps), some 300: the first step on it explodes.
    """
    zero = set(np.flatnonzero(np.asarray(_norms(params["embedding"])) < ZERO_NORM).tolist())
    hit = sorted(zero & {int(i) for i in used})
    if not hit:
        unused = f"; {len(zero)} that it does not write are" if zero else ""
        return Finding("zero embeddings", True, f"none of a token that the template writes{unused}")
    names = _listed([f"{tokenizer.decode([i])!r} ({i})" for i in hit])
    fix = (
        "python -m launch.convert --hf FOLDER --output NEW --repair_embeddings, or repair_embeddings=True in a config."
    )
    return Finding("zero embeddings", False, f"norm below {ZERO_NORM:g} for {names}", fix)


@jax.jit
def _are_finite(params: Params) -> Any:
    return jax.tree.map(lambda leaf: jnp.isfinite(leaf).all(), params)


@jax.jit
def _norms(embedding_VD: Float[Array, "V D"]) -> Float[Array, " V"]:
    return jnp.linalg.norm(embedding_VD.astype(jnp.float32), axis=1)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
