"""A process's own parts of snapshots, put aside as they go to the coordinator.

The process never waits for the disk: a thread writes, and what it cannot write in time is lost,
which is told once. That costs a snapshot here, never the process.
"""

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from stillframe.errors import StillframeError
from stillframe.model import Fragment, ProcessId, SnapshotId
from stillframe.runtime import control
from stillframe.runtime.host import describe
from stillframe.runtime.pieces import Pieces
from stillframe.store.chain import CHAIN_LENGTH_MAX
from stillframe.store.fragments import FragmentTopology, FragmentWriter
from stillframe.topology import Description

WAITING_COUNT_MAX = 8
"""So many may wait to be written; what comes then is lost."""
CLOSE_S_MAX = 5.0
"""So long the end of a process waits for what is still to be written."""


class _Complete(NamedTuple):
    fragment: Fragment
    recorded_at: float
    completed_at: float


class FragmentLog:
    """Writes what a process records of snapshots. Call ``close`` at its end.

    Args:
        directory: where the fragments of all processes go.
        process: whose these are.
        epoch: of the system.
        description: of the topology that it takes part in.
        reference: where that is, ``module:attribute``; None if this process does not know.
        trouble: called by the thread with a sentence for people, once for each time that something
            keeps it from writing.
    """

    def __init__(
        self,
        directory: Path,
        process: ProcessId,
        epoch: int,
        description: Description,
        reference: str | None,
        *,
        trouble: Callable[[str], None],
    ) -> None:
        self._process = process
        self._directory = directory
        self._trouble = trouble
        self._pieces = Pieces()
        self._link_count = 0
        self._is_one_lost = False
        self._is_told = False
        self._queue: queue.SimpleQueue[_Complete | None] = queue.SimpleQueue()
        # Made in the thread: that takes a while, and a process is to begin at once.
        topology = FragmentTopology(reference=reference, description=description)
        make_writer = partial(FragmentWriter, directory, process, epoch, topology)
        self._thread = threading.Thread(
            target=self._work, args=(make_writer,), name="fragments", daemon=True
        )
        self._thread.start()

    @property
    def wants_whole(self) -> bool:
        """Whether the next one is to hold the keyed fields whole: there are many changes in a row,
        or one is lost on which others would be based."""
        return self._is_one_lost or self._link_count >= CHAIN_LENGTH_MAX

    def ahead(self, message: control.PartRows | control.PartPiece) -> None:
        """Take what belongs to a fragment to come."""
        self._pieces.add(self._process, message)

    def complete(self, fragment: Fragment, recorded_at: float) -> None:
        """Take a fragment, of which all that is large was said ahead.

        Args:
            fragment: what else there is of it.
            recorded_at: when the process recorded its state, in seconds since 1970.
        """
        whole = self._pieces.complete(fragment)
        if whole.state.base is None:
            self._link_count = 0
            self._is_one_lost = False
        else:
            self._link_count += 1
        if self._queue.qsize() >= WAITING_COUNT_MAX:
            self._lose(f"{WAITING_COUNT_MAX} snapshots wait for that already")
        else:
            self._queue.put(_Complete(whole, recorded_at, time.time()))

    def forget(self, snapshot: SnapshotId) -> None:
        """Drop what was said ahead: there will be no fragment."""
        self._pieces.forget(snapshot)

    def close(self) -> None:
        """Write what was put aside, and end; wait for that, but not for long."""
        self._queue.put(None)
        self._thread.join(CLOSE_S_MAX)

    def _work(self, make_writer: Callable[[], FragmentWriter]) -> None:
        writer: FragmentWriter | None = None
        while (item := self._queue.get()) is not None:
            try:
                writer = writer or make_writer()
                writer.write(
                    item.fragment, recorded_at=item.recorded_at, completed_at=item.completed_at
                )
            except StillframeError as error:
                self._lose(str(error))
            except Exception as error:  # a bug of ours, or no memory: the process is to go on
                self._lose(describe(error))
            else:
                self._is_told = False
        if writer is not None:
            writer.close()

    def _lose(self, why: str) -> None:
        self._is_one_lost = True
        if not self._is_told:
            self._is_told = True
            self._trouble(
                f"what process {self._process} records cannot be written into {self._directory}: "
                f"{why}; the process goes on, and snapshots are incomplete there"
            )
