"""The diagram of a snapshot's cut, from an event log or from the store alone.

A store does not record when a process acted or which marker arrived first. So without a log the
cuts of all processes are drawn below each other, and a message goes from some point before the cut
of its source to some point after the cut of its target.

A log says what the processes did around the cut. It may hold 10^8 events, and a diagram a few
hundred: the steps of the snapshot, the messages that the channels held, those that came last before
the cut or were sent first after it, and what each process did right before and after. Only messages
with both ends in the diagram have arrows. Next to it the steps are explained, rule by rule
(Chandy & Lamport, TOCS 1985, section 3.2).
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from stillframe.diagram import layout, shapes
from stillframe.diagram.cuts import StyledCut, snapshot_name
from stillframe.diagram.layout import CROWDED_ABOVE, Plan, Row, place_legend, place_notices
from stillframe.diagram.scene import CUT_OVERHANG, PADDING, TEXT_ROW, Rows
from stillframe.diagram.shapes import (
    Curve,
    Diagram,
    Extent,
    Label,
    LegendRow,
    Mark,
    MessageArrow,
    Role,
    Sample,
    midpoint,
)
from stillframe.diagram.text_metrics import count, listing
from stillframe.diagram.window import PROCESS_COUNT_MAX
from stillframe.eventlog import segments
from stillframe.eventlog.segments import ACCEPTED, MARKER_ACCEPTED, SENT
from stillframe.eventlog.to_trace import channel_of, in_causal_order, marker_step
from stillframe.eventlog.window import Lane, NotInLog, WindowRequest, read_window
from stillframe.model import Channel, ChannelState, ProcessId, Snapshot
from stillframe.storage.location import Location
from stillframe.trace import Event, MarkerStep, MessageId, Position, Step, Trace

WITHOUT_LOG = (
    "A store contains each cut, the counts and the messages in transit. It does not contain what "
    "the processes did around the cut, or which marker arrived first. So the cuts of all "
    "processes are drawn below each other, and only the order of the messages on each channel is "
    "real. To see more, let the system write an event log ('stillframe run --event-log DIR'), and "
    "pass it with --event-log DIR."
)
MESSAGE_COUNT_MAX, CHANNEL_MESSAGES_MAX = 120, 8
"""Messages drawn without a log, and of one channel: its first."""
CROWDED_COUNT_MAX = 60
"""Messages drawn if there are many lines: of each channel one."""
_SLOT_MIN, _SLOT_MAX, _SIDE = 9.0, 24.0, 600.0
_NEAR = 26.0
"""How far from the cut the nearest end of an arrow is."""
FROM_LOG = (
    "From the event log: the steps of the snapshot, the messages that channels held, and what "
    "happened right before and after the cut. From left to right is the order of causes and "
    "effects, not the time of a clock."
)
HELD_MAX, HELD_OF_CHANNEL_MAX = 60, 4
"""Messages drawn that channels held, and of one channel: its first."""
NEAR_CHANNELS_MAX, NEAR = 24, 2
"""With at most this many channels, this many messages of each are drawn on each side of the cut."""
NEAREST_EVENTS_MAX = 100
MARKER_STEPS_MAX = 140
STEPS_MAX = 400
_LISTED_MAX = 6
SENDING = (
    "Marker-sending rule: for each channel c directed away from p, p sends one marker along c "
    "after p records its state and before p sends further messages along c."
)
RECEIVING_FIRST = (
    "Marker-receiving rule: if q has not recorded its state then q records its state; q records "
    "the state of c as the empty sequence."
)
RECEIVING_LATER = (
    "Marker-receiving rule: else q records the state of c as the sequence of messages received "
    "along c after q's state was recorded and before q received the marker along c."
)


class LoggedStep(NamedTuple):
    """One step of a process in the snapshot, as the log has it. It has the number of the process's
    actions before, and the numbers of the messages recorded on the marker's channel, if it was."""

    step: MarkerStep
    event_count: int
    recorded: tuple[range, ...] | None


class CutDiagram(msgspec.Struct, frozen=True):
    """The diagram of a snapshot's cut; sentences say what is not drawn, what is not known, and how
    the log contradicts the snapshot.

    Each of the `steps` of the recording has, for a page, a sentence, the rule that it follows, and
    the keys of what it is in the diagram; there are none without a log.
    """

    diagram: Diagram
    left_out: str
    note: str
    contradictions: list[str] = []
    steps: list[dict[str, Any]] = []
    steps_left_out_count: int = 0


