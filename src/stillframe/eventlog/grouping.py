"""Rows of an event log as Python has them, and which of them belong together."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from stillframe.eventlog.schema import KINDS, MARKER_SENT


class Row(NamedTuple):
    """A row, as ``schema.SCHEMA`` has it; `at` in microseconds since 1970."""

    event: int
    kind: str
    channel: str | None
    number: int | None
    snapshot: str | None
    at: int | None
    recorded: list[dict[str, int]] | None = None


def rows_of(table: pa.Table) -> Iterator[Row]:
    """Yield the rows of a table with all columns of ``schema.SCHEMA``, or all but the last."""
    columns = [
        table.column(name).cast(pa.int64()) if name == "at" else table.column(name)
        for name in Row._fields
        if name in table.column_names
    ]
    yield from map(Row, *(column.to_pylist() for column in columns))


def grouped(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield the rows of each action, and of each step of a snapshot."""
    group: list[Row] = []
    for row in rows:
        if group and not _goes_on(group[-1], row):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _goes_on(before: Row, row: Row) -> bool:
    """Return whether two rows in succession are of the same action, or of the same step."""
    if row.event != before.event or row.snapshot != before.snapshot:
        return False
    return (
        row.snapshot is None
        or KINDS.index(row.kind) > KINDS.index(before.kind)
        or (row.kind == before.kind == MARKER_SENT)
    )
