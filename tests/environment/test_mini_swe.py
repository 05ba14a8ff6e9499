"""mini-swe-agent's own loop over our sandbox, with our engine in place of a remote model."""

import numpy as np
import pytest

from cascade_jax.config import SamplingConfig
from cascade_jax.data.tasks import swe
from cascade_jax.environment import ENVIRONMENTS
from cascade_jax.environment.mini_swe import EngineModel, run_mini_swe
from cascade_jax.types import Reply, Row

from .conftest import Scripted

pytest.importorskip("minisweagent", reason="needs the extra swe (mini-swe-agent)")


@pytest.fixture(scope="module")
def task():
    rng = np.random.default_rng(0)
    content = swe.draw(rng, 3)
    fields = dict(swe.fields(content))
    row = Row("bug", "swe", ({"role": "user", "content": fields.pop("user")},), fields=fields)
    return row, [message["content"] for message in swe.oracle(content, rng) if message["role"] == "assistant"]


def written(*texts):
    replies = iter(texts)
    return lambda messages: Reply(next(replies))


def test_the_engine_writes_and_the_agent_repairs(chat, task):
    row, texts = task
    engine = Scripted(chat, [[text] for text in texts])  # one place for each turn
    model = EngineModel(engine, chat, row, SamplingConfig(max_tokens=256), thinking=False, seed=0)
    verdict, messages = run_mini_swe(ENVIRONMENTS["swe"](turns=5), row, model)
    assert (verdict.reward, verdict.no_verdict) == (1.0, None)
    assert [message["role"] for message in messages] == ["user", *(["assistant", "user"] * 3)[:-1]]
    assert messages[0] == row.messages[0] and "return" in messages[2]["content"]
    for (ids, sample), text in zip(model.samples, texts, strict=True):
        assert chat.parse(sample.ids, prompt_ids=ids).content == text


def test_formats_limits_and_wrong_repairs(task):
    row, texts = task
    environment = ENVIRONMENTS["swe"](turns=3)
    verdict, messages = run_mini_swe(environment, row, written("No block.", *texts[1:]))
    assert verdict.reward == 1.0 and "exactly one" in messages[2]["content"]
    endless, _ = run_mini_swe(environment, row, written(texts[1], texts[0], texts[0]))
    assert "limit of turns" in endless.no_verdict and endless.components["masked"] == 1
    nothing, _ = run_mini_swe(environment, row, written(texts[0], texts[-1]))
    assert (nothing.reward, nothing.no_verdict) == (0.0, None)
    lost, _ = run_mini_swe(environment, row, written("a", "b", "c"))
    assert (lost.reward, lost.no_verdict) == (0.0, None)
