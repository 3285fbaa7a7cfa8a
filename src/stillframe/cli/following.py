"""``stillframe spark follow``: a verdict on each snapshot as it ends."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from stillframe.cli import output, quantities, tasks
from stillframe.cli.log_verification import why
from stillframe.cli.verdict import EXIT_NO
from stillframe.errors import StillframeError
from stillframe.eventlog.reading import parts
from stillframe.spark import spark_session
from stillframe.spark.soundness import INCONSISTENT
from stillframe.store.opening import check_is_store

if TYPE_CHECKING:  # a session is made by what says so if PySpark is missing
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

LOG_LAG_S = 2.0
"""So long after its end a snapshot is looked up in the event log: processes hand over what they
noted twice a second."""
_EACH = "250 milliseconds"
_LOOK_S = 1
Fields = dict[str, Any]


class Verdicts:
    """Writes verdicts as they come, and counts them.

    Args:
        is_json: whether to write JSON lines.
        judge: what else there is to know of a micro-batch of verdicts.
    """

    def __init__(self, judge: "Callable[[DataFrame], list[Fields]]", *, is_json: bool) -> None:
        self._judge = judge
        self._is_json = is_json
        self.counts: dict[str, int] = {}
        self.error: StillframeError | None = None

    def put(self, batch: "DataFrame", _number: int) -> None:
        """Write the verdicts of a micro-batch, in the order in which the snapshots ended."""
        try:
            rows = [
                {name: tasks.with_zone(row[name]) for name in row} for row in self._judge(batch)
            ]
        except StillframeError as error:
            self.error = error
            raise
        for row in sorted(rows, key=_when):
            self.counts[row["verdict"]] = self.counts.get(row["verdict"], 0) + 1
            if self._is_json:
                output.put_json(row)
            else:
                output.put_lines([_sentence(row)])


def follow(
    path: Path,
    log: Path | None,
    *,
    timeout: str,
    for_: str | None,
    checkpoint: Path | None,
    where: str,
    is_json: bool,
) -> None:
    """Write a verdict on each snapshot of the store at `path` as it ends, until Ctrl-C.

    Raises:
        typer.Exit: with 1; some snapshot is inconsistent.
        UsageError: there is no store, or no event log; or no duration.
        StoreError: something cannot be read.
        Unavailable: PySpark or Java is missing.
    """
    timeout_s = quantities.parse_interval("--timeout", timeout)
    stop_s = None if for_ is None else quantities.parse_duration("--for", for_)
    check_is_store(path)
    if log is not None:
        parts(log)
    with output.words().status("starting Spark"):
        spark = spark_session(master=where)
    from stillframe.spark import crosscheck, following, verified  # noqa: PLC0415 - PySpark is there

    lag_s = 0.0 if log is None else LOG_LAG_S
    frame = following.follow(spark, path, timeout_s=timeout_s, lag_s=lag_s)
    verdicts = Verdicts(lambda batch: crosscheck.rows(spark, batch, log), is_json=is_json)
    writer = frame.writeStream.foreachBatch(verdicts.put).trigger(processingTime=_EACH)
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", str(checkpoint.absolute()))
    try:
        with verified.explained(path):
            _wait(writer.start(), stop_s)
    except StillframeError as error:
        raise verdicts.error or error from None
    _conclude(verdicts.counts)


def _wait(query: "StreamingQuery", stop_s: float | None) -> None:
    """Let the query go on until it ends, it is time, or Ctrl-C or SIGTERM comes."""
    over = threading.Event()
    end = math.inf if stop_s is None else time.monotonic() + stop_s
    with _signals(over.set):
        try:
            while not over.is_set() and time.monotonic() < end:
                if query.awaitTermination(_LOOK_S):
                    break
        finally:
            query.stop()


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM call `stop` in the body: an exception would break off what Spark is
    being asked."""
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(number, lambda *_: stop()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _when(row: Fields) -> tuple[bool, float, int]:
    at = row["ended_at"]
    number = int(row["snapshot"].rpartition("-")[2])
    return at is None, 0.0 if at is None else at.timestamp(), number


def _sentence(row: Fields) -> str:
    at = row["ended_at"]
    words = [f"snapshot {row['snapshot']}: {row['verdict']}"]
    if row["message_count"] is not None:
        words.append(f"{quantities.count(row['message_count'], 'message')} in transit")
    if row["total_s"] is not None:
        words.append(f"took {quantities.duration(row['total_s'])}")
    line = f"{', '.join(words)}: {row['why']}"
    if (of_log := row.get("log")) is not None:
        line += f"; the event log: {of_log['verdict']}"
        line += f": {first}" if (first := why(of_log)) else ""
    elif "log" in row:
        line += "; the event log: nothing of it"
    return line if at is None else f"{quantities.moment(at.timestamp())}  {line}"


def _conclude(counts: dict[str, int]) -> None:
    """Say how many snapshots were judged, and how.

    Raises:
        typer.Exit: with 1; some were inconsistent.
    """
    found = [f"{count:,} {verdict}" for verdict, count in sorted(counts.items())]
    total = quantities.count(sum(counts.values()), "snapshot")
    word = "no" if INCONSISTENT in counts else "yes"
    output.say(f"{word}: {', '.join((total, *found))}")
    if INCONSISTENT in counts:
        raise typer.Exit(EXIT_NO)
