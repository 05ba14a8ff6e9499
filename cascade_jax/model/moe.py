"""Mixture of experts: a router in float32, and the layer around it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from cascade_jax.config import ModelConfig
from cascade_jax.model import axes
from cascade_jax.model.exchange import expert_parallel
from cascade_jax.model.experts import Experts, chosen_experts
from cascade_jax.model.linear import constant, matmul32, normal, project
from cascade_jax.model.mlp import MLP
from cascade_jax.model.segments import segment_bounds
from cascade_jax.types import Weighted


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


def sequence_balance(
    scores_BTE: Float[Array, "B T E"], segments_BT: Int[Array, "B T"], *, experts_per_token: int
) -> Weighted:
    """Sum over sequences of E * sum_e f_e P_e, and the number of sequences (DeepSeek-V3, arXiv 2412.19437, eq. 17-20).

    P_e is the mean share of expert e in a sequence's scores; f_e the fraction of its top-k places that e takes, where
    the top-k is of the scores without the correction bias. Gradients go through P alone. Where the tokens of a row are
    split among devices, this is the part of those that are here.
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
    first = live & (starts == jnp.arange(T))
    if axes.size("context") > 1:
        counts, lengths, first = _over_edges(counts, lengths, first, segments_BT)
    per_token = E * (counts * shares).sum(-1) / (experts_per_token * lengths**2)
    return Weighted(jnp.where(live, per_token, 0.0).sum(), first.sum().astype(jnp.float32))


def _over_edges(
    counts_BTE: Float[Array, "B T E"],
    lengths_BT: Float[Array, "B T"],
    first_BT: Bool[Array, "B T"],
    segments_BT: Int[Array, "B T"],
) -> tuple[Float[Array, "B T E"], Float[Array, "B T"], Bool[Array, "B T"]]:
    """The same of whole sequences, where they were of a shard: just its first and its last reach over its edges."""
    edges = jnp.array([0, -1])
    ids = segments_BT[:, edges]
    sums = jnp.concatenate([counts_BTE, lengths_BT[..., None]], axis=-1)
    once = jnp.stack([ids[:, 0] != ids[:, 1], jnp.ones_like(ids[:, 0], bool)], axis=1)  # one sequence, at both edges
    all_ids, all_sums = jax.lax.all_gather((ids, sums[:, edges] * once[..., None]), "context")
    for edge in range(2):
        same = all_ids == ids[:, edge, None]
        total = (same[..., None] * all_sums).sum((0, 2))
        sums = jnp.where((segments_BT == ids[:, edge, None])[..., None], total[:, None], sums)
    before = jnp.arange(all_ids.shape[0])[:, None] < axes.index("context")
    begun = (before & (all_ids[..., 1] == ids[:, 0])).any(0)
    return sums[..., :-1], sums[..., -1], first_BT.at[:, 0].set(first_BT[:, 0] & ~begun)


class Routed(NamedTuple):
    """What an E layer reports of the tokens that are here; padding counts nowhere.

    counts: (token, slot) pairs sent to each expert. balance: the sequence balance loss, without its coefficient.
    """

    counts_E: Float[Array, "*layers E"]
    balance: Weighted
    ids: Int[Array, "*layers B T k"]


def report(config: ModelConfig, routing: Routing, segments_BT: Int[Array, "B T"]) -> Routed:
    """Out of the router's choice."""
    E, k = config.experts, config.experts_per_token
    ids = routing.ids_Nk.reshape(*segments_BT.shape, k)
    chosen = jax.nn.one_hot(ids, E) * (segments_BT > 0)[..., None, None]
    scores = routing.scores_NE.reshape(*segments_BT.shape, E)
    return Routed(chosen.sum((0, 1, 2)), sequence_balance(scores, segments_BT, experts_per_token=k), ids)


class MoE(nnx.Module):
    """router (D, E), router_bias (E) for sigmoid scores; experts' up (E, D, F), down (E, F, D), gate; shared MLP.

    F is expert_width and its padding: a zero of up or of gate stays zero in the squared ReLU and in the gated product.

    LatentMoE (arXiv 2601.18089): their D is latent_width, between latent_in (width, D) and latent_out (D, width), while
    router and shared MLP see the whole width.
    """

    def __init__(self, config: ModelConfig, key: Array) -> None:
        self.config = config
        width, E, F, std = config.width, config.experts, config.expert_width, config.initializer_range
        D = config.latent_width or width
        router, up, down, gate, shared, latent_in, latent_out = jax.random.split(key, 7)
        names = ("expert", "expert_embed", "mlp")

        def matrices(key: Array, shape: tuple[int, ...], names: tuple[str, ...]) -> nnx.Param:
            zeros = [(0, config.expert_padding if name == "mlp" else 0) for name in names]
            return nnx.Param(jnp.pad(std * jax.random.normal(key, shape, jnp.float32), zeros), axes=names)

        self.router = normal(router, (width, E), ("embed", None), std=std)
        self.router_bias = constant(0.0, (E,), (None,)) if config.router == "sigmoid" else None
        self.up = matrices(up, (E, D, F), names)
        self.down = matrices(down, (E, F, D), ("expert", "mlp", "expert_embed"))
        self.gate = matrices(gate, (E, D, F), names) if config.activation == "swiglu" else None
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
        out = self._routed(experts, rows, routing).astype(x.dtype)
        if self.latent_out is not None:
            out = project(out, self.latent_out[...])
        out = out.reshape(x.shape)
        return (out if self.shared is None else out + self.shared(x)), routing

    def _routed(self, experts: Experts, rows: Float[Array, "N D"], routing: Routing) -> Float[Array, "N D"]:
        ids_kN, weights_kN = routing.ids_Nk.T, routing.weights_Nk.T
        if axes.size("expert") == 1:
            out = chosen_experts(experts, rows, ids_kN, weights_kN)
        else:
            out = expert_parallel(experts, rows, ids_kN, weights_kN, exchange=axes.exchange())
        return axes.total(out, "tensor")  # each device has a part of the experts' width
