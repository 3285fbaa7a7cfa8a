"""Published snapshots of a pipeline: a manifest, and the pinned checkpoints of its queries.

    ROOT/snapshots/shop-17/manifest.json          every fragment, channel, and file with its hash
    ROOT/snapshots/shop-17/checkpoints/enrich/    the checkpoint of a query, as hard links

The records on a channel at the cut are not copied: the manifest names the positions in the log
between which they lie, and the log keeps those entries as long as the snapshot exists.

The books of a channel are checked twice, like those of a system (``channel_accounting``): the
counts before a snapshot is published, since a long backlog must not delay it, and every record in
between before the snapshot is restored.
"""

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stillframe.channel_accounting import contradiction, impossible_counts
from stillframe.errors import Damaged, NotConsistent, UsageError
from stillframe.model import SnapshotId, check_process_id
from stillframe.pipeline import checkpoint
from stillframe.pipeline.dataflow import Dataflow
from stillframe.pipeline.log import TO_MEND, LogReader
from stillframe.pipeline.metadata import (
    POSITION_END,
    Metadata,
    Segment,
    check_timeline,
    described_in,
    read_object_metadata,
)
from stillframe.pipeline.pending_snapshot import (
    PINNED,
    ParticipantFragment,
    QueryState,
    SystemCut,
    check_fragments,
    request_path,
)
from stillframe.pipeline.topics import Offset, Partition, TopicPositions
from stillframe.protocol.aligner import Mode
from stillframe.storage.files import Place, below, mapped
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import SNAPSHOT_ADVICE
from stillframe.store.layout import explain_io_errors
from stillframe.store.sealed_json import FORMAT, read_sealed

SNAPSHOTS = "snapshots"
MANIFEST = "manifest.json"
_CHUNK_BYTES = 2**23


class ChannelCut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A channel at the cut: one log as one of its targets reads it.

    The records between the position of the target and the barrier are the state of the channel. In
    mode at-least-once the target may have read past the barrier: after a restore it receives those
    records twice.

    Attributes:
        log: the name of the channel.
        target: who reads it.
        position: the entry of the log up to which the target had read.
        barrier: the entry at which the source put the barrier.
        received_counts: how many records of each partition the target had read.
        sent_counts: how many records of each partition were sent before the barrier.
    """

    log: str
    target: str
    position: int
    barrier: int
    received_counts: tuple[int, ...]
    sent_counts: tuple[int, ...]

    @property
    def sent_count(self) -> int:
        """How many records were sent before the barrier."""
        return sum(self.sent_counts)

    @property
    def received_count(self) -> int:
        """How many records the target had read."""
        return sum(self.received_counts)

    @property
    def record_count(self) -> int:
        """How many records were on the channel."""
        return max(0, self.sent_count - self.received_count)

    @property
    def duplicate_count(self) -> int:
        """How many records the target will receive a second time after a restore."""
        return max(0, self.received_count - self.sent_count)

    def document(self) -> dict[str, Any]:
        """Return the target, where the cut lies on the channel, and the counts."""
        return {
            "target": self.target,
            "position": self.position,
            "barrier": self.barrier,
            "sent_count": self.sent_count,
            "received_count": self.received_count,
            "record_count": self.record_count,
            "duplicate_count": self.duplicate_count,
        }

    def books(self) -> Iterator[tuple[str, int, int]]:
        """Yield for each partition its name and the numbers of records between which its books must
        balance. They are those received and sent, or the reverse if the target has read past the
        barrier."""
        before, after, note = self.received_counts, self.sent_counts, ""
        if self.position > self.barrier:
            before, after = after, before
            note = ", read past its barrier (counts of source and target exchanged)"
        for partition, counts in enumerate(zip(before, after, strict=True)):
            yield (f"{self.log} to {self.target}, partition {partition}{note}", *counts)


class TopicCut(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A topic of Kafka at the cut. The records on the channel are those that count, from the
    position of a target on, of the micro-batches of the source up to that of the cut.

    Attributes:
        channel: the name of the channel.
        positions: the position of each target on each partition that it reads: the offset of the
            next record.
        ends: where the partitions ended when the snapshot was taken; every record of the cut has a
            lower offset.
        topic_id: the id that Kafka gave the topic when it was created; empty if it gave none.
    """

    channel: str
    positions: dict[str, dict[Partition, Offset]]
    ends: dict[Partition, Offset]
    topic_id: str = ""


class PinnedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a pinned checkpoint: its path below it, its length and its SHA-256. `inode` and
    `changed_at_ns` let the next snapshot recognize a file without reading it."""

    query: str
    name: str
    bytes: int
    hash: str
    inode: int
    changed_at_ns: int


class Manifest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A published snapshot of a pipeline: the content of its ``manifest.json``. Times are seconds
    since 1970.

    Attributes:
        snapshot: its id, such as ``shop-17``.
        name: the name of the savepoint; None if it is not one.
        epoch: the epoch of the pipeline.
        mode: how it was taken.
        initiated_at: when it was requested.
        completed_at: when the last participant had recorded.
        published_at: when all of it was on the disk.
        dataflow: the queries, services and channels of the pipeline at that time.
        channels: where the cut lies on each channel that is a log, for each target.
        topics: where it lies on each channel that is a topic of Kafka.
        staleness_s: in mode retained, how long before the snapshot the first micro-batch was
            planned that is not part of it, or, if none was, the first unread record arrived in a
            topic; 0 if nothing is left out. None in others.
        data_age_s: how long before the snapshot the first record arrived in a topic that its target
            has not read at the cut; 0 if there is none. None without topics.
    """

    # Always written: a default that is made is none to msgspec.
    format: int = msgspec.field(default_factory=lambda: FORMAT)
    snapshot: SnapshotId
    name: str | None
    epoch: int
    mode: Mode
    initiated_at: float
    completed_at: float
    published_at: float
    dataflow: Dataflow
    segments: dict[str, tuple[Segment, ...]]
    batches: dict[str, tuple[Segment, ...]]
    fragments: tuple[ParticipantFragment, ...]
    systems: tuple[SystemCut, ...]
    channels: tuple[ChannelCut, ...]
    files: tuple[PinnedFile, ...]
    topics: tuple[TopicCut, ...] = ()
    staleness_s: float | None = None
    data_age_s: float | None = None

    def fragment(self, participant: str) -> ParticipantFragment:
        """Return what one participant recorded; UsageError if there is no such participant."""
        for fragment in self.fragments:
            if fragment.participant == participant:
                return fragment
        names = ", ".join(fragment.participant for fragment in self.fragments)
        raise UsageError(
            f"snapshot {self.snapshot} has no participant {participant!r}; it has {names}"
        )

    def cut(self, log: str, target: str) -> ChannelCut:
        """Return where the cut lies on a channel; UsageError if that target does not read it."""
        found = [cut for cut in self.channels if cut.log == log]
        for cut in found:
            if cut.target == target:
                return cut
        raise UsageError(
            f"{target!r} does not read channel {log!r}; its targets are "
            f"{', '.join(cut.target for cut in found) or 'none'}"
        )

    def topic_positions(self, participant: str) -> TopicPositions:
        """Return where the cut lies on the topics that a participant reads."""
        return {
            cut.channel: cut.positions[participant]
            for cut in self.topics
            if participant in cut.positions
        }

    def reader(self, root: Location, log: str) -> LogReader:
        """Return a reader of a log as it was at the snapshot, of the pipeline at `root`."""
        return LogReader(root, self.dataflow.log(log), self.segments[log])

    def first_needed(self, log: str) -> int:
        """Return the first entry of a log that the snapshot needs: the one before the first to be
        read, which holds the offsets at which that one begins."""
        at = [cut.position for cut in self.channels if cut.log == log]
        return max(0, min([*at, self.barriers.get(log, 0)]) - 1)

    @property
    def barriers(self) -> dict[str, int]:
        """The position of the barrier on each log."""
        return {log: at for fragment in self.fragments for log, at in fragment.barriers.items()}

    @property
    def queries(self) -> tuple[str, ...]:
        """The participants whose state is a checkpoint."""
        return tuple(one.participant for one in self.fragments if one.query is not None)

    @property
    def last_batches(self) -> dict[str, int]:
        """The last committed micro-batch of each query that has one."""
        recorded = {one.participant: one.query for one in self.fragments if one.query is not None}
        return {n: state.batch for n, state in recorded.items() if state.batch is not None}

    @property
    def pinned_batches(self) -> dict[str, int]:
        """The micro-batch of each query with a pinned checkpoint; `checkpoint.START` if the query
        had planned its start, and not committed any."""
        started = {file.query: checkpoint.START for file in self.files}
        return started | self.last_batches

    def pinned(self, root: Place, query: str) -> Place:
        """Return where the pipeline at `root` keeps the checkpoint of a query in the snapshot."""
        state = self.fragment(query).query
        return pinned_path(snapshot_path(root, self.snapshot), query, state)

    @property
    def record_count(self) -> int:
        """How many records were in transit in logs. Those in topics of Kafka are not counted."""
        return sum(channel.record_count for channel in self.channels)

    @property
    def duplicate_count(self) -> int:
        """How many records a restore would deliver twice."""
        return sum(channel.duplicate_count for channel in self.channels)

    @property
    def unaligned(self) -> tuple[str, ...]:
        """The participants of an aligned snapshot that recorded unaligned, with records in transit
        to them: they did not run, or could not wait for barriers."""
        if self.mode is not Mode.ALIGNED:
            return ()
        return tuple(sorted({cut.target for cut in self.channels if cut.record_count}))

    @property
    def mode_words(self) -> str:
        """The mode, and who recorded unaligned nevertheless."""
        unaligned = f" ({', '.join(self.unaligned)} unaligned)" if self.unaligned else ""
        return f"{self.mode}{unaligned}"

    @property
    def bytes(self) -> int:
        """The length of all files of its checkpoints; most are shared with other snapshots."""
        return sum(file.bytes for file in self.files)


