"""An object store in memory in which any one request can fail, or another program can come between.

The program that a request fails in either stays cut off from then on, as if it had died there, or
only lost that one answer. These are faults that the storage could not repair, in all buckets and
for chosen threads. ``tests.storage.faulty`` lets requests fail below the storage, which repeats
them.
"""

import errno
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stillframe.pipeline import coordinator, locks
from stillframe.storage import files, lease, opened, remote
from stillframe.storage.storage import Storage

WRITES = ("put", "put_if_absent", "replace_if_unchanged", "copy", "delete")
READS = ("read", "read_range", "exists", "children", "files_below")


class Faults:
    """What happens at one write of the program under test; others are counted only."""

    def __init__(self) -> None:
        self.count = 0
        self.with_reads = False
        self.is_tested: Callable[[str], bool] = lambda thread: thread != "lease"
        self._at = -1
        self._happens: Callable[[Callable[[], Any]], Any] = lambda write: write()
        self._is_on = self._is_down = False

    @contextmanager
    def at(
        self, number: int, happens: Callable[[Callable[[], Any]], Any], *, stays: bool = False
    ) -> Iterator[None]:
        """Run the body as the program under test. Its write `number` is given to `happens`; if it
        `stays` that way, no later request arrives. The body's OSErrors are those of requests."""
        self.count, self._at, self._happens = 0, number, happens
        self._stays, self._is_on, self._is_down = stays, True, False
        try:
            yield
        finally:
            self._is_on = False

    def request(self, name: str, perform: Callable[[], Any]) -> Any:
        """Perform a request, or not."""
        if not self._is_on or not self.is_tested(threading.current_thread().name):
            return perform()
        if self._is_down:
            raise lost()
        if name not in WRITES and not self.with_reads:
            return perform()
        self.count += 1
        if self.count - 1 != self._at:
            return perform()
        self._is_down = self._stays
        return self._happens(perform)

    @property
    def is_down(self) -> bool:
        """Whether the program under test is cut off."""
        return self._is_on and self._is_down

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run the body as another program."""
        self._is_on = False
        try:
            yield
        finally:
            self._is_on = True


def lost() -> OSError:
    """Return the error of a request whose outcome is unknown."""
    return OSError(errno.EIO, "the object store failed: it does not answer")


def before(write: Callable[[], Any]) -> Any:
    """The request does not arrive."""
    raise lost()


def after(write: Callable[[], Any]) -> Any:
    """The request takes effect, and its answer is lost."""
    write()
    raise lost()


class _FaultyStore:
    def __init__(self, store: Storage, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in WRITES + READS:
            return method

        def request(*arguments: Any, **options: Any) -> Any:
            perform = functools.partial(method, *arguments, **options)
            return self._faults.request(name, perform)

        return request


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """The faults of all object stores in a test. The holder of a lease counts as dead, so that a
    program can take over from one that is frozen here."""
    found = Faults()
    real = opened._object_store
    monkeypatch.setattr(opened, "_object_store", lambda r, pid: _FaultyStore(real(r, pid), found))
    monkeypatch.setattr(lease, "_has_ended", lambda holder: True)
    monkeypatch.setattr(files, "_CONCURRENT_COUNT", 1)
    # Memory answers at once; a thread for each request would take half of the time.
    monkeypatch.setattr(remote, "_interruptible", lambda call: call())
    for module in (coordinator, locks):
        monkeypatch.setattr(module, "OBJECT_POLL_S", 0.0)
    monkeypatch.setattr(coordinator, "STOPPED_S", 0.0)
    return found
