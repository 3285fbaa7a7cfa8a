"""Writes a process's own copy of the fragments that it sends to the coordinator.

The process never waits for the disk: a thread writes, and what it cannot write in time is lost,
which is reported once. That costs a snapshot here, never the process.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from stillframe.errors import StillframeError, describe
from stillframe.model import Fragment, SnapshotId
from stillframe.runtime import control
from stillframe.runtime.control import CLOSE_S_MAX, ChunkBuffer
from stillframe.storage.location import Location
from stillframe.store.fragments import (
    KEPT_COUNT,
    FragmentSource,
    FragmentTopology,
    FragmentWriter,
    check_own_unused,
)
from stillframe.store.manifest import CHAIN_LENGTH_MAX
from stillframe.topology import Description

WAITING_COUNT_MAX = 8
"""How many fragments may wait to be written; further ones are lost."""


class _Complete(NamedTuple):
    fragment: Fragment
    moment_s: float
    recorded_at: float
    completed_at: float


class FragmentRecorder:
    """Writes the fragments of one process, whose `life` this is, into the `directory` of all.

    `reference` is ``module:attribute`` of the topology, None if this process does not know.
    `report_failure` is called by the thread with a sentence, once each time that something keeps it
    from writing. Call ``close`` at the end.
    """

    def __init__(
        self,
        directory: Location,
        life: FragmentSource,
        description: Description,
        reference: str | None,
        *,
        report_failure: Callable[[str], None],
    ) -> None:
        self._process = life.process
        self._directory = directory
        self._report_failure = report_failure
        self._chunks = ChunkBuffer()
        self._bases: dict[SnapshotId, SnapshotId | None] = {}
        self._lost: deque[SnapshotId] = deque()
        self._is_reported = False
        self._queue: queue.SimpleQueue[_Complete | None] = queue.SimpleQueue()
        topology = FragmentTopology(reference=reference, description=description)
        self._thread = threading.Thread(
            target=self._work, args=(life, topology), name="fragments", daemon=True
        )
        self._thread.start()

    def takes_changes(self, base: SnapshotId) -> bool:
        """Whether a fragment may hold only the changes since `base`: its fragment and all that this
        needs were written here, and they are not too many."""
        self._forget_lost()
        link: SnapshotId | None = base
        for _ in range(CHAIN_LENGTH_MAX):
            if link not in self._bases:
                return False
            link = self._bases[link]
            if link is None:
                return True
        return False

    def add_chunk(self, message: control.FragmentRows | control.FragmentChunk) -> None:
        """Take rows or a chunk of the next fragment."""
        self._chunks.add(self._process, message)

    def complete(self, fragment: Fragment, moment_s: float) -> None:
        """Take a fragment whose rows and chunks were added before; its state was recorded at
        `moment_s` of ``time.perf_counter``."""
        full = self._chunks.complete(fragment)
        self._forget_lost()
        if self._queue.qsize() >= WAITING_COUNT_MAX:
            self._lose(full, f"{WAITING_COUNT_MAX} snapshots are waiting to be written already")
            return
        self._bases[full.snapshot] = full.state.base
        if len(self._bases) > KEPT_COUNT:
            del self._bases[next(iter(self._bases))]
        now, ago_s = time.time(), time.perf_counter() - moment_s
        self._queue.put(_Complete(full, moment_s, now - ago_s, now))

    def forget(self, snapshot: SnapshotId) -> None:
        """Drop the rows and chunks of a fragment that will not follow."""
        self._chunks.forget(snapshot)

    def close(self) -> None:
        """Write what is queued, and end; wait for that, but not for long."""
        self._queue.put(None)
        self._thread.join(CLOSE_S_MAX)

    def _forget_lost(self) -> None:
        while self._lost:
            self._bases.pop(self._lost.popleft(), None)

    def _work(self, life: FragmentSource, topology: FragmentTopology) -> None:
        writer: FragmentWriter | None = None
        while (item := self._queue.get()) is not None:
            try:
                if writer is None:  # that takes a while, and a process is to begin at once
                    check_own_unused(self._directory, life)
                    writer = FragmentWriter(self._directory, life, topology)
                writer.write(
                    item.fragment,
                    moment_s=item.moment_s,
                    recorded_at=item.recorded_at,
                    completed_at=item.completed_at,
                )
            except StillframeError as error:
                self._lose(item.fragment, str(error))
            except Exception as error:  # a bug of ours, or no memory: the process is to go on
                self._lose(item.fragment, describe(error))
            else:
                # Not before it has caught up: one that is too slow is told once, too.
                self._is_reported = self._is_reported and not self._queue.empty()

    def _lose(self, fragment: Fragment, why: str) -> None:
        self._lost.append(fragment.snapshot)
        if not self._is_reported:
            self._is_reported = True
            self._report_failure(
                f"process {self._process} cannot write its fragments into {self._directory}: "
                f"{why}; the process continues, and snapshots in that directory are incomplete"
            )
