"""Structured output: five formats against strict schemas, content, tool calls, and answers that attack the parsers."""

import json
import time

import pytest

from cascade_jax.reward.structured_output import StructuredOutput, content_match, make_strict
from cascade_jax.types import ToolCall

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tall": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}
FLAT = {"type": "object", "properties": {k: PERSON["properties"][k] for k in ("name", "age", "tall")}}
TEXTS = {
    "json": '{"name": "Ada", "age": 36, "tall": true, "tags": ["x", "y"]}',
    "yaml": "name: Ada\nage: 36\ntall: true\ntags:\n  - x\n  - y\n",
    "xml": "<person><name>Ada</name><age>36</age><tall>true</tall><tags><tag>x</tag><tag>y</tag></tags></person>",
    "toml": 'name = "Ada"\nage = 36\ntall = true\ntags = ["x", "y"]\n',
    "csv": "name,age,tall\nAda,36,true\n",
}
ADA = {"name": "Ada", "age": 36, "tall": True, "tags": ["x", "y"]}


def grade(row, sample, text, schema, kind="json", **fields):
    asked = row("structured_output", schema_str=json.dumps(schema), schema_type=kind, **fields)
    return StructuredOutput().verify(asked, sample(text))


@pytest.mark.parametrize("kind", TEXTS)
def test_every_format(row, sample, kind):
    schema = FLAT if kind == "csv" else PERSON
    expected = {key: value for key, value in ADA.items() if key in schema["properties"]}
    verdict = grade(row, sample, TEXTS[kind], schema, kind, expected_content=expected, grade_content=True)
    assert verdict.reward == 1.0, verdict
    assert verdict.components == {"valid": 1.0, "content_match": 1.0}
    wrong_age = TEXTS[kind].replace("36", "old")
    assert grade(row, sample, wrong_age, schema, kind).reward == 0.0
    assert grade(row, sample, "The person is Ada, 36.", schema, kind).reward == 0.0


def test_csv_with_rows(row, sample):
    schema = {"type": "array", "items": FLAT}
    assert grade(row, sample, "name,age,tall\nAda,36,true\nBob,7,false\n", schema, "csv").reward == 1.0
    for text in (
        "name,age,tall\n",
        "name,age\nAda,36\n",
        "name,age,tall\nAda,36\n",
        "name,age,tall,x\nAda,36,true,1\n",
        "hello",
    ):
        assert grade(row, sample, text, schema, "csv").reward == 0.0, text


def test_schemas_are_strict_at_every_level(row, sample):
    inner = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": []}
    schema = {
        "type": "object",
        "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/pair"}}},
        "$defs": {"pair": inner},
    }
    assert grade(row, sample, '{"items": [{"a": 1, "b": 2}]}', schema).reward == 1.0
    assert grade(row, sample, '{"items": [{"a": 1}]}', schema).reward == 0.0
    assert grade(row, sample, '{"items": [{"a": 1, "b": 2, "c": 3}]}', schema).reward == 0.0
    assert grade(row, sample, '{"items": [], "more": 1}', schema).reward == 0.0
    assert inner["required"] == []  # the row's own schema stays as it was


def test_parts_of_all_of_are_closed_together(row, sample):
    part = [{"properties": {name: {"type": "integer"}}} for name in "ab"]
    schema = {"type": "object", "allOf": part}
    assert grade(row, sample, '{"a": 1, "b": 2}', schema).reward == 1.0
    assert grade(row, sample, '{"a": 1, "b": 2, "c": 3}', schema).reward == 0.0
    assert grade(row, sample, '{"a": 1}', schema).reward == 0.0


