"""What stands for DataFrames, so that the tests of commands need not start Spark."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pyspark.sql import Row

from stillframe.cli import spark_session


class Frame(list[Row]):
    """Stands for a DataFrame with these rows, which are in order."""

    def collect(self) -> list[Row]:
        """Return the rows."""
        return [*self]

    def toLocalIterator(self) -> Iterator[Row]:  # noqa: N802 - Spark's
        """Return them one by one."""
        return iter(self)

    def orderBy(self, *_: object, **__: object) -> "Frame":  # noqa: N802 - Spark's
        """Return the same."""
        return self

    def filter(self, _: object) -> "Frame":
        """Return the same."""
        return self

    def __getitem__(self, _: object) -> Any:
        """Return what stands for a column."""
        return 0


def frame(*rows: Mapping[str, Any]) -> Any:
    """Return what stands for a DataFrame with these rows."""
    return Frame(Row(**row) for row in rows)


def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands start no session."""
    monkeypatch.setattr(spark_session, "session", lambda *_: contextlib.nullcontext())
