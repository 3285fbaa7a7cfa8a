"""The parts of snapshots that processes write by themselves, each on the machine where it runs.

    DIR/topologies/5f1c….json            what they are parts of; sealed
    DIR/e1/P2/P1-17/manifest.json        what P2 recorded of snapshot P1-17 in epoch 1; sealed
    DIR/e1/P2/P1-17/processes.parquet    as in a snapshot of a store, the rows of this process

A fragment has its name when all of it is on the disk. Copied into one directory, the fragments of
all processes are snapshots again (``stillframe spark assemble``).
"""

from pathlib import Path

import msgspec

from stillframe.model import (
    Channel,
    ChannelState,
    Fragment,
    GlobalState,
    IncomingRecord,
    ProcessId,
    SnapshotId,
)
from stillframe.store.contents import write_directory
from stillframe.store.disk import sync
from stillframe.store.fragment_upkeep import make_room, put_shared, remove_left
from stillframe.store.here import Here
from stillframe.store.manifest import (
    FILES,
    FileRecord,
    keyed_file,
    table_name,
)
from stillframe.store.opening import explained
from stillframe.store.seal import FORMAT, seal
from stillframe.store.tables import Tables
from stillframe.topology import Description

TOPOLOGIES = "topologies"


class Received(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of an incoming channel: how many messages were received before the cut, and how many were
    recorded after that, as on their way."""

    count: int
    recorded_count: int


class Life(msgspec.Struct, frozen=True):
    """What a process does in one epoch.

    Attributes:
        process: which.
        epoch: of the system.
        run: a name that no other epoch of any system has.
        began_from: the snapshot that the epoch began from, if a store has it.
    """

    process: ProcessId
    epoch: int
    run: str
    began_from: SnapshotId | None


class FragmentManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one process recorded of one snapshot. Times are seconds since 1970, by its own clock.

    Attributes:
        format: of this file.
        snapshot: of which it is a part.
        process: who recorded it.
        epoch: of the system.
        run: a name that no other epoch of any system has.
        began_from: the snapshot that the epoch began from, if a store has it.
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
        life: of that process.
        topology: what it takes part in.
    """

    def __init__(self, directory: Path, life: Life, topology: FragmentTopology) -> None:
        self._directory = directory
        self._life = life
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
        life = self._life
        place = FragmentPlace(life.epoch, fragment.snapshot, life.process)
        path = place.path(self._directory)
        with explained(path.parent, "written"):
            if not self._is_begun:
                self._begin(path.parent)
            make_room(path.parent)
        state = self._tables.split(fragment.snapshot, _alone(fragment))
        state.check_books()
        (own,) = state.processes
        is_whole = own.base is None
        names = fragment_files(self._topology.description, life.process, is_whole=is_whole)
        made = self._tables.of(fragment.snapshot, state)
        write_directory(
            path,
            {name: made[name] for name in names},
            self._tables.to_parquet,
            lambda files: FragmentManifest(
                snapshot=fragment.snapshot,
                process=life.process,
                epoch=life.epoch,
                run=life.run,
                began_from=life.began_from,
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
        life = self._life
        own.mkdir(parents=True, exist_ok=True)
        remove_left(self._directory, life.process)
        topologies = self._directory / TOPOLOGIES
        topologies.mkdir(exist_ok=True)
        # Others write the same, at the same time; not all of them know where the topology is.
        put_shared(
            topologies / f"{self._hash}.json",
            seal(self._topology),
            life.process,
            replaces=self._topology.reference is not None,
        )
        for parent in (own.parent, self._directory):
            sync(parent)
        self._is_begun = True


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
