"""Makes chosen requests to an object store fail, each in a chosen way, without a server.

A test gives a plan: a function that looks at each request and returns a fault, or None. So every
request of an operation can fail once in turn, or be the last one of a program that dies there::

    for number in itertools.count(1):
        with faulty(location, nth(number, Fault.DEATH_AFTER)) as requests:
            with contextlib.suppress(Died):
                publish()
                break  # it has fewer requests
        with restarted():
            ...  # open it again: the old state or the new one

``tests/faulty_proxy.py`` does this to real servers.
"""

import contextlib
import enum
import importlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from stillframe.storage import lease, remote
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import object_store_of

_REQUESTS = ("copy", "delete", "get", "head", "list", "list_with_delimiter", "put")
"""The functions of obstore that send requests."""
_STATUS = "Server returned non-2xx status code: {}: <Error><Code>{}</Code></Error>"
_SENTENCES = {503: "503 Service Unavailable", 500: "500 Internal Server Error"}


class Fault(enum.Enum):
    """What happens to a request. All but DENIED and the deaths are repeated by the storage."""

    REFUSED = enum.auto()
    """It is not carried out, and status 503 comes back."""
    FAILED = enum.auto()
    """It is carried out, but status 500 comes back."""
    LOST = enum.auto()
    """It is carried out, and the connection is closed without an answer."""
    DENIED = enum.auto()
    """It is not carried out, and fails for good: the credentials do not allow it."""
    DEATH_BEFORE = enum.auto()
    """The program dies before it sends the request; see ``Died``."""
    DEATH_AFTER = enum.auto()
    """The program dies after the request was carried out; see ``Died``."""


ONCE = (Fault.REFUSED, Fault.FAILED, Fault.LOST)
"""Faults that the storage repairs by repeating the request."""
DEATHS = (Fault.DEATH_BEFORE, Fault.DEATH_AFTER)


class Died(BaseException):
    """The program dies here: it sends no request any more, whatever it catches."""


@dataclass(frozen=True)
class Request:
    """A request: its number, counted from 1, the function of obstore, and the key. Of several keys
    that are deleted together it is the first."""

    number: int
    method: str
    key: str


Plan = Callable[[Request], Fault | None]


def nth(number: int, fault: Fault) -> Plan:
    """Return the plan in which only one request fails, the `number`-th."""
    return lambda request: fault if request.number == number else None


def since(number: int, fault: Fault) -> Plan:
    """Return the plan in which that request fails and all later ones. Give a short `repeat_s`."""
    return lambda request: fault if request.number >= number else None


@dataclass
class Requests:
    """The requests so far, and whether the program has died."""

    plan: Plan
    sent: list[Request] = field(default_factory=list)
    is_dead: bool = False
    _lock: Any = field(default_factory=threading.RLock)

    def carry_out(self, method: str, keys: Any, call: Callable[[], Any]) -> Any:
        """Call a function of obstore, or fail."""
        with self._lock:
            if self.is_dead:
                raise self._death()
            key = keys[0] if isinstance(keys, list) else keys or ""
            request = Request(len(self.sent) + 1, method, str(key))
            self.sent.append(request)
            fault = self.plan(request)
            self.is_dead = fault is Fault.DEATH_BEFORE
        errors = importlib.import_module("obstore.exceptions")
        if fault is Fault.DEATH_BEFORE:
            raise self._death()
        if fault is Fault.REFUSED:
            raise errors.GenericError(_STATUS.format(_SENTENCES[503], "SlowDown"))
        if fault is Fault.DENIED:
            raise errors.PermissionDeniedError(_STATUS.format("403 Forbidden", "AccessDenied"))
        if fault is None:
            return call()
        with contextlib.suppress(Exception):  # its answer does not come, whatever it is
            call()
        if fault is Fault.FAILED:
            raise errors.GenericError(_STATUS.format(_SENTENCES[500], "InternalError"))
        if fault is Fault.LOST:
            raise errors.GenericError("error sending request: IncompleteMessage")
        self.is_dead = True
        raise self._death()

    def _death(self) -> BaseException:
        # Threads of the storage would end with an error that no test expects.
        is_ours = threading.current_thread().name in ("lease", "history")
        return OSError("the program has died") if is_ours else Died()


@contextlib.contextmanager
def faulty(
    location: Location,
    plan: Plan = lambda request: None,
    *,
    repeat_s: float = remote.REPEAT_S,
) -> Iterator[Requests]:
    """Let requests to the bucket of a location fail as `plan` says, until the block ends.

    Args:
        location: any place in the bucket, in memory or on a server.
        plan: what happens to each request; by default nothing does, so they are only recorded.
        repeat_s: for how long the storage repeats what failed. The pauses are short.
    """
    assert isinstance(location, ObjectPath)
    bucket = object_store_of(location)
    api: Any = importlib.import_module("obstore")
    requests = Requests(plan)

    def failing(name: str) -> Callable[..., Any]:
        function = getattr(api, name)

        def request(client: Any, keys: Any = None, *args: Any, **options: Any) -> Any:
            call = lambda: function(client, keys, *args, **options)  # noqa: E731
            return requests.carry_out(name, keys, call)

        return request

    wrapped = mock.Mock(wraps=api, exceptions=api.exceptions)
    for name in _REQUESTS:
        setattr(wrapped, name, failing(name))
    with (
        mock.patch.object(bucket, "_api", wrapped),
        mock.patch.object(remote, "REPEAT_S", repeat_s),
        mock.patch.object(remote, "PAUSE_S_MIN", 0.001),
        mock.patch.object(remote, "PAUSE_S_MAX", 0.001),
    ):
        yield requests


@contextlib.contextmanager
def restarted() -> Iterator[None]:
    """Let a test take the lease of a program that died: its own process plays that program."""
    with mock.patch.object(lease, "_has_ended", return_value=True):
        yield
