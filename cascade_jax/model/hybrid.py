"""The network: embedding, one mixer per letter of the pattern, final norm, head."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from cascade_jax.config import ModelConfig
from cascade_jax.mesh import BATCH_AXES
from cascade_jax.model import axes
from cascade_jax.model.attention import Attention
from cascade_jax.model.cache import Cache
from cascade_jax.model.context import positions_parallel
from cascade_jax.model.linear import constant, matmul32, normal
from cascade_jax.model.mamba import Mamba
from cascade_jax.model.mlp import MLP
from cascade_jax.model.moe import MoE, Routing, sequence_balance
from cascade_jax.model.norm import rms_norm
from cascade_jax.model.segments import segment_bounds
from cascade_jax.types import Weighted

REMATERIALISE_FROM = 512  # width from which a layer's activations are computed again rather than kept


class Aux(NamedTuple):
    """What the E layers report, in their order; padding counts nowhere.

    expert_counts: (token, slot) pairs sent to each expert. balance_loss: the sequence balance loss without its
    coefficient, summed over layers; its weight is the number of sequences. expert_ids: where asked for, else None.
    """

    expert_counts: Float[Array, "layers E"]
    balance_loss: Weighted
    expert_ids: Int[Array, "layers B T k"] | None


class Layer(nnx.Module):
    """x + mixer(norm(x))."""

    def __init__(self, config: ModelConfig, key: Array, letter: str) -> None:
        mixers = {"M": Mamba, "E": MoE, "*": Attention}
        self.config, self.letter = config, letter
        self.norm = constant(1.0, (config.width,), ("embed",))
        self.mixer = MLP(config, key, width=config.mlp_width) if letter == "-" else mixers[letter](config, key)

    def __call__(
        self, x: Float[Array, "B T D"], segments: Int[Array, "B T"], positions: Int[Array, "B T"]
    ) -> tuple[Float[Array, "B T D"], Routing | None]:
        h, routing = rms_norm(x, self.norm[...], eps=self.config.norm_eps), None
        if self.letter == "M":
            y = self.mixer(h, segments)
        elif self.letter == "*":
            y = self.mixer(h, segments, positions)
        elif self.letter == "E":
            y, routing = self.mixer(h)
        else:
            y = self.mixer(h)
        return x + y, routing

    def extend(self, x: Float[Array, "B T D"], live: Array, lengths: Array, cache: object) -> tuple[Array, object]:
        h = rms_norm(x, self.norm[...], eps=self.config.norm_eps)
        if self.letter in "M*":
            y, cache = self.mixer.extend(h, live, lengths, cache)
        elif self.letter == "E":
            y, _ = self.mixer(h)
        else:
            y = self.mixer(h)
        return x + y, cache


class Hybrid(nnx.Module):
    """embedding (V, D), layers by number, final_norm (D), and head (D, V) unless it is the embedding's transpose."""

    def __init__(self, config: ModelConfig, key: Array) -> None:
        self.config = config
        V, D, std = config.vocab_size, config.width, config.initializer_range
        embedding, head, layers = jax.random.split(key, 3)
        self.embedding = normal(embedding, (V, D), ("vocab", "embed"), std=std)
        keys = jax.random.split(layers, len(config.pattern))
        self.layers = nnx.Dict({str(i): Layer(config, keys[i], letter) for i, letter in enumerate(config.pattern)})
        self.final_norm = constant(1.0, (D,), ("embed",))
        self.head = None if config.tied_embeddings else normal(head, (D, V), ("embed", "vocab"), std=std)

    def hidden(
        self, ids_BT: Int[Array, "B T"], segments_BT: Int[Array, "B T"], *, expert_ids: bool
    ) -> tuple[Float[Array, "B T D"], Aux]:
        x = self._embed(ids_BT)
        if axes.size("context") == 1:
            positions = jnp.arange(ids_BT.shape[1]) - segment_bounds(segments_BT)[0]
        else:
            positions = positions_parallel(segments_BT)
        routings = []
        for i in range(len(self.config.pattern)):
            layer = self.layers[str(i)]
            if self.config.width >= REMATERIALISE_FROM:
                layer = jax.checkpoint(layer)
            x, routing = layer(x, segments_BT, positions)
            routings += [] if routing is None else [routing]
        return self._final_norm(x), self._aux(routings, segments_BT, expert_ids)

    def extend(
        self, ids_BT: Int[Array, "B T"], lengths_B: Int[Array, " B"], cache: Cache
    ) -> tuple[Float[Array, "B D"], Cache]:
        """lengths_B more tokens per row; the final-norm hidden state of the last one of each row."""
        x = self._embed(ids_BT)
        live = jnp.arange(ids_BT.shape[1]) < lengths_B[:, None]
        entries = []
        for i, entry in enumerate(cache.layers):
            x, entry = self.layers[str(i)].extend(x, live, cache.lengths_B, entry)
            entries.append(entry)
        last = jnp.maximum(lengths_B - 1, 0)
        x = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
        return self._final_norm(x), Cache(tuple(entries), cache.lengths_B + lengths_B)

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        head = self.embedding[...].T if self.head is None else self.head[...]
        return matmul32(hidden, head)

    def _embed(self, ids: Array) -> Array:
        table = self.embedding[...]  # its rows are split over the vocabulary
        rows = ids - axes.index("tensor") * table.shape[0]
        if axes.size("tensor") == 1:
            return table[rows].astype(self.config.dtype)
        here = (rows >= 0) & (rows < table.shape[0])
        found = jnp.where(here[..., None], table[jnp.where(here, rows, 0)], 0).astype(self.config.dtype)
        return axes.total(found, "tensor")

    def _final_norm(self, x: Array) -> Array:
        return rms_norm(x, self.final_norm[...], eps=self.config.norm_eps)

    def _aux(self, routings: list[Routing], segments_BT: Array, expert_ids: bool) -> Aux:
        E, k = self.config.experts, self.config.experts_per_token
        ids = jnp.stack([r.ids_Nk.reshape(*segments_BT.shape, k) for r in routings]) if routings else None
        if ids is None:
            zero = jnp.zeros(())
            return Aux(jnp.zeros((0, E)), Weighted(zero, zero), None)
        chosen = jax.nn.one_hot(ids, E) * (segments_BT > 0)[..., None, None]
        counts = axes.total(chosen.sum((1, 2, 3)), *BATCH_AXES, "context")
        # Sequences reach over the shares of `context`, so each of them looks at whole rows: E numbers a token.
        segments = axes.whole(segments_BT, "context", dim=1)
        losses = [
            sequence_balance(
                axes.whole(r.scores_NE.reshape(*segments_BT.shape, E), "context", dim=1),
                segments,
                experts_per_token=k,
            )
            for r in routings
        ]
        balance = axes.total(Weighted(sum(loss.total for loss in losses), losses[0].weight), *BATCH_AXES)
        return Aux(counts, balance, ids if expert_ids else None)
