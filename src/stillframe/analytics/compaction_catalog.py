"""What is in a directory of large tables that snapshots were compacted into.

    OUT/tables.json                         which tables and files there are; sealed
    OUT/v000003/processes/000001-000.parquet
    OUT/v000003/Account_owners/000002-000.parquet
    OUT/v000003/snapshots/snapshots.parquet

A version is written whole before ``tables.json`` names it, by one rename. What it has in common
with the version before are the same files, under two names. That version stays until the next is
written: whoever reads it is not disturbed.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from stillframe.analytics import verified_parquet
from stillframe.analytics.snapshot_stats import SNAPSHOTS_SCHEMA
from stillframe.analytics.table_schemas import (
    CHANNELS_SCHEMA,
    MESSAGES_SCHEMA,
    PROCESSES_SCHEMA,
    SQL_TYPES,
)
from stillframe.columns import Column
from stillframe.errors import Damaged, Unavailable, UsageError
from stillframe.local_path import local_path
from stillframe.model import SnapshotId
from stillframe.store.disk import partial_path
from stillframe.store.opening import HEAD, check_is_store, explained, listed, take_lock
from stillframe.store.seal import FORMAT, read_sealed

CATALOG = "tables.json"
INDEX = "snapshots"
_LOCK = "lock"
_VERSION = re.compile(r"\.?v\d{6}(\.partial)?")
_OWN_COLUMNS = {
    "processes": PROCESSES_SCHEMA,
    "channels": CHANNELS_SCHEMA,
    "messages": MESSAGES_SCHEMA,
}
_KEYED_COLUMNS = "snapshot STRING, process STRING"
ADVICE = "put the file back from a copy, or compact into a new directory"


class CatalogFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Parquet file: its name in the directory of its table, rows, bytes and SHA-256."""

    name: str
    row_count: int
    bytes: int
    hash: str


class TablePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was written at one time: the files of each table with the rows of these snapshots."""

    number: int
    snapshots: tuple[SnapshotId, ...]
    files: dict[str, tuple[CatalogFile, ...]]


class CatalogMember(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot, and what its manifest says that no other snapshot's does."""

    sequence: int
    published_at: float


class Compacted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``tables.json``.

    Attributes:
        format: of this file.
        version: which directory it is of.
        snapshots: those whose rows are in the tables, by their id as text.
        columns: of each table, those that hold fields.
        parts: which files there are.
        index: the file of the table ``snapshots``.
    """

    format: int = FORMAT
    version: int = 0
    snapshots: dict[str, CatalogMember] = {}
    columns: dict[str, tuple[Column, ...]] = {}
    parts: tuple[TablePart, ...] = ()
    index: CatalogFile | None = None

    def files(self, table: str) -> list[CatalogFile]:
        """Return the files of a table."""
        if table == INDEX:
            return [] if self.index is None else [self.index]
        return [file for part in self.parts for file in part.files.get(table, ())]

    def schema(self, table: str) -> str:
        """Return the columns of a table, in Spark's words."""
        fields = self.columns[table]
        return _OWN_COLUMNS.get(table, _KEYED_COLUMNS) + "".join(
            f", `{column.name}` {SQL_TYPES[column.kind]}" for column in fields
        )


def version_path(out: Path, version: int) -> Path:
    """Return the directory of a version."""
    return out / f"v{version:06}"


def read_catalog(out: Path) -> Compacted:
    """Return what is in the directory `out`.

    Raises:
        UsageError: no snapshots were compacted into it.
        Damaged: its ``tables.json`` was changed.
        StoreError: it cannot be read.
    """
    if not (local_path(out) / CATALOG).exists():
        what = "holds no tables" if out.exists() else "does not exist"
        raise UsageError(
            f"{out} {what}: give the directory that 'stillframe spark compact --out' wrote"
        )
    return read_sealed(out / CATALOG, Compacted, advice=ADVICE)


