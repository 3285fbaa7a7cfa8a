"""An execution in which a reader drags the snapshot: when it is initiated, by whom, and how long
each marker travels.

What the application does is the same whatever the snapshot does. A script by the clock is played
without its snapshot, and time is counted in its ticks; elsewhere it is counted in steps. What the
application does is at full ones, and what the reader drags between two. In the document these are
even and odd numbers, of half ticks or half steps: no two things that matter are at the same time.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import msgspec

from stillframe.diagram import svg, text_metrics
from stillframe.diagram.scene import PADDING, TOP, Rows
from stillframe.diagram.shapes import (
    Diagram,
    Dot,
    Extent,
    Label,
    MessageArrow,
    Path,
    Point,
    Role,
    midpoint,
)
from stillframe.errors import UsageError
from stillframe.model import Channel, ProcessId
from stillframe.sim.scenario import SEPARATOR, Played, play_text
from stillframe.trace import Event, MarkerStep, MessageId, Position, Step, Trace, clean_label

TICK = "tick"
STEP = "step"
TIME_MAX = 100
EVENT_COUNT_MAX = 100
LABEL_CHARS_MAX = 28
"""Characters of a label that are drawn, if there is room to the next event."""
MARGIN = 4
"""Halves that are shown behind the last event: a marker may come late."""
LEAD = 14.0
"""From where a line begins to the first half, in pixels."""
HALF_WIDTH = 16.0
"""How far halves are apart, in pixels."""
BESIDE = 11.0
"""How far events of one process and tick are apart, in pixels."""


def scrubber_document(
    trace: Trace, name: Callable[[MessageId], str], *, played: Played | None = None
) -> dict[str, Any] | None:
    """Return the document that ``scrubber.js`` shows.

    None if there is not exactly one snapshot, all of whose markers arrived in order, or if the
    execution is too long for dragging.
    """
    if not 0 < trace.event_count <= EVENT_COUNT_MAX or not _is_one_snapshot(trace):
        return None
    plain, unit, begins = without_snapshot(trace, played)
    steps = plain.steps if unit == STEP else trace.steps
    markers = [step for step in steps if isinstance(step, MarkerStep)]
    last = max(_half(step) for step in (*plain.steps, *markers))
    if last > 2 * TIME_MAX or not _keeps_apart(plain):
        return None
    begin = next(step for step in markers if step.source is None)
    layout = _Layout(plain, name, last + MARGIN + 1 - last % 2, unit)
    cuts = {step.process: _half(step) for step in markers if step.is_cut}
    delays = {
        Channel(step.source, step.process): _half(step) - cuts[step.source]
        for step in markers
        if step.source is not None
    }
    index_of, names, numbers = plain.index_of, layout.message_names, layout.numbers
    return {
        "unit": unit,
        "snapshot": str(begin.snapshot),
        "processes": [clean_label(process) for process in plain.processes],
        "end": layout.end,
        "initiator": index_of[begin.process],
        "at": _half(begin) + begins,
        "channels": [  # with delays in halves; two where no marker was sent
            [index_of[c.source], index_of[c.target], delays.get(c, 2)] for c in plain.channels
        ],
        "events": [
            [index_of[position.process], _label(position, event), _half(event)]
            for position, event in plain.positions()
        ],
        "messages": [
            [names[message], plain.channels.index(message.channel), *map(numbers.get, ends)]
            for message, ends in layout.ends.items()
        ],
        "x": [layout.x(0), HALF_WIDTH],
        "y": [TOP, layout.row_height],
        "picture": layout.draw(),
    }


def without_snapshot(trace: Trace, played: Played | None) -> tuple[Trace, str, int]:
    """Return the execution of the application alone, or, with its markers, timed by its steps. The
    second value is the unit of its time, ``TICK`` or ``STEP``. The third is 1 if the snapshot is
    initiated after the application's action of that time, and -1 if before it."""
    again = None if played is None else _played_without_snapshot(played)
    if again is not None:
        plain = again.world.trace()
        if _is_beside(trace, plain):
            return plain, TICK, 1
    numbered = enumerate(trace.steps, 1)
    steps = (msgspec.structs.replace(step, at=float(number)) for number, step in numbered)
    return Trace(trace.processes, steps, trace.channels), STEP, -1


