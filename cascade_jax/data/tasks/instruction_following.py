"""Write two words in the manner that is asked for: quoted, bracketed, in an order, or one of them twice."""

from typing import Any

import numpy as np

from cascade_jax.data.tasks.words import WORDS, assistant, other, pick

MANNERS = ("quotes", "brackets", "order", "twice")  # by difficulty


def draw(rng: np.random.Generator, difficulty: int) -> dict[str, Any]:
    """One content out of 32 * 31 for each manner."""
    return {"manner": MANNERS[difficulty], "words": pick(rng, WORDS, 2)}


def fields(content: dict[str, Any]) -> dict[str, Any]:
    """The user's text and the columns of the verifier."""
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
    existence = {"keywords": [first, second]}
    columns = {"instruction_id_list": ["keywords:existence", instruction], "kwargs": [existence, kwargs]}
    return {"user": user, "prompt": user, "grading_mode": "binary", **columns}


def oracle(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The right answer."""
    return assistant(_write(content["manner"], *content["words"]))


def habit(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The typical wrong answer: the words as they came, or in another manner."""
    first, second = content["words"]
    manner = content["manner"]
    if manner in ("quotes", "brackets") and rng.random() < 0.3:
        return assistant(_write("brackets" if manner == "quotes" else "quotes", first, second))
    return assistant(f"{first} {second}")


def wrong_answers(content: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Answers that break the instruction."""
    first, second = content["words"]
    manner, stranger = content["manner"], other(rng, WORDS, first, second)
    texts = ["", f"{first} {second}", _write(manner, first, stranger), _write(manner, stranger, second), first]
    texts += [_write(m, first, second) for m in MANNERS if m != manner]
    return [assistant(text) for text in texts if text != _write(manner, first, second)]


def _write(manner: str, first: str, second: str) -> str:
    return {
        "quotes": f'"{first} {second}"',
        "brackets": f"[{first}] [{second}]",
        "order": f"{second} {first}",
        "twice": f"{first} {second} {second}",
    }[manner]