def snapshot_path(root: Place, snapshot: SnapshotId) -> Place:
    """Return the directory of a published snapshot."""
    return below(root, SNAPSHOTS, str(snapshot))


def pinned_path(directory: Place, query: str, state: QueryState | None = None) -> Place:
    """Return where a snapshot, pending or published, keeps the checkpoint of a query with this
    recorded state. In an object store runs of the query have separate places, because two may have
    recorded."""
    place = below(directory, PINNED, query)
    if state is None or state.run is msgspec.UNSET:
        return place
    return below(place, f"run-{state.run}")


def pinning_directory(root: Location, snapshot: SnapshotId) -> Location:
    """Return where a pending snapshot pins checkpoints: in an object store in its final place, as
    nothing is renamed there."""
    if isinstance(root, ObjectPath):
        return snapshot_path(root, snapshot)
    return request_path(root, snapshot)


def readable_manifests(root: Location) -> list[Manifest]:
    """Return the published snapshots whose manifests are intact, as they were published."""
    return listing(root)[0]


def listing(root: Location) -> tuple[list[Manifest], dict[SnapshotId, Damaged]]:
    """Return ``readable_manifests``, and what is wrong with the other published snapshots."""
    found: list[Manifest] = []
    damages: dict[SnapshotId, Damaged] = {}
    for snapshot in published_ids(root):
        try:
            found.append(read_manifest(root, snapshot, is_known=True))
        except Damaged as damage:
            damages[snapshot] = damage
        except UsageError:
            continue  # it was deleted meanwhile
    return found, damages


def is_published(root: Location, snapshot: SnapshotId) -> bool:
    """Return whether there is a published snapshot of that id."""
    if isinstance(root, ObjectPath):
        return read_object_metadata(root)[0].has_published(snapshot)
    return snapshot_path(root, snapshot).exists()


