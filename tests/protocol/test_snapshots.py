"""Whole snapshots of random executions, against a dumb oracle."""

from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from stillframe.model import ChannelState, Reason, Snapshot, SnapshotId
from stillframe.protocol.recorder import Phase
from tests.protocol import oracle
from tests.protocol.execution import (
    START_BALANCE,
    Execution,
    What,
    messages_in,
    random_execution,
)

chances = st.randoms(use_true_random=False)
STEP_COUNT = 60


def check_complete(bank: Execution, snapshot: SnapshotId) -> None:
    """Compare a complete snapshot with what the oracle finds in the log."""
    before = oracle.events_before(bank.log, bank.description, snapshot)
    state = bank.complete(snapshot).state
    state.check_books()
    for recorded in state.channels:
        channel, expected = recorded.channel, oracle.on_channel(before, recorded.channel)
        assert recorded.sent_count == oracle.count(before, What.SENT, channel)
        assert recorded.received_count == oracle.count(before, What.RECEIVED, channel)
        assert [number for number, _ in expected] == numbers(recorded)
        assert [message for _, message in expected] == messages_in(recorded.batches)
    balances, _ = oracle.replay(bank.start, before)
    assert bank.recorded_states(snapshot) == balances


def numbers(recorded: ChannelState) -> list[int]:
    """Return the numbers of the recorded messages."""
    return [n for batch in recorded.batches for n in range(batch.first, batch.last + 1)]


def complete_snapshots(bank: Execution) -> list[SnapshotId]:
    """Return the snapshots that were completed."""
    return [s for s, outcome in bank.outcomes.items() if isinstance(outcome, Snapshot)]


@settings(max_examples=50)
@given(chances)
def test_a_snapshot_holds_what_the_oracle_finds(chance: Random) -> None:
    """States, counts and messages on every channel are those that brute force finds in the log."""
    bank = random_execution(chance, step_count=STEP_COUNT)
    for snapshot in complete_snapshots(bank):
        check_complete(bank, snapshot)


@settings(max_examples=50)
@given(chances)
def test_exactly_the_snapshots_that_nobody_gave_up_are_completed(chance: Random) -> None:
    """Giving up at one process keeps one snapshot from completion, and no other."""
    bank = random_execution(chance, step_count=STEP_COUNT)
    expected = [s for s in bank.snapshots if oracle.is_complete(bank.log, bank.description, s)]
    assert sorted(complete_snapshots(bank)) == sorted(expected)
    for snapshot in expected:
        assert {r.phase(snapshot) for r in bank.recorders.values()} == {Phase.RECORDED}


@settings(max_examples=50)
@given(chances)
def test_exactly_one_marker_travels_on_each_channel(chance: Random) -> None:
    """One marker for each snapshot that the source recorded a cut of, none otherwise."""
    bank = random_execution(chance, step_count=STEP_COUNT)
    for snapshot in bank.snapshots:
        for channel in bank.description.channels:
            sent = [
                event
                for event in bank.log
                if (event.what, event.channel) == (What.MARKER_SENT, channel)
                and event.snapshot == snapshot
            ]
            cut = oracle.cut_index(bank.log, channel.source, snapshot)
            assert len(sent) == (0 if cut is None else 1)


@settings(max_examples=50)
@given(chances)
def test_no_money_is_lost_or_made(chance: Random) -> None:
    """Balances and messages on the way add up to what there was, in every snapshot."""
    bank = random_execution(chance, step_count=STEP_COUNT)
    for snapshot in complete_snapshots(bank):
        on_the_way = sum(map(sum, bank.recorded_messages(snapshot).values()))
        balances = sum(bank.recorded_states(snapshot).values())
        assert balances + on_the_way == START_BALANCE * len(bank.states)


@settings(max_examples=50)
@given(chances)
def test_every_cut_is_consistent(chance: Random) -> None:
    """Whatever happened before something in the cut, by brute force, is in the cut."""
    bank = random_execution(chance, step_count=STEP_COUNT)
    for snapshot in complete_snapshots(bank):
        before = oracle.events_before(bank.log, bank.description, snapshot)
        assert oracle.past(bank.log, before) == set(before)


def spans_overlap(bank: Execution, one: SnapshotId, other: SnapshotId) -> bool:
    """Return whether either began before the other was over."""
    spans = [
        [index for index, event in enumerate(bank.log) if event.snapshot == snapshot]
        for snapshot in (one, other)
    ]
    return max(spans[0][0], spans[1][0]) < min(spans[0][-1], spans[1][-1])


def test_the_random_executions_are_worth_looking_at() -> None:
    """Sometimes messages were caught, batches split, snapshots overlapped, shared or given up."""
    seen = dict.fromkeys(("caught", "split", "overlapped", "shared", "given up", "unaffected"), 0)
    for seed in range(60):
        bank = random_execution(Random(seed), step_count=STEP_COUNT)
        complete = complete_snapshots(bank)
        given_up = {e.snapshot for e in bank.log if e.what is What.GAVE_UP}
        for snapshot in complete:
            batches = [b for c in bank.complete(snapshot).state.channels for b in c.batches]
            cuts = [oracle.cut_index(bank.log, p, snapshot) for p in bank.states]
            begins = [cut for cut in cuts if cut and bank.log[cut].what is What.INITIATED]
            seen["caught"] += bool(batches)
            seen["split"] += any(a.last + 1 == b.first for a, b in pairwise(batches))
            seen["shared"] += len(begins) > 1
            seen["overlapped"] += any(
                spans_overlap(bank, snapshot, other) for other in complete if other != snapshot
            )
            seen["unaffected"] += snapshot in given_up
        seen["given up"] += len(bank.snapshots) > len(complete)
    assert all(times >= 3 for times in seen.values()), seen


def test_a_state_that_cannot_be_recorded_ends_the_snapshot_for_all() -> None:
    """The process takes no part, the rest go on, and the next snapshot is complete."""
    bank = Execution([("P", "Q"), ("Q", "P")], {"P": 1, "Q": 2})
    first, second = SnapshotId("P", 1), SnapshotId("P", 2)
    bank.unrecordable = {"Q"}
    bank.initiate(first)
    bank.drain()
    outcome = bank.outcomes[first]
    assert not isinstance(outcome, Snapshot)
    assert (outcome.reason, outcome.missing) == (Reason.NOT_RECORDED, ("P", "Q"))
    bank.unrecordable.clear()
    bank.initiate(second)
    bank.drain()
    assert bank.recorded_states(second) == {"P": 1, "Q": 2}
