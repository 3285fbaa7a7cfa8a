"""What the one writer does beside publishing: makes snapshots whole, and removes what may go.

All of it happens in one thread of its own, so that no two of these cross; what changes which
snapshots there are holds the writer's lock, shortly.
"""

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from stillframe.errors import StoreError
from stillframe.model import SnapshotId
from stillframe.store import retention
from stillframe.store.chain import CHAIN_LENGTH_MAX, chain_length, check_chain, reached_from
from stillframe.store.compaction import put_manifest, remove_changes, write_whole
from stillframe.store.contents import Chain
from stillframe.store.disk import sync
from stillframe.store.history import SnapshotRemoved
from stillframe.store.manifest import Manifest, read_manifest
from stillframe.store.opening import dropped_path, explained
from stillframe.store.topologies import Topologies


class Upkeep:
    """Keeps the chains of a store short and, if so many are to be kept, its snapshots few.

    Args:
        snapshots: the directory of all snapshots.
        manifests: of what is published; changed here as well, and only while `lock` is held.
        lock: the writer's.
        topologies: returns those of the store.
        needed: returns which snapshots must stay, and why (``retention.needed``).
        note: writes into the history of the store that a snapshot is removed.
    """

    def __init__(
        self,
        snapshots: Path,
        manifests: dict[SnapshotId, Manifest],
        *,
        lock: threading.RLock,
        topologies: Callable[[], Topologies],
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
        """Look in the background whether something is to be done, if there can be."""
        with self._lock:
            is_whole = not any(manifest.bases for manifest in self._manifests.values())
            if not self._manifests or (is_whole and self.keep_count is None):
                return
            # One that waits will see what is there when its turn has come.
            if self._last is None or self._last.running() or self._last.done():
                self._last = self._executor.submit(self._look)

    @property
    def trouble(self) -> BaseException | None:
        """What went wrong the last time; None if nothing did, or it goes on still."""
        last = self._last
        return last.exception() if last is not None and last.done() else None

    def settle(self) -> None:
        """Wait until there is nothing to do, and raise what went wrong."""
        last = self._last
        if last is not None:
            last.result()

    def drop(self, snapshot: SnapshotId) -> None:
        """Remove one snapshot, after what is based on it was made whole.

        Raises:
            UsageError: it must stay; the error says why.
            Damaged, StoreError: something in the chain cannot be read, or the disk failed.
        """
        self._executor.submit(self._drop, snapshot).result()

    def close(self) -> None:
        """Finish what is under way."""
        self._executor.shutdown()

    def _look(self) -> None:
        with self._lock:
            newest = max(self._manifests.values(), key=lambda manifest: manifest.sequence)
            is_too_long = chain_length(self._manifests, newest.snapshot) > CHAIN_LENGTH_MAX
        if is_too_long:
            self._make_whole(newest.snapshot)
        while self._retain():
            pass

    def _retain(self) -> bool:
        """Take one step of retention; return whether another can follow."""
        with self._lock:
            if self.keep_count is None:
                return False
            decision = retention.decide(dict(self._manifests), self._needed(), self.keep_count)
        self._remove(decision.unneeded)
        if decision.whole is None:
            return False
        self._make_whole(decision.whole)
        return True

    def _drop(self, snapshot: SnapshotId) -> None:
        with self._lock:
            retention.check_unneeded(snapshot, self._needed())
            based = [
                manifest.snapshot
                for manifest in self._manifests.values()
                if snapshot in (manifest.bases or {}).values()
            ]
        for other in based:
            self._make_whole(other)
        self._remove([snapshot])

    def _make_whole(self, snapshot: SnapshotId) -> None:
        with self._lock:
            manifests = reached_from(self._manifests, snapshot)
        manifest = manifests[snapshot]
        if manifest.bases is None:
            return
        check_chain(manifests, manifest, self._snapshots)
        tables = self._topologies().tables(manifest.topology)
        chain = Chain(self._snapshots, manifest, manifests, tables)
        with explained(chain.directory, "made whole"):
            whole = write_whole(chain)
            with self._lock:
                try:
                    put_manifest(chain.directory, whole)
                except OSError:
                    # It may have its name and not be forced to the disk.
                    described = self._topologies().described
                    self._manifests[snapshot] = read_manifest(chain.directory, described)
                    raise
                self._manifests[snapshot] = whole
            remove_changes(chain)

    def _remove(self, snapshots: Iterable[SnapshotId]) -> None:
        for snapshot in snapshots:
            directory = self._snapshots / str(snapshot)
            dropped = dropped_path(directory)
            with explained(directory, "removed"):
                with self._lock:
                    if any(
                        snapshot in (manifest.bases or {}).values()
                        for manifest in self._manifests.values()
                    ):
                        continue  # what was published just now is based on it
                    # On a full disk the line is written when there is room, which this makes.
                    with contextlib.suppress(StoreError):
                        self._note(SnapshotRemoved(snapshot))
                    if directory.is_dir():  # or it is gone already
                        directory.rename(dropped)
                    self._manifests.pop(snapshot, None)
                    sync(self._snapshots)
                if dropped.exists():
                    shutil.rmtree(dropped)