def test_what_is_described_in_parts_is_closed_as_a_whole(row, sample):
    """The usual ways to extend a definition: its own properties are no extras, others are."""
    base = {"type": "object", "properties": {"a": {"type": "integer"}}}
    b, c = ({"properties": {name: {"type": "integer"}}} for name in "bc")
    for schema, good, bad in [
        ({"allOf": [{"$ref": "#/$defs/base"}, b]}, [{"a": 1, "b": 2}], [{"a": 1}, {"a": 1, "b": 2, "c": 3}]),
        ({"$ref": "#/$defs/base", **b}, [{"a": 1, "b": 2}], [{"b": 2}, {"a": 1, "b": 2, "c": 3}]),
        (
            {**base, "anyOf": [b, c]},
            [{"a": 1, "b": 2}, {"a": 1, "c": 3}],
            [{"a": 1}, {"b": 2}, {"a": 1, "b": 2, "d": 4}],
        ),
        ({"anyOf": [b, c]}, [{"b": 2}, {"c": 3}], [{}, {"b": 2, "c": 3}, {"a": 1}]),
        (
            {**base, "if": {"properties": {"a": {"const": 1}}}, "then": b, "else": c},
            [{"a": 1, "b": 2}, {"a": 2, "c": 3}],
            [{"a": 1, "c": 3}, {"a": 2, "b": 2}, {"a": 1}, {"a": 1, "b": 2, "c": 3}],
        ),
        ({**base, "not": {"properties": {"a": {"const": 7}}}}, [{"a": 1}], [{"a": 7}, {"a": 7, "b": 1}]),
        ({"type": "object", "additionalProperties": {"$ref": "#/$defs/base"}}, [{"x": {"a": 1}}], [{"x": {}}]),
        ({"type": "array", "prefixItems": [base]}, [[{"a": 1}]], [[{}], [{"a": 1, "b": 2}]]),
    ]:
        schema = {**schema, "$defs": {"base": base}}
        for value, reward in [*((value, 1.0) for value in good), *((value, 0.0) for value in bad)]:
            assert grade(row, sample, json.dumps(value), schema).reward == reward, (schema, value)


NESTED = {
    "type": "object",
    "properties": {
        "owner": {"$ref": "#/$defs/pet/properties/owner"},
        "pets": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/pet"}, {"type": "null"}]}},
        "level": {"enum": [1, 2]},
        "open": {"type": ["boolean", "null"]},
    },
    "$defs": {"pet": {"type": "object", "properties": {"age": {"type": "integer"}, "owner": {"type": "string"}}}},
}


def test_text_formats_take_their_types_from_anywhere_in_the_schema(row, sample):
    pet = "<pet><age>{}</age><owner>7</owner></pet>"
    whole = "<r><owner>7</owner><pets>{}</pets><level>1</level><open>{}</open></r>"
    for text, reward in [
        (whole.format(pet.format(3), "0"), 1.0),
        (whole.format(pet.format(3) + pet.format(4), ""), 1.0),
        (whole.format("", "true"), 1.0),
        (whole.format(pet.format("three"), "true"), 0.0),
        (whole.format(pet.format(3), "maybe"), 0.0),
        (whole.format("<pet><age>3</age></pet>", "true"), 0.0),
    ]:
        assert grade(row, sample, text, NESTED, "xml").reward == reward, text
    ages = {"type": "array", "items": {"type": "object", "properties": {"age": {"type": "integer"}}}}
    assert grade(row, sample, "<ages><age>3</age></ages>", ages, "xml").reward == 1.0  # the one item itself
    assert grade(row, sample, "<ages><item><age>3</age></item></ages>", ages, "xml").reward == 1.0
    rows = {
        "$ref": "#/$defs/rows",
        "$defs": {"rows": {"type": "array", "items": {"$ref": "#/$defs/pet"}}, **NESTED["$defs"]},
    }
    assert grade(row, sample, "age,owner\n3,7\n4,8\n", rows, "csv").reward == 1.0
    assert grade(row, sample, "age,owner\nthree,7\n", rows, "csv").reward == 0.0


def test_a_property_named_properties_is_data():
    schema = {"type": "object", "properties": {"properties": {"type": "string"}}}
    assert make_strict(schema)["required"] == ["properties"]
    assert make_strict(schema)["properties"] == {"properties": {"type": "string"}}


def test_content_is_a_component_and_only_graded_where_the_row_says(row, sample):
    other = TEXTS["json"].replace("Ada", "Bob")
    assert grade(row, sample, other, PERSON, expected_content=ADA).reward == 1.0
    graded = grade(row, sample, other, PERSON, expected_content=ADA, grade_content=True)
    assert graded.reward == 0.0 and graded.components == {"valid": 1.0, "content_match": 4 / 5}
    assert content_match({"a": []}, {"a": {}}) < 1.0
    assert content_match([1, 2], [1, 2, 3]) == 2 / 3


def test_tool_call_mode(row, sample):
    def call(*calls, key=None, malformed=None):
        asked = row(
            schema_str=json.dumps(FLAT),
            schema_type="json",
            response_mode="tool_call",
            tool_name="save",
            tool_payload_key=key,
        )
        return StructuredOutput().verify(asked, sample("", *calls, malformed=malformed)).reward

    person = {"name": "Ada", "age": 36, "tall": True}
    assert call(ToolCall("save", person)) == 1.0
    assert call(ToolCall("save", {"data": person}), key="data") == 1.0
    assert call(ToolCall("save", person), key="data") == 0.0
    assert call(ToolCall("load", person)) == 0.0
    assert call(ToolCall("save", person), ToolCall("save", person)) == 0.0
    assert call(ToolCall("save", {**person, "age": "36"})) == 0.0
    assert call(ToolCall("save", person), malformed="stray <think>") == 0.0
    assert call(ToolCall("save", {**person, "age": float("inf")})) == 0.0
    assert call() == 0.0


