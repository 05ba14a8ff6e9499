"""The settings of one stage: its optimizer, its sampling, and what its kind of stage takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cascade_jax.config.build import require


def _positive(config: object, *names: str, where: str = "") -> None:
    for name in names:
        value = getattr(config, name)
        require(value > 0, f"{where}{name}={value} must be positive.")


@dataclass(frozen=True)
class OptimizerConfig:
    """A warmed-up constant or cosine learning rate, for AdamW, or for Muon on the matrices inside of layers.

    Rates are per step, `warmup_steps` in steps. b1, b2 and eps are AdamW's.
    """

    name: Literal["adamw", "muon"] = "adamw"
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
    offload: bool = False  # moments lie in the host's memory between steps: less of the device's, slower steps

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, f"learning_rate={self.learning_rate} must be positive.")
        require(self.clip_norm > 0, f"clip_norm={self.clip_norm} must be positive.")
        require(self.warmup_steps >= 0, f"warmup_steps={self.warmup_steps} must not be negative.")


@dataclass(frozen=True)
class SamplingConfig:
    """How continuations are drawn: temperature, then top-k, then top-p. top_k = 0 and top_p = 1 leave all tokens in."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 64

    def __post_init__(self) -> None:
        require(self.temperature >= 0, f"temperature={self.temperature} must not be negative (0 is greedy).")
        require(0 < self.top_p <= 1, f"top_p={self.top_p} must be in (0, 1].")
        require(self.top_k >= 0, f"top_k={self.top_k} must not be negative (0 keeps all).")
        require(self.max_tokens > 0, f"max_tokens={self.max_tokens} must be positive.")


@dataclass(frozen=True)
class CurriculumConfig:
    """Easy rows first: pass rates follow a Gaussian whose mean slides over the stage (Nemotron 3 Nano, 3.2.2).

    It slides over steps * prompts rows; where the dynamic filter draws again, the end is reached sooner.
    """

    start: float = 0.9  # the mean pass rate of the first prompts
    end: float = 0.1  # of the last ones
    spread: float = 0.2  # the standard deviation

    def __post_init__(self) -> None:
        require(self.spread > 0, f"curriculum.spread={self.spread} must be positive.")


@dataclass(frozen=True)
class RLConfig:
    """GRPO (recipe 5): strictly on-policy, one optimizer step per batch."""

    prompts: int = 16
    samples: int = 8
    dynamic_filter: bool = False  # draw again until `prompts` groups carry signal
    max_draws: int = 10
    group_floor: float | None = None  # groups in which no reward is above it are masked (agentless repair: 0.5)
    overlong: Literal["none", "penalty", "filter"] = "none"
    kl_coef: float = 0.0
    band: tuple[float, float] | None = (0.5, 2.0)
    clip_low: float = 0.2
    clip_high: float = 0.2
    normalize_std: bool = True
    leave_one_out: bool = False
    shuffle_rewards: bool = False  # a control: must not improve anything
    curriculum: CurriculumConfig | None = None  # of rows with a pass_rate; None: all rows in a random order

    def __post_init__(self) -> None:
        _positive(self, "prompts", "samples", "max_draws", where="rl.")


@dataclass(frozen=True)
class DistillConfig:
    """MOPD (recipe 8). `teachers` maps a domain to a stage name or to `best`."""

    prompts: int = 32
    samples: int = 4
    band: tuple[float, float] | None = (0.5, 2.0)
    advantage_clip: float | None = None
    aggregate: Literal["sample", "token"] = "sample"
    teachers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _positive(self, "prompts", "samples", where="distill.")


@dataclass(frozen=True)
class SFTConfig:
    """Packed rows of demonstrations, loss on assistant tokens."""

    rows: int = 32
    balance_coef: float = 0.0  # of the sequence balance loss

    def __post_init__(self) -> None:
        _positive(self, "rows", where="sft.")


@dataclass(frozen=True)
class LoRAConfig:
    """Low-rank adapters (arXiv 2106.09685): scale * a @ b beside frozen weights, scale = alpha / rank. rank 0: none.

    Targets are matrices: of attention, Mamba's projections in and out, dense and shared MLPs, routed experts. PEFT
    holds no adapters on `mamba_out` and `experts`; merged weights are written for any.
    """

    rank: int = 0
    alpha: float = 32.0
    targets: tuple[Literal["attention", "mamba", "mamba_out", "mlp", "experts"], ...] = ("attention", "mamba", "mlp")

    def __post_init__(self) -> None:
        require(self.rank >= 0, f"lora.rank={self.rank} must not be negative (0: no adapters).")
        require(self.alpha > 0, f"lora.alpha={self.alpha} must be positive.")
        require(len(self.targets) > 0, "lora.targets is empty; name some of attention, mamba, mamba_out, mlp, experts.")


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
    alarm_share: float = 0.2  # of a step's samples that may go without a verdict; more is an alarm
    alarm_steps: int = 5  # with an alarm in a row, after which the stage stops
    export_hf: bool = False  # write the final weights as a Hugging Face folder as well
    lora: LoRAConfig = LoRAConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    sampling: SamplingConfig = SamplingConfig()
    sft: SFTConfig = SFTConfig()
    rl: RLConfig = RLConfig()
    distill: DistillConfig = DistillConfig()

    def __post_init__(self) -> None:
        _positive(self, "steps", "length", "micro_batches", "checkpoint_every", "alarm_steps")
        require(0 <= self.alarm_share <= 1, f"alarm_share={self.alarm_share} must be a share, from 0 to 1.")
        require(len(self.domains) > 0, "a stage needs at least one domain.")
        require(
            all(w > 0 for w in self.domains.values()),
            f"the domain weights {dict(self.domains)} must be positive; leave a domain out instead of giving it 0.",
        )
        truncated = self.sampling.top_p < 1 or self.sampling.top_k > 0
        require(
            self.kind != "rl" or self.rl.kl_coef == 0 or not truncated,
            f"rl.kl_coef={self.rl.kl_coef} compares whole distributions; set top_p=1 and top_k=0, or kl_coef=0.",
        )
        if self.kind == "distill":
            missing = sorted(set(self.domains) - set(self.distill.teachers))
            require(not missing, f"no teacher is named for the domains {missing}; give a stage name or 'best'.")
