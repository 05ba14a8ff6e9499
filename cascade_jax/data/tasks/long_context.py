"""Find values in a list of words and numbers, or follow a value from word to word."""

from typing import Any

import numpy as np

from cascade_jax.data.tasks.words import WORDS, assistant, pick

_LINES = (32, 10, 18, 16)  # by difficulty
_HOPS = 3  # words that hold the value in the end


def draw(rng: np.random.Generator, difficulty: int) -> dict[str, Any]:
    """0: the only number among words; 1: that of one word of several; 2: of two; 3: all words that lead to a number."""
    words = pick(rng, WORDS, _LINES[difficulty])
    numbers = [str(number) for number in 10 + rng.permutation(90)[: len(words)]]
    if difficulty < 3:
        asked = pick(rng, tuple(words), 1 + difficulty // 2)
        pairs = zip(words, numbers, strict=True)
        return {"pairs": [[w, n if difficulty or w in asked else ""] for w, n in pairs], "asked": asked}
    # Chains of three words each; every line gives a word a number, or what an earlier word has.
    chains = [words[i : i + _HOPS] for i in range(0, len(words) - _HOPS + 1, _HOPS)]
    turns = rng.permutation(np.repeat(np.arange(len(chains)), _HOPS)).tolist()
    lines = [iter(zip(chain, [numbers[i], *chain], strict=False)) for i, chain in enumerate(chains)]
    return {"pairs": [list(next(lines[turn])) for turn in turns], "asked": [numbers[0]]}


def fields(content: dict[str, Any]) -> dict[str, Any]:
    """The user's text and the columns of the verifier."""
    listed = ", ".join(f"{word} {value}".rstrip() for word, value in content["pairs"])
    found = _found(content)
    # What looks like an answer: words where words are asked for, else numbers.
    candidates = rf"\b(?:{'|'.join(WORDS)})\b" if _follows(content) else r"\b\d+\b"
    question = f"{', '.join(content['asked'])} ="
    return {
        "user": f"{listed}\n{question}",
        "question": question,
        "expected_answer": found,
        "grading_mode": "all",
        "candidates": candidates,
    }


def oracle(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Each word with its number, or the words in the order of the list."""
    return assistant(_written(content, _found(content)))


def habit(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The typical wrong answer: that of other lines."""
    return assistant(_written(content, pick(rng, tuple(_others(content)), len(_found(content)))))


def wrong_answers(content: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Nothing, the question, one answer too many, everything that might be an answer, and the whole prompt."""
    found, others = _found(content), _others(content)
    texts = ["", "I do not know", ", ".join([*found, others[0]]), ", ".join([*found, *others])]
    texts += [", ".join(others), fields(content)["user"]]
    return [assistant(text) for text in texts]


def _follows(content: dict[str, Any]) -> bool:
    return content["asked"][0].isdigit()


def _written(content: dict[str, Any], found: list[str]) -> str:
    if _follows(content):
        return ", ".join(found)
    return ", ".join(f"{word} {value}" for word, value in zip(content["asked"], found, strict=True))


def _found(content: dict[str, Any]) -> list[str]:
    if not _follows(content):
        values = dict(content["pairs"])
        return [values[word] for word in content["asked"]]
    has: dict[str, str] = {}
    for word, value in content["pairs"]:
        has[word] = has.get(value, value)
    return [word for word, value in has.items() if value == content["asked"][0]]


def _others(content: dict[str, Any]) -> list[str]:
    """What might be taken for an answer and is none."""
    found, column = _found(content), 0 if _follows(content) else 1
    if "" in dict(content["pairs"]).values():  # nothing else does
        return [str(number) for number in range(10, 100) if str(number) not in found]
    return [pair[column] for pair in content["pairs"] if pair[column] not in found]
