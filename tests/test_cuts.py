"""Consistent cuts against brute force over all cuts and all observations, and by known figures."""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe import cuts
from stillframe.cuts import (
    CutView,
    consistent_cuts,
    count_at_least,
    count_consistent_cuts,
    cuts_where,
    definitely,
    explain,
    interior,
    observation_without,
    possibly,
    shown_count,
)
from stillframe.errors import UsageError
from stillframe.importer.jsonlines import read_json_lines
from stillframe.model import Channel
from stillframe.trace import Cut, Event, MessageId, Trace
from tests.executions import LECTURE, all_cuts, consistent_by_force, executions, read, trace_of

REAL_RUN = Path(__file__).parents[2] / "shared" / "traces" / "EWD998ChanTrace.ndjson"
TO_P2 = Channel("P1", "P2")


def independent(process_count: int, event_count: int) -> Trace:
    """Return processes that never talk, with so many events each."""
    names = [f"P{index}" for index in range(process_count)]
    return Trace(names, [Event(name) for name in names for _ in range(event_count)])


def chain(length: int) -> Trace:
    """Return two processes that hand one message to and fro: a total order of their events."""
    ping = [MessageId(TO_P2, number) for number in range(1, length + 1)]
    pong = [MessageId(Channel("P2", "P1"), number) for number in range(1, length + 1)]
    events = []
    for number in range(length):
        events.append(
            Event("P1", accepted=tuple(pong[max(0, number - 1) : number]), sent=(ping[number],))
        )
        events.append(Event("P2", accepted=(ping[number],), sent=(pong[number],)))
    return Trace(("P1", "P2"), events)


def stream(length: int) -> Trace:
    """Return a process that sends in each event and one that accepts in each, as it could be
    logged: all that was sent first."""
    messages = [MessageId(TO_P2, number) for number in range(1, length + 1)]
    sends = [Event("P1", sent=(message,)) for message in messages]
    return Trace(("P1", "P2"), sends + [Event("P2", accepted=(m,)) for m in messages])


def is_within(cut: Cut, bound: Cut) -> bool:
    """Return whether `cut` has no event outside `bound`."""
    return all(count <= most for count, most in zip(cut, bound, strict=True))


def observations(trace: Trace, cuts: set[Cut], path: tuple[Cut, ...]) -> Iterator[tuple[Cut, ...]]:
    """Yield every way from the last cut of `path` to the end, one event at a time."""
    if path[-1] == trace.end:
        yield path
    for index in range(len(trace.processes)):
        after = tuple(count + (index == i) for i, count in enumerate(path[-1]))
        if after in cuts:
            yield from observations(trace, cuts, (*path, after))


@given(executions())
def test_every_consistent_cut_comes_once_in_order(events: list[Event]) -> None:
    """They are those found by brute force over all cuts, ordered by their counts."""
    trace = trace_of(events)
    assert list(consistent_cuts(trace)) == consistent_by_force(trace, events)


@given(executions())
def test_the_count_agrees_with_brute_force(events: list[Event]) -> None:
    """Counting does not go through the cuts, but finds as many."""
    trace = trace_of(events)
    assert count_consistent_cuts(trace) == len(consistent_by_force(trace, events))


@given(executions(), st.integers(0, 60))
def test_the_count_stops_above_its_maximum(events: list[Event], count_max: int) -> None:
    """One more than the maximum means more than the maximum; up to there it is exact."""
    trace = trace_of(events)
    exact = len(consistent_by_force(trace, events))
    assert count_consistent_cuts(trace, count_max=count_max) == min(exact, count_max + 1)


