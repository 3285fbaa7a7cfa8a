"""Ends a process whose supervisor is gone and for which nobody comes in time."""

import os
import queue
import threading

from stillframe.runtime.os_process import OsProcess, wait_for

EXIT_ORPHANED = 1


class Vigil:
    """Watches the supervisor from a thread: it also ends a process whose handler keeps the loop
    busy, which would never notice that its line to the coordinator is gone.

    Args:
        supervisor: who watches over this process now.
        orphaned_s: how long this process outlives a supervisor that nobody replaces, in seconds.
    """

    def __init__(self, supervisor: OsProcess, *, orphaned_s: float) -> None:
        self._orphaned_s = orphaned_s
        self._newest = supervisor
        self._successors: queue.SimpleQueue[OsProcess] = queue.SimpleQueue()
        threading.Thread(target=self._keep, args=(supervisor,), daemon=True).start()

    def supervised_by(self, supervisor: OsProcess) -> None:
        """Note who watches over this process now; the same one as before is no news."""
        if supervisor != self._newest:
            self._newest = supervisor
            self._successors.put(supervisor)

    def _keep(self, supervisor: OsProcess) -> None:
        while True:
            wait_for(supervisor)
            try:
                supervisor = self._successors.get(timeout=self._orphaned_s)
            except queue.Empty:
                os._exit(EXIT_ORPHANED)
