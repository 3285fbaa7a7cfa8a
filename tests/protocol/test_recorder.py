"""The recorder against its rules, and against an oracle that knows the whole history."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillframe.errors import ProtocolViolation, UsageError
from stillframe.model import Batch, Channel, Marker, ProcessState, SnapshotId
from stillframe.protocol.recorder import (
    ENDED_COUNT_MAX,
    TRANSITIONS,
    NotRecorded,
    Phase,
    Recorded,
    Recorder,
    SendMarker,
    Stimulus,
)
from tests.protocol.world import World

S1 = SnapshotId("P", 1)
S2 = SnapshotId("Q", 2)


def recorder(incoming: str = "AB", outgoing: str = "CD") -> Recorder:
    """Return a recorder of P with channels from and to processes of one letter."""
    return Recorder(
        "P",
        incoming=dict.fromkeys(incoming, 0),
        outgoing=dict.fromkeys(outgoing, 0),
        capture=lambda: ProcessState("P", "Kind", b"\x80"),
    )


def message(number: int) -> Batch:
    """Return a batch of one message."""
    return Batch.of(number, [msgspec.msgpack.encode(number)])


def test_initiating_records_and_sends_one_marker_on_every_channel() -> None:
    """The markers come at once, one a channel; nothing is complete before the others' come."""
    p = recorder()
    assert p.initiate(S1) == [SendMarker("C", Marker(S1)), SendMarker("D", Marker(S1))]
    assert p.phase(S1) is Phase.RECORDING
    assert p.initiate(S1) == []


def test_the_first_markers_channel_is_empty_and_the_others_are_recorded() -> None:
    """What comes between the cut and a channel's marker belongs to that channel."""
    p = recorder()
    p.receive("A", message(1))
    assert len(p.marker("A", Marker(S1))) == 2
    p.receive("B", message(1))
    p.receive("A", message(2))
    p.receive("B", message(2))
    (recorded,) = p.marker("B", Marker(S1))
    assert isinstance(recorded, Recorded)
    from_a, from_b = recorded.fragment.incoming
    assert (from_a.received_count, from_a.batches) == (1, ())
    assert (from_b.received_count, from_b.batches) == (0, (message(1), message(2)))
    assert p.phase(S1) is Phase.RECORDED


def test_counts_of_what_was_sent_are_those_at_the_cut() -> None:
    """What is sent after the cut is not in it."""
    p = recorder(incoming="A")
    p.sent("C", 3)
    p.initiate(S1)
    p.sent("C", 5)
    (recorded,) = p.marker("A", Marker(S1))
    assert isinstance(recorded, Recorded)
    assert recorded.fragment.sent_counts == {"C": 3, "D": 0}


def test_a_process_that_nobody_sends_to_is_complete_at_once() -> None:
    """With no incoming channel there is nothing to wait for."""
    effects = recorder(incoming="").initiate(S1)
    assert isinstance(effects[-1], Recorded)


def test_overlapping_snapshots_record_channels_of_their_own() -> None:
    """A message may be in one snapshot and not in the other."""
    p = recorder()
    p.initiate(S1)
    p.receive("A", message(1))
    p.marker("A", Marker(S2))
    p.receive("B", message(1))
    p.marker("A", Marker(S1))
    (first,) = p.marker("B", Marker(S1))
    (second,) = p.marker("B", Marker(S2))
    assert isinstance(first, Recorded)
    assert isinstance(second, Recorded)
    assert [r.batches for r in first.fragment.incoming] == [(message(1),), (message(1),)]
    assert [r.batches for r in second.fragment.incoming] == [(), (message(1),)]


@pytest.mark.parametrize("finish", [False, True])
def test_a_second_marker_on_a_channel_is_a_violation(finish: bool) -> None:
    """Exactly one marker travels on each channel for each snapshot."""
    p = recorder()
    p.marker("A", Marker(S1))
    if finish:
        p.marker("B", Marker(S1))
    with pytest.raises(ProtocolViolation, match="A->P: a second marker of snapshot P-1"):
        p.marker("A", Marker(S1))


def test_a_gap_or_a_double_is_a_violation() -> None:
    """Messages must go on where they were."""
    p = recorder()
    p.receive("A", message(1))
    for number in (1, 3):
        with pytest.raises(ProtocolViolation, match=f"message 2 should come next, but {number}"):
            p.receive("A", message(number))


def test_an_abandoned_snapshot_takes_late_markers_and_records_nothing() -> None:
    """Also when it is given up before its first marker comes."""
    p = recorder()
    p.abandon(S1)
    assert p.marker("A", Marker(S1)) == []
    p.initiate(S2)
    p.abandon(S2)
    assert p.marker("A", Marker(S2)) == p.marker("B", Marker(S2)) == p.initiate(S2) == []
    assert p.phase(S1) is p.phase(S2) is Phase.ABANDONED


