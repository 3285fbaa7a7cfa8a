"""Dijkstra's note, sentence by sentence: white and red actions, and the equivalent computation.

*EWD 864a*: E. W. Dijkstra, "The distributed snapshot of K. M. Chandy and L. Lamport", 1983. What is
in quotation marks is his, the rest is in our words. *C&L* is the paper of test_paper.py.
"""

from itertools import product
from random import Random

import pytest

from stillframe.errors import NotConsistent
from stillframe.model import Channel
from stillframe.protocol.equivalent import equivalent, interchanges
from stillframe.trace import Cut, Event, MessageId, Position, Trace
from tests.protocol import oracle
from tests.protocol.execution import Event as SnapshotEntry
from tests.protocol.execution import Execution, What, random_execution


def message(source: str, target: str, number: int = 1) -> MessageId:
    """Return the id of a message."""
    return MessageId(Channel(source, target), number)


def trace_of(system: Execution) -> tuple[Trace, dict[Position, SnapshotEntry]]:
    """Return the trace of what the application did, and the entry of the log of each event."""
    happened = oracle.actions(system.log)
    events = []
    for entry in happened:
        assert entry.channel is not None
        ids = (MessageId(entry.channel, entry.number),)
        is_sent = entry.what is What.SENT
        events.append(
            Event(entry.process, accepted=() if is_sent else ids, sent=ids if is_sent else ())
        )
    trace = Trace(system.states, events)
    return trace, dict(zip((p for p, _ in trace.positions()), happened, strict=True))


def cut_behind(system: Execution, white: oracle.Log) -> Cut:
    """Return the cut that has just the actions of `white` before it."""
    return tuple(sum(event.process == process for event in white) for process in system.states)


def inversion_count(order: oracle.Log, white: set[SnapshotEntry]) -> int:
    """Count, one by one, the pairs of a red action and a white one somewhere behind it."""
    return sum(
        first not in white and second in white
        for index, first in enumerate(order)
        for second in order[index:]
    )


def joint() -> Trace:
    """Return a trace in which actions accept and send on several buffers at once."""
    return Trace(
        "abc",
        [
            Event("a", sent=(message("a", "b"), message("a", "c"))),
            Event("b", accepted=(message("a", "b"),), sent=(message("b", "c"),)),
            Event(
                "c",
                accepted=(message("a", "c"), message("b", "c")),
                sent=(message("c", "a"), message("c", "b")),
            ),
            Event("a", accepted=(message("c", "a"),), sent=(message("a", "b", 2),)),
            Event("b", accepted=(message("a", "b", 2), message("c", "b"))),
        ],
    )


def test_an_action_accepts_and_sends_on_several_buffers_at_once() -> None:
    """EWD 864a: an atomic action "accepts at most one message per input buffer of that machine, and
    sends at most one message per output buffer of that machine". It has one colour, and so have all
    its messages: they are on the buffers together, or not at all."""
    trace = joint()
    on_buffers = {
        cut: sorted(str(m) for ids in trace.in_transit(cut).values() for m in ids)
        for cut in product(range(3), range(3), range(2))
        if trace.is_consistent(cut)
    }
    assert on_buffers == {
        (0, 0, 0): [],
        (1, 0, 0): ["a->b #1", "a->c #1"],
        (1, 1, 0): ["a->c #1", "b->c #1"],
        (1, 1, 1): ["c->a #1", "c->b #1"],
        (2, 1, 1): ["a->b #2", "c->b #1"],
        (2, 2, 1): [],
    }
    for cut in on_buffers:
        assert len(equivalent(trace, cut).white) == sum(cut)


def test_buffers_have_no_clairvoyance() -> None:
    """EWD 864a: "a message can only be accepted after it has been sent"."""
    send = Event("a", sent=(message("a", "b"),))
    accept = Event("b", accepted=(message("a", "b"),))
    assert Trace("ab", [send, accept]).message_count == 1
    with pytest.raises(NotConsistent, match=r"b#1 accepts message a->b #1 before it was sent"):
        Trace("ab", [accept, send])


