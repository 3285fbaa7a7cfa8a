"""The contents of ``store.json`` and of manifests, and the chains of bases between these.

The chain of a snapshot has, process by process, the earlier snapshots that it is based on. Each
link holds the changes of a process's keyed fields since the link before; the first holds all keys.
A base has a lower sequence, so a chain has an end.
"""

import re
import secrets
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any, Literal

import msgspec

from stillframe.errors import Damaged, UsageError
from stillframe.model import ProcessId, SnapshotId
from stillframe.storage.location import Location
from stillframe.storage.reading import SNAPSHOT_ADVICE, read_file
from stillframe.store.sealed_json import BUCKET_FORMAT, FORMAT, SEALED_BYTES_MAX, read_sealed_bytes
from stillframe.topology import Description

MANIFEST = "manifest.json"
PROCESSES = "processes.parquet"
CHANNELS = "channels.parquet"
MESSAGES = "messages.parquet"
FILES = (PROCESSES, CHANNELS, MESSAGES)
"""The files of every snapshot, in the order in which a manifest lists them; those of keyed fields
follow (`file_names`)."""

_HASH = re.compile(r"[0-9a-f]{64}")


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
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

    @cached_property
    def described(self) -> dict[str, Description]:
        """All topologies, by the hash that each manifest has."""
        return {description.hash: description for description in (*self.former, self.description)}

    @cached_property
    def names(self) -> dict[SnapshotId, list[str]]:
        """The savepoints of each snapshot that has any, sorted."""
        found: dict[SnapshotId, list[str]] = {}
        for name, snapshot in sorted(self.savepoints.items()):
            found.setdefault(snapshot, []).append(name)
        return found


