"""The way that the markers of a snapshot took, from its initiator to the last one that arrived.

Executors of a cluster run the walk: it needs no more than Arrow.
"""

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from stillframe.eventlog.schema import MARKER_ACCEPTED, MARKER_SENT, RECORDED
from stillframe.spark.executor_package import add_package

PATHS_SCHEMA = (
    "snapshot STRING, "
    "hop BIGINT, "  # from 1, at the process that recorded without a marker
    "source STRING, "  # of the channel that the marker went along
    "target STRING, "
    # Until the source had recorded and sent the marker, from when the marker came because of which
    # it recorded, or from the request: by one clock.
    "held_ms DOUBLE, "
    "travelled_ms DOUBLE, "  # from there until the target accepted it: by the clocks of both
    "elapsed_ms DOUBLE"  # from the first recording until then: by the clocks of both ends
)
_HOPS_SCHEMA = pa.schema(
    [
        *(pa.field("snapshot", pa.string()), pa.field("hop", pa.int64())),
        *(pa.field("source", pa.string()), pa.field("target", pa.string())),
        *(pa.field(name, pa.float64()) for name in ("held_ms", "travelled_ms", "elapsed_ms")),
    ]
)
_STEP_COLUMNS = ("kind", "process", "source", "target", "at")

Channel = tuple[str | None, str | None]


def marker_paths(rows: DataFrame) -> DataFrame:
    """Return the slowest path of the markers of each snapshot (`PATHS_SCHEMA`).

    It ends with the marker that arrived last. Where that came from, the process had recorded
    because of a marker itself, and so on back to one that recorded without: the initiator.

    Clocks of several machines may differ, and a hop between two of them by as much: `travelled_ms`
    can be less than 0. What is wrong on one hop is made good on the way back to the same machine.

    Args:
        rows: an event log, at least with the columns snapshot, process, kind, channel and at
            (``snapshot_stats.marker_steps``); rows that are no step of a snapshot are passed over.
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
    return steps.groupBy("snapshot").applyInArrow(_walk, PATHS_SCHEMA)


def _walk(steps: pa.Table) -> pa.Table:
    """Return the hops of one snapshot."""
    recorded: dict[str | None, int] = {}
    sent: dict[Channel, int] = {}
    accepted: dict[Channel, int] = {}
    columns = (steps.column(name).to_pylist() for name in _STEP_COLUMNS)
    for kind, process, source, target, at in zip(*columns, strict=True):
        if kind == RECORDED:
            recorded[process] = at
        elif kind == MARKER_SENT:
            sent[source, target] = at
        elif kind == MARKER_ACCEPTED:
            accepted[source, target] = at
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
    return pa.Table.from_pylist(hops, schema=_HOPS_SCHEMA)


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
