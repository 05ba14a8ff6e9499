"""The settings of a network."""

import math
from dataclasses import dataclass
from typing import Literal

from cascade_jax.config.build import require

# Sizes of which there must be at least one, always and where the pattern has the letter
SIZES = {
    "": ("vocab_size", "width"),
    "M": ("mamba_heads", "mamba_head_dim", "mamba_groups", "state", "conv_kernel", "chunk"),
    "E": ("experts", "experts_per_token", "expert_width", "router_groups", "router_top_groups"),
    "*": ("heads", "kv_heads", "head_dim"),
    "-": ("mlp_width",),
}
# Far above what anybody builds, and low enough that a slip is refused before a list of that many weights is made
MOST = {"experts": 65_536}
MOST_LAYERS = 8_192


@dataclass(frozen=True)
class ModelConfig:
    """One network. `pattern` has a letter per layer: M Mamba-2, E mixture of experts, * attention, - dense MLP."""

    vocab_size: int
    width: int
    pattern: str
    norm_eps: float = 1e-5
    tied_embeddings: bool = False
    # attention
    heads: int = 1
    kv_heads: int = 1
    head_dim: int = 64
    rope_theta: float | None = None  # None: no positions at all
    qk_norm: bool = False
    attention_bias: bool = False
    # Mamba-2
    mamba_heads: int = 1
    mamba_head_dim: int = 64
    mamba_groups: int = 1
    state: int = 128
    conv_kernel: int = 4
    chunk: int = 128
    time_step_limit: tuple[float, float] | None = None  # clamps dt in prefill and decode alike
    # experts
    experts: int = 1
    experts_per_token: int = 1
    expert_width: int = 0
    expert_padding: int = 0  # zeros beside expert_width that stay zeros, so that tiles of the kernels divide the sum
    shared_expert_width: int = 0  # 0: none
    latent_width: int = 0  # routed experts work on a projection to this width (LatentMoE); 0: on the whole width
    router: Literal["sigmoid", "softmax"] = "sigmoid"
    router_groups: int = 1
    router_top_groups: int = 1
    norm_top_k: bool = True
    routed_scale: float = 1.0
    # dense MLP, and what experts compute
    mlp_width: int = 0
    activation: Literal["relu2", "swiglu"] = "relu2"
    # numbers
    initializer_range: float = 0.02
    dtype: Literal["float32", "bfloat16"] = "float32"  # of matrix products; params are float32 at init
    # What a gradient computes again instead of keeping it: nothing, each layer from its input, each unit of layers that
    # the pattern repeats. auto: layers of wide networks.
    remat: Literal["auto", "none", "layer", "unit"] = "auto"

    def __post_init__(self) -> None:
        # Messages write settings as name=value: that is how an import puts the names of its file in their place.
        unknown = set(self.pattern) - set("ME*-")
        require(self.pattern != "", "pattern is empty; give one letter per layer out of M, E, * and -.")
        require(not unknown, f"pattern has unknown letters {sorted(unknown)}; allowed are M, E, * and -.")
        count = len(self.pattern)
        require(count <= MOST_LAYERS, f"the pattern has {count} letters; allowed are up to {MOST_LAYERS}.")
        for name in [name for letter, names in SIZES.items() if letter in self.pattern for name in names]:
            value, most = getattr(self, name), MOST.get(name, 2**31 - 1)
            require(0 < value <= most, f"{name}={value} is out of range; choose from 1 to {most}.")
        for name in ("expert_padding", "shared_expert_width", "latent_width", "initializer_range"):
            value = getattr(self, name)
            require(0 <= value < 2**31, f"{name}={value} is out of range; choose 0 or a positive number.")
        for name in ("norm_eps", "routed_scale", "rope_theta"):
            value = getattr(self, name)
            # rope_theta alone may be None
            require(value is None or 0 < value < math.inf, f"{name}={value} is out of range; choose a positive number.")
        if "*" in self.pattern:
            self._divides("heads", "kv_heads")
            even = self.rope_theta is None or self.head_dim % 2 == 0
            require(even, f"head_dim={self.head_dim} is odd; rotary positions turn pairs, so choose an even number.")
        if "M" in self.pattern:
            self._divides("mamba_heads", "mamba_groups")
        if "E" in self.pattern:
            self._check_router()
        if self.time_step_limit is not None:
            low, high = self.time_step_limit
            require(0 <= low < high, f"time_step_limit={[low, high]} is no range; choose 0 <= low < high.")

    def _divides(self, name: str, divisor: str) -> None:
        value, by = getattr(self, name), getattr(self, divisor)
        require(value % by == 0, f"{name}={value} is not a multiple of {divisor}={by}; choose one that is.")

    def _check_router(self) -> None:
        chosen, groups, kept = self.experts_per_token, self.router_groups, self.router_top_groups
        require(chosen <= self.experts, f"experts_per_token={chosen} must be between 1 and experts={self.experts}.")
        self._divides("experts", "router_groups")
        size = self.experts // groups
        require(
            groups == 1 or size > 1,
            f"router_groups={groups} leaves {size} of experts={self.experts} in a group, but the best two count; "
            "choose fewer groups.",
        )
        require(kept <= groups, f"router_top_groups={kept} must be between 1 and router_groups={groups}.")
        require(
            chosen <= kept * size,
            f"experts_per_token={chosen} is more than the {kept * size} experts of router_top_groups={kept} groups; "
            "choose fewer experts or more groups.",
        )

    @property
    def expert_columns(self) -> int:
        """The width that experts' matrices are stored with."""
        return self.expert_width + self.expert_padding

    @property
    def mamba_width(self) -> int:
        """d_inner = heads * head_dim (not expand * width)."""
        return self.mamba_heads * self.mamba_head_dim
