"""The workplace: 27 tools on five tables, end states compared, several turns and one, generated rows."""

import asyncio
import csv
import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import numpy as np
import pytest

from cascade_jax.config import SamplingConfig
from cascade_jax.data.chat import Chat
from cascade_jax.data.rows import parse_row, to_record
from cascade_jax.data.tasks import train_tokenizer, workplace
from cascade_jax.environment import ENVIRONMENTS
from cascade_jax.environment.workplace import Workplace
from cascade_jax.environment.workplace.columns import COLUMNS
from cascade_jax.environment.workplace.made import make_tables
from cascade_jax.environment.workplace.tables import Database, base_tables, complete
from cascade_jax.environment.workplace.tool import ToolError
from cascade_jax.environment.workplace.tools import OFFERED, TOOLS, run
from cascade_jax.rollout.environment import Trajectory
from cascade_jax.rollout.episode import make_prompt
from cascade_jax.rollout.episodes import run_episodes
from cascade_jax.types import Group, Reply, Row, Sample, ToolCall

LEVELS = (0, 1, 2, 3)
CRM = "customer_relationship_manager"


def call(name, /, **arguments):
    return ToolCall(name, arguments)


SEND = call("email_send_email", recipient="Ada.Adler@atlas.com", subject="Hello", body="See you at 9.")
MEET = call(
    "calendar_create_event",
    event_name="Sync",
    participant_email="jun@atlas.com",
    event_start="2023-12-04 09:00:00",
    duration="30",
)
PLOT = call(
    "analytics_create_plot", time_min="2023-10-01", time_max="2023-10-31", value_to_plot="total_visits", plot_type="bar"
)
TASK = call("project_management_update_task", task_id="00000007", field="list_name", new_value="In Review")
GONE = call(f"{CRM}_delete_customer", customer_id="00000003")
LOOK = call("email_search_emails", query="budget")


def row_of(*calls, text=False, **fields):
    """A row as it is published: the arguments are JSON text, and with `text` so is the whole list."""
    gold = [{"name": c.name, "arguments": json.dumps(c.arguments)} for c in calls]
    fields = {"environment_name": "workbench", "ground_truth": json.dumps(gold) if text else gold, **fields}
    return Row("row", "workplace", ({"role": "user", "content": "Do it."},), fields=fields)


def sample_of(*calls, content="", malformed=None):
    reply = Reply(content, "", calls, malformed)
    return Sample(np.zeros(1, np.int32), np.zeros(1, np.float32), np.ones(1, bool), "stop", 0, reply)


def play(environment, row, replies):
    """All observations and the verdict of the replies, as a rollout would get them."""

    async def episode():
        one = environment.episode(row, seed=0)
        opening = await one.start()
        seen = []
        for reply in replies:
            seen.append(await one.step(reply))
            if seen[-1].done or len(seen) == environment.turns:
                break
        stop = "done" if seen[-1].done else "turns"
        verdict = await one.verdict(Trajectory(tuple(replies[: len(seen)]), tuple(seen), stop))
        await one.close()
        return opening, seen, verdict

    return asyncio.run(episode())


def says(*calls, content=""):
    return Reply(content, tool_calls=calls)


def test_there_are_27_tools_with_schemas_that_every_call_is_checked_by():
    assert len(OFFERED) == 27
    for tool in OFFERED:
        function = tool.schema["function"]
        jsonschema.Draft202012Validator.check_schema(function["parameters"])
        assert function["description"] and set(function["parameters"]["required"]) <= set(tool.properties)
        with pytest.raises(ToolError, match="has no argument"):
            run(Database(base_tables("", 0)), call(tool.name, nothing="x"))
        if tool.required:
            with pytest.raises(ToolError, match=f"needs {tool.required[0]}"):
                run(Database(base_tables("", 0)), call(tool.name))


def test_the_small_workplace_is_the_same_for_the_same_seed():
    assert make_tables(3) == make_tables(3) != make_tables(4)
    tables = make_tables(0)
    assert set(tables) == set(COLUMNS) - {"plots"}
    assert all(list(record) and set(record) == set(COLUMNS[name]) for name in tables for record in tables[name])
    assert {row["assigned_to_email"] for row in tables["tasks"]} <= {
        row["email_address"] for row in tables["directory"]
    }