def test_fences_are_refused_unless_asked_for(row, sample):
    fenced = f"```json\n{TEXTS['json']}\n```"
    asked = row(schema_str=json.dumps(PERSON), schema_type="json")
    assert StructuredOutput().verify(asked, sample(fenced)).reward == 0.0
    assert StructuredOutput(strip_fence=True).verify(asked, sample(fenced)).reward == 1.0


BOMB_YAML = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "\n".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
BOMB_XML = (
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    + "]><x>&i;</x>"
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (BOMB_YAML, "yaml"),
        (BOMB_XML, "xml"),
        ("[" * 60_000, "json"),
        ("[" * 500 + "]" * 500, "json"),
        ("[" * 60_000, "yaml"),
        ("- " * 30_000, "yaml"),
        ("? " * 30_000, "yaml"),
        ("a=" + "[" * 5_000, "toml"),
        ("x" * 100_000, "json"),
        ("9" * 50_000, "json"),
        ("9" * 4_000, "json"),
        ("NaN", "json"),
        ("1e999", "json"),
        ("-Infinity", "json"),
        ("x: 0b" + "1" * 60_000, "yaml"),
        ("x: " + ":".join(["59"] * 20_000), "yaml"),
        ("a = inf", "toml"),
        ("a" + ".a" * 30_000 + " = 1", "toml"),
        (".nan", "yaml"),
        ('{"a": 1, "a": 2}', "json"),
        ("a: 1\na: 2", "yaml"),
        ("!!python/object/apply:os.system ['true']", "yaml"),
        ("1: 2", "yaml"),
        ('<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><x>&e;</x>', "xml"),
    ],
)
def test_attacks_on_the_parsers_are_wrong_answers(row, sample, text, kind):
    start = time.monotonic()
    verdict = grade(row, sample, text, {}, kind)  # a schema that any document fits
    assert verdict.reward == 0.0 and verdict.no_verdict is None
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        "[]",
        '{"type": 7}',
        '{"$ref": "http://localhost/schema.json"}',
        '{"properties": {"a": {"$ref": "other.json#/a"}}}',
    ],
)
def test_a_bad_schema_is_no_verdict(row, sample, schema):
    verdict = StructuredOutput().verify(row(schema_str=schema, schema_type="json"), sample("{}"))
    assert verdict.no_verdict is not None and "schema_str" in verdict.no_verdict


@pytest.mark.parametrize(
    ("schema", "kind"),
    [({"$ref": "#/$defs/none"}, "json"), ({"pattern": "("}, "json"), ({}, "ini")],
)
def test_a_row_that_cannot_be_judged_is_no_verdict(row, sample, schema, kind):
    verdict = grade(row, sample, '"a"', schema, kind)
    assert verdict.no_verdict is not None


def test_long_lists_of_different_items_are_judged_in_time(row, sample):
    items = ",".join(f'{{"a":{i}}}' for i in range(5_000))
    start = time.monotonic()
    assert grade(row, sample, f"[{items}]", {"uniqueItems": True}).reward == 1.0
    assert time.monotonic() - start < 5
    for text, reward in [("[1, 1.0]", 0.0), ("[1, true]", 1.0), ('[{"a": [1]}, {"a": [1]}]', 0.0), ('["1", 1]', 1.0)]:
        assert grade(row, sample, text, {"uniqueItems": True}).reward == reward


def test_a_schema_without_end_is_no_verdict(row, sample):
    assert grade(row, sample, "{}", {"$ref": "#"}).no_verdict is not None


def test_formats_that_every_machine_checks(row, sample):
    schema = {"type": "string", "format": "date-time"}
    assert grade(row, sample, '"2024-05-01T10:00:00Z"', schema).reward == 1.0
    assert grade(row, sample, '"yesterday"', schema).reward == 0.0
    assert grade(row, sample, '"2024-02-30"', {"type": "string", "format": "date"}).reward == 0.0
    assert grade(row, sample, "2024-02-28", {"type": "string", "format": "date"}, "yaml").reward == 1.0
