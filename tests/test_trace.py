"""Traces: what they refuse, what they tell, and happened-before against brute force."""

from collections import Counter

import pytest
from hypothesis import given

from stillframe.errors import NotConsistent, UsageError
from stillframe.model import Channel, SnapshotId
from stillframe.trace import Event, MarkerStep, MessageId, Position, Step, Trace, clean_label
from tests.executions import (
    LECTURE,
    all_cuts,
    before_pairs,
    consistent_by_force,
    executions,
    positions_of,
    read,
    trace_of,
)

TO_P2 = Channel("P1", "P2")
TO_P1 = Channel("P2", "P1")
FIRST = MessageId(TO_P2, 1)
SNAPSHOT = SnapshotId("P1", 1)
NAMES = ("P1", "P2", "P3")


def named(trace: Trace, label: str) -> Position:
    """Return where the event of that label is."""
    return next(position for position, event in trace.positions() if event.label == label)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([Event("P9")], "'P9' has a step, but is not a process of this trace"),
        ([MarkerStep("P9", SNAPSHOT)], "'P9' has a step, but is not a process of this trace"),
        (
            [Event("P2", "F", accepted=(FIRST,))],
            "event P2#1 (F) accepts message P1->P2 #1 before it was sent",
        ),
        (
            [Event("P1", accepted=(FIRST,), sent=(FIRST,))],
            "event P1#1 accepts message P1->P2 #1, which is not for it",
        ),
        (
            [Event("P1", sent=(FIRST,)), *[Event("P2", accepted=(FIRST,))] * 2],
            "event P2#2 accepts message P1->P2 #1, as P2#1 did before",
        ),
        ([Event("P1", sent=(FIRST, FIRST))], "event P1#1 sends message P1->P2 #1 twice"),
        (
            [Event("P1", sent=(FIRST,)), Event("P2", accepted=(FIRST, FIRST))],
            "event P2#1 accepts message P1->P2 #1 twice",
        ),
        (
            [Event("P2", sent=(FIRST,))],
            "event P2#1 sends message P1->P2 #1, which only its source can send",
        ),
        (
            [Event("P1", sent=(MessageId(Channel("P1", "P9"), 1),))],
            "event P1#1 sends message P1->P9 #1 to no process of this trace",
        ),
        (
            [Event("P1", sent=(FIRST,)), Event("P1", "B", sent=(FIRST,))],
            "event P1#2 (B) sends message P1->P2 #1, as P1#1 did before",
        ),
        (
            [
                Event("P1", accepted=(MessageId(Channel("P1", "P1"), 1),)),
                Event("P1", sent=(MessageId(Channel("P1", "P1"), 1),)),
            ],
            "event P1#1 accepts message P1->P1 #1 before it was sent",
        ),
    ],
)
def test_what_no_execution_can_be_is_refused(steps: list[Step], message: str) -> None:
    """The event and the message that contradict the others are named."""
    with pytest.raises(NotConsistent) as caught:
        Trace(NAMES, steps)
    assert str(caught.value) == message


def test_process_names_are_unique() -> None:
    """Two lines of one name could not be told apart."""
    with pytest.raises(UsageError, match="two processes of the same name"):
        Trace(("P1", "P1"), [])


def test_a_trace_counts_what_it_has() -> None:
    """Events and messages are counted, recording steps are not events, lines are by process."""
    trace = Trace(
        NAMES,
        [
            Event("P1", "A", sent=(FIRST, MessageId(TO_P2, 2))),
            MarkerStep("P1", SNAPSHOT, is_cut=True),
            Event("P2", "B", accepted=(FIRST,)),
        ],
    )
    assert (trace.event_count, trace.message_count, len(trace.steps)) == (2, 2, 3)
    assert trace.end == (1, 1, 0)
    assert {process: [e.label for e in line] for process, line in trace.lines.items()} == {
        "P1": ["A"],
        "P2": ["B"],
        "P3": [],
    }
    assert trace.index_of == {"P1": 0, "P2": 1, "P3": 2}


def test_a_trace_may_be_empty() -> None:
    """Nothing has happened yet, or there is nobody."""
    assert (Trace((), []).end, Trace(NAMES, []).end) == ((), (0, 0, 0))
    assert Trace((), []).is_consistent(())


def test_channels_are_those_declared_and_those_used() -> None:
    """A channel that carried something belongs to the trace, declared or not; all are sorted."""
    sending = [Event("P1", sent=(FIRST,))]
    assert Trace(NAMES, sending).channels == (TO_P2,)
    assert Trace(NAMES, sending, [TO_P1]).channels == (TO_P2, TO_P1)
    assert Trace(NAMES, [], []).channels == ()


