"""Full snapshots as DataFrames: Spark merges incremental ones with those that they are based on.

The files of keyed fields hold the changes since an earlier snapshot. Of each key the newest row in
the chain of its snapshot and process counts (``store.manifest``, ``store.tables``); as many keys
can be merged as Spark can sort.
"""

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_schema

from stillframe import topology as fields
from stillframe.analytics import verified_parquet
from stillframe.analytics.manifests import Published, read_complete
from stillframe.errors import UsageError
from stillframe.model import ProcessId, SnapshotId
from stillframe.store.manifest import CHANNELS, MESSAGES, PROCESSES, keyed_file, links_of
from stillframe.store.tables import ARROW_TYPES, KeyedTable, merged_columns
from stillframe.topology import Description

PROCESSES_SCHEMA = (
    "snapshot STRING, "  # P1-17
    "process STRING, "  # which process
    "kind STRING, "  # its class
    "encoded BINARY"  # its state as a MessagePack map; the fields follow as columns
)
CHANNELS_SCHEMA = (
    "snapshot STRING, "
    "source STRING, "  # the process that sends
    "target STRING, "  # the process that receives
    "sent_count BIGINT, "  # at the cut of the source
    "received_count BIGINT, "  # at the cut of the target
    "message_count BIGINT, "  # how many were on the channel
    "encoded ARRAY<STRUCT<first: BIGINT, count: BIGINT, encoded: BINARY>>"  # as they travelled
)
MESSAGES_SCHEMA = (
    "snapshot STRING, "
    "source STRING, "
    "target STRING, "
    "number BIGINT, "  # of the message on its channel, from 1
    "kind STRING"  # its class; the fields follow as columns
)
SQL_TYPES = {
    "bool": "BOOLEAN",
    "int": "BIGINT",
    "float": "DOUBLE",
    "text": "STRING",
    "bytes": "BINARY",
    "time": "TIMESTAMP",
    "json": "STRING",
}
"""Kind of column (``Column.kind``) -> its type in Spark."""
_JSON_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}
TABLES = {"processes": PROCESSES, "channels": CHANNELS, "messages": MESSAGES}
"""Name of a table -> the file with its rows; those of keyed fields are called after them."""
_OWN_COLUMNS = {
    "processes": ("snapshot", "process", "kind", "encoded"),
    "messages": ("snapshot", "source", "target", "number", "kind"),
}
_KEYED_COLUMNS = ("snapshot", "process")
_LINKS = pa.schema(
    [
        pa.field("wanted", pa.string()),  # the snapshot that is read
        pa.field("of", pa.string()),  # the process; null: all of them
        pa.field("link", pa.string()),  # a snapshot of its chain
        pa.field("place", pa.int32()),  # in the chain, the oldest first
    ]
)
Chains = Mapping[tuple[SnapshotId, ProcessId], Sequence[SnapshotId]]


def processes_schema(description: Description) -> str:
    """Return the columns of the states of a system."""
    return PROCESSES_SCHEMA + field_schema(merged_columns(description.states))


def messages_schema(description: Description) -> str:
    """Return the columns of the messages of a system that a snapshot caught on channels."""
    return MESSAGES_SCHEMA + field_schema(merged_columns(description.messages))


def field_schema(columns: Iterable[fields.Column]) -> str:
    """Return the columns of fields, to append to a schema."""
    return "".join(f", `{column.name}` {SQL_TYPES[column.kind]}" for column in columns)


def as_json(value: Column, kind: str) -> Column:
    """Return a value as JSON text, None as ``null``: equal texts are equal, down to the sign of
    zero."""
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


def converted(value: Column, kind: str, wanted: str) -> Column:
    """Return a value as a column of another kind holds it, one where several classes meet."""
    if kind == wanted:
        return value
    if wanted == "json":
        return F.when(value.isNotNull(), as_json(value, kind))
    return value.cast("double")


