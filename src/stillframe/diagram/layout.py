"""A space-time diagram of a trace, as coordinates: pure, the same for the same trace.

Time goes to the right, by what happened before what (``scene`` says why); each process is a line.
Every diagram of a sequence has the same size, and what is in one is at the same place in the next.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial

import msgspec

from stillframe.diagram import text_metrics, window
from stillframe.diagram.cuts import StyledCut, style_cuts
from stillframe.diagram.scene import PADDING, TEXT_ROW, Scene
from stillframe.diagram.shapes import (
    Curve,
    Diagram,
    Dot,
    Label,
    LegendRow,
    Mark,
    MarkerArrow,
    MessageArrow,
    Point,
    Role,
    Sample,
)
from stillframe.diagram.text_metrics import count
from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.trace import Cut, Event, MarkerStep, MessageId, Position, Trace

STEP_COUNT_MAX = 400
WIDTH_MIN = 560.0
CROWDED_ABOVE = 10
"""With more lines than this, arrows are drawn finer."""
SAMPLE_WIDTH = 34.0
FULL_CHARS_MAX = 400
_LISTED_MAX = 6
CUTS_MAX, CHANNELS_MAX, NAMES_MAX = 8, 12, 12
"""Cuts, channels with messages, and messages of a channel in a legend."""
NAME_CHARS_MAX = 24


class Row(msgspec.Struct, frozen=True):
    """A symbol of the legend and its explanation."""

    sample: Sample
    colour: int
    text: str


def lay_out(
    trace: Trace,
    *,
    snapshot: SnapshotId | None = None,
    cuts: Sequence[Cut] = (),
    steps: int | None = None,
    first: int = 1,
    step_count_max: int = STEP_COUNT_MAX,
) -> Diagram:
    """Return the diagram of `trace` after `step_count` of the steps that are shown, or all of them.

    What `snapshot` recorded is circled, and the messages that it caught are thick; None: the first
    of `cuts`, else the snapshot if there is only one. A UsageError says that the trace has no such
    snapshot, cut or step.
    """
    plan = Plan(trace, snapshot, cuts, first, step_count_max, is_sequence=steps is not None)
    if steps is not None and not 0 <= steps <= plan.step_count:
        raise UsageError(f"{steps} steps cannot be drawn: the picture shows 0 to {plan.step_count}")
    return plan.draw(plan.step_count if steps is None else steps)


def frames(
    trace: Trace, *, snapshot: SnapshotId | None = None, cuts: Sequence[Cut] = (), first: int = 1
) -> Iterator[Diagram]:
    """Yield a diagram after each step that is shown; see `lay_out`."""
    plan = Plan(trace, snapshot, cuts, first, is_sequence=True)
    yield from map(plan.draw, range(1, plan.step_count + 1))


def count_messages(trace: Trace, number: int) -> str:
    """Return a number of messages of `trace` in words."""
    return f"{certainty(trace)}{count(number, 'message')}"


def certainty(trace: Trace) -> str:
    """Return what to put before messages of `trace`: if they are implied by clocks, there may have
    been more; if events were filled in, others."""
    if trace.filled_count:
        return "possibly "
    return "at least " if trace.are_messages_implied else ""


def left_out(trace: Trace, shown: window.Window) -> str:
    """Return a sentence on the steps and processes outside the window; empty if all are shown."""
    total, shown_count = len(trace.steps), len(shown.steps)
    sentences = []
    if shown_count < total:
        begin = shown.before_count + 1
        end = begin + shown_count - 1
        which = f"steps {begin:,} to {end:,}" if begin > 1 else f"the first {shown_count:,}"
        sentences.append(f"{which} of {total:,} {'' if begin > 1 else 'steps '}are shown")
    if hidden := len(trace.processes) - len(shown.processes):
        processes = count(hidden, "process")
        sentences.append(f"{processes} without a step here {'is' if hidden == 1 else 'are'} hidden")
    return "; ".join(sentences)


class Plan:
    """The shared part of the diagrams of a sequence. A subclass can replace the texts, such as for
    a diagram of a part of an execution."""

    def __init__(
        self,
        trace: Trace,
        snapshot: SnapshotId | None,
        cuts: Sequence[Cut] = (),
        first: int = 1,
        step_count_max: int = STEP_COUNT_MAX,
        *,
        is_sequence: bool,
    ) -> None:
        self.trace = trace
        self.window = window.select(trace, first=first, step_count_max=step_count_max)
        self.step_count = len(self.window.steps)
        self.cuts, self.chosen = style_cuts(trace, self.window, snapshot=snapshot, cuts=cuts)
        self.notice = left_out(trace, self.window)
        self.roles: dict[MessageId, Role] = {}
        if self.chosen is not None:
            for caught in self.chosen.in_transit.values():
                self.roles |= dict.fromkeys(caught, Role.CAUGHT)
            self.roles |= dict.fromkeys(self.chosen.orphans, Role.ORPHAN)
        self._colours = {cut.snapshot: cut.colour for cut in self.cuts}
        self._faint = {cut.snapshot for cut in self.cuts if self.chosen not in (None, cut)}
        self._is_sequence = is_sequence
        top = PADDING + TEXT_ROW * (bool(self.notice) + is_sequence)
        self._scene = Scene(trace, self.window, top=top)
        self._lines = tuple(self._scene.lines())
        self._width = max(self._scene.width, WIDTH_MIN)
        row_count = len(list(self.legend_rows(self.step_count)))
        self._height = self._scene.bottom + TEXT_ROW * (row_count + 1) + PADDING
        self._points: dict[str, tuple[Point, ...]] = {}
        messages = [link.name for link in self.window.messages]
        self._words_of = {message: self.words_of_message(message) for message in messages}

    def draw(self, step_count: int) -> Diagram:
        """Return the diagram after `step_count` steps of the window."""
        rows = place_legend(self.legend_rows(step_count), self._scene.bottom, self._width)
        notices = place_notices(self._notices(step_count), self._width)
        title, description = self.words(rows, notices)
        steps = list(self._steps(step_count))
        return Diagram(
            width=self._width,
            height=self._height,
            title=title,
            description=description,
            notices=notices,
            is_crowded=len(self.window.processes) > CROWDED_ABOVE,
            lines=self._lines,
            curves=tuple(self._curves(step_count)),
            markers=tuple(self._markers(step_count)),
            messages=tuple(self._messages(step_count)),
            dots=tuple(step for step in steps if isinstance(step, Dot)),
            marks=tuple(step for step in steps if isinstance(step, Mark)),
            legend=rows,
        )

    def legend_rows(self, step_count: int) -> Iterator[Row]:
        """Yield the legend after `step_count` steps; a row of one is also in the next."""
        links = self.window.messages, self.window.markers
        if self._is_sequence or any(link.came is None for some in links for link in some):
            yield Row(Sample.IN_TRANSIT, 0, "message or marker that has not arrived yet")
        if self.chosen is not None:
            name = self.chosen.name
            the = "the cut of " if self.chosen.snapshot else "the " if name == "cut" else ""
            yield Row(Sample.RECORDED, self.chosen.colour, f"event before {the}{name}")
        if self.window.markers:
            yield Row(Sample.MARKER, self.cuts[0].colour, "marker, in the colour of its snapshot")
        listed = sorted(self.cuts, key=lambda cut: cut is not self.chosen)
        for cut in listed[:CUTS_MAX]:
            yield Row(Sample.CUT, cut.colour, self.words_of_cut(cut, step_count))
            if cut is self.chosen:
                yield from self._contents(cut, step_count)
        if len(listed) > CUTS_MAX:
            yield Row(Sample.NOTHING, 0, f"and {count(len(listed) - CUTS_MAX, 'other cut')}")

    def _contents(self, cut: StyledCut, step_count: int) -> Iterator[Row]:
        full = [
            (channel, messages)
            for channel, messages in cut.in_transit.items()
            if messages and cut.is_between_reached(channel, step_count)
        ]
        for channel, messages in full[:CHANNELS_MAX]:
            names = f"{certainty(self.trace)}{self._names(messages)}"
            yield Row(Sample.CAUGHT, 0, f"channel {channel}: {names}")
        if len(full) > CHANNELS_MAX:
            others = count(len(full) - CHANNELS_MAX, "other channel")
            yield Row(Sample.NOTHING, 0, f"and messages on {others}")
        if self._is_complete(cut, step_count):
            filled = {channel for channel, _ in full}
            # More was accepted on them than sent: they have no contents, not even none.
            broken = {orphan.channel for orphan in cut.orphans} - filled
            empty = count(len(self.trace.channels) - len(filled | broken), "channel")
            without = f", {count(len(broken), 'channel')} without possible contents"
            nothing = "with nothing known" if self.trace.are_messages_implied else "empty"
            yield Row(Sample.NOTHING, 0, f"{empty} {nothing}{without if broken else ''}")
        orphans = [o for o in cut.orphans if cut.is_between_reached(o.channel, step_count)]
        if orphans:
            listed = self._names(orphans)
            yield Row(Sample.ORPHAN, 0, f"accepted before it, but sent after it: {listed}")

    def _names(self, messages: Sequence[MessageId]) -> str:
        return text_metrics.listing(messages, NAMES_MAX, partial(message_name, self.trace))

    def words(self, rows: Sequence[LegendRow], notices: Sequence[Label]) -> tuple[str, str]:
        """Return the title and the description of a diagram with this legend and these notices."""
        processes = count(len(self.trace.processes), "process")
        events = count(self.trace.event_count, "event")
        messages = count_messages(self.trace, self.trace.message_count)
        described = Sample.CUT, Sample.CAUGHT, Sample.ORPHAN
        sentences = [
            f"{events} and {messages} of {processes}, in the order of causes and effects",
            *(label.text for label in notices),
            *(row.full for row in rows if row.sample in described),
        ]
        return f"Space-time diagram of {processes}", ". ".join(sentences) + "."

    def number(self, position: Position) -> Position:
        """Return the place of an event in the whole execution."""
        return position

    def words_of_message(self, message: MessageId) -> str:
        """Return the full description of a message."""
        return f"message {message}: {message_name(self.trace, message)}"

    def words_of_cut(self, cut: StyledCut, step_count: int) -> str:
        """Return what is known of a cut after `step_count` steps."""
        total = len(self.trace.processes)
        known = sum(cut.has_reached(process, step_count) for process in self.trace.processes)
        if known < total:
            did = "recorded their states" if cut.snapshot is not None else "reached it"
            return f"{cut.name}: {known} of {count(total, 'process')} {did}"
        if cut.orphans:
            effects = count(len(cut.orphans), "effect")
            return f"{cut.name}: NOT consistent: {effects} without a cause"
        caught = count_messages(self.trace, sum(map(len, cut.in_transit.values())))
        return f"{cut.name}: consistent, with {caught} in transit"

    @cached_property
    def _words(self) -> list[str]:
        words = []
        for step, at in zip(self.window.steps, self.window.positions, strict=True):
            if isinstance(step, MarkerStep):
                words.append(_describe_marker(step))
                continue
            assert at is not None, step
            parts = [f"event {self.number(at)} {step.label}".rstrip()]
            for verb, messages in (("accepts", step.accepted), ("sends", step.sent)):
                if messages:
                    parts.append(f"{verb} {text_metrics.listing(messages, _LISTED_MAX)}")
            if step.at is not None:
                parts.append(f"at {step.at:.6g} s")
            words.append(text_metrics.clean("; ".join(parts), char_count_max=FULL_CHARS_MAX))
        return words

    def _steps(self, step_count: int) -> Iterator[Dot | Mark]:
        for index, step in enumerate(self.window.steps[:step_count]):
            x, y, label = self._scene.places[index]
            words, position = self._words[index], self.window.positions[index]
            if isinstance(step, MarkerStep):
                yield Mark(
                    process=step.process,
                    snapshot=step.snapshot,
                    source=step.source,
                    colour=self._colours[step.snapshot],
                    x=x,
                    y=y,
                    is_cut=step.is_cut,
                    label=label,
                    is_faint=step.snapshot in self._faint,
                    full=words,
                    step=index + 1,
                )
            else:
                assert position is not None, step
                is_recorded = (
                    self.chosen is not None
                    and self.chosen.has_reached(step.process, step_count)
                    and position.index <= self.chosen.counts[step.process]
                )
                yield Dot(self.number(position), x, y, label, is_recorded, words, index + 1)

    def _messages(self, step_count: int) -> Iterator[MessageArrow]:
        scene = self._scene
        for link, path in scene.messages:
            if visible := scene.drawn(link, path, step_count):
                role = Role.PLAIN
                if self.chosen and self.chosen.is_between_reached(link.channel, step_count):
                    role = self.roles.get(link.name, role)
                yield MessageArrow(link.name, *visible, role, self._words_of[link.name])

    def _markers(self, step_count: int) -> Iterator[MarkerArrow]:
        for link, path in self._scene.markers:
            if visible := self._scene.drawn(link, path, step_count):
                yield MarkerArrow(
                    link.name,
                    link.channel.source,
                    link.channel.target,
                    self._colours[link.name],
                    *visible,
                    link.name in self._faint,
                    f"marker of {link.name}, {link.channel}",
                )

    def _curves(self, step_count: int) -> Iterator[Curve]:
        """Yield the cuts that all processes reached; a snapshot that none reached in the window is
        drawn elsewhere."""
        named: list[tuple[float, float]] = []
        for cut in self.cuts:
            is_whole = cut.snapshot is None and cut is self.chosen
            is_here = is_whole or any(0 <= at < cut.end for at in cut.reached.values())
            if not (self._scene.ys and is_here and self._is_complete(cut, step_count)):
                continue
            if cut.name not in self._points:
                self._points[cut.name] = self._scene.points(cut)
            points = self._points[cut.name]
            label = Label(points[0][0] - 6, points[0][1] - 5, cut.name)
            left, right = label.x, label.x + text_metrics.width(label.text) + 6
            is_named = cut.snapshot is None and all(
                right <= begin or end <= left for begin, end in named
            )
            if is_named:
                named.append((left, right))
            yield Curve(
                name=cut.name,
                colour=cut.colour,
                points=points,
                label=label if is_named else None,
                is_faint=self.chosen is not None and cut is not self.chosen,
                full=self.words_of_cut(cut, step_count),
            )

    def _is_complete(self, cut: StyledCut, step_count: int) -> bool:
        return all(cut.has_reached(process, step_count) for process in self.trace.processes)

    def _notices(self, step_count: int) -> Iterator[str]:
        if self.notice:
            yield self.notice
        if self._is_sequence:
            now = ""
            if step_count:
                step = self.window.steps[step_count - 1]
                what = step.label if isinstance(step, Event) else _describe_marker(step)
                now = f": {step.process} {text_metrics.clean(what, char_count_max=FULL_CHARS_MAX)}"
            yield f"step {step_count:,} of {self.step_count:,}{now}"


def place_legend(rows: Iterable[Row], bottom: float, width: float) -> tuple[LegendRow, ...]:
    """Return where the rows of a legend are, below `bottom` and within `width`."""
    x = PADDING + SAMPLE_WIDTH
    placed = []
    for number, row in enumerate(rows, 1):
        text = text_metrics.fit(row.text, width - PADDING - x)
        label = Label(x, bottom + TEXT_ROW * (number + 0.5), text)
        placed.append(LegendRow(row.sample, row.colour, PADDING, label, row.text))
    return tuple(placed)


def place_notices(texts: Iterable[str], width: float) -> tuple[Label, ...]:
    """Return the lines of text above everything else."""
    return tuple(
        Label(
            PADDING,
            PADDING + TEXT_ROW * row + text_metrics.SIZE,
            text_metrics.fit(text, width - 2 * PADDING),
        )
        for row, text in enumerate(texts)
    )


def _describe_marker(step: MarkerStep) -> str:
    recorded = ": records its state" if step.is_cut else ""
    if step.source is None:
        return f"initiates snapshot {step.snapshot}{recorded}"
    return f"gets the marker of {step.snapshot} from {step.source}{recorded}"


def message_name(trace: Trace, message: MessageId) -> str:
    """Return the name of a message: the labels of the events that send and accept it, else its
    number."""
    sender, accepter = (
        text_metrics.ELLIPSIS
        if position is None
        else text_metrics.clean(trace.event(position).label, char_count_max=NAME_CHARS_MAX)
        for position in (trace.sent_in(message), trace.accepted_in(message))
    )
    return f"{sender}→{accepter}" if sender and accepter else f"#{message.number}"
