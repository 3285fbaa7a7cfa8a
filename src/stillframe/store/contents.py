"""The directory of one snapshot: written and published, read, and compared with itself.

Keyed fields are read together with the snapshots that they are based on (``chain``).
"""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from stillframe.errors import NotConsistent, StoreError, UsageError
from stillframe.model import GlobalState, ProcessId, Snapshot, SnapshotId
from stillframe.store.chain import links_of
from stillframe.store.checksum import read_hashed
from stillframe.store.disk import partial_path, sync, write_new
from stillframe.store.keyed import KeyedTable, as_whole
from stillframe.store.manifest import (
    CHANNELS,
    FILES,
    MANIFEST,
    PROCESSES,
    FileRecord,
    Manifest,
    keyed_file,
)
from stillframe.store.parquet import as_written, check_row_count, different_column, read_parquet
from stillframe.store.seal import seal
from stillframe.store.tables import Tables, read_channels, read_processes
from stillframe.topology import Description

SomeManifest = TypeVar("SomeManifest", bound=msgspec.Struct)


class Chain(msgspec.Struct, frozen=True):
    """A snapshot in a store, with all that it takes to read it.

    `snapshots` is the directory of all snapshots, `manifests` are those of this one and of what it
    is based on (checked by ``chain.check_chain``), `tables` those of its topology.
    """

    snapshots: Path
    manifest: Manifest
    manifests: dict[SnapshotId, Manifest]
    tables: Tables

    @property
    def directory(self) -> Path:
        """The directory of the snapshot."""
        return self.snapshots / str(self.manifest.snapshot)


def write_directory(
    directory: Path,
    tables: Mapping[str, pa.Table],
    to_parquet: Callable[[str, pa.Table], bytes],
    manifest_of: Callable[[tuple[FileRecord, ...]], SomeManifest],
    executor: Executor,
) -> SomeManifest:
    """Publish tables with a manifest as `directory`: afterwards all of it is on the disk, or
    nothing.

    Args:
        directory: where it will be; nothing is there yet.
        tables: file name -> table, in the order of the manifest.
        to_parquet: makes the bytes of the file of that name.
        manifest_of: makes the manifest when the files are known.
        executor: runs the parts that wait for the disk side by side.

    Raises:
        StoreError: the disk is full or failed. Nothing was published and nothing is left.
    """
    try:
        partial = partial_path(directory)
        writing = [(partial / name, table, to_parquet) for name, table in tables.items()]
        manifest = _write_partial(partial, writing, manifest_of, executor)
        publish_directory(directory)
    except OSError as error:
        raise StoreError(
            f"{directory} could not be written: {error.strerror or error}: nothing was "
            "published. Make room on that disk or give another directory; the next "
            "snapshot is tried afresh"
        ) from error
    return manifest


def _write_partial(
    partial: Path,
    writing: list[tuple[Path, pa.Table, Callable[[str, pa.Table], bytes]]],
    manifest_of: Callable[[tuple[FileRecord, ...]], SomeManifest],
    executor: Executor,
) -> SomeManifest:
    # What an earlier attempt left, if it could not be removed then either.
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        manifest = manifest_of(tuple(_all(executor, _write_table, writing)))
        write_new(partial / MANIFEST, seal(manifest))
        # Side by side, so that a journalling file system makes one commit of them.
        _all(executor, sync, [(path,) for path in (partial, *partial.iterdir())])
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def publish_directory(directory: Path) -> None:
    """Give `directory` its name, under which all of it is seen; it is complete and on the disk as
    its ``partial_path``.

    Raises:
        OSError: the disk failed; nothing was published, and nothing is left.
    """
    partial = partial_path(directory)
    try:
        partial.rename(directory)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    try:
        sync(directory.parent)
    except OSError:
        # Back under the name with the dot: no reader may see it disappear file by file.
        directory.rename(partial)
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _all(executor: Executor, function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> Any:
    """Call `function` side by side; raise the first error only when none is running any more."""
    futures = [executor.submit(function, *arguments) for arguments in calls]
    errors = [future.exception() for future in futures]
    for error in filter(None, errors):
        raise error
    return [future.result() for future in futures]


def _write_table(
    path: Path, table: pa.Table, to_parquet: Callable[[str, pa.Table], bytes]
) -> FileRecord:
    content = to_parquet(path.name, table)
    write_new(path, content)
    return record_of(path.name, content)


def record_of(name: str, content: bytes) -> FileRecord:
    """Return what a manifest says of a file."""
    return FileRecord(name, len(content), hashlib.sha256(content).hexdigest())


def check_described(snapshot: Snapshot, description: Description) -> None:
    """Check that a snapshot has exactly the processes and channels that are described, in order.

    Raises:
        UsageError: it has not; the first difference is named.
    """
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
                f"snapshot {snapshot.id} does not fit the topology of the store: "
                f"{odd[0] + ' is in only one of them' if odd else 'its parts are not sorted'}"
            )


