"""The directory of one snapshot: written and published, read, verified, and rewritten in full.

Keyed fields are read together with the bases of the snapshot (``manifest``).
"""

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, wait
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from stillframe.durable_files import disk_advice, partial_path, sync, write_new
from stillframe.errors import NotConsistent, StoreError, UsageError
from stillframe.model import GlobalState, ProcessId, Snapshot, SnapshotId
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import read_hashed
from stillframe.store.manifest import (
    CHANNELS,
    FILES,
    MANIFEST,
    PROCESSES,
    FileRecord,
    Manifest,
    keyed_file,
    links_of,
    shared_fields,
)
from stillframe.store.parquet import as_written, check_row_count, different_column, read_parquet
from stillframe.store.sealed_json import seal
from stillframe.store.tables import (
    KeyedTable,
    Tables,
    as_full,
    former_json_texts,
    read_channels,
    read_processes,
)
from stillframe.topology import Description

_Result = TypeVar("_Result")


class SnapshotChain(msgspec.Struct, frozen=True):
    """A snapshot in a store, with everything needed to read it.

    `snapshots` is the directory of all snapshots, `manifests` are those of this one and of its
    bases (checked by ``check_chain``), `tables` those of its topology.
    """

    snapshots: Location
    manifest: Manifest
    manifests: dict[SnapshotId, Manifest]
    tables: Tables

    @property
    def directory(self) -> Location:
        """The directory of the snapshot."""
        return self.snapshots / str(self.manifest.snapshot)

    def read(self, name: str, link: SnapshotId | None = None) -> bytes:
        """Return a file of the snapshot, or of one that it is based on, if it is as written."""
        snapshot = link or self.manifest.snapshot
        record = next(record for record in self.manifests[snapshot].files if record.name == name)
        return read_hashed(self.snapshots / str(snapshot) / name, record.bytes, record.hash)

    def read_keyed(self, table: KeyedTable, link: SnapshotId) -> dict[ProcessId, pa.Table]:
        """Return the rows of a keyed field in a snapshot of the chain, by process."""
        name = keyed_file(table.name, is_full=self.manifests[link].bases is None)
        content = self.read(name, link)
        with as_written(self.snapshots / str(link) / name):
            return table.read(content)


class NewDirectory:
    """A directory that is written under a partial name, and published by one rename: call
    ``write_tables``, then ``publish``."""

    def __init__(self, path: Path, executor: Executor | None) -> None:
        self._path = path
        self._partial = partial_path(path)
        self._executor = executor

    def write_tables(
        self, tables: Mapping[str, pa.Table], to_parquet: Callable[[str, pa.Table], bytes]
    ) -> tuple[FileRecord, ...]:
        """Write the tables; the first argument of `to_parquet` is the name of the file."""

        def write(name: str) -> FileRecord:
            content = to_parquet(name, tables[name])
            write_new(self._partial / name, content)
            return record_of(name, content)

        return tuple(_for_each(self._executor, write, tables))

    def publish(self, manifest: msgspec.Struct) -> None:
        """Write the manifest, force all files to the disk, and give the directory its name."""
        write_new(self._partial / MANIFEST, seal(manifest))
        # Side by side, so that a journalling file system makes one commit of them.
        _for_each(self._executor, sync, (self._partial, *self._partial.iterdir()))
        publish_directory(self._path)


class NewObjects:
    """The objects of a snapshot or fragment, in its `directory`; like ``NewDirectory``.

    Nothing is replaced: FileExistsError if an object is there. `executor` writes them side by side;
    None: one after the other. `names` are those of the tables that may be there, written by this
    program, and `is_tried` says the same of the manifest.
    """

    def __init__(self, directory: ObjectPath, executor: Executor | None) -> None:
        self.directory = directory
        self._executor = executor
        self._storage = storage_of(directory)
        self.names: set[str] = set()
        self.is_tried = False

    def write_tables(
        self, tables: Mapping[str, pa.Table], to_parquet: Callable[[str, pa.Table], bytes]
    ) -> tuple[FileRecord, ...]:
        """Write the tables; the first argument of `to_parquet` is the name of the file."""

        def write(name: str) -> FileRecord:
            content = to_parquet(name, tables[name])
            self.names.add(name)
            try:
                # If nothing is there: a late duplicate of an attempt that failed changes nothing.
                self._storage.put_if_absent(self.directory / name, content)
            except FileExistsError:
                self.names.discard(name)
                raise
            return record_of(name, content)

        return tuple(_for_each(self._executor, write, tables))

    def publish(self, manifest: msgspec.Struct) -> None:
        """Write the manifest. When this returns, the directory is published."""
        content = seal(manifest)
        self.is_tried = True
        try:
            self._storage.put_if_absent(self.directory / MANIFEST, content)
        except FileExistsError:
            self.is_tried = False
            raise