def gold_calls():
    """A valid call of every tool that changes something, and some in a row."""
    email, event, task, customer = "00000005", "00000006", "00000007", "00000008"
    someone = make_tables(0)["directory"][2]["email_address"]
    yield [SEND]
    yield [call("email_delete_email", email_id=email)]
    yield [call("email_forward_email", email_id=email, recipient=someone)]
    yield [call("email_reply_email", email_id=email, body="Thanks.")]
    yield [MEET]
    yield [call("calendar_delete_event", event_id=event)]
    for field, value in {"event_name": "Retro", "event_start": "2023-12-05 10:30:00", "duration": "45"}.items():
        yield [call("calendar_update_event", event_id=event, field=field, new_value=value)]
    yield [PLOT]
    new = {"assigned_to_email": someone, "list_name": "Backlog", "due_date": "2023-12-09", "board": "Design"}
    yield [call("project_management_create_task", task_name="Draw a map", **new)]
    yield [call("project_management_delete_task", task_id=task)]
    yield [TASK]
    yield [call("project_management_update_task", task_id=task, field="assigned_to_email", new_value=someone)]
    yield [call(f"{CRM}_add_customer", customer_name="Kim", assigned_to_email=someone, status="Lead")]
    yield [call(f"{CRM}_update_customer", customer_id=customer, field="notes", new_value="Likes tea.")]
    yield [GONE]
    yield [SEND, MEET, PLOT, TASK, GONE]


@pytest.mark.parametrize("gold", list(gold_calls()), ids=lambda gold: "+".join(c.name for c in gold))
def test_gold_calls_pass_and_broken_ones_fail(gold):
    environment = Workplace()
    row = row_of(*gold)
    assert environment.verify(row, sample_of(*gold)).reward == 1.0
    assert environment.verify(row_of(*gold, text=True), sample_of(*gold)).reward == 1.0
    one_a_turn = [*(says(one) for one in gold), says(content="Done.")]
    assert play(Workplace(turns=9), row, one_a_turn)[2].reward == 1.0
    last = gold[-1]
    key = next(iter(last.arguments))
    broken = [
        [],
        gold[:-1],
        [*gold, call("email_delete_email", email_id="00000009")],
        [*gold[:-1], ToolCall(last.name, {k: v for k, v in last.arguments.items() if k != key})],
        [*gold[:-1], ToolCall(last.name, {**last.arguments, "more": "1"})],
        [*gold[:-1], ToolCall(last.name, {**last.arguments, key: "00000001"})],
        [*gold[:-1], ToolCall(last.name + "s", last.arguments)],
        [*gold[:-1], ToolCall(last.name, {k: [v] for k, v in last.arguments.items()})],
    ]
    for calls in broken:
        verdict = environment.verify(row, sample_of(*calls, content="Done."))
        assert (verdict.reward, verdict.no_verdict) == (0.0, None), calls
        assert play(environment, row, [says(*calls), says(content="Done.")])[2].reward == 0.0


def test_the_end_state_counts_and_not_the_way_there():
    environment, row = Workplace(), row_of(SEND, MEET, TASK)
    shouted = ToolCall(SEND.name, {key: value.upper() for key, value in SEND.arguments.items()})
    other_list = ToolCall(TASK.name, {**TASK.arguments, "new_value": "Backlog"})
    for calls, reward in [
        ([MEET, TASK, SEND], 1.0),  # in another order, so with other ids
        ([LOOK, SEND, LOOK, call("analytics_total_visits_count"), MEET, TASK, LOOK], 1.0),
        ([SEND, MEET, other_list, TASK], 1.0),  # corrected
        ([call("email_delete_email", email_id="9"), SEND, MEET, TASK], 1.0),  # an error changes nothing
        ([shouted, MEET, TASK], 1.0),  # letters of another case
        ([SEND, MEET, TASK, TASK], 1.0),  # the same value once more
        ([SEND, SEND, MEET, TASK], 0.0),
        ([SEND, MEET, TASK, PLOT], 0.0),
        ([SEND, MEET, other_list], 0.0),
    ]:
        assert environment.verify(row, sample_of(*calls)).reward == reward, calls