def test_events_are_found_by_position() -> None:
    """Positions count from 1 on each line, and walk the trace in its order."""
    trace = read(LECTURE)
    assert trace.event(Position("P2", 3)).label == "H"
    assert str(named(trace, "H")) == "P2#3"
    walked = list(trace.positions())
    assert [event for _, event in walked] == list(trace.steps)
    assert all(trace.event(position) is event for position, event in walked)


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (Position("P2", 0), "there is no event P2#0: process P2 has 3"),
        (Position("P2", 4), "there is no event P2#4: process P2 has 3"),
        (Position("P9", 1), "there is no event P9#1: the processes are P1, P2, P3"),
    ],
)
def test_a_position_that_is_none_is_refused(position: Position, message: str) -> None:
    """The error says which there are, whoever asks."""
    trace = read(LECTURE)
    for ask in (
        trace.event,
        trace.clock,
        lambda p: trace.happened_before(p, named(trace, "A")),
        lambda p: trace.happened_before(named(trace, "A"), p),
    ):
        with pytest.raises(UsageError) as caught:
            ask(position)
        assert str(caught.value) == message


def test_messages_are_found_at_both_ends() -> None:
    """Where a message was sent and accepted; never accepted is None, never sent a KeyError."""
    trace = read("P1 A >P2 >P3|P2 B <P1")
    lost = MessageId(Channel("P1", "P3"), 1)
    assert (trace.sent_in(FIRST), trace.accepted_in(FIRST)) == (
        Position("P1", 1),
        Position("P2", 1),
    )
    assert (trace.sent_in(lost), trace.accepted_in(lost)) == (Position("P1", 1), None)
    with pytest.raises(KeyError):
        trace.sent_in(MessageId(TO_P2, 2))


def test_the_cut_of_a_snapshot_lies_where_states_were_recorded() -> None:
    """Each process's count at its recording step; other markers and snapshots do not matter."""
    other = SnapshotId("P2", 2)
    trace = Trace(
        NAMES,
        [
            Event("P1"),
            MarkerStep("P1", SNAPSHOT, is_cut=True, targets=("P2", "P3")),
            Event("P2"),
            MarkerStep("P2", other, is_cut=True),
            Event("P2"),
            MarkerStep("P2", SNAPSHOT, source="P1", is_cut=True),
            Event("P2"),
            MarkerStep("P2", SNAPSHOT, source="P3"),
            MarkerStep("P3", SNAPSHOT, source="P1", is_cut=True),
        ],
    )
    assert trace.snapshots == (SNAPSHOT, other)
    assert trace.cut_of(SNAPSHOT) == trace.cut_of(str(SNAPSHOT)) == (1, 2, 0)
    with pytest.raises(UsageError, match=r"snapshot P2-2 has no cut: P1, P3 did not record"):
        trace.cut_of(other)


@pytest.mark.parametrize("cut", [(), (0, 0), (0, 0, 0, 0), (-1, 0, 0), (6, 0, 0), (0, 0, 4)])
def test_what_is_no_cut_is_refused(cut: tuple[int, ...]) -> None:
    """A cut has one possible count for each process; the error says which are possible."""
    with pytest.raises(
        UsageError,
        match=r"each of the 3 processes .* numbers|no cut has .* give a number from 0 to",
    ):
        read(LECTURE).check_cut(cut)


@pytest.mark.parametrize("cut", [(0, 0, 0), (5, 3, 3), (2, 1, 0)])
def test_possible_counts_are_a_cut(cut: tuple[int, ...]) -> None:
    """Every count from none to all is possible, consistent or not."""
    trace = read(LECTURE)
    trace.check_cut(cut)
    assert trace.is_consistent(cut)


def test_orphans_are_effects_without_causes() -> None:
    """F inside without B, and G without I: both messages are named."""
    trace = read(LECTURE)
    assert list(map(str, trace.orphans((1, 2, 0)))) == ["P1->P2 #1", "P3->P2 #1"]
    assert not trace.is_consistent((1, 2, 0))


def test_in_transit_names_every_channel() -> None:
    """What crosses a cut is listed by channel, a channel with nothing on it, too."""
    trace = read(LECTURE)
    crossing = {str(channel): messages for channel, messages in trace.in_transit((2, 0, 1)).items()}
    assert crossing == {
        "P1->P2": (MessageId(TO_P2, 1),),
        "P1->P3": (),
        "P2->P1": (),
        "P3->P2": (MessageId(Channel("P3", "P2"), 1),),
    }