@contextlib.contextmanager
def new_directory(path: Path, executor: Executor | None) -> Iterator[NewDirectory]:
    """Make a directory at `path`, where nothing is yet. When the body is left by an error, nothing
    of the directory exists; a StoreError says what the disk reported, and what to do.

    `executor` writes the files side by side; None: one after the other, in this thread. Next to a
    process that is always busy, each turn of another thread costs more than it gains.
    """
    partial = partial_path(path)
    # An earlier attempt may not have been able to remove this.
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        yield NewDirectory(path, executor)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        raise StoreError(
            f"{path} could not be written: {error.strerror or error}; nothing was published: "
            f"{disk_advice(error)}. The next one is tried as usual",
            path=path,
        ) from error


def publish_directory(directory: Path) -> None:
    """Rename the ``partial_path`` of `directory`, which is complete and on the disk. After an
    OSError nothing was published, and nothing is left."""
    partial = partial_path(directory)
    try:
        partial.rename(directory)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    try:
        sync(directory.parent)
    except OSError:
        # Rename it back first: no reader may see it disappear file by file.
        directory.rename(partial)
        shutil.rmtree(partial, ignore_errors=True)
        raise


def record_of(name: str, content: bytes) -> FileRecord:
    """Return the record of a file in a manifest."""
    return FileRecord(name, len(content), hashlib.sha256(content).hexdigest())


def check_described(snapshot: Snapshot, description: Description) -> None:
    """Raise a UsageError if a snapshot has other processes or channels, or in another order."""
    processes = [(state.process, state.kind) for state in snapshot.state.processes]
    channels = [state.channel for state in snapshot.state.channels]
    for found, expected in (
        (processes, sorted(description.processes.items())),
        (channels, sorted(description.channels)),
    ):
        if list(found) != list(expected):
            odd = [
                str(item) for item in (*found, *expected) if (item in found) != (item in expected)
            ]
            raise UsageError(
                f"snapshot {snapshot.id} does not match the topology of the store: "
                f"{odd[0] + ' is in only one of them' if odd else 'its fragments are not sorted'}"
            )


def read_snapshot(chain: SnapshotChain) -> Snapshot:
    """Read a snapshot, with all keys of its keyed fields, and check its books."""
    stored = _stored(chain, {name: chain.read(name) for name in (PROCESSES, CHANNELS)})
    maps: dict[ProcessId, dict[str, bytes]] = {}
    description = chain.tables.description
    with as_written(chain.directory):
        for table in chain.tables.keyed:
            for process, rows in merged_rows(chain, table).items():
                maps.setdefault(process, {})[table.field] = table.as_map(rows)
        processes = tuple(
            as_full(state, maps[state.process], description) if state.process in maps else state
            for state in stored.state.processes
        )
    state = GlobalState(processes, stored.state.channels)
    return msgspec.structs.replace(stored, state=state)


def _stored(chain: SnapshotChain, content: Mapping[str, bytes]) -> Snapshot:
    """Return the snapshot without its keyed fields."""
    manifest, directory = chain.manifest, chain.directory
    with as_written(directory / PROCESSES):
        processes = read_processes(content[PROCESSES])
    with as_written(directory / CHANNELS):
        state = GlobalState(processes, read_channels(content[CHANNELS]))
    state.check_books()
    found = (len(state.processes), len(state.channels), state.message_count)
    if found != (manifest.process_count, manifest.channel_count, manifest.message_count):
        raise NotConsistent(
            f"{directory / MANIFEST} lists {manifest.process_count} processes, "
            f"{manifest.channel_count} channels and {manifest.message_count} messages, but the "
            f"files hold {found[0]}, {found[1]} and {found[2]}",
            path=directory / MANIFEST,
            remedy="use another snapshot",
        )
    snapshot = Snapshot(id=manifest.snapshot, state=state, **shared_fields(manifest, Snapshot))
    check_described(snapshot, chain.tables.description)
    return snapshot


def merged_rows(chain: SnapshotChain, table: KeyedTable) -> dict[ProcessId, pa.Table]:
    """Return all rows of a keyed field, by process."""
    processes = [p for p, kind in chain.tables.description.processes.items() if kind == table.kind]
    newest = chain.manifest.snapshot
    links = {process: links_of(chain.manifests, newest, process) for process in processes}
    rows = {link: chain.read_keyed(table, link) for link in set().union(*links.values())}
    return {
        process: table.merged([rows[link][process] for link in of_one if process in rows[link]])
        for process, of_one in links.items()
    }


