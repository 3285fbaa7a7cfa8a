"""Place everything in a window of a trace, whether it has happened yet or not: arrows always go to
the right, and around the dots of the lines in between.

A step's place from left to right follows from what happened before what, not from time: clocks of
different processes disagree and often no time was noted at all, whereas layers need no clock,
never let an arrow point backwards, and keep the diagram narrow, because steps of different
processes that do not wait for each other share one.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from stillframe.diagram import text_metrics
from stillframe.diagram.cuts import StyledCut, snapshot_name
from stillframe.diagram.shapes import Extent, Label, Line, Path, Point, midpoint
from stillframe.diagram.window import AnyLink, Window
from stillframe.model import ProcessId
from stillframe.trace import Event, MessageId, Step, Trace

PADDING = 14.0
TEXT_ROW = 18.0
TOP = 46.0
"""Above the first line there is room for its labels and for the names of cuts."""
CUT_OVERHANG = 26.0
"""How far a cut's curve goes beyond the first and the last line."""
ROW_HEIGHT_MIN, ROW_HEIGHT_MAX, ROWS_HEIGHT = 48.0, 96.0, 900.0
PROCESS_CHARS_MAX = 20
NAME_MARGIN = 4.0
LABEL_GAP = 7.0
DOT_RADIUS = 9.0
"""Of a dot with its ring."""
MARK_RADIUS = 6.0
MARK_LABEL_X = 9.0
NAME_EVERY = 1500.0
"""A line that is longer has its process's name also at the right, and in between."""
WIDTH_WISHED = 1800.0
TIGHTNESS = ((28, 44.0, False), (16, 38.0, False), (10, 34.0, False), (12, 32.0, True))
"""Maximum letters of a label, distance of layers, and whether labels alternate between both sides
of a line. The first entry that makes the picture narrow enough is used, else the last."""
BENDS = (0.0, 12.0, -12.0, 24.0, -24.0, 40.0, -40.0)
CLEARANCE = 7.0
STUB_WIDTH = 24.0
STUB_STEP = 7.0
STUB_COUNT = 4
"""Number of arrows without a target that are fanned out at one event."""
STUB_WIDTH_MAX = STUB_WIDTH + STUB_STEP * (STUB_COUNT - 1)


class Place(NamedTuple):
    """The place of a step, and its label."""

    x: float
    y: float
    label: Label | None


class Slot(msgspec.Struct, frozen=True):
    """The room that a step needs, in pixels: its radius, and how far its label, above or below the
    line, extends to the left and right of its x."""

    radius: float
    left: float
    right: float
    is_above: bool


class Rows:
    """A line for each process, at its `ys` from `x_from` on, with its shortened name before it; all
    of that is above `bottom`."""

    def __init__(self, processes: Sequence[ProcessId], *, top: float) -> None:
        count = max(1, len(processes))
        self.row_height = min(ROW_HEIGHT_MAX, max(ROW_HEIGHT_MIN, ROWS_HEIGHT / count))
        first = top + TOP
        self.ys = {process: first + self.row_height * i for i, process in enumerate(processes)}
        self.names = {
            process: text_metrics.shorten_name(process, char_count_max=PROCESS_CHARS_MAX)
            for process in processes
        }
        self.name_width = max(map(text_metrics.width, self.names.values()), default=0.0)
        self.x_from = PADDING + self.name_width + 10
        self.bottom = first + self.row_height * (count - 1) + CUT_OVERHANG

    def line(self, process: ProcessId, x_to: float, *more: Label) -> Line:
        """Return the line of a process up to `x_to`, with its name before it, and `more` labels."""
        y = self.ys[process]
        name = Label(self.x_from - 10, y + 4, self.names[process], "end")
        return Line(process, y, self.x_from, x_to, (name, *more))