def published_ids(root: Location) -> list[SnapshotId]:
    """Return the ids of all published snapshots in the order in which they were published."""
    if isinstance(root, ObjectPath):
        ids = read_object_metadata(root)[0].published_ids()
        return sorted(ids, key=lambda snapshot: snapshot.number)
    found = []
    with explain_io_errors(root / SNAPSHOTS, "read"):
        for path in (root / SNAPSHOTS).glob("[!.]*"):
            try:
                found.append(SnapshotId.parse(path.name))
            except UsageError:
                raise Damaged(
                    f"{path} is not a snapshot: move it to another directory", path=path
                ) from None
    # A number is used once, even when a pipeline is forked or restored.
    return sorted(found, key=lambda snapshot: snapshot.number)


def read_manifest(root: Location, snapshot: SnapshotId, *, is_known: bool = False) -> Manifest:
    """Return the manifest of one snapshot; UsageError if there is no such snapshot. It `is_known`
    if its id is from ``published_ids``."""
    path = snapshot_path(root, snapshot) / MANIFEST
    if not (is_known and isinstance(root, ObjectPath)) and not is_published(root, snapshot):
        raise _no_snapshot(root, snapshot)
    try:
        manifest = read_sealed(path, Manifest, advice=SNAPSHOT_ADVICE)
    except Damaged:
        if not is_published(root, snapshot):
            raise _no_snapshot(root, snapshot) from None  # it was deleted meanwhile
        raise
    if manifest.snapshot != snapshot:
        raise Damaged(f"{path} belongs to snapshot {manifest.snapshot}", path=path)
    with described_in(path):
        _check_names(manifest)
    return manifest


def _no_snapshot(root: Location, snapshot: SnapshotId) -> UsageError:
    names = ", ".join(str(one) for one in published_ids(root))
    return UsageError(
        f"there is no snapshot {snapshot} in {root}; there are: {names or 'none'}",
        path=root,
        snapshot=snapshot,
    )


def _check_names(manifest: Manifest) -> None:
    """Check every name and number of a manifest that becomes part of a path."""
    flow = manifest.dataflow
    check_timeline(flow, manifest.epoch, manifest.segments, manifest.batches)
    if manifest.name is not None:
        check_process_id(manifest.name)
    check_fragments(flow, manifest.fragments)
    ends = [(log.name, target) for log in flow.logs for target in log.targets]
    if [(cut.log, cut.target) for cut in manifest.channels] != ends:
        raise UsageError("it does not have one cut of each channel")
    readers = [(topic.name, list(topic.targets)) for topic in flow.topics]
    if [(cut.channel, sorted(cut.positions)) for cut in manifest.topics] != readers:
        raise UsageError("it does not have one cut of each topic")
    for cut in manifest.channels:
        count = flow.log(cut.log).partition_count
        numbers = (cut.position, cut.barrier, *cut.received_counts, *cut.sent_counts)
        is_possible = min(numbers) >= 0 and max(cut.position, cut.barrier) < POSITION_END
        if not (is_possible and len(cut.received_counts) == len(cut.sent_counts) == count):
            raise UsageError(f"channel {cut.log} to {cut.target} cannot be cut at {numbers}")


def find(root: Location, name: SnapshotId | str) -> Manifest:
    """Return the snapshot with that id, or the newest savepoint of that name, as ``find_id``."""
    return read_manifest(root, find_id(root, name))


def find_id(root: Location, name: SnapshotId | str) -> SnapshotId:
    """Return the id that `name` is, or else that of the newest savepoint of that name; UsageError
    if there is neither. Damage to other manifests does not matter, nor to that of an id."""
    text = str(name)
    by_id = {str(snapshot): snapshot for snapshot in published_ids(root)}
    if text in by_id:
        return by_id[text]
    names = {manifest.snapshot: manifest.name for manifest in readable_manifests(root)}
    for snapshot, savepoint in reversed(names.items()):
        if savepoint == text:
            return snapshot
    known = ", ".join(names.get(snapshot) or id_ for id_, snapshot in by_id.items()) or "none"
    raise UsageError(
        f"there is no snapshot and no savepoint {text!r} in {root}; there are: {known}",
        path=root,
        snapshot=text,
    )


# --- pinned files


