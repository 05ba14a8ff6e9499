r"""Multiple choice: find the letter that an answer commits to, in the mode that the row asks for.

Row fields (NeMo-Gym): `options` [{letter: text}], `expected_answer`, `grading_mode`, and optionally
`template_metadata.output_regex` (one or several), which comes before the mode.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cascade_jax.reward.boxed import last_boxed
from cascade_jax.reward.verdict import Verdict, reply_of, unanswered, unjudged
from cascade_jax.types import Row, Sample

_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{(.*)\}", re.DOTALL)
_PADDED_LETTER = re.compile(r"[\W\d_]*([A-Za-z])[\W\d_]*")
_LETTER_AND_TEXT = re.compile(r"\(?\s*([A-Za-z])\s*[).:]\s*(\S.*)", re.DOTALL)
_ANSWER_COLON = re.compile(r"answer\s*:[ \t]*(\S.*)", re.IGNORECASE)
_HEDGE = re.compile(r"[^\w,/&]*(?:,|/|&|[oO][rR]\b|[aA][nN][dD]\b)[^\w\n]*([A-Z])(?![A-Za-z])")
_MARKDOWN = str.maketrans("", "", "*_`")


@dataclass(frozen=True)
class MultipleChoice:
    """1 if the extracted letter is the expected one, else 0; letters outside the options and lists are no answer."""

    def verify(self, row: Row, sample: Sample) -> Verdict:
        options = _options(row.fields.get("options"))
        gold = str(row.fields.get("expected_answer") or "").strip().upper()
        if gold not in options:
            return unjudged(f"expected_answer {gold!r} is not among the options {sorted(options)}")
        early = unanswered(sample)
        if early is not None:
            return early
        try:
            letter = _extract(reply_of(sample).content, options, row.fields)
        except (ValueError, re.error) as error:
            return unjudged(str(error))
        reward = float(letter == gold)
        return Verdict(reward, {"answered": float(letter is not None)}, {"extracted": letter})


def _extract(text: str, options: Mapping[str, str], fields: Mapping[str, Any]) -> str | None:
    found = _by_regex(text, options, fields)
    if found is not None:
        return found or None
    mode = fields.get("grading_mode") or "strict_single_letter_boxed"
    match mode:
        case "strict_single_letter_boxed":
            return _strict(last_boxed(text) or "", options)
        case "lenient_boxed":
            return _lenient(last_boxed(text) or "", options)
        case "lenient_answer_colon" | "lenient_answer_colon_md":
            plain = text.translate(_MARKDOWN) if mode.endswith("_md") else text
            lines = _ANSWER_COLON.findall(plain)
            return _lenient(lines[-1], options) if lines else None
    raise ValueError(
        f"grading_mode {mode!r} is unknown; "
        "allowed are strict_single_letter_boxed, lenient_boxed, lenient_answer_colon[_md]"
    )


def _by_regex(text: str, options: Mapping[str, str], fields: Mapping[str, Any]) -> str | None:
    """None where no pattern finds a letter; "" where another follows it: "A or B" commits to nothing."""
    patterns = (fields.get("template_metadata") or {}).get("output_regex") or []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        found = list(re.finditer(pattern, text, re.IGNORECASE))
        if found:
            last = found[-1]
            letter = _lenient(last.group(1 if last.re.groups else 0) or "", options)
            if letter is not None:
                hedge = _HEDGE.match(text, last.end())
                return "" if hedge and hedge[1] in options and hedge[1] != letter else letter
    return None


def _strict(text: str, options: Mapping[str, str]) -> str | None:
    """One capital letter and nothing else but punctuation."""
    found = _PADDED_LETTER.fullmatch(_unwrap(text))
    return found[1] if found and found[1] in options else None


def _lenient(text: str, options: Mapping[str, str]) -> str | None:
    """A letter in any case, a letter with its option's text, or exactly the text of one option."""
    text = _unwrap(text)
    found = _PADDED_LETTER.fullmatch(text)
    if found:
        letter = found[1].upper()
        return letter if letter in options else None
    same = [letter for letter, option in options.items() if _plain(option) == _plain(text)]
    if same:
        return same[0] if len(same) == 1 else None
    labelled = _LETTER_AND_TEXT.fullmatch(text)
    if labelled and labelled[1].upper() in options:
        letter = labelled[1].upper()
        # The text after the letter has to be that option's own: "A) or B)" commits to nothing.
        return letter if _plain(labelled[2]) == _plain(options[letter]) else None
    return None


def _unwrap(text: str) -> str:
    text = text.strip().strip("$").strip()
    found = _WRAPPED.fullmatch(text)
    return _unwrap(found[1]) if found else text


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


def _options(given: Sequence[Mapping[str, str]] | Mapping[str, str] | None) -> dict[str, str]:
    pairs = [given] if isinstance(given, Mapping) else given or []
    return {str(letter).strip().upper(): str(text) for pair in pairs for letter, text in pair.items()}
