"""The diagram of a snapshot of which only the store knows: each process's cut, and the messages
that were on the channels.

When a process did what, and which marker came first, is in no store. So the cuts stand below each
other, and a message goes from somewhere before its source's cut to somewhere after its target's.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stillframe.model import ChannelState, ProcessId, Snapshot
from stillframe.trace import MessageId
from stillframe.view import lettering
from stillframe.view.diagram import CROWDED_ABOVE, WIDTH_MIN
from stillframe.view.legend import count
from stillframe.view.marking import name_of
from stillframe.view.scene import (
    CUT_OVERHANG,
    PADDING,
    PROCESS_CHARS_MAX,
    ROW_HEIGHT_MAX,
    ROW_HEIGHT_MIN,
    ROWS_HEIGHT,
    TEXT_ROW,
    TOP,
)
from stillframe.view.shapes import (
    Curve,
    Diagram,
    Extent,
    Label,
    LegendRow,
    Line,
    Mark,
    MessageArrow,
    Path,
    Role,
    Sample,
)
from stillframe.view.window import PROCESS_COUNT_MAX

MESSAGE_COUNT_MAX, CHANNEL_MESSAGES_MAX = 120, 8
"""So many messages are drawn, and so many of one channel: its first."""
CROWDED_COUNT_MAX = 60
"""So many messages, if there are many lines: of each channel one."""
_SLOT_MIN, _SLOT_MAX, _SIDE = 9.0, 24.0, 600.0
_NEAR = 26.0
"""How far from the cut the nearest end of an arrow is."""
_SAMPLE_WIDTH = 34.0


class _Arrow(NamedTuple):
    """A message, and its place among those that leave or reach the same line."""

    message: MessageId
    leaves: int
    comes: int


class KnownCut(NamedTuple):
    """A picture, and what it does not show, in a sentence; empty if it shows everything."""

    diagram: Diagram
    left_out: str


def lay_out(snapshot: Snapshot) -> KnownCut:
    """Return the diagram of what a store knows of `snapshot`."""
    held = [state for state in snapshot.state.channels if state.message_count]
    taking_part = [
        s.process for s in snapshot.state.processes if s.process not in snapshot.excluded
    ]
    processes = _drawn_processes(taking_part, held)
    arrows = _arrows(held, {*processes})
    left_out = _left_out(snapshot, processes, len(taking_part), len(arrows))
    return KnownCut(_Picture(snapshot, processes, arrows, left_out).draw(), left_out)


def _drawn_processes(
    processes: Sequence[ProcessId], held: Sequence[ChannelState]
) -> Sequence[ProcessId]:
    """Return the processes that get a line: first those at the ends of channels with messages."""
    ends = {process for s in held for process in (s.channel.source, s.channel.target)}
    chosen = {*sorted(processes, key=lambda process: process not in ends)[:PROCESS_COUNT_MAX]}
    return [process for process in processes if process in chosen]


def _arrows(held: Sequence[ChannelState], processes: set[ProcessId]) -> list[_Arrow]:
    """Return the messages that are drawn: the first of each channel, in turns."""
    states = [s for s in held if {s.channel.source, s.channel.target} <= processes]
    is_crowded = len(processes) > CROWDED_ABOVE
    most = 1 if is_crowded else CHANNEL_MESSAGES_MAX
    messages = [
        MessageId(state.channel, state.received_count + place)
        for place in range(1, most + 1)
        for state in states
        if place <= state.message_count
    ]
    leaving: dict[ProcessId, int] = {}
    coming: dict[ProcessId, int] = {}
    arrows = []
    if is_crowded:  # from all over the picture
        messages = messages[:: max(1, -(-len(messages) // CROWDED_COUNT_MAX))]
    for message in sorted(messages[:MESSAGE_COUNT_MAX]):
        source, target = message.channel.source, message.channel.target
        arrows.append(_Arrow(message, leaving.get(source, 0), coming.get(target, 0)))
        leaving[source] = leaving.get(source, 0) + 1
        coming[target] = coming.get(target, 0) + 1
    return arrows


def _left_out(
    snapshot: Snapshot, processes: Sequence[ProcessId], process_count: int, drawn_count: int
) -> str:
    sentences = []
    total = snapshot.state.message_count
    if drawn_count < total:
        sentences.append(f"{drawn_count:,} of {count(total, 'message')} are drawn")
    if len(processes) < process_count:
        sentences.append(f"{len(processes)} of {count(process_count, 'process')} have a line")
    if snapshot.excluded:
        sentences.append(f"{', '.join(sorted(snapshot.excluded)[:10])} took no part and have none")
    return "; ".join(sentences)


class _Picture:
    """Where everything is."""

    def __init__(
        self,
        snapshot: Snapshot,
        processes: Sequence[ProcessId],
        arrows: Sequence[_Arrow],
        left_out: str,
    ) -> None:
        self._snapshot = snapshot
        self._arrows = arrows
        self._left_out = left_out
        rows = max(1, len(processes))
        row_height = min(ROW_HEIGHT_MAX, max(ROW_HEIGHT_MIN, ROWS_HEIGHT / rows))
        first = PADDING + TOP + TEXT_ROW * bool(left_out)
        self._ys = {process: first + row_height * i for i, process in enumerate(processes)}
        self._names = {
            process: lettering.shorten_name(process, char_count_max=PROCESS_CHARS_MAX)
            for process in processes
        }
        name_width = max(map(lettering.width, self._names.values()), default=0.0)
        self._x_from = PADDING + name_width + 10
        most = 1 + max((max(a.leaves, a.comes) for a in arrows), default=0)
        self._slot = min(_SLOT_MAX, max(_SLOT_MIN, _SIDE / most))
        side = max(_NEAR + self._slot * most + 16, (WIDTH_MIN - self._x_from - PADDING) / 2)
        self._x_cut = self._x_from + side
        self._x_to = self._x_cut + side
        self._bottom = first + row_height * (rows - 1) + CUT_OVERHANG
        # The last to leave a line does so nearest to the cut, and the first to come comes there.
        self._leaving: dict[ProcessId, int] = {}
        for arrow in arrows:
            source = arrow.message.channel.source
            self._leaving[source] = max(self._leaving.get(source, 0), arrow.leaves)

    def draw(self) -> Diagram:
        """Return the picture."""
        name = name_of(self._snapshot.id)
        caught = count(self._snapshot.state.message_count, "message")
        what = f"the cut of snapshot {name}, with {caught} in transit"
        legend = [(Sample.CUT, what)]
        if self._arrows:
            sentence = "message that a channel held: sent before the cut, received after it"
            legend.append((Sample.CAUGHT, sentence))
        width = self._x_to + PADDING
        texts = [self._left_out] if self._left_out else []
        processes = count(len(self._ys), "process")
        return Diagram(
            width=width,
            height=self._bottom + TEXT_ROW * (len(legend) + 1) + PADDING,
            title=f"The cut of snapshot {name} through {processes}",
            description=f"{'. '.join([what, *texts])}.",
            notices=tuple(
                Label(
                    PADDING,
                    PADDING + lettering.SIZE,
                    lettering.fit(text, width - 2 * PADDING),
                )
                for text in texts
            ),
            is_crowded=len(self._ys) > CROWDED_ABOVE,
            lines=tuple(self._lines()),
            curves=tuple(self._curves(what)),
            markers=(),
            messages=tuple(self._messages()),
            dots=(),
            marks=tuple(self._marks()),
            legend=tuple(
                self._legend_row(number, sample, text, width)
                for number, (sample, text) in enumerate(legend, 1)
            ),
        )

    def _lines(self) -> Iterator[Line]:
        for process, y in self._ys.items():
            label = Label(self._x_from - 10, y + 4, self._names[process], "end")
            yield Line(process, y, self._x_from, self._x_to, (label,))

    def _curves(self, what: str) -> Iterator[Curve]:
        if not self._ys:
            return
        top = min(self._ys.values()) - CUT_OVERHANG
        points = [(self._x_cut, y) for y in (top, *self._ys.values(), self._bottom)]
        name = name_of(self._snapshot.id)
        label = Label(self._x_cut + 6, top + 5, name)
        yield Curve(f"snapshot {name}", 0, tuple(points), label, is_faint=False, full=what)

    def _marks(self) -> Iterator[Mark]:
        for process, y in self._ys.items():
            yield Mark(
                process=process,
                snapshot=self._snapshot.id,
                source=None,
                colour=0,
                x=self._x_cut,
                y=y,
                is_cut=True,
                label=None,
                is_faint=False,
                full=f"{process} records its state",
            )

    def _messages(self) -> Iterator[MessageArrow]:
        for arrow in self._arrows:
            channel = arrow.message.channel
            back = self._leaving[channel.source] - arrow.leaves
            begin = self._x_cut - _NEAR - self._slot * back, self._ys[channel.source]
            end = self._x_cut + _NEAR + self._slot * arrow.comes, self._ys[channel.target]
            middle = (begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2
            if begin[1] == end[1]:
                middle = middle[0], begin[1] - 30
            yield MessageArrow(
                arrow.message,
                Path(begin, middle, end),
                Extent.WHOLE,
                Role.CAUGHT,
                f"message {arrow.message}",
            )

    def _legend_row(self, number: int, sample: Sample, text: str, width: float) -> LegendRow:
        x = PADDING + _SAMPLE_WIDTH
        y = self._bottom + TEXT_ROW * (number + 0.5)
        return LegendRow(
            sample, 0, PADDING, Label(x, y, lettering.fit(text, width - PADDING - x)), text
        )