def _is_beside(trace: Trace, plain: Trace) -> bool:
    """Return whether the clock alone describes the snapshot in `trace`. It does if the snapshot
    delayed nothing that is in `plain`, and no cut or marker divides the steps of one tick."""
    if {p: e.at for p, e in trace.positions()} != {p: e.at for p, e in plain.positions()}:
        return False
    cuts, came = set[tuple[ProcessId, float | None]](), set[tuple[Channel, float | None]]()
    for step in trace.steps:
        if isinstance(step, Event):
            accepted = {(message.channel, step.at) for message in step.accepted}
            if (step.process, step.at) in cuts or accepted & came:
                return False
        elif step.is_cut:
            cuts.add((step.process, step.at))
        if isinstance(step, MarkerStep) and step.source is not None:
            came.add((Channel(step.source, step.process), step.at))
    return True


def _played_without_snapshot(played: Played) -> Played | None:
    """Return the script played without its snapshot; None if it does not say when all happens."""
    if len(played.blocks) != 2:
        return None
    system, run = (
        [line.strip() for line in block.commands if not line.strip().startswith("#")]
        for block in played.blocks
    )
    if run[0] != "ticks" or any(line.startswith("delays ") for line in run):
        return None
    kept = [line for line in run if " initiates " not in line and not line.startswith("marker ")]
    try:
        return play_text("\n".join([*system, SEPARATOR, "", *kept, SEPARATOR, ""]))
    except UsageError:
        return None  # the application waited for what a marker held up: it is not on its own


def _is_one_snapshot(trace: Trace) -> bool:
    """Return whether there is one snapshot with one initiator, whose markers all came, none of
    them overtaking a message or overtaken by one."""
    cuts, came, initiated_count = set[ProcessId](), set[Channel](), 0
    sent, accepted = Counter[Channel](), Counter[Channel]()
    before_marker: dict[Channel, int] = {}
    for step in trace.steps:
        if isinstance(step, Event):
            sent.update(message.channel for message in step.sent)
            accepted.update(message.channel for message in step.accepted)
            continue
        if step.source is None:
            initiated_count += 1
        else:
            channel = Channel(step.source, step.process)
            if before_marker.get(channel) != accepted[channel]:
                return False
            came.add(channel)
        if step.is_cut:
            cuts.add(step.process)
            own = [channel for channel in trace.channels if channel.source == step.process]
            before_marker |= {channel: sent[channel] for channel in own}
    expected = {channel for channel in trace.channels if channel.source in cuts}
    return len(trace.snapshots) == 1 and initiated_count == 1 and came == expected


def _label(position: Position, event: Event) -> str:
    return clean_label(event.label or str(position))


def _half(step: Step) -> int:
    assert step.at is not None, step
    return 2 * round(step.at)


def _keeps_apart(trace: Trace) -> bool:
    """Return whether messages keep the order of their channel, with room for a marker between any
    two arrivals, and everything arrives in the end."""
    sent, came = defaultdict[Channel, list[MessageId]](list), defaultdict[Channel, Any](list)
    for _, event in trace.positions():
        for message in event.sent:
            sent[message.channel].append(message)
        for message in event.accepted:
            came[message.channel].append((message, _half(event)))
    return all(
        [message for message, _ in came[channel]] == messages
        and all(at < next_at for (_, at), (_, next_at) in pairwise(came[channel]))
        for channel, messages in sent.items()
    )