class Scene(Rows):
    """Places for the lines, which end at `x_to`, and the steps, arrows and cuts of a window."""

    def __init__(self, trace: Trace, window: Window, *, top: float) -> None:
        super().__init__(window.processes, top=top)
        self._window = window
        self._y_of = self.ys | _between(trace, self.ys, top + TOP, self.row_height)
        preferred = self._labels_above()
        for chars_max, gap, alternates in TIGHTNESS:
            texts = [_text(step, chars_max) for step in window.steps]
            above = self._alternate(preferred, texts) if alternates else preferred
            labels = list(zip(window.steps, texts, above, strict=True))
            slots = [_slot(step, text, is_above=is_above) for step, text, is_above in labels]
            xs = assign_columns(window, slots, x_from=self.x_from, gap=gap)
            ends = (x + max(slot.radius, slot.right) for x, slot in zip(xs, slots, strict=True))
            self.gap = gap
            self.x_to = max(max(ends, default=self.x_from) + 8, max(xs, default=self.x_from) + gap)
            if self.x_to <= WIDTH_WISHED:
                break
        self.x_to = max(self.x_to, max(xs, default=self.x_from) + STUB_WIDTH_MAX + 8)
        self._repeats_names = self.x_to - self.x_from > NAME_EVERY
        self.width = self.x_to + PADDING + (self.name_width + 8 if self._repeats_names else 0)
        self.places = tuple(
            self._place(step, x, text, is_above=is_above)
            for (step, text, is_above), x in zip(labels, xs, strict=True)
        )
        self._taken: dict[ProcessId, list[Point]] = {process: [] for process in self.ys}
        for step, x, slot in zip(window.steps, xs, slots, strict=True):
            right = slot.radius if isinstance(step, Event) else slot.right
            self._taken[step.process].append((x - slot.radius, x + right))
        by_y = sorted(self.places, key=lambda place: (place.y, place.x))
        self._xs_at = {y: [p.x for p in line] for y, line in groupby(by_y, lambda p: p.y)}
        self._router = Router(self._xs_at, self.row_height)
        self.messages = [(link, self._route(link)) for link in window.messages]
        self.markers = [(link, self._route(link)) for link in window.markers]

    def lines(self) -> Iterator[Line]:
        """Yield the lines; a long one has its name also at the right, and where there is room."""
        for process, y in self.ys.items():
            name = self.names[process]
            more = [Label(x, y + 4, name) for x in self._free_for_name(process)]
            if self._repeats_names:
                more.append(Label(self.x_to + 8, y + 4, name))
            yield self.line(process, self.x_to, *more)

    def _free_for_name(self, process: ProcessId) -> Iterator[float]:
        width = text_metrics.width(self.names[process]) + 2 * NAME_MARGIN
        free_from, wanted = self.x_from, self.x_from + NAME_EVERY
        end = max(self.x_from, self.x_to - NAME_EVERY / 2)
        for left, right in [*(t for t in self._taken[process] if t[0] < end), (end, end)]:
            while left - max(free_from, wanted) >= width:
                yield max(free_from, wanted) + NAME_MARGIN
                wanted = max(free_from, wanted) + NAME_EVERY
            free_from = right

    def drawn(self, link: AnyLink, path: Path, step_count: int) -> tuple[Path, Extent] | None:
        """Return the visible part of the arrow `path` of `link` after `step_count` steps."""
        has_come = link.came is not None and link.came < step_count
        if link.sent is None:
            return (path, Extent.ENTERING) if has_come else None
        if link.sent >= step_count:
            return None
        if has_come:
            return path, Extent.WHOLE
        part = path if link.came is None else under_way(path, self.row_height)
        return part, Extent.LEAVING

    def points(self, cut: StyledCut) -> tuple[Point, ...]:
        """Return where `cut` crosses each line, from the top down; every process reached it."""
        spans = [self._span(cut, process) for process in self.ys]
        xs = [(low + high) / 2 for low, high in spans]
        for _ in range(len(xs) and 12):
            for row, (low, high) in enumerate(spans):
                near = xs[max(0, row - 1) : row] + xs[row + 1 : row + 2]
                if near:
                    xs[row] = min(max(sum(near) / len(near), low), high)
        crossings = list(zip(xs, self.ys.values(), strict=True))
        first, last = crossings[0], crossings[-1]
        begin, end = (first[0], first[1] - CUT_OVERHANG), (last[0], last[1] + CUT_OVERHANG)
        return begin, *crossings, end

    def _span(self, cut: StyledCut, process: ProcessId) -> Point:
        """Return between which x the cut may cross a line; they are equal at a recording step."""
        index = cut.reached[process]
        if index == len(self.places):
            return self.x_to, self.x_to
        if cut.snapshot is not None:
            x = self.x_from if index < 0 else self.places[index].x
            return x, x
        xs = self._xs_at.get(self.ys[process], [])
        low = self.x_from if index < 0 else self.places[index].x
        following = bisect_left(xs, low + 1) if index >= 0 else 0
        high = xs[following] if following < len(xs) else self.x_to
        margin = min(self.gap / 2, (high - low) / 3)
        return low + margin, high - margin

    def _place(self, step: Step, x: float, text: str, *, is_above: bool) -> Place:
        y = self.ys[step.process]
        if isinstance(step, Event):
            label = Label(x, y - 13 if is_above else y + 21, text, "middle")
        else:
            label = Label(x + MARK_LABEL_X, y - 8 if is_above else y + 17, text)
        return Place(x, y, label if text else None)

    def _labels_above(self) -> list[bool]:
        """Return of each step whether its label is above the line: where fewer arrows are."""
        up_minus_down = [0] * len(self._window.steps)
        links: list[AnyLink] = [*self._window.messages, *self._window.markers]
        for link in links:
            source, target = self._y_of[link.channel.source], self._y_of[link.channel.target]
            if link.sent is not None:
                up_minus_down[link.sent] += 1 if target < source else -1
            if link.came is not None and isinstance(link.name, MessageId):
                up_minus_down[link.came] += 1 if source < target else -1
        return [difference <= 0 for difference in up_minus_down]

    def _alternate(self, above: list[bool], texts: list[str]) -> list[bool]:
        """Return the sides of labels such that no two of a line that follow each other share one;
        the first has the side that it prefers."""
        sides = list(above)
        last: dict[ProcessId, int] = {}
        for index, text in enumerate(texts):
            if text:
                process = self._window.steps[index].process
                if process in last:
                    sides[index] = not sides[last[process]]
                last[process] = index
        return sides

    def _route(self, link: AnyLink) -> Path:
        sent, came = (
            None if index is None else (self.places[index].x, self.places[index].y)
            for index in (link.sent, link.came)
        )
        if sent is None:
            assert came is not None, link
            return self._router.stub(came, self._y_of[link.channel.source], is_leaving=False)
        if came is None:
            return self._router.stub(sent, self._y_of[link.channel.target], is_leaving=True)
        return self._router.whole(sent, came)


