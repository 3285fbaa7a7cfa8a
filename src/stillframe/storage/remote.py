"""Requests to storage behind a network: counted, limited, repeated after errors that may pass."""

import contextlib
import errno
import importlib
import itertools
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from stillframe.errors import Unavailable
from stillframe.storage.location import Location
from stillframe.storage.storage import Changed, RequestCounts

_Answer = TypeVar("_Answer")

REPEAT_S = 15.0
"""For how long a failing request is repeated."""
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 2.0
NOTICE_S = 1.0
"""After how long a command says that it waits for an object store."""
CONCURRENT_COUNT_MAX = 32
"""Maximum requests of this program to one bucket at a time; more wait, but for those in
``unlimited``."""


class _Thread(threading.local):
    is_unlimited = False


_thread = _Thread()


@contextlib.contextmanager
def unlimited() -> Iterator[None]:
    """Let requests of this thread not wait for others: few, small, and with a deadline."""
    before, _thread.is_unlimited = _thread.is_unlimited, True
    try:
        yield
    finally:
        _thread.is_unlimited = before


class _Notice:
    """Tells `say` once for each object store that keeps this program waiting."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.is_over = threading.Event()
        self._say = say
        self._watched: set[RemoteStorage] = set()

    def watch(self, store: "RemoteStorage") -> None:
        """Watch an object store, unless that is done already."""
        if store not in self._watched:
            self._watched.add(store)
            threading.Thread(target=self._run, args=(store,), name="notice", daemon=True).start()

    def _run(self, store: "RemoteStorage") -> None:
        while not self.is_over.wait(NOTICE_S / 4):
            if why := store.why_waiting():
                self._say(f"waiting for {why}; Ctrl-C ends this command")
                return


_notices: list[_Notice] = []


@contextlib.contextmanager
def noticing(say: Callable[[str], None]) -> Iterator[None]:
    """Tell `say` if an object store keeps the body waiting: which one, and why."""
    notice = _Notice(say)
    _notices.append(notice)
    try:
        yield
    finally:
        _notices.remove(notice)
        notice.is_over.set()


class RemoteStorage:
    """Storage behind a network, by its `root`: the part of an address that names it."""

    _failures: tuple[type[Exception], ...] = (OSError,)
    """What an attempt raises if it fails; ``_explain`` says what it means."""
    _requests_of_an_attempt = 1

    def __init__(self, root: str) -> None:
        self._root = root
        self._free = threading.BoundedSemaphore(CONCURRENT_COUNT_MAX)
        self._counting = threading.Lock()
        self._counts = RequestCounts()
        self._trouble = ""
        self._begun: dict[object, float] = {}
        self._answered_at = 0.0

    def why_waiting(self) -> str:
        """Return why this program waits for a request, with the name of the bucket, if it gets no
        answer for a while; "" if not. A long answer is none, once the bucket has answered."""
        begun = min(list(self._begun.values()), default=math.inf)
        waited_s = time.monotonic() - max(begun, self._answered_at)
        if waited_s < NOTICE_S or (self._answered_at and not self._trouble):
            return ""
        return f"{self._root}: {self._trouble or 'it has not answered yet'}"

    @property
    def trouble(self) -> str:
        """The error of the last request, in words, while it is repeated; "" if it succeeded."""
        return self._trouble

    @property
    def counts(self) -> RequestCounts:
        """The requests so far."""
        return self._counts

    def _request(
        self,
        location: Location,
        attempt: Callable[[], _Answer],
        *,
        sent: int = 0,
        received: Callable[[_Answer], int] = lambda answer: 0,
    ) -> _Answer:
        """Return what `attempt` returns, repeated for a while after errors that may pass."""
        if not self._root.startswith("memory:") and _network.setdefault("pid", _pid()) != _pid():
            sentence = "a forked process cannot use object stores that its parent has used"
            raise OSError(errno.EIO, sentence, str(location))
        for notice in _notices:
            notice.watch(self)
        this = object()
        self._begun[this] = time.monotonic()
        try:
            return self._repeated(location, attempt, sent, received)
        finally:
            del self._begun[this]

    def _repeated(
        self,
        location: Location,
        attempt: Callable[[], _Answer],
        sent: int,
        received: Callable[[_Answer], int],
    ) -> _Answer:
        failing_s = 0.0  # without what it waited for others
        for number in itertools.count():
            count = 0
            with contextlib.nullcontext() if _thread.is_unlimited else self._free:
                from_s = time.monotonic()
                try:
                    answer = _interruptible(attempt)
                    count = received(answer)
                    self._trouble, self._answered_at = "", time.monotonic()
                    return answer
                except self._failures as error:
                    passes, failure = self._explain(error, location)
                    if isinstance(failure, FileNotFoundError | FileExistsError | Changed):
                        self._trouble, self._answered_at = "", time.monotonic()
                    else:
                        self._trouble = str(failure.strerror)
                finally:
                    took_s = time.monotonic() - from_s
                    requests = self._requests_of_an_attempt
                    self._count(RequestCounts(requests, min(number, 1), sent, count, took_s))
            pause_s = min(PAUSE_S_MAX, PAUSE_S_MIN * 2 ** min(number, 20))
            pause_s *= random.uniform(0.5, 1.0)  # noqa: S311
            failing_s += took_s + pause_s
            if not passes or failing_s > REPEAT_S:
                raise failure
            time.sleep(pause_s)
        raise AssertionError("the loop has no end")

    def _count(self, more: RequestCounts) -> None:
        with self._counting:
            self._counts = self._counts.plus(more)

    def _explain(self, error: Exception, location: Location) -> tuple[bool, OSError]:
        """Return whether an error may pass, and an OSError with a sentence."""
        raise NotImplementedError


def _interruptible(call: Callable[[], _Answer]) -> _Answer:
    """Return what `call` returns. Ctrl-C ends the wait for it: Python handles no signal in its main
    thread while that waits inside a library."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    return started(call, "object-store").result()


def started(call: Callable[[], _Answer], name: str) -> "Future[_Answer]":
    """Call a function in a thread of that name, for which the end of the program does not wait."""
    future: Future[_Answer] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by who asks for the result
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def library(module: str, root: str, extra: str) -> Any:
    """Return the library that a storage needs; Unavailable says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        name = module.replace("_", "-")
        raise Unavailable(
            f"{root} needs the library {name}, which is not installed",
            remedy=f"pip install 'stillframe[{extra}]'",
        ) from None


_network: dict[str, int] = {}
"""The process that has sent requests first. The library's threads are not in its forked children,
so a request there would never end."""


def _pid() -> int:
    return os.getpid()
