"""The routed experts: each chosen one is multiplied with its own tokens, in tiles, and no token is dropped."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from cascade_jax.model.dispatch import Places, copies, inverse, of_each, running_sums, weighted_sum
from cascade_jax.model.linear import EXACT, LowRank, Weight
from cascade_jax.model.mlp import activate

LARGEST_TILE = 128  # rows of one expert that are multiplied at a time


class Experts(NamedTuple):
    """The routed experts' matrices; gate is None for relu^2."""

    up_EDF: Float[Weight, "E D F"]
    down_EFD: Float[Weight, "E F D"]
    gate_EDF: Float[Weight, "E D F"] | None


@jax.custom_vjp
def tile_matmul(
    x_ntD: Float[Array, "n t D"], weight_EDF: Float[Array, "E D F"], experts_n: Int[Array, " n"]
) -> Float[Array, "n t F"]:
    """Tile i times the matrix of expert experts_n[i]; float32 accumulation, x's dtype out."""

    def step(_: None, tile: tuple[Array, Array]) -> tuple[None, Array]:
        x, e = tile
        weight = jax.lax.dynamic_index_in_dim(weight_EDF, e, keepdims=False).astype(x.dtype)
        y = jnp.matmul(x, weight, precision=EXACT, preferred_element_type=jnp.float32)
        return None, y.astype(x.dtype)

    return jax.lax.scan(step, None, (x_ntD, experts_n))[1]


def _tile_matmul_forward(x: Array, weight: Array, experts: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    return tile_matmul(x, weight, experts), (x, weight, experts)


def _tile_matmul_backward(saved: tuple[Array, Array, Array], dy: Array) -> tuple[Array, Array, None]:
    x, weight, experts = saved
    dx = tile_matmul(dy, weight.swapaxes(1, 2), experts)
    return dx, tile_products(x, dy, experts, weight.shape[0]).astype(weight.dtype), None


def tile_products(
    x_ntD: Float[Array, "n t D"], dy_ntF: Float[Array, "n t F"], experts_n: Int[Array, " n"], experts: int
) -> Float[Array, "experts D F"]:
    """For each expert the sum of x^T dy over its tiles, float32.

    The plain transpose of tile_matmul would add a whole (E, D, F) array for each tile; this adds to one expert's.
    """

    def step(total: Array, tile: tuple[Array, Array, Array]) -> tuple[Array, None]:
        x, dy, e = tile
        dw = jnp.matmul(x.T, dy, precision=EXACT, preferred_element_type=jnp.float32)
        dw += jax.lax.dynamic_index_in_dim(total, e, keepdims=False)
        return jax.lax.dynamic_update_index_in_dim(total, dw, e, 0), None

    total = jnp.zeros((experts, x_ntD.shape[2], dy_ntF.shape[2]), jnp.float32)
    return jax.lax.scan(step, total, (x_ntD, dy_ntF, experts_n))[0]


tile_matmul.defvjp(_tile_matmul_forward, _tile_matmul_backward)


def tile_project(
    x_ntD: Float[Array, "n t D"], weight_EDF: Float[Weight, "E D F"], experts_n: Int[Array, " n"]
) -> Float[Array, "n t F"]:
    """tile_matmul, with adapters where the weight has them."""
    if not isinstance(weight_EDF, LowRank):
        return tile_matmul(x_ntD, weight_EDF, experts_n)
    low = tile_matmul(tile_matmul(x_ntD, weight_EDF.a, experts_n), weight_EDF.b, experts_n)
    return tile_matmul(x_ntD, weight_EDF.base, experts_n) + weight_EDF.scale * low


def in_tiles(ids_kN: Int[Array, "k N"], *, experts: int, tile: int, tiles: int) -> tuple[Places, Int[Array, " tiles"]]:
    """Slots by expert, in order, each expert's padded to whole tiles; and the expert of each tile.

    An id of `experts` is no expert's; of others a token has none twice.
    """
    chosen_EN = (ids_kN[:, None] == jnp.arange(experts)[:, None]).any(0)
    upto_EN = running_sums(chosen_EN)
    tile_counts = -(-upto_EN[:, -1] // tile)
    tile_ends = jnp.cumsum(tile_counts)
    first_place = (tile_ends - tile_counts) * tile
    expert_of_tile = jnp.minimum(jnp.searchsorted(tile_ends, jnp.arange(tiles), side="right"), experts - 1)
    place_kN = of_each(first_place[:, None] + upto_EN - 1, ids_kN)
    place_kN = jnp.where(ids_kN < experts, place_kN, tiles * tile)
    return Places(inverse(place_kN.reshape(-1), tiles * tile), place_kN), expert_of_tile


def chosen_experts(
    experts: Experts,
    x_ND: Float[Array, "N D"],
    ids_kN: Int[Array, "k N"],
    weights_kN: Float[Array, "k N"],
    *,
    most: int | None = None,
) -> Float[Array, "N D"]:
    """The chosen experts alone: (token, slot) rows sorted by expert, each expert's rows padded to whole tiles. float32.

    There is room for every row wherever it is sent, so no token is ever dropped. A token's ids are distinct, but an id
    of E is no expert's; `most` is how many ids at the most (all by default) are an expert's.
    """
    E = experts.up_EDF.shape[0]
    rows = ids_kN.size if most is None else min(most, ids_kN.size)
    tile = min(LARGEST_TILE, max(8, 2 ** (rows // (2 * E)).bit_length()))  # about a quarter of the padding is waste
    tiles = rows // tile + min(E, rows)
    places, expert_of_tile = in_tiles(ids_kN, experts=E, tile=tile, tiles=tiles)
    x = copies(x_ND, places).reshape(tiles, tile, -1)
    gate = None if experts.gate_EDF is None else tile_project(x, experts.gate_EDF, expert_of_tile)
    hidden = activate(tile_project(x, experts.up_EDF, expert_of_tile), gate)
    y = tile_project(hidden, experts.down_EFD, expert_of_tile).reshape(tiles * tile, -1)
    return weighted_sum(y, weights_kN, places)
