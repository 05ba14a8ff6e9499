"""Write two words in the manner that is asked for: quoted, bracketed, in an order, or one of them twice.

From difficulty 4 on, one, two or three instructions at once, as the data of the recipe combines them.
"""

from typing import Any

import numpy as np

from cascade_jax.data.tasks.words import WORDS, assistant, other, pick

MANNERS = ("quotes", "brackets", "order", "twice")  # by difficulty
LEVELS = 7  # from 0

Instruction = tuple[str, dict[str, Any]]  # id, kwargs

_FIRST = ("first_word:first_word_answer", {"first_word": "{b}"})
_FINAL = ("last_word:last_word_answer", {"last_word": "{a}"})
_BOXES = ("detectable_format:square_brackets", {})
_PAIRS = ("detectable_format:bigram_wrapping", {})
_PARTS = ("paragraphs:paragraphs", {})
_ENDS = ("keywords:start_end", {})
_COUNTS = ("count:count_increment_word", {"keyword1": "{a}", "keyword2": "{b}"})
_UNIQUE = ("count:count_unique", {})
_LETTERS = ("letters:letter_counting", {"N": 12, "relation": "at least"})
_FEW = ("count:lowercase_counting", {"N": 3})

# Difficulty 4 and more: what is asked for -> the instructions and the right answer. "{a} {b}" breaks each of them.
COMBINATIONS: tuple[dict[str, tuple[tuple[Instruction, ...], str]], ...] = (
    {
        "First {b}: {a} {b}": ((_FIRST,), "{b} {a}"),
        "Final {a}: {a} {b}": ((_FINAL,), "{b} {a}"),
        "Each in [ ]: {a} {b}": ((_BOXES,), "[{a}] [{b}]"),
        "Pairs in << >>: {a} {b}": ((_PAIRS,), "<<{a} {b}>>"),
        "Parts by ***: {a} {b}": ((_PARTS,), "{a} *** {b}"),
        "Both ends {a}: {a} {b}": ((_ENDS,), "{a} {b} {a}"),
        "One {a}, two {b}": ((_COUNTS,), "{a} {b} {b}"),
        "12 letters: {a} {b}": ((_LETTERS,), "{a} {b} {a} {b}"),
    },
    {
        "Each in [ ], final {a}: {a} {b}": ((_BOXES, _FINAL), "[{b}] [{a}]"),
        "Pairs in << >>, final {a}: {a} {b}": ((_PAIRS, _FINAL), "<<{b} {a}>>"),
        "Parts by ***, first {b}: {a} {b}": ((_PARTS, _FIRST), "{b} *** {a}"),
        "One {a}, two {b}, first {b}": ((_COUNTS, _FIRST), "{b} {b} {a}"),
        "First {b}, none twice: {a} {b}": ((_FIRST, _UNIQUE), "{b} {a}"),
        "Both ends {a}, 12 letters: {a} {b}": ((_ENDS, _LETTERS), "{a} {b} {b} {a}"),
    },
    {
        "One {a}, two {b}, each in [ ], final {a}": ((_COUNTS, _BOXES, _FINAL), "[{b}] [{b}] [{a}]"),
        "One {a}, two {b}, parts by ***, first {b}": ((_COUNTS, _PARTS, _FIRST), "{b} {b} *** {a}"),
        "One {a}, two {b}, pairs in << >>, final {a}": ((_COUNTS, _PAIRS, _FINAL), "<<{b} {b}>> {a}"),
        "One {a}, two {b}, both ends {b}, 3 words": ((_COUNTS, _ENDS, _FEW), "{b} {a} {b}"),
    },
)


def draw(rng: np.random.Generator, difficulty: int) -> dict[str, Any]:
    """One content out of 32 * 31 for each manner or combination."""
    if difficulty < len(MANNERS):
        return {"manner": MANNERS[difficulty], "words": pick(rng, WORDS, 2)}
    asks = list(COMBINATIONS[difficulty - len(MANNERS)])
    return {"ask": asks[rng.integers(len(asks))], "words": pick(rng, WORDS, 2)}


def fields(content: dict[str, Any]) -> dict[str, Any]:
    """The user's text and the columns of the verifier."""
    first, second = content["words"]
    user, asked = _combined(content) if "ask" in content else _plain(content)
    ids, kwargs = zip(("keywords:existence", {"keywords": [first, second]}), *asked, strict=True)
    columns = {"instruction_id_list": list(ids), "kwargs": list(kwargs)}
    return {"user": user, "prompt": user, "grading_mode": "binary", **columns}


def _plain(content: dict[str, Any]) -> tuple[str, list[Instruction]]:
    first, second = content["words"]
    user, instruction, kwargs = {
        "quotes": (f"In quotes: {first} {second}", "startend:quotation", {}),
        "brackets": (
            f"In brackets: {first} {second}",
            "detectable_content:number_placeholders",
            {"num_placeholders": 2},
        ),
        "order": (f"Last {first}: {first} {second}", "startend:end_checker", {"end_phrase": first}),
        "twice": (
            f"Twice {second}: {first} {second}",
            "keywords:frequency",
            {"keyword": second, "frequency": 2, "relation": "at least"},
        ),
    }[content["manner"]]
    return user, [(instruction, kwargs)]


def _combined(content: dict[str, Any]) -> tuple[str, list[Instruction]]:
    asked, _ = _asks()[content["ask"]]
    words = dict(zip("ab", content["words"], strict=True))
    return content["ask"].format(**words), [(name, _filled(kwargs, words)) for name, kwargs in asked]


def _filled(kwargs: dict[str, Any], words: dict[str, str]) -> dict[str, Any]:
    return {key: value.format(**words) if isinstance(value, str) else value for key, value in kwargs.items()}


def _asks() -> dict[str, tuple[tuple[Instruction, ...], str]]:
    return {ask: how for level in COMBINATIONS for ask, how in level.items()}


def oracle(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The right answer."""
    return assistant(_right(content, *content["words"]))


def habit(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The typical wrong answer: the words as they came, or in another manner."""
    first, second = content["words"]
    manner = content.get("manner")
    if manner in ("quotes", "brackets") and rng.random() < 0.3:
        return assistant(_write("brackets" if manner == "quotes" else "quotes", first, second))
    return assistant(f"{first} {second}")


def wrong_answers(content: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Answers that break the instruction."""
    first, second = content["words"]
    stranger = other(rng, WORDS, first, second)
    texts = ["", f"{first} {second}", _right(content, first, stranger), _right(content, stranger, second), first]
    if "manner" in content:
        texts += [_write(manner, first, second) for manner in MANNERS if manner != content["manner"]]
    return [assistant(text) for text in texts if text != _right(content, first, second)]


def _right(content: dict[str, Any], first: str, second: str) -> str:
    if "ask" in content:
        return _asks()[content["ask"]][1].format(a=first, b=second)
    return _write(content["manner"], first, second)


def _write(manner: str, first: str, second: str) -> str:
    return {
        "quotes": f'"{first} {second}"',
        "brackets": f"[{first}] [{second}]",
        "order": f"{second} {first}",
        "twice": f"{first} {second} {second}",
    }[manner]
