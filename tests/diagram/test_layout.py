"""Geometry: what is drawn where, for the lecture's execution and for any other."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe.diagram import layout, text_metrics, window
from stillframe.diagram.shapes import Diagram, Dot, Extent, Label, Mark, Role, Sample
from stillframe.errors import UsageError
from stillframe.model import Channel, SnapshotId
from stillframe.trace import Cut, Event, MessageId, Position, Step, Trace
from tests.diagram.runs import EK, HD, SNAPSHOT, by_chance, lecture, traces

LETTER_ABOVE = 10.0
LETTER_BELOW = 3.0


def words(picture: Diagram) -> list[str]:
    """Return the legend."""
    return [row.label.text for row in picture.legend]


def circled(trace: Trace, picture: Diagram) -> str:
    """Return the labels of the events that are circled."""
    return "".join(sorted(trace.event(d.position).label for d in picture.dots if d.is_recorded))


def labels_of(picture: Diagram) -> list[Label]:
    """Return all text of a picture."""
    found = [
        *picture.notices,
        *(label for line in picture.lines for label in line.labels),
        *(row.label for row in picture.legend),
    ]
    found += [dot.label for dot in picture.dots if dot.label]
    found += [mark.label for mark in picture.marks if mark.label]
    return found + [curve.label for curve in picture.curves if curve.label]


def box(label: Label) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of the room that a label takes."""
    width = text_metrics.width(label.text)
    left = label.x - {"start": 0.0, "middle": width / 2, "end": width}[label.anchor]
    return left, label.y - LETTER_ABOVE, left + width, label.y + LETTER_BELOW


def overlaps(first: Label, second: Label) -> bool:
    """Return whether two labels share room."""
    a, b = box(first), box(second)
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def xs_of(picture: Diagram) -> dict[Position, float]:
    """Return where each event is."""
    return {dot.position: dot.x for dot in picture.dots}


@given(traces())
def test_time_goes_right_on_each_line_and_along_each_arrow(trace: Trace) -> None:
    """No two steps of a line share an x; an arrow begins and ends in the dots of its events."""
    picture = layout.lay_out(trace)
    for line in picture.lines:
        xs = [shape.x for step, shape in _in_order(trace, picture) if step.process == line.process]
        assert all(later - earlier >= 9 for earlier, later in pairwise(xs))
        assert all(line.x_from < x < line.x_to for x in xs)
    at = {dot.position: (dot.x, dot.y) for dot in picture.dots}
    for arrow in picture.messages:
        path, target = arrow.path, trace.accepted_in(arrow.message)
        assert path.begin == at[trace.sent_in(arrow.message)]
        assert path.begin[0] < path.control[0] < path.end[0]
        assert (target is None) == (arrow.extent is Extent.LEAVING)
        if target is not None:
            assert path.end == at[target]
    assert len(picture.messages) == trace.message_count
    for marker in picture.markers:
        assert marker.path.begin[0] < marker.path.control[0] < marker.path.end[0]


def _in_order(trace: Trace, picture: Diagram) -> list[tuple[Step, Dot | Mark]]:
    """Return each step of the trace with its dot or mark."""
    dots, marks = iter(picture.dots), iter(picture.marks)
    return [(s, next(dots) if isinstance(s, Event) else next(marks)) for s in trace.steps]


@given(traces(step_count_max=25))
def test_what_happened_before_is_further_left(trace: Trace) -> None:
    """Not only along lines and arrows: along every chain of them."""
    xs = xs_of(layout.lay_out(trace))
    for first, second in combinations(xs, 2):
        if trace.happened_before(first, second):
            assert xs[first] < xs[second]


@given(traces(step_count_max=100))
def test_no_text_covers_other_text_and_all_is_inside(trace: Trace) -> None:
    """By the estimated width of the letters; dots, arrows and curves are inside, too."""
    picture = layout.lay_out(trace)
    for first, second in combinations(labels_of(picture), 2):
        assert not overlaps(first, second), (first, second)
    paths = [a.path for a in picture.messages] + [a.path for a in picture.markers]
    points = [path.at(part / 8) for path in paths for part in range(9)]
    points += [point for curve in picture.curves for point in curve.points]
    points += [(dot.x, dot.y) for dot in picture.dots]
    points += [(mark.x, mark.y) for mark in picture.marks]
    for left, top, right, bottom in map(box, labels_of(picture)):
        points += [(left, top), (right, bottom)]
    assert all(0 <= x <= picture.width and 0 <= y <= picture.height for x, y in points)


