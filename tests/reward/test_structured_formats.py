"""Drawn schemas and documents in every format: what an independent writer wrote passes, what does not fit fails."""

import csv
import io
import json

import numpy as np
import pytest
import xmltodict
import yaml

from cascade_jax.reward.structured_output import StructuredOutput

SCALARS = ("string", "integer", "number", "boolean")
WORDS = ("kite", "7", "true", "3.5", "null", "a b", "ünï, x", "it's", "# no", "<b> & c", "x: y", "- z", "[1]", "0x1F")


def draw(rng, depth, *, nullable=True):
    """(schema, value that fits it). Texts look like other types on purpose."""
    kind = rng.choice([*SCALARS, "enum", "null", "list", "object", "ref"][: (9 if nullable else 5) if depth else 4])
    if kind == "string":
        return {"type": "string"}, str(rng.choice(WORDS))
    if kind == "integer":
        return {"type": "integer"}, int(rng.integers(-99, 99))
    if kind == "number":
        return {"type": ["number"]}, float(rng.integers(-99, 99)) / 4
    if kind == "boolean":
        return {"type": "boolean"}, bool(rng.integers(2))
    if kind == "enum":
        values = [3, 5] if rng.integers(2) else ["on", "off"]
        return {"enum": values}, values[rng.integers(2)]
    if kind == "null":
        return {"type": ["integer", "null"]}, None if rng.integers(2) else 4
    if kind == "list":
        schema, value = draw(rng, depth - 1)
        return {"type": "array", "items": {"anyOf": [schema]}}, [value] * int(rng.integers(1, 4))
    return draw_object(rng, depth - 1)


def draw_object(rng, depth, *, nullable=True):
    drawn = {name: draw(rng, depth, nullable=nullable) for name in ("alpha", "beta", "gamma")[: rng.integers(2, 4)]}
    properties = {name: schema for name, (schema, _) in drawn.items()}
    return {"type": "object", "properties": properties}, {name: value for name, (_, value) in drawn.items()}


def has_null(value):
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is None or any(has_null(inner) for inner in inside)


def xml(value):
    """As programs write XML: items repeat in an element of their own, booleans are words, nothing is an empty tag."""
    if isinstance(value, dict):
        return {key: xml(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return {"item": [xml(inner) for inner in value]}
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def toml(value):
    """One line for each key: inline tables and arrays, texts as TOML's basic strings, which are JSON's."""

    def inline(inner):
        if isinstance(inner, dict):
            return "{" + ", ".join(f"{key} = {inline(v)}" for key, v in inner.items()) + "}"
        if isinstance(inner, list):
            return "[" + ", ".join(map(inline, inner)) + "]"
        return json.dumps(inner, ensure_ascii=False)

    return "\n".join(f"{key} = {inline(inner)}" for key, inner in value.items())


def table(values):
    out = io.StringIO()
    writer = csv.DictWriter(out, list(values[0]))
    writer.writeheader()
    writer.writerows([{k: str(v).lower() if isinstance(v, bool) else v for k, v in row.items()} for row in values])
    return out.getvalue()


WRITERS = {
    "json": lambda value: json.dumps(value, indent=1),
    "yaml": lambda value: yaml.safe_dump(value, sort_keys=False, allow_unicode=True),
    "xml": lambda value: xmltodict.unparse({"answer": xml(value)}),
    "toml": toml,
    "csv": lambda value: table([value] * 3),
}


@pytest.mark.parametrize("form", WRITERS)
def test_what_another_program_wrote_passes_and_what_does_not_fit_fails(row, sample, form):
    def judge(schema, text, **more):
        asked = row(schema_str=json.dumps(schema), schema_type=form, **more)
        verdict = StructuredOutput().verify(asked, sample(text))
        assert verdict.no_verdict is None, verdict
        return verdict

    tried = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        schema, value = draw_object(rng, 0, nullable=False) if form == "csv" else draw_object(rng, 3)
        if form == "toml" and has_null(value):  # TOML has none
            continue
        tried += 1
        whole = {"type": "array", "items": schema} if form == "csv" else schema
        value = json.loads(json.dumps(value))  # no part of it twice, which YAML would write as an alias
        content = [value] * 3 if form == "csv" else value
        verdict = judge(whole, WRITERS[form](value), expected_content=content, grade_content=True)
        assert verdict.reward == 1.0, (seed, schema, WRITERS[form](value), verdict)
        first = next(iter(value))
        for other in (
            {key: inner for key, inner in value.items() if key != first},
            {**value, "delta": 1},
            {**value, first + "s": value[first]},
            {"answers": value} if form != "csv" else {**value, "answers": "x"},
        ):
            assert judge(whole, WRITERS[form](other)).reward == 0.0, (seed, schema, other)
        for prose in (f"Here it is:\n\n```\n{WRITERS[form](value)}\n```", str(seed)):
            assert judge(whole, prose).reward == 0.0
    assert tried > 60
