"""Mixture of experts: a router in float32, and experts that drop no token."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from cascade_jax.config import ModelConfig
from cascade_jax.model.linear import LowRank, Weight, constant, matmul32, normal, project
from cascade_jax.model.mlp import MLP, activate
from cascade_jax.model.segments import segment_bounds
from cascade_jax.types import Weighted

EXACT = jax.lax.Precision.HIGHEST
LARGEST_TILE = 128  # rows of one expert that are multiplied at a time


class Routing(NamedTuple):
    """Where tokens go. ids: the chosen experts, best first; weights: what their outputs count; scores: all of them."""

    ids_Nk: Int[Array, "N k"]
    weights_Nk: Float[Array, "N k"]
    scores_NE: Float[Array, "N E"]


def choose(config: ModelConfig, logits_NE: Float[Array, "N E"], bias_E: Float[Array, " E"] | None) -> Routing:
    """Top-k of sigmoid scores + bias within the best groups (DeepSeek-V3, arXiv 2412.19437), or of a softmax.

    The bias takes part in the choice alone: weights come from the scores, and no gradient reaches it.
    """
    E, k, groups = config.experts, config.experts_per_token, config.router_groups
    scores = jax.nn.sigmoid(logits_NE) if config.router == "sigmoid" else jax.nn.softmax(logits_NE, axis=-1)
    choice = jax.lax.stop_gradient(scores if bias_E is None else scores + bias_E.astype(jnp.float32))
    if groups > 1:
        by_group = choice.reshape(-1, groups, E // groups)
        group_scores = jax.lax.top_k(by_group, min(2, E // groups))[0].sum(-1)
        kept = jax.lax.top_k(group_scores, config.router_top_groups)[1]
        allowed = jax.nn.one_hot(kept, groups, dtype=bool).any(1)
        choice = jnp.where(allowed[:, :, None], by_group, -jnp.inf).reshape(-1, E)
    ids = jax.lax.top_k(choice, k)[1]
    weights = jnp.where(jax.nn.one_hot(ids, E, dtype=bool), scores[:, None], 0.0).sum(-1)
    if config.norm_top_k:
        weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
    return Routing(ids, weights * config.routed_scale, scores)


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
    """The plain transpose of the scan would add a whole (E, D, F) array for each tile; this adds to one expert's."""
    x, weight, experts = saved

    def step(total: Array, tile: tuple[Array, Array, Array]) -> tuple[Array, None]:
        x, dy, e = tile
        dw = jnp.matmul(x.T, dy, precision=EXACT, preferred_element_type=jnp.float32)
        return total.at[e].add(dw), None

    dx = tile_matmul(dy, weight.swapaxes(1, 2), experts)
    dw = jax.lax.scan(step, jnp.zeros(weight.shape, jnp.float32), (x, dy, experts))[0]
    return dx, dw.astype(weight.dtype), None


tile_matmul.defvjp(_tile_matmul_forward, _tile_matmul_backward)


def tile_project(
    x_ntD: Float[Array, "n t D"], weight_EDF: Float[Weight, "E D F"], experts_n: Int[Array, " n"]
) -> Float[Array, "n t F"]:
    """tile_matmul, with adapters where the weight has them."""
    if not isinstance(weight_EDF, LowRank):
        return tile_matmul(x_ntD, weight_EDF, experts_n)
    low = tile_matmul(tile_matmul(x_ntD, weight_EDF.a, experts_n), weight_EDF.b, experts_n)
    return tile_matmul(x_ntD, weight_EDF.base, experts_n) + weight_EDF.scale * low


