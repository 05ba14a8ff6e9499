"""Proofs small enough to check exactly: derive a number from another one by allowed moves, each step written down."""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

_MOVES: dict[str, Callable[[int, int], int]] = {
    "+": lambda value, by: value + by,
    "-": lambda value, by: value - by,
    "*": lambda value, by: value * by,
}
_QUESTION = re.compile(r"(-?\d+) to (-?\d+) by ((?:[+*-]\d+,? ?)+)")
_NUMBER = re.compile(r"-?[0-9]{1,15}")
_LONGEST = 64  # numbers; a chain that goes on for ever proves nothing


@dataclass(frozen=True)
class Derivation:
    """`moves` such as +3 and *2, each usable any number of times."""

    start: int
    goal: int
    moves: tuple[str, ...]

    def question(self) -> str:
        return f"{self.start} to {self.goal} by {', '.join(self.moves)}"

    def reached(self, value: int) -> set[int]:
        """What one move makes of a value."""
        return {_MOVES[move[0]](value, int(move[1:])) for move in self.moves}

    def fault(self, proof: str) -> str | None:
        """Why the chain of numbers ("2 -> 4 -> 7", or without arrows) is no proof, or None where it is one."""
        written = proof.replace("->", " ").replace(",", " ").split()
        if not written or not all(_NUMBER.fullmatch(word) for word in written):
            return "it is no chain of numbers"
        chain = [int(word) for word in written]
        if len(chain) > _LONGEST:
            return f"it has {len(chain)} numbers; {_LONGEST} are allowed"
        if chain[0] != self.start:
            return f"it starts at {chain[0]}"
        for before, after in itertools.pairwise(chain):
            if after not in self.reached(before):
                return f"no move leads from {before} to {after}"
        return None if chain[-1] == self.goal else f"it ends at {chain[-1]}"


def read(question: str) -> Derivation | None:
    """The task in a text, or None where it holds none."""
    found = _QUESTION.search(question)
    if not found:
        return None
    return Derivation(int(found[1]), int(found[2]), tuple(re.findall(r"[+*-]\d+", found[3])))
