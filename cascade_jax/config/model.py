"""The settings of a network."""

from dataclasses import dataclass
from typing import Literal

from cascade_jax.config.build import require


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

    def __post_init__(self) -> None:
        unknown = set(self.pattern) - set("ME*-")
        require(self.pattern != "", "pattern is empty; give one letter per layer out of M, E, * and -.")
        require(not unknown, f"pattern has unknown letters {sorted(unknown)}; allowed are M, E, * and -.")
        require(self.vocab_size > 0 and self.width > 0, "vocab_size and width must be positive.")
        if "*" in self.pattern:
            require(
                self.heads % self.kv_heads == 0,
                f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}; choose one that is.",
            )
        require("-" not in self.pattern or self.mlp_width > 0, "a pattern with - needs mlp_width > 0.")
        if "M" in self.pattern:
            require(
                self.mamba_heads % self.mamba_groups == 0,
                f"mamba_heads={self.mamba_heads} is not a multiple of mamba_groups={self.mamba_groups}; "
                "choose one that is.",
            )
        if "E" in self.pattern:
            require(
                0 < self.experts_per_token <= self.experts,
                f"experts_per_token={self.experts_per_token} must be between 1 and experts={self.experts}.",
            )
            require(
                self.experts % self.router_groups == 0,
                f"experts={self.experts} is not a multiple of router_groups={self.router_groups}; choose one that is.",
            )

    @property
    def mamba_width(self) -> int:
        """d_inner = heads * head_dim (not expand * width)."""
        return self.mamba_heads * self.mamba_head_dim
