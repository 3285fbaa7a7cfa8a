"""Compare two snapshots of a store: fields, keys, channels and messages, as DataFrames.

Values are compared as they were recorded. They are shown as JSON text; null means that there is no
value, and ``null`` a value that is None.
"""

import functools
from pathlib import Path
from typing import NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from stillframe import topology as fields
from stillframe.analytics.full_snapshots import FullSnapshots, as_json, as_object
from stillframe.analytics.manifests import Published, read_published
from stillframe.analytics.snapshot_stats import channel_counts
from stillframe.model import SnapshotId
from stillframe.topology import Description

KEYS_SCHEMA = "process STRING, field STRING, change STRING, key STRING, before STRING, after STRING"
_AS_TEXT = fields.KeyedColumns("json", "value", (fields.Column("value", "json"),))
_CHANNEL = ("source", "target")
_COUNTS = ("sent", "received", "message")


class Difference(msgspec.Struct, frozen=True):
    """The differences between two snapshots; what is the same in both has no row.

    Attributes:
        fields: process, field, before, after. Keyed fields are in `keys`.
        keys: process, field, change (``added``, ``removed``, ``changed``), key, before, after.
        channels: source, target, and before and after `sent_count`, `received_count`,
            `message_count`; and `only_before`, `only_after`: how many messages only one caught.
        messages: source, target, number, `caught` (``before`` or ``after``), kind, message: those
            that only one caught.
    """

    fields: DataFrame
    keys: DataFrame
    channels: DataFrame
    messages: DataFrame


def diff_store(spark: SparkSession, store_path: Path, before: str, after: str) -> Difference:
    """Compare two snapshots of a store; nothing is read before an action.

    Args:
        spark: the session.
        store_path: the directory of the store.
        before: an id or a savepoint's name.
        after: another one.

    Raises:
        UsageError: there is no such store or snapshot.
        Damaged: something that one of them is based on is missing or damaged.
        StoreError: the store cannot be read.
    """
    published = read_published(store_path)
    return difference(spark, published, published.find(before), published.find(after))


def difference(
    spark: SparkSession, published: Published, before: SnapshotId, after: SnapshotId
) -> Difference:
    """Return the difference of two snapshots of a store whose manifests were read."""
    sides = tuple(
        _Side(str(one), published.manifests[one].topology, published.description(one))
        for one in (before, after)
    )
    both = FullSnapshots(spark, published, dict.fromkeys((before, after)))
    messages = _messages(both, *sides)
    counts = channel_counts(spark, published, (before, after))
    return Difference(
        _fields(both, *sides),
        _keys(spark, both, *sides),
        _channels(counts, messages, before, after),
        messages,
    )


class _Side(NamedTuple):
    """One of the two snapshots, the hash of its topology, and what that describes."""

    name: str
    topology: str
    description: Description

    def of(self, rows: DataFrame) -> DataFrame:
        """Return the rows of this snapshot, without its name."""
        return rows.where(F.col("snapshot") == self.name).drop("snapshot")


def _fields(both: FullSnapshots, before: _Side, after: _Side) -> DataFrame:
    kinds = {column.name: column.kind for column in both.columns("processes")}
    rows = both.table("processes")
    found = [_values(side.of(rows), side.description, kinds) for side in (before, after)]
    old, new = (
        values.withColumnRenamed("value", name)
        for values, name in zip(found, ("before", "after"), strict=True)
    )
    return old.join(new, ["process", "field"], "full_outer").where(_differ("before", "after"))


def _values(rows: DataFrame, description: Description, kinds: dict[str, str]) -> DataFrame:
    """Return process, field, value as JSON; only fields that the class of a process has."""
    owners: dict[str, list[str]] = {}
    for kind, columns in description.states.items():
        for column in columns:
            if column.kind != fields.KEYED:
                owners.setdefault(column.name, []).append(kind)
    values = [
        F.struct(
            F.lit(name).alias("field"),
            F.when(F.col("kind").isin(kinds_of), as_json(F.col(f"`{name}`"), kinds[name])).alias(
                "value"
            ),
        )
        for name, kinds_of in owners.items()
    ]
    if not values:
        return rows.select("process", F.lit("").alias("field"), F.lit("").alias("value")).limit(0)
    each = rows.select("process", F.explode(F.array(*values)).alias("one"))
    return each.select("process", "one.field", "one.value").where("value IS NOT NULL")


def _messages(both: FullSnapshots, before: _Side, after: _Side) -> DataFrame:
    kinds = {column.name: column.kind for column in both.columns("messages")}
    rows = both.table("messages")
    found = [_contents(side.of(rows), side.description, kinds) for side in (before, after)]
    place = [*_CHANNEL, "number"]
    old, new = (
        contents.select(*place, F.struct("kind", "message").alias(name))
        for contents, name in zip(found, ("before", "after"), strict=True)
    )
    differing = old.join(new, place, "full_outer").where(_differ("before", "after"))
    sides = F.array(
        *(
            F.when(
                F.col(name).isNotNull(),
                F.struct(F.lit(name).alias("caught"), f"{name}.kind", f"{name}.message"),
            )
            for name in ("before", "after")
        )
    )
    each = differing.select(*place, F.explode(F.array_compact(sides)).alias("one"))
    return each.select(*place, "one.caught", "one.kind", "one.message")