@pytest.mark.parametrize(
    ("trace", "count"),
    [
        (Trace((), []), 1),
        (Trace(("P1", "P2"), []), 1),
        (independent(1, 7), 8),
        (independent(3, 4), 5**3),
        (independent(6, 100), 101**6),
        (chain(10), 21),
        (stream(30), 31 * 32 // 2),
    ],
    ids="nobody nothing line grid independent chain stream".split(),
)
def test_known_counts(trace: Trace, count: int) -> None:
    """Independent processes, n of k events, have (k + 1)^n cuts; a chain has one more than events;
    with a message from each event to the partner's of the same number, half a square is left."""
    assert count_consistent_cuts(trace) == count
    found = sum(1 for _ in islice(consistent_cuts(trace), 1000))
    assert found == min(count, 1000)


def test_long_lines_are_counted_in_time_that_grows_with_them() -> None:
    """Two processes of 10,000 events each: 50 million cuts, and none is looked at."""
    assert count_consistent_cuts(stream(10_000)) == 10_001 * 10_002 // 2


def test_going_through_cuts_begins_at_once() -> None:
    """Of 10^20 cuts the first are there without waiting for the others."""
    first = list(islice(consistent_cuts(independent(10, 100)), 3))
    assert [sum(cut) for cut in first] == [0, 1, 2]


def test_a_maximum_bounds_the_work() -> None:
    """30 processes that never talk: 3^30 cuts are too many, which is found out quickly."""
    assert count_consistent_cuts(independent(30, 2), count_max=1000) == 1001


def test_large_counts_are_shown_by_their_power() -> None:
    """Up to 40 digits exactly, beyond, four digits: a number of any size fits into a line."""
    assert shown_count(10**40 - 1) == f"{10**40 - 1:,}"
    assert shown_count(2**4096) == "1.044e+1233"
    assert shown_count(10**40) == "1.000e+40"


def test_the_lecture_example() -> None:
    """Of its 6 x 4 x 4 cuts those are consistent that brute force finds."""
    trace = read(LECTURE)
    forced = consistent_by_force(trace, [event for _, event in trace.positions()])
    assert list(consistent_cuts(trace)) == forced
    assert count_consistent_cuts(trace) == len(forced) < 6 * 4 * 4
    assert {(0, 0, 0), (2, 1, 0), (5, 3, 3)} <= set(forced)


def test_a_real_run_of_termination_detection() -> None:
    """Five processes with 654 events have 27,650 consistent cuts: known from elsewhere."""
    if not REAL_RUN.exists():
        pytest.skip("the log is not here: it is no part of this project")
    trace = read_json_lines(REAL_RUN).executions[0].trace
    assert count_consistent_cuts(trace) == 27_650
    assert sum(1 for _ in consistent_cuts(trace)) == 27_650


@given(executions(process_count_max=3, event_count_max=9))
def test_the_interior_is_the_largest_consistent_cut_inside(events: list[Event]) -> None:
    """Of all consistent cuts within a cut it has the most events."""
    trace = trace_of(events)
    consistent = consistent_by_force(trace, events)
    for cut in all_cuts(trace):
        assert interior(trace, cut) == max(
            (inner for inner in consistent if is_within(inner, cut)), key=sum
        )


def test_explaining_names_the_orphan_and_the_nearest_cuts() -> None:
    """F is inside without B: both are named, and the cuts that put it right."""
    assert explain(read(LECTURE), (1, 1, 0)) == (
        "the cut P1=1, P2=1, P3=0 is not consistent: message P1->P2 #1 is accepted inside, in "
        "event P2#1 (F), but sent outside, in event P1#2 (B); the smallest consistent cut with "
        "all of its events is P1=2, P2=1, P3=0, the largest inside it is P1=1, P2=0, P3=0"
    )


def test_explaining_does_without_labels_and_without_an_orphan() -> None:
    """Events that nobody named go by position; a consistent cut is said to be one."""
    trace = stream(2)
    assert "in event P2#1, but sent outside, in event P1#1;" in explain(trace, (0, 1))
    assert explain(trace, (1, 1)) == "the cut P1=1, P2=1 is consistent"


def test_what_is_no_cut_is_refused() -> None:
    """Whoever is asked about a cut says which there could be."""
    trace = stream(2)
    for ask in (interior, explain, CutView):
        with pytest.raises(
            UsageError, match="no cut has 3 events of P1, which has 2: give a number"
        ):
            ask(trace, (3, 0))
        with pytest.raises(UsageError, match=r"each of the 2 processes .* has 1 numbers"):
            ask(trace, (1,))


@given(executions(process_count_max=3, event_count_max=9))
def test_a_view_shows_events_and_messages_of_its_cut(events: list[Event]) -> None:
    """At every cut, consistent or not, it says what looking through the whole trace would; also
    when messages are lost or accepted out of order."""
    trace = trace_of(events)
    start = CutView(trace, (0, 0, 0, 0))
    for cut in all_cuts(trace):
        view = start.at(cut)
        assert (view.cut, view.trace) == (cut, trace)
        for process, count in zip(trace.processes, cut, strict=True):
            inside = trace.lines[process][:count]
            assert view.count(process) == count
            assert view.events(process) == inside
            assert view.last(process) is (inside[-1] if inside else None)
        crossing = trace.in_transit(cut)
        assert all(view.in_transit(channel) == crossing[channel] for channel in crossing)
        assert view.in_transit() == sum(crossing.values(), ())
        assert CutView(trace, cut).in_transit() == view.in_transit()


def test_a_view_knows_lost_messages_and_keeps_the_order_of_sending() -> None:
    """The second of four is lost, the fourth overtakes the third: both stand as they were sent."""
    sent = [MessageId(TO_P2, number) for number in (1, 2, 3, 4)]
    accepted = [Event("P2", accepted=(sent[index],)) for index in (0, 3, 2)]
    trace = Trace(("P1", "P2"), [*(Event("P1", sent=(message,)) for message in sent), *accepted])
    view = CutView(trace, (4, 2))
    assert view.in_transit(TO_P2) == (sent[1], sent[2])
    assert view.at((4, 3)).in_transit(TO_P2) == (sent[1],)
    assert view.at((4, 0)).in_transit(TO_P2) == tuple(sent)


def test_a_view_names_what_it_does_not_have() -> None:
    """An unknown process or channel is an error that lists those there are."""
    view = CutView(stream(1), (1, 1))
    for ask in (view.count, view.last, view.events):
        with pytest.raises(UsageError, match=r"no process 'P9' in this trace: its .* P1, P2"):
            ask("P9")
    with pytest.raises(UsageError, match=r"no channel P2->P1 in this trace: its .* P1->P2"):
        view.in_transit(Channel("P2", "P1"))


def test_a_channel_to_a_stranger_carries_nothing() -> None:
    """A declared channel whose ends are no processes of the trace is empty at every cut."""
    stranger = Channel("P1", "P9")
    view = CutView(Trace(("P1",), [Event("P1")], [stranger]), (1,))
    assert view.in_transit(stranger) == view.in_transit() == ()


@given(executions(event_count_max=8), st.data())
def test_predicates_agree_with_brute_force_over_all_observations(
    events: list[Event], data: st.DataObject
) -> None:
    """``possibly``: in some cut of some observation; ``definitely``: in some cut of each."""
    trace = trace_of(events)
    cuts = consistent_by_force(trace, events)
    holds_in = set(data.draw(st.lists(st.sampled_from(cuts), max_size=len(cuts))))
    paths = list(observations(trace, set(cuts), ((0, 0, 0, 0),)))
    without = [path for path in paths if not holds_in.intersection(path)]

    assert list(cuts_where(trace, lambda view: view.cut in holds_in)) == sorted(holds_in)
    first = possibly(trace, lambda view: view.cut in holds_in)
    assert first in holds_in if holds_in else first is None
    assert first is None or sum(first) == min(map(sum, holds_in))
    assert definitely(trace, lambda view: view.cut in holds_in) == (not without)
    witness = observation_without(trace, lambda view: view.cut in holds_in)
    assert tuple(witness) in without if witness else not without


def test_what_only_some_observers_see_is_not_definite() -> None:
    """Both between two events of their own is possible, but one may run ahead of the other."""
    trace = independent(2, 2)

    def both_are_halfway(view: CutView) -> bool:
        return view.cut == (1, 1)

    assert possibly(trace, both_are_halfway) == (1, 1)
    assert not definitely(trace, both_are_halfway)
    assert definitely(trace, lambda view: sum(view.cut) == 2)
    witness = observation_without(trace, both_are_halfway)
    assert witness is not None
    assert [sum(cut) for cut in witness] == [0, 1, 2, 3, 4]


def is_on_its_way(channel: Channel, view: CutView) -> bool:
    """Return whether a message crosses the cut on `channel`."""
    return bool(view.in_transit(channel))


def test_a_message_on_its_way_is_seen_by_every_observer() -> None:
    """Whoever sees the sending before the accepting sees the message between them."""
    trace = read(LECTURE)
    for channel in trace.channels:
        assert definitely(trace, partial(is_on_its_way, channel))


def test_a_search_stops_at_its_maximum() -> None:
    """After so many cuts without an answer it is an error; with as many as there are, none."""
    trace = independent(2, 3)

    def is_last(view: CutView) -> bool:
        return view.cut == trace.end

    for ask in (possibly, definitely, observation_without):
        with pytest.raises(UsageError, match="no answer after 15 consistent cuts: raise count"):
            ask(trace, is_last, count_max=15)
        assert ask(trace, is_last, count_max=16) == ask(trace, is_last)


def test_processes_that_never_talk_are_counted_apart() -> None:
    """4,096 of one event each have 2^4096 cuts: a product, found without a table."""
    assert count_consistent_cuts(independent(4096, 1)) == 2**4096
    assert count_consistent_cuts(independent(4096, 1), count_max=10**8) == 10**8 + 1


def test_a_step_counts_for_more_with_more_than_a_dozen_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it takes more time and memory."""
    monkeypatch.setattr(cuts, "_sweep", lambda *_: iter([(9, 100)]))
    for count, least in ((3, 2_500), (12, 2_500), (24, 5_000)):
        names = [f"P{index}" for index in range(count)]
        sent = tuple(MessageId(Channel("P0", name), 1) for name in names[1:])
        steps = [Event("P0", sent=sent), *(Event(m.channel.target, accepted=(m,)) for m in sent)]
        for step_max in (least - 1, least):
            found = count_at_least(Trace(names, steps), step_max=step_max)
            assert found == (9, step_max == least)


def test_a_table_that_grows_too_large_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """With how many cuts there are at least; events and processes are bounded as well."""
    to_all = [MessageId(Channel("P0", f"P{index}"), 1) for index in range(1, 25)]
    names = [f"P{index}" for index in range(25)]
    steps = [Event("P0", sent=tuple(to_all))]
    steps += [Event(m.channel.target, accepted=(m,)) for m in to_all]
    wide = Trace(names, steps)
    for step_max in (1_000, 100_000):
        with pytest.raises(
            UsageError, match=r"25 processes .* at least .* raise step_max"
        ) as error:
            count_consistent_cuts(wide, step_max=step_max)
        assert f"{step_max:,} steps do not count them all" in str(error.value)
    assert count_consistent_cuts(wide, count_max=1000, step_max=100_000) == 1001
    monkeypatch.setattr(cuts, "BOUNDS_MAX", 100)
    for ask in (count_consistent_cuts, lambda trace: next(consistent_cuts(trace))):
        with pytest.raises(UsageError, match="25 events of 25 processes have 625 bounds"):
            ask(wide)
