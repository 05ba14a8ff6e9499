"""How long a whole recipe takes on some chips, stage by stage, at the roofline and at what is usually reached of it."""

from dataclasses import dataclass

from cascade_jax.config import CascadeConfig, ModelConfig, StageConfig
from cascade_jax.plan.chips import Chip
from cascade_jax.plan.flops import Work, decoding_work, forward_flops, training_work
from cascade_jax.plan.roofline import Part, roofline, seconds
from cascade_jax.plan.steps import rows

REACHED = 0.5  # of the roofline, which lets everything overlap and no tile be wasted; an assumption, not a measurement
ANSWER = 0.5  # of the token limit that an answer has on average; an assumption


@dataclass(frozen=True)
class StageTime:
    """Seconds of one optimizer step at the roofline, and tokens that it trains on (SFT) or draws."""

    stage: str
    steps: int
    tokens: float
    generation: float
    scoring: float
    training: float
    parts: dict[str, Part]  # of the update

    @property
    def step(self) -> float:
        return self.generation + self.scoring + self.training


def stage_time(
    config: CascadeConfig, model: ModelConfig, name: str, chip: Chip, devices: int, *, decoded: int
) -> StageTime:
    """All rollouts of a step decode `decoded` rows a device at a time; judges and sandboxes take no time."""
    stage, mesh = config.stages[name], config.mesh
    shares = mesh.slice * mesh.data * mesh.fsdp * mesh.expert
    packed = rows(stage, shares)
    work = training_work(model, mesh, rows=packed, length=stage.length, passes=stage.micro_batches)
    parts = roofline(chip, work)
    training, tokens = seconds(parts), float(packed * stage.length)
    if stage.kind == "sft":
        return StageTime(name, stage.steps, tokens, 0.0, 0.0, training, parts)
    samples, answer = drawn(stage), ANSWER * stage.sampling.max_tokens
    at_once = min(samples, decoded * devices)
    middle = max(config.buckets) / 2 + answer / 2  # tokens before the one that is drawn, on average
    token = seconds(roofline(chip, decoding_work(model, mesh, rows=at_once, context=middle)))
    prompt = sum(forward_flops(model, max(config.buckets) / 4).values()) * max(config.buckets) / 2
    prefill = Work(prompt * samples / samples_of(stage) / devices)
    generation = answer * token * samples / at_once + seconds(roofline(chip, {"prefill": prefill}))
    # The packed rows hold as many tokens as there are, not as the batch has room for.
    real = samples * (answer + max(config.buckets) / 2)
    training *= real / tokens
    scored = stage.kind == "distill" or stage.rl.kl_coef > 0
    return StageTime(name, stage.steps, samples * answer, generation, training / 4 if scored else 0.0, training, parts)


def drawn(stage: StageConfig) -> int:
    """Samples of one optimizer step."""
    settings = stage.rl if stage.kind == "rl" else stage.distill
    return settings.prompts * settings.samples


def samples_of(stage: StageConfig) -> int:
    """Samples that share a prompt."""
    return (stage.rl if stage.kind == "rl" else stage.distill).samples


def days(times: list[StageTime]) -> float:
    """Of all stages, at what is usually reached of the roofline."""
    return sum(time.step * time.steps for time in times) / REACHED / 86_400
