"""The errors of Stillframe, by who can mend them.

StillframeError
├── UsageError            you called us, or described the system, in a way that cannot work
│   └── ApplicationError  your handler raised: the cause, the process and the message are named
├── ProtocolViolation     the other end of a connection broke the rules
│   └── Refused           it (or we) said no in the handshake: version, epoch, topology, secret
├── NotConsistent         recorded data contradict themselves: the books do not balance
├── StoreError            the disk, or what is on it
│   ├── Damaged           a file is not what was written: changed, cut short or missing
│   └── Fenced            another program has taken over as the writer
└── Unavailable           a dependency is missing: a running system, Java, a free port

Expected outcomes are values, not errors: a snapshot that could not be completed is
``model.Abandoned``.
"""

import math
from types import UnionType


class StillframeError(Exception):
    """The root: ``except StillframeError`` catches every error that this package raises on purpose.

    The text says what was wrong, where, and what to do about it. The attributes are for programs;
    one that does not apply is None.

    Attributes:
        path: the file or directory that the error is about.
        process: the process that it is about; of a pipeline, the query or service.
        snapshot: the id of the snapshot that it is about, such as ``P1-17``.
        remedy: what to do about it. The text ends with it.
    """

    def __init__(
        self,
        text: str = "",
        *,
        path: object = None,
        process: str | None = None,
        snapshot: object = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(text if remedy is None else f"{text}: {remedy}")
        self.path: str | None = None
        self.process: str | None = None
        self.snapshot: str | None = None
        self.remedy = remedy
        self.locate(path=path, process=process, snapshot=snapshot)

    def locate(
        self, *, path: object = None, process: str | None = None, snapshot: object = None
    ) -> None:
        """Set what the error is about, unless the place that raised it knew better."""
        self.path = self.path or (None if path is None else str(path))
        self.process = self.process or process
        self.snapshot = self.snapshot or (None if snapshot is None else str(snapshot))


class UsageError(StillframeError):
    """A wrong call, or a wrong description of a system."""


class ApplicationError(UsageError):
    """One of your handlers raised; ``__cause__`` is its exception."""


class ProtocolViolation(StillframeError):
    """The other end of a connection broke the rules."""


class Refused(ProtocolViolation):
    """A handshake was refused."""


class NotConsistent(StillframeError):
    """Recorded data contradict themselves: a channel's books do not balance."""


class StoreError(StillframeError):
    """A store could not be read or written."""


class Damaged(StoreError):
    """A file of a store is not what was written: changed, cut short or missing."""


class Fenced(StoreError):
    """Another program has taken over as the writer of a store; this one can write no more."""


class Unavailable(StillframeError):
    """A dependency is missing: a running system, Java, a free port."""


def check_kind(argument: str, value: object, kind: type | UnionType, wanted: str) -> None:
    """Raise a UsageError that asks for what is `wanted`, unless `value` is of that kind."""
    if not isinstance(value, kind):
        raise UsageError(f"{argument} is {value!r}: give {wanted}")


def check_seconds(argument: str, seconds: float) -> None:
    """Raise a UsageError unless the value of `argument` is a length of time."""
    if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise UsageError(f"{argument} is {seconds}: give a number of seconds above 0")


def check_count(argument: str, count: int, least: int) -> None:
    """Raise a UsageError if the value of `argument` is below `least`."""
    if not isinstance(count, int) or count < least:
        raise UsageError(f"{argument} is {count}: give {least} or more")


def describe(error: BaseException) -> str:
    """Return an error in one line, with its class."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
