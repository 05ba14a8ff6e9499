"""Which rows are multiplied with which matrix: made once per layer, shared by both projections and all three passes."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from pallas_kernels.dispatch import target
from pallas_kernels.tuning import blocks

LANES = 128  # numbers that a TPU keeps side by side


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Plan:
    """Visits of row tiles. A visit multiplies those rows of one tile that are one group's with the group's matrix.

    Group G stands for the rows behind the last group's, which become zero. `aligned` tiles begin at multiples of the
    tile, so a tile may be visited for several groups, and every group is visited even without rows: its weight
    gradient has to be zeroed. Other tiles begin with their group's rows and groups without rows have none.
    """

    begin_S: Int[Array, " G+1"]  # first row of every group, the G-th is that of the rows behind
    end_S: Int[Array, " G+1"]
    group_V: Int[Array, " V"]  # the group of every visit, never decreasing
    weight_V: Int[Array, " V"]  # the matrix it needs; where it needs none, the one that is loaded already
    row_V: Int[Array, " V"]  # the first row of its tile
    visits: Int[Array, ""]  # how many of the V there are
    rows: int = field(metadata={"static": True})
    tile: int = field(metadata={"static": True})
    aligned: bool = field(metadata={"static": True})

    @property
    def groups(self) -> int:
        return self.begin_S.shape[0] - 1


def work_list(
    group_sizes_G: Int[Array, " G"], *, rows: int, tile: int | None = None, aligned: bool | None = None
) -> Plan:
    """The plan for `rows` rows that are sorted by group; sum(group_sizes) <= rows, which is not checked.

    tile: rows multiplied at a time, None takes the tuned number. aligned: None takes what the device's kernel needs
    (a TPU reads whole tiles of memory, so True there).
    """
    groups = group_sizes_G.shape[0]
    if tile is None:
        operation = "grouped_matmul_gpu" if target().platform == "gpu" else "grouped_matmul"
        tile = blocks(operation, jnp.bfloat16, rows=rows, groups=groups)["tile"]
    if tile < 1 or tile % 8:
        raise ValueError(f"grouped_matmul: a row tile of {tile} is no positive multiple of 8; None takes the tuned one")
    if aligned is None:
        aligned = target().platform == "tpu"
    group_sizes_G = group_sizes_G.astype(jnp.int32)
    # Sums by a triangle and counts by comparison: a TPU compiles them in a fraction of the time of cumsum and search.
    end_G = jnp.where(jnp.tri(groups, dtype=bool), group_sizes_G, 0).sum(1)
    end_S = jnp.append(end_G, rows)
    begin_S = jnp.append(end_G - group_sizes_G, end_G[-1])
    size_S = end_S - begin_S
    if aligned:
        first_S = jnp.minimum(begin_S // tile, (rows - 1) // tile)
        visits_S = jnp.where(size_S > 0, (end_S - 1) // tile - first_S + 1, jnp.arange(groups + 1) < groups)
        most = -(-rows // tile) + groups
    else:
        first_S = begin_S
        visits_S = -(-size_S // tile)
        most = rows // tile + groups + 1
    last_S = jnp.where(jnp.tri(groups + 1, dtype=bool), visits_S, 0).sum(1)
    visit_V = jnp.arange(most)
    group_V = jnp.minimum((visit_V[:, None] >= last_S).sum(1), groups)
    nth_V = visit_V - (last_S - visits_S)[group_V]
    row_V = (first_S[group_V] + nth_V) * tile if aligned else first_S[group_V] + nth_V * tile
    # The last group with rows among those up to the visit's: what needs no matrix loads none.
    with_rows_S = (size_S > 0) & (jnp.arange(groups + 1) < groups)
    loaded_S = jnp.where(jnp.tri(groups + 1, dtype=bool) & with_rows_S, jnp.arange(groups + 1), 0).max(1)
    return Plan(begin_S, end_S, group_V, loaded_S[group_V], row_V, last_S[-1], rows, tile, aligned)


def padded_width(width: int) -> int:
    """The width to store an experts' matrix with, so that tiles of 128 divide it: 1856 becomes 1920.

    Zero columns stay zero through squared ReLU, SiLU gates and the second product, so a stored padded width is exact.
    A width of less than a tile stays what it is: such a network is for a CPU.
    """
    return width if width < LANES else -(-width // LANES) * LANES
