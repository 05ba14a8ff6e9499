"""The configs for real models: the numbers of the published recipe, and what a run refuses before its first step."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from cascade_jax import graph
from cascade_jax.config import CascadeConfig, ConfigError, build
from cascade_jax.domains import ENVIRONMENTS, VERIFIERS
from configs import nemotron_cascade2_30b, qwen3_0_6b, qwen3_30b_a3b
from launch.topology import topology

ROOT = Path(__file__).resolve().parent.parent
RUNS = {
    "v5p:4x4x4": nemotron_cascade2_30b.get_config("v5p:4x4x4"),
    "v6e:16x16": nemotron_cascade2_30b.get_config("v6e:16x16"),
    "h200:8": qwen3_0_6b.get_config(),
    "h100:8": qwen3_30b_a3b.get_config(),
}
# The paper's Tables 8 to 10, with its prose where they differ: prompts, samples, longest answer, learning rate, steps,
# temperature, top-p, KL. The longest answers of the last three stages leave room for prompts of 32K.
TABLE = {
    "if_rl": (128, 16, 49_152, 3e-6, 180, 1.0, 1.0, 0.0),
    "multi_rl": (128, 16, 49_152, 3e-6, 70, 1.0, 1.0, 0.0),
    "mopd": (128, 4, 98_304, 2e-6, 52, 1.0, 1.0, None),
    "rlhf": (128, 16, 16_384, 3e-6, 25, 1.0, 1.0, 0.03),
    "long_context_rl": (128, 16, 49_152 - 32_768, 3e-6, 30, 1.0, 1.0, 0.0),
    "code_rl": (128, 16, 118_784, 3e-6, 22, 1.0, 0.95, 0.0),
    "swe_agentless": (128, 16, 98_304 - 32_768, 3e-6, 45, 1.0, 1.0, 0.0),
    "swe_agentic": (16, 64, 262_144 - 32_768, 3e-6, 75, 0.8, 1.0, 0.0),
}


def config(name):
    return build(CascadeConfig, RUNS[name].to_dict())


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_whole_and_fits_its_machine(name):
    run = config(name)
    graph.check(run)
    axes = vars(run.mesh)
    assert math.prod(axes.values()) == topology(name).devices
    shares = axes["slice"] * axes["data"] * axes["fsdp"] * axes["expert"]
    for stage in run.stages.values():
        if stage.kind == "sft":
            assert stage.sft.rows % (stage.micro_batches * shares) == 0
        else:
            assert max(run.buckets) + stage.sampling.max_tokens <= stage.length
        assert stage.length % (128 * axes["context"]) == 0, "a shard of a row is whole chunks"
    used = {domain for stage in run.stages.values() for domain in stage.domains}
    assert used == set(run.domains)
    assert [stage.export_hf for stage in run.stages.values()][list(run.stages).index(run.order[-1])]


@pytest.mark.parametrize("stage", TABLE)
def test_a_stage_has_the_numbers_of_the_paper(stage):
    s = config("v5p:4x4x4").stages[stage]
    part = s.distill if s.kind == "distill" else s.rl
    kl = None if s.kind == "distill" else s.rl.kl_coef
    assert TABLE[stage] == (
        *(part.prompts, part.samples, s.sampling.max_tokens, s.optimizer.learning_rate, s.steps),
        *(s.sampling.temperature, s.sampling.top_p, kl),
    )
    assert (s.optimizer.name, s.optimizer.b1, s.optimizer.b2, s.optimizer.weight_decay) == ("adamw", 0.9, 0.95, 0.0)
    assert part.band == (0.5, 2.0)


def test_the_stages_stand_in_the_order_of_the_paper_and_teach_as_there():
    run = config("v5p:4x4x4")
    assert graph.parents(run) == {
        "sft": "init",
        "rlhf_teacher": "sft",
        "if_rl": "sft",
        "multi_rl": "if_rl",
        "mopd": "multi_rl",
        "rlhf": "mopd",
        "long_context_rl": "rlhf",
        "code_rl": "long_context_rl",
        "swe_agentless": "code_rl",
        "swe_agentic": "swe_agentless",
    }
    teachers = run.stages["mopd"].distill.teachers
    assert {teachers["math"], teachers["chat"], teachers["mcqa"]} == {"sft", "rlhf_teacher", "multi_rl"}
    assert math.isclose(sum(run.stages["mopd"].domains.values()), 1.0)
    overlong = {name: stage.rl.overlong for name, stage in run.stages.items() if stage.kind == "rl"}
    assert overlong["if_rl"] == "penalty" and overlong["multi_rl"] == overlong["code_rl"] == "filter"
    assert overlong["rlhf"] == overlong["long_context_rl"] == "none"
    assert [name for name, stage in run.stages.items() if stage.rl.dynamic_filter] == ["if_rl"]


def test_sft_has_the_numbers_of_the_paper():
    s = config("v5p:4x4x4").stages["sft"]
    o = s.optimizer
    assert (s.length, s.sft.rows, s.steps) == (262_144, 64, 33_000)
    assert (o.learning_rate, o.min_learning_rate, o.schedule, o.warmup_steps) == (5e-5, 5e-6, "cosine", 200)
    assert (o.b1, o.b2, o.weight_decay) == (0.9, 0.98, 0.1)


def test_a_mesh_for_another_machine_is_asked_for_in_one_sentence():
    with pytest.raises(ConfigError, match="no mesh for 'v6e-256' in this file; choose one of v5p:4x4x4, v6e:16x16"):
        nemotron_cascade2_30b.get_config("v6e-256")


def test_what_a_config_file_refuses_is_one_sentence_on_the_command_line():
    line = "--config=configs/nemotron_cascade2_30b.py:v6e-256"
    program = f"from launch import command as c; c.define_config(); c.guarded(lambda: c.parse(['x', '{line}']))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: there is no mesh for 'v6e-256' in this file; choose one of v5p:4x4x4, v6e:16x16.\n"


def test_every_domain_is_judged_with_the_settings_that_it_has():
    kinds = {"instruction": "instruction_following", "structured": "structured_output", "long_context": "judged"}
    kinds |= {"chat": "preference", "repair": "swe_repair"}
    for name, domain in config("v5p:4x4x4").domains.items():
        kind = kinds.get(name, name)
        assert kind in {*VERIFIERS, *ENVIRONMENTS, "preference", "sft"}
        if domain.settings:
            (ENVIRONMENTS | VERIFIERS)[kind](**domain.settings)
