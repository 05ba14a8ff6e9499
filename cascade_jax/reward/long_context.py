"""Answers out of long prompts, by rule: recall of what was hidden (RULER, arXiv 2404.06654) or F1 of a set of nodes.

Row fields: `expected_answer` [str]; `grading_mode`: `all` (the share of them that the answer names, RULER's score of
its retrieval tasks), `any` (one is enough, its score of questions), or `graph_f1` (the answer's last list in brackets
against them); optionally `candidates`, a regular expression of everything that looks like an answer.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cascade_jax.reward.verdict import Verdict, reply_of, unanswered, unjudged, wrong
from cascade_jax.types import Row, Sample

_COPIED = 32  # words in a row as the prompt has them; a quoted sentence is shorter
_LIST = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True)
class LongContext:
    """The score times the share of the answer that is not copied out of the prompt.

    Naming a candidate that is not expected gives 0: to list everything is not to find it.
    """

    def verify(self, row: Row, sample: Sample) -> Verdict:
        mode = row.fields.get("grading_mode") or "all"
        try:
            expected = _expected(row.fields.get("expected_answer"), allow_none=mode == "graph_f1")
            candidates = re.compile(row.fields.get("candidates") or r"(?!)")
        except (ValueError, re.error) as error:
            return unjudged(str(error))
        if mode not in ("all", "any", "graph_f1"):
            return unjudged(f"grading_mode {mode!r} is unknown; allowed are all, any, graph_f1")
        early = unanswered(sample)
        if early is not None:
            return early
        text = reply_of(sample).content
        own = own_share(text, "\n".join(str(m.get("content") or "") for m in row.messages))
        if mode == "graph_f1":
            return _graph(text, expected, own)
        found = [reference for reference in expected if _names(text, reference)]
        recall = len(found) / len(expected) if mode == "all" else float(bool(found))
        known = {reference.casefold() for reference in expected}
        named = {match[0].casefold() for match in candidates.finditer(text)}
        if named - known:
            return wrong("it names a wrong candidate", recall=recall, wrong=sorted(named - known)[:8])
        return Verdict(recall * own, {"recall": recall, "copied": 1 - own}, {"found": found})


def own_share(text: str, prompt: str, *, run: int = _COPIED) -> float:
    """The share of the text's words that stand in no run of `run` words that the prompt has too; 1 for short texts."""
    words = text.split()
    if len(words) < run:
        return 1.0
    runs: dict[tuple[str, ...], list[int]] = {}
    for i in range(len(words) - run + 1):
        runs.setdefault(tuple(words[i : i + run]), []).append(i)
    given = prompt.split()
    seen = {window for window in zip(*(given[k:] for k in range(run)), strict=False) if window in runs}
    copied = [False] * len(words)
    for i in sorted(i for window in seen for i in runs[window]):
        copied[i : i + run] = [True] * run
    return 1 - sum(copied) / len(words)


def _graph(text: str, expected: Sequence[str], own: float) -> Verdict:
    lists = _LIST.findall(text)
    if not lists:
        return wrong("it has no list in brackets")
    named = {node.strip().strip("'\"`").casefold() for node in lists[-1].split(",")} - {""}
    known = {node.casefold() for node in expected}
    both = len(named & known)
    f1 = 2 * both / (len(named) + len(known)) if named or known else 1.0
    return Verdict(f1 * own, {"f1": f1, "copied": 1 - own}, {"named": sorted(named)[:32]})


def _expected(answer: object, *, allow_none: bool) -> list[str]:
    """The references of a row; published ones may be JSON text. ValueError: none."""
    if isinstance(answer, str) and answer.lstrip().startswith("["):
        answer = json.loads(answer)
    listed = [str(entry).strip() for entry in (answer if isinstance(answer, list) else [answer or ""])]
    if (not listed and not allow_none) or not all(listed):
        raise ValueError("expected_answer must be a list of texts that are not empty")
    return listed


def _names(text: str, reference: str) -> bool:
    """Whether the reference stands in the text as a whole word, in any case."""
    return re.search(rf"(?<!\w){re.escape(reference)}(?!\w)", text, re.IGNORECASE) is not None
