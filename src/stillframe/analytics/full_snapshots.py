"""Full snapshots as DataFrames: Spark merges incremental ones with those that they are based on.

The files of keyed fields hold the changes since an earlier snapshot. Of each key the newest row in
the chain of its snapshot and process counts (``store.manifest``, ``store.tables``); as many keys
can be merged as Spark can sort.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_type

from stillframe import topology as fields
from stillframe.analytics import verified_parquet
from stillframe.analytics.manifests import Published, read_complete
from stillframe.errors import UsageError
from stillframe.model import ProcessId, SnapshotId
from stillframe.storage.location import Location
from stillframe.store.manifest import CHANNELS, MESSAGES, PROCESSES, keyed_file, links_of
from stillframe.store.parquet import IS_REMOVED, KEY, PROCESS, SNAPSHOT, identity_of
from stillframe.store.tables import (
    ARROW_TYPES,
    OWN_SCHEMAS,
    KeyedTable,
    keyed_tables,
    merged_columns,
)
from stillframe.topology import Description

TABLES = {"processes": PROCESSES, "channels": CHANNELS, "messages": MESSAGES}
"""Name of a table -> the file with its rows; those of keyed fields are called after them."""
CHANNELS_SCHEMA = pa.schema([field for field in OWN_SCHEMAS["channels"] if field.name != "first"])
_OWN_SCHEMAS = OWN_SCHEMAS | {"channels": CHANNELS_SCHEMA}
_KEYED_SCHEMA = pa.schema([(SNAPSHOT, pa.string()), (PROCESS, pa.string())])
_JSON_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}
_LINKS = pa.schema(
    [
        pa.field("wanted", pa.string()),  # the snapshot that is read
        pa.field("of", pa.string()),  # the process; null: all of them
        pa.field("link", pa.string()),  # a snapshot of its chain
        pa.field("place", pa.int32()),  # in the chain, the oldest first
    ]
)
Chains = Mapping[SnapshotId, Mapping[ProcessId, Sequence[SnapshotId]]]
"""The links of each snapshot and process, the oldest first."""


def table_schema(table: str, columns: Iterable[fields.Column]) -> pa.Schema:
    """Return the columns of a table, those of fields at the end."""
    own = _OWN_SCHEMAS.get(table, _KEYED_SCHEMA)
    return pa.schema([*own, *((column.name, ARROW_TYPES[column.kind]) for column in columns)])


def field_columns(description: Description) -> dict[str, tuple[fields.Column, ...]]:
    """Return the columns of each table that hold fields; of keyed ones the first is the key."""
    keyed = {t.name: description.keyed[t.kind][t.field] for t in keyed_tables(description)}
    return {
        "processes": merged_columns(description.states),
        "channels": (),
        "messages": merged_columns(description.messages),
        **{name: (fields.Column(KEY, one.key), *one.values) for name, one in keyed.items()},
    }


def columns_across(tables: Iterable[Iterable[fields.Column]]) -> tuple[fields.Column, ...]:
    """Return the columns of tables of several topologies, as ``merged_columns``; those that differ
    in case alone are one, spelled as in the last."""
    found = [tuple(columns) for columns in tables]
    fold = _folding([[column.name for column in columns] for columns in found])
    columns = [*itertools.chain.from_iterable(found)]
    spelled = {fold(column.name): column.name for column in columns}
    named = (fields.Column(spelled[fold(one.name)], one.kind) for one in columns)
    return merged_columns({"": tuple(named)})


def _folding(tables: Iterable[Collection[str]]) -> Callable[[str], str]:
    """Return what makes equal names equal: without case, unless that would make one of two names
    that a topology has, as 0.1.0 allowed."""
    is_unique = all(len({*map(str.casefold, names)}) == len(names) for names in tables)
    return str.casefold if is_unique else str


def rows_of(
    spark: SparkSession, published: Published, snapshots: Sequence[SnapshotId], table: str
) -> DataFrame:
    """Return the rows of processes, channels or messages in snapshots of one topology."""
    files = [published.file(snapshot, TABLES[table]) for snapshot in snapshots]
    columns = field_columns(published.description(snapshots[0]))[table]
    return verified_parquet.rows(spark, files, table_schema(table, columns))


def as_json(value: Column, kind: str) -> Column:
    """Return a value as JSON, None as ``null``: equal texts are equal, down to the sign of zero."""
    if kind == "json":
        return F.coalesce(value, F.lit("null"))
    if kind in ("bool", "int"):
        return F.coalesce(value.cast("string"), F.lit("null"))
    # What Spark writes as JSON is a list or an object; the brackets are taken off again.
    listed = F.to_json(F.array(value), _JSON_OPTIONS)
    return F.coalesce(listed.substr(F.lit(2), F.length(listed) - 2), F.lit("null"))


def as_object(columns: Iterable[tuple[fields.Column, Column]]) -> Column:
    """Return a JSON object with these fields."""
    members: list[Column] = []
    for field, value in columns:
        name = '"' + field.name + '":'
        members += [F.lit(("," if members else "") + name), as_json(value, field.kind)]
    return F.concat(F.lit("{"), *members, F.lit("}"))


class FullSnapshots:
    """Some snapshots of a store, each with its full state; all that they are based on exists.
    `is_chained`: any is incremental; `names` are those of all tables. Code that changed can have
    renamed a field by its case alone, which SQL ignores: the tables have the newest spelling."""

    def __init__(
        self, spark: SparkSession, published: Published, snapshots: Collection[SnapshotId]
    ) -> None:
        published.check_chains(snapshots)
        self._spark = spark
        self._published = published
        self._by_topology = published.by_topology(snapshots)
        described = {
            topology: field_columns(published.head.described[topology])
            for topology in self._by_topology
        }
        self._fold = _folding(described.values())
        self._columns = {
            topology: {self._fold(name): columns for name, columns in tables.items()}
            for topology, tables in described.items()
        }
        self.is_chained = any(published.manifests[snapshot].bases for snapshot in snapshots)
        names = itertools.chain.from_iterable(described.values())
        self.names = tuple({self._fold(name): name for name in names}.values())

    @property
    def keyed_names(self) -> tuple[str, ...]:
        """The names of the tables of keyed fields, such as ``Account_owners``."""
        return tuple(name for name in self.names if name not in TABLES)

    def has(self, name: str) -> bool:
        """Return whether there is such a table."""
        return any(self._fold(name) in tables for tables in self._columns.values())

    def columns(self, name: str) -> tuple[fields.Column, ...]:
        """Return the columns of a table that hold fields, in all topologies."""
        return columns_across(tables.get(self._fold(name), ()) for tables in self._columns.values())

    def column_of(self, name: str) -> Callable[[str], fields.Column]:
        """Return what finds the column of a field in a table, as any topology spells it."""
        columns = self.columns(name)
        fold = _folding([[column.name for column in columns]])
        known = {fold(column.name): column for column in columns}
        return lambda field: known[fold(field)]

    def table(self, name: str) -> DataFrame:
        """Return a row for each process, channel, message or key of each snapshot."""
        if not self.has(name):
            raise UsageError(f"there is no table {name!r}; there are {', '.join(self.names)}")
        wanted = self.columns(name)
        parts = []
        for topology, snapshots in self._by_topology.items():
            if name in TABLES:
                rows = rows_of(self._spark, self._published, snapshots, name)
            elif (table := self.keyed(topology, name)) is not None:
                rows = self.keyed_rows(topology, table)
            else:
                continue
            own = self._columns[topology][self._fold(name)]
            parts.append(align_schema(rows, name, own, wanted))
        return functools.reduce(DataFrame.unionByName, parts)

    def keyed(self, topology: str, name: str) -> KeyedTable | None:
        """Return the table of a keyed field in the topology with that hash, if it is there."""
        tables = keyed_tables(self._published.head.described[topology])
        return next((t for t in tables if self._fold(t.name) == self._fold(name)), None)

    def keyed_rows(
        self, topology: str, table: KeyedTable, *, only_changed: bool = False
    ) -> DataFrame:
        """Return the keys of a keyed field in the snapshots of one topology, with the columns as
        stored. With `only_changed` keys are left out that are only in links that all snapshots
        share: they are the same in all, and need not be sorted."""
        chains = self._chains(topology, table)
        every = [chain for of_one in chains.values() for chain in of_one.values()]
        links = dict.fromkeys(itertools.chain.from_iterable(every))
        common = _common(chains) if only_changed else set()
        rows = self._keyed_files(table, [link for link in links if link not in common])
        identity = identity_of(rows.columns)
        if common:
            changed = rows.select(PROCESS, identity).distinct()
            before = self._keyed_files(table, [link for link in links if link in common])
            rows = rows.unionByName(before.join(changed, [PROCESS, identity], "left_semi"))
        if any(len(chain) > 1 for chain in every):
            rows = _newest(self._spark, rows, chains, identity)
        return rows.where(~F.col(IS_REMOVED)).drop(IS_REMOVED)

    def _chains(self, topology: str, table: KeyedTable) -> Chains:
        manifests = self._published.manifests
        kinds = self._published.head.described[topology].processes
        processes = [process for process, kind in kinds.items() if kind == table.kind]
        return {
            snapshot: {process: links_of(manifests, snapshot, process) for process in processes}
            for snapshot in self._by_topology[topology]
        }

    def _keyed_files(self, table: KeyedTable, links: Collection[SnapshotId]) -> DataFrame:
        plain = [field for field in table.schema if field.name != PROCESS]
        files = [
            self._published.file(link, keyed_file(table.name, is_full=is_whole))
            for link in links
            for is_whole in [self._published.manifests[link].bases is None]
        ]
        return verified_parquet.rows(self._spark, files, pa.schema([*_KEYED_SCHEMA, *plain]))


def store_tables(spark: SparkSession, store_path: str | Location) -> dict[str, DataFrame]:
    """Return the tables of all snapshots of a store by name: ``processes``, ``messages``, and one
    for each keyed field, all with a column `_snapshot`, and ``channels``, with `snapshot`.

    Incremental snapshots have their full state. Every byte is verified when Spark reads it: run the
    DataFrames in ``spark_errors``. ``compacted_tables`` is faster for repeated queries.

    Raises:
        UsageError: there is no store, or no snapshot in it.
        Damaged: a manifest was changed, or something that a snapshot is based on is missing.
        StoreError: it cannot be read.
    """
    published = read_complete(store_path)
    full = FullSnapshots(spark, published, list(published.manifests))
    return {name: full.table(name) for name in full.names}


def align_schema(
    rows: DataFrame, table: str, own: Iterable[fields.Column], wanted: Iterable[fields.Column]
) -> DataFrame:
    """Return the rows of a table, whose fields are in the columns `own`, with those `wanted`; of
    another kind is a column where several classes meet."""
    own, wanted = tuple(own), tuple(wanted)
    fold = _folding([[column.name for column in columns] for columns in (own, wanted)])
    known = {fold(column.name): column for column in own}

    def value(column: fields.Column) -> Column:
        former = known.get(fold(column.name))
        if former is None:
            return F.lit(None).cast(from_arrow_type(ARROW_TYPES[column.kind]))
        found = rows[f"`{former.name}`"]
        if former.kind == column.kind:
            return found
        if column.kind == "json":
            return F.when(found.isNotNull(), as_json(found, former.kind))
        return found.cast("double")

    return rows.select(
        *_OWN_SCHEMAS.get(table, _KEYED_SCHEMA).names,
        *(value(column).alias(column.name) for column in wanted),
    )


def _common(chains: Chains) -> set[SnapshotId]:
    """Return the links that are in all chains of each process that has them in any."""
    by_process: dict[ProcessId, list[set[SnapshotId]]] = {}
    for of_snapshot in chains.values():
        for process, chain in of_snapshot.items():
            by_process.setdefault(process, []).append(set(chain))
    links = set[SnapshotId]().union(*itertools.chain.from_iterable(by_process.values()))
    for of_one in by_process.values():
        links -= set[SnapshotId]().union(*of_one) - of_one[0].intersection(*of_one)
    return links


def _newest(spark: SparkSession, rows: DataFrame, chains: Chains, identity: str) -> DataFrame:
    """Return for each snapshot the newest row of each key."""
    columns = [list(column) for column in zip(*_links(chains), strict=True)]
    links = spark.createDataFrame(pa.table(columns, schema=_LINKS))
    # Fields can have any name: in one column they clash with none here.
    rest = [name for name in rows.columns if name not in (*_KEYED_SCHEMA.names, identity)]
    packed = rows.select(*_KEYED_SCHEMA.names, identity, F.struct(*rest).alias("rest"))
    of_chain = packed.join(
        F.broadcast(links),
        (F.col(SNAPSHOT) == F.col("link"))
        & (F.col("of").isNull() | (F.col(PROCESS) == F.col("of"))),
    )
    newest = of_chain.groupBy("wanted", PROCESS, identity).agg(
        F.max_by("rest", "place").alias("rest")
    )
    unpacked = newest.select(F.col("wanted").alias(SNAPSHOT), PROCESS, identity, "rest.*")
    return unpacked.select([f"`{name}`" for name in rows.columns])


def _links(chains: Chains) -> Iterator[tuple[str, str | None, str, int]]:
    """Yield the rows of `_LINKS`; most often the chains of all processes are the same."""
    for snapshot, of_processes in chains.items():
        is_one = len(set(map(tuple, of_processes.values()))) == 1
        for process, chain in list(of_processes.items())[: 1 if is_one else None]:
            for place, link in enumerate(chain):
                yield str(snapshot), None if is_one else process, str(link), place
