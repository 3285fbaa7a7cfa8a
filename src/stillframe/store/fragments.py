"""Fragments: snapshots as each process writes its own share of them, on the machine where it runs.

    DIR/topologies/5f1c….json            the topology that they belong to; sealed
    DIR/e1/P2/P1-17/manifest.json        the fragment of P2 of snapshot P1-17 in epoch 1; sealed
    DIR/e1/P2/P1-17/processes.parquet    as in a snapshot of a store, the rows of this process

A fragment gets its name when all of it is on the disk; in an object store its manifest is put last
(``bucket_fragments``). Copied into one directory, the fragments of
all processes make snapshots again (``stillframe store assemble``).
"""

import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import msgspec

from stillframe.durable_files import sync, write_new
from stillframe.errors import Damaged, UsageError
from stillframe.model import (
    Channel,
    ChannelState,
    Fragment,
    GlobalState,
    IncomingRecord,
    ProcessId,
    SnapshotId,
    check_process_id,
)
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import FILE_ADVICE, FRAGMENT_ADVICE
from stillframe.store.bucket_fragments import EPOCH, BucketFragments, epochs_in
from stillframe.store.layout import (
    dropped_path,
    explain_io_errors,
    first_names,
    is_snapshot_id,
    parse_snapshot_id,
    unfinished,
    visible,
)
from stillframe.store.manifest import (
    MANIFEST,
    TOMBSTONE_BYTES_MAX,
    FileRecord,
    are_files,
    file_names,
    shared_fields,
)
from stillframe.store.sealed_json import FORMAT, read_sealed, seal
from stillframe.store.snapshot_directory import NewDirectory, new_directory
from stillframe.store.tables import Tables
from stillframe.topology import Description

TOPOLOGIES = "topologies"
KEPT_COUNT = 1024
"""Maximum fragments of a process in an epoch; the oldest are removed."""
_Place = TypeVar("_Place", Path, ObjectPath, Location)
_COUNT_MAX = 2**62
_SECONDS_MAX = 2**36
_NUMBER_MAX = 10**15
"""Of a snapshot: an assembled store must still have higher numbers."""
_RUN_LENGTH_MAX = 64


