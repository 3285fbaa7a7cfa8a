"""The choices of a simulated world. A schedule is a list of these, one line of text each.

A world is not random: the same choices make the same run.
"""

import re
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, get_args

import msgspec

from stillframe.errors import UsageError, repr_of, text_of
from stillframe.model import DECODING_ERRORS, Channel, ProcessId, SnapshotId


class _Choice(msgspec.Struct, frozen=True):
    """A choice that is written as its `form`, with each field in the place of its name."""

    form: ClassVar[str]

    def __str__(self) -> str:
        fields = msgspec.structs.asdict(self)
        written = {name: _FIELDS[name].write(value) for name, value in fields.items()}
        return self.form.format(**written)


class Act(_Choice, frozen=True):
    """A process takes one of its actions, with `arguments`, which are JSON values."""

    form = "{process} does {action}{arguments}"
    process: ProcessId
    action: str
    arguments: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if not self.arguments:
            return
        try:
            is_kept = _read_arguments(write_arguments(self.arguments)) == self.arguments
        except Exception:  # noqa: BLE001 - of a value, whose class may be the application's
            is_kept = False
        if not is_kept:
            raise UsageError(
                f"{self.process} does {self.action}: its arguments {repr_of(self.arguments)} are "
                "not JSON values, so a printed schedule would not repeat it: give finite numbers, "
                "text, True, False, None, lists and dicts with text as keys"
            )


class Deliver(_Choice, frozen=True):
    """The next frame of a channel arrives; with several channels, all in one atomic action.

    `position` counts from the oldest frame, 0; where order is kept it is always 0.
    """

    form = "deliver {channels}{position}"
    channels: tuple[Channel, ...]
    position: int = 0


class Initiate(_Choice, frozen=True):
    """A process initiates a snapshot."""

    form = "{process} initiates {snapshot}"
    process: ProcessId
    snapshot: SnapshotId


class Expire(_Choice, frozen=True):
    """The snapshots whose deadlines have passed are abandoned."""

    form = "expire"


class DeliverNotice(_Choice, frozen=True):
    """A process is notified that a snapshot has ended: it stops recording an abandoned one."""

    form = "{process} hears that {snapshot} is over"
    process: ProcessId
    snapshot: SnapshotId


class Lose(_Choice, frozen=True):
    """A lossy network loses a frame."""

    form = "lose {channel}{position}"
    channel: Channel
    position: int = 0


class Duplicate(_Choice, frozen=True):
    """The next frame of a channel is in transit twice."""

    form = "double {channel}"
    channel: Channel


class Break(_Choice, frozen=True):
    """The connection that carries a channel is lost, with everything on it."""

    form = "break {channel}"
    channel: Channel


class Connect(_Choice, frozen=True):
    """The source of a channel connects again."""

    form = "connect {channel}"
    channel: Channel


class Partition(_Choice, frozen=True):
    """A partition: messages no longer arrive between these processes and all others."""

    form = "partition {processes}"
    processes: tuple[ProcessId, ...]


class Heal(_Choice, frozen=True):
    """The partition ends."""

    form = "heal"


class Crash(_Choice, frozen=True):
    """A process dies."""

    form = "{process} crashes"
    process: ProcessId


class Restart(_Choice, frozen=True):
    """The whole system rolls back to the last restore point, in a new epoch."""

    form = "restart"


Move = Act | Deliver | Initiate | Expire | DeliverNotice
"""What happens in a system that works."""
Fault = Lose | Duplicate | Break | Connect | Partition | Heal | Crash | Restart
"""A fault, or its end."""
Choice = Move | Fault
"""What happens next in a simulated world. ``str`` writes it as text, and ``parse_choice`` reads
it."""

FORMS = (
    "P1 does ACTION[(VALUE, ...)], deliver P1->P2 [at N], P1 initiates P1-1, "
    "P1 hears that P1-1 is over, expire, lose P1->P2 [at N], double P1->P2, "
    "break P1->P2, connect P1->P2, partition P1 P2, heal, P1 crashes, restart"
)


def parse_choice(text: str) -> Choice:
    """Read what ``str`` writes of a choice. Raises UsageError if it is none; the forms are
    listed."""
    for kind, form in _PATTERNS:
        if found := form.fullmatch(str(text).strip()):
            fields = {name: _FIELDS[name].read(value) for name, value in found.groupdict().items()}
            return kind(**fields)
    raise UsageError(f"{text!r} is not a choice; choices are: {FORMS}")


def parse_channel(text: str) -> Channel:
    """Read a channel such as ``P1->P2``; UsageError if it is none."""
    if re.fullmatch(_CHANNEL, text) is None:
        raise UsageError(f"{text!r} is not a channel, such as P1->P2")
    source, _, target = text.partition("->")
    return Channel(source, target)


def _read_arguments(text: str) -> tuple[Any, ...]:
    try:
        return tuple(msgspec.json.decode(f"[{text[1:-1]}]", type=list[Any]))
    except DECODING_ERRORS as error:
        raise UsageError(
            f'{text} are not arguments ({text_of(error)}): write JSON values, as in pay(20, "EUR")'
        ) from None


def write_arguments(arguments: tuple[Any, ...]) -> str:
    """Return the arguments of an action as text after its name; nothing if there are none."""
    return f"({msgspec.json.encode(arguments).decode()[1:-1]})" if arguments else ""


class _Field(NamedTuple):
    """The notation for the value of a field: the pattern of its text, and functions for both
    directions."""

    pattern: str
    read: Callable[[str], Any] = str
    write: Callable[[Any], str] = str


_PROCESS = r"[A-Za-z][A-Za-z0-9_.-]*"
_CHANNEL = rf"{_PROCESS}->{_PROCESS}"
_FIELDS = {
    "process": _Field(_PROCESS),
    "processes": _Field(rf"{_PROCESS}(?: {_PROCESS})*", lambda text: tuple(text.split()), " ".join),
    "action": _Field(r"[^\s(]+"),
    "arguments": _Field(r"(?:\(.*\))?", _read_arguments, write_arguments),
    "snapshot": _Field(r"\S+", SnapshotId.parse),
    "channel": _Field(_CHANNEL, parse_channel),
    "channels": _Field(
        rf"{_CHANNEL}(?:, ?{_CHANNEL})*",
        lambda text: tuple(parse_channel(name.strip()) for name in text.split(",")),
        lambda channels: ", ".join(map(str, channels)),
    ),
    "position": _Field(
        r"(?: at \d{1,6})?",
        lambda text: int(text.removeprefix(" at ") or 0),
        lambda position: f" at {position}" if position else "",
    ),
}
_PATTERNS: list[tuple[Callable[..., Choice], re.Pattern[str]]] = [
    (
        kind,
        re.compile(
            kind.form.format(**{name: f"(?P<{name}>{f.pattern})" for name, f in _FIELDS.items()})
        ),
    )
    for kind in get_args(Choice)
]
