"""A demonstration may be a whole episode: all that the assistant wrote in it is trained, and nothing else."""

import numpy as np
import pytest

from cascade_jax.data.chat import Chat
from cascade_jax.data.rows import RowError, demonstrated, demonstration, parse_row, to_record
from cascade_jax.data.tasks import generate, train_tokenizer

CALL = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
EPISODE = [
    {"role": "assistant", "content": "", "reasoning_content": "Add them.", "tool_calls": [CALL]},
    {"role": "tool", "content": "the sum is 3", "tool_call_id": "call_0"},
    {"role": "assistant", "content": "Three."},
]


def record(demonstration):
    return {"kind": "math", "question": "1 + 2?", "expected_answer": "3", "demonstration": demonstration}


def test_a_list_of_messages_is_one_demonstration():
    row = parse_row(record(EPISODE), where="x")
    assert demonstrated(row) == EPISODE and demonstration(row) == EPISODE
    assert parse_row(to_record(row), where="x") == row


def test_one_message_is_a_list_of_one():
    [row] = generate("math", "train", 1)
    assert demonstrated(row) == [demonstration(row)]
    assert demonstrated(parse_row({"kind": "math", "question": "?", "expected_answer": "3"}, where="x")) == []


@pytest.mark.parametrize("bad", [[], EPISODE[1:], EPISODE[:2], [{"role": "assistant", "content": ""}], 3])
def test_what_is_no_demonstration(bad):
    with pytest.raises(RowError, match="x: "):
        parse_row(record(bad), where="x")


@pytest.mark.parametrize("thinking", [False, True])
def test_all_turns_of_the_assistant_are_trained(tmp_path, thinking):
    chat = Chat(train_tokenizer(tmp_path / "tokenizer.model"))
    row = parse_row(record(EPISODE), where="x")
    ids, trained = chat.render([*row.messages, *demonstrated(row)], row.tools, thinking=thinking)
    starts = np.flatnonzero(trained & ~np.append(False, trained[:-1]))
    spans = [chat.tokenizer.decode(ids[s : s + int(np.argmin(np.append(trained[s:], False)))].tolist()) for s in starts]
    assert len(spans) == 2 and "<function=add>" in spans[0] and spans[1] == "Three.<|im_end|>"
    assert "the sum is" not in "".join(spans) and spans[0].endswith("<|im_end|>")