class _Layout(Rows):
    """The picture of what the application does, up to half `end`: the rest is drawn over it as it
    is dragged. Events have their number in the document, and messages their name and the `ends`
    where they were sent and accepted."""

    def __init__(self, trace: Trace, name: Callable[[MessageId], str], end: int, unit: str) -> None:
        self.end = end
        self.numbers = {position: n for n, (position, _) in enumerate(trace.positions())}
        self.ends: dict[MessageId, tuple[Position, Position]] = {}
        for _, event in trace.positions():
            for message in event.sent:
                accepted = trace.accepted_in(message)
                assert accepted is not None, message
                self.ends[message] = trace.sent_in(message), accepted
        self.message_names = {message: clean_label(name(message)) for message in self.ends}
        super().__init__(trace.processes, top=0)
        self._trace = trace
        self._unit = unit
        self._width = self.x(end) + PADDING
        self._height = self.bottom + 3 * PADDING
        # Events of one process and tick are side by side.
        self._places: dict[Position, Point] = {}
        beside = Counter[tuple[ProcessId, int]]()
        for position, event in trace.positions():
            process, half = position.process, _half(event)
            x = self.x(half) + BESIDE * beside[process, half]
            self._places[position] = x, self.ys[process]
            beside[process, half] += 1

    def x(self, half: int) -> float:
        """Return where a half is."""
        return self.x_from + LEAD + HALF_WIDTH * half

    def draw(self) -> str:
        """Return the picture as the text of an SVG element, in which events and messages have
        their numbers."""
        shown = Diagram(
            self._width,
            self._height,
            lines=tuple(self.line(process, self.x(self.end)) for process in self.ys),
            messages=tuple(self._messages()),
            dots=tuple(self._dots()),
        )
        message_numbers = {message: number for number, message in enumerate(self.ends)}
        parts = []
        for shapes, put in svg.layers(shown):
            for shape in shapes:
                drawn = put(shape)
                if isinstance(shape, Dot):
                    drawn = f'<g data-event="{shape.step}">{drawn}</g>'
                elif isinstance(shape, MessageArrow):
                    drawn = f'<g data-message="{message_numbers[shape.message]}">{drawn}</g>'
                parts.append(drawn)
        begin = svg.start_element(round(self._width), round(self._height), role="group")
        return "\n".join((begin, *self._axis(), *parts, "</svg>\n"))

    def _messages(self) -> Iterator[MessageArrow]:
        for message, ends in self.ends.items():
            begin, end = (self._places[position] for position in ends)
            path = Path(begin, midpoint(begin, end), end)
            yield MessageArrow(message, path, Extent.WHOLE, Role.PLAIN, self.message_names[message])

    def _dots(self) -> Iterator[Dot]:
        labels = self._labels()
        for position, event in self._trace.positions():
            x, y = self._places[position]
            yield Dot(
                position=position,
                x=x,
                y=y,
                label=Label(x, y + self._label_below(event), labels[position], "middle"),
                is_recorded=True,
                full=f"{_label(position, event)} at {self._unit} {_half(event) // 2}",
                step=self.numbers[position],
            )

    def _labels(self) -> dict[Position, str]:
        """Return as much of the label of each event as there is room for next to its neighbours,
        and in the picture."""
        found: dict[Position, str] = {}
        for process in self._trace.processes:
            own = [(p, e.label) for p, e in self._trace.positions() if p.process == process]
            xs = [self._places[position][0] for position, _ in own]
            # As if the picture went on beyond its edges as in a mirror.
            xs = [*(-x for x in xs[:1]), *xs, *(2 * self._width - x for x in xs[-1:])]
            places_of_three = zip(xs, xs[1:], xs[2:], strict=False)
            for (position, label), (before, x, behind) in zip(own, places_of_three, strict=True):
                text = text_metrics.clean(label, char_count_max=LABEL_CHARS_MAX)
                found[position] = text_metrics.fit(text, min(x - before, behind - x))
        return found

    def _label_below(self, event: Event) -> float:
        """Return how far the label is below the event: where fewer arrows are."""
        others = [message.channel.target for message in event.sent]
        others += [message.channel.source for message in event.accepted]
        own = self.ys[event.process]
        up_minus_down = sum(1 if self.ys[other] < own else -1 for other in others)
        return 22 if up_minus_down > 0 else -14

    def _axis(self) -> Iterator[str]:
        y, bottom = self._height - PADDING, self._height - 2 * PADDING
        yield f'<text class="notice" x="{PADDING}" y="{y:.1f}">{self._unit}</text>'
        for half in range(0, self.end + 1, 2):
            x, tick = self.x(half), half // 2
            yield f'<line class="tick" x1="{x:.1f}" y1="8" x2="{x:.1f}" y2="{bottom:.1f}"/>'
            at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="middle"'
            yield f'<text class="notice" {at}>{tick}</text>'
