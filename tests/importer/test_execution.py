"""A log becomes a trace with the same happened-before, whatever the order of its lines."""

import random
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe.errors import NotConsistent, UsageError
from stillframe.importer.clocks import ClockedEvent, Clocks
from stillframe.importer.execution import build, name_processes
from stillframe.model import check_process_id
from tests.importer.logs import HOSTS, chance_log, clocks_in, clocks_of, log_of

SEEDS = st.integers(0, 2**32)
LENGTHS = st.integers(1, 40)


@given(seed=SEEDS, event_count=LENGTHS, is_stated=st.booleans())
def test_the_trace_has_the_clocks_of_the_log(seed: int, event_count: int, is_stated: bool) -> None:
    """The clocks that the messages of the trace give are exactly those of the log."""
    events = chance_log(seed, event_count, is_stated=is_stated)
    assert clocks_of(build(events, where="log").trace) == clocks_in(events)


@given(seed=SEEDS, event_count=LENGTHS, is_stated=st.booleans())
def test_the_order_of_the_lines_does_not_matter(
    seed: int, event_count: int, is_stated: bool
) -> None:
    """A shuffled log gives the same trace, step by step."""
    events = chance_log(seed, event_count, is_stated=is_stated)
    shuffled = random.Random(seed).sample(events, len(events))
    one, other = (build(log, where="log").trace for log in (events, shuffled))
    assert one.steps == other.steps
    assert one.processes == other.processes


@given(
    seed=SEEDS,
    event_count=LENGTHS,
    is_stated=st.booleans(),
    place=st.integers(0, 39),
    host=st.sampled_from(HOSTS),
    value=st.integers(0, 6),
)
def test_a_changed_clock_is_accepted_only_if_it_still_makes_sense(
    seed: int, event_count: int, is_stated: bool, place: int, host: str, value: int
) -> None:
    """After any change of one entry, a log is refused, or its trace has exactly its clocks."""
    events = chance_log(seed, event_count, is_stated=is_stated)
    events[place % len(events)].clock[host] = value
    try:
        trace = build(events, where="log").trace
    except NotConsistent:
        return
    assert clocks_of(trace) == clocks_in(events)


@given(seed=SEEDS, event_count=LENGTHS, is_stated=st.booleans())
def test_events_that_a_log_leaves_out_are_filled_in(
    seed: int, event_count: int, is_stated: bool
) -> None:
    """Those that it has keep exactly their clocks, and each count of a host is there once."""
    events = chance_log(seed, event_count, is_stated=is_stated)
    kept = [event for event in events if random.Random(event.line * seed).random() < 0.6]
    kept = kept or events[:1]
    execution = build(kept, where="log", fill_gaps=True)
    clocks, trace = clocks_of(execution.trace), execution.trace
    for event in kept:
        index = event.clock[event.host] - 1
        assert clocks[event.host][index] == event.clock
        assert trace.lines[event.host][index].label == event.label
    assert trace.filled_count == trace.event_count - len(kept)
    if len(kept) == len(events):
        assert trace.steps == build(events, where="log").trace.steps
    else:
        assert trace.are_messages_implied or not trace.filled_count


def test_the_number_of_events_to_fill_in_is_bounded() -> None:
    """A count that is a time, for example, does not take all memory."""
    for rows in (
        [("a", {"a": 2_000_000})],
        [("a", {"a": 1, "b": 2_000_000})],
        [("a", {"a": 10}), ("a", {"a": 20, "b": 999_990})],
    ):
        with pytest.raises(UsageError, match=r"at most 1,000,000 are .* really a count of events"):
            build(log_of(*rows), where="log", fill_gaps=True)


def test_times_are_compared_for_events_of_the_log_alone() -> None:
    """Those that were filled in have none, however many there are."""
    clocks = Clocks("log", "split it")
    clocks.add(ClockedEvent(1, "a", {"a": 1, "b": 1}, "", time="1"))
    clocks.add(ClockedEvent(2, "a", {"a": 100, "b": 1}, "", time="2"))
    clocks.sort(fill_gaps=True)
    with mock.patch.object(clocks, "_entries", wraps=clocks._entries) as entries:
        assert [*clocks.time_warnings()] == []
    assert [call.args for call in entries.call_args_list] == [(0,), (1,)]


