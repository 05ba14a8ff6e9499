"""How much arithmetic, memory traffic and link traffic each part of a network takes, as functions of its config.

Compilers count a loop's body once and custom calls not at all, so the count is our own.
"""

from collections import Counter
from dataclasses import dataclass

from cascade_jax.config import MeshConfig, ModelConfig

NAMES = {"M": "mamba", "*": "attention", "E": "experts", "-": "mlp"}
TWO = 2  # bytes of bfloat16
MOVES = 5  # of a token's row to the ranks of its experts and back: two forward, one again, two for gradients


@dataclass(frozen=True)
class Work:
    """Of one part: FLOP, bytes of memory read and written, bytes received over links."""

    flops: float = 0.0
    memory: float = 0.0
    links: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.flops + other.flops, self.memory + other.memory, self.links + other.links)

    def times(self, factor: float) -> "Work":
        return Work(self.flops * factor, self.memory * factor, self.links * factor)


def weights(config: ModelConfig) -> dict[str, int]:
    """part -> number of its weights, all layers; of `experts` the routed ones are `routed`."""
    c, layers = config, Counter(config.pattern)
    D, GN, matrices = c.width, c.mamba_groups * c.state, 3 if c.activation == "swiglu" else 2
    return {
        "mamba": layers["M"] * (D * (2 * c.mamba_width + 2 * GN + c.mamba_heads) + c.mamba_width * D),
        "attention": layers["*"] * D * c.head_dim * (2 * c.heads + 2 * c.kv_heads),
        "experts": layers["E"] * (D * c.experts + 2 * D * c.latent_width + matrices * D * c.shared_expert_width),
        "routed": layers["E"] * matrices * c.experts * (c.latent_width or D) * c.expert_width,
        "mlp": layers["-"] * matrices * D * c.mlp_width,
        "head": D * c.vocab_size,
        "embedding": 0 if c.tied_embeddings else D * c.vocab_size,
    }


def multiplied(config: ModelConfig) -> dict[str, float]:
    """part -> weights that one token is multiplied with."""
    count = {name: float(number) for name, number in weights(config).items()}
    routed = count.pop("routed") * config.experts_per_token / max(config.experts, 1)
    return {**count, "experts": count["experts"] + routed, "embedding": 0.0}


def forward_flops(config: ModelConfig, context: float) -> dict[str, float]:
    """part -> FLOP of one token's forward pass that sees `context` tokens before it (half a row on average)."""
    c, layers = config, Counter(config.pattern)
    flops = {name: 2 * number for name, number in multiplied(config).items()}
    flops["attention"] += layers["*"] * 4 * c.heads * c.head_dim * context
    # Within a chunk C B^T and its product with x, half of each by causality; states in and out.
    inner, chunk = c.mamba_width, c.chunk
    flops["mamba"] += layers["M"] * (chunk * c.mamba_groups * c.state + chunk * inner + 4 * c.state * inner)
    return flops


def training_work(config: ModelConfig, mesh: MeshConfig, *, rows: int, length: int, passes: int) -> dict[str, Work]:
    """part -> work of one device for one optimizer step of rows * length packed tokens in `passes` micro-batches."""
    devices = mesh.slice * mesh.data * mesh.fsdp * mesh.expert * mesh.tensor * mesh.context
    tokens = rows * length / devices * mesh.tensor  # of a device, each with its part of the heads and widths
    again = 1 if config.remat == "none" else 2  # forward passes; the backward pass is worth two
    here = dense_share(config, mesh)
    work = {}
    for name, flops in forward_flops(config, length / 2).items():
        shards = mesh.fsdp * mesh.expert * mesh.context
        spread = 1 - 1 / shards
        # A weight is gathered in two bytes for each forward pass, its gradient is summed in four.
        links = here[name] * (TWO * again + 4) * spread * passes
        memory = here[name] * TWO * (again + 2) * passes + tokens * traffic(config).get(name, 0.0) * (again + 2)
        if name == "experts":
            links += tokens * exchanged(config, mesh) * MOVES
        work[name] = Work(flops * (again + 2) * tokens / mesh.tensor, memory, links)
    total = sum(weights(config).values())
    work["optimizer"] = Work(0.0, total / devices * mesh.slice * mesh.data * 28, 0.0)  # three float32 read and written
    return work


def decoding_work(config: ModelConfig, mesh: MeshConfig, *, rows: int, context: float) -> dict[str, Work]:
    """part -> work of one device for one more token in each of `rows` rows of all devices."""
    devices = mesh.slice * mesh.data * mesh.fsdp * mesh.expert * mesh.tensor * mesh.context
    here, local, layers = dense_share(config, mesh), rows / devices * mesh.tensor, Counter(config.pattern)
    work = {
        name: Work(flops * local / mesh.tensor, here[name] * TWO)
        for name, flops in forward_flops(config, context).items()
    }
    keys = layers["*"] * 2 * config.kv_heads * config.head_dim * TWO * context
    state = layers["M"] * config.mamba_width * config.state * 4 * 2  # read and written
    work["attention"] += Work(memory=keys * local / mesh.tensor)
    work["mamba"] += Work(memory=state * local / mesh.tensor)
    work["experts"] += Work(links=local * exchanged(config, mesh) * 2)
    return work


def dense_share(config: ModelConfig, mesh: MeshConfig) -> dict[str, float]:
    """part -> weights that a device multiplies with: all of them, but its own of the experts."""
    count = {name: number / mesh.tensor for name, number in weights(config).items()}
    return {**count, "experts": count["experts"] + count.pop("routed") / mesh.expert}


def exchanged(config: ModelConfig, mesh: MeshConfig) -> float:
    """Bytes that one token sends to the other ranks of its experts, in all layers, once to each rank."""
    if mesh.expert == 1:
        return 0.0
    ranks, k = mesh.expert, config.experts_per_token
    reached = ranks * (1 - (1 - 1 / ranks) ** k) * (1 - 1 / ranks)
    return config.pattern.count("E") * reached * (config.latent_width or config.width) * TWO


def traffic(config: ModelConfig) -> dict[str, float]:
    """part -> bytes of activations that one token's forward pass reads and writes, ideally fused."""
    c, layers = config, Counter(config.pattern)
    inner, D = c.mamba_width, c.width
    hidden = c.experts_per_token * c.expert_width + c.shared_expert_width
    per_layer = {
        "mamba": 2 * D + 2 * (2 * inner + 2 * c.mamba_groups * c.state + c.mamba_heads) + 4 * inner,
        "attention": 2 * D + 2 * (2 * c.heads + 2 * c.kv_heads) * c.head_dim,
        "experts": 2 * D + 2 * hidden + 2 * c.experts_per_token * D,
        "mlp": 2 * D + 2 * c.mlp_width,
    }
    return {NAMES[letter]: layers[letter] * TWO * per_layer[NAMES[letter]] for letter in NAMES}
