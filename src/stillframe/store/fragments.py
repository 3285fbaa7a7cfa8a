"""The parts of snapshots that processes write by themselves, each on the machine where it runs.

    DIR/topologies/5f1c….json            what they are parts of; sealed
    DIR/e1/P2/P1-17/manifest.json        what P2 recorded of snapshot P1-17 in epoch 1; sealed
    DIR/e1/P2/P1-17/processes.parquet    as in a snapshot of a store, the rows of this process

A fragment has its name when all of it is on the disk. Copied into one directory, the fragments of
all processes are snapshots again (``stillframe spark assemble``).
"""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

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
from stillframe.store.contents import write_directory
from stillframe.store.disk import PUT_BACK, sync
from stillframe.store.fragment_upkeep import make_room, put_shared, remove_left
from stillframe.store.here import Here
from stillframe.store.manifest import (
    FILES,
    HASH,
    MANIFEST,
    FileRecord,
    keyed_file,
    table_name,
)
from stillframe.store.opening import explained, listed
from stillframe.store.seal import FORMAT, read_sealed, seal
from stillframe.store.tables import Tables
from stillframe.topology import Description

TOPOLOGIES = "topologies"
ADVICE = f"{PUT_BACK}, or delete that fragment: its snapshot is incomplete then"
_EPOCH = re.compile(r"e([1-9]\d{0,8})")
_COUNT_MAX = 2**62
_SECONDS_MAX = 2**36
"""No clock says more, and no process takes longer."""


