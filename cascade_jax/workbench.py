"""Everything that a run needs before its first step: network, tokenizer, chat format, domains."""

import dataclasses
import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from cascade_jax import domains as domain_module
from cascade_jax.checkpoint import load_model
from cascade_jax.config import CascadeConfig, ConfigError, ModelConfig
from cascade_jax.data import tokenizer as tokenizers
from cascade_jax.data.chat import Chat
from cascade_jax.data.difficulty import pass_rate
from cascade_jax.data.tasks import train_tokenizer
from cascade_jax.domains import Domain
from cascade_jax.mesh import batch_shares
from cascade_jax.model import apply, axes, lora, presets
from cascade_jax.model.convert.load import repaired
from cascade_jax.model.convert.names import family
from cascade_jax.processes import of_first
from cascade_jax.rollout.episode import make_prompt
from cascade_jax.types import Params
from pallas_kernels.dispatch import chosen

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "grain",
    "renderers",
    "math-verify",
    "if-verifiable",
)


@dataclass(frozen=True)
class Workbench:
    """params: what the run starts from, in float32, which an optimizer adds to; dtypes: as the weights were stored."""

    model: ModelConfig
    params: Params
    dtypes: Any
    chat: Chat
    domains: Mapping[str, Domain]


def prepare(config: CascadeConfig, workdir: Path) -> Workbench:
    """Load or make all of it. ConfigError, FileNotFoundError or ValueError says in one sentence what does not fit."""
    _check_lengths(config)
    _check_rows(config)
    model, params, shipped = _network(config)
    model = model if config.remat == "auto" else dataclasses.replace(model, remat=config.remat)
    check_mesh(config, model)
    for stage in config.stages.values():
        if stage.lora.rank > 0:
            lora.targets(params, stage.lora)
    if any(stage.export_hf for stage in config.stages.values()):
        family(model)  # refuses now what could not be exported later
    tokenizer = tokenizers.load(_tokenizer_path(config, workdir, model, shipped))
    if tokenizer.vocab_size > model.vocab_size:
        raise ConfigError(
            f"the tokenizer {tokenizer.path} has {tokenizer.vocab_size} tokens and the model's vocabulary is "
            f"{model.vocab_size}; give the tokenizer that belongs to the model."
        )
    chat, dtypes = Chat(tokenizer, template=config.template), jax.tree.map(lambda leaf: leaf.dtype, params)
    params = apply.placed(model, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params))
    domains = domain_module.load(config)
    _check_prompts(config, chat, domains)
    _check_rates(config, domains)
    _check_verdicts(config, domains)
    return Workbench(model, params, dtypes, chat, domains)


