"""Episodes of several turns: their tokens are one chain, their randomness is their own, what breaks is never a 0."""

import asyncio
import dataclasses
import threading

import numpy as np
import pytest
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers

from cascade_jax.data.chat import Chat
from cascade_jax.data.tasks import train_tokenizer
from cascade_jax.data.tokenizer import load
from cascade_jax.domains import Domain, roll_out
from cascade_jax.rollout.engine import LocalEngine
from cascade_jax.rollout.environment import Observation
from cascade_jax.rollout.episode import make_prompt
from cascade_jax.rollout.host import Host
from cascade_jax.stages.batches import pack_rows, sequences
from cascade_jax.types import Group, Prompt, Sample, Segment, Verdict

from .conftest import LLAMA, random_params
from .countdown import Guessing, guess_row
from .scripted import SAMPLING, Scripted, run, says


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return Chat(train_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"))


@pytest.fixture(scope="module")
def engine(chat):
    config = dataclasses.replace(LLAMA, vocab_size=chat.tokenizer.vocab_size)
    return LocalEngine(config, random_params(config), stop_ids=chat.stop_ids, buckets=(64, 128))


@pytest.mark.parametrize("role", ["tool", "user"])
def test_the_next_prompt_is_the_last_one_and_what_was_sampled(chat, role):
    environment, engine = Guessing(role=role), Scripted(chat, says("9", "1", "5"))
    [group] = run(engine, chat, environment, [guess_row(5)])
    [sample] = group.samples
    prompts, written = engine.prompts[0], [chat.tokenizer.encode(t, specials=True) for t in engine.scripts[0]]
    for i in range(2):
        start = [*prompts[i], *written[i]]
        assert prompts[i + 1][: len(start)].tolist() == start
    whole = [*group.prompt.ids, *sample.ids]
    assert whole == [*prompts[2], *written[2]] and sample.later == ()
    assert sample.ids[sample.mask].tolist() == [*written[0], *written[1], *written[2]]
    assert (sample.logprobs[sample.mask] < 0).all() and (sample.logprobs[~sample.mask] == 0).all()
    read = chat.tokenizer.decode(sample.ids[~sample.mask].tolist())
    assert "less" in read and "more" in read and "5" not in read
    assert (sample.turns, sample.written, sample.stop_reason, sample.version) == (3, sum(map(len, written)), "stop", 7)
    assert sample.verdict == Verdict(1.0, {"turns": 3}) and sample.reply.content == "5"
    trajectory = environment.trajectories[0]
    assert trajectory.stop == "done" and [r.content for r in trajectory.replies] == ["9", "1", "5"]
    assert trajectory.observations[-1] == Observation(done=True) and len(trajectory.observations) == 3
    assert environment.closed == 1


def test_sampled_ids_are_never_encoded_again(chat):
    """The same text in other ids, as a model may sample it, stays in these ids."""
    odd = np.array([chat.tokenizer.encode(c)[-1] for c in "17"] + chat.tokenizer.encode("<|im_end|>", specials=True))

    class Odd(Scripted):
        def generate(self, prompts, sampling, **more):
            groups = super().generate(prompts, sampling, **more)
            sample = Sample(odd, np.full(len(odd), -1.0, np.float32), np.ones(len(odd), bool), "stop", 0)
            return [Group(group.prompt, (sample,)) for group in groups]

    [group] = run(Odd(chat, says("a", "b")), chat, Guessing(turns=2), [guess_row(5)])
    sample = group.samples[0]
    assert sample.ids[sample.mask].tolist() == [*odd, *odd] and sample.later == ()


def test_where_the_chain_breaks_a_new_segment_starts(chat):
    """With thinking, the template forgets earlier thoughts once the user speaks again."""
    engine = Scripted(chat, says("hm</think>9", "oh</think>1", "yes</think>5"))
    [group] = run(engine, chat, Guessing(), [guess_row(5)], thinking=True)
    [sample] = group.samples
    segments = [(group.prompt.ids, sample.ids, sample.mask)] + [(s.prompt, s.ids, s.mask) for s in sample.later]
    assert len(segments) == 3
    for (prompt, ids, mask), text, seen in zip(segments, engine.scripts[0], engine.prompts[0], strict=True):
        assert prompt.tolist() == seen.tolist() and mask.all()
        assert ids.tolist() == chat.tokenizer.encode(text, specials=True)
    assert "hm" not in chat.tokenizer.decode(segments[1][0].tolist())
    assert sample.written == sum(len(ids) for _, ids, _ in segments) and sample.turns == 3
    assert sample.verdict.reward == 1.0


def test_with_thinking_tool_results_keep_the_chain(chat):
    engine = Scripted(chat, says("hm</think>9", "oh</think>5"))
    [group] = run(engine, chat, Guessing(role="tool"), [guess_row(5)], thinking=True)
    assert group.samples[0].later == () and group.samples[0].turns == 2


def test_limits_of_turns_and_of_length(chat):
    environment = Guessing(turns=2)
    engine = Scripted(chat, says("1", "2"), ("3", "unused"), says("4", "5"))
    groups = run(engine, chat, environment, [guess_row(5, str(i)) for i in range(3)])
    samples = [group.samples[0] for group in groups]
    assert [s.stop_reason for s in samples] == ["turns", "length", "stop"]
    assert [s.truncated for s in samples] == [True, True, False]
    assert [s.verdict.reward for s in samples] == [0.0, 0.0, 1.0]
    by_stop = {t.stop: t for t in environment.trajectories}
    assert [len(by_stop[stop].observations) for stop in ("turns", "length", "done")] == [2, 0, 2]


def test_a_context_that_is_full_ends_the_episode(chat):
    environment = Guessing(turns=50)
    [group] = run(Scripted(chat, says(*["1"] * 50)), chat, environment, [guess_row(5)], longest=80)
    [sample] = group.samples
    assert sample.stop_reason == "length" and 1 < sample.turns < 10
    assert len(group.prompt.ids) + len(sample.ids) <= 80 + SAMPLING.max_tokens
    assert sample.mask[-1], "what the assistant has not seen is not in its tokens"
    [trajectory] = environment.trajectories
    assert len(trajectory.observations) == len(trajectory.replies) - 1


def test_a_row_that_opens_too_long_is_left_out_and_no_alarm(chat):
    environment = Guessing()
    long = dataclasses.replace(guess_row(5), messages=({"role": "user", "content": "Name 5. " * 50},))
    long_one, other = run(Scripted(chat, (), says("5")), chat, environment, [long, guess_row(5)], longest=100)
    assert other.samples[0].verdict.reward == 1.0
    [sample] = long_one.samples
    assert "more than the longest prompt of 100" in sample.verdict.no_verdict and sample.verdict.components["masked"]
    assert environment.closed == environment.opened


def test_samples_depend_on_seed_row_and_sample_alone(chat, engine):
    """Whatever the other episodes do: of two rows in one call, each is as it is when the other one ends at once."""
    rows = [guess_row(5, "a"), guess_row(7, "b")]
    both = run(engine, chat, Guessing(turns=3), rows, samples=3, seed=1)
    again = run(engine, chat, Guessing(turns=3), rows, samples=3, seed=1)
    for one, two in zip(both, again, strict=True):
        for a, b in zip(one.samples, two.samples, strict=True):
            np.testing.assert_array_equal(a.ids, b.ids)
            np.testing.assert_array_equal(a.logprobs, b.logprobs)

    class Short(Guessing):
        def episode(self, row, *, seed):
            if row.id == "a":
                raise OSError("no room")
            return super().episode(row, seed=seed)

    alone = run(engine, chat, Short(turns=3), rows, samples=3, seed=1)
    assert all(sample.verdict.no_verdict for sample in alone[0].samples)
    for a, b in zip(both[1].samples, alone[1].samples, strict=True):
        assert len(a.ids) and a.stop_reason == b.stop_reason
        np.testing.assert_array_equal(a.ids, b.ids)
    assert len({s.ids.tobytes() for group in both for s in group.samples}) == 6
    other = run(engine, chat, Guessing(turns=3), rows, samples=3, seed=2)
    assert any(a.ids.tobytes() != b.ids.tobytes() for a, b in zip(both[0].samples, other[0].samples, strict=True))


@pytest.mark.parametrize("call", ["episode", "start", "step", "verdict", "step is cancelled", "step exits"])
def test_an_episode_that_breaks_has_no_verdict_and_is_closed(chat, call):
    environment = Guessing(fails={1: call})
    engine = Scripted(chat, *[says("1", "5")] * 3)
    [group] = run(engine, chat, environment, [guess_row(5)], samples=3)
    fine, broken, also = group.samples
    assert fine.verdict.reward == also.verdict.reward == 1.0 and fine.verdict.no_verdict is None
    assert np.isnan(broken.verdict.reward)
    said = {"episode": "no room", "step is cancelled": "Cancelled", "step exits": "SystemExit: 3"}.get(call, call)
    assert said in broken.verdict.no_verdict
    assert environment.closed == (2 if call == "episode" else 3)
    assert len(group.samples) == 3, "a group keeps its size"


def test_a_close_that_fails_keeps_the_verdict(chat):
    [group] = run(Scripted(chat, says("5")), chat, Guessing(fails={0: "close"}), [guess_row(5)])
    verdict = group.samples[0].verdict
    assert verdict.reward == 1.0 and "close does not work" in verdict.info["close"]


@pytest.mark.parametrize("call", ["start", "step", "verdict"])
def test_a_call_that_takes_too_long_is_broken(chat, call):
    environment = Guessing(fails={0: f"{call} hangs"})
    [group] = run(Scripted(chat, says("5")), chat, environment, [guess_row(5)], host=Host(seconds=0.2))
    assert "did not answer within 0.2 s" in group.samples[0].verdict.no_verdict and environment.closed == 1


@pytest.mark.parametrize("bound", [1, 2])
def test_calls_are_bounded_by_resource(chat, bound):
    environment = Guessing()
    environment.resources = ("sandbox",)
    engine = Scripted(chat, *[says("5")] * 8)
    run(engine, chat, environment, [guess_row(5)], samples=8, host=Host(calls={"sandbox": bound}))
    assert environment.most == bound and environment.closed == 8


def test_from_a_thread_and_under_a_running_loop(chat):
    def rewards():
        [group] = run(Scripted(chat, says("1", "5")), chat, Guessing(), [guess_row(5)])
        return [sample.verdict.reward for sample in group.samples]

    found = []
    thread = threading.Thread(target=lambda: found.append(rewards()))
    thread.start()
    thread.join()

    async def main():
        return rewards()

    assert found == [[1.0]] and asyncio.run(main()) == [1.0]


def test_an_engine_that_fails_leaves_no_episode_open(chat):
    environment = Guessing()
    with pytest.raises(IndexError):  # the script ends before the episode does
        run(Scripted(chat, says("1"), says("1")), chat, environment, [guess_row(5)], samples=2)
    assert environment.closed == environment.opened == 2
    assert not [thread for thread in threading.enumerate() if thread.name == "episodes"]


def test_verdicts_of_a_whole_group(chat):
    class Relative(Guessing):
        async def compare_group(self, row, trajectories, verdicts):
            best = min(len(t.replies) for t, v in zip(trajectories, verdicts, strict=True) if v.reward == 1)
            return [
                dataclasses.replace(v, reward=v.reward * best / len(t.replies))
                for t, v in zip(trajectories, verdicts, strict=True)
            ]

    scripts = says("5"), says("1", "5"), says("1", "2", "3", "4"), says("1", "2", "3", "5")
    environment = Relative(fails={2: "verdict"})
    [group] = run(Scripted(chat, *scripts), chat, environment, [guess_row(5)], samples=4)
    found = [sample.verdict for sample in group.samples]
    assert [v.reward for v in found[:2]] == [1.0, 0.5] and found[3].reward == 0.25
    assert "verdict does not work" in found[2].no_verdict


@pytest.mark.parametrize("given", [None, Observation(), Observation(({"content": "no role"},)), [1]])
def test_an_answer_that_is_none_is_the_environments_fault(chat, given):
    class Odd(Guessing):
        def episode(self, row, *, seed):
            episode = super().episode(row, seed=seed)

            async def step(reply):
                return given

            episode.step = step
            return episode

    [group] = run(Scripted(chat, says("1")), chat, Odd(), [guess_row(5)])
    assert group.samples[0].verdict.no_verdict and np.isnan(group.samples[0].verdict.reward)
    assert group.samples[0].written > 0, "what was written stays"


SMOLLM2 = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_a_template_that_nobody_can_bridge_is_followed_where_its_ids_agree(tmp_path):
    """The conversation is written anew; where it begins with what was sampled, id by id, the chain goes on."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = HFTokenizer(models.BPE({c: i for i, c in enumerate([*alphabet, "11"])}, [("1", "1")]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    model.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(SMOLLM2)
    chat = Chat(load(tmp_path))
    [group] = run(Scripted(chat, says("9", "1", "5")), chat, Guessing(), [guess_row(5)], longest=400)
    [sample] = group.samples
    assert sample.later == () and sample.turns == 3 and sample.verdict.reward == 1.0
    assert chat.tokenizer.decode(sample.ids.tolist()).startswith("9<|im_end|>\n<|im_start|>user\nless<|im_end|>\n")

    class Spelled(Scripted):
        """Samples "11" as two tokens, which the template would write as one."""

        def generate(self, prompts, sampling, **more):
            groups = super().generate(prompts, sampling, **more)
            one, end = chat.tokenizer.encode("1")[0], chat.tokenizer.token_id("<|im_end|>")
            ids = np.array([one, one, end], np.int32)
            sample = Sample(ids, np.full(3, -1.0, np.float32), np.ones(3, bool), "stop", 0)
            return [Group(group.prompt, (sample,)) for group in groups]

    [group] = run(Spelled(chat, says("x", "y")), chat, Guessing(turns=2), [guess_row(5)], longest=400)
    [sample] = group.samples
    assert len(sample.ids) == 3 and len(sample.later) == 1, "what was sampled is not what the template writes"
    assert chat.tokenizer.encode("11")[0] in sample.later[0].prompt.tolist()


def test_every_segment_trains_with_the_one_advantage():
    mask = np.array([True, False, True])
    later = Segment(np.array([9, 9], np.int32), np.array([5], np.int32), np.array([-5.0], np.float32), np.ones(1, bool))
    ids = np.array([3, 7, 4], np.int32)
    sample = Sample(ids, np.array([-3.0, 0.0, -4.0], np.float32), mask, "stop", 0, later=(later,))
    group = Group(Prompt(np.array([1, 2], np.int32), guess_row(5), "guess"), (sample,))
    batch = pack_rows(sequences(group, sample, {"advantages": 2.0}), 16, micro_batches=1)
    assert batch.targets_BT[batch.mask_BT].tolist() == [3, 4, 5]
    assert batch.fields["advantages"][batch.mask_BT].tolist() == [2.0] * 3
    assert batch.fields["sampler_logprobs"][batch.mask_BT].tolist() == [-3.0, -4.0, -5.0]
    assert batch.segments_BT[0].tolist() == [1] * 5 + [2] * 3 + [0] * 8
    nothing = dataclasses.replace(sample, ids=ids[:0], logprobs=sample.logprobs[:0], mask=mask[:0], later=())
    assert sequences(group, nothing, {}) == []
    assert not any(one.trained.any() for one in sequences(group, sample, {}, trained=False))


def test_domains_of_one_and_of_several_turns_in_one_batch_of_prompts(chat, engine):
    """Each group stands in the place of its prompt, and those of one turn are what they are alone."""
    domains = {
        "guess": Domain("guess", {}, "guess", False, None, environment=Guessing(turns=2)),
        "math": Domain("math", {}, "math", False, None),
    }
    prompts = [make_prompt(chat, guess_row(i), ("guess", "math")[i % 2], thinking=False) for i in range(4)]
    given = {"longest": 128, "samples_per_prompt": 2, "seed": 3}
    groups = roll_out(engine, chat, domains, prompts, SAMPLING, **given)
    assert [group.prompt.row for group in groups] == [prompt.row for prompt in prompts]
    assert [group.samples[0].verdict is not None for group in groups] == [True, False, True, False]
    alone = roll_out(engine, chat, domains, prompts[1::2], SAMPLING, **given)
    for one, other in zip(groups[1::2], alone, strict=True):
        for a, b in zip(one.samples, other.samples, strict=True):
            np.testing.assert_array_equal(a.ids, b.ids)
            assert a.turns == 1 and a.later == () and a.reply == b.reply
