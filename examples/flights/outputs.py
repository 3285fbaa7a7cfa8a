"""The results of a pipeline at a snapshot: the records of its channels and its states."""

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from examples.flights.flows import Books, Replay
from stillframe.pipeline import Pipeline
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.snapshot_manifest import Manifest, pinned_path, snapshot_path

CHANNELS = ("flights", "weather", "enriched", "late", "payments")
"""The channels compared record by record, in any order, because Spark may reorder flights."""

State = TypeVar("State")


@dataclass(frozen=True)
class Outputs:
    """All comparable results of a finished pipeline.

    `channels` holds the records of each channel, sorted; `totals` the last row of each carrier on
    the channel of that name, `state` the state of the query `carriers` for each.
    """

    channels: dict[str, pa.Table]
    totals: dict[str, dict[str, Any]]
    state: dict[str, tuple[int, ...]]
    replay: Replay
    books: Books

    def differences(self, other: "Outputs") -> list[str]:
        """Return the names of the results that differ."""
        found = [f"channel {n}" for n in CHANNELS if not self.channels[n].equals(other.channels[n])]
        names = ("totals", "state", "replay", "books")
        return found + [name for name in names if getattr(self, name) != getattr(other, name)]

    def disagreements(self) -> list[str]:
        """Return the contradictions: the same money is counted in four places."""
        paid: dict[str, int] = {}
        for payment in self.channels["payments"].to_pylist():
            paid[payment["carrier"]] = paid.get(payment["carrier"], 0) + payment["amount"]
        counted = {
            "the books": self.books.by_carrier,
            "the channel totals": {c: row["paid"] for c, row in self.totals.items() if row["paid"]},
            "the state of carriers": {c: row[-1] for c, row in self.state.items() if row[-1]},
        }
        return [name for name, amounts in counted.items() if amounts != paid]


def outputs_at(spark: SparkSession, pipeline: Pipeline, manifest: Manifest) -> Outputs:
    """Return the results of a pipeline at a snapshot of its current epoch."""
    barriers = {log: at for part in manifest.fragments for log, at in part.barriers.items()}
    tables = {name: records(pipeline, name, barriers[name]) for name in (*CHANNELS, "totals")}
    return Outputs(
        channels={
            name: tables[name].sort_by(
                [(column, "ascending") for column in tables[name].schema.names]
            )
            for name in CHANNELS
        },
        totals={row["carrier"]: row for row in tables["totals"].to_pylist()},
        state=_carriers(spark, pipeline, manifest),
        replay=service_state(manifest, "feed", Replay),
        books=service_state(manifest, "compensation", Books),
    )


def records(pipeline: Pipeline, channel: str, end: int | None = None) -> pa.Table:
    """Return the records of a channel up to the item `end`, or all records if it is None."""
    head = read_metadata(pipeline.path)
    log = head.dataflow.log(channel)
    reader = LogReader(pipeline.path, log, head.segments[channel])
    items = reader.entries(0, reader.tail(0) if end is None else end)
    return pa.concat_tables([log.arrow_schema.empty_table(), *map(reader.table, items)])


def service_state(manifest: Manifest, name: str, kind: type[State]) -> State:
    """Return the state of a service in a snapshot."""
    recorded = manifest.fragment(name).service
    assert recorded is not None
    return msgspec.msgpack.decode(recorded.encoded, type=kind)


def _carriers(
    spark: SparkSession, pipeline: Pipeline, manifest: Manifest
) -> dict[str, tuple[int, ...]]:
    """Return the state of the query `carriers` in a snapshot, read by Spark."""
    query = manifest.fragment("carriers").query
    assert query is not None
    checkpoint = pinned_path(snapshot_path(pipeline.path, manifest.snapshot), "carriers")
    frame = spark.read.format("statestore").option("batchId", query.batch).load(str(checkpoint))
    return {row.key.carrier: tuple(row.value) for row in frame.collect()}
