"""What a config.json may say, and the one sentence for what it may not, by the names that stand in it."""

from typing import Any

import pytest

from cascade_jax.model.convert import CheckpointError, config_from_hf
from tests.convert.test_refusals import CONFIG

QWEN = {**CONFIG, "model_type": "qwen3"}
QWEN_MOE = {
    **QWEN,
    "model_type": "qwen3_moe",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 6,
}
NEMOTRON = {
    "model_type": "nemotron_h",
    "vocab_size": 16,
    "hidden_size": 8,
    "hybrid_override_pattern": "M*-E",
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "intermediate_size": 10,
    "layer_norm_epsilon": 1e-5,
    "mamba_num_heads": 2,
    "mamba_head_dim": 4,
    "n_groups": 1,
    "ssm_state_size": 4,
    "conv_kernel": 4,
    "chunk_size": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 6,
    "moe_shared_expert_intermediate_size": 8,
    "tie_word_embeddings": False,
}


def test_the_plain_configs_are_taken() -> None:
    unused = {"sliding_window": None, "rope_scaling": None, "quantization_config": None}
    assert config_from_hf(CONFIG | unused) == config_from_hf(CONFIG)
    assert config_from_hf(QWEN | unused | {"use_sliding_window": False, "sliding_window": 4096}).qk_norm
    nemotron = config_from_hf(NEMOTRON | {"rope_theta": 10000, "partial_rotary_factor": 1.0})
    assert (nemotron.rope_theta, nemotron.pattern) == (None, "M*-E")
    assert config_from_hf(NEMOTRON | {"time_step_limit": [0.0, {"__float__": "Infinity"}]}) == nemotron


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (CONFIG | {"model_type": "mistral"}, ("mistral", "nemotron_h", "qwen3", "qwen3_moe", "llama")),
        ({name: value for name, value in CONFIG.items() if name != "model_type"}, ("model_type",)),
        (QWEN | {"use_sliding_window": True, "sliding_window": 4096}, ("sliding_window", "4096")),
        (NEMOTRON | {"sliding_window": 128}, ("sliding_window", "128")),
        (CONFIG | {"quantization_config": {"quant_method": "fp8"}}, ("quantization_config", "fp8")),
        (CONFIG | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ("rope", "llama3")),
        (CONFIG | {"rope_scaling": {"factor": 2.0}}, ("rope_scaling", "factor")),
        (CONFIG | {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, ("rope_parameters", "full_attention")),
        (CONFIG | {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, ("rope", "yarn")),
        (CONFIG | {"hidden_act": "gelu"}, ("hidden_act", "gelu")),
        (CONFIG | {"mlp_bias": True}, ("mlp_bias",)),
        (NEMOTRON | {"mlp_hidden_act": "silu"}, ("mlp_hidden_act", "silu")),
        (NEMOTRON | {"mamba_proj_bias": True}, ("mamba_proj_bias",)),
        (NEMOTRON | {"use_bias": True}, ("use_bias",)),
        (NEMOTRON | {"use_conv_bias": False}, ("use_conv_bias",)),
        (NEMOTRON | {"hybrid_override_pattern": "M*-X"}, ("config.json", "X")),
        ({name: value for name, value in CONFIG.items() if name != "hidden_size"}, ("hidden_size",)),
        (CONFIG | {"vocab_size": "many"}, ("vocab_size='many'", "a whole number")),
        (CONFIG | {"hidden_size": "8"}, ("hidden_size='8'", "a whole number")),
        (CONFIG | {"hidden_size": True}, ("hidden_size=True", "a whole number")),
        (CONFIG | {"intermediate_size": 10.0}, ("intermediate_size=10.0", "a whole number")),
        (CONFIG | {"num_attention_heads": [2]}, ("num_attention_heads=[2]", "a whole number")),
        (CONFIG | {"num_attention_heads": 0}, ("num_attention_heads=0", "from 1")),
        (CONFIG | {"num_key_value_heads": 0}, ("num_key_value_heads=0", "from 1")),
        (
            CONFIG | {"num_attention_heads": 3, "num_key_value_heads": 2},
            ("num_attention_heads=3", "num_key_value_heads=2"),
        ),
        (CONFIG | {"head_dim": 5}, ("head_dim=5", "even")),
        (CONFIG | {"tie_word_embeddings": 1}, ("tie_word_embeddings=1", "true or false")),
        (CONFIG | {"rms_norm_eps": "1e-5"}, ("rms_norm_eps='1e-5'", "a number")),
        (CONFIG | {"rms_norm_eps": True}, ("rms_norm_eps=True", "a number")),
        (CONFIG | {"rms_norm_eps": float("nan")}, ("rms_norm_eps=nan", "positive")),
        (CONFIG | {"rms_norm_eps": 10**400}, ("rms_norm_eps", "fewer digits")),
        (CONFIG | {"num_hidden_layers": None}, ("num_hidden_layers=None", "a whole number")),
        (CONFIG | {"num_hidden_layers": 0}, ("num_hidden_layers=0", "from 1 to 4096")),
        (CONFIG | {"num_hidden_layers": 10**7}, ("num_hidden_layers=10000000", "from 1 to 4096")),
        (CONFIG | {"layer_types": "full_attention"}, ("layer_types='full_attention'", "a list")),
        (CONFIG | {"layer_types": [{}]}, ("layer_types[0]={}", "a string")),
        (CONFIG | {"layer_types": ["sliding_attention"]}, ("layer_types", "sliding_attention", "full_attention")),
        (CONFIG | {"layer_types": ["full_attention"] * 2}, ("layer_types has 2", "num_hidden_layers=1")),
        (CONFIG | {"rope_parameters": "default"}, ("rope_parameters='default'", "an object")),
        (CONFIG | {"rope_scaling": [2.0]}, ("rope_scaling=[2.0]", "an object")),
        (CONFIG | {"rope_parameters": {"rope_theta": "many"}}, ("rope_theta='many'", "a number")),
        (CONFIG | {"rope_theta": 0}, ("rope_theta=0", "positive")),
        (CONFIG | {"rope_theta": -1.0}, ("rope_theta=-1.0", "positive")),
        (CONFIG | {"dtype": "int8"}, ("dtype='int8'", "bfloat16 or float16 or float32")),
        (CONFIG | {"torch_dtype": 16}, ("torch_dtype=16", "bfloat16")),
        (CONFIG | {"mlp_bias": 0}, ("mlp_bias=0; allowed is False",)),
        (
            CONFIG | {"hidden_act": "gelu", "mlp_bias": True},
            ("'gelu'; allowed is silu", "mlp_bias=True; allowed is False"),
        ),
        (CONFIG | {"use_sliding_window": []}, ("use_sliding_window=[]; allowed is False",)),
        (CONFIG | {"model_type": ["llama"]}, ("model_type ['llama']",)),
        ({"pattern": "*-", "width": 8, "vocab_size": 16}, ("checkpoint of ours", "--checkpoint")),
        (QWEN_MOE | {"decoder_sparse_step": 0}, ("decoder_sparse_step=0", "1 or more")),
        (QWEN_MOE | {"decoder_sparse_step": "1"}, ("decoder_sparse_step='1'", "a whole number")),
        (QWEN_MOE | {"mlp_only_layers": 3}, ("mlp_only_layers=3", "a list")),
        (QWEN_MOE | {"mlp_only_layers": [[]]}, ("mlp_only_layers[0]=[]", "a whole number")),
        (QWEN_MOE | {"num_local_experts": 0}, ("num_local_experts=0", "from 1 to 65536")),
        (QWEN_MOE | {"norm_topk_prob": "yes"}, ("norm_topk_prob='yes'", "true or false")),
        (NEMOTRON | {"hybrid_override_pattern": ["M"]}, ("hybrid_override_pattern=['M']", "a string")),
        (NEMOTRON | {"layers_block_type": 5}, ("layers_block_type=5", "a list")),
        (NEMOTRON | {"layers_block_type": [{}]}, ("layers_block_type[0]={}", "a string")),
        (NEMOTRON | {"num_hidden_layers": 9}, ("num_hidden_layers=9", "4 layers")),
        (NEMOTRON | {"n_routed_experts": 10**7}, ("n_routed_experts=10000000", "65536")),
        (NEMOTRON | {"num_experts_per_tok": 5}, ("num_experts_per_tok=5", "n_routed_experts=4")),
        (NEMOTRON | {"n_group": 0}, ("n_group=0", "from 1")),
        (NEMOTRON | {"n_group": 3}, ("n_routed_experts=4", "n_group=3")),
        (NEMOTRON | {"n_group": 4}, ("n_group=4 leaves 1 of n_routed_experts=4",)),
        (NEMOTRON | {"topk_group": 2}, ("topk_group=2", "n_group=1")),
        (NEMOTRON | {"topk_group": 0}, ("topk_group=0", "from 1")),
        (NEMOTRON | {"chunk_size": 0}, ("chunk_size=0", "from 1")),
        (NEMOTRON | {"ssm_state_size": -4}, ("ssm_state_size=-4", "from 1")),
        (NEMOTRON | {"n_groups": 0}, ("n_groups=0", "from 1")),
        (NEMOTRON | {"n_groups": 4}, ("mamba_num_heads=2", "n_groups=4")),
        (NEMOTRON | {"routed_scaling_factor": 0}, ("routed_scaling_factor=0", "positive")),
        (NEMOTRON | {"layer_norm_epsilon": -1.0}, ("layer_norm_epsilon=-1.0", "positive")),
        (NEMOTRON | {"n_shared_experts": True}, ("n_shared_experts=True; allowed is 0 or 1",)),
        (NEMOTRON | {"time_step_limit": 0.1}, ("time_step_limit=0.1", "a list")),
        (NEMOTRON | {"time_step_limit": [0.1]}, ("time_step_limit=[0.1]", "2 entries")),
        (NEMOTRON | {"time_step_limit": [0, {"__float__": "x"}]}, ("time_step_limit[1]", "a number")),
        (NEMOTRON | {"time_step_limit": [1, 0]}, ("time_step_limit=[1.0, 0.0]", "low < high")),
        (NEMOTRON | {"mamba_dt_limit": ["a", 1]}, ("mamba_dt_limit[0]='a'", "a number")),
    ],
)
def test_what_the_network_cannot_be_is_refused_by_name(config: dict[str, Any], named: tuple[str, ...]) -> None:
    with pytest.raises(CheckpointError) as caught:
        config_from_hf(config)
    assert "\n" not in str(caught.value)
    for name in named:
        assert name in str(caught.value)