class Received(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The messages of an incoming channel: the number received before the cut, and the number in
    transit."""

    count: int
    recorded_count: int


class FragmentSource(msgspec.Struct, frozen=True):
    """The process and epoch that fragments come from.

    `run` is a name that no other epoch of any system has, `began_from` the snapshot that the epoch
    began from, if a store has it.
    """

    process: ProcessId
    epoch: int
    run: str
    began_from: SnapshotId | None


class FragmentManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The manifest of a fragment. Times are seconds since 1970, by the clock of the process.

    `run` and `began_from` are as in `FragmentSource`, `pause_s` and `capture_s` as in
    ``model.Fragment``; `topology` is the hash of its description. `moment_s` is when the process
    recorded its state, in seconds by a monotonic clock, which orders the cuts in an epoch, and
    `recorded_at` is the same by the clock of its machine; at `completed_at` all its markers had
    arrived, and everything was encoded. `base` is the snapshot since which its keyed fields hold
    the changes; None: all keys. `sent` has the number of messages sent to each target before the
    cut.
    """

    format: int = FORMAT
    snapshot: SnapshotId
    process: ProcessId
    epoch: int
    run: str
    began_from: SnapshotId | None
    topology: str
    moment_s: float
    recorded_at: float
    completed_at: float
    pause_s: float
    capture_s: float
    base: SnapshotId | None
    sent: dict[ProcessId, int]
    received: dict[ProcessId, Received]
    files: tuple[FileRecord, ...]


class FragmentTopology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The topology of fragments. `reference` is where it is defined, ``module:attribute``, if the
    process that wrote this file knew it."""

    format: int = FORMAT
    reference: str | None
    description: Description


class FragmentPlace(msgspec.Struct, frozen=True, order=True):
    """The location of a fragment: epoch, snapshot and process."""

    epoch: int
    snapshot: SnapshotId
    process: ProcessId

    def path(self, directory: _Place) -> _Place:
        """Return its directory, in the `directory` of all fragments."""
        return directory / f"e{self.epoch}" / self.process / str(self.snapshot)


class FragmentWriter:
    """Writes the fragments of one process in one epoch to the `directory` of all fragments."""

    def __init__(
        self, directory: Location, source: FragmentSource, topology: FragmentTopology
    ) -> None:
        self._directory = directory
        self._source = source
        self._topology = topology
        self._hash = topology.description.hash
        self._tables = Tables(topology.description)
        self._is_started = False
        self._files: DirectoryFragments | BucketFragments
        if isinstance(directory, ObjectPath):
            self._files = BucketFragments(directory, source.process, source.epoch)
        else:
            self._files = DirectoryFragments(directory, source.process, source.epoch)

    def write(
        self, fragment: Fragment, *, moment_s: float, recorded_at: float, completed_at: float
    ) -> None:
        """Write a fragment; when this returns, all of it is on the disk. Old ones may be removed.

        A NotConsistent or UsageError if it does not fit the classes of the process; after a
        StoreError, because the disk is full or failed, nothing of it exists.
        """
        source = self._source
        place = FragmentPlace(source.epoch, fragment.snapshot, source.process)
        path = place.path(self._directory)
        with explain_io_errors(path.parent, "written"):
            if not self._is_started:
                self._begin()
            self._files.make_room(KEPT_COUNT)
        state = self._tables.split(fragment.snapshot, _alone(fragment))
        state.check_books()
        (own,) = state.processes
        names = file_names(
            self._topology.description, is_full=own.base is None, process=source.process
        )
        made = self._tables.of(fragment.snapshot, state)
        with self._files.new(fragment.snapshot) as new:
            manifest = FragmentManifest(
                topology=self._hash,
                moment_s=moment_s,
                recorded_at=recorded_at,
                completed_at=completed_at,
                base=own.base,
                sent=fragment.sent_counts,
                received={r.source: _received(r) for r in fragment.incoming},
                files=new.write_tables({n: made[n] for n in names}, self._tables.to_parquet),
                **shared_fields(source, FragmentManifest),
                **shared_fields(fragment, FragmentManifest),
            )
            new.publish(manifest)

    def _begin(self) -> None:
        # Other processes write the same file at the same time; not all know the reference.
        self._files.begin(
            f"{TOPOLOGIES}/{self._hash}.json",
            seal(self._topology),
            replaces=self._topology.reference is not None,
        )
        self._is_started = True


class DirectoryFragments:
    """The place where a process writes the fragments of one epoch, below the `directory` of all."""

    def __init__(self, directory: Path, process: ProcessId, epoch: int) -> None:
        self._directory = directory
        self._process = process
        self._own = directory / f"e{epoch}" / process

    def begin(self, topology: str, content: bytes, *, replaces: bool) -> None:
        """Remove what this process left unfinished earlier, and write the file `topology` of the
        directory; an existing one stays unless `replaces`."""
        path = self._directory / topology
        self._own.mkdir(parents=True, exist_ok=True)
        for earlier in self._directory.glob(f"e*/{self._process}"):
            for left in unfinished(earlier):
                shutil.rmtree(left, ignore_errors=True)
        path.parent.mkdir(exist_ok=True)
        put_shared(path, content, self._process, replaces=replaces)
        for parent in (self._own.parent, self._directory):
            sync(parent)

    def make_room(self, kept_count: int) -> None:
        """Remove the oldest fragments, until there are fewer than `kept_count`."""
        there = visible(self._own)
        if len(there) < kept_count:
            return
        # A foreign file is left to readers, which report it.
        found = [s for path in there if (s := parse_snapshot_id(path.name)) is not None]
        found.sort(key=lambda snapshot: snapshot.number)
        for snapshot in found[: max(0, len(found) - kept_count + 1)]:
            path = self._own / str(snapshot)
            # Rename it first: no reader may see it disappear file by file.
            shutil.rmtree(path.rename(dropped_path(path)))

    def new(self, snapshot: SnapshotId) -> AbstractContextManager[NewDirectory]:
        """Return a context in which a fragment is written: call ``write_tables``, then ``publish``.
        A StoreError says what failed, and what to do."""
        return new_directory(self._own / str(snapshot), None)


def put_shared(path: Path, content: bytes, process: ProcessId, *, replaces: bool) -> None:
    """Write a file that other processes may write at the same time; readers never see part of it.
    An existing file stays unless `replaces`."""
    partial = path.with_name(f".{path.name}.{process}.partial")
    partial.unlink(missing_ok=True)
    try:
        write_new(partial, content)
        sync(partial)
        if not replaces:
            try:
                os.link(partial, path)
            except OSError:  # the file exists, or its file system has no hard links
                replaces = not path.exists()
        if replaces:
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


def _alone(fragment: Fragment) -> GlobalState:
    """Return the state of a system of this process alone; what was sent to it is derived."""
    process = fragment.state.process
    channels = tuple(
        ChannelState(
            Channel(record.source, process),
            record.received_count + _received(record).recorded_count,
            record.received_count,
            record.batches,
        )
        for record in fragment.incoming
    )
    return GlobalState((fragment.state,), channels)


def _received(record: IncomingRecord) -> Received:
    return Received(record.received_count, sum(batch.count for batch in record.batches))


def check_own_unused(directory: Location, source: FragmentSource) -> None:
    """Raise a UsageError if another run has written fragments of this process and epoch, even
    unfinished ones in an object store."""
    own = directory / f"e{source.epoch}" / source.process
    there = _children(own)
    if there:
        raise UsageError(
            f"{there[0]} belongs to another run of epoch {source.epoch}, and is not "
            "overwritten: give --fragment-dir another directory"
        )


def check_fragments_unused(directory: Location, epoch: int) -> None:
    """Check that processes may write fragments of epochs from `epoch` on into `directory`; a
    UsageError if it holds some already, or something else."""
    if isinstance(directory, ObjectPath):
        with explain_io_errors(directory, "read"):
            there = epochs_in(directory)
    else:
        there = [place.epoch for place in find_fragments(directory)]
    newest = max(there, default=0)
    if newest >= epoch:
        raise UsageError(
            f"{directory} already holds fragments of epoch {newest}, which are not overwritten, "
            f"and this system starts epoch {epoch}; give --fragment-dir another directory"
        )


def find_fragments(directory: Location) -> list[FragmentPlace]:
    """Return the fragments in `directory`, sorted; a UsageError if it holds something else."""
    with explain_io_errors(directory, "read"):
        if isinstance(directory, ObjectPath):
            found, foreign = _find_objects(directory)
        else:
            found, foreign = _find_directories(directory)
    if foreign:
        raise UsageError(
            f"{directory} holds files that are not fragments: "
            f"{first_names(sorted(map(str, foreign)))}: move them away, or give the directory "
            "that 'stillframe run --fragment-dir' wrote"
        )
    return sorted(found)


_Found = tuple[list[FragmentPlace], list[Location]]
"""The fragments, and what is none."""


def _find_directories(directory: Path) -> _Found:
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file: fragments are stored in a directory")
    found: list[FragmentPlace] = []
    foreign: list[Location] = []
    for of_epoch in visible(directory):
        epoch = EPOCH.fullmatch(of_epoch.name)
        if epoch is None or of_epoch.is_file():
            foreign += [of_epoch] if of_epoch.name != TOPOLOGIES else []
            continue
        for of_process in visible(of_epoch):
            foreign += [of_process] if of_process.is_file() else []
            for path in visible(of_process):
                place = None if path.is_file() else _place(int(epoch[1]), path)
                if place is None:
                    foreign.append(path)
                else:
                    found.append(place)
    return found, foreign


def _find_objects(directory: ObjectPath) -> _Found:
    """Return those that have a manifest which is no tombstone, from one listing."""
    found: list[FragmentPlace] = []
    foreign: list[Location] = []
    for path, byte_count in storage_of(directory).files_below(directory):
        assert isinstance(path, ObjectPath)
        parts = path.relative_to(directory).split("/")
        if any(part.startswith(".") for part in parts) or parts[0] == TOPOLOGIES:
            continue
        epoch = EPOCH.fullmatch(parts[0])
        place = None if epoch is None else _place(int(epoch[1]), path.parent)
        if place is None or place.path(directory) != path.parent:
            foreign.append(path)
        elif path.name == MANIFEST and (byte_count or 0) > TOMBSTONE_BYTES_MAX:
            found.append(place)
    return found, foreign


def _children(directory: Location) -> list[Location]:
    """Return what is in a directory, except for hidden names; nothing if there is no such one."""
    with explain_io_errors(directory, "read"):
        if not isinstance(directory, ObjectPath):
            return [*visible(directory)]
        found = [one.location for one in storage_of(directory).children(directory)]
        return [path for path in found if not path.name.startswith(".")]


def read_topologies(directory: Location) -> dict[str, FragmentTopology]:
    """Return the topologies of fragments by hash; errors as for ``read_sealed``."""
    found = {}
    for path in _children(directory / TOPOLOGIES):
        topology = read_sealed(path, FragmentTopology)
        if path.name != f"{topology.description.hash}.json":
            raise Damaged(
                f"{path} was renamed: its name is not the hash of its topology",
                path=path,
                remedy=FILE_ADVICE,
            )
        _check_names(path, topology.description)
        found[topology.description.hash] = topology
    return found


def read_fragment(
    directory: Location, place: FragmentPlace, topologies: Mapping[str, FragmentTopology]
) -> FragmentManifest:
    """Read a manifest; errors as for ``read_sealed``, also if it belongs somewhere else."""
    path = place.path(directory) / MANIFEST
    manifest = read_sealed(path, FragmentManifest, advice=FRAGMENT_ADVICE)
    if FragmentPlace(manifest.epoch, manifest.snapshot, manifest.process) != place:
        raise Damaged(
            f"{path} was moved: its process, snapshot or epoch differs from its path; put it back "
            "where it was",
            path=path,
        )
    if manifest.topology not in topologies:
        raise Damaged(
            f"{path} belongs to a topology that is not in {directory / TOPOLOGIES}: put that "
            "file back from a copy",
            path=path,
        )
    description = topologies[manifest.topology].description
    if not _is_possible(manifest, description):
        raise Damaged(
            f"{path} contains values that are impossible for {place.process}",
            path=path,
            remedy=FRAGMENT_ADVICE,
        )
    return manifest


def _check_names(path: Location, description: Description) -> None:
    """Raise a Damaged if a name in a description can be no file or directory."""
    try:
        for process, kind in description.processes.items():
            check_process_id(process)
            file_names(description, is_full=True, process=process)
            if kind not in description.states:
                raise UsageError(f"the class of process {process} is unknown")
        for channel in description.channels:
            description.check_process(channel.source)
            description.check_process(channel.target)
    except (Damaged, UsageError) as error:
        raise Damaged(f"{path} is not valid: {error}", path=path, remedy=FILE_ADVICE) from error


def _place(epoch: int, path: Location) -> FragmentPlace | None:
    try:
        process = check_process_id(path.parent.name)
    except UsageError:
        return None
    snapshot = parse_snapshot_id(path.name)
    if snapshot is None or snapshot.number > _NUMBER_MAX:
        return None
    return FragmentPlace(epoch, snapshot, process)


def _is_possible(manifest: FragmentManifest, description: Description) -> bool:
    process, base, began_from = manifest.process, manifest.base, manifest.began_from
    if process not in description.processes:
        return False
    counts = [*manifest.sent.values()]
    for received in manifest.received.values():
        counts += [received.count, received.recorded_count]
    times = (
        *(manifest.moment_s, manifest.recorded_at, manifest.completed_at),
        *(manifest.pause_s, manifest.capture_s),
    )
    is_keyed = description.processes[process] in description.keyed
    is_base = base is not None and base != manifest.snapshot and is_snapshot_id(base)
    names = file_names(description, is_full=base is None, process=process)
    return (
        (base is None or (is_keyed and is_base))
        and (began_from is None or is_snapshot_id(began_from))
        and 0 < len(manifest.run) <= _RUN_LENGTH_MAX
        and tuple(sorted(manifest.sent)) == tuple(sorted(description.outgoing(process)))
        and tuple(sorted(manifest.received)) == tuple(sorted(description.incoming(process)))
        and all(0 <= count <= _COUNT_MAX for count in counts)
        and all(0 <= seconds <= _SECONDS_MAX for seconds in times)
        and are_files(manifest.files, names)
    )
