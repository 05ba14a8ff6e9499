"""A graph as a list of edges, and the parents of one of its nodes."""

from collections.abc import Iterator, Sequence

import numpy as np

from cascade_jax.data.long_context.fill import Draft

_MOST_PARENTS = 5


def parents(rng: np.random.Generator, tokens: int, prose: Sequence[str]) -> Draft:
    """All nodes with an edge to the one that is asked for, which has edges of its own as well."""
    drawn: dict[str, None] = {}
    while len(drawn) < _MOST_PARENTS + 3:
        drawn[_node(rng)] = None
    child, first, second, *rest = drawn
    found = rest[: int(rng.integers(1, _MOST_PARENTS + 1))]

    def edges() -> Iterator[str]:
        while True:
            source, target = _node(rng), _node(rng)
            if source not in drawn and target != child:
                yield f"{source} -> {target}\n"

    question = (
        f"List the parents of {child}: every node with an edge that leads to {child}. "
        "End with them in brackets, with commas between, such as [a, b]."
    )
    return Draft(
        head="Below are the edges of a directed graph, one on each line, each from a parent to its child.\n",
        pieces=(*(f"{node} -> {child}\n" for node in found), f"{child} -> {first}\n", f"{child} -> {second}\n"),
        filler=edges(),
        tail=question,
        fields={"expected_answer": found, "grading_mode": "graph_f1", "question": question},
        crumbs=(),
    )


def _node(rng: np.random.Generator) -> str:
    return f"{int(rng.integers(16**6)):06x}"