def test_abandoning_what_is_recorded_changes_nothing() -> None:
    """Too late."""
    p = recorder(incoming="A")
    p.marker("A", Marker(S1))
    p.abandon(S1)
    assert p.phase(S1) is Phase.RECORDED


def test_a_state_that_cannot_be_captured_is_said_and_sends_no_marker() -> None:
    """The process takes no part; everything else goes on."""

    def capture() -> ProcessState:
        raise UsageError("P.books cannot be recorded")

    p = Recorder("P", incoming={"A": 0}, outgoing={"C": 0}, capture=capture)
    assert p.marker("A", Marker(S1)) == [NotRecorded(S1, "P.books cannot be recorded")]
    assert p.phase(S1) is Phase.ABANDONED


def test_ended_snapshots_are_remembered_up_to_a_bound() -> None:
    """Memory does not grow with the number of snapshots."""
    p = recorder(incoming="", outgoing="")
    for number in range(ENDED_COUNT_MAX + 10):
        p.initiate(SnapshotId("P", number))
    assert p.phase(SnapshotId("P", 9)) is Phase.ABANDONED
    assert p.phase(SnapshotId("P", 10)) is Phase.RECORDED


def test_the_table_has_every_phase_and_only_the_marker_can_break_it() -> None:
    """What is missing from the table is a marker too many, or a last one where none is awaited."""
    missing = {(p, s) for p in Phase for s in Stimulus if s not in TRANSITIONS[p]}
    assert {stimulus for _, stimulus in missing} == {Stimulus.MARKER, Stimulus.LAST_MARKER}
    assert {p for p, s in missing if s is Stimulus.MARKER} == {Phase.RECORDED}


def random_graph(chance: random.Random) -> tuple[list[str], list[tuple[str, str]]]:
    """Return a graph, often strongly connected, sometimes not."""
    names = [f"P{number}" for number in range(chance.randrange(2, 6))]
    ring = list(zip(names, names[1:] + names[:1], strict=True))
    if len(names) > 2 and chance.random() < 0.3:
        ring = ring[:-1]
    more = [(a, b) for a in names for b in names if a != b and chance.random() < 0.3]
    return names, sorted(set(ring + more))


def execute(seed: int) -> tuple[World, set[SnapshotId]]:
    """Run a random world with random snapshots; return it and what was given up."""
    chance = random.Random(seed)
    world = World(*random_graph(chance))
    abandoned: set[SnapshotId] = set()
    begun: list[SnapshotId] = []
    channels = list(world.queues)
    for _ in range(chance.randrange(20, 120)):
        full = [channel for channel, queue in world.queues.items() if queue]
        match chance.random():
            case roll if roll < 0.45:
                channel = chance.choice(channels)
                world.pay(channel.source, channel.target, chance.randrange(10))
            case roll if roll < 0.92 and full:
                world.deliver(chance.choice(full))
            case roll if roll < 0.98:
                initiator = chance.choice(sorted(world.money))
                begun.append(SnapshotId(initiator, len(begun) + 1))
                world.initiate(initiator, begun[-1])
            case _ if begun:
                given_up = chance.choice(begun)
                if given_up not in world.finished:
                    abandoned.add(given_up)
                    world.abandon(given_up)
    world.drain(chance)
    assert set(world.finished) | abandoned == set(begun)
    return world, abandoned


@settings(max_examples=400, deadline=None)
@given(st.integers(min_value=0))
def test_every_snapshot_is_what_the_oracle_says(seed: int) -> None:
    """Any graph, any interleaving, overlapping and abandoned snapshots: states, messages, books."""
    world, _ = execute(seed)
    for snapshot in world.finished.values():
        world.check(snapshot)


def test_over_the_seeds_the_interesting_things_happened() -> None:
    """Some channel held a message, some snapshots overlapped, some were abandoned, some graph had
    to have several initiators."""
    caught = overlapped = given_up = several = 0
    for seed in range(150):
        world, abandoned = execute(seed)
        for snapshot in world.finished.values():
            world.check(snapshot)
            caught += snapshot.state.message_count
        given_up += len(abandoned)
        several += any(len(world.description.initiators(p)) > 1 for p in world.money)
        overlapped += world.overlap_count
    assert caught > 100
    assert min(given_up, several, overlapped) > 10


def test_channels_without_order_break_the_picture() -> None:
    """Chandy-Lamport needs channels that keep order: a message that overtakes a marker is found by
    the books."""
    world = World("PQ", [("P", "Q"), ("Q", "P")])
    world.initiate("P", S1)
    world.pay("P", "Q", 7)
    queue = world.queues[Channel("P", "Q")]
    queue.rotate(1)
    world.deliver(Channel("P", "Q"))
    world.deliver(Channel("P", "Q"))
    with pytest.raises(AssertionError, match="1 messages at its cut, the source had sent 0"):
        world.deliver(Channel("Q", "P"))