def compacted_tables(spark: SparkSession, out: Path) -> dict[str, DataFrame]:
    """Return the tables in the directory `out` by name, each with a column `snapshot`:
    ``snapshots``, ``processes``, ``channels``, ``messages``, and one for each keyed field.

    Every byte that is read is verified.

    Raises:
        UsageError, Damaged, StoreError: as ``read_catalog``.
    """
    catalog = read_catalog(out)
    tables = {name: table_rows(spark, out, catalog, name) for name in catalog.columns}
    directory = version_path(out, catalog.version).absolute() / INDEX
    index: list[verified_parquet.File] = [
        (None, str(directory / file.name), file.bytes, file.hash, file.row_count)
        for file in catalog.files(INDEX)
    ]
    return {
        INDEX: verified_parquet.rows(spark, index, from_arrow_schema(SNAPSHOTS_SCHEMA))
    } | tables


def table_rows(
    spark: SparkSession,
    out: Path,
    catalog: Compacted,
    table: str,
    parts: tuple[TablePart, ...] | None = None,
) -> DataFrame:
    """Return the rows of a table, all or those of some parts."""
    directory = version_path(out, catalog.version).absolute() / table
    files: list[verified_parquet.File] = [
        (None, str(directory / file.name), file.bytes, file.hash, file.row_count)
        for part in (catalog.parts if parts is None else parts)
        for file in part.files.get(table, ())
    ]
    return verified_parquet.rows(spark, files, catalog.schema(table))


@contextlib.contextmanager
def exclusive_writer(out: Path, store: Path) -> Iterator[Compacted]:
    """Be the only one who writes to `out` while the body runs; it gets what is there, if anything.

    What a crashed writer left is removed.

    Raises:
        UsageError: `out` holds something else, or is in `store` or around it.
        Unavailable: somebody else is writing there.
        Damaged: its ``tables.json`` was changed.
        StoreError: it cannot be read or written.
    """
    check_is_store(store)
    inner, outer = local_path(out).resolve(), store.resolve()
    if inner == outer or outer in inner.parents or inner in outer.parents:
        raise UsageError(
            f"the tables cannot be in {out}: that is in the store {store} or around it; give a "
            "directory of its own"
        )
    with explained(out, "written"):
        out.mkdir(parents=True, exist_ok=True)
        _check_free(out)
        try:
            lock = take_lock(out)
        except Unavailable:
            raise Unavailable(
                f"another program is compacting into {out}: wait until it is done, or give another "
                "directory"
            ) from None
    try:
        catalog = read_catalog(out) if (out / CATALOG).exists() else Compacted()
        remove_others(out, (catalog.version - 1, catalog.version))
        yield catalog
    finally:
        os.close(lock)


def remove_others(out: Path, versions: tuple[int, ...]) -> None:
    """Remove all versions but these, and what was never published; only the writer may.

    Raises:
        StoreError: something cannot be removed.
    """
    kept = {version_path(out, version).name for version in versions}
    with explained(out, "written"):
        partial_path(out / CATALOG).unlink(missing_ok=True)
        for path in out.iterdir():
            if _VERSION.fullmatch(path.name) and path.name not in kept:
                shutil.rmtree(path)


def _check_free(out: Path) -> None:
    if (out / CATALOG).exists():
        return
    if (out / HEAD).exists():
        raise UsageError(f"{out} is a store: give a directory of its own for the tables")
    left = {_LOCK, partial_path(out / CATALOG).name}
    foreign = sorted(
        path.name
        for path in out.iterdir()
        if path.name not in left and not _VERSION.fullmatch(path.name)
    )
    if foreign:
        raise UsageError(
            f"{out} is not empty, it holds {listed(foreign)}: give a directory that is empty or "
            "not there yet"
        )
    if any(path.name != _LOCK and not path.name.startswith(".") for path in out.iterdir()):
        versions = sorted(path.name for path in out.glob("v*"))
        if versions != [version_path(out, 1).name]:
            raise Damaged(f"{out / CATALOG} is missing: {ADVICE}")