def _contents(rows: DataFrame, description: Description, kinds: dict[str, str]) -> DataFrame:
    message: Column = F.lit("{}")
    for kind, columns in description.messages.items():
        values = [
            (fields.Column(column.name, kinds[column.name]), F.col(f"`{column.name}`"))
            for column in columns
        ]
        message = F.when(F.col("kind") == kind, as_object(values)).otherwise(message)
    return rows.select(*_CHANNEL, "number", "kind", message.alias("message"))


def _channels(
    counts: DataFrame, messages: DataFrame, before: SnapshotId, after: SnapshotId
) -> DataFrame:
    sides = [
        counts.where(F.col("snapshot") == str(snapshot)).select(
            *_CHANNEL, *(F.col(f"{what}_count").alias(f"{what}_count_{name}") for what in _COUNTS)
        )
        for snapshot, name in ((before, "before"), (after, "after"))
    ]
    only = messages.groupBy(*_CHANNEL).agg(
        *(F.count_if(F.col("caught") == name).alias(f"only_{name}") for name in ("before", "after"))
    )
    joined = (
        sides[0].join(sides[1], list(_CHANNEL), "full_outer").join(only, list(_CHANNEL), "left")
    )
    # A channel that one of them does not have, after a change of code, has carried nothing there.
    filled = joined.fillna(0)
    differing = [_differ(f"{what}_count_before", f"{what}_count_after") for what in _COUNTS]
    differing.append((F.col("only_before") + F.col("only_after")) > 0)
    return filled.where(functools.reduce(Column.__or__, differing))


def _keys(spark: SparkSession, both: FullSnapshots, before: _Side, after: _Side) -> DataFrame:
    found = [_keys_of(both, name, before, after) for name in both.keyed_names]
    return functools.reduce(DataFrame.unionByName, found, spark.createDataFrame([], KEYS_SCHEMA))


def _keys_of(both: FullSnapshots, name: str, before: _Side, after: _Side) -> DataFrame:
    rows, field, columns = _keyed_rows(both, name, before, after)
    identity = "key_encoded" if "key_encoded" in rows.columns else "key"
    row = F.struct(
        _compared(rows, columns).alias("compared"),
        F.struct("key", *(f"`{column.name}`" for column in columns.values)).alias("shown"),
    )
    held = [
        F.first(F.when(F.col("snapshot") == side.name, row), ignorenulls=True).alias(name)
        for side, name in ((before, "before"), (after, "after"))
    ]
    was, there = F.col("before").isNotNull(), F.col("after").isNotNull()
    differing = (
        rows.groupBy("process", F.col(identity).alias("identity"))
        .agg(*held)
        .where(~(was & there & F.col("before.compared").eqNullSafe(F.col("after.compared"))))
    )
    keys = [as_json(F.col(f"{name}.shown.key"), columns.key) for name in ("before", "after")]
    return differing.select(
        "process",
        F.lit(field).alias("field"),
        F.when(was & there, "changed").when(was, "removed").otherwise("added").alias("change"),
        F.when(was, keys[0]).otherwise(keys[1]).alias("key"),
        F.when(was, _value(F.col("before.shown"), columns)).alias("before"),
        F.when(there, _value(F.col("after.shown"), columns)).alias("after"),
    )


def _keyed_rows(
    both: FullSnapshots, name: str, before: _Side, after: _Side
) -> tuple[DataFrame, str, fields.KeyedColumns]:
    found = [
        (topology, table, description.keyed[table.kind][table.field])
        for topology, description in {
            side.topology: side.description for side in (before, after)
        }.items()
        if (table := both.keyed(topology, name)) is not None
    ]
    is_same = before.topology == after.topology
    parts = [both.keyed_rows(*one[:2], only_changed=is_same) for one in found]
    columns = found[0][2]
    if any(one[2] != columns for one in found):
        # After a change of code the columns can differ: their values are compared as JSON.
        columns = _AS_TEXT
        parts = [
            rows.select(
                *("snapshot", "process", as_json(F.col("key"), own.key).alias("key")),
                _value(None, own).alias("value"),
            )
            for rows, (*_, own) in zip(parts, found, strict=True)
        ]
    return functools.reduce(DataFrame.unionByName, parts), found[0][1].field, columns


def _compared(rows: DataFrame, columns: fields.KeyedColumns) -> Column:
    if "value_encoded" in rows.columns:
        return F.col("value_encoded")
    kind = columns.values[0].kind
    # 0.0 and -0.0 are equal, and not the same.
    return as_json(F.col("value"), kind) if kind == "float" else F.col("value")


def _value(row: Column | None, columns: fields.KeyedColumns) -> Column:
    """Return a value as JSON, out of a struct of its columns or, if that is None, of the row."""
    values = [
        (column, F.col(f"`{column.name}`") if row is None else row.getField(column.name))
        for column in columns.values
    ]
    if columns.layout == "value":
        return as_json(values[0][1], columns.values[0].kind)
    return as_object(values)


def _differ(one: str, other: str) -> Column:
    return ~F.col(one).eqNullSafe(F.col(other))