def check_curve(trace: Trace, picture: Diagram, name: str, cut: Cut) -> None:
    """Check that the curve `name` passes between the right events of each line."""
    curve = next(curve for curve in picture.curves if curve.name == name)
    ys = [y for _, y in curve.points]
    assert all(above < below for above, below in pairwise(ys))
    crossings = {y: x for x, y in curve.points}
    xs = xs_of(picture)
    for line, count in zip(picture.lines, cut, strict=True):
        for position, x in xs.items():
            if position.process == line.process:
                assert (x < crossings[line.y]) == (position.index <= count), position


@given(traces(), st.data())
def test_a_cut_passes_between_the_right_events(trace: Trace, data: st.DataObject) -> None:
    """Those of snapshots go through the steps that recorded, those asked for through the gaps."""
    cut = tuple(data.draw(st.integers(0, count)) for count in trace.end)
    picture = layout.lay_out(trace, cuts=[cut])
    check_curve(trace, picture, "cut", cut)
    for curve in picture.curves:
        if curve.name != "cut":
            snapshot = SnapshotId.parse(curve.name.removeprefix("snapshot "))
            check_curve(trace, picture, curve.name, trace.cut_of(snapshot))
    is_before = {dot.position: dot.is_recorded for dot in picture.dots}
    counts = dict(zip(trace.processes, cut, strict=True))
    assert is_before == {p: p.index <= counts[p.process] for p, _ in trace.positions()}
    caught = {message for messages in trace.in_transit(cut).values() for message in messages}
    roles = {arrow.message: arrow.role for arrow in picture.messages}
    assert {message for message, role in roles.items() if role is Role.CAUGHT} == caught
    assert {m for m, role in roles.items() if role is Role.ORPHAN} == {*trace.orphans(cut)}
    assert trace.is_consistent(cut) == any(text.startswith("cut: cons") for text in words(picture))


@given(traces(step_count_max=30))
def test_pictures_of_a_sequence_only_gain(trace: Trace) -> None:
    """One for each step; size and places stay, and the last is the whole diagram."""
    pictures = list(layout.frames(trace))
    assert len(pictures) == len(trace.steps)
    start = layout.lay_out(trace, steps=0)
    assert [*start.dots, *start.marks, *start.messages, *start.markers] == []
    for count, (before, after) in enumerate(pairwise([start, *pictures]), 1):
        assert after == layout.lay_out(trace, steps=count)
        assert (before.width, before.height) == (after.width, after.height)
        assert len(after.dots) + len(after.marks) == count
        assert xs_of(before).items() <= xs_of(after).items()
        assert {*before.marks} <= {*after.marks}
        assert {*before.curves} <= {*after.curves}
        assert whole(before) <= whole(after)
        recorded = {dot.position for dot in before.dots if dot.is_recorded}
        assert recorded <= {dot.position for dot in after.dots if dot.is_recorded}
        assert len(before.legend) <= len(after.legend)
        assert all(box(label)[3] <= after.height for label in labels_of(after))


def whole(picture: Diagram) -> set[tuple[object, ...]]:
    """Return the arrows that have arrived, and their paths."""
    arrows = [(a.message, a.path) for a in picture.messages if a.extent is Extent.WHOLE]
    markers = [m for m in picture.markers if m.extent is Extent.WHOLE]
    return {*arrows, *((m.snapshot, m.source, m.target, m.path) for m in markers)}


def test_the_execution_of_the_lecture() -> None:
    """What the snapshot recorded is circled, the message that it caught is thick and listed."""
    trace = lecture()
    picture = layout.lay_out(trace)
    assert circled(trace, picture) == "ABFGHI"
    assert {a.message for a in picture.messages if a.role is Role.CAUGHT} == {HD}
    assert words(picture)[2:] == [
        "snapshot P1-1: consistent, with 1 message in transit",
        "channel P2->P1: H→D",
        "5 channels empty",
    ]
    assert [curve.name for curve in picture.curves] == ["snapshot P1-1"]
    check_curve(trace, picture, "snapshot P1-1", (2, 3, 1))
    assert {mark.label.text for mark in picture.marks if mark.label} == {"P1-1"}
    assert sum(mark.is_cut for mark in picture.marks) == 3
    assert len(picture.markers) == 6
    assert "channel P2->P1: H→D" in picture.description


def test_a_legend_explains_only_what_may_be_seen() -> None:
    """In the lecture's execution everything arrives in the end, but not from the start."""
    trace = lecture()
    samples = [row.sample for row in layout.lay_out(trace).legend]
    assert Sample.IN_TRANSIT not in samples
    for picture in layout.frames(trace):
        assert Sample.IN_TRANSIT in [row.sample for row in picture.legend]
    silent = layout.lay_out(Trace(["P1"], [Event("P1")]))
    assert silent.legend == ()


