"""Predicates in SQL, asked of the Parquet files of a snapshot by DuckDB."""

from pathlib import Path

from stillframe.detect.predicate import Verdict
from stillframe.errors import Unavailable, UsageError

TABLES = ("processes", "channels", "messages")


def is_sql(predicate: str) -> bool:
    """Return whether a predicate is a question in SQL, and no name."""
    return predicate.lstrip().lower().startswith(("select", "with"))


def ask(sql: str, directory: Path) -> Verdict:
    """Return what a question in SQL says of a snapshot.

    Args:
        sql: gives one row with one column, true or false; over the tables `processes`, `channels`
            and `messages`, with a column for each field (``store.tables``).
        directory: of the snapshot; that its files are what was written is for the caller to check.

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
    with duckdb.connect() as database:
        for table in TABLES:
            database.read_parquet(str(directory / f"{table}.parquet")).create_view(table)
        try:
            rows = database.execute(sql).fetchall()
        except duckdb.Error as error:
            raise UsageError(f"the predicate {sql!r} cannot be asked: {error}") from error
    if len(rows) != 1 or len(rows[0]) != 1 or not isinstance(rows[0][0], bool):
        shown = ", ".join(map(repr, rows[:3])) or "no row"
        raise UsageError(
            f"the predicate {sql!r} gives {shown}: it must give one row with one column that is "
            "true or false"
        )
    return Verdict(holds=rows[0][0], sentence=f"{sql} is {str(rows[0][0]).lower()}")
