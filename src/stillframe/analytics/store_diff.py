"""Compare two snapshots of a store: fields, keys, channels and messages, as DataFrames.

Values are compared as they were recorded. They are shown as JSON text; null means that there is no
value, and ``null`` a value that is None.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from stillframe import topology as fields
from stillframe.analytics.full_snapshots import FullSnapshots, as_json, as_object
from stillframe.analytics.manifests import Published, read_published
from stillframe.analytics.snapshot_stats import channel_counts
from stillframe.model import SnapshotId
from stillframe.storage.location import Location
from stillframe.store.parquet import (
    KEY,
    KIND,
    NUMBER,
    PROCESS,
    SNAPSHOT,
    SOURCE,
    TARGET,
    VALUE_ENCODED,
    identity_of,
)
from stillframe.topology import Description

KEYS_SCHEMA = "process STRING, field STRING, change STRING, key STRING, before STRING, after STRING"
_AS_TEXT = fields.KeyedColumns("json", "value", (fields.Column("value", "json"),))
_CHANNEL = ("source", "target")
_COUNTS = ("sent", "received", "message")


class Difference(msgspec.Struct, frozen=True):
    """The differences between two snapshots; equal values have no row.

    Attributes:
        fields: process, field, before, after. Keyed fields are in `keys`.
        keys: process, field, change (``added``, ``removed``, ``changed``), key, before, after.
        channels: source, target, and before and after `sent_count`, `received_count`,
            `message_count`; and `only_before`, `only_after`: how many messages are in transit in
            only one.
        messages: source, target, number, `side` (``before`` or ``after``), kind, message: those
            in transit in only one.
    """

    fields: DataFrame
    keys: DataFrame
    channels: DataFrame
    messages: DataFrame


def diff_store(
    spark: SparkSession,
    store_path: str | Location,
    before: SnapshotId | str,
    after: SnapshotId | str,
) -> Difference:
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
        _Side(name, str(one), published.manifests[one].topology, published.description(one))
        for name, one in (("before", before), ("after", after))
    )
    both = FullSnapshots(spark, published, dict.fromkeys((before, after)))
    messages = _messages(both, sides)
    counts = channel_counts(spark, published, (before, after))
    keys = [_keys_of(both, name, sides) for name in both.keyed_names]
    return Difference(
        _fields(both, sides),
        functools.reduce(DataFrame.unionByName, keys, spark.createDataFrame([], KEYS_SCHEMA)),
        _channels(counts, messages, sides),
        messages,
    )


def _plain(*names: str) -> list[Column]:
    """Return columns of the store under names without the prefix."""
    return [F.col(name).alias(name.removeprefix("_")) for name in names]


class _Side(NamedTuple):
    """One of the two snapshots, ``before`` or ``after``, and the topology that it was taken of."""

    side: str
    snapshot: str
    topology: str
    description: Description

    def holds(self, value: str) -> Column:
        """Return a value of this snapshot, null in the rows of the other."""
        return F.when(F.col("snapshot") == self.snapshot, F.col(value))


_Sides = tuple[_Side, ...]
_ColumnOf = Callable[[str], fields.Column]


def _differing(rows: DataFrame, place: Sequence[str], sides: _Sides) -> DataFrame:
    """Return the places whose `value` differs, with both; null where there is none."""
    values = [F.first(one.holds("value"), ignorenulls=True).alias(one.side) for one in sides]
    return rows.groupBy(*place).agg(*values).where(_differ("before", "after"))


def _fields(both: FullSnapshots, sides: _Sides) -> DataFrame:
    rows = both.table("processes")
    values = [_values(rows, side, both.column_of("processes")) for side in sides]
    return _differing(functools.reduce(DataFrame.union, values), ["process", "field"], sides)


def _values(rows: DataFrame, side: _Side, column_of: _ColumnOf) -> DataFrame:
    """Return snapshot, process, field, value as JSON, of the fields that a process's class has."""
    owners: dict[str, list[str]] = {}
    for kind, columns in side.description.states.items():
        for column in columns:
            if column.kind != fields.KEYED:
                owners.setdefault(column.name, []).append(kind)
    values = [
        F.struct(
            F.lit(name).alias("field"),
            F.when(
                F.col(KIND).isin(kinds_of), as_json(F.col(f"`{column.name}`"), column.kind)
            ).alias("value"),
        )
        for name, kinds_of in owners.items()
        for column in [column_of(name)]
    ]
    listed = F.array(*values).cast("array<struct<field: string, value: string>>")
    each = rows.where(F.col(SNAPSHOT) == side.snapshot).select(
        *_plain(SNAPSHOT, PROCESS), F.inline(listed)
    )
    return each.where("value IS NOT NULL")


