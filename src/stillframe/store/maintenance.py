"""The maintenance of a store by its writer: rewrites snapshots in full, and removes old ones.

All of it happens in one background thread, so that no two operations overlap. Changes to the set of
snapshots hold the writer's lock, briefly.
"""

import contextlib
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from stillframe.durable_files import sync
from stillframe.errors import StoreError, UsageError
from stillframe.model import SnapshotId
from stillframe.store.history import SnapshotRemoved
from stillframe.store.layout import dropped_path, explain_io_errors
from stillframe.store.manifest import (
    CHAIN_LENGTH_MAX,
    FILES,
    Manifest,
    Manifests,
    chain_length,
    check_chain,
    reachable,
    read_manifest,
)
from stillframe.store.reader import TopologyHistory
from stillframe.store.snapshot_directory import (
    SnapshotChain,
    put_manifest,
    remove_changes,
    write_full,
)

OVERLAP_COUNT_MAX = 64
"""Maximum snapshots that may overlap: a clock may have been set back."""


class Decision(msgspec.Struct, frozen=True):
    """The next step of retention.

    `full` is to be rewritten in full first, so that its bases can go with the next decision;
    `unneeded` can go now, in this order: no snapshot is ever left without its base.
    """

    full: SnapshotId | None
    unneeded: tuple[SnapshotId, ...]


def needed(
    manifests: Manifests, current: SnapshotId | None, savepoints: Mapping[str, SnapshotId]
) -> dict[SnapshotId, str]:
    """Return the snapshots that must stay, each with the reason, as a sentence continues after
    "it".

    A running process was notified of one of the newest snapshots, and may base its next fragment on
    that. It was notified of the bases of the newest snapshot before, so it will name one of these
    or a later one: from there on all stay. The newest may have no base (any more), while others in
    progress have one: a snapshot that was published during the newest.
    """
    kept: dict[SnapshotId, str] = {}
    if manifests:
        newest = max(manifests.values(), key=lambda manifest: manifest.sequence)
        bases = [manifests[base] for base in (newest.bases or {}).values() if base in manifests]
        oldest = min(m.sequence for m in (*bases, *_overlapping(manifests, newest)))
        for manifest in manifests.values():
            if manifest.sequence >= oldest:
                kept[manifest.snapshot] = "is so new that a running process may be based on it"
        # The number of a snapshot that is gone must not be given to another.
        kept[max(manifests, key=lambda snapshot: snapshot.number)] = "has the highest number"
        kept[newest.snapshot] = "is the newest"
    if current is not None:
        kept[current] = "is where a restore goes back to"
    for name, snapshot in savepoints.items():
        kept[snapshot] = f"is the savepoint {name!r}: drop it by that name"
    return kept


def _overlapping(manifests: Manifests, newest: Manifest) -> list[Manifest]:
    """Return the newest snapshot, those of its epoch that were incomplete when it started, and the
    last complete one: with keyed fields, others that overlap it may be based on these."""
    found = [newest]
    if len(newest.files) > len(FILES):
        earlier = [m for m in manifests.values() if m.epoch == newest.epoch]
        earlier.sort(key=lambda manifest: manifest.sequence, reverse=True)
        for manifest in earlier[:OVERLAP_COUNT_MAX]:
            found.append(manifest)
            if manifest.completed_at <= newest.initiated_at:
                break
    return found


def decide(manifests: Manifests, kept: Collection[SnapshotId], count: int) -> Decision:
    """Return which snapshots can go if the newest `count` of them stay, and all in `kept`.

    Bases of recent snapshots stay a while: chains end anyway, since one that is too long is
    rewritten in full. That costs a few files and saves rewriting every snapshot.
    """
    ordered = sorted(manifests, key=lambda snapshot: manifests[snapshot].sequence)
    recent = ordered[max(0, len(ordered) - count) :]
    unwanted = set(ordered).difference(recent, kept)
    staying = [snapshot for snapshot in ordered if snapshot not in unwanted]
    links = {snapshot: reachable(snapshot, manifests.get).keys() for snapshot in staying}
    linked = unwanted.intersection(*[set().union(*links.values())])
    is_too_much = len(linked) > CHAIN_LENGTH_MAX
    full = next(
        (
            snapshot
            for snapshot in staying
            if (is_too_much or snapshot not in recent) and links[snapshot] & unwanted
        ),
        None,
    )
    unneeded = [snapshot for snapshot in reversed(ordered) if snapshot in unwanted - linked]
    return Decision(full, tuple(unneeded))


def check_unneeded(snapshot: SnapshotId, kept: Mapping[SnapshotId, str]) -> None:
    """Raise a UsageError with the reason if a snapshot is one of `kept`."""
    if snapshot in kept:
        raise UsageError(f"snapshot {snapshot} stays: it {kept[snapshot]}")


