"""Writes rows to a TFDS data set in ArrayRecord files, without TensorFlow; `sources.load` reads it back."""

import contextlib
import io
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from cascade_jax.data.rows import to_record
from cascade_jax.types import Row


def write(rows: Iterable[Row], directory: str, *, split: str = "train") -> int:
    """Writes the data set as a new `directory` and returns the number of rows; order is kept.

    It is written beside its place and renamed, so a directory of this name is whole. FileExistsError: there is one
    already; ValueError: there are no rows.
    """
    import tensorflow_datasets as tfds

    target = Path(directory)
    if target.exists():
        raise FileExistsError(f"{directory} exists already; remove it or name another directory.")
    stream = iter(rows)
    first = next(stream, None)
    if first is None:
        raise ValueError(f"there are no rows to write to {directory}; a data set needs at least one.")

    class Rows(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        """Rows of cascade_jax as JSON text."""

        VERSION = tfds.core.Version("1.0.0")
        url_infos: ClassVar = {}  # nothing is downloaded; TFDS would look for a file of checksums beside this one

        def _info(self) -> tfds.core.DatasetInfo:
            text = tfds.features.Text()
            features = tfds.features.FeaturesDict({"id": text, "kind": text, "record": text})
            return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

        def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, str]]]]:
            return {split: self._generate_examples()}

        def _generate_examples(self) -> Iterator[tuple[int, dict[str, str]]]:
            for i, row in enumerate(itertools.chain([first], stream)):
                yield i, {"id": row.id, "kind": row.kind, "record": json.dumps(to_record(row), ensure_ascii=False)}

    beside = target.with_name(f".{target.name}.incomplete")
    shutil.rmtree(beside, ignore_errors=True)
    tfds.disable_progress_bar()
    builder = Rows(data_dir=beside, file_format="array_record")
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # TFDS prints that it downloads; it does not
            builder.download_and_prepare()
        count = builder.info.splits[split].num_examples
        os.replace(builder.data_dir, target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return count