class FullSnapshots:
    """Some snapshots of a store, each with its full state; all that they are based on exists."""

    def __init__(
        self, spark: SparkSession, published: Published, snapshots: Collection[SnapshotId]
    ) -> None:
        published.check_chains(snapshots)
        self._spark = spark
        self._published = published
        self._by_topology: dict[str, list[SnapshotId]] = {}
        for snapshot in snapshots:
            topology = published.manifests[snapshot].topology
            self._by_topology.setdefault(topology, []).append(snapshot)

    @property
    def keyed_names(self) -> tuple[str, ...]:
        """The names of the tables of keyed fields, such as ``Account_owners``."""
        tables = (
            self._published.topologies.tables(topology).keyed for topology in self._by_topology
        )
        return tuple(dict.fromkeys(table.name for some in tables for table in some))

    @property
    def is_chained(self) -> bool:
        """Whether any of the snapshots is incremental."""
        manifests = self._published.manifests
        return any(manifests[s].bases for some in self._by_topology.values() for s in some)

    def columns(self, name: str) -> tuple[fields.Column, ...]:
        """Return the columns of a table that hold fields; those of a keyed field begin with
        `key`."""
        return merged_columns(
            {topology: self._columns_of(topology, name) for topology in self._by_topology}
        )

    def table(self, name: str) -> DataFrame:
        """Return a row for each process, channel, message or key of each snapshot, as
        ``Store.tables``."""
        if name == "channels":
            every = [snapshot for some in self._by_topology.values() for snapshot in some]
            return self._rows(CHANNELS, every, CHANNELS_SCHEMA)
        if name not in (*TABLES, *self.keyed_names):
            raise UsageError(
                f"there is no table {name!r}; there are {', '.join((*TABLES, *self.keyed_names))}"
            )
        wanted = self.columns(name)
        parts = [
            align_schema(
                self._of_topology(name, topology), name, self._columns_of(topology, name), wanted
            )
            for topology in self._by_topology
            if name in TABLES or self.keyed(topology, name) is not None
        ]
        return functools.reduce(DataFrame.unionByName, parts)

    def keyed(self, topology: str, name: str) -> KeyedTable | None:
        """Return the table of a keyed field in the topology with that hash, if it is there."""
        tables = self._published.topologies.tables(topology).keyed
        return next((table for table in tables if table.name == name), None)

    def keyed_rows(
        self, topology: str, table: KeyedTable, *, only_changed: bool = False
    ) -> DataFrame:
        """Return the keys of a keyed field in the snapshots of one topology, with the columns as
        stored. With `only_changed` keys are left out that are only in links that all snapshots
        share: they are the same in all, and need not be sorted."""
        chains = self._chains(topology, table)
        links = dict.fromkeys(link for chain in chains.values() for link in chain)
        common = _common(chains) if only_changed else set()
        rows = self._keyed_files(table, [link for link in links if link not in common])
        identity = "key_encoded" if "key_encoded" in rows.columns else "key"
        if common:
            changed = rows.select("process", identity).distinct()
            before = self._keyed_files(table, [link for link in links if link in common])
            rows = rows.unionByName(before.join(changed, ["process", identity], "left_semi"))
        if any(len(chain) > 1 for chain in chains.values()):
            rows = _newest(self._spark, rows, chains, identity)
        return rows.where("NOT is_removed").drop("is_removed")

    def _chains(self, topology: str, table: KeyedTable) -> Chains:
        manifests = self._published.manifests
        described = self._described(topology).processes
        processes = [process for process, kind in described.items() if kind == table.kind]
        return {
            (snapshot, process): links_of(manifests, snapshot, process)
            for snapshot in self._by_topology[topology]
            for process in processes
        }

    def _keyed_files(self, table: KeyedTable, links: Collection[SnapshotId]) -> DataFrame:
        stored = table.no_rows().schema
        plain = [field for field in stored if field.name != "process"]
        schema = pa.schema([(name, pa.string()) for name in _KEYED_COLUMNS] + plain)
        files = [
            self._published.file(link, keyed_file(table.name, is_full=is_whole))
            for link in links
            for is_whole in [self._published.manifests[link].bases is None]
        ]
        return verified_parquet.rows(self._spark, files, from_arrow_schema(schema))

    def _rows(self, file: str, snapshots: Collection[SnapshotId], schema: str) -> DataFrame:
        files = [self._published.file(snapshot, file) for snapshot in snapshots]
        return verified_parquet.rows(self._spark, files, schema)

    def _of_topology(self, name: str, topology: str) -> DataFrame:
        described, snapshots = self._described(topology), self._by_topology[topology]
        if name == "processes":
            return self._rows(PROCESSES, snapshots, processes_schema(described))
        if name == "messages":
            return self._rows(MESSAGES, snapshots, messages_schema(described))
        table = self.keyed(topology, name)
        assert table is not None
        return self.keyed_rows(topology, table)

    def _columns_of(self, topology: str, name: str) -> tuple[fields.Column, ...]:
        described = self._described(topology)
        if name == "channels":
            return ()
        if name in TABLES:
            return merged_columns(described.states if name == "processes" else described.messages)
        table = self.keyed(topology, name)
        if table is None:
            return ()
        keyed = described.keyed[table.kind][table.field]
        return (fields.Column("key", keyed.key), *keyed.values)

    def _described(self, topology: str) -> Description:
        return self._published.topologies.described[topology]