def versions() -> dict[str, str]:
    """Of Python, of the packages that decide the numbers, of the device, and of the kernels that have run so far."""
    found = {"python": platform.python_version(), "device": jax.devices()[0].device_kind}
    found |= {f"kernel of {operation}": ", ".join(names) for operation, names in chosen().items()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _network(config: CascadeConfig) -> tuple[ModelConfig, Params, Path | None]:
    if bool(config.model) == bool(config.checkpoint):
        raise ConfigError(
            f"model={config.model!r} and checkpoint={config.checkpoint!r}: set exactly one, "
            "a preset to start from random weights, or a folder with a checkpoint."
        )
    if config.checkpoint:
        model, params, tokenizer = load_model(Path(config.checkpoint))
        if config.repair_embeddings:
            params["embedding"] = repaired(params["embedding"])
        return model, params, tokenizer
    model = apply.pad_experts(presets.get(config.model))
    return model, apply.init(model, jax.random.key(config.seed)), None


def _tokenizer_path(config: CascadeConfig, workdir: Path, model: ModelConfig, shipped: Path | None) -> Path:
    if config.tokenizer:
        return Path(config.tokenizer)
    if shipped is not None:
        return shipped
    if config.checkpoint:
        raise ConfigError(
            f"checkpoint={config.checkpoint!r} has no tokenizer; copy its tokenizer.json or tokenizer.model there, or "
            "set tokenizer=FILE."
        )
    trained = workdir / "tokenizer.model"

    def train() -> None:
        if not trained.exists():
            fresh = trained.with_name("tokenizer.new.model")
            train_tokenizer(fresh, seed=config.seed, vocab_size=model.vocab_size)
            fresh.replace(trained)

    of_first(train)
    return trained


def check_mesh(config: CascadeConfig, model: ModelConfig) -> None:
    """What an axis splits must divide evenly: a device's share has the shape of every other's."""
    mesh = config.mesh
    axes.local(model, mesh.tensor)
    split = [
        ("fsdp * expert * context", mesh.fsdp * mesh.expert * mesh.context, "width", model.width),
        ("tensor", mesh.tensor, "vocab_size", model.vocab_size),
        ("tensor", mesh.tensor, "mlp_width", model.mlp_width),
        ("tensor", mesh.tensor, "expert_width", model.expert_columns),
        ("expert", mesh.expert, "experts", model.experts if "E" in model.pattern else mesh.expert),
        *(("context", mesh.context, f"stages.{name}.length", stage.length) for name, stage in config.stages.items()),
    ]
    for axis, parts, name, size in split:
        if size % parts:
            raise ConfigError(f"the mesh's {axis}={parts} does not divide {name}={size}; choose a divisor of it.")


def _check_rows(config: CascadeConfig) -> None:
    """Batches of rollouts are padded to what the mesh needs; those of SFT are as large as the config says."""
    for name, stage in config.stages.items():
        parts = stage.micro_batches * batch_shares()
        if stage.kind == "sft" and stage.sft.rows % parts:
            raise ConfigError(
                f"stages.{name}.sft.rows={stage.sft.rows} do not divide into {stage.micro_batches} micro-batches on "
                f"{batch_shares()} parts of the mesh; set a multiple of {parts}."
            )


def _check_prompts(config: CascadeConfig, chat: Chat, domains: Mapping[str, Domain]) -> None:
    """Every domain has a prompt that fits; those that do not are left out while the run goes on."""
    longest = max(config.buckets)
    for name, domain in domains.items():
        prompts = (make_prompt(chat, row, name, thinking=domain.thinking) for row in domain.rows["train"])
        if not any(len(prompt.ids) <= longest for prompt in prompts):
            raise ConfigError(f"no prompt of the domain {name!r} has at most {longest} tokens; raise buckets.")


def _check_rates(config: CascadeConfig, domains: Mapping[str, Domain]) -> None:
    """A curriculum needs to know how hard the rows are."""
    for name, stage in config.stages.items():
        for domain in stage.domains if stage.kind == "rl" and stage.rl.curriculum is not None else ():
            if all(pass_rate(row) is None for row in domains[domain].rows["train"]):
                raise ConfigError(
                    f"stages.{name}.rl.curriculum: no row of {domain!r} has a pass_rate; write them with "
                    "`python -m launch.data profile`, or set curriculum=None."
                )


def _check_verdicts(config: CascadeConfig, domains: Mapping[str, Domain]) -> None:
    for name, stage in config.stages.items():
        unjudged = [domain for domain in stage.domains if not domains[domain].judged]
        if stage.kind == "rl" and unjudged:
            raise ConfigError(
                f"stages.{name} is of kind rl, but {', '.join(unjudged)} hold demonstrations (kind sft), which nothing "
                "judges; train on it in an sft stage."
            )


def _check_lengths(config: CascadeConfig) -> None:
    longest = max(config.buckets)
    for name, stage in config.stages.items():
        need = longest + stage.sampling.max_tokens
        if stage.kind != "sft" and need > stage.length:
            raise ConfigError(
                f"stages.{name}.length={stage.length} cannot hold a prompt of {longest} tokens (the largest bucket) "
                f"and sampling.max_tokens={stage.sampling.max_tokens} more; set it to at least {need}."
            )
