"""All observations of a store as DataFrames, for questions over time.

The driver reads the manifests, which are few: a collector keeps 1,000 observations by default.
Tasks read the tables, and leave out the column `encoded`: only Stillframe's own reader needs it.
"""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from stillframe.analytics import verified_parquet
from stillframe.errors import UsageError
from stillframe.storage.location import Location, locate
from stillframe.store.layout import OBSERVATIONS, has_observations
from stillframe.store.observation_tables import (
    CALLS,
    INSTANCES,
    NOT_AWAITED,
    OPTIONAL,
    SCHEMAS,
    STATES,
    UNRESOLVED,
    ended_amounts,
)
from stillframe.store.observations import ObservationManifest, ObservationReader

_TIME = pa.timestamp("us", tz="UTC")
_TEXTS = pa.list_(pa.string())
_AMOUNTS = pa.map_(pa.string(), pa.int64())
OBSERVATIONS_SCHEMA = pa.schema(
    [
        pa.field("observation", pa.int64()),
        pa.field("initiated_at", _TIME),
        pa.field("completed_at", _TIME),  # when the last fragment had arrived
        pa.field("took_s", pa.float64()),  # from one to the other
        pa.field("quality", pa.string()),  # exact, partial or not exact
        pa.field("is_exact", pa.bool_()),
        pa.field(
            "baseline", pa.int64()
        ),  # the first one with whose total that of this is comparable
        pa.field("baseline_why", pa.string()),  # why it is
        pa.field("gone", _TEXTS),  # the instances that have left without a goodbye
        pa.field("unknown_count", pa.int64()),  # earlier calls of unknown fate
        pa.field("partial", _TEXTS),  # why it does not show everything
        pa.field(
            "disconnected", _TEXTS
        ),  # the instances that were disconnected since the one before
        pa.field("instance_count", pa.int64()),
        pa.field("open_count", pa.int64()),  # calls that their callers wait for
        pa.field("unresolved_count", pa.int64()),
        pa.field("not_accepted", _AMOUNTS),  # of earlier unresolved calls
        pa.field("unknown", _AMOUNTS),
        pa.field("lost", _AMOUNTS),  # of earlier answers and messages of streams
        pa.field("created", _AMOUNTS),  # by earlier duplicates
        pa.field("ended", _AMOUNTS),  # of instances that have said goodbye, and of no later one
        pa.field("bytes", pa.int64()),  # of its files
    ]
)
_OF_MANIFEST = tuple(
    name for name in OBSERVATIONS_SCHEMA.names if name not in ("observation", "took_s", "bytes")
)
_TABLES = {"instances": INSTANCES, "states": STATES, "calls": CALLS, "unresolved": UNRESOLVED}
_MAPS = {
    "instances": ("held", "conserved", "lost"),
    "calls": ("amounts",),
    "unresolved": ("amounts", "brought"),
}
"""The columns of each table that hold amounts."""
_MAP = "MAP<STRING,BIGINT>"
_SUMMED = ("in_open_calls", "in_unresolved_calls", "lost", "doubled")
_KEPT = ("held", "in_states", "ended", "unknown")
_SECOND_US = 1_000_000


def observation_tables(spark: SparkSession, store_path: str | Location) -> dict[str, DataFrame]:
    """Return all observations of a store as tables, each with a column `observation`.

    Every byte is verified when Spark reads it: run the DataFrames in ``spark_errors``. Observations
    that are stored later are not included.

    Args:
        spark: the session; its executors see the directory under the same path, or have what a
            store in an object store needs.
        store_path: the directory or address of the observations; a collector may write to it.

    Returns:
        By name: `observations`, a row for each (`OBSERVATIONS_SCHEMA`); `instances`, `states`,
        `calls` and `unresolved`, with the columns of their files but for `encoded`, and amounts as
        maps from unit to number; and `amounts`, a row for each unit, with the columns of
        ``stillframe show``. `calls` has `open_s` too: for how long each call was open when the
        observation was initiated, in seconds, by the clocks of its caller and of the collector.

    Raises:
        UsageError: there is no store of observations, or nothing in it.
        Damaged: a manifest was changed.
        StoreError: the store cannot be read.
    """
    path = locate(store_path)
    if not has_observations(path):
        raise UsageError(
            f"{path} is not a store of observations",
            remedy="give the directory or address of the observations; for snapshots use "
            "store_tables",
        )
    manifests, damages = ObservationReader(path).listing()
    for damage in damages.values():
        raise damage
    if not manifests:
        raise UsageError(f"the store {path} holds no observation yet")
    tables = {name: _rows(spark, path.absolute(), manifests, name) for name in _TABLES}
    observations = spark.createDataFrame(
        pa.Table.from_pylist([_row(one) for one in manifests], schema=OBSERVATIONS_SCHEMA)
    )
    tables["calls"] = _with_duration(tables["calls"], observations)
    amounts = _amounts(observations, tables)
    return {"observations": observations, **tables, "amounts": amounts}


