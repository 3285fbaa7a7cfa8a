"""A lock for each participant, held by the program that runs it, and one for the coordinator.

The file system releases a lock when the program that holds it ends.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from stillframe.durable_files import try_lock
from stillframe.errors import Unavailable
from stillframe.store.layout import explain_io_errors

PARTICIPANTS = "participants"
COORDINATOR = "coordinator.lock"
WAIT_S = 5.0
"""A coordinator that records stopped participants holds their locks for milliseconds, and a query
releases its own a moment after it has stopped."""
POLL_S = 0.01


class Lock:
    """Held from ``acquire`` until ``release``, or until the program that acquired it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free, and return whether that succeeded."""
        with explain_io_errors(self._path, "opened"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = try_lock(self._path)
        if self._descriptor is None:
            return False
        _held.add(self)
        return True

    def acquire(self) -> bool:
        """Acquire the lock, waiting a little while for its holder; return whether it succeeded."""
        until = time.monotonic() + WAIT_S
        while not self.try_acquire():
            if time.monotonic() > until:
                return False
            time.sleep(POLL_S)
        return True

    def release(self) -> None:
        """Release the lock. Releasing twice does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held.discard(self)

    def is_free(self) -> bool:
        """Return whether no program holds the lock now."""
        is_free = self.try_acquire()
        self.release()
        return is_free


_held: set[Lock] = set()


def _release_in_child() -> None:
    """Release the locks in a forked process (``multiprocessing``): they end with its parent."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)


def participant_lock(root: Path, name: str) -> Lock:
    """Return the lock of the program that runs the participant `name`."""
    return Lock(root / PARTICIPANTS / f"{name}.lock")


def is_running(root: Path, name: str) -> bool:
    """Return whether a program runs the participant `name` now."""
    return not participant_lock(root, name).is_free()


@contextlib.contextmanager
def coordinating(root: Path, doing: str, *, is_patient: bool = True) -> Iterator[None]:
    """Hold the coordinator's lock of the pipeline at `root` while the body runs: only one program
    at a time makes, snapshots, restores or trims it. `doing` is the purpose, for the error, which
    is Unavailable; with `is_patient` it waits a little while for another program."""
    lock = Lock(root / COORDINATOR)
    if not (lock.acquire() if is_patient else lock.try_acquire()):
        raise Unavailable(
            f"{doing} is not possible now: another program is taking or restoring a snapshot of "
            f"{root}; try again when it has finished, and stop any 'pipeline snapshot --interval' "
            "that is running there"
        )
    try:
        yield
    finally:
        lock.release()
