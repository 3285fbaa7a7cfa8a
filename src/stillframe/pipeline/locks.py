"""Who runs what: a lock for each participant, and one for whoever takes or restores snapshots.

A lock is held by a program, through the file system, and ends with it.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from stillframe.errors import Unavailable
from stillframe.store.opening import explained

PARTICIPANTS = "participants"
COORDINATOR = "coordinator.lock"
WAIT_S = 5.0
"""A coordinator that records resting participants holds their locks for milliseconds, and a query
that was told to stop lets go a moment after it has."""
POLL_S = 0.01


class Lock:
    """Held from ``take`` until ``release``, or until the program that took it is gone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def try_take(self) -> bool:
        """Take the lock if nobody has it, and return whether that succeeded.

        Raises:
            StoreError: its file cannot be written.
        """
        with explained(self._path, "opened"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            except OSError:
                os.close(descriptor)
                raise
        self._descriptor = descriptor
        _held.add(self)
        return True

    def take_soon(self) -> bool:
        """Take the lock even if somebody is about to let go of it; return whether that succeeded.

        Raises:
            StoreError: its file cannot be written.
        """
        until = time.monotonic() + WAIT_S
        while not self.try_take():
            if time.monotonic() > until:
                return False
            time.sleep(POLL_S)
        return True

    def release(self) -> None:
        """Let somebody else have it. Releasing twice does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held.discard(self)


_held: set[Lock] = set()


def _let_go_in_child() -> None:
    """A process that is forked off (``multiprocessing``) must not keep a lock when we are gone."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_let_go_in_child)


def participant_lock(root: Path, name: str) -> Lock:
    """Return the lock of whoever runs the participant `name`."""
    return Lock(root / PARTICIPANTS / f"{name}.lock")


def is_running(root: Path, name: str) -> bool:
    """Return whether a program runs the participant `name` now."""
    lock = participant_lock(root, name)
    if lock.try_take():
        lock.release()
        return False
    return True


@contextlib.contextmanager
def coordinating(root: Path, doing: str, *, is_patient: bool = True) -> Iterator[None]:
    """Be the only one who makes, photographs, restores or trims the pipeline at `root`.

    Args:
        root: the pipeline.
        doing: what is to be done, for the error.
        is_patient: whether to wait for somebody who will soon be done.

    Raises:
        Unavailable: somebody else is at it.
    """
    lock = Lock(root / COORDINATOR)
    if not (lock.take_soon() if is_patient else lock.try_take()):
        raise Unavailable(
            f"{doing} is not possible now: a snapshot of {root} is being taken or restored by "
            "another program; try again when it has ended, and end a 'spark snapshot --every' "
            "that may be taking one after the other"
        )
    try:
        yield
    finally:
        lock.release()
