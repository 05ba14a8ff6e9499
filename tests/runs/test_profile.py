"""Pass rates by a real checkpoint: what verifiers say of the same answers; killed for real and gone on with exactly."""

import json
import signal
import time
from argparse import Namespace
from collections import Counter
from pathlib import Path

import pytest

from cascade_jax.config import SamplingConfig, SourceConfig
from cascade_jax.data import sources
from cascade_jax.data.difficulty import pass_rate
from cascade_jax.data.rows import parse_row
from cascade_jax.domains import Domain
from cascade_jax.profiling import profile
from cascade_jax.reward import VERIFIERS
from cascade_jax.rollout.episode import make_prompt, run_prompts
from cascade_jax.seeding import derive
from cascade_jax.types import Row, Verdict
from launch import data as command
from launch.profile import _domain, _engine
from tests.rollout.countdown import Guessing

BATCH, SAMPLES, TOKENS, LONGEST = 4, 4, 8, 64
SETTINGS = [f"--samples={SAMPLES}", f"--max_tokens={TOKENS}", f"--max_prompt={LONGEST}", f"--batch={BATCH}"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What letters in any order fulfil often, what they never do, one that is too long, one that cannot be graded."""
    path = tmp_path_factory.mktemp("profile") / "rows.jsonl"
    often = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [None]}
    never = {"instruction_id_list": ["detectable_format:title"], "kwargs": [None]}
    records = [{"id": f"r{i}", "prompt": f"Say {i}.", **(never if i % 3 == 2 else often)} for i in range(9)]
    records.insert(2, {"id": "long", "prompt": "No " * 200, **often})
    records.insert(3, {"id": "empty", "question": "Tidy.", "environment_name": "workbench", "ground_truth": "[]"})
    records.append({"id": "sum", "question": "1 + 1?", "expected_answer": "2", "pass_rate": 1.0})
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def profiled(start: Path, rows: Path) -> Path:
    output = rows.with_name("profiled.jsonl")
    assert command.main(["profile", str(start), f"--input={rows}", f"--output={output}", *SETTINGS]) == 0
    return output


def test_rates_are_what_the_verifiers_say_of_the_same_answers(start: Path, rows: Path, profiled: Path):
    engine, chat = _engine(start, LONGEST)
    found = {row.id: row for row in sources.open_rows(str(profiled))}
    assert list(found) == ["r0", "r1", "long", *(f"r{i}" for i in range(2, 9)), "sum"]
    given = [row for row in sources.scan(sources.open_rows(str(rows))) if not isinstance(row, ValueError)]
    sampling, rates = SamplingConfig(max_tokens=TOKENS), Counter()
    for number in range(3):
        batch = [row for row in given[BATCH * number : BATCH * (number + 1)] if row.id != "long"]
        prompts = [make_prompt(chat, row, row.kind, thinking=False) for row in batch]
        seed = derive(0, "profile", number)
        for group in run_prompts(engine, chat, prompts, sampling, samples_per_prompt=SAMPLES, seed=seed):
            row = group.prompt.row
            rewards = [VERIFIERS[row.kind]().verify(row, sample).reward for sample in group.samples]
            extra = found[row.id].extra
            assert (extra["pass_rate_passed"], extra["pass_rate_total"]) == (rewards.count(1.0), SAMPLES)
            assert pass_rate(found[row.id]) == rewards.count(1.0) / SAMPLES
            rates[pass_rate(found[row.id])] += 1
    assert rates[0.0] >= 3 and sum(rates.values()) - rates[0.0] >= 3
    assert found["long"].extra == {"pass_rate_total": 0, "pass_rate_passed": 0}
    assert found["r0"].fields == given[0].fields


def test_a_profile_that_was_killed_goes_on_and_ends_with_the_same_bytes(
    launch, start: Path, rows: Path, profiled: Path
):
    output = rows.with_name("killed.jsonl")
    unfinished = output.with_name("killed.jsonl.incomplete")
    arguments = ["profile", str(start), f"--input={rows}", f"--output={output}", *SETTINGS]
    process = launch("launch.data", *arguments)
    deadline = time.monotonic() + 120
    while not (unfinished.exists() and unfinished.read_bytes().count(b"\n") >= BATCH):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not output.exists()
    with unfinished.open("a") as file:
        file.write('{"id": "r3", "ki')
    before = unfinished.read_bytes()[: profiled.read_bytes().find(b'"id": "r3"')]
    assert command.main([*arguments, "--seed=1"]) == 2
    assert command.main(arguments) == 0
    assert output.read_bytes() == profiled.read_bytes() and output.read_bytes().startswith(before)
    assert sorted(path.name for path in rows.parent.iterdir()) == ["killed.jsonl", "profiled.jsonl", "rows.jsonl"]


def test_profiled_rows_are_filtered_and_what_is_wrong_is_one_sentence(start, rows, profiled, capsys):
    source = SourceConfig(kind="jsonl", path=str(profiled), drop_solved=True, keep_unsolved=0.0)
    kept = sources.load(source, split="train", seed=0)
    assert {row.id for row in kept} >= {"long"} and all(pass_rate(row) not in (0, 1) for row in kept)
    arguments = ["profile", str(start), f"--input={rows}", *SETTINGS]
    assert command.main([*arguments, f"--output={profiled}"]) == 2
    assert "exists already; remove it" in capsys.readouterr().err
    assert command.main(["profile", str(rows.parent), *arguments[2:], f"--output={rows}.x"]) == 2
    assert "is no checkpoint" in capsys.readouterr().err


def test_a_sample_without_a_verdict_does_not_count(start: Path):
    class Every:
        """No verdict on every second sample."""

        count = 0

        def verify(self, row, sample) -> Verdict:
            self.count += 1
            return Verdict(float("nan"), no_verdict="judge down") if self.count % 2 else Verdict(1.0)

    engine, chat = _engine(start, LONGEST)
    row = parse_row({"question": "1 + 1?", "expected_answer": "2"}, where="x")
    domains = {"math": Domain("math", {}, "math", False, Every())}
    sampling = SamplingConfig(max_tokens=2)
    [found] = profile(engine, chat, domains, [row], sampling, samples=4, longest_prompt=LONGEST, seed=0)
    assert found.extra == {"pass_rate": 1.0, "pass_rate_total": 2, "pass_rate_passed": 2}
    for kind, reason in (("preference", "have no pass rate"), ("judged", "are graded by a judge; give its address")):
        with pytest.raises(ValueError, match=f"rows of kind {kind} {reason}"):
            _domain(kind, Namespace(thinking=False, judge=""))


def test_episodes_of_several_turns_have_a_rate_too(start: Path):
    engine, chat = _engine(start, LONGEST)
    rows = [Row(f"g{i}", "guess", ({"role": "user", "content": "?"},), fields={"number": i}) for i in range(2)]
    domains = {"guess": Domain("guess", {}, "guess", False, None, environment=Guessing(turns=2))}
    found = profile(
        engine, chat, domains, rows, SamplingConfig(max_tokens=2), samples=3, longest_prompt=LONGEST, seed=0
    )
    assert domains["guess"].environment.closed == 6
    assert [(row.extra["pass_rate"], row.extra["pass_rate_total"]) for row in found] == [(0.0, 3), (0.0, 3)]
