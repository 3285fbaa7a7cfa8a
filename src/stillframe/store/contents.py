"""The directory of one snapshot: written and published, read, and compared with itself."""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pyarrow as pa

from stillframe.errors import Damaged, NotConsistent, StoreError, UsageError
from stillframe.model import GlobalState, Snapshot
from stillframe.store.disk import WHAT_TO_DO, partial_path, read_file, sync, write_new
from stillframe.store.manifest import CHANNELS, FILES, MANIFEST, PROCESSES, FileRecord, Manifest
from stillframe.store.seal import seal
from stillframe.store.tables import (
    Tables,
    different_column,
    read_parquet,
    read_state,
    to_parquet,
)
from stillframe.topology import Description


def write_snapshot(
    directory: Path,
    tables: Mapping[str, pa.Table],
    manifest_of: Callable[[tuple[FileRecord, ...]], Manifest],
    executor: Executor,
) -> Manifest:
    """Publish a snapshot as `directory`: afterwards all of it is on the disk, or nothing.

    Args:
        directory: where it will be; nothing is there yet.
        tables: file name -> table.
        manifest_of: makes the manifest when the files are known.
        executor: runs the parts that wait for the disk side by side.

    Raises:
        StoreError: the disk is full or failed. Nothing was published and nothing is left.
    """
    try:
        manifest = _write_partial(partial_path(directory), tables, manifest_of, executor)
        _rename(partial_path(directory), directory)
    except OSError as error:
        raise StoreError(
            f"{directory} could not be written: {error.strerror or error}: nothing was "
            "published. Make room on that disk or give the store another one; the next "
            "snapshot is tried afresh"
        ) from error
    return manifest


def _write_partial(
    partial: Path,
    tables: Mapping[str, pa.Table],
    manifest_of: Callable[[tuple[FileRecord, ...]], Manifest],
    executor: Executor,
) -> Manifest:
    # What an earlier attempt left, if it could not be removed then either.
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        writing = [(partial / name, tables[name]) for name in FILES]
        manifest = manifest_of(tuple(_all(executor, _write_table, writing)))
        write_new(partial / MANIFEST, seal(manifest))
        # Side by side, so that a journalling file system makes one commit of them.
        _all(executor, sync, [(path,) for path in (partial, *partial.iterdir())])
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def _rename(partial: Path, directory: Path) -> None:
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


def _write_table(path: Path, table: pa.Table) -> FileRecord:
    content = to_parquet(table)
    write_new(path, content)
    return FileRecord(path.name, len(content), hashlib.sha256(content).hexdigest())


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


def read_snapshot(directory: Path, manifest: Manifest) -> Snapshot:
    """Read a snapshot from its processes and channels, and check them again.

    Raises:
        Damaged: a file is not what was written; it is named.
        NotConsistent: the books do not balance.
        StoreError: a file cannot be read.
    """
    content = {name: _read_verified(directory, manifest, name) for name in (PROCESSES, CHANNELS)}
    try:
        state = read_state(content[PROCESSES], content[CHANNELS])
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise Damaged(
            f"{directory}: {PROCESSES} or {CHANNELS} is no table as the store writes it: {error}"
        ) from error
    state.check_books()
    _check_counts(directory / MANIFEST, manifest, state)
    return Snapshot(
        id=manifest.snapshot,
        epoch=manifest.epoch,
        initiated_at=manifest.initiated_at,
        completed_at=manifest.completed_at,
        state=state,
        pause_s=manifest.pause_s,
        capture_s=manifest.capture_s,
        excluded=manifest.excluded,
    )


def verify_snapshot(directory: Path, manifest: Manifest, tables: Tables) -> Snapshot:
    """Read every byte of a snapshot, and compare what its files say twice.

    Raises:
        Damaged: a file is not what was written; it is named.
        NotConsistent: the books do not balance, or a file does not say what the recorded states
            and messages do.
        StoreError: a file cannot be read.
    """
    content = {name: _read_verified(directory, manifest, name) for name in FILES}
    snapshot = read_snapshot(directory, manifest)
    for name, table in tables.of(snapshot.id, snapshot.state).items():
        # Written and read once more, so that both have gone the same way.
        different = different_column(read_parquet(to_parquet(table)), read_parquet(content[name]))
        if different is not None:
            raise NotConsistent(
                f"{directory / name}: column {different} does not say what was recorded: use "
                f"another snapshot; the recorded states and messages are in {PROCESSES} and "
                f"{CHANNELS}"
            )
    return snapshot


def read_tables(directory: Path, manifest: Manifest) -> dict[str, pa.Table]:
    """Return the tables of a snapshot by name: processes, channels and messages.

    Raises:
        Damaged: a file is not what was written; it is named.
        StoreError: a file cannot be read.
    """
    return {
        Path(name).stem: read_parquet(_read_verified(directory, manifest, name)) for name in FILES
    }


def _read_verified(directory: Path, manifest: Manifest, name: str) -> bytes:
    path = directory / name
    record = next(record for record in manifest.files if record.name == name)
    content = read_file(path, bytes_max=record.bytes, advice=WHAT_TO_DO)
    if len(content) != record.bytes:
        raise Damaged(
            f"{path} is cut short: {len(content)} of {record.bytes} bytes are there: {WHAT_TO_DO}"
        )
    if hashlib.sha256(content).hexdigest() != record.hash:
        raise Damaged(f"{path} was changed since it was written: {WHAT_TO_DO}")
    return content


def _check_counts(path: Path, manifest: Manifest, state: GlobalState) -> None:
    found = (len(state.processes), len(state.channels), state.message_count)
    if found != (manifest.process_count, manifest.channel_count, manifest.message_count):
        raise NotConsistent(
            f"{path} promises {manifest.process_count} processes, {manifest.channel_count} "
            f"channels and {manifest.message_count} messages, but the files hold {found[0]}, "
            f"{found[1]} and {found[2]}: use another snapshot"
        )
