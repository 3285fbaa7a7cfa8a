"""What can happen next in a simulated world. A schedule is a list of these, one line of text each.

A world has no chance of its own: the same choices make the same run.
"""

import re
from typing import Any

import msgspec

from stillframe.errors import UsageError
from stillframe.model import Channel, ProcessId, SnapshotId


class Act(msgspec.Struct, frozen=True):
    """A process takes one of its own actions."""

    process: ProcessId
    action: str

    def __str__(self) -> str:
        return f"{self.process} does {self.action}"


class Deliver(msgspec.Struct, frozen=True):
    """What is next on a channel arrives; on several channels at once, as one atomic action.

    `position` counts from the oldest, which is 0; where order is kept it is always 0.
    """

    channels: tuple[Channel, ...]
    position: int = 0

    def __str__(self) -> str:
        where = ", ".join(map(str, self.channels))
        return f"deliver {where}{f' at {self.position}' if self.position else ''}"


class Initiate(msgspec.Struct, frozen=True):
    """A process begins a snapshot by itself."""

    process: ProcessId
    snapshot: SnapshotId

    def __str__(self) -> str:
        return f"{self.process} initiates {self.snapshot}"


class Expire(msgspec.Struct, frozen=True):
    """The deadlines that have passed are acted on: those snapshots are abandoned."""

    def __str__(self) -> str:
        return "expire"


class Hear(msgspec.Struct, frozen=True):
    """A process hears that a snapshot is over: it gives its part up if it was abandoned."""

    process: ProcessId
    snapshot: SnapshotId

    def __str__(self) -> str:
        return f"{self.process} hears that {self.snapshot} is over"


class Lose(msgspec.Struct, frozen=True):
    """A network that may lose things loses one."""

    channel: Channel
    position: int = 0

    def __str__(self) -> str:
        return f"lose {self.channel}{f' at {self.position}' if self.position else ''}"


class Double(msgspec.Struct, frozen=True):
    """What is next on a channel is on its way twice."""

    channel: Channel

    def __str__(self) -> str:
        return f"double {self.channel}"


class Break(msgspec.Struct, frozen=True):
    """The connection that carries a channel is lost, with everything on it."""

    channel: Channel

    def __str__(self) -> str:
        return f"break {self.channel}"


class Connect(msgspec.Struct, frozen=True):
    """The source of a channel connects again."""

    channel: Channel

    def __str__(self) -> str:
        return f"connect {self.channel}"


class Partition(msgspec.Struct, frozen=True):
    """Nothing arrives any more between these processes and all others."""

    processes: tuple[ProcessId, ...]

    def __str__(self) -> str:
        return f"partition {' '.join(self.processes)}"


class Heal(msgspec.Struct, frozen=True):
    """The partition is over."""

    def __str__(self) -> str:
        return "heal"


class Crash(msgspec.Struct, frozen=True):
    """A process dies."""

    process: ProcessId

    def __str__(self) -> str:
        return f"{self.process} crashes"


class Restart(msgspec.Struct, frozen=True):
    """The whole system goes back to the last restore point, in a new epoch."""

    def __str__(self) -> str:
        return "restart"


Move = Act | Deliver | Initiate | Expire | Hear
"""What happens in a system that works."""
Fault = Lose | Double | Break | Connect | Partition | Heal | Crash | Restart
"""What goes wrong, and how it ends."""
Choice = Move | Fault

_PROCESS = r"[A-Za-z][A-Za-z0-9_.-]*"
_CHANNEL = rf"{_PROCESS}->{_PROCESS}"
_AT = r"(?: at (?P<at>\d{1,6}))?"
_FORMS: tuple[tuple[re.Pattern[str], Any], ...] = tuple(
    (re.compile(form), make)
    for form, make in (
        (rf"(?P<p>{_PROCESS}) does (?P<a>\S+)", lambda f: Act(f["p"], f["a"])),
        (
            rf"deliver (?P<c>{_CHANNEL}(?:, ?{_CHANNEL})*){_AT}",
            lambda f: Deliver(
                tuple(parse_channel(c.strip()) for c in f["c"].split(",")), int(f["at"] or 0)
            ),
        ),
        (
            rf"(?P<p>{_PROCESS}) initiates (?P<s>\S+)",
            lambda f: Initiate(f["p"], SnapshotId.parse(f["s"])),
        ),
        (r"expire", lambda f: Expire()),
        (
            rf"(?P<p>{_PROCESS}) hears that (?P<s>\S+) is over",
            lambda f: Hear(f["p"], SnapshotId.parse(f["s"])),
        ),
        (
            rf"lose (?P<c>{_CHANNEL}){_AT}",
            lambda f: Lose(parse_channel(f["c"]), int(f["at"] or 0)),
        ),
        (rf"double (?P<c>{_CHANNEL})", lambda f: Double(parse_channel(f["c"]))),
        (rf"break (?P<c>{_CHANNEL})", lambda f: Break(parse_channel(f["c"]))),
        (rf"connect (?P<c>{_CHANNEL})", lambda f: Connect(parse_channel(f["c"]))),
        (rf"partition (?P<p>{_PROCESS}(?: {_PROCESS})*)", lambda f: Partition(_words(f["p"]))),
        (r"heal", lambda f: Heal()),
        (rf"(?P<p>{_PROCESS}) crashes", lambda f: Crash(f["p"])),
        (r"restart", lambda f: Restart()),
    )
)
FORMS = (
    "P1 does ACTION, deliver P1->P2 [at N], P1 initiates P1-1, P1 hears that P1-1 is over, expire, "
    "lose P1->P2 [at N], double P1->P2, break P1->P2, connect P1->P2, partition P1 P2, heal, "
    "P1 crashes, restart"
)


def parse_choice(text: str) -> Choice:
    """Read what ``str`` writes of a choice.

    Raises:
        UsageError: it is none; the forms are listed.
    """
    for form, make in _FORMS:
        if found := form.fullmatch(text.strip()):
            choice: Choice = make(found)
            return choice
    raise UsageError(f"{text!r} is nothing that can happen; possible are: {FORMS}")


def parse_channel(text: str) -> Channel:
    """Read a channel such as ``P1->P2``.

    Raises:
        UsageError: it is none.
    """
    if re.fullmatch(_CHANNEL, text) is None:
        raise UsageError(f"{text!r} is no channel: they look like P1->P2")
    source, _, target = text.partition("->")
    return Channel(source, target)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())
