"""Compact the many small files of a store into few large tables, and bring them up to date later.

    OUT/tables.json                         which tables and files there are; sealed
    OUT/v000003/processes/000001-000.parquet
    OUT/v000003/Account_owners/000002-000.parquet
    OUT/v000003/snapshots/snapshots.parquet

The tables hold the full state of each snapshot, even of those that are incremental in the store. A
second time only the snapshots are added that are not there yet. A version is written completely
before ``tables.json`` names it, by one rename. Files that did not change are in it under a second
name. The version before stays until the next is written, so that its readers are not disturbed.

In an object store there is neither a lock nor a rename. Every file has a name that no other program
gives, and ``tables.json`` is replaced only if it is as it was read. So of two compactions at once
one wins, and what the other wrote is in no catalog. Nothing is deleted that one which has not lost
yet may name: of the version that was published only what it does not list, and older versions.
"""

import contextlib
import functools
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Protocol, TypeVar, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from stillframe import topology as fields
from stillframe.analytics import verified_parquet
from stillframe.analytics.full_snapshots import (
    TABLES,
    FullSnapshots,
    align_schema,
    columns_across,
    table_schema,
)
from stillframe.analytics.manifests import Published, is_apart, while_published
from stillframe.analytics.snapshot_stats import SNAPSHOTS_SCHEMA, snapshot_table
from stillframe.analytics.verified_parquet import Written, write, write_here
from stillframe.durable_files import link_or_copy, partial_path, replace_durably, sync
from stillframe.errors import Damaged, Unavailable, UsageError
from stillframe.model import SnapshotId
from stillframe.storage.files import side_by_side
from stillframe.storage.location import Location, ObjectPath, locate
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import is_there, read_hashed
from stillframe.storage.storage import Changed, Version
from stillframe.store.layout import HEAD, check_is_store, explain_io_errors, first_names, take_lock
from stillframe.store.parquet import (
    KEY,
    NUMBER,
    PROCESS,
    SNAPSHOT,
    SOURCE,
    TARGET,
    as_written,
    read_parquet,
)
from stillframe.store.sealed_json import FORMAT, SEALED_BYTES_MAX, read_sealed, seal

_Place = TypeVar("_Place", bound=Location)

CATALOG = "tables.json"
INDEX = "snapshots"
_LOCK = "lock"
_VERSION = re.compile(r"\.?v\d{6}(\.partial)?")
ADVICE = "put the file back from a copy, or compact into a new directory"
_ORDER = {
    "processes": (SNAPSHOT, PROCESS),
    "channels": ("snapshot", "source", "target"),
    "messages": (SNAPSHOT, SOURCE, TARGET, NUMBER),
}
_COPY_COUNT = 16
"""How many objects are copied at a time."""
PART_COUNT_MAX = 16
"""How many times files are added before all become one part again."""


class CatalogFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Parquet file: its name in the directory of its table, rows, bytes and SHA-256."""

    name: str
    row_count: int
    bytes: int
    hash: str


class TablePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One addition: the files of each table with the rows of these snapshots."""

    number: int
    snapshots: tuple[SnapshotId, ...]
    files: dict[str, tuple[CatalogFile, ...]]


