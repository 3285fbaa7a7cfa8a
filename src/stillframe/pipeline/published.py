"""Published snapshots of a pipeline: a manifest, and the pinned checkpoints of its queries.

    ROOT/snapshots/shop-17/manifest.json          every part, channel, and file with its hash
    ROOT/snapshots/shop-17/checkpoints/enrich/    the checkpoint of a query, as hard links

What is on a channel at the cut is not copied: the manifest says between which positions of the log
it lies, and the log keeps those items as long as the snapshot lives.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from stillframe.errors import Damaged, UsageError
from stillframe.model import SnapshotId, check_process_id
from stillframe.pipeline.dataflow import Dataflow
from stillframe.pipeline.head import Stretch, check_course, described_in
from stillframe.pipeline.part import PINNED, Part, check_parts
from stillframe.pipeline.systems import SystemCut
from stillframe.protocol.aligner import Mode
from stillframe.store.disk import WHAT_TO_DO
from stillframe.store.opening import explained
from stillframe.store.seal import FORMAT, read_sealed

SNAPSHOTS = "snapshots"
MANIFEST = "manifest.json"


class ChannelCut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A channel at the cut: one log as one of its targets reads it.

    The source put the barrier at position `barrier`, before which it had sent `sent_counts` records
    of each partition; the target had read up to `position`, `received_counts` records. What lies
    between is the state of the channel. In mode at-least-once the target may have read past the
    barrier: after a restore it receives those records twice.
    """

    log: str
    target: str
    position: int
    barrier: int
    received_counts: tuple[int, ...]
    sent_counts: tuple[int, ...]

    @property
    def record_count(self) -> int:
        """How many records were on the channel."""
        return max(0, sum(self.sent_counts) - sum(self.received_counts))

    @property
    def duplicate_count(self) -> int:
        """How many records the target will receive a second time after a restore."""
        return max(0, sum(self.received_counts) - sum(self.sent_counts))


class PinnedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a pinned checkpoint: its path below it, its length and its SHA-256.

    `inode` and `changed_at_ns` let the next snapshot know a file again without reading it.
    """

    query: str
    name: str
    bytes: int
    hash: str
    inode: int
    changed_at_ns: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``manifest.json``. Times are seconds since 1970; `name` is a savepoint's."""

    format: int = FORMAT
    snapshot: SnapshotId
    name: str | None
    epoch: int
    mode: Mode
    initiated_at: float
    completed_at: float
    published_at: float
    dataflow: Dataflow
    stretches: dict[str, tuple[Stretch, ...]]
    batches: dict[str, tuple[Stretch, ...]]
    parts: tuple[Part, ...]
    systems: tuple[SystemCut, ...]
    channels: tuple[ChannelCut, ...]
    files: tuple[PinnedFile, ...]

    def part(self, participant: str) -> Part:
        """Return what one participant recorded.

        Raises:
            UsageError: there is no such participant.
        """
        for part in self.parts:
            if part.participant == participant:
                return part
        names = ", ".join(part.participant for part in self.parts)
        raise UsageError(
            f"snapshot {self.snapshot} has no participant {participant!r}; it has {names}"
        )

    @property
    def record_count(self) -> int:
        """How many records were on channels."""
        return sum(channel.record_count for channel in self.channels)

    @property
    def duplicate_count(self) -> int:
        """How many records a restore would have received twice."""
        return sum(channel.duplicate_count for channel in self.channels)

    @property
    def bytes(self) -> int:
        """The length of all files of its checkpoints; most are shared with other snapshots."""
        return sum(file.bytes for file in self.files)


def snapshot_path(root: Path, snapshot: SnapshotId) -> Path:
    """Return the directory of a published snapshot."""
    return root / SNAPSHOTS / str(snapshot)


def pinned_path(directory: Path, query: str) -> Path:
    """Return where a snapshot, under way or published, keeps the checkpoint of a query."""
    return directory / PINNED / query


def manifests(root: Path) -> list[Manifest]:
    """Return all published snapshots in the order in which they were published.

    Raises:
        Damaged, StoreError: a manifest was changed or cannot be read.
    """
    return [read_manifest(root, snapshot) for snapshot in published_ids(root)]


def undamaged(root: Path) -> list[Manifest]:
    """Return the published snapshots whose manifests are whole, in the order of ``manifests``."""
    return listing(root)[0]


def listing(root: Path) -> tuple[list[Manifest], dict[SnapshotId, Damaged]]:
    """Return ``undamaged``, and what is wrong with the other published snapshots."""
    found: list[Manifest] = []
    damages: dict[SnapshotId, Damaged] = {}
    for snapshot in published_ids(root):
        try:
            found.append(read_manifest(root, snapshot))
        except Damaged as damage:
            damages[snapshot] = damage
    return found, damages


def published_ids(root: Path) -> list[SnapshotId]:
    """Return the ids of all published snapshots in the order in which they were published.

    Raises:
        Damaged, StoreError: something else is among them, or the directory cannot be read.
    """
    found = []
    with explained(root / SNAPSHOTS, "read"):
        for path in (root / SNAPSHOTS).glob("[!.]*"):
            try:
                found.append(SnapshotId.parse(path.name))
            except UsageError:
                raise Damaged(f"{path} is no snapshot: move it to another directory") from None
    # A number is used once, also when a pipeline is forked or taken back.
    return sorted(found, key=lambda snapshot: snapshot.number)