def verify_snapshot(chain: SnapshotChain) -> None:
    """Do what ``StoreReader.verify`` does, but for the bases of a snapshot."""
    directory = chain.directory
    content = {record.name: chain.read(record.name) for record in chain.manifest.files}
    snapshot = _stored(chain, content)
    with as_written(directory):
        state = _with_changes(chain, snapshot.state)
        made = chain.tables.of(snapshot.id, state)
    if (found := _different(chain, content, made)) is not None:
        with as_written(directory):  # release 0.2 wrote less into columns of JSON
            made = Tables(chain.tables.description, former_json_texts).of(snapshot.id, state)
        if _different(chain, content, made) is None:
            return
        name, column = found
        raise NotConsistent(
            f"{directory / name}: column {column} differs from the recorded data: use another "
            f"snapshot; the recorded states and messages are in {PROCESSES} and {CHANNELS}",
            path=directory / name,
        )


def _different(
    chain: SnapshotChain, content: Mapping[str, bytes], made: Mapping[str, pa.Table]
) -> tuple[str, str] | None:
    """Return the first file and column whose content is not as it was `made`, if any."""
    for name, table in made.items():
        # Written and read again, so that both took the same path.
        written = read_parquet(chain.tables.to_parquet(name, table))
        with as_written(chain.directory / name):
            column = different_column(written, read_parquet(content[name]))
        if column is not None:
            return name, column
    return None


def _with_changes(chain: SnapshotChain, state: GlobalState) -> GlobalState:
    """Return a state with the keyed fields that the files of this snapshot hold."""
    manifest, bases = chain.manifest, chain.manifest.bases or {}
    processes = {state.process: state for state in state.processes}
    for table in chain.tables.keyed:
        name = chain.directory / keyed_file(table.name, is_full=manifest.bases is None)
        rows = chain.read_keyed(table, manifest.snapshot)
        for process, recorded in processes.items():
            if recorded.kind != table.kind:
                continue
            of_one = rows.get(process, table.schema.empty_table())
            change = table.change(of_one)
            if change.removed_count and process not in bases:
                raise NotConsistent(
                    f"{name}: keys of process {process} were removed, and it has no base that "
                    "could have had them",
                    path=name,
                    process=process,
                    remedy="use another snapshot",
                )
            if (key := table.repeated_key(of_one)) is not None:
                raise NotConsistent(
                    f"{name}: process {process} has the key {key!r} twice",
                    path=name,
                    process=process,
                    remedy="use another snapshot",
                )
            processes[process] = msgspec.structs.replace(
                recorded, base=bases.get(process), keyed={**recorded.keyed, table.field: change}
            )
    return GlobalState(tuple(processes.values()), state.channels)


def verify_links(chain: SnapshotChain) -> None:
    """Read every byte of the bases that reading a snapshot needs."""
    for snapshot, manifest in chain.manifests.items():
        for record in manifest.files:
            if snapshot != chain.manifest.snapshot and record.name not in FILES:
                chain.read(record.name, snapshot)


def read_tables(chain: SnapshotChain) -> dict[str, pa.Table]:
    """Do what ``StoreReader.tables`` does."""
    found = {}
    for file in FILES:
        content = chain.read(file)
        with as_written(chain.directory / file):
            found[Path(file).stem] = rows = read_parquet(content)
        promised = chain.manifest.row_count_of(file)
        check_row_count(chain.directory / file, rows.num_rows, promised)
    for table in chain.tables.keyed:
        with as_written(chain.directory):
            found[table.name] = table.queryable(_all_rows(chain, table))
    return found


def _all_rows(chain: SnapshotChain, table: KeyedTable) -> pa.Table:
    rows = list(merged_rows(chain, table).values())
    return table.of_snapshot(str(chain.manifest.snapshot), rows)


def write_full(
    chain: SnapshotChain,
    write: Callable[[Location, bytes], bytes],
    discard: Callable[[list[Location]], None],
) -> Manifest:
    """Write all keys of the keyed fields of a snapshot next to its files of changes, with `write`;
    if that fails, `discard` what may have been written. The manifest returned lists these instead.
    """
    records = [record for record in chain.manifest.files if record.name in FILES]
    written: list[Location] = []
    try:
        for table in chain.tables.keyed:
            path = chain.directory / keyed_file(table.name, is_full=True)
            written.append(path)
            content = chain.tables.to_parquet(path.name, _all_rows(chain, table))
            there = write(path, content)
            if there != content:
                # Another writer has written the same rows, perhaps with another release of Arrow.
                with as_written(path):
                    is_same = read_parquet(there).equals(read_parquet(content))
                if not is_same:
                    raise StoreError(f"{path} holds other rows than the snapshot", path=path)
            records.append(record_of(path.name, there))
    except BaseException:
        discard(written)
        raise
    return msgspec.structs.replace(chain.manifest, bases=None, files=tuple(records))


def _for_each(
    executor: Executor | None, act: Callable[[Any], _Result], items: Iterable[Any]
) -> list[_Result]:
    """Call `act` side by side; raise the first error when all calls have ended."""
    if executor is None:
        return [act(item) for item in items]
    futures = [executor.submit(act, item) for item in items]
    wait(futures)
    return [future.result() for future in futures]