def test_columns_like_a_status_are_compared_with_their_case():
    tables = complete({"tasks": [{"task_id": "1", "task_name": "Fix", "list_name": "Backlog"}]})
    states = []
    for values in ({}, {"task_name": "FIX"}, {"list_name": "Backlog"}, {"list_name": "backlog"}, {"task_name": "Mix"}):
        database = Database(tables)
        database.change("tasks", database.get("tasks", "1"), **values)
        states.append(database.end_state())
    assert states[0] == states[1] == states[2] and states[0] != states[3] != states[4] != states[0]


def test_errors_go_back_to_the_model_which_may_try_again():
    row = row_of(TASK)
    bad = [
        call("project_management_update_task", task_id="00000007", field="list_name", new_value="in review"),
        call("project_management_update_task", task_id="70000007", field="list_name", new_value="In Review"),
        call("project_management_update_task", task_id="00000007"),
        call("calendar_create_event", **{**MEET.arguments, "event_start": "tomorrow"}),
        call("calendar_create_event", **{**MEET.arguments, "duration": "-5"}),
        call("email_send_email", **{**SEND.arguments, "recipient": "Ada"}),
        call("email_search_emails", query="x", page=0),
        call("no_such_tool"),
    ]
    _, seen, verdict = play(Workplace(), row, [says(*bad), says(TASK), says(content="Done.")])
    results = seen[0].messages
    assert [message["tool_call_id"] for message in results] == [f"call_{i}" for i in range(len(bad))]
    assert all(message["role"] == "tool" and message["content"].startswith("Error: ") for message in results)
    assert seen[1].messages == ({"role": "tool", "content": "Task updated.", "tool_call_id": f"call_{len(bad)}"},)
    assert seen[2].done and not seen[2].messages
    assert verdict.reward == 1.0 and verdict.components == {"calls": len(bad) + 1, "errors": len(bad)}


def test_lookups_find_what_is_there():
    db = Database(base_tables("", 0))

    def look(name, /, **arguments):
        return json.loads(run(db, call(name, **arguments)))

    found = look("email_search_emails", query="BUDGET review", date_min="2023-10-05", page=2, page_size=3)
    fitting = [row for row in db.tables["emails"] if row["sent_datetime"] >= "2023-10-05"]
    fitting = [
        row
        for row in fitting
        if {"budget", "review"} <= set(f"{row['subject']} {row['body']}".lower().replace(":", "").split())
    ]
    assert found["pagination"]["total_emails"] == len(fitting) > 3
    latest = sorted(fitting, key=lambda row: row["sent_datetime"], reverse=True)
    assert [row["sent_datetime"] for row in found["emails"]] == [row["sent_datetime"] for row in latest[3:6]]
    assert look("email_search_emails", query="nothing like it")["emails"] == []
    person = db.tables["directory"][0]["email_address"]
    assert look("company_directory_find_email_address", name=person.split(".")[0].upper()) == [person]
    event = db.tables["events"][0]
    given = look("calendar_get_event_information_by_id", event_id=event["event_id"], field="duration")
    assert given == {"duration": event["duration"]}
    day = look("calendar_search_events", time_min=event["event_start"], time_max=event["event_start"])
    assert event in day["events"]
    visits = db.tables["visits"]
    total = look("analytics_total_visits_count")
    assert sum(total.values()) == len(visits) and list(total) == sorted(total)
    parts = [
        look("analytics_traffic_source_count", traffic_source=source)
        for source in ("direct", "referral", "search engine", "social media")
    ]
    assert {day: sum(part[day] for part in parts) for day in total} == total
    assert sum(look("analytics_engaged_users_count").values()) == sum(v["user_engaged"] == "True" for v in visits)
    lead = look(f"{CRM}_search_customers", status="lead", page_size=100)["customers"]
    assert lead == [row for row in db.tables["customers"] if row["status"] == "Lead"]
    board = look("project_management_search_tasks", board="design")
    assert board == [row for row in db.tables["tasks"] if row["board"] == "Design"]


def test_a_broken_format_ends_the_episode_and_costs_what_is_set():
    row = row_of(TASK)
    for reply in (Reply("", tool_calls=(TASK,), malformed="stray"), Reply("<tool_call> x", tool_calls=(TASK,))):
        _, seen, verdict = play(Workplace(malformed_penalty=0.25), row, [says(TASK), reply])
        assert seen[1].done and verdict.reward == -0.25
        assert play(Workplace(), row, [reply])[2].reward == 0.0
    assert Workplace(malformed_penalty=0.25).verify(row, sample_of(TASK, malformed="x")).reward == -0.25


