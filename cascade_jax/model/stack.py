"""The layers of a network one after the other: one loop over the unit that its pattern repeats, so that compiling takes
as long as one unit, however many there are."""

import functools
import itertools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from cascade_jax.config import ModelConfig
from cascade_jax.model.moe import Routed
from cascade_jax.types import Params

REMATERIALISE_FROM = 512  # width from which `remat="auto"` computes a layer's activations again rather than keep them
FEWEST_REPEATS = 3  # in a loop; below, compiling it one by one is as quick

# (letter, its weights, x) -> x, and what an E layer reports
Layer = Callable[[str, Params, Array], tuple[Array, Routed | None]]


def repeats(pattern: str) -> tuple[str, list[str]]:
    """The pattern as repeats of one unit, some without some of its letters, as few as there can be.

    "MEMEM*EME" is the unit "M*E" four times: "ME", "ME", "M*E", "ME".
    """

    def cut(unit: str) -> list[str]:
        parts, last = [""], -1
        for letter in pattern:
            if unit.index(letter) <= last:
                parts.append("")
            parts[-1] += letter
            last = unit.index(letter)
        return parts

    orders = map("".join, itertools.permutations(dict.fromkeys(pattern)))
    unit = min(orders, key=lambda unit: len(cut(unit)))
    return unit, cut(unit)


def through(
    config: ModelConfig,
    apply: Callable[[str, Params, Array, Array, Array], tuple[Array, Routed | None]],
    layers: Params,
    x_BTD: Float[Array, "B T D"],
    segments_BT: Int[Array, "B T"],
    positions_BT: Int[Array, "B T"],
) -> tuple[Float[Array, "B T D"], Routed | None]:
    """x after all layers ("0", "1", ... of `layers`), and what the E layers report, stacked in their order."""
    unit, parts = repeats(config.pattern)
    looped = len(parts) >= FEWEST_REPEATS
    again = functools.partial(jax.checkpoint, prevent_cse=not looped)  # a loop's passes are not merged anyway
    keep = _policy(config)

    def layer(letter: str, params: Params, x: Array) -> tuple[Array, Routed | None]:
        return apply(letter, params, x, segments_BT, positions_BT)

    layer = again(layer, static_argnums=0) if keep == "layer" else layer
    if looped:
        return _loop(layer, unit, parts, layers, x_BTD, again if keep == "unit" else lambda run: run)
    first, reports = 0, []
    for part in parts:
        run = functools.partial(_in_turn, layer, part)
        run = again(run) if keep == "unit" else run
        x_BTD, found = run([layers[str(first + i)] for i in range(len(part))], x_BTD)
        first, reports = first + len(part), reports + found
    return x_BTD, _stacked(*reports) if reports else None


def _in_turn(layer: Layer, letters: str, weights: list[Params], x: Array) -> tuple[Array, list[Routed]]:
    reports = []
    for letter, params in zip(letters, weights, strict=True):
        x, report = layer(letter, params, x)
        reports += [] if report is None else [report]
    return x, reports


def _loop(
    layer: Layer, unit: str, parts: list[str], layers: Params, x: Array, again: Callable[[Callable], Callable]
) -> tuple[Array, Routed | None]:
    pattern = "".join(parts)
    stacks = {
        letter: _stacked(*(layers[str(i)] for i, other in enumerate(pattern) if other == letter)) for letter in unit
    }
    everywhere = [letter for letter in unit if all(letter in part for part in parts)]
    present = {letter: np.array([letter in part for part in parts]) for letter in unit}
    # Weights that every repeat has go with the loop; of others it takes the next where a repeat has them.
    number = {letter: np.maximum(np.cumsum(there) - 1, 0) for letter, there in present.items()}

    @again
    def one(x: Array, given: tuple[Mapping[str, Params], Mapping[str, Array], Mapping[str, Array]]) -> tuple:
        weights, there, index = given
        reports = []
        for letter in unit:
            if letter in everywhere:
                x, report = layer(letter, weights[letter], x)
            else:
                x, report = _if_there(layer, letter, there[letter], stacks[letter], index[letter], x)
            reports += [] if report is None else [report]
        return x, reports[0] if reports else None

    x, reports = jax.lax.scan(one, x, ({letter: stacks[letter] for letter in everywhere}, present, number))
    return x, jax.tree.map(lambda rows: rows[present["E"]], reports)


def _if_there(layer: Layer, letter: str, there: Array, stack: Params, index: Array, x: Array) -> tuple:
    def run(x: Array) -> tuple[Array, Routed | None]:
        return layer(letter, jax.tree.map(lambda rows: rows[index], stack), x)

    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(run, x)[1])
    return jax.lax.cond(there, run, lambda x: (x, nothing), x)


def _stacked(*trees: Params | Routed) -> Params | Routed:
    return jax.tree.map(lambda *rows: jnp.stack(rows), *trees)


def _policy(config: ModelConfig) -> str:
    if config.remat != "auto":
        return config.remat
    return "layer" if config.width >= REMATERIALISE_FROM else "none"
