"""Rows of the Hugging Face hub, or of a folder that is laid out as one, streamed by `datasets` without a download."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from cascade_jax.data.files import from_arrow
from cascade_jax.data.rows import RowError, parse_row
from cascade_jax.types import Row

PREFIX = "hf:"


def records(address: str, *, split: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """(record, where) in the order of the data set. `address`: NAME or NAME:CONFIG, NAME one of the hub or a folder.

    ValueError, one sentence, where there is no such data set, configuration or split, or `datasets` is not installed.
    """
    name, _, config = address.removeprefix(PREFIX).partition(":")
    try:
        import datasets
    except ModuleNotFoundError:
        raise ValueError("streaming needs the package datasets; run pip install -e '.[hub]'.") from None
    number = 0
    try:
        splits = datasets.load_dataset(name, config or None, streaming=True)
        if split not in splits and len(splits) > 1:
            raise ValueError(f"it has no split {split!r} but {', '.join(splits)}.")
        for record in splits[split] if split in splits else next(iter(splits.values())):
            number += 1
            yield from_arrow(record), f"{address}:{number}"
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(f"{address} cannot be read after row {number}: {' '.join(str(error).split())}") from None


def scan(address: str, *, split: str, limit: int = 0) -> Iterator[Row | RowError]:
    """Each row in order, or the RowError that it gives; at most `limit` of them where one is given."""
    for record, where in itertools.islice(records(address, split=split), limit or None):
        try:
            yield parse_row(record, where=where)
        except RowError as error:
            yield error