def test_where_nothing_is_to_change_the_lookups_must_be_made():
    row = row_of(LOOK)
    assert Workplace().verify(row, sample_of(LOOK)).reward == 1.0
    assert Workplace().verify(row, sample_of(content="Done.")).reward == 0.0
    assert Workplace().verify(row, sample_of(LOOK, SEND)).reward == 0.0


def test_an_empty_answer_is_wrong_and_a_bad_row_is_no_verdict():
    assert Workplace().verify(row_of(TASK), sample_of()).reward == 0.0
    missing = call("email_delete_email", email_id="12345678")
    for row in (
        row_of(missing),
        row_of(call("drop_table")),
        row_of(TASK, environment_name="office"),
        row_of(),
        row_of(TASK, tables={"cats": []}),
        row_of(TASK, tables={"tasks": [{"task_id": "x"}]}),
        row_of(TASK, tables={"tasks": [{"task_id": 7}]}),
        Row("row", "workplace", (), fields={"ground_truth": "not JSON"}),
        Row("row", "workplace", (), fields={"ground_truth": [7]}),
        Row("row", "workplace", (), fields={}),
    ):
        assert Workplace().verify(row, sample_of(TASK)).no_verdict is not None, row
    assert Workplace(folder="/nowhere").verify(row_of(TASK), sample_of(TASK)).no_verdict is not None
    for name in ("workbench", "workplace_assistant"):
        assert Workplace().verify(row_of(TASK, environment_name=name), sample_of(TASK)).reward == 1.0


def test_tables_come_from_the_files_of_nemo_gym_too(tmp_path):
    """A folder in the layout and with the columns of csv_data holds other records than the small workplace."""
    files = {
        "processed/emails.csv": "emails",
        "processed/calendar_events.csv": "events",
        "processed/analytics_data.csv": "visits",
        "processed/project_tasks.csv": "tasks",
        "processed/customer_relationship_manager_data.csv": "customers",
    }
    tables = make_tables(5)
    for folder in ("processed", "raw"):
        (tmp_path / folder).mkdir()
    for path, name in files.items():
        with (tmp_path / path).open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS[name])
            writer.writeheader()
            writer.writerows(tables[name])
    (tmp_path / "raw/email_addresses.csv").write_text("".join(f"{r['email_address']}\n" for r in tables["directory"]))
    assert base_tables(str(tmp_path), 0) == tables | {"plots": []}
    assert Workplace(folder=str(tmp_path)).verify(row_of(SEND), sample_of(SEND)).reward == 1.0


def test_episodes_do_not_see_each_other_in_threads_nor_in_one_loop():
    environment, row = Workplace(), row_of(SEND, GONE)
    samples = [sample_of(SEND, GONE), sample_of(GONE)] * 50
    before = json.dumps(base_tables("", 0))
    with ThreadPoolExecutor(8) as pool:
        rewards = list(pool.map(lambda sample: environment.verify(row, sample).reward, samples))
    assert rewards == [1.0, 0.0] * 50

    async def all_at_once():
        episodes = [environment.episode(row, seed=i) for i in range(20)]
        await asyncio.gather(*(one.step(says(SEND)) for one in episodes))
        await asyncio.gather(*(one.step(says(GONE)) for one in episodes[::2]))
        return [(await one.verdict(Trajectory((), (), "done"))).reward for one in episodes]

    assert asyncio.run(all_at_once()) == [1.0, 0.0] * 10
    assert json.dumps(base_tables("", 0)) == before


def generated(level, seed):
    rng = np.random.default_rng([level, seed])
    content = workplace.draw(rng, level)
    fields = workplace.fields(content)
    messages, tools = ({"role": "user", "content": fields.pop("user")},), tuple(fields.pop("tools"))
    return content, Row(f"row-{level}-{seed}", "workplace", messages, tools, fields), rng


def replayed(row, messages):
    """The verdict on a conversation, whose tool messages must be what the environment says."""
    replies = [
        Reply(m["content"], tool_calls=tuple(ToolCall(**c["function"]) for c in m.get("tool_calls", ())))
        for m in messages
        if m["role"] == "assistant"
    ]
    _, seen, verdict = play(ENVIRONMENTS["workplace"](), row, replies)
    assert [m for one in seen for m in one.messages] == [m for m in messages if m["role"] == "tool"]
    return verdict


