"""Every setting of a run, as frozen dataclasses that check themselves."""

from cascade_jax.config.build import ConfigError, build, complete, to_dict
from cascade_jax.config.model import ModelConfig
from cascade_jax.config.run import (
    CascadeConfig,
    DomainConfig,
    EvalConfig,
    JudgeConfig,
    KernelConfig,
    MeshConfig,
    SourceConfig,
)
from cascade_jax.config.stage import (
    CurriculumConfig,
    DistillConfig,
    LoRAConfig,
    OptimizerConfig,
    RLConfig,
    SamplingConfig,
    SFTConfig,
    StageConfig,
)

__all__ = [
    "CascadeConfig",
    "ConfigError",
    "CurriculumConfig",
    "DistillConfig",
    "DomainConfig",
    "EvalConfig",
    "JudgeConfig",
    "KernelConfig",
    "LoRAConfig",
    "MeshConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RLConfig",
    "SFTConfig",
    "SamplingConfig",
    "SourceConfig",
    "StageConfig",
    "build",
    "complete",
    "to_dict",
]