def hashed_files(
    directory: Path, queries: Iterable[str], known: list[PinnedFile]
) -> list[PinnedFile]:
    """Return every pinned file in the `directory` of a snapshot, with its hash. Those that are
    `known` from the snapshot before are not read again."""
    by_inode = {(f.inode, f.bytes, f.changed_at_ns): f.hash for f in known}
    found = []
    places = {query: pinned_path(directory, query) for query in queries}
    for query, name, path in _pinned_files(places):
        with explain_io_errors(path, "read"):
            status = path.stat()
            identity = (status.st_ino, status.st_size, status.st_mtime_ns)
            digest = by_inode.get(identity) or file_hash(path)
        inode, size, changed_at_ns = identity
        found.append(PinnedFile(query, name, size, digest, inode, changed_at_ns))
    return found


def hashed_objects(
    directory: ObjectPath, states: Mapping[str, QueryState], known: list[PinnedFile]
) -> list[PinnedFile]:
    """Return the pinned files in the `directory` of a snapshot that are needed after the last
    micro-batch of each query, with their hashes. Those with a unique name that are `known` from the
    snapshot before are not read again."""
    by_name = {(f.query, f.name): f for f in known if f.name.endswith(checkpoint.UNIQUE)}

    def hashed(place: tuple[str, str]) -> PinnedFile:
        query, name = place
        path = below(pinned_path(directory, query, states[query]), name)
        with explain_io_errors(path, "read"):
            return by_name.get(place) or PinnedFile(*place, *_object_hash(path), 0, 0)

    found: list[PinnedFile] = []
    for query, state in sorted(states.items()):
        batch = checkpoint.START if state.batch is None else state.batch
        with explain_io_errors(directory, "read"):
            named = checkpoint.pinned_files(pinned_path(directory, query, state), batch)
        found += mapped(directory, hashed, [(query, name) for name in named])
    return found


def _object_hash(path: ObjectPath) -> tuple[int, str]:
    """Return the length and the SHA-256 of an object."""
    digest, length, storage = hashlib.sha256(), 0, storage_of(path)
    while chunk := storage.read_range(path, length, _CHUNK_BYTES):
        digest.update(chunk)
        length += len(chunk)
        if len(chunk) < _CHUNK_BYTES:
            break
    return length, digest.hexdigest()


def _verify_objects(root: ObjectPath, manifest: Manifest, progress: Callable[[int], None]) -> None:
    def verify(file: PinnedFile) -> int:
        path = below(manifest.pinned(root, file.query), file.name)
        with explain_io_errors(path, "read"):
            try:
                found = _object_hash(path)
            except FileNotFoundError:
                raise _missing(path, manifest) from None
        if found != (file.bytes, file.hash):
            raise _changed(path, manifest)
        return file.bytes

    expected = {(file.query, file.name) for file in manifest.files}
    for query, batch in manifest.pinned_batches.items():
        pinned = manifest.pinned(root, query)
        with explain_io_errors(pinned, "read"):
            for name in checkpoint.pinned_files(pinned, batch):
                if (query, name) not in expected:
                    raise _added(below(pinned, name), manifest)
    for length in mapped(root, verify, manifest.files):
        progress(length)


def _missing(path: Location, manifest: Manifest) -> Damaged:
    return Damaged(
        f"{path} is missing from snapshot {manifest.snapshot}: use another snapshot", path=path
    )


def _added(path: Location, manifest: Manifest) -> Damaged:
    return Damaged(
        f"{path} does not belong to snapshot {manifest.snapshot}: it was added later", path=path
    )


def _changed(path: Location, manifest: Manifest) -> Damaged:
    return Damaged(
        f"{path} was changed since snapshot {manifest.snapshot} was published: use another "
        "snapshot; checkpoints must not be edited",
        path=path,
    )


