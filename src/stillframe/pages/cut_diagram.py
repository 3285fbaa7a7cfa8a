"""The diagram of a snapshot's cut, from an event log or from the store alone.

A store does not record when a process acted or which marker arrived first. So without a log the
cuts of all processes are drawn below each other, and a message goes from some point before the cut
of its source to some point after the cut of its target.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from stillframe.diagram import shapes
from stillframe.diagram.cut_styles import name_of
from stillframe.diagram.layout import CROWDED_ABOVE, WIDTH_MIN, place_legend, place_notices
from stillframe.diagram.legend import Row
from stillframe.diagram.scene import CUT_OVERHANG, PADDING, TEXT_ROW, Rows
from stillframe.diagram.shapes import Curve, Diagram, Label, Line, Mark, MessageArrow, Sample
from stillframe.diagram.text_metrics import count
from stillframe.diagram.window import PROCESS_COUNT_MAX
from stillframe.eventlog.window import NotInLog
from stillframe.model import ChannelState, ProcessId, Snapshot
from stillframe.pages import cut_from_log
from stillframe.pages.cut_from_log import CutDiagram
from stillframe.trace import MessageId

WITHOUT_LOG = (
    "A store knows each cut, the counts and the messages that were on the channels; not what the "
    "processes did around the cut, nor which marker came first: the cuts of all processes stand "
    "below each other here, and only the order of messages on one channel is true. "
    "Let the system write an event log ('stillframe run --log DIR') and give it with --log DIR."
)
MESSAGE_COUNT_MAX, CHANNEL_MESSAGES_MAX = 120, 8
"""Messages drawn without a log, and of one channel: its first."""
CROWDED_COUNT_MAX = 60
"""Messages drawn if there are many lines: of each channel one."""
_SLOT_MIN, _SLOT_MAX, _SIDE = 9.0, 24.0, 600.0
_NEAR = 26.0
"""How far from the cut the nearest end of an arrow is."""


def load(snapshot: Snapshot, log: Path | None) -> CutDiagram:
    """Return the diagram of the cut of `snapshot`.

    Args:
        snapshot: as a store holds it.
        log: the directory of the event log of the same system; None: there is none.

    Raises:
        UsageError: there is no event log at `log`.
        Damaged, OSError: it cannot be read.
    """
    note = WITHOUT_LOG
    if log is not None:
        try:
            return cut_from_log.load(snapshot, log)
        except NotInLog as error:
            note = f"{str(error)[:1].upper()}{str(error)[1:]}. {WITHOUT_LOG}"
    layout = _StoreLayout(snapshot)
    return CutDiagram(layout.draw(), layout.left_out, note)


class _Arrow(NamedTuple):
    """A message, and its place among those that leave or reach the same line."""

    message: MessageId
    leaves: int
    comes: int


class _StoreLayout(Rows):
    """The cut of each process, and the messages in transit on the channels."""

    def __init__(self, snapshot: Snapshot) -> None:
        held = [state for state in snapshot.state.channels if state.message_count]
        names = [s.process for s in snapshot.state.processes]
        taking_part = [name for name in names if name not in snapshot.excluded]
        processes = _drawn_processes(taking_part, held)
        self._snapshot = snapshot
        self._arrows = _arrows(held, {*processes})
        self.left_out = _left_out(snapshot, len(processes), len(taking_part), len(self._arrows))
        super().__init__(processes, top=PADDING + TEXT_ROW * bool(self.left_out))
        most = 1 + max((max(a.leaves, a.comes) for a in self._arrows), default=0)
        self._slot = min(_SLOT_MAX, max(_SLOT_MIN, _SIDE / most))
        side = max(_NEAR + self._slot * most + 16, (WIDTH_MIN - self.x_from - PADDING) / 2)
        self._x_cut = self.x_from + side
        self._x_to = self._x_cut + side

    def draw(self) -> Diagram:
        """Return the diagram."""
        name = name_of(self._snapshot.id)
        caught = count(self._snapshot.state.message_count, "message")
        what = f"the cut of snapshot {name}, with {caught} in transit"
        legend = [Row(Sample.CUT, 0, what)]
        if self._arrows:
            sentence = "message that a channel held: sent before the cut, received after it"
            legend.append(Row(Sample.CAUGHT, 0, sentence))
        width = self._x_to + PADDING
        texts = [self.left_out] if self.left_out else []
        return Diagram(
            width=width,
            height=self.bottom + TEXT_ROW * (len(legend) + 1) + PADDING,
            title=f"The cut of snapshot {name} through {count(len(self.ys), 'process')}",
            description=f"{'. '.join([what, *texts])}.",
            notices=place_notices(texts, width),
            is_crowded=len(self.ys) > CROWDED_ABOVE,
            lines=tuple(self._lines()),
            curves=(self._curve(name, what),) if self.ys else (),
            messages=tuple(self._messages()),
            marks=tuple(self._marks()),
            legend=place_legend(legend, self.bottom, width),
        )

    def _lines(self) -> Iterator[Line]:
        for process, y in self.ys.items():
            label = Label(self.x_from - 10, y + 4, self.names[process], "end")
            yield Line(process, y, self.x_from, self._x_to, (label,))

    def _curve(self, name: str, what: str) -> Curve:
        top = min(self.ys.values()) - CUT_OVERHANG
        points = tuple((self._x_cut, y) for y in (top, *self.ys.values(), self.bottom))
        label = Label(self._x_cut + 6, top + 5, name)
        return Curve(f"snapshot {name}", 0, points, label, is_faint=False, full=what)

    def _marks(self) -> Iterator[Mark]:
        for process, y in self.ys.items():
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
        # The last to leave a line does so nearest to the cut, and the first to come comes there.
        leaving = Counter(arrow.message.channel.source for arrow in self._arrows)
        for arrow in self._arrows:
            channel = arrow.message.channel
            back = leaving[channel.source] - 1 - arrow.leaves
            begin = self._x_cut - _NEAR - self._slot * back, self.ys[channel.source]
            end = self._x_cut + _NEAR + self._slot * arrow.comes, self.ys[channel.target]
            middle = shapes.midpoint(begin, end)
            if begin[1] == end[1]:
                middle = middle[0], begin[1] - 30
            path = shapes.Path(begin, middle, end)
            words = f"message {arrow.message}"
            yield MessageArrow(arrow.message, path, shapes.Extent.WHOLE, shapes.Role.CAUGHT, words)


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
    if is_crowded:  # from all over the diagram
        messages = messages[:: max(1, -(-len(messages) // CROWDED_COUNT_MAX))]
    leaving, coming = Counter[ProcessId](), Counter[ProcessId]()
    arrows = []
    for message in sorted(messages[:MESSAGE_COUNT_MAX]):
        source, target = message.channel.source, message.channel.target
        arrows.append(_Arrow(message, leaving[source], coming[target]))
        leaving[source] += 1
        coming[target] += 1
    return arrows


def _left_out(snapshot: Snapshot, line_count: int, process_count: int, drawn_count: int) -> str:
    sentences = []
    total = snapshot.state.message_count
    if drawn_count < total:
        sentences.append(f"{drawn_count:,} of {count(total, 'message')} are drawn")
    if line_count < process_count:
        sentences.append(f"{line_count} of {count(process_count, 'process')} have a line")
    if snapshot.excluded:
        sentences.append(f"{', '.join(sorted(snapshot.excluded)[:10])} took no part and have none")
    return "; ".join(sentences)