def read_manifest(root: Path, snapshot: SnapshotId) -> Manifest:
    """Return the manifest of one snapshot.

    Raises:
        UsageError: there is no such snapshot; the error says which there are.
        Damaged, StoreError: its manifest was changed or cannot be read.
    """
    path = snapshot_path(root, snapshot) / MANIFEST
    if not path.parent.exists():
        names = ", ".join(str(one) for one in published_ids(root))
        raise UsageError(f"there is no snapshot {snapshot} in {root}; there are: {names or 'none'}")
    manifest = read_sealed(path, Manifest, advice=WHAT_TO_DO)
    if manifest.snapshot != snapshot:
        raise Damaged(f"{path} is of snapshot {manifest.snapshot}")
    with described_in(path):
        _check_names(manifest)
    return manifest


def _check_names(manifest: Manifest) -> None:
    """Check every name and number of a manifest that leads to a file.

    Raises:
        UsageError: what cannot be.
    """
    flow = manifest.dataflow
    check_course(flow, manifest.epoch, manifest.stretches, manifest.batches)
    if manifest.name is not None:
        check_process_id(manifest.name)
    check_parts(flow, manifest.parts)
    ends = [(log.name, target) for log in flow.logs for target in log.targets]
    if [(cut.log, cut.target) for cut in manifest.channels] != ends:
        raise UsageError("it has not one cut of each channel")
    for cut in manifest.channels:
        count = flow.log(cut.log).partition_count
        numbers = (cut.position, cut.barrier, *cut.received_counts, *cut.sent_counts)
        if not len(cut.received_counts) == len(cut.sent_counts) == count or min(numbers) < 0:
            raise UsageError(f"channel {cut.log} to {cut.target} cannot be cut at {numbers}")


def find(root: Path, text: str) -> Manifest:
    """Return the snapshot with that id, or else the newest savepoint of that name.

    Raises:
        UsageError: there is neither.
        Damaged, StoreError: its manifest was changed, or one cannot be read.
    """
    return read_manifest(root, find_id(root, text))


def find_id(root: Path, text: str) -> SnapshotId:
    """Return the id that `text` is, or else that of the newest savepoint of that name.

    Damage to other manifests does not matter, nor, if `text` is an id, to that of the snapshot.

    Raises:
        UsageError: there is neither.
    """
    by_id = {str(snapshot): snapshot for snapshot in published_ids(root)}
    if text in by_id:
        return by_id[text]
    names = {manifest.snapshot: manifest.name for manifest in undamaged(root)}
    for snapshot, name in reversed(names.items()):
        if name == text:
            return snapshot
    known = ", ".join(names.get(snapshot) or id_ for id_, snapshot in by_id.items()) or "none"
    raise UsageError(
        f"there is no snapshot and no savepoint {text!r} in {root}; there are: {known}"
    )


def hashed_files(directory: Path, queries: list[str], known: list[PinnedFile]) -> list[PinnedFile]:
    """Return every pinned file with its hash; one that an earlier snapshot has is not read again.

    Args:
        directory: of the snapshot.
        queries: those whose checkpoints were pinned.
        known: the files of the snapshot before.

    Raises:
        StoreError: a file cannot be read.
    """
    by_inode = {(f.inode, f.bytes, f.changed_at_ns): f.hash for f in known}
    found = []
    for query, path in _pinned_files(directory, queries):
        with explained(path, "read"):
            status = path.stat()
            identity = (status.st_ino, status.st_size, status.st_mtime_ns)
            digest = by_inode.get(identity) or file_hash(path)
        name = path.relative_to(pinned_path(directory, query)).as_posix()
        found.append(
            PinnedFile(query, name, status.st_size, digest, status.st_ino, status.st_mtime_ns)
        )
    return found


def verify_files(root: Path, manifest: Manifest, progress: Callable[[int], None]) -> None:
    """Read every file of the pinned checkpoints and compare it with the manifest.

    Args:
        root: the pipeline.
        manifest: of the snapshot.
        progress: called with the length of each file that was read.

    Raises:
        Damaged: a file was changed, is missing, or one was added.
        StoreError: a file cannot be read.
    """
    directory = snapshot_path(root, manifest.snapshot)
    queries = [part.participant for part in manifest.parts if part.query is not None]
    expected = {(file.query, file.name): file for file in manifest.files}
    for query, path in _pinned_files(directory, queries):
        name = path.relative_to(pinned_path(directory, query)).as_posix()
        record = expected.pop((query, name), None)
        if record is None:
            raise Damaged(f"{path} is not of snapshot {manifest.snapshot}: somebody put it there")
        with explained(path, "read"):
            if path.stat().st_size != record.bytes or file_hash(path) != record.hash:
                raise Damaged(
                    f"{path} was changed since snapshot {manifest.snapshot} was published: use "
                    "another snapshot; checkpoints must not be edited"
                )
        progress(record.bytes)
    for query, name in expected:
        raise Damaged(
            f"{pinned_path(directory, query) / name} is missing from snapshot {manifest.snapshot}: "
            "use another snapshot"
        )


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pinned_files(directory: Path, queries: list[str]) -> Iterator[tuple[str, Path]]:
    for query in queries:
        for path in sorted(pinned_path(directory, query).rglob("*")):
            if path.is_file():
                yield query, path
