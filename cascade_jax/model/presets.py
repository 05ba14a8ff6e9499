"""Networks by name. A transformer block is two letters of the pattern: `*-` (dense) or `*E` (mixture of experts)."""

from cascade_jax.config import ConfigError, ModelConfig

PRESETS = {
    # Small enough to train on a laptop's CPU, and with every part that matters of the 30B hybrid.
    "tiny": ModelConfig(
        vocab_size=512,
        width=96,
        pattern="M*EM*E",
        tied_embeddings=True,
        heads=4,
        kv_heads=2,
        head_dim=24,
        mamba_heads=4,
        mamba_head_dim=32,
        mamba_groups=1,
        state=16,
        chunk=32,
        experts=8,
        experts_per_token=2,
        expert_width=64,
        shared_expert_width=128,
        routed_scale=1.0,
        initializer_range=0.05,
    ),
    # nvidia/Nemotron-3-Nano-30B-A3B and Nemotron-Cascade-2-30B-A3B
    "nemotron-3-nano-30b-a3b": ModelConfig(
        vocab_size=131072,
        width=2688,
        pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        heads=32,
        kv_heads=2,
        head_dim=128,
        mamba_heads=64,
        mamba_head_dim=64,
        mamba_groups=8,
        state=128,
        conv_kernel=4,
        chunk=128,
        experts=128,
        experts_per_token=6,
        expert_width=1856,
        shared_expert_width=3712,
        routed_scale=2.5,
        mlp_width=1856,
        dtype="bfloat16",
    ),
    # HuggingFaceTB/SmolLM2-135M(-Instruct)
    "smollm2-135m": ModelConfig(
        vocab_size=49152,
        width=576,
        pattern="*-" * 30,
        tied_embeddings=True,
        heads=9,
        kv_heads=3,
        head_dim=64,
        rope_theta=100_000.0,
        mlp_width=1536,
        activation="swiglu",
    ),
    # Qwen/Qwen3-0.6B
    "qwen3-0.6b": ModelConfig(
        vocab_size=151936,
        width=1024,
        pattern="*-" * 28,
        norm_eps=1e-6,
        tied_embeddings=True,
        heads=16,
        kv_heads=8,
        head_dim=128,
        rope_theta=1_000_000.0,
        qk_norm=True,
        mlp_width=3072,
        activation="swiglu",
        dtype="bfloat16",
    ),
    # Qwen/Qwen3-30B-A3B
    "qwen3-30b-a3b": ModelConfig(
        vocab_size=151936,
        width=2048,
        pattern="*E" * 48,
        norm_eps=1e-6,
        heads=32,
        kv_heads=4,
        head_dim=128,
        rope_theta=1_000_000.0,
        qk_norm=True,
        experts=128,
        experts_per_token=8,
        expert_width=768,
        router="softmax",
        activation="swiglu",
        dtype="bfloat16",
    ),
}


def get(name: str) -> ModelConfig:
    """The network of that name; ConfigError lists the names there are."""
    if name not in PRESETS:
        raise ConfigError(f"model={name!r} is not a preset; choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]