def test_no_red_message_is_accepted_in_a_white_action() -> None:
    """EWD 864a: a message has the colour of the action that sends it, and a white action accepts
    no red one; on every channel the white messages come first."""
    crossing = 0
    for _, _, truth in oracle.random_snapshots(30):
        red_messages = {(e.channel, e.number) for e in truth.red if e.what is What.SENT}
        accepted_in_white, accepted_in_red = (
            {(e.channel, e.number) for e in colour if e.what is What.RECEIVED}
            for colour in (truth.white, truth.red)
        )
        assert accepted_in_white.isdisjoint(red_messages)
        crossing += bool(accepted_in_red - red_messages)
    assert crossing > 30


def test_only_where_no_white_action_accepts_a_red_message_the_colours_can_be_parted() -> None:
    """EWD 864a: that no white action accepts a red message is all that it takes. Whatever the cut:
    the white actions can all precede the red ones exactly if it is so."""
    parted = refused = 0
    for seed in range(25):
        system = random_execution(Random(seed), step_count=10)
        trace, entry_of = trace_of(system)
        for cut in product(*(range(count + 1) for count in trace.end)):
            is_white = {p: p.index <= cut[trace.index_of[p.process]] for p in entry_of}
            white = [entry for position, entry in entry_of.items() if is_white[position]]
            red = [entry for position, entry in entry_of.items() if not is_white[position]]
            try:
                end = oracle.replay(system.start, white + red)
            except AssertionError:
                refused += 1
                with pytest.raises(NotConsistent, match=r"is red: .* a white action"):
                    equivalent(trace, cut)
            else:
                parted += 1
                result = equivalent(trace, cut)
                assert end == (system.states, {})
                assert [entry_of[position] for position in result.white] == white
                assert [entry_of[position] for position in result.red] == red
    assert min(parted, refused) > 100


def test_neighbours_are_interchanged_until_no_inversion_is_left() -> None:
    """EWD 864a, and C&L 4, theorem 1: a red action and the white one right behind it are of
    different machines and can be interchanged: what results is a computation with the same end, and
    with one inversion less. With none left every white action precedes every red one."""
    interchanged = 0
    for system, _, truth in oracle.random_snapshots(25, step_count=20):
        trace, entry_of = trace_of(system)
        order, white = list(entry_of.values()), set(truth.white)
        left = inversion_count(order, white)
        for step in interchanges(trace, cut_behind(system, truth.white)):
            first, second = entry_of[step.red], entry_of[step.white]
            at = order.index(first)
            assert order[at + 1] is second
            assert first.process != second.process
            order[at : at + 2] = second, first
            left -= 1
            assert step.inversion_count == inversion_count(order, white) == left
            assert oracle.replay(system.start, order) == (system.states, {})
            interchanged += 1
        assert left == 0
        assert order == truth.white + truth.red
    assert interchanged > 100


def test_white_before_red_is_an_equivalent_computation() -> None:
    """EWD 864a, and C&L 4, theorem 1: with every white action before every red one it is still a
    computation, with the same end; in its middle is the snapshot state: each machine's state when
    it turned red, and in each buffer the white messages that red actions accept."""
    reordered = 0
    for system, snapshot, truth in oracle.random_snapshots(30):
        order = truth.white + truth.red
        reordered += oracle.actions(system.log) != order
        balances, channels = oracle.replay(system.start, truth.white)
        recorded = system.recorded_messages(snapshot.id)
        assert system.recorded_states(snapshot.id) == balances
        assert {c: messages for c, messages in recorded.items() if messages} == channels
        assert oracle.replay(system.start, order) == (system.states, {})
    assert reordered > 30


def test_there_need_not_be_a_moment_at_which_the_snapshot_state_occurred() -> None:
    """EWD 864a: the snapshot state is possible, "though there need not be a single moment at which
    it occurred". Sometimes no moment has just the white actions behind it, sometimes one has."""
    occurred = {True: 0, False: 0}
    for system, _, truth in oracle.random_snapshots(30):
        trace, _ = trace_of(system)
        cut, happened = cut_behind(system, truth.white), oracle.actions(system.log)
        moments = {cut_behind(system, happened[:count]) for count in range(len(happened) + 1)}
        assert (cut in moments) == (equivalent(trace, cut).inversion_count == 0)
        occurred[cut in moments] += 1
    assert min(occurred.values()) > 5
