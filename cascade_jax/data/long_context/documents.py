"""Questions over many documents, of which several are needed: who is known to whom, and a number at the end.

Every document says the same about a person, so only the chain of names tells which documents matter.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from cascade_jax.data.long_context.fill import Draft
from cascade_jax.data.long_context.names import NOISE, name

NEEDED = 5  # documents that an answer takes (recipe 10)
_TIES = ("teacher", "landlord", "doctor", "tailor", "neighbour")
_NUMBER = r"(?<!\d)\d{4}(?!\d)"  # what looks like an answer
_OPTIONS = "ABCD"


def answer(rng: np.random.Generator, tokens: int, prose: Sequence[str]) -> Draft:
    """Answered with a number, which is judged by rule."""
    draft, number, _ = _draft(rng)
    fields = {"expected_answer": [number], "grading_mode": "any", "candidates": _NUMBER, "question": draft.tail}
    return _with(draft, "long_context", f"{draft.tail} Answer with the number alone.", fields)


def choice(rng: np.random.Generator, tokens: int, prose: Sequence[str]) -> Draft:
    """Answered with the letter of one of four numbers, all of which the documents hold."""
    draft, number, others = _draft(rng)
    listed = [number, *others]
    rng.shuffle(listed)
    options = [{letter: option} for letter, option in zip(_OPTIONS, listed, strict=True)]
    shown = "\n".join(f"{letter}: {option}" for entry in options for letter, option in entry.items())
    fields = {
        "options": options,
        "expected_answer": _OPTIONS[listed.index(number)],
        "grading_mode": "strict_single_letter_boxed",
    }
    return _with(draft, "mcqa", f"{draft.tail}\n{shown}\nEnd with the letter in \\boxed{{}}.", fields)


def judged(rng: np.random.Generator, tokens: int, prose: Sequence[str]) -> Draft:
    """Answered in any words, which a judge compares with the official answer."""
    draft, number, _ = _draft(rng)
    return _with(draft, "judged", draft.tail, {"expected_answer": number, "question": draft.tail})


def _with(draft: Draft, kind: str, tail: str, fields: dict[str, object]) -> Draft:
    return Draft(draft.head, draft.pieces, draft.filler, tail, fields, kind)


def _draft(rng: np.random.Generator) -> tuple[Draft, str, list[str]]:
    """The documents and the question, its answer, and three numbers of other documents."""
    drawn: dict[str, None] = {}
    while len(drawn) < NEEDED + len(_OPTIONS) - 1:
        drawn[name(rng)] = None
    people = list(drawn)
    numbers = [str(number) for number in 1000 + rng.choice(9000, len(people), replace=False)]
    ties = [_TIES[i] for i in rng.permutation(len(_TIES))[: NEEDED - 1]]
    steps = [{tie: people[i + 1]} for i, tie in enumerate(ties)] + [{}] * (len(people) - len(ties))
    documents = [
        _document(rng, person, number, step, people)
        for person, number, step in zip(people, numbers, steps, strict=True)
    ]
    question = (
        f"Start with {people[0]} and go on, each time from the person that you have reached, to the "
        f"{', then to the '.join(ties)}. Which number is on the door of the last one?"
    )
    head = "Below are notes on people. A question that needs several of them follows.\n"
    number = numbers[NEEDED - 1]
    return Draft(head, tuple(documents), _others(rng, people, number), question), number, numbers[NEEDED:]


def _document(rng: np.random.Generator, person: str, number: str, step: Mapping[str, str], known: Sequence[str]) -> str:
    """A note on a person; the ties that `step` does not settle lead to anybody who is known."""
    lines = [f"The {tie} of {person} is {step.get(tie) or known[rng.integers(len(known))]}.\n" for tie in _TIES]
    lines += [f"The number on the door of {person} is {number}.\n"]
    lines += [NOISE[i] for i in rng.integers(len(NOISE), size=rng.integers(4))]
    rng.shuffle(lines)
    return "".join([f"# {person}\n", *lines])


def _others(rng: np.random.Generator, people: Sequence[str], answer: str) -> Iterator[str]:
    known = list(people)
    while True:
        person, number = name(rng), str(rng.integers(1000, 10_000))
        if person not in people and number != answer:
            yield _document(rng, person, number, {}, known)
            yield from [NOISE[rng.integers(len(NOISE))]] * int(rng.integers(2))
            known.append(person)