class BucketHead(Head, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """The content of ``store.json`` in an object store. The `token` is new with each write: no two
    contents are equal, or the object store could not tell them apart."""

    format: int = BUCKET_FORMAT
    token: str


def as_stored_in(head: Head, *, is_bucket: bool) -> Head:
    """Return a head as a directory or an object store has it, whichever it was read from."""
    fields = {name: getattr(head, name) for name in Head.__struct_fields__ if name != "format"}
    return BucketHead(**fields, token=secrets.token_hex(16)) if is_bucket else Head(**fields)


TOMBSTONE_BYTES_MAX = 256
"""Maximum size of a tombstone; each manifest is longer."""


class Tombstone(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a manifest, in an object store, of a snapshot that is not published and never
    will be."""

    format: int = BUCKET_FORMAT
    snapshot: SnapshotId
    poisoned: Literal[True] = True


def is_tombstone(sealed: bytes) -> bool:
    """Return whether the bytes of a manifest are those of a tombstone."""
    return len(sealed) <= TOMBSTONE_BYTES_MAX and b'"poisoned":true' in sealed


FORMER_COUNT_MAX = 100
"""Maximum former topologies; more would take too long to read."""


def with_topology(head: Head, description: Description, used: Collection[str]) -> Head:
    """Return the head of a store whose topology is `description` from now on; it may be a former
    one. Former topologies that are not among `used`, the hashes that snapshots have, are forgotten.
    """
    known = {digest: d for digest, d in head.described.items() if digest in used}
    known.pop(description.hash, None)
    if len(known) > FORMER_COUNT_MAX:
        raise UsageError(
            f"the store holds snapshots of {len(known)} topologies, and at most "
            f"{FORMER_COUNT_MAX} former ones are kept: delete the snapshots of the oldest"
        )
    return msgspec.structs.replace(head, description=description, former=tuple(known.values()))


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a snapshot: its name, length in bytes and SHA-256."""

    name: str
    bytes: int
    hash: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``manifest.json``. Times are seconds since 1970.

    `sequence` counts the snapshots published in this store, from 1. `is_restore_point`: a restore
    after a death may use it (``Store.publish``). `bases` has the earlier snapshot for each process
    whose keyed fields are only changes; None: all are full. `excluded` is as in ``model.Snapshot``,
    and `topology` is the hash of the description.
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
    bases: dict[ProcessId, SnapshotId] | None = None
    process_count: int
    channel_count: int
    message_count: int
    topology: str
    files: tuple[FileRecord, ...]

    @property
    def based_on(self) -> set[SnapshotId]:
        """The snapshots that this one holds changes since; a full one has none."""
        return set((self.bases or {}).values())

    def row_count_of(self, file: str) -> int | None:
        """Return the number of rows a file must have; None if unknown, as for keyed fields."""
        counts = (self.process_count, self.channel_count, self.message_count)
        return dict(zip(FILES, counts, strict=True)).get(file)


class SnapshotEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A published snapshot, as the store lists it. Times are seconds since 1970.

    Attributes:
        id: its id, such as ``P1-17``.
        sequence: its place in the order of publishing, from 1.
        epoch: how many times the system had been started or restored.
        initiated_at: when it was requested.
        completed_at: when the last fragment arrived.
        published_at: when all of it was on the disk.
        pause_s: the longest pause of any process, in seconds; 0 if not measured.
        capture_s: the longest time until a process had encoded its state, in seconds; 0 if not
            measured.
        excluded: processes without channels that took no part, each with the snapshot that its
            recorded state is from.
        is_restore_point: whether the system may continue from it after a crash. A snapshot that
            overlaps an earlier one is not a restore point.
        savepoints: the names that it is kept under.
        bases: the earlier snapshots that it holds changes since.
        chain_length: how many earlier snapshots it takes to read it; 0 if it is full.
        process_count: number of processes.
        channel_count: number of channels.
        message_count: number of messages in transit.
        bytes: size of its Parquet files.
        directory: where its files are.
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
    directory: Location

    @property
    def duration_s(self) -> float:
        """How long it took from the request until it was published, in seconds."""
        return self.published_at - self.initiated_at


def shared_fields(one: msgspec.Struct, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the fields of a struct that structs of `kind` have under the same name."""
    names = set(one.__struct_fields__).intersection(kind.__struct_fields__)
    return {name: getattr(one, name) for name in names}


Manifests = Mapping[SnapshotId, Manifest]


def entry_of(
    manifests: Manifests, snapshot: SnapshotId, head: Head, snapshots: Location
) -> SnapshotEntry:
    """Return the entry of a snapshot in the list of the store with that head; `manifests` has those
    of its bases, too, and `snapshots` is the directory of all."""
    manifest = manifests[snapshot]
    own = {
        "id": snapshot,
        "savepoints": tuple(head.names.get(snapshot, ())),
        "bases": tuple(sorted(manifest.based_on)),
        "chain_length": chain_length(manifests, snapshot),
        "bytes": sum(record.bytes for record in manifest.files),
        "directory": snapshots / str(snapshot),
    }
    return SnapshotEntry(**shared_fields(manifest, SnapshotEntry) | own)


def keyed_file(table: str, *, is_full: bool) -> str:
    """Return the name of the file of a keyed field: with all keys, or with changes."""
    return f"{table}.{'whole' if is_full else 'changes'}.parquet"


def file_names(
    description: Description, *, is_full: bool, process: ProcessId | None = None
) -> tuple[str, ...]:
    """Return the names of the files of a snapshot, or of a fragment of `process`, in order."""
    own = None if process is None else description.processes[process]
    return FILES + tuple(
        keyed_file(table_name(kind, field), is_full=is_full)
        for kind, fields in description.keyed.items()
        for field in fields
        if own in (None, kind)
    )


def table_name(kind: str, field: str) -> str:
    """Return the name of the table of a keyed field; a Damaged if its parts are no identifiers."""
    if not (kind.isidentifier() and field.isidentifier()):
        raise Damaged(f"no process has a class {kind!r} with a field {field!r}")
    return f"{kind}_{field}"


def read_manifest(directory: Location, topologies: Mapping[str, Description]) -> Manifest:
    """Read the manifest of the snapshot in `directory`, of a store with these topologies; errors as
    for ``read_sealed``, also if it does not belong into this directory or this store."""
    path = directory / MANIFEST
    sealed = read_file(path, bytes_max=SEALED_BYTES_MAX, advice=SNAPSHOT_ADVICE)
    if is_tombstone(sealed):
        raise Damaged(f"{directory} is no published snapshot", path=directory)
    manifest = read_sealed_bytes(path, sealed, Manifest, advice=SNAPSHOT_ADVICE)
    if str(manifest.snapshot) != directory.name:
        raise Damaged(
            f"{path} belongs to snapshot {manifest.snapshot}", path=path, remedy=SNAPSHOT_ADVICE
        )
    if manifest.topology not in topologies:
        raise Damaged(
            f"{path} belongs to a store with another topology", path=path, remedy=SNAPSHOT_ADVICE
        )
    names = file_names(topologies[manifest.topology], is_full=manifest.bases is None)
    if not are_files(manifest.files, names):
        raise Damaged(
            f"{path} lists files other than {', '.join(names)}", path=path, remedy=SNAPSHOT_ADVICE
        )
    return manifest


def are_files(records: tuple[FileRecord, ...], names: tuple[str, ...]) -> bool:
    """Return whether a manifest lists the files with these names, which are only compared with what
    it says: that could be '../x'."""
    return tuple(record.name for record in records) == names and all(
        record.bytes >= 0 and _HASH.fullmatch(record.hash) for record in records
    )


CHAIN_LENGTH_MAX = 16
"""Maximum bases of a snapshot before it is rewritten in full. Measured with 5.2 million keys (100
MB) and 1 % of them changed each time: loading a full snapshot takes 4.7 s of CPU, one with 8 bases
5.1 s and one with 16 bases 6.4 s; rewriting one takes 2.5 s, every 17th time."""


def reachable(
    newest: SnapshotId, read: Callable[[SnapshotId], Manifest | None]
) -> dict[SnapshotId, Manifest]:
    """Return the manifests that `read` finds of a snapshot and of its bases, directly or not."""
    found: dict[SnapshotId, Manifest] = {}
    frontier = [newest]
    while frontier:
        snapshot = frontier.pop()
        manifest = None if snapshot in found else read(snapshot)
        if manifest is not None:
            found[snapshot] = manifest
            frontier += manifest.based_on
    return found


def check_chain(manifests: Manifests, snapshots: Location) -> None:
    """Check that each base of `manifests`, which are all that are ``reachable`` from one, is among
    them and was published earlier. Damaged names the first broken link by its file in the directory
    `snapshots`, and the remedy."""
    for manifest in manifests.values():
        path = snapshots / str(manifest.snapshot) / MANIFEST
        for process, base in (manifest.bases or {}).items():
            found = manifests.get(base)
            where = f"{path}: process {process} is based on snapshot {base}"
            if found is None:
                raise Damaged(
                    f"{where}, and {snapshots / str(base)} is missing: put that directory back "
                    f"from a copy, or delete {path.parent} and use another snapshot",
                    path=path,
                )
            if found.sequence >= manifest.sequence or found.topology != manifest.topology:
                raise Damaged(
                    f"{where}, which is not an earlier one: put that file back from a copy, or "
                    f"delete {path.parent} and use another snapshot",
                    path=path,
                )


def links_of(manifests: Manifests, newest: SnapshotId, process: ProcessId) -> list[SnapshotId]:
    """Return the snapshots that together hold the keyed fields of a process, the oldest first.

    It ends where one is missing, or is none before it (``check_chain`` says which).
    """
    links = [newest]
    while (base := (manifests[links[-1]].bases or {}).get(process)) is not None:
        if base not in manifests or manifests[base].sequence >= manifests[links[-1]].sequence:
            break
        links.append(base)
    return links[::-1]


def chain_length(manifests: Manifests, newest: SnapshotId) -> int:
    """Return how many earlier snapshots the process with the longest chain needs; 0 if full."""
    processes = manifests[newest].bases or {}
    return max((len(links_of(manifests, newest, p)) - 1 for p in processes), default=0)
