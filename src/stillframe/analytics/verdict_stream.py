"""A verdict on each snapshot as it ends, while a system runs: ``format("stillframe.verdicts")``.

Options: `store`, the directory; `timeout`, in seconds, after which a snapshot that has not ended is
overdue, none if it never is; `lag`, in seconds: more recent outcomes are not read yet.

An offset is a cursor of ``store.outcomes``, with all outcomes since the one before: a query that
resumes from its checkpoint repeats and loses no snapshot. What runs on executors (``read``) imports
no more than Arrow.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from stillframe.analytics.snapshot_verdicts import (
    INCOMPLETE,
    INCONSISTENT,
    VERDICTS,
    Expected,
    Row,
    moment,
    to_batch,
    verdict_for,
)
from stillframe.storage.location import Location, locate, location_of

if TYPE_CHECKING:
    import pyarrow as pa

    from stillframe.store.outcomes import OutcomeCursor, OutcomeReader, SnapshotOutcome

SOURCE = "stillframe.verdicts"
TIMEOUT_S = 60.0
_TASK_SNAPSHOT_COUNT = 16


def follow(
    spark: SparkSession,
    store_path: str | Location,
    *,
    timeout_s: float | None = TIMEOUT_S,
    lag_s: float = 0.0,
) -> DataFrame:
    """Return a streaming DataFrame with a verdict on each snapshot of a store (`VERDICTS`), once.

    A snapshot gets its verdict when it is published, abandoned or overdue; existing ones come
    first. The verdict on one that was published is that of ``audit``: ``consistent``, or
    ``inconsistent`` if a byte was changed or the books do not balance; on all others it is
    ``incomplete``, with the reason and the processes that were missing. One that is published after
    it was overdue has had its verdict. A damaged line of the history adds a separate row with the
    verdict ``inconsistent`` and no snapshot.

    Args:
        spark: the session; all its executors see the directory.
        store_path: the directory of the store; a running system may write to it.
        timeout_s: a snapshot that has not ended this long after its start is overdue, in seconds;
            None if none is.
        lag_s: how long after its end a snapshot gets its verdict, in seconds.

    Raises:
        UsageError: there is no store.
        Unavailable: Spark is older than 4.2, or does not register Stillframe's sources in this
            session.
    """
    from stillframe.store.layout import check_is_store

    path = locate(store_path)
    check_is_store(path)
    register(spark)
    options = {"store": str(path.absolute()), "lag": str(lag_s)}
    if timeout_s is not None:
        options["timeout"] = str(timeout_s)
    return spark.readStream.format(SOURCE).options(**options).load()


def register(spark: SparkSession) -> None:
    """Register Stillframe's formats in a session: see ``stillframe.spark.register``."""
    from stillframe.spark import queries

    queries.register(spark, VerdictSource)


@dataclass
class InputSplit(InputPartition):
    """The directories of published snapshots for one task, and verdicts on others, known
    already."""

    directories: list[str]
    expected: Expected
    known: list[Row]


class VerdictSource(DataSource):
    """The verdicts on the snapshots of a store as a streaming source."""

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to ``format``."""
        return SOURCE

    def schema(self) -> StructType:
        """Return the columns of a verdict."""
        return from_arrow_schema(VERDICTS)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of one query."""
        return VerdictReader(self.options)


class VerdictReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the outcomes of snapshots on the driver, and comes to verdicts in tasks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._store = options["store"]
        self._timeout = options.get("timeout")
        self._lag_s = float(options.get("lag", "0"))
        self._outcomes: OutcomeReader | None = None
        self._start: dict[str, Any] | None = None
        self._ahead: OutcomeCursor | None = None
        self._until: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Return the cursor before the first outcome."""
        from stillframe.store.outcomes import OutcomeCursor

        return _to_offset(OutcomeCursor())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return that the outcomes limit themselves."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Remember the time: such a run ends with the outcomes until then."""
        self._until = time.time()

    def latestOffset(  # noqa: N802 - Spark's
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the next cursor with an outcome, or `start` if there is none yet."""
        if self._outcomes is None:
            from stillframe.store.layout import check_is_store
            from stillframe.store.outcomes import OutcomeReader

            store = location_of(self._store)
            check_is_store(store)
            timeout_s = None if self._timeout is None else float(self._timeout)
            self._outcomes = OutcomeReader(store, timeout_s=timeout_s)
        if self._ahead is None or start != self._start:
            self._start, self._ahead = start, _cursor_of(start)
        now = (time.time() if self._until is None else self._until) - self._lag_s
        while True:
            found = self._outcomes.after(self._ahead, now)
            if found.outcomes:
                return _to_offset(found)
            if found.place == self._ahead.place:
                return start
            self._ahead = found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a task for some of the outcomes; all that it takes is in `end`."""
        from stillframe.analytics.manifests import expected_of
        from stillframe.model import SnapshotId
        from stillframe.store.layout import SNAPSHOTS, read_head
        from stillframe.store.outcomes import PUBLISHED

        store = location_of(self._store)
        expected = expected_of(read_head(store))
        outcomes = _cursor_of(end).outcomes
        splits: list[InputPartition] = []
        for first in range(0, len(outcomes), _TASK_SNAPSHOT_COUNT):
            some = outcomes[first : first + _TASK_SNAPSHOT_COUNT]
            published = [
                str(store / SNAPSHOTS / str(SnapshotId.parse(outcome.snapshot or "")))
                for outcome in some
                if outcome.how == PUBLISHED
            ]
            known = [_row(outcome) for outcome in some if outcome.how != PUBLISHED]
            splits.append(InputSplit(published, expected, known))
        return splits

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the verdicts of one task."""
        assert isinstance(partition, InputSplit)
        rows = [
            verdict_for(location_of(directory), partition.expected)
            for directory in partition.directories
        ]
        yield to_batch([*rows, *partition.known])

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle for executors, without what only the driver needs."""
        return {"_store": self._store}


def _to_offset(cursor: "OutcomeCursor") -> dict[str, Any]:
    import msgspec

    offset: dict[str, Any] = msgspec.to_builtins(cursor)
    return offset


def _cursor_of(offset: dict[str, Any]) -> "OutcomeCursor":
    import msgspec

    from stillframe.errors import Damaged, text_of
    from stillframe.model import DECODING_ERRORS
    from stillframe.store.outcomes import OutcomeCursor

    try:
        return msgspec.convert(offset, OutcomeCursor)
    except DECODING_ERRORS as error:
        raise Damaged(
            f"the checkpoint has no position in a stream of verdicts: {text_of(error)}: start the "
            "query with a new checkpoint"
        ) from error


def _row(outcome: "SnapshotOutcome") -> Row:
    """Return the verdict on a snapshot that was not published, or on a line of the history."""
    begun = outcome.started
    is_wrong = outcome.reason == "NOT_CONSISTENT" or outcome.snapshot is None
    return {
        "snapshot": outcome.snapshot,
        "epoch": None if begun is None else begun.epoch,
        "verdict": INCONSISTENT if is_wrong else INCOMPLETE,
        "why": outcome.why,
        "reason": outcome.reason,
        "missing": list(outcome.missing),
        "initiated_at": moment(None if begun is None else begun.at),
        "ended_at": moment(outcome.at),
        "total_s": None if begun is None or outcome.at is None else outcome.at - begun.at,
    }
