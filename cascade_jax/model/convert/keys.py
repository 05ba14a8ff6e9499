"""What stands in config.json under which name, by family, and which values of it the network can follow."""

_COMMON = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "tied_embeddings": "tie_word_embeddings",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "attention_bias": "attention_bias",
    "mlp_width": "intermediate_size",
    "initializer_range": "initializer_range",
}
# ModelConfig field -> key of config.json, by model_type
KEYS = {
    "llama": {**_COMMON, "norm_eps": "rms_norm_eps"},
    "qwen3": {**_COMMON, "norm_eps": "rms_norm_eps"},
    "qwen3_moe": {
        **_COMMON,
        "norm_eps": "rms_norm_eps",
        "experts": "num_experts",
        "experts_per_token": "num_experts_per_tok",
        "expert_width": "moe_intermediate_size",
        "norm_top_k": "norm_topk_prob",
    },
    "nemotron_h": {
        **_COMMON,
        "norm_eps": "layer_norm_epsilon",
        "mamba_heads": "mamba_num_heads",
        "mamba_head_dim": "mamba_head_dim",
        "mamba_groups": "n_groups",
        "state": "ssm_state_size",
        "conv_kernel": "conv_kernel",
        "chunk": "chunk_size",
        "experts": "n_routed_experts",
        "experts_per_token": "num_experts_per_tok",
        "expert_width": "moe_intermediate_size",
        "shared_expert_width": "moe_shared_expert_intermediate_size",
        "latent_width": "moe_latent_size",
        "router_groups": "n_group",
        "router_top_groups": "topk_group",
        "norm_top_k": "norm_topk_prob",
        "routed_scale": "routed_scaling_factor",
    },
}
# Other names under which a key may stand
SPELLINGS = {
    "layer_norm_epsilon": ("norm_eps", "rms_norm_eps"),
    "rms_norm_eps": ("norm_eps",),
    "n_groups": ("mamba_n_groups",),
    "conv_kernel": ("mamba_d_conv",),
    "chunk_size": ("mamba_chunk_size",),
    "ssm_state_size": ("mamba_d_state",),
    "time_step_limit": ("mamba_dt_limit",),
    "use_conv_bias": ("mamba_conv_bias",),
    "n_routed_experts": ("num_local_experts", "num_experts"),
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "layers_block_type": ("layer_types",),
    "dtype": ("torch_dtype",),
}
# What transformers takes where a key is absent
DEFAULTS = {
    "tie_word_embeddings": False,
    "attention_bias": False,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-5,
    "rms_norm_eps": 1e-6,
    "chunk_size": 128,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": {"nemotron_h": True, "qwen3_moe": False},
    "routed_scaling_factor": 1.0,
    "moe_latent_size": None,
    "num_key_value_heads": None,
    "head_dim": {"nemotron_h": 128, "qwen3": 128, "qwen3_moe": None, "llama": None},
}
# Fields that must be there, always and where the pattern has the letter
NEEDED = {
    "": ("vocab_size", "width"),
    "M": ("mamba_heads", "mamba_head_dim", "mamba_groups", "state", "conv_kernel"),
    "E": ("experts", "experts_per_token", "expert_width", "shared_expert_width"),
    "*": ("heads",),
    "-": ("mlp_width",),
}
# Settings with the values that the network can follow; a key that is absent or null is always fine.
PLAIN = {
    "quantization_config": (),
    "use_bias": (False,),
    "mamba_proj_bias": (False,),
    "mlp_bias": (False,),
    "use_conv_bias": (True,),
    "hidden_act": ("silu",),
    "mamba_hidden_act": ("silu",),
    "mlp_hidden_act": ("relu2",),
    "n_shared_experts": (0, 1),
    "use_sliding_window": (False,),
    "dtype": ("bfloat16", "float16", "float32", "float64"),
}
LETTERS = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "moe": "E", "mlp": "-"}
BLOCK_TYPES = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
ARCHITECTURES = {
    "nemotron_h": "NemotronHForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "llama": "LlamaForCausalLM",
}