def _text(step: Step, chars_max: int) -> str:
    if isinstance(step, Event):
        return text_metrics.clean(step.label, char_count_max=chars_max)
    name = snapshot_name(step.snapshot) if step.is_cut else ""
    return text_metrics.shorten(name, char_count_max=chars_max)


def _slot(step: Step, text: str, *, is_above: bool) -> Slot:
    width = text_metrics.width(text)
    if isinstance(step, Event):
        return Slot(DOT_RADIUS, width / 2, width / 2, is_above)
    return Slot(MARK_RADIUS, 0, MARK_LABEL_X + width, is_above)


def _between(
    trace: Trace, ys: dict[ProcessId, float], first: float, row_height: float
) -> dict[ProcessId, float]:
    """Return for each process without a line a y between those of its neighbours."""
    found = {}
    y = first - row_height / 2
    for process in trace.processes:
        if process in ys:
            y = ys[process] + row_height / 2
        else:
            found[process] = y
    return found


def assign_columns(
    window: Window, slots: Sequence[Slot], *, x_from: float, gap: float
) -> list[float]:
    """Return the x of each step: one for all steps of a layer. Neighbouring layers are at least
    `gap` pixels apart, and as far as the labels on one side of a line need it, which keep a gap
    between them and from `x_from`."""
    # The layer of a step is the length of the longest chain of steps that happened before it.
    layer_of: list[int] = []
    for previous, causes in zip(window.previous, window.causes, strict=True):
        before = causes if previous is None else (previous, *causes)
        layer_of.append(max((layer_of[index] + 1 for index in before), default=0))
    xs = [0.0] * len(layer_of)
    x = x_from - gap / 2
    ends: dict[tuple[ProcessId, bool], float] = {}
    in_order = sorted(range(len(layer_of)), key=layer_of.__getitem__)
    for _, layer in groupby(in_order, key=layer_of.__getitem__):
        indices = list(layer)
        x += gap
        for index in indices:
            previous, slot = window.previous[index], slots[index]
            if previous is not None:
                x = max(x, xs[previous] + slots[previous].radius + slot.radius)
            end = ends.get((window.steps[index].process, slot.is_above), x_from)
            x = max(x, end + LABEL_GAP + slot.left)
        for index in indices:
            xs[index] = x
            ends[window.steps[index].process, slots[index].is_above] = x + slots[index].right
    return xs


