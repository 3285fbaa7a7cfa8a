"""The contents of ``store.json`` and of the manifest of a snapshot."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from stillframe.durable_files import SNAPSHOT_ADVICE
from stillframe.errors import Damaged
from stillframe.model import ProcessId, SnapshotId
from stillframe.store.sealed_json import FORMAT, read_sealed
from stillframe.topology import Description

MANIFEST = "manifest.json"
PROCESSES = "processes.parquet"
CHANNELS = "channels.parquet"
MESSAGES = "messages.parquet"
FILES = (PROCESSES, CHANNELS, MESSAGES)
"""The files of every snapshot, in the order in which a manifest lists them; those of keyed fields
follow (`file_names`)."""

HASH = re.compile(r"[0-9a-f]{64}")


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``store.json``.

    `reference` is where the topology is defined, ``module:attribute``. `restored_from` is the
    snapshot from which the current epoch began. `former` are the topologies before a change of code
    that snapshots still have. `savepoints` are snapshots that are kept under a name.
    """

    format: int = FORMAT
    reference: str | None
    description: Description
    epoch: int = 0
    restored_from: SnapshotId | None = None
    former: tuple[Description, ...] = ()
    savepoints: dict[str, SnapshotId] = {}


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a snapshot: its name, length in bytes and SHA-256."""

    name: str
    bytes: int
    hash: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``manifest.json``. Times are seconds since 1970.

    `sequence` counts the snapshots published in this store, from 1. `is_restore_point`: a restore
    after a death may use it (``Store.publish``). `bases`, called `parent` in the file, has the
    earlier snapshot for each process whose keyed fields are only changes; None: all are full.
    `excluded` is as in ``model.Snapshot``, and `topology` is the hash of the description.
    """

    format: int = FORMAT
    snapshot: SnapshotId
    sequence: int
    epoch: int
    initiated_at: float
    completed_at: float
    published_at: float
    pause_s: float = 0.0
    capture_s: float = 0.0
    excluded: dict[ProcessId, SnapshotId] = {}
    is_restore_point: bool
    bases: dict[ProcessId, SnapshotId] | None = msgspec.field(default=None, name="parent")
    process_count: int
    channel_count: int
    message_count: int
    topology: str
    files: tuple[FileRecord, ...]

    def row_count_of(self, file: str) -> int | None:
        """Return the number of rows a file must have; None if unknown, as for keyed fields."""
        counts = (self.process_count, self.channel_count, self.message_count)
        return dict(zip(FILES, counts, strict=True)).get(file)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A published snapshot, as the store lists it.

    Times are seconds since 1970; `pause_s` and `capture_s` are seconds, they and `excluded` as in
    ``model.Snapshot``. `sequence` is the order of publishing, `bytes` the length of its Parquet
    files together. `is_restore_point`: a restore after a death uses it if no newer one exists
    (``Store.publish``). `savepoints` are the names that it is kept under. `bases` are the snapshots
    that it holds changes since, and `chain_length` is how many snapshots the process with the
    longest chain needs; a full one needs none.
    """

    id: SnapshotId
    sequence: int
    epoch: int
    initiated_at: float
    completed_at: float
    published_at: float
    pause_s: float = 0.0
    capture_s: float = 0.0
    excluded: dict[ProcessId, SnapshotId] = {}
    is_restore_point: bool
    savepoints: tuple[str, ...] = ()
    bases: tuple[SnapshotId, ...] = ()
    chain_length: int = 0
    process_count: int
    channel_count: int
    message_count: int
    bytes: int
    directory: Path


def entry_of(
    manifest: Manifest, directory: Path, *, savepoints: Iterable[str], chain_length: int
) -> Entry:
    """Return the entry of a manifest in the list of snapshots."""
    return Entry(
        id=manifest.snapshot,
        sequence=manifest.sequence,
        epoch=manifest.epoch,
        initiated_at=manifest.initiated_at,
        completed_at=manifest.completed_at,
        published_at=manifest.published_at,
        pause_s=manifest.pause_s,
        capture_s=manifest.capture_s,
        excluded=manifest.excluded,
        is_restore_point=manifest.is_restore_point,
        savepoints=tuple(sorted(savepoints)),
        bases=tuple(sorted(set((manifest.bases or {}).values()))),
        chain_length=chain_length,
        process_count=manifest.process_count,
        channel_count=manifest.channel_count,
        message_count=manifest.message_count,
        bytes=sum(record.bytes for record in manifest.files),
        directory=directory,
    )


def keyed_file(table: str, *, is_full: bool) -> str:
    """Return the name of the file of a keyed field: with all keys, or with changes."""
    return f"{table}.{'whole' if is_full else 'changes'}.parquet"


def file_names(description: Description, *, is_full: bool) -> tuple[str, ...]:
    """Return the names of the files of a snapshot, in the order of its manifest."""
    keyed = [(kind, field) for kind, fields in description.keyed.items() for field in fields]
    return FILES + tuple(
        keyed_file(table_name(kind, field), is_full=is_full) for kind, field in keyed
    )


def table_name(kind: str, field: str) -> str:
    """Return the name of the table of a keyed field; a Damaged if its parts are no identifiers."""
    if not (kind.isidentifier() and field.isidentifier()):
        raise Damaged(f"no class and field of a process are called {kind!r} and {field!r}")
    return f"{kind}_{field}"


def read_manifest(directory: Path, topologies: Mapping[str, Description]) -> Manifest:
    """Read the manifest of the snapshot in `directory`, of a store with these topologies.

    Raises:
        Damaged: it was changed, or does not belong into this directory or this store.
        StoreError: it cannot be read, or a newer version of Stillframe wrote it.
    """
    path = directory / MANIFEST
    manifest = read_sealed(path, Manifest, advice=SNAPSHOT_ADVICE)
    if str(manifest.snapshot) != directory.name:
        raise Damaged(f"{path} is of snapshot {manifest.snapshot}: {SNAPSHOT_ADVICE}")
    if manifest.topology not in topologies:
        raise Damaged(f"{path} is of a store with another topology: {SNAPSHOT_ADVICE}")
    # Names are compared with the expected ones, never used to make a path such as '../x'.
    names = file_names(topologies[manifest.topology], is_full=manifest.bases is None)
    if tuple(record.name for record in manifest.files) != names or any(
        record.bytes < 0 or not HASH.fullmatch(record.hash) for record in manifest.files
    ):
        raise Damaged(f"{path} lists other files than {', '.join(names)}: {SNAPSHOT_ADVICE}")
    return manifest


def newest_restore_point(
    directories: Iterable[Path], read: Callable[[Path], Manifest | None], epoch: int
) -> Manifest | None:
    """Return the newest restore point of `epoch`, among the snapshots in `directories`.

    Searches from the newest snapshot back and no further than that epoch, since numbers only rise.
    `read` returns the manifest in a directory, None if that was dropped meanwhile.
    """
    ids = {directory: SnapshotId.parse(directory.name) for directory in directories}
    for directory in sorted(ids, key=lambda directory: ids[directory].number, reverse=True):
        manifest = read(directory)
        if manifest is not None and manifest.epoch != epoch:
            return None
        if manifest is not None and manifest.is_restore_point:
            return manifest
    return None
