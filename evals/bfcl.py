"""The single-turn part of the Berkeley Function Calling Leaderboard (BFCL v4): its items, judged by its checker.

Items, answers and checker are those of the package bfcl-eval, whose requirements cannot live beside ours and are not
needed here: `pip install --no-deps bfcl-eval==2026.3.23`. The part that searches the web is left out: it needs a paid
search service. So are the memory part, which needs faiss and sentence-transformers, and format sensitivity, which has
no score of its own. Several turns are in `evals.bfcl_turns`.
"""

import functools
import importlib
import importlib.util
import json
import sys
import threading
import types
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_jax.reward.tool_call import format_fault
from cascade_jax.reward.verdict import reply_of, unjudged, wrong
from cascade_jax.types import Row, Sample, ToolCall, Verdict

NON_LIVE = ("simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple")
LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
NO_CALL = ("irrelevance", "live_irrelevance")  # no tool fits: nothing may be called
ANY_CALL = ("live_relevance",)  # some tool fits: something must be called
CATEGORIES = (*NON_LIVE, *LIVE, *NO_CALL, *ANY_CALL)
# Their answers contradict their own descriptions, so that no call passes; the published scores include them.
IMPOSSIBLE = (
    *("simple_java_36", "simple_java_65", "live_simple_106-63-0", "live_simple_112-68-0"),
    *("live_multiple_862-181-3", "live_multiple_964-207-0"),
)
_INSTALL = "bfcl-eval is not installed; run pip install --no-deps bfcl-eval==2026.3.23."
_REGISTRY = "bfcl_eval.constants.model_config"  # of models, with the clients of all their makers
_lock = threading.Lock()


def rows(categories: Sequence[str] = CATEGORIES) -> list[Row]:
    """Rows of kind "bfcl" with the fields category, functions (as BFCL describes them) and possible_answer.

    ModuleNotFoundError: bfcl-eval is not installed. ValueError: a category that is not here.
    """
    unknown = sorted(set(categories) - set(CATEGORIES))
    if unknown:
        raise ValueError(f"BFCL has no single-turn category {', '.join(unknown)}; choose from {', '.join(CATEGORIES)}.")
    return [row for category in categories for row in _rows(category)]


class Bfcl:
    """1 where BFCL's checker accepts the calls of a sample, else 0. For rows of `rows`."""

    def verify(self, row: Row, sample: Sample) -> Verdict:
        if sample.reply is None:
            return unjudged("the sample was not read back into a reply")
        reply, category = reply_of(sample), row.fields["category"]
        fault = format_fault(reply)
        if fault is not None:
            return wrong(f"malformed reply: {fault}")
        if category in NO_CALL:  # an empty answer calls nothing, but answers nothing either
            return Verdict(float(not reply.tool_calls and bool(reply.content.strip())))
        if category in ANY_CALL:
            return Verdict(float(bool(reply.tool_calls)))
        if not reply.tool_calls:
            return wrong("no call")
        return self._checked(row.fields, reply.tool_calls)

    def _checked(self, fields: Mapping[str, Any], calls: Sequence[ToolCall]) -> Verdict:
        check, language = _checker(), _language(fields["category"])
        written = [{call.name: {k: _written(v, language) for k, v in call.arguments.items()}} for call in calls]
        try:
            found = check(fields["functions"], written, fields["possible_answer"], language, fields["category"], "")
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            # The checker takes the shape of nested values for granted; it does not fail on its own answers.
            return wrong(f"the checker cannot read an argument: {error!r}")
        return Verdict(1.0) if found["valid"] else wrong(f"{found['error_type']}: {str(found['error'])[:300]}")


def records(name: str) -> list[dict[str, Any]]:
    """The lines of one file of BFCL's data. ModuleNotFoundError: bfcl-eval is not installed."""
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(_INSTALL)
    text = (Path(spec.origin).parent / "data" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def tool_of(function: Mapping[str, Any], note: str = "") -> dict[str, Any]:
    """A function in BFCL's own form as a tool of `Row.tools`. `note` on the type of each argument, if any."""
    parameters = _schema(function["parameters"])
    if note:
        properties = function["parameters"]["properties"]
        for name, declared in properties.items():
            said = f"{declared.get('description', '')} {note.format(declared['type'])}".strip()
            parameters["properties"][name] = {"type": "string", "description": said}
    described = {"name": function["name"], "description": function.get("description", ""), "parameters": parameters}
    return {"type": "function", "function": described}


def _rows(category: str) -> list[Row]:
    answers = [] if category in (*NO_CALL, *ANY_CALL) else records(f"possible_answer/BFCL_v4_{category}.json")
    answer_of = {answer["id"]: answer["ground_truth"] for answer in answers}
    note = {"simple_java": "(Java {}, as Java code.)", "simple_javascript": "(JavaScript {}, as JavaScript code.)"}
    return [
        Row(
            item["id"],
            "bfcl",
            tuple(item["question"][0]),
            tuple(tool_of(function, note.get(category, "")) for function in item["function"]),
            {
                "category": category,
                "functions": item["function"],
                "possible_answer": answer_of.get(item["id"], []),
            },
        )
        for item in records(f"BFCL_v4_{category}.json")
    ]


def _schema(declared: Any) -> Any:
    """BFCL's description of a value as JSON Schema: Python's type names are JSON's."""
    from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI

    schema = dict(declared)
    if isinstance(schema.get("type"), str):
        schema["type"] = GORILLA_TO_OPENAPI.get(schema["type"], "string")
    if isinstance(schema.get("properties"), Mapping):
        schema["properties"] = {name: _schema(inner) for name, inner in schema["properties"].items()}
    if isinstance(schema.get("items"), Mapping):
        schema["items"] = _schema(schema["items"])
    return schema


def _written(value: Any, language: Any) -> Any:
    """Arguments of Java and JavaScript are code, and the checker wants all of it as text."""
    return value if language.value == "python" or isinstance(value, str) else json.dumps(value)


def _language(category: str) -> Any:
    from bfcl_eval.constants.enums import Language

    return {"simple_java": Language.JAVA, "simple_javascript": Language.JAVASCRIPT}.get(category, Language.PYTHON)


@functools.lru_cache(maxsize=1)
def _checker() -> Callable[..., dict[str, Any]]:
    """BFCL's ast_checker, imported beside an empty registry of models in place of its own."""
    registry = types.ModuleType(_REGISTRY)
    registry.MODEL_CONFIG_MAPPING = defaultdict(lambda: types.SimpleNamespace(underscore_to_dot=False))
    with _lock:
        before = sys.modules.get(_REGISTRY)
        sys.modules[_REGISTRY] = registry
        try:
            return importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker").ast_checker
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(_INSTALL if error.name == "bfcl_eval" else str(error)) from error
        finally:
            if before is None:
                del sys.modules[_REGISTRY]
            else:
                sys.modules[_REGISTRY] = before
