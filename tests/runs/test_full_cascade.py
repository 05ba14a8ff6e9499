"""The full tiny cascade: its stages are the recipe's, its limits hold what it teaches, and it runs as typed."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from cascade_jax.checkpoint import save_model
from cascade_jax.config import CascadeConfig, build
from cascade_jax.data import tokenizer
from cascade_jax.data.chat import Chat
from cascade_jax.data.rows import demonstrated
from cascade_jax.data.tasks import TASKS, generate, train_tokenizer
from cascade_jax.graph import parents
from cascade_jax.model import presets
from configs import full_tiny_cascade
from tests.model.conftest import random_weights

RECIPE = ("sft", "if_rl", "multi_rl", "mopd", "rlhf", "long_rl", "code_rl", "repair_rl", "agent_rl")


@pytest.fixture(scope="module")
def config() -> CascadeConfig:
    return build(CascadeConfig, full_tiny_cascade.get_config().to_dict())


@pytest.fixture(scope="module")
def start_of_all(tmp_path_factory: pytest.TempPathFactory, config: CascadeConfig) -> Path:
    """Half the layers of the network, with the tokenizer of the config's tasks."""
    folder = tmp_path_factory.mktemp("start")
    model = replace(presets.get(config.model), pattern="ME*")
    tasks = {domain.train.task for domain in config.domains.values()}
    trained = train_tokenizer(folder / "tokenizer.model", vocab_size=model.vocab_size, tasks=tasks)
    params = jax.tree.map(jax.numpy.asarray, random_weights(model))
    save_model(folder / "model", model, params, tokenizer=trained.path)
    return folder / "model"


def test_the_stages_are_those_of_the_recipe(config):
    """In its order; the teacher of chats is a branch off SFT, and each later stage goes on from the one before."""
    main = [name for name in config.order if not config.stages[name].side_branch]
    assert tuple(main) == RECIPE
    graph = parents(config)
    assert [graph[name] for name in main] == ["init", *main[:-1]] and graph["chat_teacher"] == "sft"
    trained = {name for stage in main[1:] for name in config.stages[stage].domains}
    assert set(config.stages["sft"].domains) == set(config.domains) == trained
    assert {domain.train.task for domain in config.domains.values()} == set(TASKS) - {"proof"}


def test_what_is_taught_fits_the_limits(config, start_of_all):
    """Every demonstration could be sampled: prompts fit the buckets, turns the sampling limit, episodes their turns."""
    chat = Chat(tokenizer.load(start_of_all / "tokenizer.model"))
    for name, domain in config.domains.items():
        source = domain.train
        for row in generate(source.task, "train", 60, difficulty=source.difficulty):
            messages = [*row.messages, *demonstrated(row)]
            ids, trained = chat.render(messages, row.tools, thinking=domain.thinking)
            edges = np.flatnonzero(np.diff(np.concatenate([[0], trained.astype(int), [0]])))
            turns = edges[1::2] - edges[::2]
            assert len(turns) <= domain.settings.get("turns", 1), name
            assert max(turns) <= config.evaluation.sampling.max_tokens, name
            assert edges[-2] <= max(config.buckets) and len(ids) <= config.stages["sft"].length, name


def test_all_stages_run(launch, start_of_all, isolation, tmp_path):
    """As typed, with sandboxes: every domain has verdicts after every stage."""
    workdir = tmp_path / "run"
    arguments = ("--config=tests/runs/full_micro_cascade.py", "--config.model=", f"--config.checkpoint={start_of_all}")
    process = launch("launch.run", *arguments, f"--workdir={workdir}")
    output, _ = process.communicate(timeout=420)
    assert process.returncode == 0, output
    manifest = json.loads((workdir / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    stages = manifest["stages"]
    assert [name for name in stages if name != "chat_teacher"] == list(RECIPE)
    for name, stage in stages.items():
        results = stage["evaluation"]["validation"]
        assert set(results) == set(full_tiny_cascade.DOMAINS), name
        assert all(result["count"] == 2 and result["no_verdict"] == 0 for result in results.values()), (name, results)
        logged = (workdir / "stages" / name / "metrics.jsonl").read_text().splitlines()
        assert len(logged) == (2 if name == "sft" else 1)
    assert set(stages["mopd"]["teachers"]) >= {"instruction", "chat", "workplace"}