def test_clocks_of_the_lecture() -> None:
    """D has heard of B, I and, through H, of F and G; C and I are concurrent."""
    trace = read(LECTURE)
    assert trace.clock(named(trace, "D")) == (4, 3, 1)
    assert trace.clock(named(trace, "K")) == (5, 3, 3)
    assert trace.happened_before(named(trace, "I"), named(trace, "D"))
    assert not trace.happened_before(named(trace, "C"), named(trace, "I"))
    assert not trace.happened_before(named(trace, "I"), named(trace, "C"))


@given(executions())
def test_happened_before_is_the_transitive_closure(events: list[Event]) -> None:
    """For every pair of events the answer is the one by brute force."""
    trace, positions, pairs = trace_of(events), positions_of(events), before_pairs(events)
    for i, first in enumerate(positions):
        for j, second in enumerate(positions):
            assert trace.happened_before(first, second) == ((i, j) in pairs)


@given(executions())
def test_clocks_count_the_causes(events: list[Event]) -> None:
    """A vector clock counts, by process, what happened before an event, and the event itself."""
    trace, positions, pairs = trace_of(events), positions_of(events), before_pairs(events)
    clocks = trace.clocks()
    assert sum(map(len, clocks.values())) == len(events)
    for j, position in enumerate(positions):
        causes = Counter(events[i].process for i in range(len(events)) if (i, j) in pairs or i == j)
        expected = tuple(causes[process] for process in trace.processes)
        assert trace.clock(position) == clocks[position.process][position.index - 1] == expected


@given(executions(process_count_max=3, event_count_max=9))
def test_consistency_and_closure_agree_with_brute_force(events: list[Event]) -> None:
    """Cuts are consistent exactly if they are by force, and the closure is the smallest above."""
    trace = trace_of(events)
    consistent = consistent_by_force(trace, events)
    for cut in all_cuts(trace):
        assert trace.is_consistent(cut) == (cut in consistent)
        above = [c for c in consistent if all(x >= y for x, y in zip(c, cut, strict=True))]
        assert trace.closure(cut) == min(above, key=sum)


@given(executions(process_count_max=3, event_count_max=9))
def test_in_transit_is_sent_inside_and_not_accepted_inside(events: list[Event]) -> None:
    """The messages on all channels of a cut are those sent before it, less those accepted."""
    trace = trace_of(events)
    where = positions_of(events)
    for cut in all_cuts(trace):
        inside = [
            event
            for event, at in zip(events, where, strict=True)
            if at.index <= cut[trace.index_of[at.process]]
        ]
        accepted = {message for event in inside for message in event.accepted}
        crossing = {message for event in inside for message in event.sent} - accepted
        found = trace.in_transit(cut)
        assert {message for messages in found.values() for message in messages} == crossing
        assert all(m.channel == channel for channel, ms in found.items() for m in ms)
        assert all(list(messages) == sorted(messages) for messages in found.values())


def test_a_state_recorded_twice_gives_no_cut() -> None:
    """Which of the two would be the process's part of it?"""
    steps = [MarkerStep(name, SNAPSHOT, is_cut=True) for name in (*NAMES, NAMES[0])]
    with pytest.raises(UsageError, match=f"has no cut: {NAMES[0]} recorded its state twice"):
        Trace(NAMES, steps).cut_of(SNAPSHOT)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("näme 名", "näme 名"),
        ("a\nb\x1b[2J\u202e", "a\\nb\\x1b[2J\\u202e"),
        ("x" * 500, "x" * 500),
        pytest.param("x" * 3_000_000, "x" * 499 + "…", id="long"),
        ("\n" * 400, "\\n" * 249 + "\\…"),
    ],
)
def test_a_label_is_cleaned_for_people(text: str, shown: str) -> None:
    """One line that can be printed, not too long; cleaned again it stays as it is."""
    assert clean_label(text) == shown
    assert clean_label(shown) == shown


@given(executions())
def test_a_cut_is_present_exactly_when_its_events_and_no_others_have_happened(
    events: list[Event],
) -> None:
    """The number of events after which it is so, or None: compared with every moment of the run."""
    trace = trace_of(events)
    counts = [0] * len(trace.processes)
    moments = [tuple(counts)]
    for event in events:
        counts[trace.index_of[event.process]] += 1
        moments.append(tuple(counts))
    for cut in all_cuts(trace):
        assert trace.present_at(cut) == (moments.index(cut) if cut in moments else None)
