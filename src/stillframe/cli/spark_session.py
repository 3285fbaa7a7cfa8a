"""A Spark session for a command, and a bar of the tasks that it runs."""

import contextlib
import datetime
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from stillframe.cli import output
from stillframe.spark import spark_session

if TYPE_CHECKING:  # a session is made by what says so if PySpark is missing
    from pyspark.sql import DataFrame, SparkSession

_POLL_S = 0.2
_SAFE_PATH = "PYTHONSAFEPATH"


def start_spark(master: str) -> "SparkSession":
    """Start Spark at `master`, or return the active session."""
    # For Spark's workers, which need nothing of the current directory before they are told: a file
    # that is called like a module of Python would end them.
    is_set = _SAFE_PATH in os.environ
    os.environ.setdefault(_SAFE_PATH, "1")
    try:
        return spark_session(master=master)
    finally:
        if not is_set:
            del os.environ[_SAFE_PATH]


@contextlib.contextmanager
def session(master: str, description: str) -> Iterator["SparkSession"]:
    """Start Spark at `master` for the body, or use the active session, with a bar on a terminal
    that has the `description` of what the body does."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("tasks"), TimeElapsedColumn())
    with output.progress_bar("starting Spark", *columns) as update:
        spark = start_spark(master)
        update(description=description)
        over = threading.Event()
        watching = threading.Thread(
            target=_watch,
            args=(spark, over, lambda done, known: update(completed=done, total=known)),
            daemon=True,
        )
        if output.is_lively(output.words()):
            watching.start()
        try:
            yield spark
        finally:
            over.set()
            if watching.ident is not None:
                watching.join()


def with_zone(value: Any) -> Any:
    """Return a value of a row of Spark's as it is, but a time in UTC: Spark gives times of day as
    they are here, without a zone."""
    return value.astimezone(datetime.UTC) if isinstance(value, datetime.datetime) else value


def rows_of(frame: "DataFrame") -> list[dict[str, Any]]:
    """Return the rows of a DataFrame, with times in UTC."""
    return [
        {name: with_zone(value) for name, value in row.asDict().items()} for row in frame.collect()
    ]


def documents_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows for JSON, in which a time is a timestamp: none is a value of the user's."""
    return [
        {
            name: msgspec.to_builtins(value) if isinstance(value, datetime.datetime) else value
            for name, value in row.items()
        }
        for row in rows
    ]


def _watch(spark: "SparkSession", over: threading.Event, show: Callable[[int, int], None]) -> None:
    """Show how many tasks are done, and of how many known ones, until the job ends."""
    tracker = spark.sparkContext.statusTracker()
    counts: dict[int, tuple[int, int]] = {}
    while not over.wait(_POLL_S):
        for job in tracker.getActiveJobsIds():
            found = tracker.getJobInfo(job)
            for stage in () if found is None else found.stageIds:
                now = tracker.getStageInfo(stage)
                if now is not None:
                    counts[stage] = now.numCompletedTasks, now.numTasks
        show(sum(done for done, _ in counts.values()), sum(known for _, known in counts.values()))
