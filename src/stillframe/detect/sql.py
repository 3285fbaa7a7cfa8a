"""Predicates in SQL, asked of the tables of a snapshot by DuckDB."""

import re
from collections.abc import Mapping

import pyarrow as pa

from stillframe.detect.predicate import Verdict
from stillframe.errors import Unavailable, UsageError
from stillframe.model import SnapshotId

_REFERENCE = re.compile(r"[\w.]+:\w+")
_SQL = re.compile(r"(?:select|with|from)\b|\(|--|/\*", re.IGNORECASE)


def is_sql(predicate: str) -> bool:
    """Return whether a predicate is a question in SQL, and no name."""
    text = predicate.strip()
    return _REFERENCE.fullmatch(text) is None and _SQL.match(text) is not None


def ask(sql: str, snapshot: SnapshotId, tables: Mapping[str, pa.Table]) -> Verdict:
    """Return what a question in SQL says of a snapshot.

    Args:
        sql: gives one row with one column, true or false.
        snapshot: which one, for the error.
        tables: by name, with a column for each field (``store.tables``).

    Raises:
        UsageError: it cannot be asked, or gives something else.
        Unavailable: DuckDB is not installed.
    """
    try:
        import duckdb  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise Unavailable(
            "predicates in SQL need DuckDB: install it with pip install 'stillframe[sql]'"
        ) from error
    try:
        with duckdb.connect() as database:
            for name, table in tables.items():
                database.register(name, table)
            rows = database.execute(sql).fetchall()
    except duckdb.Error as error:
        raise UsageError(
            f"the predicate {sql!r} cannot be asked of snapshot {snapshot}: {error}"
        ) from error
    if rows == [(None,)]:
        raise UsageError(
            f"the predicate {sql!r} gives NULL on snapshot {snapshot}: a sum over no rows is NULL, "
            "write coalesce(sum(...), 0)"
        )
    if len(rows) != 1 or len(rows[0]) != 1 or not isinstance(rows[0][0], bool):
        shown = ", ".join(map(repr, rows[:3])) or "no row"
        raise UsageError(
            f"the predicate {sql!r} gives {shown} on snapshot {snapshot}: it must give one row "
            "with one column that is true or false"
        )
    return Verdict(holds=rows[0][0], sentence=f"{sql} is {str(rows[0][0]).lower()}")
