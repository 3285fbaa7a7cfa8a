"""An execution: atomic actions and snapshot steps of all processes, in a possible order.

An ``Event`` is an atomic action (Dijkstra, EWD 864a): it accepts messages, sends messages, or does
neither. Message *n* of a channel is sent in one event and accepted in another: this suffices to
know which event *happened before* which (Lamport, *Time, Clocks, and the Ordering of Events*, CACM
1978), and so which cuts are consistent; no clocks travel with the messages. Vector clocks (Mattern
1989) are computed on demand.

A trace is of one epoch: what a restore undoes never happened.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from stillframe.errors import NotConsistent, UsageError, check_kind
from stillframe.model import Channel, ProcessId, SnapshotId

__all__ = ["Cut", "Event", "MarkerStep", "MessageId", "Position", "Step", "Trace"]

LABEL_CHARS_MAX = 500

Cut = tuple[int, ...]
"""For each process of a trace, in the trace's order, how many of its events lie before the cut."""


def clean_label(text: str) -> str:
    """Return foreign `text` for display on one line, with at most `LABEL_CHARS_MAX` characters.
    Characters that cannot be printed or change the direction of writing are escaped; an ellipsis
    ends a text that was cut."""
    shown = text[: LABEL_CHARS_MAX + 1]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)
    is_cut = len(shown) > LABEL_CHARS_MAX
    return f"{shown[: LABEL_CHARS_MAX - 1]}\N{HORIZONTAL ELLIPSIS}" if is_cut else shown


class MessageId(msgspec.Struct, frozen=True, order=True, gc=False):
    """Identifies a message: its channel, and its number there, from 1."""

    channel: Channel
    number: int

    def __str__(self) -> str:
        return f"{self.channel} #{self.number}"


class Event(msgspec.Struct, frozen=True, gc=False, tag="event", omit_defaults=True):
    """An atomic action of one process, which accepted and sent some messages.

    Attributes:
        process: the process that acted.
        label: its name for the user; may be empty.
        handler: the method of a ``Process`` that was called, such as ``receive``; may be empty.
        accepted: the messages received; in the papers' model at most one per channel.
        sent: the messages sent.
        at: a time in seconds for display, if known.
        fields: further values from a log, or the arguments of the handler.
        is_filled: whether the log leaves it out, and the importer filled it in.
    """

    process: ProcessId
    label: str = ""
    handler: str = ""
    accepted: tuple[MessageId, ...] = ()
    sent: tuple[MessageId, ...] = ()
    at: float | None = None
    fields: dict[str, Any] | None = None
    is_filled: bool = False


class MarkerStep(msgspec.Struct, frozen=True, gc=False, tag="marker", omit_defaults=True):
    """One step of a process in a snapshot, never part of an action of the application.

    Attributes:
        process: the process that took the step.
        snapshot: the snapshot.
        source: the process whose marker arrived; None if `process` initiated the snapshot.
        is_cut: whether the process recorded its state in this step.
        targets: the processes to which it sent a marker in the same step.
        at: a time in seconds for display, if known.
    """

    process: ProcessId
    snapshot: SnapshotId
    source: ProcessId | None = None
    is_cut: bool = False
    targets: tuple[ProcessId, ...] = ()
    at: float | None = None


Step = Event | MarkerStep
"""One step of a trace, in the order in which the steps happened."""


class Position(msgspec.Struct, frozen=True, order=True, gc=False):
    """Identifies an event: the `index`-th of `process`, from 1."""

    process: ProcessId
    index: int

    def __str__(self) -> str:
        return f"{self.process}#{self.index}"


def named(position: Position, event: Event) -> str:
    """Return how an error message names an event."""
    return f"event {position}{f' ({event.label})' if event.label else ''}"