class CatalogMember(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot, and what distinguishes its manifest from those of other stores."""

    sequence: int
    published_at: float


class Compacted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``tables.json``: its version, the snapshots by id, the columns of each table
    that hold fields, and the files. `index` is the file of the table ``snapshots``."""

    format: int = FORMAT
    version: int = 0
    snapshots: dict[str, CatalogMember] = {}
    columns: dict[str, tuple[fields.Column, ...]] = {}
    parts: tuple[TablePart, ...] = ()
    index: CatalogFile | None = None

    def files(self, table: str) -> list[CatalogFile]:
        """Return the files of a table."""
        if table == INDEX:
            return [] if self.index is None else [self.index]
        return _files_of(self.parts, table)

    def schema(self, table: str) -> pa.Schema:
        """Return the columns of a table."""
        return SNAPSHOTS_SCHEMA if table == INDEX else table_schema(table, self.columns[table])


def version_name(version: int) -> str:
    """Return the name of the directory of a version."""
    return f"v{version:06}"


def version_path(out: _Place, version: int) -> _Place:
    """Return the directory of a version."""
    return cast("_Place", out / version_name(version))


def read_catalog(out: Location) -> Compacted:
    """Return the catalog of the directory `out`; an error says if nothing was compacted into it."""
    if not is_there(out / CATALOG):
        is_absent = isinstance(out, Path) and not out.exists()
        what = "does not exist" if is_absent else "holds no tables"
        raise UsageError(
            f"{out} {what}: give the directory that 'stillframe store compact --out' wrote"
        )
    return _as_now(read_sealed(out / CATALOG, Compacted, advice=ADVICE))


def _as_now(catalog: Compacted) -> Compacted:
    # Version 1 had another name for the column of the key, the first of its table.
    columns = {
        name: own if name in TABLES else (fields.Column(KEY, own[0].kind), *own[1:])
        for name, own in catalog.columns.items()
    }
    return msgspec.structs.replace(catalog, columns=columns)


def compacted_tables(spark: SparkSession, out: str | Location) -> dict[str, DataFrame]:
    """Return the tables in the directory `out` by name: ``processes``, ``messages``, and one for
    each keyed field, with a column `_snapshot`; ``snapshots`` and ``channels``, with `snapshot`.

    Every byte is verified when Spark reads it: run the DataFrames in ``spark_errors``.

    Raises:
        UsageError: there are no tables in `out`.
        Damaged: its ``tables.json`` was changed.
        StoreError: it cannot be read.
    """
    path = locate(out)
    catalog = read_catalog(path)
    of_version = version_path(path, catalog.version)
    return {
        name: _rows(spark, of_version / name, catalog.files(name), catalog.schema(name))
        for name in (INDEX, *catalog.columns)
    }


def _rows(
    spark: SparkSession, directory: Location, files: Iterable[CatalogFile], schema: pa.Schema
) -> DataFrame:
    listed: list[verified_parquet.File] = [
        (None, str(directory.absolute() / file.name), file.bytes, file.hash, file.row_count)
        for file in files
    ]
    return verified_parquet.rows(spark, listed, schema)


def _files_of(parts: Iterable[TablePart], table: str) -> list[CatalogFile]:
    return [file for part in parts for file in part.files.get(table, ())]


class TablesWriter(Protocol):
    """Writes the next version of the tables in one place. `catalog` is the current one, empty if
    there is none; the files of a table are written into `directory`, below `place`."""

    catalog: Compacted

    def begin(self) -> None:
        """Begin a version, with nothing in it."""
        ...

    def directory(self, table: str) -> Location:
        """Return where the files of a table are written."""
        ...

    def keep(self, table: str, files: Sequence[CatalogFile]) -> None:
        """Give files of the current version a place in the new one."""
        ...

    def name_files(
        self, table: str, written: Sequence[Written], number: int
    ) -> tuple[CatalogFile, ...]:
        """Return the written files of a table, which become part `number`, under their names."""
        ...

    def publish(self, now: Compacted) -> None:
        """Make the new version the current one, and remove what is not needed."""
        ...

    def abandon(self) -> None:
        """Remove what is there of the new version, if only this writer can need it."""
        ...


@contextlib.contextmanager
def exclusive_writer(out: Location, store: Location) -> Iterator[TablesWriter]:
    """Write to `out` while the body runs: alone, or such that only one of several writers can
    publish."""
    check_is_store(store)
    if not is_apart(out, store):
        raise UsageError(
            f"the tables cannot be in {out}, which contains the store or is inside it: {store}; "
            "give "
            "a separate directory"
        )
    if isinstance(out, ObjectPath):
        with explain_io_errors(out, "written"):
            writer = _ObjectTables(out)
        yield writer
        return
    with explain_io_errors(out, "written"):
        out.mkdir(parents=True, exist_ok=True)
        _check_free(out, {path.name for path in out.iterdir()})
        try:
            lock = take_lock(out)
        except Unavailable:
            raise Unavailable(
                f"another program is compacting into {out}: wait until it has finished, or give "
                "another directory"
            ) from None
    try:
        yield _LocalTables(out)
    finally:
        os.close(lock)


class _LocalTables:
    """Tables in a directory that only this program writes to; see ``TablesWriter``."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self.catalog = read_catalog(out) if (out / CATALOG).exists() else Compacted()
        self._old = out / version_name(self.catalog.version)
        self._new = out / version_name(self.catalog.version + 1)
        self._partial = partial_path(self._new)
        self._remove_others(self.catalog.version - 1, self.catalog.version)

    def begin(self) -> None:
        """See ``TablesWriter``."""
        self.abandon()
        self._partial.mkdir()

    def directory(self, table: str) -> Path:
        """See ``TablesWriter``."""
        directory = self._partial / table
        directory.mkdir(exist_ok=True)
        return directory

    def keep(self, table: str, files: Sequence[CatalogFile]) -> None:
        """See ``TablesWriter``."""
        for file in files:
            link_or_copy(self._old / table / file.name, self._partial / table / file.name)

    def name_files(
        self, table: str, written: Sequence[Written], number: int
    ) -> tuple[CatalogFile, ...]:
        """See ``TablesWriter``."""
        directory = self._partial / table
        named = []
        for place, found in enumerate(written):
            name = INDEX if table == INDEX else f"{number:06}-{place:03}"
            named.append(CatalogFile(f"{name}.parquet", *found[1:]))
            (directory / found.name).rename(directory / named[-1].name)
        return tuple(named)

    def publish(self, now: Compacted) -> None:
        """See ``TablesWriter``."""
        for directory in self._partial.iterdir():
            listed = {file.name for file in now.files(directory.name)}
            for path in directory.iterdir():
                if path.name not in listed:
                    path.unlink()  # of a task that failed, and was done again
        for directory in (*self._partial.iterdir(), self._partial):
            sync(directory)
        self._partial.rename(self._new)
        sync(self._out)
        replace_durably(self._out / CATALOG, seal(now))
        self._remove_others(now.version - 1, now.version)

    def abandon(self) -> None:
        """See ``TablesWriter``."""
        shutil.rmtree(self._partial, ignore_errors=True)

    def _remove_others(self, *versions: int) -> None:
        """Remove all versions but these, and what was never published."""
        kept = {version_name(version) for version in versions}
        with explain_io_errors(self._out, "written"):
            partial_path(self._out / CATALOG).unlink(missing_ok=True)
            for path in self._out.iterdir():
                if _VERSION.fullmatch(path.name) and path.name not in kept:
                    shutil.rmtree(path)


class _ObjectTables:
    """Tables in an object store, which other programs may write to; see ``TablesWriter``."""

    def __init__(self, out: ObjectPath) -> None:
        self._out = out
        self._storage = storage_of(out)
        self._found: Version | None = None
        self.catalog = Compacted()
        path = out / CATALOG
        try:
            # In this order: if it is replaced in between, nothing can be published.
            _, self._found = self._storage.read(path, bytes_max=SEALED_BYTES_MAX)
        except FileNotFoundError:
            _check_free(out, {one.location.name for one in self._storage.children(out)})
        else:
            self.catalog = _as_now(read_sealed(path, Compacted, advice=ADVICE))
        self._old = out / version_name(self.catalog.version)
        self._new = out / version_name(self.catalog.version + 1)

    def begin(self) -> None:
        """See ``TablesWriter``."""

    def directory(self, table: str) -> ObjectPath:
        """See ``TablesWriter``."""
        return self._new / table

    def keep(self, table: str, files: Sequence[CatalogFile]) -> None:
        """See ``TablesWriter``."""

        def copy(file: CatalogFile) -> None:
            # Another writer may do the same: it is the same file.
            self._storage.copy(self._old / table / file.name, self._new / table / file.name)

        for _ in side_by_side(copy, files, _COPY_COUNT):
            pass

    def name_files(
        self, table: str, written: Sequence[Written], number: int
    ) -> tuple[CatalogFile, ...]:
        """See ``TablesWriter``."""
        return tuple(CatalogFile(*found) for found in written)

    def publish(self, now: Compacted) -> None:
        """See ``TablesWriter``."""
        path, content = self._out / CATALOG, seal(now)
        try:
            if self._found is None:
                self._storage.put_if_absent(path, content)
            else:
                self._storage.replace_if_unchanged(path, content, self._found)
        except (FileExistsError, Changed):
            raise Unavailable(
                f"another program has compacted into {self._out} meanwhile: compact again, or give "
                "another directory"
            ) from None
        # It is published: what cannot be deleted now is deleted by a later one.
        with contextlib.suppress(OSError):
            self._remove_others(now)

    def _remove_others(self, now: Compacted) -> None:
        """Remove all versions before the former one, and what `now` does not list."""
        listed = {
            self._new / table / file.name
            for table in (INDEX, *now.columns)
            for file in now.files(table)
        }
        first_kept = version_name(now.version - 1)
        unneeded = []
        for one in self._storage.files_below(self._out):
            assert isinstance(one.location, ObjectPath)
            version = one.location.relative_to(self._out).partition("/")[0]
            is_old = version < first_kept or version == version_name(now.version)
            if _VERSION.fullmatch(version) and is_old and one.location not in listed:
                unneeded.append(one.location)
        self._storage.delete(unneeded)

    def abandon(self) -> None:
        """See ``TablesWriter``. Others may need it, or tasks still write."""


def _check_free(out: Location, found: AbstractSet[str]) -> None:
    if CATALOG in found:
        return
    if HEAD in found:
        raise UsageError(f"{out} is a store: give a separate directory for the tables")
    names = found - {_LOCK, partial_path(Path(CATALOG)).name}
    if foreign := sorted(name for name in names if not _VERSION.fullmatch(name)):
        raise UsageError(
            f"{out} is not empty; it contains {first_names(foreign)}: give an empty or new "
            "directory"
        )
    # A crash can leave the first version without a catalog, and no other.
    if any(not name.startswith(".") for name in names - {version_name(1)}):
        raise Damaged(f"{out / CATALOG} is missing: {ADVICE}")


class Compaction(msgspec.Struct, frozen=True):
    """The result of ``compact_store``.

    Attributes:
        added: the snapshots added, in the order of publishing.
        removed: the snapshots removed.
    """

    added: tuple[SnapshotId, ...]
    removed: tuple[SnapshotId, ...]
    catalog: Compacted


def compact_store(
    spark: SparkSession,
    store_path: str | Location,
    out: str | Location,
    *,
    of: SnapshotId | str | None = None,
    keep: int | None = None,
) -> Compaction:
    """Bring the tables in `out` up to date with the store: completely or, at a crash, not at all.

    Every byte that is read is verified.

    Args:
        spark: the session; its executors see both directories under these paths.
        store_path: the directory of the store, or its address, such as ``s3://bucket/bank``; a
            running system may write to it.
        out: a directory for the tables alone, or its address.
        of: the snapshot to add, an id or a savepoint's name; None for all.
        keep: how many snapshots stay, the newest; savepoints stay as well. None for all.

    Raises:
        UsageError: there is no such store or snapshot, or `out` is something else.
        Damaged: a file of the store, or of `out`, was changed.
        StoreError: something cannot be read or written; what was in `out` is as it was.
        Unavailable: another program writes to `out`, or in an object store has done so meanwhile.
    """
    store, target = locate(store_path), locate(out)
    with exclusive_writer(target, store) as writer:
        return while_published(
            store, lambda published: _compact(spark, published, target, writer, of=of, keep=keep)
        )


def _compact(
    spark: SparkSession,
    published: Published,
    out: Location,
    writer: TablesWriter,
    *,
    of: SnapshotId | str | None,
    keep: int | None,
) -> Compaction:
    catalog = writer.catalog
    members = _members(published, of, catalog, out)
    staying = _staying(members, keep, published)
    added = [one for one in published.manifests if str(one) in staying - catalog.snapshots.keys()]
    removed = [SnapshotId.parse(name) for name in catalog.snapshots if name not in staying]
    known, there = _read_index(out, catalog), snapshot_table(published)
    # Each that stays is as the store has it now, if it still does.
    dropped = known.filter(~pc.field("snapshot").isin(there["snapshot"].to_pylist()))
    every = pa.concat_tables([dropped, there]).sort_by("sequence")
    index = every.filter(pc.field("snapshot").isin(list(staying)))
    if index.equals(known):
        return Compaction((), (), catalog)
    with explain_io_errors(out, "written"), verified_parquet.spark_errors(published.path):
        writer.begin()
        try:
            full = FullSnapshots(spark, published, added)
            columns = _columns(catalog, full)
            kept, rewritten = _split(catalog, columns, staying)
            old = version_path(out, catalog.version)
            again = [one for part in rewritten for one in part.snapshots if str(one) in staying]
            # Of what only goes nothing is read: it may be damaged.
            read = rewritten if again else []
            update = _Update(spark, old, writer, kept, read, full, staying)
            number = 1 + max((part.number for part in catalog.parts), default=0)
            files = {name: update.write_table(name, own, number) for name, own in columns.items()}
            new = TablePart(number, (*again, *added), files)
            now = Compacted(
                version=catalog.version + 1,
                snapshots={name: one for name, one in members.items() if name in staying},
                columns=columns,
                parts=(*kept, new) if new.snapshots or any(files.values()) else tuple(kept),
                index=writer.name_files(INDEX, [_written(index, writer, INDEX)], number)[0],
            )
            writer.publish(now)
        except BaseException:
            writer.abandon()
            raise
    return Compaction(tuple(added), tuple(removed), now)


def _written(table: pa.Table, writer: TablesWriter, name: str) -> Written:
    """Write a small table here, to a file that no other program writes."""
    return write_here(table, writer.directory(name) / f"{secrets.token_hex(16)}.parquet")


def _members(
    published: Published, of: SnapshotId | str | None, catalog: Compacted, out: Location
) -> dict[str, CatalogMember]:
    """Return the snapshots that the tables have, and those of the store that are wanted."""
    for snapshot, why in published.damages.items() if of is None else ():
        raise Damaged(
            f"snapshot {snapshot} cannot be compacted: {why}",
            path=published.directory(snapshot),
            snapshot=snapshot,
        )
    there = {
        str(snapshot): CatalogMember(manifest.sequence, manifest.published_at)
        for snapshot, manifest in published.manifests.items()
    }
    wanted = [*there] if of is None else [str(published.find(of))]
    if not wanted:
        raise UsageError(f"the store {published.path} holds no snapshot yet")
    for name, member in there.items():
        if catalog.snapshots.get(name, member) != member:
            raise UsageError(
                f"{out} holds snapshot {name} of another store: give another directory"
            )
    return catalog.snapshots | {name: there[name] for name in wanted}


def _staying(members: dict[str, CatalogMember], keep: int | None, published: Published) -> set[str]:
    if keep is None:
        return set(members)
    newest = sorted(members, key=lambda name: members[name].sequence)[-keep:]
    named = {str(snapshot) for snapshot in published.head.savepoints.values()}
    return {*newest, *(named & members.keys())}


def _columns(catalog: Compacted, full: FullSnapshots) -> dict[str, tuple[fields.Column, ...]]:
    tables = dict.fromkeys((*TABLES, *catalog.columns))
    folded = {*map(str.casefold, tables)}
    return {
        name: columns_across((catalog.columns.get(name, ()), full.columns(name)))
        for name in (*tables, *(name for name in full.names if name.casefold() not in folded))
    }


def _split(
    catalog: Compacted, columns: dict[str, tuple[fields.Column, ...]], staying: AbstractSet[str]
) -> tuple[list[TablePart], list[TablePart]]:
    """Return the parts that stay as they are, and those to rewrite: all of them when columns
    changed, so that all files of a table have the same."""
    is_other = catalog.format != FORMAT or any(
        columns[name] != before for name, before in catalog.columns.items()
    )
    if is_other or len(catalog.parts) >= PART_COUNT_MAX:
        return [], list(catalog.parts)
    kept = [part for part in catalog.parts if staying >= set(map(str, part.snapshots))]
    return kept, [part for part in catalog.parts if part not in kept]


class _Update(msgspec.Struct, frozen=True):
    """A change of the current tables in the directory `old`. The parts `kept` stay as they are; one
    new part gets the remaining rows of those `rewritten` and the rows of the snapshots in
    `full`."""

    spark: SparkSession
    old: Location
    writer: TablesWriter
    kept: list[TablePart]
    rewritten: list[TablePart]
    full: FullSnapshots
    staying: AbstractSet[str]

    def write_table(
        self, table: str, columns: tuple[fields.Column, ...], number: int
    ) -> tuple[CatalogFile, ...]:
        """Write a table, and return its files in the new part. If it has no rows, a file without
        any is one of them: any reader finds its columns."""
        directory = self.writer.directory(table)
        kept = _files_of(self.kept, table)
        self.writer.keep(table, kept)
        rows = self._rows(table, columns)
        written = [] if rows is None else write(rows, directory)
        if not written and not kept:
            empty = table_schema(table, columns).empty_table()
            written = [_written(empty, self.writer, table)]
        return self.writer.name_files(table, written, number)

    def _rows(self, table: str, columns: tuple[fields.Column, ...]) -> DataFrame | None:
        """Return the new rows of a table, sorted within each file; None if there can be none."""
        found = []
        catalog = self.writer.catalog
        if self.rewritten and table in catalog.columns:
            files, schema = _files_of(self.rewritten, table), catalog.schema(table)
            rows = _rows(self.spark, self.old / table, files, schema)
            rows = rows.where(F.col(schema.names[0]).isin(*self.staying))
            found.append(align_schema(rows, table, catalog.columns[table], columns))
        if self.full.has(table):
            own = self.full.columns(table)
            found.append(align_schema(self.full.table(table), table, own, columns))
        if not found:
            return None
        rows = functools.reduce(DataFrame.unionByName, found)
        order = _ORDER.get(table, (SNAPSHOT, PROCESS, KEY))
        if table in TABLES:
            rows = rows.repartition(order[0])
        elif self.rewritten or not self.full.is_chained:  # else merging has sorted them so
            rows = rows.repartition(*order)
        return rows.sortWithinPartitions(*order)


def _read_index(out: Location, catalog: Compacted) -> pa.Table:
    if catalog.index is None:
        return SNAPSHOTS_SCHEMA.empty_table()
    path = version_path(out, catalog.version) / INDEX / catalog.index.name
    content = read_hashed(path, catalog.index.bytes, catalog.index.hash, advice=ADVICE)
    with as_written(path):
        return read_parquet(content).cast(SNAPSHOTS_SCHEMA)
