"""Puts sequences one after the other into rows of one length, each a segment of its own."""

from collections.abc import Iterable, Sequence

import numpy as np

from cascade_jax.types import Batch
from cascade_jax.types import Sequence as Tokens


def place(sizes: Sequence[int], length: int, *, rows: int | None = None) -> list[tuple[int, int]]:
    """(row, start) of each sequence, first-fit in the given order. ValueError: one is empty, too long or has no room.

    The i-th sequence lies in `[row, start : start + sizes[i]]` of the arrays that `pack` makes.
    """
    room = np.full(len(sizes) if rows is None else rows, length)
    placements = []
    for i, size in enumerate(sizes):
        if not 0 < size <= length:
            raise ValueError(
                f"sequence {i} has {size} tokens, but a packed row holds 1 to {length}; "
                "drop it or raise the stage's length."
            )
        row = int(np.argmax(room >= size)) if len(room) else 0
        if not len(room) or room[row] < size:
            raise ValueError(
                f"{len(sizes)} sequences need more than {rows} rows of {length} tokens; raise rows or length."
            )
        placements.append((row, int(length - room[row])))
        room[row] -= size
    return placements


def pack(samples: Iterable[Tokens], length: int, *, rows: int | None = None) -> Batch:
    """A Batch of NumPy arrays, segments numbered 1.. in each row; with `rows`, empty rows fill up to that many.

    Position t predicts the next id of its segment; mask and fields at t are those of that target, so those of the first
    token of a sequence fall away. Fields become float32 and are 0 where there is no target.
    """
    samples = list(samples)
    placements = place([len(sample.ids) for sample in samples], length, rows=rows)
    names = list(samples[0].fields) if samples else []
    odd = next((i for i, sample in enumerate(samples) if set(sample.fields) != set(names)), None)
    if odd is not None:
        raise ValueError(
            f"sequence {odd} has the fields {sorted(samples[odd].fields)}, the first one {sorted(names)}; "
            "they must agree."
        )
    shape = (max((row + 1 for row, _ in placements), default=0) if rows is None else rows, length)
    ids, segments, targets = (np.zeros(shape, np.int32) for _ in range(3))
    mask = np.zeros(shape, bool)
    fields = {name: np.zeros(shape, np.float32) for name in names}
    segments_in = np.zeros(shape[0], np.int32)
    for sample, (row, start) in zip(samples, placements, strict=True):
        stop = start + len(sample.ids)
        segments_in[row] += 1
        ids[row, start:stop] = sample.ids
        segments[row, start:stop] = segments_in[row]
        targets[row, start : stop - 1] = sample.ids[1:]
        mask[row, start : stop - 1] = sample.trained[1:]
        for name in names:
            fields[name][row, start : stop - 1] = sample.fields[name][1:]
    return Batch(ids, segments, targets, mask, fields)
