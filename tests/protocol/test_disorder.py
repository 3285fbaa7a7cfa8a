"""Whole snapshots over channels that keep no order, against an oracle that knows the history."""

from functools import partial
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillframe.model import Abandoned, Batch, Channel, Reason, SnapshotId
from stillframe.protocol.lai_yang import CountingMarker, LaiYangRecorder
from stillframe.protocol.recorder import Phase, Recorded
from stillframe.restore import start_states
from tests.nightly import examples
from tests.protocol.execution import START_BALANCE, Execution, What, messages_in, state_of
from tests.protocol.unordered import Unordered, cut_indexes, random_unordered, truth

chances = st.randoms(use_true_random=False)
STEP_COUNT = 60
S = SnapshotId("P", 1)


@settings(max_examples=examples(30))
@given(chances)
def test_a_snapshot_holds_what_the_oracle_finds(chance: Random) -> None:
    """Balances at the cuts; on every channel what was sent before one and not received before the
    other, in the order of sending; and books that balance."""
    world = random_unordered(chance, step_count=STEP_COUNT)
    for snapshot, complete in world.complete.items():
        expected = truth(world, snapshot)
        complete.state.check_books()
        balances = {
            state.process: msgspec.msgpack.decode(state.encoded)
            for state in complete.state.processes
        }
        assert balances == expected.balances
        for state in complete.state.channels:
            assert messages_in(state.batches) == expected.in_transit(state.channel)
            assert state.sent_count == len(expected.sent[state.channel])
            assert state.received_count == len(expected.received[state.channel])


@settings(max_examples=examples(30))
@given(chances)
def test_nothing_is_received_before_a_cut_that_was_sent_after_one(chance: Random) -> None:
    """Every cut is consistent, whatever overtook what."""
    world = random_unordered(chance, step_count=STEP_COUNT)
    for snapshot in world.complete:
        expected = truth(world, snapshot)
        for channel in world.bags:
            assert expected.received[channel] <= expected.sent[channel].keys()


@settings(max_examples=examples(30))
@given(chances)
def test_no_money_is_lost_or_made(chance: Random) -> None:
    """Balances and messages on the way add up to what there was, in every snapshot."""
    world = random_unordered(chance, step_count=STEP_COUNT)
    for complete in world.complete.values():
        balances = sum(msgspec.msgpack.decode(s.encoded) for s in complete.state.processes)
        on_the_way = sum(sum(messages_in(c.batches)) for c in complete.state.channels)
        assert balances + on_the_way == START_BALANCE * len(world.balances)


@settings(max_examples=examples(30))
@given(chances)
def test_exactly_the_snapshots_that_were_not_given_up_are_completed(chance: Random) -> None:
    """What one process does not know yet, of an end elsewhere, ends no snapshot that goes on; and
    when all is over nothing is coloured and nothing remembered of any disorder."""
    world = random_unordered(chance, step_count=STEP_COUNT)
    for snapshot in world.begun:
        outcome = world.outcomes[snapshot]
        if isinstance(outcome, Abandoned):
            assert outcome.reason is Reason.DEADLINE
        else:
            assert {r.phase(snapshot) for r in world.recorders.values()} == {Phase.RECORDED}
    for recorder in world.recorders.values():
        assert recorder.colour == ()
        assert not any(numbers._above for numbers in recorder._received.values())


@settings(max_examples=examples(30))
@given(chances)
def test_exactly_one_marker_travels_on_each_channel(chance: Random) -> None:
    """One marker for each snapshot that was completed, on each channel."""
    world = random_unordered(chance, step_count=STEP_COUNT)
    for snapshot in world.complete:
        for channel in world.bags:
            sent = [
                event
                for event in world.log
                if (event.what, event.channel, event.snapshot)
                == (What.MARKER_SENT, channel, snapshot)
            ]
            assert len(sent) == 1


