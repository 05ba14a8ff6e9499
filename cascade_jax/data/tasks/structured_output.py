"""Put the words and numbers of the user into named fields: JSON, and YAML at the highest difficulty."""

import json
from typing import Any

import numpy as np

from cascade_jax.data.tasks.words import COLORS, WORDS, assistant, other, pick

_SHAPES = (("name", "count"), ("name", "color"), ("name", "color", "count"), ("name", "count"))  # by difficulty
_TYPES = {"name": "string", "color": "string", "count": "integer"}


def draw(rng: np.random.Generator, difficulty: int) -> dict[str, Any]:
    """At least 256 contents for each difficulty."""
    drawn = {"name": pick(rng, WORDS, 1)[0], "color": pick(rng, COLORS, 1)[0], "count": int(rng.integers(10))}
    return {"form": "yaml" if difficulty == 3 else "json", "record": {key: drawn[key] for key in _SHAPES[difficulty]}}


def fields(content: dict[str, Any]) -> dict[str, Any]:
    """The user's text and the columns of the verifier."""
    form, record = content["form"], content["record"]
    schema = {  # with the values, which a schema of types alone would leave open
        "type": "object",
        "properties": {key: {"type": _TYPES[key], "enum": [value]} for key, value in record.items()},
        "required": list(record),
        "additionalProperties": False,
    }
    return {
        "user": f"In {form.upper()} {' '.join(record)}: {_plain(record)}",
        "schema_str": json.dumps(schema),
        "schema_type": form,
        "response_mode": "text",
        "expected_content": record,
    }


def oracle(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The record in its form."""
    return assistant(_write(content["form"], content["record"]))


def habit(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The typical wrong answer: the values as they came, or the form of the other notation without its rules."""
    if rng.random() < 0.5:
        return assistant(_plain(content["record"]))
    if content["form"] == "yaml":
        return assistant(", ".join(f"{key} {value}" for key, value in content["record"].items()))
    return assistant(_write("yaml", content["record"]))


def wrong_answers(content: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Plain text, a field that is missing, extra, of another type or another value, and forms that do not parse."""
    form, record = content["form"], content["record"]
    last = list(record)[-1]
    records = [
        {key: value for key, value in record.items() if key != last},
        {**record, "extra": 1},
        {**record, "name": 1},
        {**record, "name": other(rng, WORDS, record["name"])},
        {**record, last: [record[last]]},
    ]
    texts = ["", _plain(record), _write("json", record)[:-1], *(_write(form, changed) for changed in records)]
    if form == "json":
        written = _write(form, record)
        texts += [f"```json\n{written}\n```", f"{written} {written}", written.replace('"', ""), _write("yaml", record)]
    return [assistant(text) for text in texts]


def _plain(record: dict[str, Any]) -> str:
    return " ".join(str(value) for value in record.values())


def _write(form: str, record: dict[str, Any]) -> str:
    if form == "json":
        return json.dumps(record)
    return "\n".join(f"{key}: {value}" for key, value in record.items())