def read_snapshot(chain: Chain) -> Snapshot:
    """Read a snapshot, whole, from its processes, channels and keyed fields; check them again.

    Raises:
        Damaged: a file is not what was written; it is named.
        NotConsistent: the books do not balance.
        UsageError: it does not fit its topology.
        StoreError: a file cannot be read.
    """
    manifest, directory = chain.manifest, chain.directory
    content = {name: _read_verified(directory, manifest, name) for name in (PROCESSES, CHANNELS)}
    stored = _stored(chain, content)
    maps: dict[ProcessId, dict[str, bytes]] = {}
    description = chain.tables.description
    with as_written(directory):
        for table in chain.tables.keyed:
            for process, rows in merged_rows(chain, table).items():
                maps.setdefault(process, {})[table.field] = table.as_map(rows)
        processes = tuple(
            as_whole(state, maps[state.process], description) if state.process in maps else state
            for state in stored.state.processes
        )
    state = GlobalState(processes, stored.state.channels)
    return msgspec.structs.replace(stored, state=state)


def _stored(chain: Chain, content: Mapping[str, bytes]) -> Snapshot:
    """Return the snapshot without its keyed fields."""
    manifest, directory = chain.manifest, chain.directory
    with as_written(directory / PROCESSES):
        processes = read_processes(content[PROCESSES])
    with as_written(directory / CHANNELS):
        state = GlobalState(processes, read_channels(content[CHANNELS]))
    state.check_books()
    _check_counts(directory / MANIFEST, manifest, state)
    snapshot = Snapshot(
        id=manifest.snapshot,
        epoch=manifest.epoch,
        initiated_at=manifest.initiated_at,
        completed_at=manifest.completed_at,
        state=state,
        pause_s=manifest.pause_s,
        capture_s=manifest.capture_s,
        excluded=manifest.excluded,
    )
    check_described(snapshot, chain.tables.description)
    return snapshot


def merged_rows(chain: Chain, table: KeyedTable) -> dict[ProcessId, pa.Table]:
    """Return the rows of a keyed field, whole, for each process that has it.

    Raises:
        Damaged: a file of the chain is not what was written; it is named.
        StoreError: a file cannot be read.
    """
    processes = [p for p, kind in chain.tables.description.processes.items() if kind == table.kind]
    newest = chain.manifest.snapshot
    links = {process: links_of(chain.manifests, newest, process) for process in processes}
    rows = {
        link: _rows(table, chain.snapshots / str(link), chain.manifests[link])
        for link in set().union(*links.values())
    }
    return {
        process: table.merged([rows[link][process] for link in of_one if process in rows[link]])
        for process, of_one in links.items()
    }


def _rows(table: KeyedTable, directory: Path, manifest: Manifest) -> dict[ProcessId, pa.Table]:
    name = keyed_file(table.name, is_whole=manifest.bases is None)
    content = _read_verified(directory, manifest, name)
    with as_written(directory / name):
        return table.read(content)