@settings(max_examples=examples(30))
@given(chances)
def test_a_restore_goes_on_where_the_snapshot_was_taken(chance: Random) -> None:
    """What was caught is delivered in order; then a snapshot has nothing on any channel, and the
    next message has the number after all that was sent."""
    world = random_unordered(chance, step_count=STEP_COUNT)
    for complete in world.complete.values():
        starts = start_states(complete, world.description)
        for process, start in starts.items():
            recorder = LaiYangRecorder(
                process,
                incoming={record.source: record.received_count for record in start.incoming},
                outgoing=start.sent_counts,
                capture=partial(state_of, process, 0),
            )
            for record in start.incoming:
                for batch in record.batches:
                    assert recorder.receive(record.source, batch, ()) == []
            effects = recorder.initiate(S)
            for source in world.description.incoming(process):
                sent_count = starts[source].sent_counts[process]
                effects += recorder.marker(source, CountingMarker(S, sent_count))
                recorder.receive(source, Batch.of(sent_count + 1, [b"\x01"]), (S,))
            (part,) = [effect.fragment for effect in effects if isinstance(effect, Recorded)]
            assert not any(record.batches for record in part.incoming)


def test_the_random_executions_are_worth_looking_at() -> None:
    """Sometimes messages were caught, not those with the highest numbers, or seen by their colour
    first; snapshots overlapped, had to have several initiators, or were given up and late."""
    seen = dict.fromkeys(
        ("caught", "gap", "by colour", "overlapped", "several", "given up", "late"), 0
    )
    for seed in range(100):
        world = random_unordered(Random(seed), step_count=STEP_COUNT)
        spans = []
        for snapshot, complete in world.complete.items():
            expected = truth(world, snapshot)
            cuts = cut_indexes(world.log, snapshot)
            spans.append((min(cuts.values()), max(cuts.values())))
            seen["caught"] += complete.state.message_count
            seen["gap"] += any(
                received and max(received) > len(received)
                for received in expected.received.values()
            )
            seen["by colour"] += any(
                world.log[index].what is What.RECEIVED for index in cuts.values()
            )
            seen["several"] += len(world.description.initiators(snapshot.initiator)) > 1
        seen["overlapped"] += any(
            one is not other and max(one[0], other[0]) < min(one[1], other[1])
            for one in spans
            for other in spans
        )
        seen["given up"] += len(world.begun) > len(world.complete)
        seen["late"] += world.late_count
    assert all(times >= 3 for times in seen.values()), seen


def overtaken(system: Execution | Unordered, before: tuple[int, ...], overtaker: int) -> None:
    """Let P send the amounts of `before`, initiate and send 7 more; on P->Q the item number
    `overtaker` comes first, then the others in order."""
    for amount in before:
        system.send("P", "Q", amount)
    if isinstance(system, Execution):
        system.initiate(S)
        system.send("P", "Q", 7)
        queue = system.queues[Channel("P", "Q")]
        item = queue[overtaker]
        del queue[overtaker]
        queue.appendleft(item)
        system.drain()
    else:
        system.begin(S)
        system.tell()
        system.send("P", "Q", 7)
        system.deliver("P", "Q", overtaker)
        system.drain(Random(0))


@pytest.mark.parametrize(
    ("before", "overtaker", "caught", "detail"),
    [
        ((), 1, [], "1 messages at its cut, the source had sent 0"),
        ((5,), 1, [5], "1 sent - 0 received = 1, but 0 messages were recorded"),
    ],
    ids=["a message overtakes the marker", "the marker overtakes a message"],
)
def test_where_chandy_and_lamports_rules_fail(
    before: tuple[int, ...], overtaker: int, caught: list[int], detail: str
) -> None:
    """The same schedule: with markers alone the picture contradicts itself, with colours it is
    whole and right."""
    with_markers = Execution(
        [("P", "Q"), ("Q", "P")],
        {"P": START_BALANCE, "Q": START_BALANCE},
        lambda balance, amount: balance + amount,
    )
    overtaken(with_markers, before, overtaker)
    outcome = with_markers.outcomes[S]
    assert isinstance(outcome, Abandoned)
    assert outcome.reason is Reason.NOT_CONSISTENT
    assert detail in outcome.detail

    with_colours = Unordered(["P", "Q"], [("P", "Q"), ("Q", "P")])
    overtaken(with_colours, before, overtaker)
    state = with_colours.complete[S].state
    on_the_way = {str(channel.channel): messages_in(channel.batches) for channel in state.channels}
    assert on_the_way == {"P->Q": caught, "Q->P": []}
    assert [msgspec.msgpack.decode(process.encoded) for process in state.processes] == [
        START_BALANCE - sum(before),
        START_BALANCE,
    ]