def _messages(both: FullSnapshots, sides: _Sides) -> DataFrame:
    rows = both.table("messages")
    column_of = both.column_of("messages")
    place = [*_CHANNEL, "number"]
    contents = [_contents(rows, side, column_of) for side in sides]
    differing = _differing(functools.reduce(DataFrame.union, contents), place, sides)
    sides_of = [
        F.when(
            F.col(one.side).isNotNull(),
            F.struct(F.lit(one.side).alias("side"), f"{one.side}.kind", f"{one.side}.message"),
        )
        for one in sides
    ]
    return differing.select(*place, F.inline(F.array_compact(F.array(*sides_of))))


def _contents(rows: DataFrame, side: _Side, column_of: _ColumnOf) -> DataFrame:
    message: Column = F.lit("{}")
    for kind, columns in side.description.messages.items():
        values = [
            (fields.Column(column.name, known.kind), F.col(f"`{known.name}`"))
            for column in columns
            for known in [column_of(column.name)]
        ]
        message = F.when(F.col(KIND) == kind, as_object(values)).otherwise(message)
    value = F.struct(*_plain(KIND), message.alias("message")).alias("value")
    of_side = rows.where(F.col(SNAPSHOT) == side.snapshot)
    return of_side.select(*_plain(SNAPSHOT, SOURCE, TARGET, NUMBER), value)


def _channels(counts: DataFrame, messages: DataFrame, sides: _Sides) -> DataFrame:
    both = counts.groupBy(*_CHANNEL).agg(
        *(
            F.max(one.holds(f"{what}_count")).alias(f"{what}_count_{one.side}")
            for one in sides
            for what in _COUNTS
        )
    )
    only = messages.groupBy(*_CHANNEL).agg(
        *(F.count_if(F.col("side") == one.side).alias(f"only_{one.side}") for one in sides)
    )
    # A channel that one of them does not have, after a change of code, has carried nothing there.
    filled = both.join(only, list(_CHANNEL), "left").fillna(0)
    differing = [_differ(f"{what}_count_before", f"{what}_count_after") for what in _COUNTS]
    differing.append((F.col("only_before") + F.col("only_after")) > 0)
    return filled.where(functools.reduce(Column.__or__, differing))


def _keys_of(both: FullSnapshots, name: str, sides: _Sides) -> DataFrame:
    rows, field, columns = _keyed_rows(both, name, sides)
    identity = identity_of(rows.columns)
    value = F.struct(
        _compared(rows, columns).alias("compared"),
        F.struct(KEY, *(f"`{column.name}`" for column in columns.values)).alias("shown"),
    )
    packed = rows.select(*_plain(SNAPSHOT, PROCESS), identity, value.alias("value"))
    differing = _differing(packed, ["process", identity], sides)
    was, there = F.col("before").isNotNull(), F.col("after").isNotNull()
    keys = [as_json(F.col(f"{one.side}.shown.{KEY}"), columns.key) for one in sides]
    return differing.select(
        "process",
        F.lit(field).alias("field"),
        F.when(was & there, "changed").when(was, "removed").otherwise("added").alias("change"),
        F.when(was, keys[0]).otherwise(keys[1]).alias("key"),
        F.when(was, _value(F.col("before.shown"), columns)).alias("before"),
        F.when(there, _value(F.col("after.shown"), columns)).alias("after"),
    )


def _keyed_rows(
    both: FullSnapshots, name: str, sides: _Sides
) -> tuple[DataFrame, str, fields.KeyedColumns]:
    described = {side.topology: side.description for side in sides}
    found = [
        (topology, table, description.keyed[table.kind][table.field])
        for topology, description in described.items()
        if (table := both.keyed(topology, name)) is not None
    ]
    parts = [both.keyed_rows(*one[:2], only_changed=len(described) == 1) for one in found]
    columns = found[0][2]
    if any(one[2] != columns for one in found):
        # After a change of code the columns can differ: their values are compared as JSON.
        columns = _AS_TEXT
        parts = [
            rows.select(
                *(SNAPSHOT, PROCESS, as_json(F.col(KEY), own.key).alias(KEY)),
                _value(None, own).alias("value"),
            )
            for rows, (*_, own) in zip(parts, found, strict=True)
        ]
    return functools.reduce(DataFrame.unionByName, parts), found[0][1].field, columns


def _compared(rows: DataFrame, columns: fields.KeyedColumns) -> Column:
    if VALUE_ENCODED in rows.columns:
        return F.col(VALUE_ENCODED)
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
