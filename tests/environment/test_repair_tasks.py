"""Generated tasks of repair and of a terminal: right ones earn 1, wrong ones not, and they are small."""

import numpy as np
import pytest

from cascade_jax.data.chat import template_pieces
from cascade_jax.data.rows import parse_row, to_record
from cascade_jax.data.tasks import swe, swe_repair, terminal
from cascade_jax.data.tasks.words import COLORS, WORDS
from cascade_jax.data.tokenizer import train_sentencepiece
from cascade_jax.environment import ENVIRONMENTS
from cascade_jax.reward import VERIFIERS
from cascade_jax.types import Reply, Row, Sample

MODULES = {"swe_repair": swe_repair, "swe": swe, "terminal": terminal}
LEVELS = (0, 1, 2, 3)


def made(kind, level, count=1, seed=0):
    rng = np.random.default_rng([seed, level])
    for _ in range(count):
        content = MODULES[kind].draw(rng, level)
        fields = dict(MODULES[kind].fields(content))
        messages = ({"role": "user", "content": fields.pop("user")},)
        yield content, Row(f"{kind}-{level}", kind, messages, fields=fields), rng


def sample(text):
    return Sample(np.zeros(1, np.int32), np.zeros(1, np.float32), np.ones(1, bool), "stop", 0, Reply(text))


@pytest.mark.parametrize("level", LEVELS)
def test_repairs_in_one_turn(level):
    verifier = VERIFIERS["swe_repair"]()
    for content, row, rng in made("swe_repair", level):
        assert verifier.verify(row, sample(swe_repair.oracle(content, rng)["content"])).reward == 1.0
        wrong = [*swe_repair.wrong_answers(content, rng), swe_repair.habit(content, rng)]
        verdicts = [verifier.verify(row, sample(message["content"])) for message in wrong]
        assert all(verdict.no_verdict is None and verdict.reward <= 0 for verdict in verdicts), verdicts


@pytest.mark.parametrize("kind", ["swe", "terminal"])
@pytest.mark.parametrize("level", LEVELS)
def test_episodes(play, kind, level):
    """What the shell shows is what the demonstrations say that it does."""
    module = MODULES[kind]
    [(content, row, rng)] = made(kind, level)
    right = module.oracle(content, rng)
    tries = [right, *module.wrong_answers(content, rng), module.habit(content, rng), module.habit(content, rng)]
    scripts = [[message["content"] for message in one if message["role"] == "assistant"] for one in tries]
    results = play(ENVIRONMENTS[kind](turns=4), row, *scripts)
    rewards = [(verdict.reward, verdict.no_verdict) for verdict, _ in results]
    assert rewards == [(1.0, None)] + [(0.0, None)] * (len(tries) - 1), [verdict for verdict, _ in results]
    for message in right:
        assert message["content"] in results[0][1] or message is right[-1]


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("level", LEVELS)
def test_rows_keep_the_schema_and_are_many(kind, level):
    rows = [row for _, row, _ in made(kind, level, 150)]
    for row in rows[:20]:
        again = parse_row(to_record(row), where="row")
        assert {name: again.fields[name] for name in row.fields} == dict(row.fields)
    assert len({row.messages[0]["content"] for row in rows}) > 60


@pytest.mark.parametrize("kind", MODULES)
def test_a_tokenizer_that_knows_the_pieces_makes_them_small(tmp_path, kind):
    module = MODULES[kind]
    every = [item for level in LEVELS for item in made(kind, level, 60)]
    texts, answers = [], []
    for content, row, rng in every:
        answer = module.oracle(content, rng)
        turns = [answer] if isinstance(answer, dict) else answer
        texts += [row.messages[0]["content"], *(message["content"] for message in turns)]
        answers += [message["content"] for message in turns if message["role"] == "assistant"]
    pieces = [*template_pieces(), *WORDS, *COLORS, *module.PIECES]
    tokenizer = train_sentencepiece(texts, tmp_path / "tokenizer.model", vocab_size=512, pieces=pieces)
    prompts = [len(tokenizer.encode(row.messages[0]["content"])) for _, row, _ in every]
    assert max(prompts) <= 90
    assert max(len(tokenizer.encode(answer)) for answer in answers) <= 48
