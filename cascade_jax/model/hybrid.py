"""The network: embedding, one mixer per letter of the pattern, final norm, head."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from cascade_jax.config import ModelConfig
from cascade_jax.model import axes
from cascade_jax.model.attention import Attention
from cascade_jax.model.cache import Cache
from cascade_jax.model.context import positions_parallel
from cascade_jax.model.embedding import lookup
from cascade_jax.model.linear import constant, matmul32, normal
from cascade_jax.model.mamba import Mamba
from cascade_jax.model.mlp import MLP
from cascade_jax.model.moe import MoE, Routed, report
from cascade_jax.model.norm import rms_norm
from cascade_jax.model.segments import segment_bounds


class Layer(nnx.Module):
    """x + mixer(norm(x))."""

    def __init__(self, config: ModelConfig, key: Array, letter: str) -> None:
        mixers = {"M": Mamba, "E": MoE, "*": Attention}
        self.config, self.letter = config, letter
        self.norm = constant(1.0, (config.width,), ("embed",))
        self.mixer = MLP(config, key, width=config.mlp_width) if letter == "-" else mixers[letter](config, key)

    def __call__(
        self, x: Float[Array, "B T D"], segments: Int[Array, "B T"], positions: Int[Array, "B T"]
    ) -> tuple[Float[Array, "B T D"], Routed | None]:
        h, routed = rms_norm(x, self.norm[...], eps=self.config.norm_eps), None
        if self.letter == "M":
            y = self.mixer(h, segments)
        elif self.letter == "*":
            y = self.mixer(h, segments, positions)
        elif self.letter == "E":
            y, routing = self.mixer(h)
            routed = report(self.config, routing, segments)
        else:
            y = self.mixer(h)
        return x + y, routed

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

    def positions(self, segments_BT: Int[Array, "B T"]) -> Int[Array, "B T"]:
        """The place of each token in its segment."""
        if axes.size("context") > 1:
            return positions_parallel(segments_BT)
        return jnp.arange(segments_BT.shape[1]) - segment_bounds(segments_BT)[0]

    def extend(
        self, ids_BT: Int[Array, "B T"], lengths_B: Int[Array, " B"], cache: Cache
    ) -> tuple[Float[Array, "B D"], Cache]:
        """lengths_B more tokens per row; the final-norm hidden state of the last one of each row."""
        x = self.embed(ids_BT)
        live = jnp.arange(ids_BT.shape[1]) < lengths_B[:, None]
        entries = []
        for i, entry in enumerate(cache.layers):
            x, entry = self.layers[str(i)].extend(x, live, cache.lengths_B, entry)
            entries.append(entry)
        last = jnp.maximum(lengths_B - 1, 0)
        x = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
        return self.normed(x), Cache(tuple(entries), cache.lengths_B + lengths_B)

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        return matmul32(hidden, self.head_matrix())

    def head_matrix(self) -> Float[Array, "D V"]:
        """What logits are made with."""
        return self.embedding[...].T if self.head is None else self.head[...]

    def embed(self, ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """The rows of the ids; where devices share the vocabulary, each adds those that it has."""
        table = self.embedding[...]
        rows = lookup(table, (ids - axes.index("tensor") * table.shape[0]).reshape(-1))
        return axes.total(rows.reshape(*ids.shape, -1).astype(self.config.dtype), "tensor")

    def normed(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """After the final norm."""
        return rms_norm(x, self.final_norm[...], eps=self.config.norm_eps)