def verify_snapshot(chain: Chain) -> None:
    """Read every byte of a snapshot, and compare what its files say twice.

    What it is based on is verified by itself.

    Raises:
        Damaged: a file is not what was written; it is named.
        NotConsistent: the books do not balance, or a file does not say what the recorded states
            and messages do.
        UsageError: it does not fit its topology.
        StoreError: a file cannot be read.
    """
    manifest, directory = chain.manifest, chain.directory
    content = {f.name: _read_verified(directory, manifest, f.name) for f in manifest.files}
    snapshot = _stored(chain, content)
    with as_written(directory):
        made = chain.tables.of(snapshot.id, _with_changes(chain, snapshot.state))
    for name, table in made.items():
        # Written and read once more, so that both have gone the same way.
        written = read_parquet(chain.tables.to_parquet(name, table))
        with as_written(directory / name):
            different = different_column(written, read_parquet(content[name]))
        if different is not None:
            raise NotConsistent(
                f"{directory / name}: column {different} does not say what was recorded: use "
                f"another snapshot; the recorded states and messages are in {PROCESSES} and "
                f"{CHANNELS}"
            )


def _with_changes(chain: Chain, state: GlobalState) -> GlobalState:
    """Return a state with what the files of keyed fields say that was recorded."""
    manifest, bases = chain.manifest, chain.manifest.bases or {}
    processes = {state.process: state for state in state.processes}
    for table in chain.tables.keyed:
        name = chain.directory / keyed_file(table.name, is_whole=manifest.bases is None)
        rows = _rows(table, chain.directory, manifest)
        for process, recorded in processes.items():
            if recorded.kind != table.kind:
                continue
            of_one = rows.get(process, table.no_rows())
            change = table.change(of_one)
            if change.removed_count and process not in bases:
                raise NotConsistent(
                    f"{name}: keys of process {process} were removed, and it is based on nothing "
                    "that could have had them: use another snapshot"
                )
            if (key := table.repeated_key(of_one)) is not None:
                raise NotConsistent(
                    f"{name}: process {process} has the key {key!r} twice: use another snapshot"
                )
            processes[process] = msgspec.structs.replace(
                recorded, base=bases.get(process), keyed={**recorded.keyed, table.field: change}
            )
    return GlobalState(tuple(processes.values()), state.channels)


def verify_links(chain: Chain) -> None:
    """Read every byte that it takes to read a snapshot and is of those that it is based on.

    Raises:
        Damaged: a file is not what was written; it is named.
        StoreError: a file cannot be read.
    """
    for snapshot, manifest in chain.manifests.items():
        for record in manifest.files:
            if snapshot != chain.manifest.snapshot and record.name not in FILES:
                _read_verified(chain.snapshots / str(snapshot), manifest, record.name)


def read_tables(chain: Chain) -> dict[str, pa.Table]:
    """Return the tables of a snapshot by name: processes, channels, messages, and one for each
    keyed field with a row for each key that it has.

    Raises:
        Damaged: a file is not what was written; it is named.
        NotConsistent: it has other than the number of rows that the manifest promises.
        StoreError: a file cannot be read.
    """
    found = {}
    for file in FILES:
        content = _read_verified(chain.directory, chain.manifest, file)
        with as_written(chain.directory / file):
            found[Path(file).stem] = rows = read_parquet(content)
        promised = chain.manifest.row_count_of(file)
        check_row_count(chain.directory / file, rows.num_rows, promised)
    name = str(chain.manifest.snapshot)
    for table in chain.tables.keyed:
        with as_written(chain.directory):
            rows = table.of_snapshot(name, list(merged_rows(chain, table).values()))
            found[table.name] = table.queryable(rows)
    return found


def _read_verified(directory: Path, manifest: Manifest, name: str) -> bytes:
    record = next(record for record in manifest.files if record.name == name)
    return read_hashed(directory / name, record.bytes, record.hash)


def _check_counts(path: Path, manifest: Manifest, state: GlobalState) -> None:
    found = (len(state.processes), len(state.channels), state.message_count)
    if found != (manifest.process_count, manifest.channel_count, manifest.message_count):
        raise NotConsistent(
            f"{path} promises {manifest.process_count} processes, {manifest.channel_count} "
            f"channels and {manifest.message_count} messages, but the files hold {found[0]}, "
            f"{found[1]} and {found[2]}: use another snapshot"
        )
