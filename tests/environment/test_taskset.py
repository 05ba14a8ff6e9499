"""A taskset of `verifiers` that someone else wrote, installed in a folder and driven through its own agent program."""

import shutil
import textwrap

import numpy as np
import pytest

from cascade_jax.config import SourceConfig
from cascade_jax.data import sources
from cascade_jax.data.chat import Chat
from cascade_jax.data.tasks import train_tokenizer
from cascade_jax.environment import ENVIRONMENTS
from tests.rollout.scripted import Scripted, run, says

SUMS = """
import os
import verifiers.v1 as vf
from third_party_sums.adder import Adder


class SumData(vf.TaskData):
    answer: str


class Sum(vf.Task):
    @vf.reward(weight=2.0)
    async def right(self, task, trace) -> float:
        if "broken" in task.answer:
            raise RuntimeError("the checker fell over")
        return float(trace.last_reply == task.answer)

    @vf.metric
    async def tools_used(self, trace) -> float:
        return float(len(trace.tool_messages))


class WithAdder(Sum):
    @classmethod
    def toolsets(cls, config):
        return [Adder(vf.ToolsetConfig())]


class Tasks(vf.Taskset[WithAdder, vf.TasksetConfig]):
    def load(self):
        for i, answer in enumerate(["1", "2", "3", "4", "broken"]):
            yield WithAdder(SumData(prompt=f"{i} + 1 = ?", system_prompt="Add.", answer=answer))


__all__ = ["Tasks"]
"""
ADDER = '''
import verifiers.v1 as vf


class Adder(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "adder"

    @vf.tool
    def add(self, a: int, b: int) -> str:
        """The sum of two numbers."""
        return f"sum {a + b}"


if __name__ == "__main__":
    Adder.run()
'''


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The name of the taskset, whose package lies in a folder of the path."""
    pytest.importorskip("verifiers", reason="needs the package verifiers: pip install -e '.[envs]'")
    if shutil.which("uv") is None:
        pytest.skip("needs `uv` on the PATH, which verifiers starts its programs with")
    package = tmp_path_factory.mktemp("site") / "third_party_sums"
    package.mkdir()
    (package / "__init__.py").write_text(textwrap.dedent(SUMS))
    (package / "adder.py").write_text(textwrap.dedent(ADDER))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(package.parent))
        patch.setenv("PYTHONPATH", str(package.parent))
        yield "third-party-sums"


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return Chat(train_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"))


def rows(name, split="test", **more):
    return sources.load(SourceConfig(kind="verifiers", path=name, **more), split=split, seed=0)


ADD = (
    "<tool_call>\n<function=adder_add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n1\n</parameter>\n"
    "</function>\n</tool_call>"
)


def test_tasks_are_rows(installed):
    found = rows(installed)
    assert [row.messages[-1]["content"] for row in found] == [f"{i} + 1 = ?" for i in range(5)]
    assert found[0].kind == "verifiers" and found[0].messages[0] == {"role": "system", "content": "Add."}
    assert len({row.id for row in found}) == 5 and len(rows(installed, rows=2)) == 2
    assert [len(rows(installed, split)) for split in ("train", "validation")] == [4, 1]


def test_a_taskset_that_is_not_installed(installed):
    with pytest.raises(FileNotFoundError, match="no taskset 'nothing-here'"):
        rows("nothing-here")


def test_an_agents_program_is_driven_turn_by_turn(chat, installed):
    """Tools are the taskset's own, over its own server; tokens are one chain; rewards are its own, by their weight."""
    row = rows(installed)[1]
    scripts = says(ADD, "2"), says("3"), ("2 and then",), says(ADD, ADD, ADD)
    engine = Scripted(chat, *scripts)
    environment = ENVIRONMENTS["verifiers"](seconds=120.0, turns=3)
    [group] = run(engine, chat, environment, [row], samples=4, longest=2000)
    right, wrong, cut_off, endless = group.samples
    assert right.verdict.no_verdict is None and right.verdict.reward == 2.0, right.verdict
    assert right.verdict.components["tools_used"] == 1.0 and right.turns == 2 and right.later == ()
    read = chat.tokenizer.decode(right.ids[~right.mask].tolist())
    assert "sum 2" in read and "tool_response" in read
    written = [i for text in scripts[0] for i in chat.tokenizer.encode(text, specials=True)]
    assert right.ids[right.mask].tolist() == written
    assert wrong.verdict.reward == 0.0 and wrong.turns == 1
    assert cut_off.stop_reason == "length" and cut_off.verdict.reward == 0.0
    assert endless.stop_reason == "turns" and endless.turns == 3 and endless.verdict.reward == 0.0
    assert endless.verdict.components["tools_used"] == 3.0
    assert "adder_add" in chat.tokenizer.decode(group.prompt.ids.tolist())


def test_what_breaks_over_there_is_no_verdict(chat, installed):
    checker = rows(installed)[4]
    [group] = run(Scripted(chat, says("5")), chat, ENVIRONMENTS["verifiers"](seconds=120.0), [checker], longest=2000)
    verdict = group.samples[0].verdict
    assert np.isnan(verdict.reward) and "the checker fell over" in verdict.no_verdict
    nothing = ENVIRONMENTS["verifiers"](harness="no-such-harness")
    [group] = run(Scripted(chat, says("5")), chat, nothing, [checker], longest=2000)
    assert "no-such-harness" in group.samples[0].verdict.no_verdict


def test_without_the_package_a_sentence_says_so(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "verifiers.v1.utils", None)
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(FileNotFoundError, match=r"pip install -e '\.\[envs\]'"):
        rows("anything")
