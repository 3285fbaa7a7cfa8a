"""The rows of an event log as DataFrames, and questions about single events and messages."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_schema

from stillframe.analytics import verified_parquet
from stillframe.analytics.log_checks import read_splits
from stillframe.errors import UsageError
from stillframe.eventlog.segments import MARKER_ACCEPTED, MARKER_SENT, RECORDED, SCHEMA
from stillframe.spark.session import add_package

_PLAIN = [
    (field.name, pa.string() if pa.types.is_dictionary(field.type) else field.type)
    for field in SCHEMA
    if field.name != "recorded"
]
ROWS = pa.schema([("epoch", pa.int64()), ("process", pa.string()), *_PLAIN])
"""The columns of ``eventlog.segments``, with the epoch and the process whose log a row is in."""
PATHS_SCHEMA = pa.schema(
    [
        ("snapshot", pa.string()),
        ("hop", pa.int64()),  # from 1, at the process that recorded without a marker
        ("source", pa.string()),  # of the channel that the marker went along
        ("target", pa.string()),
        # Until the source had recorded and sent the marker, from the arrival of the marker that
        # made it record, or from the request: by one clock.
        ("held_ms", pa.float64()),
        ("travelled_ms", pa.float64()),  # then until the target accepted it: by both clocks
        ("elapsed_ms", pa.float64()),  # from the first recording until then: by both clocks
    ]
)
_STEP_COLUMNS = ("kind", "process", "source", "target", "at")

Channel = tuple[str | None, str | None]


class LogMessage(NamedTuple):
    """A message: its channel, and its number there, in one epoch."""

    epoch: int
    source: str
    target: str
    number: int


def event_rows(pieces: DataFrame, only: pc.Expression | None = None) -> DataFrame:
    """Return the rows of an event log (`ROWS`), in no order. They are read when Spark runs the
    DataFrame: do that in ``spark_errors``.

    Args:
        pieces: of the log (``log_pieces``), all or some.
        only: a filter by columns of ``eventlog.segments``; other rows never leave their task.
    """
    add_package(pieces.sparkSession)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece, found in read_splits(batches, ROWS.names[2:]):
            for table in found:
                chosen = table if only is None else table.filter(only)
                ends = [pa.repeat(piece[name], len(chosen)) for name in ("epoch", "process")]
                yield from pa.table([*ends, *chosen.columns], schema=ROWS).to_batches()

    return pieces.mapInArrow(read, from_arrow_schema(ROWS))


def locate(pieces: DataFrame, messages: Iterable[LogMessage]) -> DataFrame:
    """Return the events that sent or accepted some messages, as rows of `event_rows`.

    Args:
        pieces: of the log.
        messages: a few of them.

    Raises:
        Damaged: a file of the log is not what was written.
        StoreError: Spark cannot read the log.
    """
    wanted = list(messages)
    names = {name for message in wanted for name in (message.source, message.target)}
    keys = [(m.epoch, f"{m.source}->{m.target}", m.number) for m in wanted]
    _, channels, numbers = map(list, zip(*keys, strict=True)) if keys else ([], [], [])
    only = pc.field("channel").isin(channels) & pc.field("number").isin(numbers)
    rows = event_rows(pieces.filter(F.col("process").isin(*names)), only)
    schema = "epoch BIGINT, channel STRING, number BIGINT"
    found = rows.join(
        F.broadcast(pieces.sparkSession.createDataFrame(keys, schema)),
        ["epoch", "channel", "number"],
        "left_semi",
    )
    return verified_parquet.collected(found, "the event log")


@verified_parquet.spark_errors("the event log")
def vector_clock(pieces: DataFrame, epoch: int, process: str, event: int) -> dict[str, int]:
    """Return the vector clock of an event: how many events of each process happened before it,
    including itself (Mattern 1989). The messages need not have carried clocks.

    It follows the last message that was accepted before on each channel back to the event that sent
    it, and so on. A chain of messages need not reach a process twice, so there are no more rounds
    than processes. Events before the beginning of a log do not count.

    Raises:
        UsageError: there is no such event in the log.
        Damaged: a file of the log is not what was written.
        StoreError: Spark cannot read the log.
    """
    of_epoch = pieces.filter(F.col("epoch") == epoch)
    names = {row["process"] for row in of_epoch.select("process").distinct().collect()}
    if process not in names or not _is_there(of_epoch, process, event):
        raise UsageError(
            f"there is no event {process}#{event} in epoch {epoch} of the event log; it has the "
            f"processes {', '.join(sorted(names)) or 'none'}"
        )
    clock, reached = {process: event}, {process: event}
    while reached:
        sent = _senders(of_epoch, _accepted_last(of_epoch, reached))
        reached = {name: last for name, last in sent.items() if last > clock.get(name, 0)}
        clock |= reached
    return {name: clock.get(name, 0) for name in sorted({*names, *clock})}


def _is_there(pieces: DataFrame, process: str, event: int) -> bool:
    only = (pc.field("event") == event) & pc.field("snapshot").is_null()
    found = event_rows(pieces.filter(F.col("process") == process), only)
    return bool(found.limit(1).collect())


def _accepted_last(pieces: DataFrame, reached: Mapping[str, int]) -> list[LogMessage]:
    only = (pc.field("kind") == "accepted") & (pc.field("event") <= max(reached.values()))
    rows = event_rows(pieces.filter(F.col("process").isin(*reached)), only)
    limits = pieces.sparkSession.createDataFrame(
        list(reached.items()), "process STRING, last BIGINT"
    )
    last = (
        rows.join(F.broadcast(limits), "process")
        .filter("event <= last")
        .groupBy("epoch", "channel")
        .agg(F.max("number").alias("number"))
    )
    ends = [(row, row["channel"].split("->")) for row in last.collect()]
    return [
        LogMessage(row["epoch"], source, target, row["number"]) for row, (source, target) in ends
    ]


def _senders(pieces: DataFrame, messages: list[LogMessage]) -> dict[str, int]:
    if not messages:
        return {}
    sent = locate(pieces, messages).filter("kind = 'sent'")
    last = sent.groupBy("process").agg(F.max("event").alias("event"))
    return {row["process"]: row["event"] for row in last.collect()}


def marker_paths(rows: DataFrame) -> DataFrame:
    """Return the slowest path of the markers of each snapshot (`PATHS_SCHEMA`).

    It ends with the marker that arrived last, and follows back the marker that made each sender
    record its state, to the process that recorded without one: the initiator.

    Clocks of several machines may differ, and a hop between two of them by as much: `travelled_ms`
    can be negative. An error on one hop is compensated on the way back to the same machine.

    Args:
        rows: an event log, at least with the columns snapshot, process, kind, channel and at
            (``snapshot_stats.marker_steps``); other rows are ignored.
    """
    add_package(rows.sparkSession)
    steps = rows.where(F.col("snapshot").isNotNull()).select(
        "snapshot",
        "process",
        F.col("kind").cast("string").alias("kind"),
        F.split("channel", "->")[0].alias("source"),
        F.split("channel", "->")[1].alias("target"),
        F.unix_micros("at").alias("at"),
    )
    return steps.groupBy("snapshot").applyInArrow(_walk, from_arrow_schema(PATHS_SCHEMA))


def _walk(steps: pa.Table) -> pa.Table:
    times: dict[str, dict[Any, int]] = defaultdict(dict)
    columns = (steps.column(name).to_pylist() for name in _STEP_COLUMNS)
    for kind, process, source, target, at in zip(*columns, strict=True):
        times[kind][process if kind == RECORDED else (source, target)] = at
    recorded, sent, accepted = times[RECORDED], times[MARKER_SENT], times[MARKER_ACCEPTED]
    path = _slowest(recorded, accepted)
    began = recorded.get(path[0][0]) if path else None
    hops = [
        {
            "snapshot": steps.column("snapshot")[0].as_py(),
            "hop": number,
            "source": source,
            "target": target,
            "held_ms": _between_ms(recorded.get(source), sent.get((source, target))),
            "travelled_ms": _between_ms(sent.get((source, target)), accepted[source, target]),
            "elapsed_ms": _between_ms(began, accepted[source, target]),
        }
        for number, (source, target) in enumerate(path, 1)
    ]
    return pa.Table.from_pylist(hops, schema=PATHS_SCHEMA)


def _slowest(recorded: dict[str | None, int], accepted: dict[Channel, int]) -> list[Channel]:
    """Return the channels from a process that recorded without a marker to the last marker."""
    first: dict[str | None, Channel] = {}
    for channel in sorted(accepted, key=accepted.__getitem__):
        first.setdefault(channel[1], channel)
    if not accepted:
        return []
    path = [max(accepted, key=accepted.__getitem__)]
    walked: set[str | None] = set()
    # With clocks that differ, a way back could lead in a circle.
    while (process := path[0][0]) not in walked:
        walked.add(process)
        earlier = first.get(process)
        if earlier is None or accepted[earlier] > recorded.get(process, accepted[earlier]):
            break
        path.insert(0, earlier)
    return path


def _between_ms(first: int | None, then: int | None) -> float | None:
    return None if first is None or then is None else (then - first) / 1000
