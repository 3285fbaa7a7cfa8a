"""``stillframe spark history``: how the snapshots of a store went."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from stillframe.analytics.manifests import read_published
from stillframe.cli import output, quantities, tasks
from stillframe.cli.verdict import EXIT_NO
from stillframe.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_COUNT_MAX = 20
"""So many snapshots and channels are shown: the newest, and the busiest; JSON has all."""
PATH_COUNT_MAX = 5
"""So many ways of markers are shown, the slowest."""

COLUMNS = (
    *("snapshot", "initiated", "epoch", "paused for", "encoded in", "waited", "published in"),
    *("size", "in transit", "chain", "savepoint"),
)
Fields = dict[str, Any]


class Found(msgspec.Struct, frozen=True):
    """What Spark found, as rows; `in_transit` without the channels on which nothing was."""

    snapshots: list[Fields]
    spread: list[Fields]
    channels: list[Fields]
    in_transit: list[Fields]
    marker_paths: list[Fields] | None


def show_history(path: Path, log: Path | None, *, where: str, is_json: bool) -> None:
    """Write how the snapshots of the store at `path` went, and the ways of markers in `log`.

    Raises:
        typer.Exit: with 1; a snapshot is left out, because its manifest is damaged.
        Unavailable: PySpark or Java is missing.
        UsageError: there is no store, no snapshot in it, or no event log.
        StoreError: something cannot be read.
    """
    published = read_published(path)
    if published.is_empty:
        raise UsageError(f"the store {path} holds no snapshot yet: there is no history of any")
    with tasks.session(where, "reading the history") as spark:
        found = _find(spark, path, published, log)
    damages = {str(snapshot): why for snapshot, why in published.damages.items()}
    if is_json:
        output.put_json({"store": path, "damages": damages} | msgspec.structs.asdict(found))
    else:
        _put(found)
    if damages:
        output.say(*(f"no: snapshot {name} is left out: {why}" for name, why in damages.items()))
        raise typer.Exit(EXIT_NO)


def _find(spark: "SparkSession", path: Path, published: Any, log: Path | None) -> Found:
    from stillframe.analytics import log_events, snapshot_stats, verified_parquet  # noqa: PLC0415

    with verified_parquet.spark_errors(path):
        snapshots = snapshot_stats.snapshots(spark, published)
        channels = snapshot_stats.channel_history(
            snapshot_stats.channel_counts(spark, published), snapshots
        ).persist()
        try:
            busy = channels.where("message_count > 0").orderBy("sequence", "source", "target")
            found = Found(
                _rows(snapshots),
                _rows(snapshot_stats.spread(snapshots)),
                _rows(snapshot_stats.channel_spread(channels)),
                _rows(busy.select("snapshot", "source", "target", "message_count")),
                None,
            )
        finally:
            channels.unpersist()
    if log is None:
        return found
    with verified_parquet.spark_errors(log):
        paths = log_events.marker_paths(snapshot_stats.marker_steps(spark, log))
        hops = _rows(paths.orderBy("snapshot", "hop"))
    return msgspec.structs.replace(found, marker_paths=hops)


def _rows(frame: "DataFrame") -> list[Fields]:
    return [
        {name: tasks.with_zone(value) for name, value in row.asDict().items()}
        for row in frame.collect()
    ]


def _put(found: Found) -> None:
    newest = found.snapshots[-ROW_COUNT_MAX:]
    output.put_table("", COLUMNS, map(_snapshot_row, newest), texts=2)
    if len(found.snapshots) > len(newest):
        output.say(f"and {len(found.snapshots) - len(newest):,} older ones (--json has all)")
    output.put_table(
        f"over {quantities.count(len(found.snapshots), 'snapshot')}",
        ("", "median", "90 %", "most", "in"),
        (row for row in map(_spread_row, _ordered(found.spread))),
    )
    output.put_table(
        "messages in transit",
        ("channel", "median", "90 %", "most", "in"),
        (
            (
                f"{row['source']}->{row['target']}",
                *(f"{row[name]:,.0f}" for name in ("median", "p90", "max")),
                row["snapshot"],
            )
            for row in found.channels[:ROW_COUNT_MAX]
        ),
    )
    if len(found.channels) > ROW_COUNT_MAX:
        output.say(f"and {len(found.channels) - ROW_COUNT_MAX:,} less busy channels")
    if found.marker_paths is not None:
        _put_paths(found.marker_paths)


def _snapshot_row(row: Fields) -> tuple[str, ...]:
    durations = ("pause_s", "capture_s", "waiting_s", "publishing_s")
    return (
        row["snapshot"],
        quantities.moment(row["initiated_at"].timestamp()),
        str(row["epoch"]),
        *(quantities.duration(row[name]) for name in durations),
        quantities.size(row["bytes"]),
        f"{row['message_count']:,}",
        str(row["chain_length"]) if row["bases"] else "",
        ", ".join(row["savepoints"]),
    )


_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "pause_s": ("paused for", quantities.duration),
    "capture_s": ("encoded in", quantities.duration),
    "waiting_s": ("waited", quantities.duration),
    "publishing_s": ("published in", quantities.duration),
    "total_s": ("took", quantities.duration),
    "bytes": ("size", lambda value: quantities.size(round(value))),
    "message_count": ("in transit", lambda value: f"{value:,.0f}"),
    "chain_length": ("chain", lambda value: f"{value:,.0f}"),
}


def _ordered(spread: Iterable[Fields]) -> list[Fields]:
    order = list(_FIGURES)
    return sorted(spread, key=lambda row: order.index(row["figure"]))


def _spread_row(row: Fields) -> tuple[str, ...]:
    name, shown = _FIGURES[row["figure"]]
    return (name, *(shown(row[value]) for value in ("median", "p90", "max")), row["snapshot"])


def _put_paths(hops: list[Fields]) -> None:
    paths: dict[str, list[Fields]] = {}
    for hop in hops:
        paths.setdefault(hop["snapshot"], []).append(hop)
    slowest = sorted(paths.values(), key=lambda path: -(path[-1]["elapsed_ms"] or 0.0))
    output.put_table(
        "the slowest ways of markers, to the last that arrived",
        ("snapshot", "hop", "held for", "travelled"),
        (
            (
                hop["snapshot"],
                f"{hop['source']}->{hop['target']}",
                *(_milliseconds(hop[name]) for name in ("held_ms", "travelled_ms")),
            )
            for path in slowest[:PATH_COUNT_MAX]
            for hop in path
        ),
        texts=2,
    )
    output.say("a hop between two machines is wrong by as much as their clocks differ")


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f} ms"