class Maintenance:
    """Keeps the chains of a store short and, on request, its snapshots few.

    Args:
        snapshots: the directory of all snapshots.
        manifests: of the published ones; changed here as well, and only while `lock` is held.
        lock: the writer's.
        topologies: returns those of the store.
        needed: returns the snapshots that must stay, with the reason (`needed`).
        note: records in the history of the store that a snapshot is removed.
    """

    def __init__(
        self,
        snapshots: Path,
        manifests: dict[SnapshotId, Manifest],
        *,
        lock: threading.RLock,
        topologies: Callable[[], TopologyHistory],
        needed: Callable[[], Mapping[SnapshotId, str]],
        note: Callable[[SnapshotRemoved], None],
    ) -> None:
        self.keep_count: int | None = None
        self._snapshots = snapshots
        self._manifests = manifests
        self._lock = lock
        self._topologies = topologies
        self._needed = needed
        self._note = note
        self._executor = ThreadPoolExecutor(1, "stillframe-upkeep")
        self._last: Future[None] | None = None

    def schedule(self) -> None:
        """Run in the background, if there may be something to do."""
        with self._lock:
            is_full = not any(manifest.bases for manifest in self._manifests.values())
            if not self._manifests or (is_full and self.keep_count is None):
                return
            # One that has not started yet will see this, too.
            if self._last is None or self._last.running() or self._last.done():
                self._last = self._executor.submit(self._look)

    @property
    def error(self) -> BaseException | None:
        """The error of the last run; None if it succeeded or is not over."""
        last = self._last
        return last.exception() if last is not None and last.done() else None

    def settle(self) -> None:
        """Wait for the background run, and raise its error."""
        last = self._last
        if last is not None:
            last.result()

    def drop(self, snapshot: SnapshotId) -> None:
        """Remove one snapshot, after those based on it were rewritten in full.

        Raises:
            UsageError: it must stay; the error says why.
            Damaged, StoreError: something in the chain cannot be read, or the disk failed.
        """
        self._executor.submit(self._drop, snapshot).result()

    def close(self) -> None:
        """Finish what was scheduled."""
        self._executor.shutdown()

    def _look(self) -> None:
        with self._lock:
            newest = max(self._manifests.values(), key=lambda manifest: manifest.sequence)
            is_too_long = chain_length(self._manifests, newest.snapshot) > CHAIN_LENGTH_MAX
        if is_too_long:
            self._make_full(newest.snapshot)
        while self._retain():
            pass

    def _retain(self) -> bool:
        """Take one step of retention; return whether another may follow."""
        with self._lock:
            if self.keep_count is None:
                return False
            decision = decide(dict(self._manifests), self._needed(), self.keep_count)
        self._remove(decision.unneeded)
        if decision.full is None:
            return False
        self._make_full(decision.full)
        return True

    def _drop(self, snapshot: SnapshotId) -> None:
        with self._lock:
            check_unneeded(snapshot, self._needed())
            based = [
                manifest.snapshot
                for manifest in self._manifests.values()
                if snapshot in (manifest.bases or {}).values()
            ]
        for other in based:
            self._make_full(other)
        self._remove([snapshot])

    def _make_full(self, snapshot: SnapshotId) -> None:
        with self._lock:
            manifests = reachable(snapshot, self._manifests.get)
        manifest = manifests[snapshot]
        if manifest.bases is None:
            return
        check_chain(manifests, manifest, self._snapshots)
        tables = self._topologies().tables(manifest.topology)
        chain = SnapshotChain(self._snapshots, manifest, manifests, tables)
        with explain_io_errors(chain.directory, "rewritten in full"):
            full = write_full(chain)
            with self._lock:
                try:
                    put_manifest(chain.directory, full)
                except OSError:
                    # It may have its name and not be forced to the disk.
                    described = self._topologies().described
                    self._manifests[snapshot] = read_manifest(chain.directory, described)
                    raise
                self._manifests[snapshot] = full
            remove_changes(chain)

    def _remove(self, snapshots: Iterable[SnapshotId]) -> None:
        for snapshot in snapshots:
            directory = self._snapshots / str(snapshot)
            dropped = dropped_path(directory)
            with explain_io_errors(directory, "removed"):
                with self._lock:
                    if any(
                        snapshot in (manifest.bases or {}).values()
                        for manifest in self._manifests.values()
                    ):
                        continue  # one that was published just now is based on it
                    # On a full disk the line is written later: this makes room for it.
                    with contextlib.suppress(StoreError):
                        self._note(SnapshotRemoved(snapshot))
                    if directory.is_dir():  # or it is gone already
                        directory.rename(dropped)
                    self._manifests.pop(snapshot, None)
                    sync(self._snapshots)
                if dropped.exists():
                    shutil.rmtree(dropped)