def verify_files(root: Location, manifest: Manifest, progress: Callable[[int], None]) -> None:
    """Raise Damaged if a file of a pinned checkpoint was changed, is missing, or was added.
    `progress` is called with the length of each file that was read."""
    if not manifest.queries and not manifest.files:
        return
    if isinstance(root, ObjectPath):
        _verify_objects(root, manifest, progress)
        return
    expected = {(file.query, file.name): file for file in manifest.files}
    places = {query: manifest.pinned(root, query) for query in manifest.queries}
    for query, name, path in _pinned_files(places):
        record = expected.pop((query, name), None)
        if record is None:
            raise _added(path, manifest)
        with explain_io_errors(path, "read"):
            if path.stat().st_size != record.bytes or file_hash(path) != record.hash:
                raise _changed(path, manifest)
        progress(record.bytes)
    for query, name in expected:
        raise _missing(places[query] / name, manifest)


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pinned_files(places: Mapping[str, Path]) -> Iterator[tuple[str, str, Path]]:
    for query, pinned in places.items():
        for path in sorted(pinned.rglob("*")):
            if path.is_file():
                yield query, path.relative_to(pinned).as_posix(), path


# --- the books of channels


def cut_channels(
    root: Location, metadata: Metadata, fragments: dict[str, ParticipantFragment], mode: Mode
) -> list[ChannelCut]:
    """Return what was on every channel at the cut, with the counts of its books checked. Raises
    NotConsistent if a target had read what its source had not sent, or an entry in between is
    missing.
    """
    cuts = []
    for log in metadata.dataflow.logs:
        reader = LogReader(root, log, metadata.segments[log.name])
        barrier = fragments[log.source].barriers[log.name]
        for target in log.targets:
            position = fragments[target].positions[log.name]
            _check_entries_exist(reader, target, position, barrier)
            if position > barrier and mode is not Mode.AT_LEAST_ONCE:
                raise NotConsistent(
                    f"channel {log.name} to {target}: the target had read up to entry "
                    f"{position} at its cut, and the barrier is entry {barrier}"
                )
            received, sent = reader.offsets_at(position), reader.offsets_at(barrier)
            cut = ChannelCut(log.name, target, position, barrier, received, sent)
            for name, before, after in cut.books():
                if why := impossible_counts(name, after, before, "records"):
                    raise NotConsistent(why)
            cuts.append(cut)
    return cuts


def _check_entries_exist(reader: LogReader, target: str, position: int, barrier: int) -> None:
    """Check that all entries between a target and the barrier exist, and the one before, which
    holds the offsets at which they begin."""
    first, last = sorted((position, barrier))
    missing = reader.first_missing(max(0, first - 1), last)
    if missing is not None:
        raise NotConsistent(
            f"channel {reader.log.name} to {target}: {reader.entry_path(missing)} is missing, and "
            f"the target had read up to entry {position}, the barrier is entry {barrier}",
            remedy=TO_MEND,
        )


def check_channels(root: Location, manifest: Manifest) -> None:
    """Check that every channel's records are in the logs, and that the books balance; NotConsistent
    if they do not."""
    readers = {log.name: manifest.reader(root, log.name) for log in manifest.dataflow.logs}
    for log, barrier in manifest.barriers.items():
        readers[log].offsets_at(barrier)  # the next append needs the entry before it
    for cut in manifest.channels:
        reader, (first, last) = readers[cut.log], sorted((cut.position, cut.barrier))
        # Without any entry in between, the offsets there must be what was received and sent.
        bounds = [(reader.offsets_at(first),) * 2]
        bounds += [(entry.offsets, entry.next_offsets) for entry in reader.entries(first, last)]
        for partition, (name, before, after) in enumerate(cut.books()):
            ranges = [(begin[partition], end[partition]) for begin, end in bounds]
            held = ((begin + 1, end - begin, end - begin) for begin, end in ranges)
            if why := contradiction(name, after, before, held, "records"):
                raise NotConsistent(why)
    for log, reader in readers.items():
        ends = [(cut.position, cut.barrier) for cut in manifest.channels if cut.log == log]
        first = min((position for position, _ in ends), default=0)
        last = max((barrier for _, barrier in ends), default=0)
        for _ in mapped(root, functools.partial(_read_all, reader), range(first, last)):
            pass


def _read_all(reader: LogReader, number: int) -> None:
    reader.table(reader.entry(number))
