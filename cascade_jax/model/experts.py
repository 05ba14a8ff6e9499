"""The routed experts: each chosen one is multiplied with its own tokens, and no token is dropped."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from cascade_jax.model.dispatch import Places, copies, inverse, of_each, running_sums, weighted_sum
from cascade_jax.model.linear import LowRank, Weight
from cascade_jax.model.mlp import activate
from pallas_kernels.grouped_matmul import Plan, grouped_matmul, work_list


class Experts(NamedTuple):
    """The routed experts' matrices; gate is None for relu^2."""

    up_EDF: Float[Weight, "E D F"]
    down_EFD: Float[Weight, "E F D"]
    gate_EDF: Float[Weight, "E D F"] | None


def by_expert(ids_kN: Int[Array, "k N"], *, experts: int, rows: int) -> tuple[Places, Int[Array, " experts"]]:
    """Slots by expert, in order, side by side in `rows` places; and how many each expert has.

    An id of `experts` is no expert's; of others a token has none twice.
    """
    chosen_EN = (ids_kN[:, None] == jnp.arange(experts)[:, None]).any(0)
    upto_EN = running_sums(chosen_EN)
    sizes_E = upto_EN[:, -1]
    first_E = jnp.cumsum(sizes_E) - sizes_E
    place_kN = of_each(first_E[:, None] + upto_EN - 1, ids_kN)
    place_kN = jnp.where(ids_kN < experts, place_kN, rows)
    return Places(inverse(place_kN.reshape(-1), rows), place_kN), sizes_E


def chosen_experts(
    experts: Experts,
    x_ND: Float[Array, "N D"],
    ids_kN: Int[Array, "k N"],
    weights_kN: Float[Array, "k N"],
    *,
    most: int | None = None,
) -> Float[Array, "N D"]:
    """The chosen experts alone, over (token, slot) rows sorted by expert. float32.

    There is room for every row wherever it is sent, so no token is ever dropped. A token's ids are distinct, but an id
    of E is no expert's; `most` is how many ids at the most (all by default) are an expert's.
    """
    rows = ids_kN.size if most is None else min(most, ids_kN.size)
    places, sizes_E = by_expert(ids_kN, experts=experts.up_EDF.shape[0], rows=rows)
    plan = work_list(sizes_E, rows=rows)
    x = copies(x_ND, places)
    y = _multiply(_hidden(experts, x, plan), experts.down_EFD, plan)
    return weighted_sum(y, weights_kN, places)


def _hidden(experts: Experts, x_MD: Float[Array, "M D"], plan: Plan) -> Float[Array, "M F"]:
    """What stands between the two projections."""
    if experts.gate_EDF is not None:
        return activate(_multiply(x_MD, experts.up_EDF, plan), _multiply(x_MD, experts.gate_EDF, plan))
    if isinstance(experts.up_EDF, LowRank):
        return activate(_multiply(x_MD, experts.up_EDF, plan))
    return grouped_matmul(x_MD, experts.up_EDF, plan, activation="relu2")


def _multiply(x_MD: Float[Array, "M D"], weight_EDF: Float[Weight, "E D F"], plan: Plan) -> Float[Array, "M F"]:
    """Rows times their experts' matrices, with adapters where the weight has them."""
    if not isinstance(weight_EDF, LowRank):
        return grouped_matmul(x_MD, weight_EDF, plan)
    low = grouped_matmul(grouped_matmul(x_MD, weight_EDF.a, plan), weight_EDF.b, plan)
    return grouped_matmul(x_MD, weight_EDF.base, plan) + weight_EDF.scale * low
