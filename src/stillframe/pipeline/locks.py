"""A lock for each participant, held by the program that runs it, and one for the coordinator.

In a directory the file system releases a lock when the program that holds it ends. In an object
store a lock is a lease (``storage.lease``): it only keeps a second program from starting. What a
program that has lost its lease still does must do no harm; ``docs/pipeline-format.md`` says why.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stillframe.durable_files import try_lock
from stillframe.errors import Unavailable
from stillframe.storage.lease import Lease
from stillframe.storage.location import Location, ObjectPath
from stillframe.store.layout import explain_io_errors

PARTICIPANTS = "participants"
COORDINATOR = "coordinator.lock"
COORDINATOR_LEASE = "coordinator.lease"
WAIT_S = 5.0
"""A coordinator that records stopped participants holds their locks for milliseconds, and a query
releases its own a moment after it has stopped."""
POLL_S = 0.01
OBJECT_POLL_S = 0.1
"""How often a program looks at an object store while it waits for something: each look costs."""


def poll_s(root: Location) -> float:
    """Return how often a program looks for changes of the pipeline at `root`, in seconds."""
    return OBJECT_POLL_S if isinstance(root, ObjectPath) else POLL_S


class Busy(Unavailable):
    """Another program is taking, deleting or restoring a snapshot of the pipeline."""


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

    def check_held(self, kind: str, name: str, *, remedy: str = "stop this one") -> None:
        """Raise Unavailable if another program took the place of the holder, a participant of this
        `kind` and `name`. In a file system none can."""

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


class LeasedLock(Lock):
    """A lock in an object store; as ``Lock``, but its holder may lose it."""

    def __init__(self, path: ObjectPath) -> None:
        self._place = path
        self._lost = threading.Event()
        self._lease = Lease(path, lost=self._lost.set)

    def try_acquire(self) -> bool:
        """See ``Lock``; a holder that has ended on another machine is noticed after a while."""
        with explain_io_errors(self._place, "leased"):
            return self._lease.try_acquire()

    def acquire(self, wait_s: float | None = None) -> bool:
        """See ``Lock``. It waits for a holder that may have ended until that is certain, and for a
        living one for `wait_s`."""
        until = time.monotonic() + (WAIT_S if wait_s is None else wait_s)
        first = None
        while not self.try_acquire():
            version = self._lease.watched_version()
            first = first or version
            if version != first and time.monotonic() > until:
                return False
            time.sleep(OBJECT_POLL_S)
        return True

    def release(self) -> None:
        """See ``Lock``."""
        self._lease.close()

    def check_held(self, kind: str, name: str, *, remedy: str = "stop this one") -> None:
        """See ``Lock``."""
        if self._lost.is_set():
            raise Unavailable(
                f"another program took the place of {kind} {name}, because this one did not renew "
                "its lease in time",
                path=self._place,
                process=name,
                remedy=remedy,
            )

    def is_free(self) -> bool:
        """See ``Lock``."""
        with explain_io_errors(self._place, "read"):
            return self._lease.is_free()


def participant_lock(root: Location, name: str) -> Lock:
    """Return the lock of the program that runs the participant `name`."""
    if isinstance(root, ObjectPath):
        return LeasedLock(root / PARTICIPANTS / f"{name}.lease")
    return Lock(root / PARTICIPANTS / f"{name}.lock")


def coordinator_lock(root: Location) -> Lock:
    """Return the lock of the program that creates, snapshots, restores or trims a pipeline."""
    if isinstance(root, ObjectPath):
        return LeasedLock(root / COORDINATOR_LEASE)
    return Lock(root / COORDINATOR)


def is_running(root: Location, name: str) -> bool:
    """Return whether a program runs the participant `name` now."""
    return not participant_lock(root, name).is_free()


def busy_participant(locks: Sequence[tuple[str, Lock]]) -> str | None:
    """Acquire the locks of all these participants; return one whose lock cannot be, or None."""
    if not any(isinstance(lock, LeasedLock) for _, lock in locks):
        return next((name for name, lock in locks if not lock.acquire()), None)
    # All those that ended on other machines are waited for together.
    with ThreadPoolExecutor(len(locks)) as pool:
        acquired = list(pool.map(lambda one: one[1].acquire(), locks))
    return next((name for (name, _), ours in zip(locks, acquired, strict=True) if not ours), None)


@contextlib.contextmanager
def coordinating(root: Location, doing: str, *, is_patient: bool = True) -> Iterator[None]:
    """Hold the coordinator's lock of the pipeline at `root` while the body runs: only one program
    at a time makes, snapshots, restores or trims it. `doing` is the purpose, for the error, which
    is Busy; with `is_patient` it waits a little while for another program."""
    lock = coordinator_lock(root)
    if is_patient:
        is_ours = lock.acquire()
    else:
        is_ours = lock.acquire(wait_s=0) if isinstance(lock, LeasedLock) else lock.try_acquire()
    if not is_ours:
        raise Busy(
            f"{doing} is not possible now: another program is taking or restoring a snapshot of "
            f"{root}; try again when it has finished, and stop any 'pipeline snapshot --interval' "
            "that is running there"
        )
    try:
        yield
    finally:
        lock.release()