def store_tables(spark: SparkSession, store_path: Path) -> dict[str, DataFrame]:
    """Return the tables of all snapshots of a store by name, each with a column `snapshot`:
    ``processes``, ``channels``, ``messages``, and one for each keyed field.

    Incremental snapshots have their full state. Every byte that is read is verified;
    ``compacted_tables`` is faster for repeated queries.

    Raises:
        UsageError: there is no store, or no snapshot in it.
        Damaged: a manifest was changed, or something that a snapshot is based on is missing.
        StoreError: it cannot be read.
    """
    published = read_complete(store_path)
    full = FullSnapshots(spark, published, list(published.manifests))
    return {name: full.table(name) for name in (*TABLES, *full.keyed_names)}


def align_schema(
    rows: DataFrame,
    table: str,
    own: Iterable[fields.Column],
    wanted: Iterable[fields.Column],
) -> DataFrame:
    """Return the rows of a table, whose fields are in the columns `own`, with those `wanted`."""
    kinds = {column.name: column.kind for column in own}
    if table == "channels":
        return rows
    return rows.select(
        *_OWN_COLUMNS.get(table, _KEYED_COLUMNS),
        *(_column(rows, kinds.get(column.name), column).alias(column.name) for column in wanted),
    )


def _common(chains: Chains) -> set[SnapshotId]:
    """Return the links that all snapshots have in the chain of each process that has them in
    any."""
    by_process: dict[ProcessId, list[set[SnapshotId]]] = {}
    for (_, process), chain in chains.items():
        by_process.setdefault(process, []).append(set(chain))
    links = {link for chain in chains.values() for link in chain}
    for of_one in by_process.values():
        links -= set[SnapshotId]().union(*of_one) - of_one[0].intersection(*of_one)
    return links


def _newest(spark: SparkSession, rows: DataFrame, chains: Chains, identity: str) -> DataFrame:
    """Return for each snapshot the newest row of each key, with `snapshot` its own."""
    columns = [list(column) for column in zip(*_links(chains), strict=True)]
    links = spark.createDataFrame(pa.table(columns, schema=_LINKS))
    # Fields can have any name: in one column they clash with none here.
    rest = [name for name in rows.columns if name not in (*_KEYED_COLUMNS, identity)]
    packed = rows.select(*_KEYED_COLUMNS, identity, F.struct(*rest).alias("rest"))
    of_chain = packed.join(
        F.broadcast(links),
        (F.col("snapshot") == F.col("link"))
        & (F.col("of").isNull() | (F.col("process") == F.col("of"))),
    )
    newest = of_chain.groupBy("wanted", "process", identity).agg(
        F.max_by("rest", "place").alias("rest")
    )
    unpacked = newest.select(F.col("wanted").alias("snapshot"), "process", identity, "rest.*")
    return unpacked.select(rows.columns)


def _links(chains: Chains) -> Iterator[tuple[str, str | None, str, int]]:
    """Yield the rows of `_LINKS`; most often the chains of all processes are the same."""
    by_snapshot: dict[SnapshotId, dict[ProcessId, tuple[SnapshotId, ...]]] = {}
    for (snapshot, process), chain in chains.items():
        by_snapshot.setdefault(snapshot, {})[process] = tuple(chain)
    for snapshot, of_processes in by_snapshot.items():
        is_one = len(set(of_processes.values())) == 1
        for process, chain in list(of_processes.items())[: 1 if is_one else None]:
            for place, link in enumerate(chain):
                yield str(snapshot), None if is_one else process, str(link), place


def _column(rows: DataFrame, kind: str | None, wanted: fields.Column) -> Column:
    if kind is None:
        sql_type = from_arrow_schema(pa.schema([("value", ARROW_TYPES[wanted.kind])]))[0].dataType
        return F.lit(None).cast(sql_type)
    return converted(rows[f"`{wanted.name}`"], kind, wanted.kind)
