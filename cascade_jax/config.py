"""Every setting of a run, as frozen dataclasses that check themselves, and the way from a config file to them."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin


class ConfigError(ValueError):
    """A user's mistake in a config; the message says what was given, what is allowed and the usual fix."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


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
        _require(self.pattern != "", "pattern is empty; give one letter per layer out of M, E, * and -.")
        _require(not unknown, f"pattern has unknown letters {sorted(unknown)}; allowed are M, E, * and -.")
        _require(self.vocab_size > 0 and self.width > 0, "vocab_size and width must be positive.")
        if "*" in self.pattern:
            _require(
                self.heads % self.kv_heads == 0,
                f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}; choose one that is.",
            )
        _require("-" not in self.pattern or self.mlp_width > 0, "a pattern with - needs mlp_width > 0.")
        if "M" in self.pattern:
            _require(
                self.mamba_heads % self.mamba_groups == 0,
                f"mamba_heads={self.mamba_heads} is not a multiple of mamba_groups={self.mamba_groups}; choose one that is.",
            )
        if "E" in self.pattern:
            _require(
                0 < self.experts_per_token <= self.experts,
                f"experts_per_token={self.experts_per_token} must be between 1 and experts={self.experts}.",
            )
            _require(
                self.experts % self.router_groups == 0,
                f"experts={self.experts} is not a multiple of router_groups={self.router_groups}; choose one that is.",
            )

    @property
    def mamba_width(self) -> int:
        """d_inner = heads * head_dim (not expand * width)."""
        return self.mamba_heads * self.mamba_head_dim


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with a warmed-up constant or cosine learning rate. Rates are per step, `warmup_steps` in steps."""

    learning_rate: float = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    min_learning_rate: float = 0.0  # where the cosine ends
    warmup_steps: int = 0
    warmup_from: float = 0.0
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    freeze_router: bool = False  # router weights only; the correction bias has its own rate
    router_bias_rate: float = 0.0  # loss-free balancing: bias += rate * sign(mean load - load)

    def __post_init__(self) -> None:
        _require(self.learning_rate > 0, f"learning_rate={self.learning_rate} must be positive.")
        _require(self.clip_norm > 0, f"clip_norm={self.clip_norm} must be positive.")
        _require(self.warmup_steps >= 0, f"warmup_steps={self.warmup_steps} must not be negative.")


@dataclass(frozen=True)
class SamplingConfig:
    """How continuations are drawn: temperature, then top-k, then top-p. top_k = 0 and top_p = 1 leave all tokens in."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 64

    def __post_init__(self) -> None:
        _require(self.temperature >= 0, f"temperature={self.temperature} must not be negative (0 is greedy).")
        _require(0 < self.top_p <= 1, f"top_p={self.top_p} must be in (0, 1].")
        _require(self.top_k >= 0, f"top_k={self.top_k} must not be negative (0 keeps all).")
        _require(self.max_tokens > 0, f"max_tokens={self.max_tokens} must be positive.")


@dataclass(frozen=True)
class SourceConfig:
    """Where rows come from. `kind` picks the reader; `path` is a file or a data set directory, `task` a generated task."""

    kind: Literal["generated", "jsonl", "parquet", "tfds", "ifbench"] = "generated"
    path: str = ""
    task: str = ""
    rows: int = 0  # how many to take; 0 takes all that a file has
    difficulty: tuple[int, ...] = (0, 1, 2, 3)

    def __post_init__(self) -> None:
        if self.kind == "generated":
            _require(self.task != "", "a generated source needs task=NAME; see cascade_jax.data.tasks.TASKS.")
            _require(self.rows > 0, f"the generated source of task {self.task!r} needs rows > 0.")
        elif self.kind != "ifbench":
            _require(self.path != "", f"a {self.kind} source needs a path.")


@dataclass(frozen=True)
class DomainConfig:
    """One skill: rows to train on, rows to choose teachers by, rows to report, and how it is prompted."""

    train: SourceConfig
    validation: SourceConfig
    test: SourceConfig | None = None
    thinking: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of the domain's verifier


@dataclass(frozen=True)
class JudgeConfig:
    """An OpenAI-compatible endpoint. An empty url serves the rule-based judge of the demo on a loopback port."""

    url: str = ""
    model: str = "rule-judge"
    timeout: float = 30.0  # seconds for one request
    retries: int = 3
    concurrency: int = 16


@dataclass(frozen=True)
class RLConfig:
    """GRPO (recipe 5): strictly on-policy, one optimizer step per batch."""

    prompts: int = 16
    samples: int = 8
    dynamic_filter: bool = False  # draw again until `prompts` groups carry signal
    max_draws: int = 10
    overlong: Literal["none", "penalty", "filter"] = "none"
    kl_coef: float = 0.0
    band: tuple[float, float] | None = (0.5, 2.0)
    clip_low: float = 0.2
    clip_high: float = 0.2
    normalize_std: bool = True
    leave_one_out: bool = False
    shuffle_rewards: bool = False  # a control: must not improve anything


