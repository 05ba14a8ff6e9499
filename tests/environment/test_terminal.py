"""Tasks in Harbor folders: done, not done, forged, and those that need an image."""

import pytest

from cascade_jax.environment import ENVIRONMENTS
from cascade_jax.environment.shell import BASH
from cascade_jax.environment.terminal import read_reward
from cascade_jax.types import Row

SUBMIT = "```\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```"
TEST = """#!/bin/bash
if [ "$(cat /app/out.txt)" = "3" ] && [ -x /tests/check.sh ] && /tests/check.sh; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
FILES = {
    "instruction.md": "Count the lines of in.txt into out.txt.\n",
    "task.toml": 'version = "1.0"\n[agent]\ntimeout_sec = 20.0\n[verifier]\ntimeout_sec = 10\nenv = { WORD = "set" }\n',
    "environment/in.txt": "a\nb\nc\n",
    "environment/data/more.txt": "d\n",
    "tests/test.sh": TEST,
    "tests/check.sh": '#!/bin/bash\n[ "$WORD" = set ]\n',
    "solution/solve.sh": "#!/bin/bash\nwc -l < /app/in.txt > /app/out.txt\n",
}
COUNT = "wc -l < in.txt > out.txt"


def bash(command):
    return f"```bash\n{command}\n```"


def terminal(**settings):
    return ENVIRONMENTS["terminal"](**{"turns": 3, **settings})


@pytest.fixture
def task(tmp_path):
    def task(**changed):
        """A row of a folder; a file of which the text is None is left out."""
        for path, text in {**FILES, **changed}.items():
            if text is not None:
                file = tmp_path / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
                file.chmod(0o755 if text.startswith("#!") else 0o644)
        messages = ({"role": "user", "content": FILES["instruction.md"]},)
        return Row("count", "terminal", messages, fields={"task_path": str(tmp_path)})

    return task


def test_done_and_not_done(play, task):
    row = task()
    results = play(
        terminal(),
        row,
        [bash(f"pwd; ls -R; {COUNT}"), SUBMIT],
        [bash("cd /app && wc -l < data/more.txt > out.txt"), SUBMIT],
        [bash("ls /tests/ /solution/ /logs/; cat out.txt"), SUBMIT],
        [bash("ls"), bash(COUNT), bash("ls")],
        ["I do not know.", "```\nls\n```\nor\n```\npwd\n```", SUBMIT],
    )
    assert [verdict.reward for verdict, _ in results[:3]] == [1.0, 0.0, 0.0]
    shown = results[0][1]
    assert "/app\n" in shown and "more.txt" in shown
    assert shown.count("No such file or directory") == 0
    assert results[2][1].count("cannot access") == 3  # neither tests nor solution are there while it works
    assert "limit of turns" in results[3][0].no_verdict
    assert (results[4][0].reward, results[4][1].count("exactly one ``` block")) == (0.0, 2)


def test_the_solution_of_the_folder_and_a_row_that_holds_the_files(play):
    row = Row("r", "terminal", ({"role": "user", "content": "x"},), fields={"files": FILES})
    solve = FILES["solution/solve.sh"]
    [(verdict, _)] = play(terminal(), row, [bash(solve), SUBMIT])
    assert verdict.reward == 1.0


def test_rewards_that_are_written_before_or_beside_the_tests_do_not_count(play, task):
    reward = "cd /logs/verifier && echo 1 > reward.txt && echo '{\"reward\": 1}' > reward.json"
    later = "while true; do echo 1 > /tmp/logs/verifier/reward.txt; done"
    results = play(
        terminal(),
        task(),
        [bash(f"mkdir -p /logs/verifier; {reward}; chmod -R a-w /logs/verifier /logs/"), SUBMIT],
        [
            bash(f"mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; ({later}) & disown"),
            SUBMIT,
        ],
        [bash("ln -s /app /tmp/tests; ln -s /app /tmp/logs; printf 'cat() { echo 3; }' > ~/.bashrc; ls -la ~"), SUBMIT],
    )
    assert [(verdict.reward, verdict.no_verdict) for verdict, _ in results] == [(0.0, None)] * 3


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"environment/Dockerfile": "FROM ubuntu:24.04\nRUN apt-get update\n"}, "environment/Dockerfile"),
        ({"task.toml": '[environment]\ndocker_image = "python:3.12"\n'}, "docker_image"),
        ({"task.toml": "[environment]\ngpus = 1\n"}, "gpus"),
        ({"tests/test.sh": None}, "no tests/test.sh"),
        ({"task.toml": "version = \n"}, "cannot be read"),
    ],
)
def test_tasks_that_cannot_run_here_are_refused_in_one_sentence(play, task, changed, why):
    [(verdict, _)] = play(terminal(), task(**changed), [SUBMIT])
    assert why in verdict.no_verdict and "masked" not in verdict.components and "\n" not in verdict.no_verdict


def test_what_the_tests_may_do(play, task):
    def verdict(test, **changed):
        [(found, _)] = play(terminal(), task(**{"tests/test.sh": test}, **changed), [bash("ls"), SUBMIT])
        return found

    assert verdict("echo '{\"reward\": 0.25}' > /logs/verifier/reward.json").reward == 0.25
    failed = verdict("python3 -m pytest -q /tests/none.py && echo 1 > /logs/verifier/reward.txt")
    assert (failed.reward, failed.no_verdict) == (0.0, None)
    assert "no reward" in verdict("true").no_verdict
    assert "wrote the reward" in verdict("echo fine > /logs/verifier/reward.txt").no_verdict
    late = verdict("sleep 30", **{"task.toml": "[verifier]\ntimeout_sec = 1\n"})
    assert "time" in late.no_verdict and late.components["masked"] == 1


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("1", 1.0),
        (" 0.5\n", 0.5),
        ('{"reward": 1}', 1.0),
        ('{"tests": 0.5}', 0.5),
        ('{"a": 1, "b": 0}', None),
        ("", None),
        ("nan", None),
        ("NaN", None),
        ("true", None),
        ("[1]", None),
    ],
)
def test_rewards(text, reward):
    assert read_reward(text.encode()) == reward


def test_calls_of_the_tool(play, task, chat):
    row = task()
    environment = terminal(instructions=True)

    def text(command):
        """The assistant's turn as the chat format writes it."""
        function = {"name": "bash", "arguments": {"command": command}}
        call = {"id": "", "type": "function", "function": function}
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        ids, trained = chat.render(messages, [BASH], thinking=False)
        return chat.tokenizer.decode(ids[trained]).removesuffix("<|im_end|>")

    submit = text("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    (done, shown), (unclear, _) = play(
        environment,
        row,
        [text(f"{COUNT}; echo counted"), submit],
        [bash(COUNT), submit],
    )
    assert done.reward == 1.0 and "counted" in shown and "You work in a terminal" in shown
    assert unclear.reward == 0.0
