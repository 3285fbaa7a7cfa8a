"""The parts of a space-time diagram: frozen shapes with coordinates in pixels.

x goes to the right with what happened before what, y goes down from process to process.
"""

import enum
from typing import Literal

import msgspec

from stillframe.model import ProcessId, SnapshotId
from stillframe.trace import MessageId, Position

Point = tuple[float, float]


def midpoint(first: Point, second: Point) -> Point:
    """Return the point in the middle between two others."""
    return (first[0] + second[0]) / 2, (first[1] + second[1]) / 2


class Label(msgspec.Struct, frozen=True):
    """A line of text whose baseline is at `y`; `anchor` says which part of it is at `x`."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"


class Path(msgspec.Struct, frozen=True):
    """A quadratic curve: from, towards, to. It is straight if `control` lies in between."""

    begin: Point
    control: Point
    end: Point

    def at(self, part: float) -> Point:
        """Return the point after this part of the curve, 0.0 to 1.0."""
        before, after = (1 - part) ** 2, part**2
        middle = 2 * part * (1 - part)
        return (
            before * self.begin[0] + middle * self.control[0] + after * self.end[0],
            before * self.begin[1] + middle * self.control[1] + after * self.end[1],
        )


class Extent(enum.Enum):
    """The part of an arrow that lies in the diagram."""

    WHOLE = "whole"
    LEAVING = "leaving"
    """It was sent and has not arrived yet."""
    ENTERING = "entering"
    """It was sent before the first step in the diagram."""


class Role(enum.Enum):
    """The relation of a message to the chosen cut."""

    PLAIN = "plain"
    CAUGHT = "caught"
    """Sent before the cut, not accepted before it: a part of its channel's state."""
    ORPHAN = "orphan"
    """Accepted before the cut, not sent before it: the cut is not consistent."""
    UNSEEN = "unseen"
    """It is not known where it is, because its target shows nothing."""
    BLOCKED = "blocked"
    """A request whose answer is part of a deadlock."""


class Line(msgspec.Struct, frozen=True):
    """The life of a process, from left to right."""

    process: ProcessId
    y: float
    x_from: float
    x_to: float
    labels: tuple[Label, ...]


class Dot(msgspec.Struct, frozen=True):
    """An event, in the `step` of the diagram; `is_recorded` if it lies before the chosen cut, and
    that is known already."""

    position: Position
    x: float
    y: float
    label: Label | None
    is_recorded: bool
    full: str
    step: int = 0


class Mark(msgspec.Struct, frozen=True):
    """A step of a process in a snapshot: a marker came from `source`, or it initiated.

    `is_cut`: it recorded its state here, which `label` says; `is_faint`: another cut is chosen.
    """

    process: ProcessId
    snapshot: SnapshotId
    x: float
    y: float
    is_cut: bool
    full: str
    step: int = 0
    source: ProcessId | None = None
    colour: int = 0
    label: Label | None = None
    is_faint: bool = False


class MessageArrow(msgspec.Struct, frozen=True):
    """A message, from the event that sent it to the one that accepted it."""

    message: MessageId
    path: Path
    extent: Extent
    role: Role
    full: str
    label: Label | None = None


class LockArrow(msgspec.Struct, frozen=True):
    """A wait for a lock, from the activity that waits to the one that holds it."""

    lock: str
    process: ProcessId
    path: Path
    label: Label | None
    is_blocked: bool
    full: str


class MarkerArrow(msgspec.Struct, frozen=True):
    """A marker, from the step that sent it to the step in which it arrived."""

    snapshot: SnapshotId
    source: ProcessId
    target: ProcessId
    colour: int
    path: Path
    extent: Extent
    is_faint: bool
    full: str


class Curve(msgspec.Struct, frozen=True):
    """A cut: on each line a point, from the top down; what lies left of it is before the cut."""

    name: str
    colour: int
    points: tuple[Point, ...]
    label: Label | None
    is_faint: bool
    full: str


class Sample(enum.Enum):
    """The symbol in a row of the legend."""

    NOTHING = "nothing"
    CUT = "cut"
    RECORDED = "recorded"
    MARKER = "marker"
    IN_TRANSIT = "in transit"
    CAUGHT = "caught"
    ORPHAN = "orphan"
    MESSAGE = "message"
    UNSEEN = "unseen"
    UNKNOWN = "unknown"
    BLOCKED = "blocked"
    LOCK = "lock"


class LegendRow(msgspec.Struct, frozen=True):
    """A line of the legend: a sample of what is drawn at `x`, and what it means."""

    sample: Sample
    colour: int
    x: float
    label: Label
    full: str


class Diagram(msgspec.Struct, frozen=True):
    """A space-time diagram; title and description are for readers who cannot see it.

    Notices name the parts that were cut off, and the place of the diagram in a sequence.
    `is_crowded`: the lines are close together, so arrows are fine.
    """

    width: float
    height: float
    title: str = ""
    description: str = ""
    notices: tuple[Label, ...] = ()
    is_crowded: bool = False
    lines: tuple[Line, ...] = ()
    curves: tuple[Curve, ...] = ()
    markers: tuple[MarkerArrow, ...] = ()
    messages: tuple[MessageArrow, ...] = ()
    locks: tuple[LockArrow, ...] = ()
    dots: tuple[Dot, ...] = ()
    marks: tuple[Mark, ...] = ()
    legend: tuple[LegendRow, ...] = ()