@dataclass(frozen=True)
class DistillConfig:
    """MOPD (recipe 8). `teachers` maps a domain to a stage name or to `best`."""

    prompts: int = 32
    samples: int = 4
    band: tuple[float, float] | None = (0.5, 2.0)
    advantage_clip: float | None = None
    aggregate: Literal["sample", "token"] = "sample"
    teachers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SFTConfig:
    """Packed rows of demonstrations, loss on assistant tokens."""

    rows: int = 32
    balance_coef: float = 0.0  # of the sequence balance loss


@dataclass(frozen=True)
class StageConfig:
    """One node of the graph. `parent` empty: the stage before it in `order`; `init`: the initial weights."""

    kind: Literal["sft", "rl", "distill"]
    steps: int
    domains: Mapping[str, float]  # name -> weight in the mixture
    length: int  # tokens in a packed row
    parent: str = ""
    side_branch: bool = False  # a teacher off the main line: the next stage does not start from it
    micro_batches: int = 1
    checkpoint_every: int = 10
    optimizer: OptimizerConfig = OptimizerConfig()
    sampling: SamplingConfig = SamplingConfig()
    sft: SFTConfig = SFTConfig()
    rl: RLConfig = RLConfig()
    distill: DistillConfig = DistillConfig()

    def __post_init__(self) -> None:
        _require(self.steps > 0, f"steps={self.steps} must be positive.")
        _require(len(self.domains) > 0, "a stage needs at least one domain.")
        _require(
            all(w > 0 for w in self.domains.values()),
            f"the domain weights {dict(self.domains)} must be positive; leave a domain out instead of giving it 0.",
        )
        if self.kind == "distill":
            missing = sorted(set(self.domains) - set(self.distill.teachers))
            _require(not missing, f"no teacher is named for the domains {missing}; give a stage name or 'best'.")


@dataclass(frozen=True)
class EvalConfig:
    """How every domain is scored after each stage."""

    prompts: int = 128
    samples: int = 1
    batch: int = 64  # prompts at a time
    sampling: SamplingConfig = SamplingConfig()
    transcripts: int = 4  # kept per domain


@dataclass(frozen=True)
class CascadeConfig:
    """A whole run. Set one of `model`, a preset to start from random weights, and `checkpoint`, a converted one."""

    name: str
    order: tuple[str, ...]
    domains: Mapping[str, DomainConfig]
    stages: Mapping[str, StageConfig]
    model: str = ""
    checkpoint: str = ""
    tokenizer: str = ""  # a file; empty: the checkpoint's, or one trained on the generated corpus
    template: Literal["nemotron3", "auto"] = "nemotron3"
    seed: int = 0
    buckets: tuple[int, ...] = (32, 64, 128, 256)  # prompt lengths that programs are compiled for
    evaluation: EvalConfig = EvalConfig()
    judge: JudgeConfig = JudgeConfig()

    def __post_init__(self) -> None:
        missing = sorted(set(self.stages) ^ set(self.order))
        _require(
            not missing and len(set(self.order)) == len(self.order),
            f"order and stages must name the same stages, once each; these differ: {missing or list(self.order)}.",
        )


def build(cls: type, values: Mapping[str, Any], where: str = "config") -> Any:
    """A frozen dataclass out of a (nested) mapping, e.g. an ml_collections ConfigDict. ConfigError names the key at fault."""
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]
    for key in values:
        if key not in names:
            close = difflib.get_close_matches(key, names, 1)
            hint = f"did you mean {close[0]}?" if close else f"allowed are {', '.join(names)}."
            raise ConfigError(f"{where}.{key} is not a setting; {hint}")
    for f in dataclasses.fields(cls):
        no_default = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        _require(not no_default or f.name in values, f"{where}.{f.name} is missing; it has no default.")
    arguments = {key: _convert(hints[key], values[key], f"{where}.{key}") for key in values}
    try:
        return cls(**arguments)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _convert(next(a for a in args if a is not type(None)), value, where)
    if origin is Literal:
        _require(value in args, f"{where}={value!r} is not allowed; choose one of {', '.join(map(repr, args))}.")
        return value
    if origin is tuple:
        _require(isinstance(value, (list, tuple)), f"{where}={value!r} must be a list.")
        fixed = len(args) == 2 and args[1] is not Ellipsis
        _require(not fixed or len(value) == len(args), f"{where}={value!r} must have {len(args)} entries.")
        return tuple(_convert(args[i] if fixed else args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        _require(isinstance(value, Mapping), f"{where}={value!r} must map names to values.")
        return {key: _convert(args[1], v, f"{where}.{key}") for key, v in value.items()}
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else build(hint, value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    _require(
        isinstance(value, hint) and not (hint is not bool and isinstance(value, bool)),
        f"{where}={value!r} is a {type(value).__name__}; a {getattr(hint, '__name__', hint)} is needed.",
    )
    return value


def to_dict(config: Any) -> Any:
    """The config as plain JSON values; `build` makes the same config out of it."""
    if dataclasses.is_dataclass(config):
        return {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {key: to_dict(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return [to_dict(value) for value in config]
    return config
