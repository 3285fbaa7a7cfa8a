"""``open_store``: read the snapshots of a system from Python, also while the system runs.

A loaded snapshot gives states and messages as objects, as Arrow tables and as pandas.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from stillframe.detect.view import SnapshotView, view_of
from stillframe.errors import (
    Damaged,
    NotConsistent,
    StoreError,
    Unavailable,
    UsageError,
    check_kind,
    describe,
)
from stillframe.imports import load_topology
from stillframe.model import DECODING_ERRORS, Channel, ProcessId, Reason, Snapshot, SnapshotId
from stillframe.storage.location import Location, locate
from stillframe.store import history
from stillframe.store.layout import NEWEST, check_is_store, is_published_at
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.reader import StoreReader
from stillframe.store.tables import Tables, fields_of, messages_of
from stillframe.topology import Description, Topology

_Answer = TypeVar("_Answer")
_State = TypeVar("_State")
RECORDED = "recorded"
"""The topology that the store names, as an argument of ``open_store``."""


class AbandonedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot that was abandoned, as the history of the store has it. Nothing was published.

    Attributes:
        id: its id.
        abandoned_at: when, in seconds since 1970.
        started_at: when it started, in seconds since 1970; None if that is no longer recorded.
        reason: why; None if only a newer release knows that reason.
        missing: the processes without a fragment.
        sentence: all of this as one sentence, for display.
    """

    id: SnapshotId
    abandoned_at: float
    started_at: float | None
    reason: Reason | None
    missing: tuple[ProcessId, ...]
    sentence: str


class LoadedSnapshot:
    """A verified snapshot in memory. It stays valid when the store changes.

    ``SnapshotStore.load`` returns it. Objects and tables are made when they are first used.

    Attributes:
        entry: the snapshot as the store lists it: its id, epoch and times.
    """

    entry: SnapshotEntry

    def __init__(
        self,
        entry: SnapshotEntry,
        snapshot: Snapshot,
        description: Description,
        topology: Topology | None,
    ) -> None:
        self.entry = entry
        self._snapshot = snapshot
        self._description = description
        self._topology = topology

    def __repr__(self) -> str:
        return f"<snapshot {self.id}: {self.entry.message_count} messages in transit>"

    @property
    def id(self) -> SnapshotId:
        """Its id."""
        return self.entry.id

    @functools.cached_property
    def view(self) -> SnapshotView:
        """The snapshot as predicates take it, with an object for each process and message.

        Raises:
            NotConsistent: a recorded state or message does not fit the recorded topology.
        """
        if self._topology is not None:
            return view_of(self._snapshot, self._topology)
        try:
            processes = {one.process: fields_of(one) for one in self._snapshot.state.processes}
            channels: dict[Channel, Any] = {
                one.channel: tuple(messages_of(one, self._description))
                for one in self._snapshot.state.channels
            }
        except (*DECODING_ERRORS, KeyError, TypeError, ValueError) as error:
            raise NotConsistent(
                f"snapshot {self.id} in {self.entry.directory} holds a state or message that does "
                f"not fit its topology ({describe(error)})",
                path=self.entry.directory,
                snapshot=self.id,
                remedy="use another snapshot",
            ) from error
        return SnapshotView(self.id, processes, channels)

    @property
    def processes(self) -> dict[ProcessId, Any]:
        """The recorded state of each process.

        It is an object of its class if the store was opened with a topology, else a dict of its
        fields. Errors are as for `view`."""
        return self.view.processes

    def process(self, process: ProcessId, kind: type[_State]) -> _State:
        """Return the recorded state of a process, as an object of its class.

        ``open_store("bank.store", topology=bank).load().process("P1", Account)`` is an ``Account``,
        for a type checker too.

        Args:
            process: its name.
            kind: the class of the process, or of the state of an ``ExternalProcess``; without a
                topology, ``dict``.

        Raises:
            UsageError: there is no such process, or its state is of another class.
            NotConsistent: as for `view`.
        """
        return self.view.process(process, kind)

    @property
    def channels(self) -> dict[Channel, tuple[Any, ...]]:
        """The messages in transit on each channel, in the order in which they were sent.

        They are objects of their classes if the store was opened with a topology, else
        ``DecodedMessage`` objects. Errors are as for `view`."""
        return self.view.channels

    def in_transit(self) -> Iterator[tuple[Channel, Any]]:
        """Yield every message in transit with its channel. Errors are as for `view`."""
        return self.view.in_transit()

    @functools.cached_property
    def tables(self) -> dict[str, pa.Table]:
        """The snapshot as Arrow tables by name.

        These are ``processes``, ``channels``, ``messages``, and ``CLASS_FIELD`` with a row for each
        key of a keyed field."""
        return Tables(self._description).queryable(self._snapshot)

    def to_pandas(self, table: str) -> Any:
        """Return one of the `tables` as a ``pandas.DataFrame``.

        Args:
            table: its name, for example ``messages``.

        Raises:
            UsageError: there is no such table; the error lists those that exist.
            Unavailable: pandas is not installed.
        """
        if table not in self.tables:
            raise UsageError(
                f"snapshot {self.id} has no table {table!r}; it has {', '.join(self.tables)}"
            )
        try:
            return self.tables[table].to_pandas()
        except ImportError as error:
            raise Unavailable("pandas is not installed", remedy="pip install pandas") from error