def load(snapshot: Snapshot, log: Location | None) -> CutDiagram:
    """Return the diagram of the cut of `snapshot`, if possible from the event log in the directory
    `log`. Raises UsageError, Damaged or OSError if there is none, or it cannot be read."""
    note = WITHOUT_LOG
    if log is not None:
        try:
            return load_from_log(snapshot, log)
        except NotInLog as error:
            note = f"{str(error)[:1].upper()}{str(error)[1:]}. {WITHOUT_LOG}"
    return _from_store(snapshot, note)


def load_from_log(snapshot: Snapshot, log: Location) -> CutDiagram:
    """Return the diagram as `load` does; NotInLog: the log has not the cuts of all processes."""
    lanes = read_window(log, snapshot, _wanted(snapshot))
    steps = _in_order([step for p, lane in lanes.items() for step in _marker_steps(p, lane)])
    # The cuts have a place in the diagram first, then what found messages.
    ranked = sorted(steps, key=lambda each: (not each.step.is_cut, not each.recorded))
    most = max(MARKER_STEPS_MAX, len(snapshot.state.processes))
    trace, numbers = _drawn_trace(lanes, {each.step for each in ranked[:most]})
    plan = _LoggedPlan(snapshot, trace, numbers)
    diagram = plan.draw(plan.step_count)
    listed = steps
    if len(steps) > STEPS_MAX:
        listed = [each for each in steps if each.step.is_cut or each.recorded][:STEPS_MAX]
    return CutDiagram(
        diagram,
        plan.left_out,
        FROM_LOG,
        list(_contradictions(lanes, steps, snapshot)),
        list(_explain(listed, diagram, snapshot)),
        len(steps) - len(listed),
    )


