"""The tables of the workplace: what a tool reads and changes, and when two end states are the same."""

import csv
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from cascade_jax.environment.workplace.columns import COLUMNS
from cascade_jax.environment.workplace.made import make_tables

Record = dict[str, str]
Tables = Mapping[str, Sequence[Record]]

_CHANGING = ("emails", "events", "plots", "tasks", "customers")
_CASE_MATTERS = ("list_name", "board", "status")
_FILES = {  # of NeMo-Gym's workplace_assistant, under csv_data
    "emails": "processed/emails.csv",
    "events": "processed/calendar_events.csv",
    "visits": "processed/analytics_data.csv",
    "tasks": "processed/project_tasks.csv",
    "customers": "processed/customer_relationship_manager_data.csv",
    "directory": "raw/email_addresses.csv",
}


def complete(tables: Tables) -> Tables:
    """All tables with all columns, those that are left out empty.

    ValueError: a table or a column that does not exist, or a value that is no text.
    """
    for name, records in tables.items():
        unknown = {key for record in records for key in record} - set(COLUMNS.get(name, ()))
        if name not in COLUMNS or unknown:
            raise ValueError(f"table {name!r} or its columns {sorted(unknown)} are unknown; allowed are {COLUMNS}")
        if not all(isinstance(value, str) for record in records for value in record.values()):
            raise ValueError(f"a value in table {name!r} is no text; write numbers as texts too")
    return {
        name: [{key: record.get(key, "") for key in columns} for record in tables.get(name, ())]
        for name, columns in COLUMNS.items()
    }


class Database:
    """The tables as one episode changes them. Records that it does not change are shared, so that it opens fast."""

    def __init__(self, tables: Tables) -> None:
        """`tables` are complete, and stay as they are. ValueError: an id that is no number."""
        self._start = tables
        self.tables: dict[str, list[Record]] = {name: list(records) for name, records in tables.items()}
        self._last = {name: max((int(row[COLUMNS[name][0]]) for row in tables[name]), default=0) for name in _CHANGING}

    def get(self, table: str, key: str) -> Record | None:
        """The record of this id. To change it, use `change`."""
        return next((record for record in self.tables[table] if record[COLUMNS[table][0]] == key), None)

    def add(self, table: str, **values: str) -> str:
        """The id of the new record, which no record ever had before."""
        self._last[table] += 1
        key = str(self._last[table]).zfill(8)
        self.tables[table].append(dict.fromkeys(COLUMNS[table], "") | values | {COLUMNS[table][0]: key})
        return key

    def change(self, table: str, record: Record, **values: str) -> None:
        self.tables[table][self._place(table, record)] = record | values

    def remove(self, table: str, record: Record) -> None:
        del self.tables[table][self._place(table, record)]

    def end_state(self) -> dict[str, tuple[frozenset[str], Counter]]:
        """By table the ids that are gone, and the records that are new or changed; equal for equal ends.

        The order in which new records were made, and so their ids, does not matter. Nor does the case of letters,
        except in columns like a status, which are chosen out of a list.
        """
        return {name: self._difference(name) for name in _CHANGING}

    def _difference(self, table: str) -> tuple[frozenset[str], Counter]:
        key = COLUMNS[table][0]
        before = {record[key]: record for record in self._start[table]}
        found: Counter = Counter()
        for record in self.tables[table]:
            old = before.pop(record[key], None)
            if old is None:
                found[("", *_comparable(table, record))] += 1
            elif old is not record and _comparable(table, old) != _comparable(table, record):
                found[(record[key], *_comparable(table, record))] += 1
        return frozenset(before), found

    def _place(self, table: str, record: Record) -> int:
        return next(i for i, other in enumerate(self.tables[table]) if other is record)


def _comparable(table: str, record: Record) -> tuple[str, ...]:
    """All but the id."""
    return tuple(record[name] if name in _CASE_MATTERS else record[name].casefold() for name in COLUMNS[table][1:])


@functools.lru_cache(maxsize=8)
def base_tables(folder: str, seed: int) -> Tables:
    """NeMo-Gym's tables out of its folder csv_data, or a small workplace of our own where `folder` is empty.

    Nobody may change them. FileNotFoundError, or ValueError where a file has other columns.
    """
    if not folder:
        return complete(make_tables(seed))
    tables: dict[str, Sequence[Record]] = {}
    for name, path in _FILES.items():
        with (Path(folder) / path).open(newline="", encoding="utf-8") as file:
            header = COLUMNS[name] if name == "directory" else None  # that file has no header
            tables[name] = list(csv.DictReader(file, fieldnames=header))
    return complete(tables)