class Trace:
    """An execution, checked: every message is sent once, and accepted at most once, after that.

    Args:
        processes: in the order of display.
        steps: in a possible order.
        channels: by default those with a message.
        are_messages_implied: whether the messages were found from vector clocks alone. A message
            that taught its receiver nothing, or never arrived, is then missing: what is in transit
            is at least what the trace knows.

    Raises:
        NotConsistent: the steps contradict each other.
    """

    def __init__(
        self,
        processes: Iterable[ProcessId],
        steps: Iterable[Step],
        channels: Iterable[Channel] | None = None,
        *,
        are_messages_implied: bool = False,
    ) -> None:
        self.are_messages_implied = are_messages_implied
        self.processes = tuple(processes)
        self.steps = tuple(steps)
        self.index_of = {process: index for index, process in enumerate(self.processes)}
        if len(self.index_of) != len(self.processes):
            raise UsageError("a trace cannot have two processes of the same name")
        lines: dict[ProcessId, list[Event]] = {process: [] for process in self.processes}
        self._sent_in: dict[MessageId, Position] = {}
        self._accepted_in: dict[MessageId, Position] = {}
        for step in self.steps:
            if step.process not in lines:
                raise NotConsistent(
                    f"{step.process!r} has a step, but is not a process of this trace"
                )
            if isinstance(step, Event):
                lines[step.process].append(step)
                self._note(step, Position(step.process, len(lines[step.process])))
        self.lines = {process: tuple(events) for process, events in lines.items()}
        used = {message.channel for message in self._sent_in}
        self.channels = tuple(sorted(used if channels is None else {*channels} | used))

    def _note(self, event: Event, position: Position) -> None:
        where = named(position, event)
        for message in event.accepted:
            if message.channel.target != event.process:
                raise NotConsistent(f"{where} accepts message {message}, which is not for it")
            if message not in self._sent_in:
                raise NotConsistent(f"{where} accepts message {message} before it was sent")
            if first := self._accepted_in.get(message):
                raise NotConsistent(f"{where} accepts message {message}{_again(first, position)}")
            self._accepted_in[message] = position
        for message in event.sent:
            if message.channel.source != event.process:
                raise NotConsistent(
                    f"{where} sends message {message}, which only its source can send"
                )
            if message.channel.target not in self.index_of:
                raise NotConsistent(f"{where} sends message {message} to no process of this trace")
            if first := self._sent_in.get(message):
                raise NotConsistent(f"{where} sends message {message}{_again(first, position)}")
            self._sent_in[message] = position

    @property
    def event_count(self) -> int:
        """The number of events, of all processes."""
        return sum(map(len, self.lines.values()))

    @property
    def filled_count(self) -> int:
        """The number of events that the log leaves out. What they learned is unknown: some cuts
        with such events may not be consistent, and messages may have arrived in them."""
        return sum(event.is_filled for events in self.lines.values() for event in events)

    @property
    def message_count(self) -> int:
        """The number of messages sent."""
        return len(self._sent_in)

    @property
    def end(self) -> Cut:
        """The cut after all events."""
        return tuple(len(events) for events in self.lines.values())

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """The snapshots in which any process took part, in the order of their first steps."""
        return tuple(dict.fromkeys(s.snapshot for s in self.steps if isinstance(s, MarkerStep)))

    def event(self, position: Position) -> Event:
        """Return the event at `position`; UsageError if there is none."""
        check_kind("position", position, Position, "a Position")
        events = self.lines.get(position.process, ())
        if 1 <= position.index <= len(events):
            return events[position.index - 1]
        there_is = f"the processes are {', '.join(self.processes)}"
        if position.process in self.lines:
            there_is = f"process {position.process} has {len(events)}"
        raise UsageError(f"there is no event {position}: {there_is}")

    def numbered(self) -> Iterator[tuple[Step, int]]:
        """Yield every step, with the number of events of its process up to and including it."""
        counts = dict.fromkeys(self.processes, 0)
        for step in self.steps:
            if isinstance(step, Event):
                counts[step.process] += 1
            yield step, counts[step.process]

    def positions(self) -> Iterator[tuple[Position, Event]]:
        """Yield every event with its position, in the order of the trace."""
        for step, index in self.numbered():
            if isinstance(step, Event):
                yield Position(step.process, index), step

    def sent_in(self, message: MessageId) -> Position:
        """Return where `message` was sent; KeyError if it never was."""
        return self._sent_in[message]

    def accepted_in(self, message: MessageId) -> Position | None:
        """Return where `message` was accepted; None if it never was."""
        return self._accepted_in.get(message)

    def cut_of(self, snapshot: SnapshotId | str) -> Cut:
        """Return where the processes recorded their states for `snapshot`. UsageError if one
        recorded none, or two."""
        if isinstance(snapshot, str):
            snapshot = SnapshotId.parse(snapshot)
        found: dict[ProcessId, int] = {}
        for step, count in self.numbered():
            if isinstance(step, MarkerStep) and step.is_cut and step.snapshot == snapshot:
                if step.process in found:
                    raise UsageError(
                        f"snapshot {snapshot} has no cut: {step.process} recorded its state twice"
                    )
                found[step.process] = count
        missing = [process for process in self.processes if process not in found]
        if missing:
            raise UsageError(
                f"snapshot {snapshot} has no cut: {', '.join(missing)} did not record a state"
            )
        return tuple(found[process] for process in self.processes)

    def present_at(self, cut: Cut) -> int | None:
        """Return after how many events of the trace exactly those of `cut` had happened. None if
        that was never the case (Chandy & Lamport 1985, section 4)."""
        missing = sum(cut)
        for number, (position, _) in enumerate(self.positions()):
            if not missing:
                return number
            if position.index > cut[self.index_of[position.process]]:
                return None
            missing -= 1
        return None if missing else self.event_count

    def check_cut(self, cut: Cut) -> None:
        """Raise a UsageError unless `cut` has a possible count for each process."""
        check_kind("cut", cut, tuple | list, "the number of events of each process")
        if len(cut) != len(self.processes):
            raise UsageError(
                f"a cut gives each of the {len(self.processes)} processes the number of its events "
                f"before it; this one has {len(cut)} numbers"
            )
        for process, count in zip(self.processes, cut, strict=True):
            most = len(self.lines[process])
            if not 0 <= count <= most:
                raise UsageError(
                    f"no cut has {count} events of {process}, which has {most}: give a number from "
                    f"0 to {most}"
                )

    def orphans(self, cut: Cut) -> Iterator[MessageId]:
        """Yield the messages that `cut` shows as accepted but not as sent: effects without causes.
        None, exactly if the cut is consistent."""
        for process, count in zip(self.processes, cut, strict=True):
            for event in self.lines[process][:count]:
                for message in event.accepted:
                    sender = self._sent_in[message]
                    if sender.index > cut[self.index_of[sender.process]]:
                        yield message

    def is_consistent(self, cut: Cut) -> bool:
        """Return whether everything that happened before an event of `cut` is in it, too."""
        return next(self.orphans(cut), None) is None

    def in_transit(self, cut: Cut) -> dict[Channel, tuple[MessageId, ...]]:
        """Return for every channel the messages sent before `cut` and not accepted before it, in
        the order of sending; if `are_messages_implied`, at least these messages."""
        found: dict[Channel, list[MessageId]] = {channel: [] for channel in self.channels}
        for process, count in zip(self.processes, cut, strict=True):
            for event in self.lines[process][:count]:
                for message in event.sent:
                    target = self._accepted_in.get(message)
                    if target is None or target.index > cut[self.index_of[target.process]]:
                        found[message.channel].append(message)
        return {channel: tuple(messages) for channel, messages in found.items()}

    def closure(self, cut: Cut) -> Cut:
        """Return the smallest consistent cut that has all events of `cut`."""
        counts = list(cut)
        looked_at = [0] * len(counts)
        frontier = [index for index, count in enumerate(counts) if count]
        while frontier:
            index = frontier.pop()
            new = self.lines[self.processes[index]][looked_at[index] : counts[index]]
            looked_at[index] = counts[index]
            for message in (message for event in new for message in event.accepted):
                sender = self._sent_in[message]
                source = self.index_of[sender.process]
                if sender.index > counts[source]:
                    counts[source] = sender.index
                    frontier.append(source)
        return tuple(counts)

    def clock(self, position: Position) -> Cut:
        """Return the vector clock of an event: how many events of each process happened before it,
        including the event itself. It is the smallest consistent cut that has this event.
        UsageError if there is no such event."""
        self.event(position)
        own = self.index_of[position.process]
        return self.closure(
            tuple(position.index if i == own else 0 for i in range(len(self.processes)))
        )

    def clocks(self) -> dict[ProcessId, list[Cut]]:
        """Return the vector clocks of all events, process by process: memory for events x
        processes."""
        zero = (0,) * len(self.processes)
        clocks: dict[ProcessId, list[Cut]] = {process: [] for process in self.processes}
        for position, event in self.positions():
            line = clocks[position.process]
            merged = line[-1] if line else zero
            for message in event.accepted:
                sender = self._sent_in[message]
                merged = tuple(map(max, merged, clocks[sender.process][sender.index - 1]))
            own = self.index_of[position.process]
            line.append((*merged[:own], position.index, *merged[own + 1 :]))
        return clocks

    def happened_before(self, first: Position, second: Position) -> bool:
        """Return whether `first` could have influenced `second` (Lamport 1978). If neither of two
        events happened before the other, they are concurrent. UsageError if there is no such
        event."""
        self.event(first)
        return first != second and self.clock(second)[self.index_of[first.process]] >= first.index


def _again(first: Position, position: Position) -> str:
    return " twice" if first == position else f", as {first} did before"