@pytest.mark.parametrize("level", LEVELS)
def test_generated_rows(level):
    for seed in range(25):
        content, row, rng = generated(level, seed)
        verdict = replayed(row, workplace.oracle(content, rng))
        assert (verdict.reward, verdict.no_verdict) == (1.0, None), (row, verdict)
        for messages in [*workplace.wrong_answers(content, rng), *(workplace.habit(content, rng) for _ in range(3))]:
            verdict = replayed(row, messages)
            assert (verdict.reward, verdict.no_verdict) == (0.0, None), (row, messages, verdict)
        acts = [c["function"] for m in workplace.oracle(content, rng) for c in m.get("tool_calls", ())]
        assert Workplace().verify(row, sample_of(*(ToolCall(**act) for act in acts))).reward == 1.0
        back = parse_row(json.loads(json.dumps(to_record(row))), where="row")
        assert back.fields == row.fields and back.kind == "workplace" and back.tools == row.tools
        for tool in row.tools:
            offered = TOOLS[tool["function"]["name"]].schema["function"]
            del offered["parameters"]["additionalProperties"]
            assert tool["function"] == offered


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return Chat(train_tokenizer(tmp_path_factory.mktemp("workplace") / "tokenizer.model"))


def test_generated_rows_are_small(chat):
    assert len(workplace.oracle(*generated(1, 0)[::2])) == 5  # two turns that call, and the word at the end
    for level in LEVELS:
        for seed in range(20):
            content, row, rng = generated(level, seed)
            prompt = chat.render(row.messages, row.tools, thinking=False, generation_prompt=True).ids
            ids, trained = chat.render([*row.messages, *workplace.oracle(content, rng)], row.tools, thinking=False)
            assert len(prompt) <= 60 and trained.sum() <= 54 and len(ids) <= 160


def test_the_same_prompt_has_the_same_tables():
    drawn = [generated(level, seed)[1] for level in LEVELS for seed in range(200)]
    by_prompt = {}
    for row in drawn:
        row = dataclasses.replace(row, id="")
        assert by_prompt.setdefault(json.dumps([row.messages, row.tools]), row) == row
    assert len(by_prompt) > 400


class Reciting:
    """An engine that writes the turns of prepared conversations, one conversation for each place."""

    def __init__(self, turns):
        self.turns = [iter(one) for one in turns]

    def generate(self, prompts, sampling, *, samples_per_prompt, seed):
        written = [next(self.turns[prompt.place]) for prompt in prompts]
        zeros = [np.zeros(len(ids), np.float32) for ids in written]
        ones = [np.ones(len(ids), bool) for ids in written]
        return [
            Group(prompt, (Sample(ids, logprobs, mask, "stop", 0),))
            for prompt, ids, logprobs, mask in zip(prompts, written, zeros, ones, strict=True)
        ]


def test_token_by_token_an_episode_is_the_conversation_as_it_is_rendered(chat):
    """The oracle's turns, sampled one by one in real episodes, give the demonstration's ids and the full reward."""
    cases = [generated(level, seed) for level in LEVELS for seed in range(5)]
    rendered = [
        chat.render([*row.messages, *workplace.oracle(content, rng)], row.tools, thinking=False)
        for content, row, rng in cases
    ]
    turns = []
    for ids, trained in rendered:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], trained, [0]])))
        turns.append([ids[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)])
    prompts = [make_prompt(chat, row, "workplace", thinking=False) for _, row, _ in cases]
    groups = run_episodes(
        Reciting(turns),
        chat,
        {"workplace": Workplace()},
        prompts,
        SamplingConfig(max_tokens=64),
        thinking={"workplace": False},
        longest=256,
        samples_per_prompt=1,
        seed=0,
    )
    for (ids, trained), group, own in zip(rendered, groups, turns, strict=True):
        [sample] = group.samples
        assert sample.verdict.reward == 1.0 and sample.turns == len(own) and sample.later == ()
        whole = np.concatenate([group.prompt.ids, sample.ids])
        assert whole.tolist() == ids[: len(whole)].tolist()
        assert sample.mask.tolist() == trained[len(group.prompt.ids) : len(whole)].tolist()
