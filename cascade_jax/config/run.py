"""The settings of a whole run: where rows come from, who judges, how it is scored, and its stages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cascade_jax.config.build import require
from cascade_jax.config.stage import SamplingConfig, StageConfig


@dataclass(frozen=True)
class SourceConfig:
    """Where rows come from. `kind` picks the reader; `path`: a file, folder or data set; `task`: a generated task.

    folder: .jsonl and .parquet files, or Harbor tasks. hf: NAME or NAME:CONFIG of the Hugging Face hub, streamed.
    verifiers: the name of a taskset.
    """

    kind: Literal["generated", "jsonl", "parquet", "folder", "tfds", "hf", "ifbench", "verifiers"] = "generated"
    path: str = ""
    task: str = ""
    rows: int = 0  # how many to take; 0 takes all that a file has
    difficulty: tuple[int, ...] = (0, 1, 2, 3)
    problems: str = ""  # the side file with the problems of contest rows
    row_kind: str = ""  # of a file with rows of several kinds, take those of this one
    drop_solved: bool = False  # leave out rows whose pass_rate is 1
    keep_unsolved: float = 1.0  # of the rows whose pass_rate is 0, keep this share, drawn by the run's seed

    def __post_init__(self) -> None:
        if self.kind == "generated":
            require(self.task != "", "a generated source needs task=NAME; see cascade_jax.data.tasks.TASKS.")
            require(self.rows > 0, f"the generated source of task {self.task!r} needs rows > 0.")
        elif self.kind != "ifbench":
            require(self.path != "", f"a {self.kind} source needs a path.")
        require(0 <= self.keep_unsolved <= 1, f"keep_unsolved={self.keep_unsolved} must be from 0 to 1.")


@dataclass(frozen=True)
class JudgeConfig:
    """An OpenAI-compatible endpoint. An empty url serves the rule-based judge of the demo on a loopback port.

    `wire`: how two answers are shown to it, in the roles of a GenRM or as a question to any chat model. max_tokens,
    temperature and top_p are those of its replies.
    """

    url: str = ""
    model: str = "rule-judge"
    wire: Literal["genrm", "chat"] = "genrm"
    key_variable: str = ""  # the environment variable that holds the endpoint's key
    temperature: float = 0.6
    top_p: float = 0.95
    max_tokens: int = 16_384
    timeout: float = 30.0  # seconds for one request
    retries: int = 3  # of a request that failed, and of a reply that cannot be read
    concurrency: int = 16

    def __post_init__(self) -> None:
        require(self.retries >= 0, f"judge.retries={self.retries} must not be negative.")
        for name in ("timeout", "concurrency", "max_tokens"):
            value = getattr(self, name)
            require(value > 0, f"judge.{name}={value} must be positive.")


@dataclass(frozen=True)
class DomainConfig:
    """One skill: rows to train on, rows to choose teachers by, rows to report, and how it is prompted."""

    train: SourceConfig
    validation: SourceConfig
    test: SourceConfig | None = None
    thinking: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)  # of its verifier, environment, or comparisons
    judge: JudgeConfig | None = None  # None: the run's
    environment: str = ""  # one of cascade_jax.environment.ENVIRONMENTS, in place of what the rows' kind would take


@dataclass(frozen=True)
class EvalConfig:
    """How every domain is scored after each stage."""

    prompts: int = 128
    samples: int = 1
    batch: int = 64  # prompts at a time
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    transcripts: int = 4  # kept per domain
    alarm_share: float = 0.2  # of a domain's samples that may go without a verdict before a note says so


@dataclass(frozen=True)
class MeshConfig:
    """Into how many parts each axis of the device mesh splits the work. All 1: one device and no mesh."""

    slice: int = 1  # groups of chips with a slow network between them: only gradients cross
    data: int = 1
    fsdp: int = 1  # rows, and the weights at rest
    expert: int = 1  # rows, and the experts
    tensor: int = 1  # heads, feed-forward widths, vocabulary
    context: int = 1  # the tokens of a row

    def __post_init__(self) -> None:
        for name, parts in vars(self).items():
            require(parts >= 1, f"{name}={parts} must be 1 or more.")


Kernel = Literal["auto", "xla", "pallas_tpu", "pallas_gpu"]


@dataclass(frozen=True)
class KernelConfig:
    """Which implementation each operation runs; auto: the first that supports the call on the device that is there."""

    attention: Literal["auto", "xla", "pallas_tpu", "pallas_gpu", "cudnn"] = "auto"
    ssd: Kernel = "auto"
    grouped_matmul: Kernel = "auto"
    token_logprob: Kernel = "auto"

    @property
    def named(self) -> dict[str, str]:
        """operation -> implementation, of those that are not left to be chosen."""
        return {operation: name for operation, name in vars(self).items() if name != "auto"}


@dataclass(frozen=True)
class CascadeConfig:
    """A whole run. Set one of `model`, a preset to start from random weights, and `checkpoint`, a folder of weights."""

    name: str
    order: tuple[str, ...]
    domains: Mapping[str, DomainConfig]
    stages: Mapping[str, StageConfig]
    model: str = ""
    checkpoint: str = ""  # a Hugging Face folder, or one of ours
    repair_embeddings: bool = False  # base checkpoints ship all-zero rows for tokens that they never saw
    tokenizer: str = ""  # a file; empty: the checkpoint's, or for a preset one trained on the generated corpus
    template: Literal["nemotron3", "auto"] = "auto"  # auto: the tokenizer's own; none: Nemotron-3's, or plain ChatML
    seed: int = 0
    buckets: tuple[int, ...] = (32, 64, 128, 256)  # prompt lengths that programs are compiled for
    evaluation: EvalConfig = EvalConfig()
    judge: JudgeConfig = JudgeConfig()
    mesh: MeshConfig = MeshConfig()
    kernels: KernelConfig = KernelConfig()
    # What gradients compute again instead of keeping it, as ModelConfig says it; auto: what the network says.
    remat: Literal["auto", "none", "layer", "unit"] = "auto"

    def __post_init__(self) -> None:
        missing = sorted(set(self.stages) ^ set(self.order))
        require(
            not missing and len(set(self.order)) == len(self.order),
            f"order and stages must name the same stages, once each; these differ: {missing or list(self.order)}.",
        )