def _wanted(snapshot: Snapshot) -> WindowRequest:
    channels = snapshot.state.channels
    held = [state for state in channels if state.message_count]
    most = max(1, min(HELD_OF_CHANNEL_MAX, HELD_MAX // max(1, len(held))))
    near = NEAR if len(channels) <= NEAR_CHANNELS_MAX else 0
    chosen = [*held[:HELD_MAX], *(state for state in channels if near and not state.message_count)]
    nearest = max(1, min(2, NEAREST_EVENTS_MAX // (2 * max(1, len(snapshot.state.processes)))))
    wanted: dict[Channel, Sequence[range]] = {}
    for state in chosen:
        first, last = state.received_count + 1, state.sent_count
        wanted[state.channel] = (
            range(max(1, first - near), first),
            range(first, first + min(most, state.message_count)),
            range(last + 1, last + 1 + near),
        )
    return WindowRequest(nearest, wanted)


def _marker_steps(process: ProcessId, lane: Lane) -> Iterator[LoggedStep]:
    for rows in segments.grouped(lane.rows):
        if rows[0].snapshot is None:
            continue
        marker = next((row for row in rows if row.kind == MARKER_ACCEPTED), None)
        recorded = None
        if marker is not None and marker.recorded is not None:
            found = (range(r["first"], r["first"] + r["count"]) for r in marker.recorded)
            recorded = tuple(filter(None, found))
        yield LoggedStep(marker_step(process, rows), rows[0].event, recorded)


def _in_order(steps: list[LoggedStep]) -> list[LoggedStep]:
    """Return steps in the order of their times, as far as possible. By the clocks of two machines a
    marker may have arrived before it was sent."""
    waiting = sorted(steps, key=lambda logged: logged.step.at or 0.0)
    recorded: set[ProcessId | None] = {None}
    ordered: list[LoggedStep] = []
    while waiting:
        can_come = (
            each
            for each in waiting
            if each.step.source in recorded and (each.step.is_cut or each.step.process in recorded)
        )
        ready = next(can_come, waiting[0])
        waiting.remove(ready)
        ordered.append(ready)
        if ready.step.is_cut:
            recorded.add(ready.step.process)
    return ordered


def _messages(rows: Iterable[segments.Row], kind: str) -> list[MessageId]:
    return [MessageId(channel_of(row), row.number or 0) for row in rows if row.kind == kind]


def _drawn_trace(
    lanes: Mapping[ProcessId, Lane], drawn: set[MarkerStep]
) -> tuple[Trace, dict[ProcessId, list[int]]]:
    """Return the trace of what is drawn, and the true numbers of the events of each process."""
    rows = [row for lane in lanes.values() for row in lane.rows]
    whole = {*_messages(rows, SENT)} & {*_messages(rows, ACCEPTED)}
    numbers: dict[ProcessId, list[int]] = {process: [] for process in lanes}
    lines: dict[ProcessId, deque[Step]] = {process: deque() for process in lanes}
    came = {(step.source, step.process) for step in drawn}
    for process, lane in lanes.items():
        for own in segments.grouped(lane.rows):
            if own[0].snapshot is None:
                numbers[process].append(own[0].event)
                accepted = tuple(m for m in _messages(own, ACCEPTED) if m in whole)
                sent = tuple(m for m in _messages(own, SENT) if m in whole)
                lines[process].append(Event(process, accepted=accepted, sent=sent))
            elif (step := marker_step(process, own)) in drawn:
                targets = tuple(t for t in step.targets if (process, t) in came)
                lines[process].append(msgspec.structs.replace(step, targets=targets))
    channels = sorted({message.channel for message in whole})
    return Trace(lanes, in_causal_order(lines), channels), numbers


class _LoggedPlan(Plan):
    """The diagram, with words about all of the snapshot: the trace is only what is drawn of it."""

    def __init__(
        self, snapshot: Snapshot, trace: Trace, numbers: Mapping[ProcessId, Sequence[int]]
    ) -> None:
        self._numbers = numbers
        self._name = snapshot_name(snapshot.id)
        self._held = _caught(snapshot)
        super().__init__(trace, snapshot.id, is_sequence=False)
        caught = sum(1 for role in self.roles.values() if role is Role.CAUGHT)
        sentences = [f"{caught:,} of {self._held} that channels held are drawn"]
        sentences += [self.notice] if self.notice else []
        is_whole = caught == snapshot.state.message_count and not self.notice
        self.left_out = "" if is_whole else "; ".join(sentences)

    def legend_rows(self, step_count: int) -> Iterator[layout.Row]:
        """Yield the words below the diagram; `step_count` makes no difference to them."""
        yield Row(Sample.CUT, 0, f"the cut of snapshot {self._name}, with {self._held} in transit")
        yield Row(Sample.RECORDED, 0, "event before the cut")
        yield Row(Sample.MARKER, 0, "marker")
        if Role.CAUGHT in self.roles.values():
            sentence = "message in transit: sent before the cut, accepted after it"
            yield Row(Sample.CAUGHT, 0, sentence)
        yield Row(Sample.NOTHING, 0, "a process may have other events between two of these")

    def words(self, rows: Sequence[LegendRow], notices: Sequence[Label]) -> tuple[str, str]:
        """Return the title and the description."""
        lines = count(len(self.window.processes), "process")
        events = count(sum(at is not None for at in self.window.positions), "event")
        messages = count(len(self.window.messages), "message")
        return (
            f"What {lines} did around snapshot {self._name}",
            f"{rows[0].full}. {events} and {messages} around it are drawn.",
        )

    def number(self, position: Position) -> Position:
        """Return the number that an event has in the log."""
        return Position(position.process, self._numbers[position.process][position.index - 1])

    def words_of_message(self, message: MessageId) -> str:
        """Return what is known of a message: the events have no names."""
        fate = {
            Role.CAUGHT: ", which the channel held",
            Role.ORPHAN: ": accepted before the cut, sent after it",
        }
        return f"message {message}{fate.get(self.roles.get(message, Role.PLAIN), '')}"

    def words_of_cut(self, cut: StyledCut, step_count: int) -> str:
        """Return what the legend says of it."""
        return next(self.legend_rows(step_count)).text


def _contradictions(
    lanes: Mapping[ProcessId, Lane], steps: Iterable[LoggedStep], snapshot: Snapshot
) -> Iterator[str]:
    states = {str(state.channel): state for state in snapshot.state.channels}
    for process, lane in lanes.items():
        for (kind, name), number in lane.counts.items():
            state = states[name]
            counted = {SENT: state.sent_count, ACCEPTED: state.received_count}[kind]
            if number != counted:
                yield (
                    f"at its cut {process} had {kind} {counted:,} messages on {name}, and in "
                    f"the log the last before it is #{number:,}"
                )
    for each in steps:
        if each.step.source is None or each.recorded is None:
            continue
        channel = Channel(each.step.source, each.step.process)
        state = states[str(channel)]
        numbers = [number for part in each.recorded for number in part[: state.message_count + 1]]
        held = range(state.received_count + 1, state.sent_count + 1)
        if numbers != [*held]:
            yield (
                f"channel {channel} held {_numbers((held,))}, and the log has recorded "
                f"{_numbers(each.recorded)}"
            )


def _explain(
    steps: Sequence[LoggedStep], diagram: Diagram, snapshot: Snapshot
) -> Iterator[dict[str, Any]]:
    """Yield the steps for a page, each with the keys that the SVG gives to what is drawn of it."""
    name = str(snapshot.id)
    drawn = {_step_key(name, mark.process, mark.source) for mark in diagram.marks}
    drawn |= {_marker_key(name, arrow.source, arrow.target) for arrow in diagram.markers}
    last_cut = max((i for i, each in enumerate(steps) if each.step.is_cut), default=-1)
    for index, each in enumerate(steps):
        process, source = each.step.process, each.step.source
        keys = [_step_key(name, process, source)]
        keys += [_marker_key(name, source, process)] if source is not None else []
        keys += [_marker_key(name, process, target) for target in each.step.targets]
        keys = [key for key in keys if key in drawn]
        if source is not None and not each.step.is_cut:
            keys += [
                f"message {arrow.message}"
                for arrow in diagram.messages
                if arrow.message.channel == Channel(source, process)
                and any(arrow.message.number in part for part in each.recorded or ())
            ]
        if index == last_cut:
            keys += [f"cut {curve.name}" for curve in diagram.curves]
        sentence, rule = _explained(each)
        words = {"sentence": sentence, "rule": rule}
        yield {"process": process, "at": each.step.at, **words, "keys": keys}


def _step_key(snapshot: str, process: ProcessId, source: ProcessId | None) -> str:
    return f"step {snapshot} {process}" + (f" {source}" if source is not None else "")


def _marker_key(snapshot: str, source: ProcessId, target: ProcessId) -> str:
    return f"marker {snapshot} {source}->{target}"


def _explained(each: LoggedStep) -> tuple[str, str]:
    step = each.step
    records = f"after {count(each.event_count, 'event')} it records its state"
    if step.source is None:
        how = "initiates" if step.snapshot.initiator == step.process else "begins"
        return f"{step.process} {how} {step.snapshot}: {records}{_sends(each)}.", SENDING
    came = f"{step.process} gets the marker from {step.source}"
    channel = f"channel {Channel(step.source, step.process)}"
    if step.is_cut:
        what = f"{came}, its first: {records}, and {channel} as empty{_sends(each)}."
        return what, RECEIVING_FIRST
    if each.recorded is None:
        what = f"{came}, and no longer takes part in the snapshot."
    elif not each.recorded:
        what = f"{came}: it records {channel} as empty: no message arrived since its cut."
    else:
        held = _numbers(each.recorded)
        what = f"{came}: it records {channel} as {held}, which arrived since its cut."
    return what, RECEIVING_LATER


def _sends(each: LoggedStep) -> str:
    channels = [Channel(each.step.process, target) for target in each.step.targets]
    return f", and sends a marker on {listing(channels, _LISTED_MAX)}" if channels else ""


def _numbers(ranges: Sequence[range]) -> str:
    """Return the number and range of some messages: 32 messages, #5 to #36."""
    total = sum(map(len, ranges))
    if not total:
        return "nothing"
    first, last = ranges[0][0], ranges[-1][-1]
    span = f"#{first:,}" if total == 1 else f"#{first:,} to #{last:,}"
    return f"{count(total, 'message')}, {span}"


def _from_store(snapshot: Snapshot, note: str) -> CutDiagram:
    """Return the cut of each process, and the messages in transit on the channels."""
    held = [state for state in snapshot.state.channels if state.message_count]
    names = [s.process for s in snapshot.state.processes if s.process not in snapshot.excluded]
    # Processes at the ends of channels with messages get a line first.
    ends = {process for s in held for process in (s.channel.source, s.channel.target)}
    drawn = {*sorted(names, key=lambda process: process not in ends)[:PROCESS_COUNT_MAX]}
    messages = _drawn_messages(held, drawn)
    left_out = _left_out(snapshot, len(drawn), len(names), len(messages))
    top = PADDING + TEXT_ROW * bool(left_out)
    rows = Rows([process for process in names if process in drawn], top=top)
    leaving = Counter(message.channel.source for message in messages)
    coming = Counter(message.channel.target for message in messages)
    most = max((*leaving.values(), *coming.values()), default=1)
    slot = min(_SLOT_MAX, max(_SLOT_MIN, _SIDE / most))
    side = max(_NEAR + slot * most + 16, (layout.WIDTH_MIN - rows.x_from - PADDING) / 2)
    x_cut = rows.x_from + side
    width = x_cut + side + PADDING
    name = snapshot_name(snapshot.id)
    what = f"the cut of snapshot {name}, with {_caught(snapshot)} in transit"
    legend = [Row(Sample.CUT, 0, what)]
    if messages:
        sentence = "message in transit: sent before the cut, received after it"
        legend.append(Row(Sample.CAUGHT, 0, sentence))
    texts = [left_out] if left_out else []
    curves: tuple[Curve, ...] = ()
    if rows.ys:
        begin = min(rows.ys.values()) - CUT_OVERHANG
        points = tuple((x_cut, y) for y in (begin, *rows.ys.values(), rows.bottom))
        label = Label(x_cut + 6, begin + 5, name)
        curves = (Curve(f"snapshot {name}", 0, points, label, is_faint=False, full=what),)
    diagram = Diagram(
        width=width,
        height=rows.bottom + TEXT_ROW * (len(legend) + 1) + PADDING,
        title=f"The cut of snapshot {name} through {count(len(rows.ys), 'process')}",
        description=f"{'. '.join([what, *texts])}.",
        notices=place_notices(texts, width),
        is_crowded=len(rows.ys) > CROWDED_ABOVE,
        lines=tuple(rows.line(process, x_cut + side) for process in rows.ys),
        curves=curves,
        messages=tuple(_arrows(messages, rows.ys, x_cut, slot)),
        marks=tuple(
            Mark(process, snapshot.id, x_cut, y, is_cut=True, full=f"{process} records its state")
            for process, y in rows.ys.items()
        ),
        legend=place_legend(legend, rows.bottom, width),
    )
    return CutDiagram(diagram, left_out, note)


def _arrows(
    messages: Sequence[MessageId], ys: Mapping[ProcessId, float], x_cut: float, slot: float
) -> Iterator[MessageArrow]:
    """Yield the arrows: the last to leave a line does so nearest to the cut, and the first to come
    comes there."""
    to_leave, come = Counter(message.channel.source for message in messages), Counter[ProcessId]()
    for message in messages:
        source, target = message.channel.source, message.channel.target
        to_leave[source] -= 1
        begin = x_cut - _NEAR - slot * to_leave[source], ys[source]
        end = x_cut + _NEAR + slot * come[target], ys[target]
        come[target] += 1
        middle = midpoint(begin, end)
        if begin[1] == end[1]:
            middle = middle[0], begin[1] - 30
        path = shapes.Path(begin, middle, end)
        yield MessageArrow(message, path, Extent.WHOLE, Role.CAUGHT, f"message {message}")


def _drawn_messages(held: Sequence[ChannelState], processes: set[ProcessId]) -> list[MessageId]:
    """Return the messages that are drawn: the first of each channel, round-robin."""
    states = [s for s in held if {s.channel.source, s.channel.target} <= processes]
    is_crowded = len(processes) > CROWDED_ABOVE
    most = 1 if is_crowded else CHANNEL_MESSAGES_MAX
    messages = [
        MessageId(state.channel, state.received_count + place)
        for place in range(1, most + 1)
        for state in states
        if place <= state.message_count
    ]
    if is_crowded:  # from all over the diagram
        messages = messages[:: max(1, -(-len(messages) // CROWDED_COUNT_MAX))]
    return sorted(messages[:MESSAGE_COUNT_MAX])


def _caught(snapshot: Snapshot) -> str:
    return count(snapshot.state.message_count, "message")


def _left_out(snapshot: Snapshot, line_count: int, process_count: int, drawn_count: int) -> str:
    sentences = []
    if drawn_count < snapshot.state.message_count:
        sentences.append(f"{drawn_count:,} of {_caught(snapshot)} are drawn")
    if line_count < process_count:
        sentences.append(f"{line_count} of {count(process_count, 'process')} have a line")
    if snapshot.excluded:
        sentences.append(f"{', '.join(sorted(snapshot.excluded)[:10])} took no part and have none")
    return "; ".join(sentences)
