"""Generated rows: disjoint splits, equal bits in every process, sizes for a tiny model, verdicts of the verifiers."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from cascade_jax.config import JudgeConfig
from cascade_jax.data import tasks
from cascade_jax.data.chat import Chat
from cascade_jax.data.rows import to_record
from cascade_jax.data.tasks import SPLITS, TASKS, generate, oracle, train_tokenizer, wrong_answers
from cascade_jax.domains import JUDGED
from cascade_jax.reward import VERIFIERS, judge_server
from cascade_jax.reward.endpoint import Endpoint
from cascade_jax.reward.rule_judge import compare
from cascade_jax.types import Reply, Sample

LEVELS = (0, 1, 2, 3)
PROMPT_TOKENS = {"tool_call": 60, "long_context": 160}  # at most; 40 for other text-only prompts
ANSWER_TOKENS = {0: 16, 1: 16, 2: 20, 3: 28}  # by difficulty, the end token included


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return Chat(train_tokenizer(tmp_path_factory.mktemp("tasks") / "tokenizer.model"))


@pytest.fixture(scope="module")
def judge():
    with judge_server.running() as server, Endpoint(JudgeConfig(url=server.url)) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def verify(chat, judge):
    verifiers = {kind: make(judge=judge) if kind in JUDGED else make() for kind, make in VERIFIERS.items()}

    def verify(row, message):
        """The verdict on the message as a model would have written it: rendered, cut after the prompt, parsed."""
        reply, ids = written(chat, row, message)
        n = len(ids)
        return verifiers[row.kind].verify(row, Sample(ids, np.zeros(n, np.float32), np.ones(n, bool), "stop", 0, reply))

    return verify


def written(chat, row, message) -> tuple[Reply, np.ndarray]:
    prompt = chat.render(row.messages, row.tools, thinking=False, generation_prompt=True).ids
    ids, trained = chat.render([*row.messages, message], row.tools, thinking=False)
    assert (ids[: len(prompt)] == prompt).all()
    return chat.parse(ids[trained], prompt_ids=prompt, tools=row.tools), ids[trained]


def contents(rows):
    return {json.dumps(row.extra["content"], sort_keys=True) for row in rows}


@pytest.mark.parametrize("task", TASKS)
def test_splits_share_no_content(task):
    found = [contents(generate(task, split, 100, seed=s)) for s in (0, 1) for split in SPLITS]
    for i in range(3):
        for j in range(3):
            assert i == j or not found[i] & found[3 + j]
    prompts = [
        {(row.messages[0]["content"], json.dumps(row.tools)) for row in generate(task, split, 100)} for split in SPLITS
    ]
    assert not prompts[0] & prompts[2]
    assert not prompts[0] & prompts[1]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("level", LEVELS)
def test_contents_repeat_only_when_a_split_is_used_up(task, level):
    rows = generate(task, "train", 40, difficulty=(level,))
    assert len({row.id for row in rows}) == 40
    assert {row.extra["difficulty"] for row in rows} == {level}
    ids = [row.id for row in generate(task, "test", 150, difficulty=(level,))]
    unique = len(set(ids))
    assert unique >= 4
    assert len(set(ids[: int(0.9 * unique)])) == int(0.9 * unique)  # the last few may turn up late


def test_same_rows_in_another_process():
    script = (
        "import json; from cascade_jax.data.rows import to_record\n"
        "from cascade_jax.data.tasks import TASKS, generate as g\n"
        "print(json.dumps([to_record(r) for t in TASKS for s in ('train', 'test') for r in g(t, s, 40, seed=3)]))"
    )
    out = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    mine = [to_record(r) for t in TASKS for s in ("train", "test") for r in generate(t, s, 40, seed=3)]
    assert out.strip() == json.dumps(mine)
    assert mine != [to_record(r) for t in TASKS for s in ("train", "test") for r in generate(t, s, 40, seed=4)]


def test_more_rows_begin_with_the_same_rows():
    assert generate("mcqa", "train", 20) == generate("mcqa", "train", 50)[:20]


@pytest.mark.parametrize("task", [task for task in TASKS if task != "preference"])
@pytest.mark.parametrize("level", LEVELS)
def test_verifiers_accept_the_oracle_and_refuse_wrong_answers(request, verify, task, level):
    rng = np.random.default_rng(level)
    if task == "code":
        request.getfixturevalue("isolation")
    for row in generate(task, "test", 5 if task == "code" else 25, difficulty=(level,)):
        verdict = verify(row, oracle(row, rng))
        assert (verdict.reward, verdict.no_verdict) == (1.0, None), (row, verdict)
        answers = [*wrong_answers(row, rng), *(TASKS[task].habit(row.extra["content"], rng) for _ in range(4))]
        for message in answers:
            verdict = verify(row, message)
            assert (verdict.reward, verdict.no_verdict) == (0.0, None), (row, message, verdict)


@pytest.mark.parametrize("level", (4, 5, 6))
def test_instructions_are_combined(chat, verify, level):
    """The levels above the others' are as large, are judged alike, and stay out of the tokenizer's texts."""
    rng = np.random.default_rng(level)
    rows = generate("instruction_following", "train", 120, difficulty=(level,))
    assert len({row.id for row in rows}) == 120
    for row in rows:
        assert len(row.fields["instruction_id_list"]) == level - 2  # that the words are there is one more
        right = oracle(row, rng)
        assert verify(row, right).reward == 1.0
        for message in (*wrong_answers(row, rng), TASKS[row.kind].habit(row.extra["content"], rng)):
            assert (verify(row, message).reward, verify(row, message).no_verdict) == (0.0, None), (row, message)
        prompt = chat.render(row.messages, thinking=False, generation_prompt=True).ids
        ids, trained = chat.render([*row.messages, right], thinking=False)
        assert len(prompt) <= 60 and trained.sum() <= 28 and len(ids) <= 96
    assert not {row.messages[-1]["content"] for row in rows} & set(tasks.corpus())


@pytest.mark.parametrize("level", LEVELS)
def test_the_judge_prefers_the_oracle(chat, level):
    rng = np.random.default_rng(level)
    for row in generate("preference", "test", 25, difficulty=(level,)):
        good = written(chat, row, oracle(row, rng))[0].content
        others = [*wrong_answers(row, rng), *(TASKS["preference"].habit(row.extra["content"], rng) for _ in range(4))]
        for message in others:
            worse = written(chat, row, message)[0].content
            first, second = compare(row.messages, good, worse), compare(row.messages, worse, good)
            assert first["score_1"] > first["score_2"], (good, worse)
            assert second["ranking"] > 3.5 > first["ranking"]


@pytest.mark.parametrize("task", TASKS)
def test_demonstrations_are_wrong_as_often_as_asked(task):
    def share_right(wrong_share):
        rows = generate(task, "train", 400, wrong_share=wrong_share)
        rng = np.random.default_rng(0)
        return np.mean([row.fields["demonstration"] == oracle(row, rng) for row in rows])

    assert share_right(0.0) == 1
    assert share_right(1.0) == 0
    assert abs(share_right(0.5) - 0.5) < 0.08


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("level", LEVELS)
def test_sizes(chat, task, level):
    rng = np.random.default_rng(0)
    for row in generate(task, "train", 60, difficulty=(level,)):
        prompt = chat.render(row.messages, row.tools, thinking=False, generation_prompt=True).ids
        assert len(prompt) <= PROMPT_TOKENS.get(task, 40)
        for message in (oracle(row, rng), TASKS[task].habit(row.extra["content"], rng)):
            ids, trained = chat.render([*row.messages, message], row.tools, thinking=False)
            assert trained.sum() <= (40 if task == "code" else ANSWER_TOKENS[level])
            assert len(ids) <= PROMPT_TOKENS.get(task, 40) + 56


def test_tokenizer_of_the_tasks(chat, tmp_path):
    t = chat.tokenizer
    assert t.vocab_size == 512
    again = train_tokenizer(tmp_path / "again.model")
    assert hashlib.sha256(again.path.read_bytes()).digest() == hashlib.sha256(t.path.read_bytes()).digest()
    for word in tasks.WORDS + tasks.COLORS:
        assert len(t.encode(word)) == 1
    for text in tasks.corpus(seed=1, rows=50):
        assert t.decode(t.encode(text)) == text


def test_words_do_not_hide_in_each_other():
    for word in tasks.WORDS + tasks.COLORS:
        assert not [other for other in tasks.WORDS + tasks.COLORS if other != word and word in other]


def test_mistakes_are_one_sentence():
    for arguments, message in [
        (("sums", "train", 1), "the task 'sums' does not exist; choose one of"),
        (("math", "dev", 1), "the split 'dev' does not exist; choose one of"),
    ]:
        with pytest.raises(ValueError, match=message):
            generate(*arguments)
    with pytest.raises(ValueError, match=r"difficulty=\(4,\) must be some of"):
        generate("math", "train", 1, difficulty=(4,))