def chosen_experts(
    experts: Experts,
    x_ND: Float[Array, "N D"],
    ids_Nk: Int[Array, "N k"],
    weights_Nk: Float[Array, "N k"],
) -> Float[Array, "N D"]:
    """The chosen experts alone: (token, slot) rows sorted by expert, each expert's rows padded to whole tiles. float32.

    There is room for every row wherever it is sent, so no token is ever dropped.
    """
    E, k = experts.up_EDF.shape[0], ids_Nk.shape[1]
    rows = ids_Nk.size
    tile = min(LARGEST_TILE, max(8, 2 ** (rows // (2 * E)).bit_length()))  # about a quarter of the padding is waste
    tiles = rows // tile + min(E, rows)
    flat = ids_Nk.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    counts = jnp.zeros(E, jnp.int32).at[flat].add(1)
    first_row = jnp.cumsum(counts) - counts
    tile_ends = jnp.cumsum(-(-counts // tile))
    first_place = (tile_ends - -(-counts // tile)) * tile
    sorted_ids = flat[order]
    places = first_place[sorted_ids] + jnp.arange(rows) - first_row[sorted_ids]
    token_of_place = jnp.full(tiles * tile, ids_Nk.shape[0]).at[places].set(order // k)  # empty places: out of bounds
    place_of_row = jnp.zeros(rows, jnp.int32).at[order].set(places)
    expert_of_tile = jnp.minimum(jnp.searchsorted(tile_ends, jnp.arange(tiles), side="right"), E - 1)

    x = x_ND.at[token_of_place].get(mode="fill", fill_value=0).reshape(tiles, tile, -1)
    gate = None if experts.gate_EDF is None else tile_project(x, experts.gate_EDF, expert_of_tile)
    hidden = activate(tile_project(x, experts.up_EDF, expert_of_tile), gate)
    y = tile_project(hidden, experts.down_EFD, expert_of_tile).reshape(tiles * tile, -1)
    y = y[place_of_row].reshape(-1, k, y.shape[-1]).astype(jnp.float32)
    return (y * weights_Nk[..., None]).sum(1)


def sequence_balance(
    scores_BTE: Float[Array, "B T E"], segments_BT: Int[Array, "B T"], *, experts_per_token: int
) -> Weighted:
    """Sum over sequences of E * sum_e f_e P_e, and the number of sequences (DeepSeek-V3, arXiv 2412.19437, eq. 17-20).

    P_e is the mean share of expert e in a sequence's scores; f_e the fraction of its top-k places that e takes, where
    the top-k is of the scores without the correction bias. Gradients go through P alone.
    """
    B, T, E = scores_BTE.shape
    live = segments_BT > 0
    shares = scores_BTE / scores_BTE.sum(-1, keepdims=True)
    top = jax.lax.top_k(jax.lax.stop_gradient(shares), experts_per_token)[1]
    taken = jax.nn.one_hot(top, E).sum(-2) * live[..., None]
    starts, ends = segment_bounds(segments_BT)
    sums = jnp.concatenate([jnp.zeros((B, 1, E)), jnp.cumsum(taken, axis=1)], axis=1)
    counts = jnp.take_along_axis(sums, ends[..., None], 1) - jnp.take_along_axis(sums, starts[..., None], 1)
    lengths = (ends - starts).astype(jnp.float32)
    per_token = E * (counts * shares).sum(-1) / (experts_per_token * lengths**2)
    first = live & (starts == jnp.arange(T))
    return Weighted(jnp.where(live, per_token, 0.0).sum(), first.sum().astype(jnp.float32))


class MoE(nnx.Module):
    """router (D, E), router_bias (E) for sigmoid scores; experts' up (E, D, F), down (E, F, D), gate; shared MLP.

    LatentMoE (arXiv 2601.18089): their D is latent_width, between latent_in (width, D) and latent_out (D, width), while
    router and shared MLP see the whole width.
    """

    def __init__(self, config: ModelConfig, key: Array) -> None:
        self.config = config
        width, E, F, std = config.width, config.experts, config.expert_width, config.initializer_range
        D = config.latent_width or width
        router, up, down, gate, shared, latent_in, latent_out = jax.random.split(key, 7)
        axes = ("expert", "embed", "mlp")
        self.router = normal(router, (width, E), ("embed", None), std=std)
        self.router_bias = constant(0.0, (E,), (None,)) if config.router == "sigmoid" else None
        self.up = normal(up, (E, D, F), axes, std=std)
        self.down = normal(down, (E, F, D), ("expert", "mlp", "embed"), std=std)
        self.gate = normal(gate, (E, D, F), axes, std=std) if config.activation == "swiglu" else None
        latent = config.latent_width > 0
        self.latent_in = normal(latent_in, (width, D), ("embed", None), std=std) if latent else None
        self.latent_out = normal(latent_out, (D, width), (None, "embed"), std=std) if latent else None
        shared_width = config.shared_expert_width
        self.shared = MLP(config, shared, width=shared_width) if shared_width else None

    def __call__(self, x: Float[Array, "B T D"]) -> tuple[Float[Array, "B T D"], Routing]:
        rows = x.reshape(-1, x.shape[-1])
        logits = matmul32(rows.astype(jnp.float32), self.router[...])
        routing = choose(self.config, logits, None if self.router_bias is None else self.router_bias[...])
        experts = Experts(self.up[...], self.down[...], None if self.gate is None else self.gate[...])
        if self.latent_in is not None:
            rows = project(rows, self.latent_in[...])
        out = chosen_experts(experts, rows, routing.ids_Nk, routing.weights_Nk).astype(x.dtype)
        if self.latent_out is not None:
            out = project(out, self.latent_out[...])
        out = out.reshape(x.shape)
        return (out if self.shared is None else out + self.shared(x)), routing
