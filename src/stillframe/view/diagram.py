"""A space-time diagram of a trace, as coordinates: pure, the same for the same trace.

Time goes to the right, by what happened before what (``columns`` says why); each process is a line.
Every picture of a sequence has the same size, and what is in one is at the same place in the next.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.trace import Cut, Event, MarkerStep, MessageId, Trace
from stillframe.view import legend, lettering, marking, window
from stillframe.view.marking import ShownCut
from stillframe.view.scene import PADDING, TEXT_ROW, Scene, drawn
from stillframe.view.shapes import (
    Curve,
    Diagram,
    Dot,
    Label,
    LegendRow,
    Line,
    Mark,
    MarkerArrow,
    MessageArrow,
    Point,
    Role,
    Sample,
)

STEP_COUNT_MAX = 400
WIDTH_MIN = 560.0
CROWDED_ABOVE = 10
"""With more lines than this, arrows are drawn finer."""
SAMPLE_WIDTH = 34.0
FULL_CHARS_MAX = 400
_LISTED_MAX = 6


def lay_out(
    trace: Trace,
    *,
    snapshot: SnapshotId | None = None,
    cuts: Sequence[Cut] = (),
    steps: int | None = None,
    first: int = 1,
    step_count_max: int = STEP_COUNT_MAX,
) -> Diagram:
    """Return the diagram of `trace`.

    Args:
        trace: what happened.
        snapshot: the one that the picture is about: what it recorded is circled, the messages that
            it caught are thick. None: the first of `cuts`, else the snapshot if there is only one.
        cuts: cuts to show besides those of the snapshots.
        steps: draw only what has happened after so many of the steps that are shown; None: all.
        first: the step of the trace to begin with, from 1.
        step_count_max: how many steps are shown; the picture says what it leaves out.

    Raises:
        UsageError: the trace has no such snapshot, cut or step.
    """
    plan = Plan(trace, snapshot, cuts, first, step_count_max, is_sequence=steps is not None)
    shown = len(plan.window.steps)
    if steps is not None and not 0 <= steps <= shown:
        raise UsageError(f"{steps} steps cannot be drawn: the picture shows 0 to {shown}")
    return plan.draw(shown if steps is None else steps)


def frames(
    trace: Trace,
    *,
    snapshot: SnapshotId | None = None,
    cuts: Sequence[Cut] = (),
    first: int = 1,
    step_count_max: int = STEP_COUNT_MAX,
) -> Iterator[Diagram]:
    """Yield a diagram after each step that is shown; see `lay_out`."""
    plan = Plan(trace, snapshot, cuts, first, step_count_max, is_sequence=True)
    for step_count in range(1, len(plan.window.steps) + 1):
        yield plan.draw(step_count)


def left_out(trace: Trace, *, first: int = 1, step_count_max: int = STEP_COUNT_MAX) -> str:
    """Return in a sentence what a diagram does not show; empty if it shows everything."""
    return _left_out(trace, window.look(trace, first=first, step_count_max=step_count_max))


class Plan:
    """Everything that the pictures of a sequence share.

    A picture of a part of an execution says other things of it: it is a plan with other words.
    """

    def __init__(
        self,
        trace: Trace,
        snapshot: SnapshotId | None,
        cuts: Sequence[Cut],
        first: int,
        step_count_max: int,
        *,
        is_sequence: bool,
    ) -> None:
        self.trace = trace
        self.window = window.look(trace, first=first, step_count_max=step_count_max)
        self.cuts = marking.show_cuts(trace, self.window, snapshot=snapshot, cuts=cuts)
        self.chosen = marking.choose(self.cuts, snapshot=snapshot, cuts=cuts)
        self.colours = {cut.snapshot: cut.colour for cut in self.cuts}
        self.notice = _left_out(trace, self.window)
        self.is_sequence = is_sequence
        top = PADDING + TEXT_ROW * (bool(self.notice) + is_sequence)
        self.scene = Scene(trace, self.window, top=top)
        self.width = max(self.scene.width, WIDTH_MIN)
        rows = list(self.legend_rows(len(self.window.steps)))
        self.height = self.scene.bottom + TEXT_ROW * (len(rows) + 1) + PADDING
        self._points_of: dict[str, tuple[Point, ...]] = {}
        self.roles: dict[MessageId, Role] = {}
        if self.chosen is not None:
            self.roles |= dict.fromkeys(
                (m for messages in self.chosen.in_transit.values() for m in messages), Role.CAUGHT
            )
            self.roles |= dict.fromkeys(self.chosen.orphans, Role.ORPHAN)

    def draw(self, step_count: int) -> Diagram:
        """Return the picture after `step_count` steps of the window."""
        rows = tuple(self._legend(step_count))
        processes = legend.count(len(self.trace.processes), "process")
        events = legend.count(self.trace.event_count, "event")
        messages = legend.count(self.trace.message_count, "message")
        words = [
            f"{events} and {messages} of {processes}, ordered by what happened before what",
            *(label.text for label in self._notices(step_count)),
            *(row.full for row in rows if row.sample in (Sample.CUT, Sample.CAUGHT, Sample.ORPHAN)),
        ]
        return Diagram(
            width=self.width,
            height=self.height,
            title=f"Space-time diagram of {processes}",
            description=". ".join(words) + ".",
            notices=tuple(self._notices(step_count)),
            is_crowded=len(self.window.processes) > CROWDED_ABOVE,
            lines=self._lines,
            curves=tuple(self._curves(step_count)),
            markers=tuple(self._markers(step_count)),
            messages=tuple(self._messages(step_count)),
            dots=tuple(self._dots(step_count)),
            marks=tuple(self._marks(step_count)),
            legend=rows,
        )

    @cached_property
    def _lines(self) -> tuple[Line, ...]:
        return tuple(self._lay_out_lines())

    @cached_property
    def _words(self) -> list[str]:
        """Of each step all that there is to say."""
        return [
            _tell_marker(step) if isinstance(step, MarkerStep) else _tell(f"event {at}", step)
            for step, at in zip(self.window.steps, self.window.positions, strict=True)
        ]

    @cached_property
    def _message_words(self) -> list[str]:
        """The same of each message."""
        messages = [link.message for link, _ in self.scene.messages]
        return [f"message {m}: {legend.name_of(self.trace, m)}" for m in messages]

    def _points(self, cut: ShownCut) -> tuple[Point, ...]:
        if cut.name not in self._points_of:
            self._points_of[cut.name] = self.scene.points(cut)
        return self._points_of[cut.name]

    def _lay_out_lines(self) -> Iterator[Line]:
        scene = self.scene
        for process, y in scene.ys.items():
            labels = [Label(scene.x_from - 10, y + 4, scene.names[process], "end")]
            labels += (Label(x, y + 4, scene.names[process]) for x in scene.free_for_name(process))
            if scene.repeats_names:
                labels.append(Label(scene.x_to + 8, y + 4, scene.names[process]))
            yield Line(process, y, scene.x_from, scene.x_to, tuple(labels))

    def _dots(self, step_count: int) -> Iterator[Dot]:
        for index, step in enumerate(self.window.steps[:step_count]):
            position = self.window.positions[index]
            if isinstance(step, Event) and position is not None:
                x, y, label = self.scene.places[index]
                is_recorded = (
                    self.chosen is not None
                    and self.chosen.has_reached(step.process, step_count, self.window)
                    and position.index <= self.chosen.counts[step.process]
                )
                yield Dot(position, x, y, label, is_recorded, self._words[index])

    def _marks(self, step_count: int) -> Iterator[Mark]:
        for index, step in enumerate(self.window.steps[:step_count]):
            if isinstance(step, MarkerStep):
                x, y, label = self.scene.places[index]
                yield Mark(
                    process=step.process,
                    snapshot=step.snapshot,
                    source=step.source,
                    colour=self.colours[step.snapshot],
                    x=x,
                    y=y,
                    is_cut=step.is_cut,
                    label=label,
                    is_faint=self._is_faint(step.snapshot),
                    full=self._words[index],
                )

    def _messages(self, step_count: int) -> Iterator[MessageArrow]:
        for (link, path), words in zip(self.scene.messages, self._message_words, strict=True):
            if there := drawn(path, link.sent, link.accepted, step_count, self.scene.row_height):
                role = self.roles.get(link.message, Role.PLAIN)
                if self.chosen is None or not self.chosen.is_between_reached(
                    link.message.channel, step_count, self.window
                ):
                    role = Role.PLAIN
                yield MessageArrow(link.message, *there, role, words)

    def _markers(self, step_count: int) -> Iterator[MarkerArrow]:
        for link, path in self.scene.markers:
            if there := drawn(path, link.sent, link.came, step_count, self.scene.row_height):
                yield MarkerArrow(
                    link.snapshot,
                    link.source,
                    link.target,
                    self.colours[link.snapshot],
                    *there,
                    self._is_faint(link.snapshot),
                    f"marker of {link.snapshot}, {link.source}->{link.target}",
                )

    def _curves(self, step_count: int) -> Iterator[Curve]:
        named: list[tuple[float, float]] = []
        for cut in self.cuts:
            if self.scene.ys and self._is_visible(cut, step_count):
                points = self._points(cut)
                label = Label(points[0][0] - 6, points[0][1] - 5, cut.name)
                left, right = label.x, label.x + lettering.width(label.text) + 6
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
                    full=legend.summary(self.trace, self.window, cut, step_count),
                )

    def _is_visible(self, cut: ShownCut, step_count: int) -> bool:
        """Return whether all processes reached the cut, and some of them in the window."""
        whole = cut.snapshot is None and cut is self.chosen
        return all(
            cut.has_reached(process, step_count, self.window) for process in self.trace.processes
        ) and (whole or any(0 <= at < len(self.window.steps) for at in cut.reached.values()))

    def _is_faint(self, snapshot: SnapshotId) -> bool:
        return self.chosen is not None and self.chosen.snapshot != snapshot

    def _notices(self, step_count: int) -> Iterator[Label]:
        texts = [self.notice] if self.notice else []
        if self.is_sequence:
            now = ""
            if step_count:
                step = self.window.steps[step_count - 1]
                what = step.label if isinstance(step, Event) else _tell_marker(step)
                now = f": {step.process} {lettering.clean(what, char_count_max=FULL_CHARS_MAX)}"
            texts.append(f"step {step_count:,} of {len(self.window.steps):,}{now}")
        for row, text in enumerate(texts):
            fitting = lettering.fit(text, self.width - 2 * PADDING)
            yield Label(PADDING, PADDING + TEXT_ROW * row + lettering.SIZE, fitting)

    def legend_rows(self, step_count: int) -> Iterator[legend.Row]:
        """Yield the words below the picture after so many steps."""
        links = self.window.messages, self.window.markers
        if self.is_sequence or any(link.is_open for some in links for link in some):
            yield legend.Row(Sample.IN_TRANSIT, 0, "message or marker that has not come yet")
        yield from legend.rows(self.trace, self.window, self.cuts, self.chosen, step_count)

    def _legend(self, step_count: int) -> Iterator[LegendRow]:
        x = PADDING + SAMPLE_WIDTH
        for number, row in enumerate(self.legend_rows(step_count), 1):
            y = self.scene.bottom + TEXT_ROW * (number + 0.5)
            text = lettering.fit(row.text, self.width - PADDING - x)
            yield LegendRow(row.sample, row.colour, PADDING, Label(x, y, text), row.text)


def _left_out(trace: Trace, shown: window.Window) -> str:
    total, count = len(trace.steps), len(shown.steps)
    sentences = []
    if count < total:
        begin = shown.before_count + 1
        which = f"steps {begin:,} to {begin + count - 1:,}" if begin > 1 else f"the first {count:,}"
        sentences.append(f"{which} of {total:,} {'' if begin > 1 else 'steps '}are shown")
    if hidden := len(trace.processes) - len(shown.processes):
        processes = legend.count(hidden, "process")
        sentences.append(f"{processes} without a step here {'is' if hidden == 1 else 'are'} not")
    return "; ".join(sentences)


def _tell(what: str, event: Event) -> str:
    parts = [f"{what} {event.label}".rstrip()]
    for verb, messages in (("accepts", event.accepted), ("sends", event.sent)):
        if messages:
            names = ", ".join(map(str, messages[:_LISTED_MAX]))
            more = len(messages) - _LISTED_MAX
            parts.append(f"{verb} {names}" + (f" and {more:,} more" if more > 0 else ""))
    if event.at is not None:
        parts.append(f"at {event.at:.6g} s")
    return lettering.clean("; ".join(parts), char_count_max=FULL_CHARS_MAX)


def _tell_marker(step: MarkerStep) -> str:
    recorded = ": records its state" if step.is_cut else ""
    if step.source is None:
        return f"initiates snapshot {step.snapshot}{recorded}"
    return f"gets the marker of {step.snapshot} from {step.source}{recorded}"
