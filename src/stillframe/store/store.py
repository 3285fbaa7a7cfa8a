"""Snapshots in a directory: one writer, any number of readers, and plain Parquet files.

    STORE/store.json                         topology and epoch; replaced as a whole
    STORE/lock                               held by the one writer, as long as it lives
    STORE/history.ndjson                     the history, one line for each event (``history``)
    STORE/snapshots/P1-17/manifest.json      every file of the snapshot, with length and SHA-256
    STORE/snapshots/P1-17/processes.parquet  one row per process
    STORE/snapshots/P1-17/channels.parquet   one row per channel
    STORE/snapshots/P1-17/messages.parquet   one row per message that was on a channel
    STORE/snapshots/P1-17/Bank_accounts.changes.parquet
                                             one row per key of the keyed field `accounts` of the
                                             class `Bank` that changed since an earlier snapshot
    STORE/snapshots/P1-17/Bank_accounts.whole.parquet
                                             instead, if all keys are there
    STORE/snapshots/.P1-17.partial/          a snapshot that is being written
    STORE/snapshots/.P1-17.dropped/          one that is being removed

A snapshot is written and forced to the disk under the name with the dot, then renamed: that one
rename publishes it, and another drops it. A published snapshot is rewritten in full by replacing
its manifest. A crash at any moment leaves the store as it was before or after.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

import msgspec
import pyarrow as pa

from stillframe.errors import Damaged, StoreError, UsageError
from stillframe.model import ProcessId, Snapshot, SnapshotId
from stillframe.storage.location import Location, ObjectPath
from stillframe.store import layout, retention
from stillframe.store.bucket_writer import BucketWriter
from stillframe.store.history import HistoryWriter, SnapshotRemoved, lost_snapshots
from stillframe.store.layout import HEAD, explain_io_errors
from stillframe.store.manifest import (
    CHAIN_LENGTH_MAX,
    Head,
    Manifest,
    SnapshotEntry,
    chain_length,
    reachable,
    read_manifest,
    shared_fields,
    with_topology,
)
from stillframe.store.reader import StoreReader
from stillframe.store.sealed_json import FORMAT
from stillframe.store.snapshot_directory import check_described, write_full
from stillframe.store.writer import DirectoryWriter, StoreWriter
from stillframe.topology import Description

_THREAD_COUNT = 16
"""All files of a snapshot wait for the disk at the same time."""
_CHAIN_LENGTH_LIMIT = 8 * CHAIN_LENGTH_MAX
"""Maximum length of chains while one is being rewritten; then no snapshot is published on them."""


class Store(StoreReader):
    """The snapshots of one system: use ``create``, ``open`` or ``open_writer``, then ``close``.

    A reader sees what a writer, in another process or in this one, has published in the meantime.
    The writer's methods can be called by several threads; they raise UsageError if the store is
    open for reading only, and StoreError if the disk is full or failed.

    The writer keeps the chains of bases short, and its snapshots few on request (``keep``). It does
    so in one background thread, so that no two of these operations overlap; changes to the set of
    snapshots hold the writer's lock, briefly.

    `clock` returns the time of publishing, in seconds since 1970: use the clock by which the
    snapshots were initiated and complete, so that their durations are correct.
    """

    def __init__(self, path: Location, *, writer: StoreWriter | None) -> None:
        super().__init__(path)
        self.clock: Callable[[], float] = time.time
        self._lost: Callable[[], object] = lambda: None
        self._writer = writer
        self._is_head_known = True
        self._writing = threading.RLock()
        self._published: dict[SnapshotId, Manifest] = {}
        self._half_removed: set[SnapshotId] = set()
        self._sequence = 0
        self._restore_point: Manifest | Damaged | None = None
        self._history: HistoryWriter | None = None
        self._keep_count: int | None = None
        self._files = ThreadPoolExecutor(_THREAD_COUNT, "stillframe-store")
        self._maintenance = ThreadPoolExecutor(1, "stillframe-upkeep")
        self._last_run: Future[None] | None = None

    @classmethod
    def create(
        cls, path: Location, *, description: Description, reference: str | None = None
    ) -> Self:
        """Create a store and open it for writing; call ``raise_epoch`` before the first snapshot.

        `path` is a directory that is empty or does not exist yet, or a store of the same topology
        without a single snapshot, which is taken over; anything else is a UsageError. `reference`
        is where the topology is defined, ``module:attribute``. Unavailable if another program is
        writing to it.
        """
        head = Head(reference=reference, description=description)
        if isinstance(path, ObjectPath):
            return cls._taken_over(path, head)
        with explain_io_errors(path, "made into a store"):
            path.mkdir(parents=True, exist_ok=True)
            layout.check_unused(path)
        return cls._locked(path, lambda: layout.make_store(path, head))

    @classmethod
    def open(cls, path: Location) -> Self:
        """Open a store for reading, also while another program writes to it: a UsageError if there
        is none at `path`, else errors as for ``read_sealed``."""
        layout.check_is_store(path)
        return cls(path, writer=None)

    @classmethod
    def open_writer(cls, path: Location) -> Self:
        """Open a store for reading and writing, and remove what a crashed writer left.

        Call ``raise_epoch`` before the first snapshot. The store is held until ``close``, or until
        this operating-system process (and what it forked without exec) has terminated. Errors are
        as for ``open``, and Unavailable if another program is writing to it.
        """
        layout.check_is_store(path)
        if isinstance(path, ObjectPath):
            return cls._taken_over(path, None)
        return cls._locked(path, lambda: None)

    @classmethod
    def _locked(cls, path: Path, prepare: Callable[[], None]) -> Self:
        with explain_io_errors(path, "opened for writing"):
            lock = layout.take_lock(path)
            try:
                prepare()
                layout.remove_unfinished(path)
                return cls._opened(path, DirectoryWriter(path, lock))
            except BaseException:
                os.close(lock)
                raise

    @classmethod
    def _taken_over(cls, path: ObjectPath, head: Head | None) -> Self:
        opened: list[Self] = []
        writer = BucketWriter(path, head=head, lost=lambda: opened[0].lost() if opened else None)
        try:
            opened.append(cls._opened(path, writer))
            writer.check()  # `lost` had no one to tell so far
        except BaseException:
            writer.close()
            raise
        return opened[0]

    @classmethod
    def _opened(cls, path: Location, writer: StoreWriter) -> Self:
        store = cls(path, writer=writer)
        store._load_published()
        # The first conversion takes most of a second: Arrow looks for pandas. Better now than while
        # the first snapshot waits to be published.
        store._files.submit(pa.array, [0])
        return store

    @property
    def lost(self) -> Callable[[], object]:
        """What is called, by any thread, when another writer has taken the store over; at once if
        that has happened before. It may be called twice."""
        return self._lost

    @lost.setter
    def lost(self, act: Callable[[], object]) -> None:
        self._lost = act
        if self._writer is not None and self._writer.is_lost:
            act()

    @property
    def is_remote(self) -> bool:
        """Whether the store is in an object store: it answers when it can."""
        return isinstance(self.path, ObjectPath)

    def raise_epoch(
        self, restored_from: SnapshotId | None, description: Description | None = None
    ) -> int:
        """Start the next epoch, for all processes, and return it; it is on the disk when this
        returns. After an error, call again.

        `restored_from` is the snapshot that the system starts from; None for the initial states.
        `description` is of the topology from now on; None: no change. A UsageError if there is no
        such snapshot, or there are too many former topologies.
        """
        self._check_writer()
        with self._writing:
            if restored_from is not None:
                self.entry(restored_from)
            head = msgspec.structs.replace(
                self._head, epoch=self._head.epoch + 1, restored_from=restored_from
            )
            if description is not None and description != head.description:
                head = with_topology(
                    head, description, {m.topology for m in self._manifests().values()}
                )
            self._put_head(head)
            self._restore_point = None
        return head.epoch

    def publish(self, snapshot: Snapshot) -> SnapshotEntry:
        """Write a snapshot; when this returns, all of it is on the disk.

        It is a restore point, for a restore after a death, if it was initiated after the one before
        was complete. Snapshots that overlap can have cuts that cross: to go from one to the other
        could take a process to before a cut that it was notified of as safe.

        After any error nothing was published: its books do not balance (NotConsistent); it is of
        another epoch or topology, exists already, or has a base that does not exist (UsageError); a
        value does not fit its column; the manifest of the newest restore point was changed
        (Damaged); or the directory of all snapshots was deleted (StoreError).
        """
        writer = self._check_writer()
        if snapshot.epoch != self._head.epoch:
            raise UsageError(
                f"snapshot {snapshot.id} is of epoch {snapshot.epoch}, and the store "
                f"{self.path} is in epoch {self._head.epoch}: a snapshot of an earlier epoch is "
                "not published"
            )
        writer.check_absent(snapshot.id)
        check_described(snapshot, self._head.description)
        snapshot.state.check_books()
        topology = self._head.description.hash
        tables = self._tables_of(topology)
        state = tables.split(snapshot.id, snapshot.state)
        bases = {s.process: s.base for s in state.processes if s.base is not None}
        made = tables.of(snapshot.id, state)
        with self._writing:
            self._check_bases(snapshot.id, bases, topology)
            point, sequence = self._newest_restore_point(), self._sequence + 1
            with writer.new_snapshot(snapshot.id, self._files) as new:
                files = new.write_tables(made, tables.to_parquet)
                manifest = Manifest(
                    snapshot=snapshot.id,
                    sequence=sequence,
                    # Two clocks may differ; no snapshot is published before it is complete.
                    published_at=max(self.clock(), snapshot.completed_at),
                    is_restore_point=point is None or snapshot.initiated_at >= point.completed_at,
                    bases=bases or None,
                    process_count=len(snapshot.state.processes),
                    channel_count=len(snapshot.state.channels),
                    message_count=snapshot.state.message_count,
                    topology=topology,
                    files=files,
                    **shared_fields(snapshot, Manifest),
                )
                new.publish(manifest)
            self._published[snapshot.id], self._sequence = manifest, sequence
            if manifest.is_restore_point:
                self._restore_point = manifest
            entry = self._entry_of(self._published, snapshot.id)
        self._schedule()
        return entry

    def keep(self, count: int) -> None:
        """Remove all but the newest `count` snapshots, now and after each that is published.

        That happens in the background. Never removed are savepoints, the snapshot for a restore
        after a death, and the newest together with all since its bases or, if there are keyed
        fields, since those that it overlaps: a running process may be based on them. Bases of other
        snapshots are removed when these do not need them any more: up to `CHAIN_LENGTH_MAX` more
        can exist. A UsageError if `count` is below 1.
        """
        self._check_writer()
        if count < 1:
            raise UsageError(f"{count} snapshots cannot be kept: keep at least 1")
        self._keep_count = count
        self._schedule()

    def save(self, snapshot: SnapshotId, name: str) -> None:
        """Keep a snapshot under a name, as a savepoint, until that is dropped. A UsageError if
        there is no such snapshot, or the name is no name for a new savepoint."""
        self._check_writer()
        with self._writing:
            self.check_savepoint(name)
            self.entry(snapshot)
            self._put_savepoints({**self._head.savepoints, name: snapshot})

    def drop(self, text: str) -> str | None:
        """Remove a snapshot by its id, or a savepoint by its name.

        Snapshots that are based on it are rewritten in full first. A savepoint that is still needed
        for something else loses its name and stays as long as that. A lost one
        (``history.lost_snapshots``) counts as removed from now on.

        Returns why it stays, as a sentence continues after "it"; None if it was deleted. A
        UsageError if there is no such snapshot, or it must stay: the error says why.
        """
        self._check_writer()
        with self._writing:
            snapshot = self.find(text)
            names = dict(self._head.savepoints)
            # Only a missing snapshot needs the history, so a damaged line blocks no other removal.
            is_there = layout.is_published(self.path, snapshot)
            if not is_there and snapshot in lost_snapshots(self.path):
                self._put_savepoints({n: s for n, s in names.items() if s != snapshot})
                self.history.append(SnapshotRemoved(snapshot))
                return None
            if snapshot not in self._half_removed:
                self.entry(snapshot)
            if names.pop(text, None) is not None:
                self._put_savepoints(names)
                reason = self._needed().get(snapshot)
                if reason is not None:
                    return reason
        self._maintenance.submit(self._drop, snapshot).result()
        return None

    @property
    def history(self) -> HistoryWriter:
        """The history of the system, for its writer; it is open until ``close``."""
        if self._history is None:
            if self.is_remote and self._writer is not None:
                # Whatever becomes of the head: events must not wait for an object store.
                self._history = self._writer.open_history()
                return self._history
            writer = self._check_writer()
            with self._writing:
                self._history = self._history or writer.open_history()
        # Without the lock: events must not wait for a snapshot that is being written.
        return self._history

    @property
    def maintenance_error(self) -> BaseException | None:
        """The error of the last background run; None if it succeeded or is not over."""
        last = self._last_run
        return last.exception() if last is not None and last.done() else None

    def settle(self) -> None:
        """Wait for the background work, and raise its error; it is tried again later."""
        if self._last_run is not None:
            self._last_run.result()

    def close(self) -> None:
        """Let another writer have the store. Closing twice does nothing."""
        self._maintenance.shutdown()
        if self._history is not None:
            self._history.close()
            self._history = None
        self._files.shutdown()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _check_writer(self) -> StoreWriter:
        if self._writer is None:
            raise UsageError(
                f"the store {self.path} is open only for reading: use Store.open_writer"
            )
        if not self._is_head_known:
            # Written again: a request that was late can change it no more.
            with self._writing:
                self._put_head(self._read_head())
        if self._head.format < FORMAT:
            # First of all: older releases refuse what is written from now on.
            with self._writing:
                self._put_head(msgspec.structs.replace(self._head, format=FORMAT))
        return self._writer

    def _load_published(self) -> None:
        """Read what is published, and remove what a crashed writer left of it.

        One damaged manifest must not keep the system from its other snapshots: its error is raised
        only where that snapshot matters.
        """
        manifests, damages = self._readable()
        self._published.update(manifests)
        self._sequence = max((m.sequence for m in manifests.values()), default=0)
        if damages:
            # Which place a damaged one has is not known; its number is seldom below that.
            numbers = (snapshot.number for snapshot in (*manifests, *damages))
            self._sequence = max(self._sequence, *numbers) + len(damages)
        try:
            self._restore_point = super()._newest_restore_point()
        except Damaged as damage:
            self._restore_point = damage
        assert self._writer is not None
        for manifest in self._published.values():
            self._writer.remove_unlisted(manifest, self._head.described[manifest.topology])

    def _head_now(self) -> Head:
        return super()._head_now() if self._writer is None else self._head

    def _put_head(self, head: Head) -> None:
        assert self._writer is not None
        with explain_io_errors(self.path / HEAD, "written"):
            try:
                self._writer.write_head(head)
            except OSError:
                # The new file may exist already: no epoch is used twice.
                self._is_head_known = False
                self._head = self._read_head()
                self._is_head_known = not self.is_remote
                raise
        self._head = head
        self._is_head_known = True

    def _put_savepoints(self, names: dict[str, SnapshotId]) -> None:
        self._put_head(msgspec.structs.replace(self._head, savepoints=names))

    def _manifest_if_there(self, snapshot: SnapshotId) -> Manifest | None:
        # Readers ignore it already, and the next writer deletes it: nothing may need it any more.
        return None if snapshot in self._half_removed else super()._manifest_if_there(snapshot)

    def _is_removed(self, snapshot: SnapshotId) -> bool:
        if self._writer is None:
            return super()._is_removed(snapshot)
        return self.is_remote and snapshot not in self._published

    def _newest_restore_point(self) -> Manifest | None:
        if self._writer is None:
            return super()._newest_restore_point()
        if isinstance(self._restore_point, Damaged):
            raise self._restore_point
        return self._restore_point

    def _needed(self) -> dict[SnapshotId, str]:
        return retention.needed(self._published, self._current(), self._head.savepoints)

    def _check_bases(
        self, snapshot: SnapshotId, bases: dict[ProcessId, SnapshotId], topology: str
    ) -> None:
        writer = self._check_writer()
        for process, base in bases.items():
            found = self._published.get(base) if writer.has(base) else None
            if found is None or found.topology != topology:
                raise UsageError(
                    f"snapshot {snapshot}: the fragment of process {process} holds changes "
                    f"since snapshot {base}, and the store {self.path} "
                    f"{'does not hold that' if found is None else 'has that of another topology'}: "
                    "the base of a fragment must be a published snapshot of this topology, or "
                    "none"
                )
            if chain_length(self._published, base) >= _CHAIN_LENGTH_LIMIT:
                raise StoreError(
                    f"snapshot {snapshot} would need {_CHAIN_LENGTH_LIMIT + 1} earlier ones: "
                    "snapshots are taken faster than one can be rewritten in full, or rewriting "
                    f"fails: {self.maintenance_error or 'no error so far'}"
                )

    def _schedule(self) -> None:
        """Maintain the store in the background, if there may be something to do."""
        with self._writing:
            is_full = not any(manifest.bases for manifest in self._published.values())
            if not self._published or (is_full and self._keep_count is None):
                return
            # One that has not started yet will see this, too.
            last = self._last_run
            if last is None or last.running() or last.done():
                self._last_run = self._maintenance.submit(self._maintain)

    def _maintain(self) -> None:
        with self._writing:
            newest = retention.newest_of(self._published).snapshot
            is_too_long = chain_length(self._published, newest) > CHAIN_LENGTH_MAX
        if is_too_long:
            self._make_full(newest)
        while self._keep_count is not None:
            with self._writing:
                unneeded, full = retention.decide(self._published, self._needed(), self._keep_count)
            self._remove(unneeded)
            if full is None:
                break
            self._make_full(full)

    def _drop(self, snapshot: SnapshotId) -> None:
        """Remove a snapshot that need not stay, after those based on it were rewritten in full."""
        with self._writing:
            if (reason := self._needed().get(snapshot)) is not None:
                raise UsageError(f"snapshot {snapshot} was kept: it {reason}")
            based = self._based_on(snapshot)
        for other in based:
            self._make_full(other)
        self._remove([snapshot])

    def _based_on(self, snapshot: SnapshotId) -> list[SnapshotId]:
        return [m.snapshot for m in self._published.values() if snapshot in m.based_on]

    def _make_full(self, snapshot: SnapshotId) -> None:
        if snapshot in self._half_removed:
            # Its manifest may be gone: missing, it would look as if another writer had taken over.
            self._remove([snapshot])
            return
        with self._writing:
            manifests = reachable(snapshot, self._published.get)
        if manifests[snapshot].bases is None:
            return
        writer, chain = self._check_writer(), self._chain(manifests, snapshot)
        with explain_io_errors(chain.directory, "rewritten in full"):
            full = write_full(chain, writer.write_file, writer.discard_files)
            with self._writing:
                try:
                    writer.replace_manifest(manifests[snapshot], full)
                except OSError:
                    # It may have its name and not be forced to the disk.
                    self._published[snapshot] = read_manifest(chain.directory, self._head.described)
                    raise
                self._published[snapshot] = full
            # After an error, the next writer that opens the store removes the files of changes.
            writer.remove_unlisted(full, chain.tables.description)

    def _remove(self, snapshots: Iterable[SnapshotId]) -> None:
        writer = self._check_writer()
        for snapshot in snapshots:
            with explain_io_errors(self._snapshots / str(snapshot), "removed"):
                with self._writing:
                    if self._based_on(snapshot):
                        continue  # one that was published just now is based on it
                    try:
                        self.history.append(SnapshotRemoved(snapshot))
                    except StoreError:
                        # On a full disk the line is written later: this makes room for it.
                        if writer.notes_are_needed:
                            raise
                    if writer.notes_are_needed:
                        self._half_removed.add(snapshot)
                    writer.hide(snapshot)
                    self._half_removed.discard(snapshot)
                    manifest = self._published.pop(snapshot, None)
                known = self._head.described
                writer.erase(snapshot, None if manifest is None else known.get(manifest.topology))