def test_a_contradiction_next_to_a_gap_is_still_one() -> None:
    """It names the event of the log before the gap."""
    rows = [("b", {"b": 1}), ("a", {"a": 1, "b": 1}), ("a", {"a": 3})]
    with pytest.raises(NotConsistent, match=r"0 for host 'b', but line 2, earlier on this host, "):
        build(log_of(*rows), where="log", fill_gaps=True)
    rows = [("b", {"b": 1}), ("a", {"a": 1, "b": 1}), ("c", {"c": 1, "a": 2})]
    with pytest.raises(NotConsistent, match=r"event 2 of host 'a' \(left out after line 2\)"):
        build(log_of(*rows), where="log", fill_gaps=True)


@given(seed=SEEDS, event_count=LENGTHS)
def test_implied_messages_are_the_fewest(seed: int, event_count: int) -> None:
    """There is one message for each pair of events of two hosts with none between them."""
    events = chance_log(seed, event_count, is_stated=False)
    before = {
        (early.line, late.line)
        for early in events
        for late in events
        if early is not late and early.clock[early.host] <= late.clock.get(early.host, 0)
    }
    covering = {
        (early, late)
        for early, late in before
        if not any((early, m) in before and (m, late) in before for m in range(1, event_count + 1))
    }
    host_of = {event.line: event.host for event in events}
    needed = {pair for pair in covering if host_of[pair[0]] != host_of[pair[1]]}
    trace = build(events, where="log").trace
    line_of = {position: int(event.label.split()[-1]) for position, event in trace.positions()}
    found = [
        (line_of[trace.sent_in(message)], line_of[position])
        for position, event in trace.positions()
        for message in event.accepted
    ]
    assert sorted(found) == sorted(needed)


def test_one_event_can_send_to_several_and_accept_from_several() -> None:
    """A broadcast is one event with a message for each, and a gathering accepts them all."""
    trace = build(
        log_of(
            ("a", {"a": 1}),
            ("b", {"b": 1, "a": 1}),
            ("c", {"c": 1, "a": 1}),
            ("a", {"a": 2, "b": 1, "c": 1}),
        ),
        where="log",
    ).trace
    first, last = trace.lines["a"]
    assert [str(message) for message in first.sent] == ["a->b #1", "a->c #1"]
    assert [str(message) for message in last.accepted] == ["b->a #1", "c->a #1"]


def test_an_empty_log_is_refused() -> None:
    """No event is no execution."""
    with pytest.raises(UsageError, match="log has no event"):
        build([], where="log")


def test_names_stay_readable() -> None:
    """What cannot stay is replaced, what begins with a digit gets a letter."""
    assert name_processes(["24464", "main[5,main]", "ok-1", "", "é", "_x"]) == {
        "": "P",
        "24464": "P24464",
        "_x": "P_x",
        "main[5,main]": "main-5-main",
        "ok-1": "ok-1",
        "é": "P-2",
    }


def test_a_host_whose_name_fits_keeps_it() -> None:
    """A stranger never takes the name of a host that can have its own."""
    assert name_processes(["a/b", "a-b", "a:b"]) == {"a-b": "a-b", "a/b": "a-b-2", "a:b": "a-b-3"}


def test_hosts_come_as_people_count() -> None:
    """Numbers in names are compared as numbers."""
    assert list(name_processes(["p10", "p9", "p010", "a", "p1"])) == [
        "a",
        "p1",
        "p9",
        "p010",
        "p10",
    ]


@given(hosts=st.lists(st.text(max_size=80), unique=True, max_size=30))
def test_every_host_gets_a_name_of_its_own(hosts: list[str]) -> None:
    """Whatever the hosts are called, each gets one valid name and no two the same."""
    names = name_processes(hosts)
    assert set(names) == set(hosts)
    assert len(set(names.values())) == len(hosts)
    assert [check_process_id(name) for name in names.values()] == list(names.values())