def test_a_snapshot_is_drawn_as_it_is_taken() -> None:
    """A process's events are circled once it has recorded, the curve comes with the last, and a
    message is caught once both ends have recorded."""
    trace = lecture()
    pictures = [layout.lay_out(trace, steps=count) for count in range(len(trace.steps) + 1)]
    assert [circled(trace, pictures[count]) for count in (2, 3, 5, 10, 11)] == [
        *("", "AB", "ABI", "ABI", "ABFGHI")
    ]
    assert [len(picture.curves) for picture in pictures] == [0] * 11 + [1] * 8
    assert "snapshot P1-1: 2 of 3 processes recorded their states" in words(pictures[10])
    caught = [[a.message for a in p.messages if a.role is Role.CAUGHT] for p in pictures]
    assert caught == [[]] * 11 + [[HD]] * 8
    assert pictures[3].notices[0].text == (
        "step 3 of 18: P1 initiates snapshot P1-1: records its state"
    )


def test_an_inconsistent_cut_names_what_it_shows_without_a_cause() -> None:
    """D is before the cut, H is not; and the picture is about the cut, not the snapshot."""
    trace = lecture()
    picture = layout.lay_out(trace, cuts=[(4, 2, 1)])
    assert {a.message for a in picture.messages if a.role is Role.ORPHAN} == {HD}
    assert "cut: NOT consistent: 1 effect without a cause" in words(picture)
    assert "accepted before it, but sent after it: H→D" in words(picture)
    assert all(mark.is_faint for mark in picture.marks)
    about_snapshot = layout.lay_out(trace, cuts=[(4, 2, 1)], snapshot=SNAPSHOT)
    assert circled(trace, about_snapshot) == "ABFGHI"
    assert not any(a.role is Role.ORPHAN for a in about_snapshot.messages)
    assert [curve.is_faint for curve in about_snapshot.curves] == [False, True]


def test_a_snapshot_that_is_not_complete_has_no_curve() -> None:
    """P2 never records: what is known is shown, and how many processes recorded."""
    steps = [s for s in lecture().steps[:9] if s.process != "P2"]
    trace = Trace(["P1", "P2", "P3"], steps, lecture().channels)
    picture = layout.lay_out(trace)
    assert picture.curves == ()
    assert "snapshot P1-1: 2 of 3 processes recorded their states" in words(picture)
    assert circled(trace, picture) == "ABI"
    assert not any("empty" in text for text in words(picture))


def test_long_traces_are_cut_off_and_say_so() -> None:
    """The first 400 steps by default; a window may begin later."""
    trace = Trace(["P1"], [Event("P1")] * 12_345)
    assert [n.text for n in layout.lay_out(trace).notices] == [
        "the first 400 of 12,345 steps are shown"
    ]
    sentence = layout.left_out(trace, window.select(trace, first=1, step_count_max=400))
    assert sentence == "the first 400 of 12,345 steps are shown"
    last = layout.lay_out(trace, first=12_301)
    assert [n.text for n in last.notices] == ["steps 12,301 to 12,345 of 12,345 are shown"]
    assert [dot.position.index for dot in last.dots] == [*range(12_301, 12_346)]
    short = Trace(["P1"], [Event("P1")] * 400)
    assert layout.left_out(short, window.select(short, first=1, step_count_max=400)) == ""


def test_arrows_cross_the_edges_of_a_window() -> None:
    """What was sent before comes in, what arrives later goes out; counts go on."""
    trace = lecture()
    window = layout.lay_out(trace, first=8, step_count_max=10)
    extents = {arrow.message: arrow.extent for arrow in window.messages}
    assert extents == {
        MessageId(Channel("P3", "P2"), 1): Extent.ENTERING,
        HD: Extent.WHOLE,
        EK: Extent.LEAVING,
    }
    assert circled(trace, window) == "GH"
    assert len(window.curves) == 1
    assert window.curves[0].points[1][0] == window.lines[0].x_from
    assert layout.lay_out(trace, first=13).curves == ()


def test_long_lines_have_their_names_again_and_again() -> None:
    """At both ends and about every 1500 pixels, between the events."""
    picture = layout.lay_out(by_chance(9, 3, 400, 2, labels=("a", "something")))
    assert picture.width > 5000
    for line in picture.lines:
        first, *others = sorted(label.x for label in line.labels)
        assert {label.text for label in line.labels} == {line.process}
        assert len(others) >= 3
        assert max(later - earlier for earlier, later in pairwise([first, *others])) < 3100
        shapes = [dot.x for dot in picture.dots if dot.y == line.y]
        for label in line.labels:
            left, _, right, _ = box(label)
            assert not any(left - 9 < x < right + 9 for x in shapes)


def test_thirty_processes_are_readable() -> None:
    """300 events in a picture that a screen can scroll, rows apart, drawn finely."""
    picture = layout.lay_out(by_chance(1, 30, 300, labels=("pay", "receive")))
    assert len(picture.lines) == 30
    assert picture.is_crowded
    assert picture.width < 2000
    assert picture.height < 1700
    assert min(b.y - a.y for a, b in pairwise(picture.lines)) >= 48
    assert len({label.x for line in picture.lines for label in line.labels[:1]}) == 1