class Router:
    """Finds paths for arrows, no two of them the same; `xs_at` has the sorted x of all steps at the
    y of each line."""

    def __init__(self, xs_at: Mapping[float, Sequence[float]], row_height: float) -> None:
        self._xs_at = xs_at
        self._ys = sorted(xs_at)
        self._row_height = row_height
        self._taken: set[Path] = set()
        self._stub_count: dict[tuple[Point, bool], int] = {}

    def whole(self, begin: Point, end: Point) -> Path:
        """Return the path of an arrow; `end` is to the right of `begin`."""
        if begin[1] == end[1]:
            return self._arch(begin, end)
        x, y = midpoint(begin, end)
        controls = (min(max(x + bend, begin[0] + 1), end[0] - 1) for bend in BENDS)
        paths = [Path(begin, (control, y), end) for control in controls]
        free = [path for path in paths if path not in self._taken] or paths
        best = next(filter(self._is_clear, free), free[0])
        self._taken.add(best)
        return best

    def stub(self, at: Point, y: float, *, is_leaving: bool) -> Path:
        """Return the path of an arrow that does not arrive, or comes from outside: a stub towards
        the line at `y`."""
        number = self._stub_count.get((at, is_leaving), 0)
        self._stub_count[at, is_leaving] = number + 1
        width = STUB_WIDTH + STUB_STEP * (number % STUB_COUNT)
        height = self._row_height * (0.45 if y > at[1] else -0.45)
        other = at[0] + (width if is_leaving else -width), at[1] + height
        begin, end = (at, other) if is_leaving else (other, at)
        return Path(begin, midpoint(begin, end), end)

    def _arch(self, begin: Point, end: Point) -> Path:
        """Return an arch over a line, for a process that sends to itself."""
        x, y = midpoint(begin, end)
        height = self._row_height * 0.7
        while (path := Path(begin, (x, y - height), end)) in self._taken and height > 1:
            height *= 0.8
        self._taken.add(path)
        return path

    def _is_clear(self, path: Path) -> bool:
        """Return whether the path keeps away from the dots of all lines that it crosses."""
        top, bottom = sorted((path.begin[1], path.end[1]))
        first = bisect_left(self._ys, top + 1)
        last = bisect_left(self._ys, bottom - 1)
        for y in self._ys[first:last]:
            x, _ = path.at((y - path.begin[1]) / (path.end[1] - path.begin[1]))
            xs = self._xs_at[y]
            nearest = bisect_left(xs, x - CLEARANCE)
            if nearest < len(xs) and xs[nearest] < x + CLEARANCE:
                return False
        return True


def under_way(path: Path, row_height: float) -> Path:
    """Return about the first half of a path. The arrow is in transit and ends between two lines: on
    a line it would look like an arrival."""
    rows = round(abs(path.end[1] - path.begin[1]) / row_height)
    part = 0.5 if rows % 2 or not rows else 0.5 - 0.5 / rows
    control = (
        path.begin[0] + (path.control[0] - path.begin[0]) * part,
        path.begin[1] + (path.control[1] - path.begin[1]) * part,
    )
    return Path(path.begin, control, path.at(part))