class Received(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of an incoming channel: how many messages were received before the cut, and how many were
    recorded after that, as on their way."""

    count: int
    recorded_count: int


class FragmentManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one process recorded of one snapshot. Times are seconds since 1970, by its own clock.

    Attributes:
        format: of this file.
        snapshot: of which it is a part.
        process: who recorded it.
        epoch: of the system.
        topology: the hash of its description.
        moment_s: when the process recorded its state, by a clock of its own that only goes forward,
            in seconds: it says which of two cuts in an epoch came first.
        recorded_at: the same, by the clock of its machine.
        completed_at: when all its markers had come, and all of it was encoded.
        pause_s: how long the process stood still, in seconds.
        capture_s: how long it took until the state was encoded, in seconds.
        base: the snapshot since which its keyed fields hold the changes; None if they are whole.
        sent: target -> how many messages were sent there before the cut.
        received: source -> what was received from there before the cut, and recorded after it.
        files: the tables beside the manifest.
    """

    format: int = FORMAT
    snapshot: SnapshotId
    process: ProcessId
    epoch: int
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
    """What fragments are parts of. `reference` is where the topology is, ``module:attribute``, if
    the process that wrote this knew it."""

    format: int = FORMAT
    reference: str | None
    description: Description


class FragmentPlace(msgspec.Struct, frozen=True, order=True):
    """Where a fragment is: whose, of which snapshot, and in which epoch."""

    epoch: int
    snapshot: SnapshotId
    process: ProcessId

    def path(self, directory: Path) -> Path:
        """Return its directory, among those in `directory`."""
        return directory / f"e{self.epoch}" / self.process / str(self.snapshot)


class FragmentWriter:
    """Writes the fragments of one process in one epoch, one after the other.

    Args:
        directory: where the fragments of all processes go.
        process: whose.
        epoch: of the system.
        topology: what it takes part in.
    """

    def __init__(
        self, directory: Path, process: ProcessId, epoch: int, topology: FragmentTopology
    ) -> None:
        self._directory = directory
        self._process = process
        self._epoch = epoch
        self._topology = topology
        self._hash = topology.description.hash
        self._tables = Tables(topology.description)
        self._here = Here()
        self._is_begun = False

    def write(
        self, fragment: Fragment, *, moment_s: float, recorded_at: float, completed_at: float
    ) -> None:
        """Write a fragment; when this returns it is on the disk, whole. Old ones may be removed.

        The times are as in `FragmentManifest`.

        Raises:
            NotConsistent, UsageError: it is not what the classes of the process say.
            StoreError: the disk is full or failed. Nothing of it is there.
        """
        place = FragmentPlace(self._epoch, fragment.snapshot, self._process)
        path = place.path(self._directory)
        with explained(path.parent, "written"):
            if not self._is_begun:
                self._begin(path.parent)
            make_room(path.parent)
        state = self._tables.split(fragment.snapshot, _alone(fragment))
        state.check_books()
        (own,) = state.processes
        is_whole = own.base is None
        names = fragment_files(self._topology.description, self._process, is_whole=is_whole)
        made = self._tables.of(fragment.snapshot, state)
        write_directory(
            path,
            {name: made[name] for name in names},
            self._tables.to_parquet,
            lambda files: FragmentManifest(
                snapshot=fragment.snapshot,
                process=self._process,
                epoch=self._epoch,
                topology=self._hash,
                moment_s=moment_s,
                recorded_at=recorded_at,
                completed_at=completed_at,
                pause_s=fragment.pause_s,
                capture_s=fragment.capture_s,
                base=own.base,
                sent=fragment.sent_counts,
                received={r.source: _received(r) for r in fragment.incoming},
                files=files,
            ),
            self._here,
        )

    def close(self) -> None:
        """End; what is being written is finished."""
        self._here.shutdown()

    def _begin(self, own: Path) -> None:
        own.mkdir(parents=True, exist_ok=True)
        remove_left(self._directory, self._process)
        topologies = self._directory / TOPOLOGIES
        topologies.mkdir(exist_ok=True)
        # Others write the same, at the same time; not all of them know where the topology is.
        put_shared(
            topologies / f"{self._hash}.json",
            seal(self._topology),
            self._process,
            replaces=self._topology.reference is not None,
        )
        for parent in (own.parent, self._directory):
            sync(parent)
        self._is_begun = True


def check_fragments_free(directory: Path, epoch: int) -> None:
    """Check that processes may write fragments of epochs from `epoch` on into `directory`.

    Raises:
        UsageError: it holds some already, or something else.
    """
    newest = max((place.epoch for place in fragment_places(directory)), default=0)
    if newest >= epoch:
        raise UsageError(
            f"{directory} holds fragments of epoch {newest} already, and nothing there is "
            f"overwritten: this system begins epoch {epoch}; give --fragments another directory"
        )


def fragment_files(
    description: Description, process: ProcessId, *, is_whole: bool
) -> tuple[str, ...]:
    """Return the names of the files of a fragment, in the order in which its manifest lists them.

    Raises:
        Damaged: no class or field can be called so.
    """
    kind = description.processes[process]
    fields = description.keyed.get(kind, {})
    return FILES + tuple(keyed_file(table_name(kind, f), is_whole=is_whole) for f in fields)


def fragment_places(directory: Path) -> list[FragmentPlace]:
    """Return where there are fragments in `directory`, by epoch, snapshot and process; none if
    there is no such directory.

    Raises:
        UsageError: it is a file, or holds something else.
        StoreError: it cannot be read.
    """
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file: fragments are in a directory")
    found: list[FragmentPlace] = []
    foreign: list[Path] = []
    with explained(directory, "read"):
        for of_epoch in _visible(directory):
            epoch = _EPOCH.fullmatch(of_epoch.name)
            if epoch is None or of_epoch.is_file():
                foreign += [of_epoch] if of_epoch.name != TOPOLOGIES else []
                continue
            for of_process in _visible(of_epoch):
                foreign += [of_process] if of_process.is_file() else []
                for path in _visible(of_process):
                    place = _place(int(epoch[1]), path)
                    if place is None:
                        foreign.append(path)
                    else:
                        found.append(place)
    if foreign:
        raise UsageError(
            f"{directory} holds what is no fragment: {listed(sorted(map(str, foreign)))}: move it "
            "away, or give the directory that 'stillframe run --fragments' wrote"
        )
    return sorted(found)


def read_topologies(directory: Path) -> dict[str, FragmentTopology]:
    """Return what the fragments in `directory` are parts of, by hash.

    Raises:
        Damaged: a file is not what was written.
        StoreError: it cannot be read.
    """
    found = {}
    topologies = directory / TOPOLOGIES
    with explained(topologies, "read"):
        paths = _visible(topologies)
    for path in paths:
        topology = read_sealed(path, FragmentTopology)
        if path.name != f"{topology.description.hash}.json":
            raise Damaged(f"{path} is of another topology than its name says: {PUT_BACK}")
        _check_names(path, topology.description)
        found[topology.description.hash] = topology
    return found


def read_fragment(
    directory: Path, place: FragmentPlace, topologies: Mapping[str, FragmentTopology]
) -> FragmentManifest:
    """Read the manifest of a fragment.

    Raises:
        Damaged: it is not what was written, or belongs somewhere else.
        StoreError: it cannot be read, or a newer version of Stillframe wrote it.
    """
    path = place.path(directory) / MANIFEST
    manifest = read_sealed(path, FragmentManifest, advice=ADVICE)
    if FragmentPlace(manifest.epoch, manifest.snapshot, manifest.process) != place:
        raise Damaged(
            f"{path} says that it is what {manifest.process} recorded of snapshot "
            f"{manifest.snapshot} in epoch {manifest.epoch}: put it back where it was"
        )
    if manifest.topology not in topologies:
        raise Damaged(
            f"{path} is part of a topology that is not in {directory / TOPOLOGIES}: put that file "
            "back from a copy"
        )
    description = topologies[manifest.topology].description
    if not _is_possible(manifest, description):
        raise Damaged(f"{path} says what cannot be of {place.process}: {ADVICE}")
    return manifest


def _check_names(path: Path, description: Description) -> None:
    """Check that what is called as `description` says can be files and directories.

    Raises:
        Damaged: it cannot; `path`, where it is said, is named.
    """
    try:
        for process in description.processes:
            check_process_id(process)
            fragment_files(description, process, is_whole=True)
    except (Damaged, UsageError) as error:
        raise Damaged(f"{path} describes what cannot be: {error}: {PUT_BACK}") from error


def _place(epoch: int, path: Path) -> FragmentPlace | None:
    """Return which fragment the directory `path` is; None if it is none."""
    try:
        process, snapshot = check_process_id(path.parent.name), SnapshotId.parse(path.name)
    except UsageError:
        return None
    # 'P1-017' would be a second name of P1-17.
    is_one = str(snapshot) == path.name and not path.is_file()
    return FragmentPlace(epoch, snapshot, process) if is_one else None


def _is_possible(manifest: FragmentManifest, description: Description) -> bool:
    process = manifest.process
    if process not in description.processes:
        return False
    counts = [*manifest.sent.values()]
    for received in manifest.received.values():
        counts += [received.count, received.recorded_count]
    times = (
        *(manifest.moment_s, manifest.recorded_at, manifest.completed_at),
        *(manifest.pause_s, manifest.capture_s),
    )
    base = manifest.base
    # Names are compared with what there may be, never used to make a path: '../x' leads nowhere.
    return (
        (base is None or _can_be_base(base, manifest, description))
        and tuple(sorted(manifest.sent)) == tuple(sorted(description.outgoing(process)))
        and tuple(sorted(manifest.received)) == tuple(sorted(description.incoming(process)))
        and all(0 <= count <= _COUNT_MAX for count in counts)
        and all(0 <= seconds <= _SECONDS_MAX for seconds in times)
        and tuple(record.name for record in manifest.files)
        == fragment_files(description, process, is_whole=base is None)
        and all(record.bytes >= 0 and HASH.fullmatch(record.hash) for record in manifest.files)
    )


def _can_be_base(base: SnapshotId, manifest: FragmentManifest, description: Description) -> bool:
    try:
        is_one = SnapshotId.parse(str(base)) == base
    except UsageError:
        return False
    is_keyed = description.processes[manifest.process] in description.keyed
    return is_one and is_keyed and base != manifest.snapshot


def _alone(fragment: Fragment) -> GlobalState:
    """Return the state of a system of this process alone: what its channels had sent to it follows
    from what it recorded."""
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


def _visible(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return [path for path in directory.iterdir() if not path.name.startswith(".")]
