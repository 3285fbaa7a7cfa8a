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

Objects of a user become text only here (`text_of`, `repr_of`, `describe`): their ``str()`` or
``repr()`` may fail, or return what is not UTF-8.
"""

import math
from collections.abc import Callable
from types import UnionType

TEXT_LENGTH_MAX = 10_000
"""How many characters of the text of a user's object are kept."""


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

    path: str | None = None
    process: str | None = None
    snapshot: str | None = None
    remedy: str | None

    def __init__(
        self,
        text: str = "",
        *,
        path: object = None,
        process: str | None = None,
        snapshot: object = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(utf8(text if remedy is None else f"{text}: {remedy}"))
        self.remedy = remedy
        self.locate(path=path, process=process, snapshot=snapshot)

    def locate(
        self, *, path: object = None, process: str | None = None, snapshot: object = None
    ) -> None:
        """Set what the error is about, unless the place that raised it knew better."""
        self.path = self.path or (None if path is None else utf8(str(path)))
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


def call(function: Callable[..., object], *arguments: object, name: str, where: str = "") -> object:
    """Return the result of a function of the application, which errors call `name`.

    Raises:
        ApplicationError: it raised, and says `where`. Even ``sys.exit()`` ends nothing else.
    """
    try:
        return function(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ApplicationError(f"{name} raised {describe(error)}{where}") from error


def check_assertions() -> None:
    """Raise a UsageError if Python removes the assertions with which this package checks itself."""
    if not __debug__:
        raise UsageError(
            "Python runs with -O, or with PYTHONOPTIMIZE set, which removes the assertions by "
            "which stillframe notices its own errors",
            remedy="start it without -O, and unset PYTHONOPTIMIZE",
        )


def check_kind(argument: str, value: object, kind: type | UnionType, wanted: str) -> None:
    """Raise a UsageError that asks for what is `wanted`, unless `value` is of that kind."""
    if not isinstance(value, kind):
        raise UsageError(f"{argument} is {repr_of(value)}: give {wanted}")


def check_seconds(argument: str, seconds: float) -> None:
    """Raise a UsageError unless the value of `argument` is a length of time."""
    if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise UsageError(f"{argument} is {seconds}: give a number of seconds above 0")


def check_count(argument: str, count: int, least: int) -> None:
    """Raise a UsageError if the value of `argument` is below `least`."""
    if not isinstance(count, int) or count < least:
        raise UsageError(f"{argument} is {count}: give {least} or more")


def utf8(text: str) -> str:
    """Return a text with what UTF-8 cannot encode escaped."""
    return str.encode(text, "utf-8", "backslashreplace").decode()


def text_of(found: object) -> str:
    """Return the text of an object, whatever its class does: in UTF-8, of limited length. Without
    one it is the name of the class, and why."""
    return _made(str, found)


def repr_of(found: object) -> str:
    """Return the representation of an object, as ``text_of`` does."""
    return _made(repr, found)


def describe(error: BaseException) -> str:
    """Return an error with its class, as ``text_of`` does."""
    name, text = class_name(error), text_of(error)
    return f"{name}: {text}" if text and not text.startswith(f"{name} (") else text or name


def class_name(found: object) -> str:
    """Return the name of the class of an object. A metaclass may have another `__name__`."""
    name: str = type.__dict__["__name__"].__get__(type(found))
    return name


def _made(make: Callable[[object], str], found: object) -> str:
    try:
        text = make(found)
        # Its class may be a user's, too: only the functions of str are called.
        kept = utf8(str.__getitem__(text, slice(TEXT_LENGTH_MAX)))
        count = str.__len__(text)
    except BaseException as error:  # noqa: BLE001 - sys.exit() in it as well
        return f"{class_name(found)} (its {make.__name__}() raised {class_name(error)})"
    return kept if count <= TEXT_LENGTH_MAX else f"{kept}... ({count:,} characters)"