def _row(manifest: ObservationManifest) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(manifest, name) for name in _OF_MANIFEST}
    for name in ("initiated_at", "completed_at"):
        row[name] = round(getattr(manifest, name) * _SECOND_US)
    for name in ("not_accepted", "unknown", "lost", "created"):
        row[name] = list(getattr(manifest, name).items())
    return row | {
        "ended": list(ended_amounts(manifest.ended).items()),
        "observation": manifest.number,
        "took_s": manifest.completed_at - manifest.initiated_at,
        "bytes": manifest.byte_count,
    }


def _rows(
    spark: SparkSession, path: Location, manifests: Sequence[ObservationManifest], table: str
) -> DataFrame:
    """Return the rows of a table of all observations, with amounts as maps."""
    name = _TABLES[table]
    files: list[verified_parquet.File] = [
        (None, str(path / OBSERVATIONS / str(one.number) / name), record.bytes, record.hash, None)
        for one in manifests
        for record in one.files
        if record.name == name
    ]
    schema = pa.schema([field for field in SCHEMAS[name] if field.name != "encoded"])
    rows = verified_parquet.rows(spark, files, schema, OPTIONAL)
    maps = {column: _map(column) for column in _MAPS.get(table, ())}
    return rows.withColumns(maps) if maps else rows


def _map(column: str) -> Column:
    """Return a JSON object of amounts as a map. A number that does not fit stops the query."""
    return F.from_json(F.col(column), _MAP, {"mode": "FAILFAST"})


def _with_duration(calls: DataFrame, observations: DataFrame) -> DataFrame:
    times = observations.select(
        "observation", (F.unix_micros("initiated_at") / _SECOND_US).alias("_initiated_at")
    )
    joined = calls.join(F.broadcast(times), "observation")
    open_s = F.when(F.col("began_at") > 0, F.col("_initiated_at") - F.col("began_at"))
    return joined.withColumn("open_s", open_s).drop("_initiated_at")


def _amounts(observations: DataFrame, tables: dict[str, DataFrame]) -> DataFrame:
    """Return where the amounts of each unit are, as ``observation_tables.amounts_of`` does."""
    is_other = F.col("kind") != NOT_AWAITED  # those are in the table of calls
    parts = [
        _placed(tables["instances"], in_states="conserved", held="held", lost="lost"),
        _placed(
            tables["calls"].withColumns(
                {
                    "awaited": F.expr("if(is_awaited, amounts, NULL)"),
                    "unresolved": F.expr("if(is_awaited, NULL, amounts)"),
                }
            ),
            in_open_calls="awaited",
            in_unresolved_calls="unresolved",
        ),
        _placed(
            tables["unresolved"].where(is_other), in_unresolved_calls="amounts", doubled="brought"
        ),
        _placed(observations, lost="lost", doubled="created", unknown="unknown", ended="ended"),
        _placed(observations, lost="not_accepted"),
    ]
    placed = parts[0]
    for part in parts[1:]:
        placed = placed.unionAll(part)
    sums = [
        F.sum(F.when(F.col("place") == name, F.col("amount")).otherwise(0)).alias(name)
        for name in (*_SUMMED, *_KEPT)
    ]
    outside = F.expr("in_open_calls + in_unresolved_calls + lost - doubled")
    found = placed.groupBy("observation", "unit").agg(*sums).withColumn("outside_states", outside)
    total = F.expr("outside_states + held + in_states + ended")
    return found.select(
        "observation", "unit", *_SUMMED, "outside_states", *_KEPT, total.alias("total")
    )


def _placed(rows: DataFrame, **places: str) -> DataFrame:
    """Return observation, place, unit and amount of columns of amounts, by their places."""
    each = [
        F.struct(F.lit(place).alias("place"), F.col(column).alias("amounts"))
        for place, column in places.items()
    ]
    lists = rows.select("observation", F.explode(F.array(*each)).alias("each"))
    return lists.select(
        "observation", F.col("each.place"), F.explode("each.amounts").alias("unit", "amount")
    )