def test_of_very_many_processes_the_idle_ones_are_left_out() -> None:
    """Those that take a step in the window have a line; arrows to the others still go there."""
    names = [f"P{number}" for number in range(100)]
    up, down = MessageId(Channel("P50", "P3"), 1), MessageId(Channel("P50", "P90"), 1)
    trace = Trace(names, [Event("P50", "tell", sent=(up, down)), Event("P70")])
    picture = layout.lay_out(trace)
    assert [line.process for line in picture.lines] == ["P50", "P70"]
    assert [n.text for n in picture.notices] == ["98 processes without a step here are hidden"]
    above, below = (arrow.path for arrow in picture.messages)
    assert above.end[1] < above.begin[1] < below.end[1]


def test_messages_between_the_same_events_take_different_paths() -> None:
    """Also several that are still on their way, and those of a process to itself."""
    pair = tuple(MessageId(Channel("P1", "P2"), number) for number in (1, 2, 3))
    own = tuple(MessageId(Channel("P1", "P1"), number) for number in (1, 2))
    lost = tuple(MessageId(Channel("P1", "P2"), number) for number in (4, 5))
    steps = [
        Event("P1", sent=pair + own + lost),
        Event("P2", accepted=pair),
        Event("P1", accepted=own),
    ]
    picture = layout.lay_out(Trace(["P1", "P2"], steps))
    assert len({arrow.path for arrow in picture.messages}) == 7
    assert all(a.path.begin[0] < a.path.end[0] for a in picture.messages)


def test_an_arrow_does_not_seem_to_end_in_a_dot_on_its_way() -> None:
    """From P1 to P3, straight through an event of P2: the arrow bends."""
    message = MessageId(Channel("P1", "P3"), 1)
    steps = [Event("P1", sent=(message,)), *[Event("P2")] * 3, *[Event("P3")] * 4]
    steps.append(Event("P3", accepted=(message,)))
    picture = layout.lay_out(Trace(["P1", "P2", "P3"], steps))
    arrow = picture.messages[0].path
    x, y = arrow.at(0.5)
    nearest = min((dot for dot in picture.dots if dot.y == y), key=lambda dot: abs(dot.x - x))
    assert (arrow.begin[0] + arrow.end[0]) / 2 == nearest.x
    assert abs(x - nearest.x) >= 7


def test_many_cuts_and_channels_are_counted_not_listed() -> None:
    """The legend stays short, and says what it leaves out."""
    trace = by_chance(5, 6, 300, labels=("",))
    cut = tuple(count // 2 for count in trace.end)
    picture = layout.lay_out(trace, cuts=[cut] * 20)
    assert "and 12 other cuts" in words(picture)
    assert len(picture.legend) < 40
    assert any(row.sample is Sample.CAUGHT and "#" in row.full for row in picture.legend)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"snapshot": SnapshotId("P2", 7)}, "the trace has no snapshot P2-7; it has P1-1"),
        ({"cuts": [(9, 0, 0)]}, "no cut has 9 events of P1, which has 5"),
        ({"first": 19}, "the trace has 18 steps"),
        ({"first": 0}, "there is no step 0 to begin with: the trace has 18 steps"),
        ({"step_count_max": 0}, "show at least one"),
        ({"steps": 19}, "the picture shows 0 to 18"),
    ],
)
def test_what_a_trace_does_not_have_is_named(options: dict[str, object], sentence: str) -> None:
    """A snapshot, a cut or a step."""
    with pytest.raises(UsageError) as caught:
        layout.lay_out(lecture(), **options)  # type: ignore[arg-type]
    assert sentence in str(caught.value)


def test_nothing_at_all_can_be_drawn() -> None:
    """No steps, or no processes."""
    assert layout.lay_out(Trace(["P1"], []), cuts=[(0,)]).curves != ()
    assert layout.lay_out(Trace([], [])).lines == ()
    assert list(layout.frames(Trace(["P1"], []))) == []


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 5])
def test_an_arrow_under_way_ends_between_lines(distance: int) -> None:
    """On a line it would seem to have come to that process."""
    names = [f"P{index}" for index in range(6)]
    message = MessageId(Channel("P0", names[distance]), 1)
    steps = [Event("P0", sent=(message,)), Event(names[distance], accepted=(message,))]
    picture = layout.lay_out(Trace(names, steps), steps=1)
    (arrow,) = picture.messages
    gap = picture.lines[1].y - picture.lines[0].y
    assert all(abs(arrow.path.end[1] - line.y) > gap / 3 for line in picture.lines)
