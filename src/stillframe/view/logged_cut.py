"""The diagram of a snapshot's cut as an event log has it: what the processes did around it.

A log may hold 10^8 events, and a picture a few hundred. It has the steps of the snapshot, the
messages that the channels held, those that came last before the cut or were sent first after it,
and what each process did right before and after. Only messages of which both ends are in the
picture have arrows.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stillframe.eventlog.around import Lane, Wanted, around
from stillframe.eventlog.grouping import Row, grouped
from stillframe.eventlog.merging import Merging
from stillframe.eventlog.schema import ACCEPTED, MARKER_ACCEPTED, MARKER_SENT, RECORDED, SENT
from stillframe.model import Channel, ChannelState, ProcessId, Snapshot, SnapshotId
from stillframe.trace import Event, MarkerStep, MessageId, Position, Step, Trace
from stillframe.view import legend, lettering
from stillframe.view.diagram import STEP_COUNT_MAX, Plan
from stillframe.view.marking import name_of
from stillframe.view.shapes import Diagram, Role, Sample

HELD_MAX, HELD_OF_CHANNEL_MAX = 60, 4
"""So many messages that channels held are drawn, and so many of one channel: its first."""
NEAR_CHANNELS_MAX, NEAR = 24, 2
"""With no more channels than this, so many messages of each before and after the cut are drawn."""
NEAREST_EVENTS_MAX = 100
MARKER_STEPS_MAX = 140


class LoggedStep(NamedTuple):
    """One step of a process in the snapshot, as the log has it.

    Attributes:
        step: what it is.
        event_count: how many actions the process had done before it.
        recorded: the numbers of the messages that were recorded on the marker's channel, as ranges;
            None if nothing was.
    """

    step: MarkerStep
    event_count: int
    recorded: tuple[range, ...] | None


class LoggedCut(NamedTuple):
    """A picture with all that the log says of it.

    `left_out` says in a sentence what is not drawn; `steps` are all steps of the snapshot, drawn or
    not, in a possible order.
    """

    diagram: Diagram
    left_out: str
    lanes: dict[ProcessId, Lane]
    steps: tuple[LoggedStep, ...]


def lay_out(snapshot: Snapshot, log: Path) -> LoggedCut:
    """Return the diagram of `snapshot` with what the event log in the directory `log` says.

    Raises:
        NotInLog: the log has not the cuts of all processes.
        UsageError, Damaged, OSError: there is no event log, or it cannot be read.
    """
    lanes = around(log, snapshot, _wanted(snapshot))
    steps = _in_order([step for p, lane in lanes.items() for step in _marker_steps(p, lane)])
    drawn = _drawn_steps(steps, snapshot)
    lines = _Lines(lanes, drawn)
    trace = Trace(lanes, Merging(lines.taken()).steps(), lines.channels())
    plan = _LoggedPlan(trace, snapshot, lines)
    return LoggedCut(plan.picture(), plan.left_out, lanes, tuple(steps))


def _wanted(snapshot: Snapshot) -> Wanted:
    channels = snapshot.state.channels
    held = [state for state in channels if state.message_count]
    most = max(1, min(HELD_OF_CHANNEL_MAX, HELD_MAX // max(1, len(held))))
    near = NEAR if len(channels) <= NEAR_CHANNELS_MAX else 0
    chosen = [*held[:HELD_MAX], *(state for state in channels if near and not state.message_count)]
    nearest = max(1, min(2, NEAREST_EVENTS_MAX // (2 * max(1, len(snapshot.state.processes)))))
    return Wanted(nearest, {state.channel: _ranges(state, most, near) for state in chosen})


def _ranges(state: ChannelState, most: int, near: int) -> Sequence[range]:
    received, sent = state.received_count, state.sent_count
    return (
        range(max(1, received + 1 - near), received + 1),
        range(received + 1, received + 1 + min(most, state.message_count)),
        range(sent + 1, sent + 1 + near),
    )


def _channel(row: Row) -> Channel:
    source, _, target = (row.channel or "").partition("->")
    return Channel(source, target)


def _marker_steps(process: ProcessId, lane: Lane) -> Iterator[LoggedStep]:
    for rows in grouped(lane.rows):
        if rows[0].snapshot is None:
            continue
        marker = next((row for row in rows if row.kind == MARKER_ACCEPTED), None)
        at = rows[0].at
        step = MarkerStep(
            process,
            SnapshotId.parse(rows[0].snapshot),
            source=None if marker is None else _channel(marker).source,
            is_cut=any(row.kind == RECORDED for row in rows),
            targets=tuple(_channel(row).target for row in rows if row.kind == MARKER_SENT),
            at=None if at is None else at / 1e6,
        )
        recorded = None
        if marker is not None and marker.recorded is not None:
            found = (range(r["first"], r["first"] + r["count"]) for r in marker.recorded)
            recorded = tuple(filter(None, found))
        yield LoggedStep(step, rows[0].event, recorded)


def _in_order(steps: list[LoggedStep]) -> list[LoggedStep]:
    """Return steps in the order of their times, as far as that is possible: the clocks of two
    machines may say of a marker that it came before it was sent."""
    waiting = sorted(steps, key=lambda logged: logged.step.at or 0.0)
    recorded: set[ProcessId] = set()
    ordered: list[LoggedStep] = []
    while waiting:
        ready = next((each for each in waiting if _can_come(each.step, recorded)), waiting[0])
        waiting.remove(ready)
        ordered.append(ready)
        if ready.step.is_cut:
            recorded.add(ready.step.process)
    return ordered


def _can_come(step: MarkerStep, recorded: set[ProcessId]) -> bool:
    is_sent = step.source is None or step.source in recorded
    return is_sent and (step.is_cut or step.process in recorded)


def _drawn_steps(steps: Sequence[LoggedStep], snapshot: Snapshot) -> set[MarkerStep]:
    """Return which steps have a place in the picture: the cuts, then those that found messages."""
    ranked = sorted(steps, key=lambda each: (not each.step.is_cut, not each.recorded))
    most = max(MARKER_STEPS_MAX, len(snapshot.state.processes))
    return {each.step for each in ranked[:most]}


class _Lines:
    """What each process does in the picture, with the true numbers of its events."""

    def __init__(self, lanes: Mapping[ProcessId, Lane], drawn: set[MarkerStep]) -> None:
        self._lanes = lanes
        sent, accepted = (
            {
                MessageId(_channel(row), row.number or 0)
                for lane in lanes.values()
                for row in lane.rows
                if row.kind == kind
            }
            for kind in (SENT, ACCEPTED)
        )
        self._whole = sent & accepted
        came = {(step.source, step.process) for step in drawn}
        self.numbers: dict[ProcessId, list[int]] = {process: [] for process in lanes}
        self._lines: dict[ProcessId, deque[Step]] = {process: deque() for process in lanes}
        for process, lane in lanes.items():
            markers = iter(_marker_steps(process, lane))
            for rows in grouped(lane.rows):
                if rows[0].snapshot is None:
                    self.numbers[process].append(rows[0].event)
                    self._lines[process].append(self._event(process, rows))
                elif (step := next(markers).step) in drawn:
                    targets = tuple(t for t in step.targets if (process, t) in came)
                    self._lines[process].append(msgspec.structs.replace(step, targets=targets))

    def taken(self) -> dict[ProcessId, deque[Step]]:
        """Return the lines, to be put into one order."""
        return {process: deque(line) for process, line in self._lines.items()}

    def channels(self) -> list[Channel]:
        """Return the channels of the messages that have an arrow."""
        return sorted({message.channel for message in self._whole})

    def _event(self, process: ProcessId, rows: Sequence[Row]) -> Event:
        def messages(kind: str) -> tuple[MessageId, ...]:
            found = (MessageId(_channel(r), r.number or 0) for r in rows if r.kind == kind)
            return tuple(message for message in found if message in self._whole)

        return Event(process, accepted=messages(ACCEPTED), sent=messages(SENT))


class _LoggedPlan(Plan):
    """The picture, with words about all of the snapshot: the trace is only what is drawn of it."""

    def __init__(self, trace: Trace, snapshot: Snapshot, lines: _Lines) -> None:
        self._snapshot = snapshot
        self._lines_of = lines
        super().__init__(trace, snapshot.id, (), 1, STEP_COUNT_MAX, is_sequence=False)
        caught = sum(1 for role in self.roles.values() if role is Role.CAUGHT)
        total = snapshot.state.message_count
        sentences = [f"{caught:,} of {legend.count(total, 'message')} that channels held are drawn"]
        sentences += [self.notice] if self.notice else []
        self.left_out = "; ".join(sentences if caught < total or self.notice else [])

    def legend_rows(self, step_count: int) -> Iterator[legend.Row]:
        """Yield the words below the picture; `step_count` makes no difference to them."""
        caught = legend.count(self._snapshot.state.message_count, "message")
        name = name_of(self._snapshot.id)
        yield legend.Row(Sample.CUT, 0, f"the cut of snapshot {name}, with {caught} in transit")
        yield legend.Row(Sample.RECORDED, 0, "event before the cut")
        yield legend.Row(Sample.MARKER, 0, "marker")
        if any(self.chosen.in_transit.values()) if self.chosen is not None else False:
            sentence = "message that a channel held: sent before the cut, accepted after it"
            yield legend.Row(Sample.CAUGHT, 0, sentence)
        yield legend.Row(Sample.NOTHING, 0, "between two events of a process may be others")

    def picture(self) -> Diagram:
        """Return the picture, in which each event has the number that it has in the log."""
        drawn = self.draw(len(self.window.steps))
        name = name_of(self._snapshot.id)
        what = next(self.legend_rows(0)).text
        return msgspec.structs.replace(
            drawn,
            title=f"What {legend.count(len(drawn.lines), 'process')} did around snapshot {name}",
            description=f"{what}. {legend.count(len(drawn.dots), 'event')} and "
            f"{legend.count(len(drawn.messages), 'message')} around it are drawn.",
            dots=tuple(self._numbered(dot) for dot in drawn.dots),
            messages=tuple(
                msgspec.structs.replace(arrow, full=f"message {arrow.message}{_fate(arrow.role)}")
                for arrow in drawn.messages
            ),
            curves=tuple(msgspec.structs.replace(curve, full=what) for curve in drawn.curves),
        )

    def _numbered(self, dot: Any) -> Any:
        process, index = dot.position.process, dot.position.index
        position = Position(process, self._lines_of.numbers[process][index - 1])
        event = self.trace.event(dot.position)
        parts = [f"event {position}"]
        for verb, messages in (("accepts", event.accepted), ("sends", event.sent)):
            if messages:
                parts.append(f"{verb} {', '.join(map(str, messages[:6]))}")
        full = lettering.clean("; ".join(parts), char_count_max=400)
        return msgspec.structs.replace(dot, position=position, full=full)


def _fate(role: Role) -> str:
    match role:
        case Role.CAUGHT:
            return ", which the channel held"
        case Role.ORPHAN:
            return ": accepted before the cut, sent after it"
        case Role.PLAIN:
            return ""
