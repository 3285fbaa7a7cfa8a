"""What a manifest says of one snapshot, and what the store says of itself."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from stillframe.errors import Damaged
from stillframe.model import ProcessId, Snapshot, SnapshotId
from stillframe.store.disk import WHAT_TO_DO
from stillframe.store.seal import FORMAT, read_sealed
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

    `reference` is where the topology came from, ``module:attribute``. `restored_from` is the
    snapshot from which the current epoch began. `former` are the topologies before a change of
    code, of which there are snapshots still. `savepoints` are snapshots that are kept under a name.
    """

    format: int = FORMAT
    reference: str | None
    description: Description
    epoch: int = 0
    restored_from: SnapshotId | None = None
    former: tuple[Description, ...] = ()
    savepoints: dict[str, SnapshotId] = {}


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a snapshot: its name, length in bytes and SHA-256."""

    name: str
    bytes: int
    hash: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``manifest.json``. Times are seconds since 1970.

    `sequence` counts what was published in this store, from 1. `is_restore_point` says whether a
    death goes back to this one (``Store.publish``). `bases`, called `parent` in the file, says of
    which earlier snapshot the keyed fields of a process hold only the changes; a process that is
    not in it has them whole, and None means all are. `excluded` is as in ``model.Snapshot``, and
    `topology` is the hash of the description.
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
        """Return how many rows a file must have; None if nothing says so, as of keyed fields."""
        counts = (self.process_count, self.channel_count, self.message_count)
        return dict(zip(FILES, counts, strict=True)).get(file)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A published snapshot, as the store lists it.

    Times are seconds since 1970; `pause_s` and `capture_s` are seconds, they and `excluded` as in
    ``model.Snapshot``.
    `sequence` is the order of publishing, `bytes` the length of its Parquet files together.
    `is_restore_point` says whether a death goes back to it, as long as none follows
    (``Store.publish``). `savepoints` are the names that it is kept under. `bases` are the snapshots
    that it holds the changes since, and `chain_length` is how many it takes to read the process
    that takes most; a whole one needs none.
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


def manifest_of(
    snapshot: Snapshot,
    files: tuple[FileRecord, ...],
    *,
    bases: dict[ProcessId, SnapshotId],
    sequence: int,
    restore_point: Manifest | None,
    topology: str,
    published_at: float,
) -> Manifest:
    """Return the manifest of a snapshot that is published now.

    Args:
        snapshot: what is published.
        files: as they were written.
        bases: what the keyed fields of which processes are based on.
        sequence: its place in the order of publishing.
        restore_point: the newest one of this epoch so far.
        topology: the hash of its description.
        published_at: by the clock of the snapshot, which may not be that of this program.
    """
    return Manifest(
        snapshot=snapshot.id,
        sequence=sequence,
        epoch=snapshot.epoch,
        initiated_at=snapshot.initiated_at,
        completed_at=snapshot.completed_at,
        # Two clocks may differ; nothing is published before it is complete.
        published_at=max(published_at, snapshot.completed_at),
        pause_s=snapshot.pause_s,
        capture_s=snapshot.capture_s,
        excluded=snapshot.excluded,
        is_restore_point=(
            restore_point is None or snapshot.initiated_at >= restore_point.completed_at
        ),
        bases=bases or None,
        process_count=len(snapshot.state.processes),
        channel_count=len(snapshot.state.channels),
        message_count=snapshot.state.message_count,
        topology=topology,
        files=files,
    )


def entry_of(
    manifest: Manifest, directory: Path, *, savepoints: Iterable[str], chain_length: int
) -> Entry:
    """Return what the list of snapshots shows of a manifest."""
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


def keyed_file(table: str, *, is_whole: bool) -> str:
    """Return the name of the file with the rows of a keyed field: all there are, or changes."""
    return f"{table}.{'whole' if is_whole else 'changes'}.parquet"


def file_names(description: Description, *, is_whole: bool) -> tuple[str, ...]:
    """Return the names of the files of a snapshot, in the order in which a manifest lists them."""
    keyed = [(kind, field) for kind, fields in description.keyed.items() for field in fields]
    return FILES + tuple(
        keyed_file(table_name(kind, field), is_whole=is_whole) for kind, field in keyed
    )


def table_name(kind: str, field: str) -> str:
    """Return how the table of a keyed field is called.

    Raises:
        Damaged: no class or field can be called so.
    """
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
    manifest = read_sealed(path, Manifest, advice=WHAT_TO_DO)
    if str(manifest.snapshot) != directory.name:
        raise Damaged(f"{path} is of snapshot {manifest.snapshot}: {WHAT_TO_DO}")
    if manifest.topology not in topologies:
        raise Damaged(f"{path} is of a store with another topology: {WHAT_TO_DO}")
    # Names are compared with what there may be, never used to make a path: '../x' leads nowhere.
    names = file_names(topologies[manifest.topology], is_whole=manifest.bases is None)
    if tuple(record.name for record in manifest.files) != names or any(
        record.bytes < 0 or not HASH.fullmatch(record.hash) for record in manifest.files
    ):
        raise Damaged(f"{path} lists other files than {', '.join(names)}: {WHAT_TO_DO}")
    return manifest


def newest_restore_point(
    directories: Iterable[Path], read: Callable[[Path], Manifest | None], epoch: int
) -> Manifest | None:
    """Return the newest restore point of an epoch.

    Looks from the newest snapshot back and no further than that epoch, since numbers only rise.

    Args:
        directories: of the snapshots, in any order.
        read: returns the manifest in a directory; None if it was dropped meanwhile, or is known to
            be of an older epoch.
        epoch: the current one.
    """
    ids = {directory: SnapshotId.parse(directory.name) for directory in directories}
    for directory in sorted(ids, key=lambda directory: ids[directory].number, reverse=True):
        manifest = read(directory)
        if manifest is not None and manifest.epoch != epoch:
            return None
        if manifest is not None and manifest.is_restore_point:
            return manifest
    return None