class SnapshotStore:
    """The snapshots of one system, to read; ``open_store`` returns it.

    Every call reads the current content of the store. A running system may write to it, in this
    program or in another one. A `snapshot` is an id (``P1-17``), the name of a savepoint, or
    ``newest``.

    Every method raises StoreError if the store cannot be read, Damaged if a file is not what was
    written, and UsageError if there is no such snapshot.

    Attributes:
        path: the directory of the store.
        topology: the topology whose classes states and messages are objects of; None for plain
            values.
    """

    path: Location
    topology: Topology | None

    def __init__(self, path: Location, topology: Topology | str | None) -> None:
        check_is_store(path)
        self._reader = StoreReader(path)
        self.path = path
        if topology == RECORDED:
            topology = self._reader.reference
            if topology is None:
                raise UsageError(
                    f"the store {path} does not record where its topology is defined: pass the "
                    "topology itself"
                )
        if isinstance(topology, str):
            topology = load_topology(topology)
        check_kind("topology", topology, Topology | None, "a Topology, or MODULE:ATTRIBUTE")
        self.topology = topology

    def __repr__(self) -> str:
        return f"<store {self.path}>"

    @property
    def epoch(self) -> int:
        """How many times the system was started or restored; 0 before the first start."""
        return self._reader.epoch

    @property
    def savepoints(self) -> dict[str, SnapshotId]:
        """The snapshots that are kept under a name."""
        return self._reader.savepoints

    def snapshots(self) -> list[SnapshotEntry]:
        """Return the published snapshots, the oldest first, without those in `damaged`."""
        return self._reader.listing()[0]

    def damaged(self) -> dict[SnapshotId, Damaged]:
        """Return the snapshots whose manifest is damaged, each with its error."""
        return self._reader.listing()[1]

    def abandoned(self) -> list[AbandonedSnapshot]:
        """Return the abandoned snapshots, the oldest first, as far back as the history reaches."""
        started: dict[SnapshotId, float] = {}
        found = []
        for line in history.read_history(self.path):
            if isinstance(line.what, history.SnapshotBegan):
                started[line.what.snapshot] = line.at
            elif isinstance(line.what, history.SnapshotAbandoned):
                snapshot = line.what.snapshot
                found.append(
                    AbandonedSnapshot(
                        id=snapshot,
                        abandoned_at=line.at,
                        started_at=started.get(snapshot),
                        reason=Reason.__members__.get(line.what.reason),
                        missing=line.what.missing,
                        sentence=str(line.what),
                    )
                )
        return found

    def entry(self, snapshot: SnapshotId | str = NEWEST) -> SnapshotEntry:
        """Return one published snapshot as the store lists it."""
        if isinstance(snapshot, SnapshotId):
            return self._reader.entry(snapshot)
        if snapshot == NEWEST:
            return self._newest()
        return self._reader.entry(self._reader.find(str(snapshot)))

    def load(self, snapshot: SnapshotId | str = NEWEST) -> LoadedSnapshot:
        """Read a snapshot into memory, verified.

        Raises:
            UsageError: there is no such snapshot, or it was taken with a different topology from
                that of this object.
            NotConsistent: the books of the snapshot do not balance.
        """
        return self._reading(snapshot, self._load)

    def verify(self, snapshot: SnapshotId | str | None = None) -> int:
        """Read every byte of a snapshot, compare the checksums, and check the books.

        Args:
            snapshot: which one; None for all, and that none is missing.

        Returns:
            how many snapshots were verified.

        Raises:
            NotConsistent: the books do not balance, or columns differ from the recorded values.
        """
        if snapshot is None:
            return self._reader.verify_all(lambda entry, count: None)
        self._reading(snapshot, lambda entry: self._reader.verify(entry.id))
        return 1

    def _load(self, entry: SnapshotEntry) -> LoadedSnapshot:
        description = self._reader.description_of(entry.id)
        if self.topology is not None and self.topology.description.hash != description.hash:
            raise UsageError(
                f"snapshot {entry.id} in {self.path} was taken with a different topology from the "
                "one that the store was opened with",
                path=self.path,
                snapshot=entry.id,
                remedy="pass the topology that it was taken with, or none",
            )
        return LoadedSnapshot(entry, self._reader.load(entry.id), description, self.topology)

    def _reading(
        self, snapshot: SnapshotId | str, read: Callable[[SnapshotEntry], _Answer]
    ) -> _Answer:
        while True:
            entry = self.entry(snapshot)
            try:
                return read(entry)
            except (UsageError, StoreError):
                # A newer one may have been published and this one removed (``run --keep``).
                if snapshot != NEWEST or is_published_at(entry.directory):
                    raise

    def _newest(self) -> SnapshotEntry:
        entries, damages = self._reader.listing()
        if not entries and not damages:
            raise UsageError(
                f"the store {self.path} holds no snapshot yet",
                path=self.path,
                remedy="take one while the system runs",
            )
        # Numbers only rise, so a damaged one with a higher number may be the newest.
        last = max((entry.id.number for entry in entries), default=0)
        for snapshot, damage in damages.items():
            if snapshot.number > last:
                raise damage
        return entries[-1]


def open_store(path: str | Location, *, topology: Topology | str | None = None) -> SnapshotStore:
    """Open the store of a system to read its snapshots, also while the system runs.

    ``open_store("bank.store").load("newest").processes["P1"]`` are the recorded fields of ``P1``.

    Args:
        path: the directory that the system writes its snapshots to, or its address, such as
            ``s3://bucket/bank``.
        topology: decodes states and messages into your classes. Pass the topology;
            ``MODULE:ATTRIBUTE`` to import it; or ``recorded`` to import the one that the store
            names. An import runs the code of that module. None: plain values.

    Returns:
        the store. There is nothing to close.

    Raises:
        UsageError: there is no store at `path`, or the topology cannot be imported.
        Damaged: the description of the store was changed.
        StoreError: the store cannot be read.
        Unavailable: it is in an object store or HDFS, and the library for that is not installed.
    """
    return SnapshotStore(locate(path), topology)
