"""``stillframe store follow``: a verdict on each snapshot as it ends."""

import math
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stillframe.analytics.snapshot_verdicts import INCONSISTENT
from stillframe.cli import output, quantities
from stillframe.cli.command import Commands, conclude, option, signals
from stillframe.cli.options import DURATION, MASTER, StorePath, event_log_option
from stillframe.cli.records import why
from stillframe.cli.spark_session import documents_of, start_spark, with_zone
from stillframe.errors import StillframeError
from stillframe.eventlog.object_segments import PUT_S
from stillframe.eventlog.reader import list_segments
from stillframe.spark.session import check_reachable, checkpoint_address
from stillframe.storage.location import Location, ObjectPath
from stillframe.store.layout import check_is_store

if TYPE_CHECKING:  # a session is made by what says so if PySpark is missing
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

LOG_LAG_S = 2.0
"""When a snapshot is looked up in the event log, in seconds after its end: processes hand over what
they noted twice a second."""
_EACH = "250 milliseconds"
_POLL_S = 1
app = Commands()
Fields = dict[str, Any]


class Verdicts:
    """Writes each verdict as a JSON line or as text, and counts them; `enrich` returns
    the verdicts of a micro-batch with what else is known of each."""

    def __init__(self, enrich: "Callable[[DataFrame], list[Fields]]", *, is_json: bool) -> None:
        self._enrich = enrich
        self._is_json = is_json
        self.counts: Counter[str] = Counter()
        self.damage_count = 0
        self.error: StillframeError | OSError | None = None

    def put(self, batch: "DataFrame", _number: int) -> None:
        """Write the verdicts of a micro-batch, in the order in which the snapshots ended.

        Only then is it done for Spark: one that is broken off is evaluated and written again.
        """
        try:
            rows = [{name: with_zone(row[name]) for name in row} for row in self._enrich(batch)]
            for row in sorted(rows, key=_when):
                if row["snapshot"] is None:
                    self.damage_count += 1
                else:
                    self.counts[row["verdict"]] += 1
                if self._is_json:
                    output.put_json(*documents_of([row]))
                else:
                    output.put_lines([_sentence(row)])
        except (StillframeError, OSError) as error:
            self.error = error  # Spark would report it in words of its own
            raise


@app.add(
    "store follow money", "store follow money --event-log money.log --checkpoint judged --json"
)
def follow(
    path: StorePath,
    event_log: Location | None = event_log_option(
        "Event log of the system. Checks snapshots against it too, after 2 s; after 4 s in an "
        "object store."
    ),
    timeout: str = option(
        "DURATION",
        "Time after which a pending snapshot counts as incomplete, or 'never'.",
        default="1m",
    ),
    checkpoint: Location | None = option(
        "DIR",
        "Spark checkpoint directory, local or in S3. Reuse it to resume where the previous run "
        "stopped.  [default: check all snapshots]",
    ),
    duration: str | None = DURATION,
    where: str = MASTER,
) -> None:
    """Check each snapshot of a running system as soon as it is published or abandoned:
    consistent, inconsistent or incomplete, and why. Exit 1 if one was inconsistent."""
    timeout_s = quantities.parse_interval("--timeout", timeout)
    stop_s = None if duration is None else quantities.parse_duration("--duration", duration)
    place = None if checkpoint is None else checkpoint_address(checkpoint)
    check_is_store(path)
    if event_log is not None:
        list_segments(event_log)
    stop = Stop()
    with signals(stop.ask, signal.SIGINT, signal.SIGTERM):
        with output.status("starting Spark"):
            spark = start_spark(where)
        signal.signal(signal.SIGINT, stop.ask)  # a session that starts takes Ctrl-C for itself
        if stop.is_asked:
            return
        if place is not None:
            check_reachable(spark, place)
        from stillframe.analytics import log_verification, verdict_stream, verified_parquet  # noqa: PLC0415

        lag_s = 0.0 if event_log is None else LOG_LAG_S
        if isinstance(event_log, ObjectPath):
            lag_s += PUT_S
        frame = verdict_stream.follow(spark, path, timeout_s=timeout_s, lag_s=lag_s)
        # Passed on, because Spark calls `put` in a thread in which ``wants_json`` is False.
        verdicts = Verdicts(
            log_verification.CrossCheck(spark, event_log).rows, is_json=output.wants_json()
        )
        writer = frame.writeStream.foreachBatch(verdicts.put).trigger(processingTime=_EACH)
        if place is not None:
            writer = writer.option("checkpointLocation", place)
        try:
            with verified_parquet.spark_errors(path):
                _wait(writer.start(), stop_s, stop)
        except StillframeError as error:
            raise verdicts.error or error from None
    _conclude(verdicts.counts, verdicts.damage_count)


class Stop:
    """A flag that Ctrl-C or SIGTERM sets. An exception would interrupt a call to Spark, and leave
    behind a Java process that is being started."""

    def __init__(self) -> None:
        self.is_asked = False

    def ask(self, *_: object) -> None:
        """Take a signal."""
        self.is_asked = True


def _wait(
    query: "StreamingQuery",
    stop_s: float | None,
    stop: Stop,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until the query ends, its time has passed, or `stop` is set.

    Ctrl-C reaches the processes that evaluate, too, and SIGTERM may reach Java: systemd sends it to
    all. That the query fails without them is no error then, and Spark regards their tasks as not
    done.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 - it is there
    from pyspark.errors import PySparkException  # noqa: PLC0415

    end = math.inf
    try:
        try:
            while not stop.is_asked and clock() < end:
                if query.awaitTermination(_POLL_S):
                    break
                if stop_s is not None and end == math.inf:
                    # The time begins when what was there at first has been judged.
                    status = query.status
                    is_beginning = status["message"].startswith("Initializing")
                    is_waiting = not status["isTriggerActive"] and not is_beginning
                    if is_waiting or query.lastProgress is not None:
                        end = clock() + stop_s
        finally:
            query.stop()
    except (Py4JError, PySparkException):
        if not stop.is_asked:
            raise


def _when(row: Fields) -> tuple[bool, float, int]:
    at = row["ended_at"]
    name = row["snapshot"]
    number = -1 if name is None else int(name.rpartition("-")[2])
    return at is None, 0.0 if at is None else at.timestamp(), number


def _sentence(row: Fields) -> str:
    if row["snapshot"] is None:
        return f"the history: {row['why']}"
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
        line += "; the event log has nothing of it"
    return line if at is None else f"{quantities.moment(at.timestamp())}  {line}"


def _conclude(counts: Counter[str], damage_count: int) -> None:
    found = [f"{count:,} {verdict}" for verdict, count in sorted(counts.items())]
    total = quantities.count(counts.total(), "snapshot")
    is_wrong = INCONSISTENT in counts or damage_count > 0
    lines = quantities.count(damage_count, "damaged line")
    damage = f"; {lines} of the history" if damage_count else ""
    conclude(not is_wrong, f"{', '.join((total, *found))}{damage}")
