"""Whole snapshots of random executions: what must hold whatever the oracle says of them."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from stillframe.model import Reason, Snapshot, SnapshotId
from tests.nightly import examples
from tests.protocol import oracle
from tests.protocol.execution import START_BALANCE, Execution, random_execution

chances = st.randoms(use_true_random=False)


def complete_snapshots(bank: Execution) -> list[SnapshotId]:
    """Return the snapshots that were completed."""
    return [s for s, outcome in bank.outcomes.items() if isinstance(outcome, Snapshot)]


@settings(max_examples=examples(50))
@given(chances)
def test_no_money_is_lost_or_made(chance: Random) -> None:
    """Balances and messages on the way add up to what there was, in every snapshot."""
    bank = random_execution(chance)
    for snapshot in complete_snapshots(bank):
        on_the_way = sum(map(sum, bank.recorded_messages(snapshot).values()))
        balances = sum(bank.recorded_states(snapshot).values())
        assert balances + on_the_way == START_BALANCE * len(bank.states)


@settings(max_examples=examples(50))
@given(chances)
def test_every_cut_is_consistent(chance: Random) -> None:
    """Whatever happened before something in the cut, by brute force, is in the cut."""
    bank = random_execution(chance)
    parts = oracle.parts(bank)
    for snapshot in complete_snapshots(bank):
        before = oracle.Truth(bank, parts[snapshot]).white
        assert oracle.past(bank.log, before) == set(before)


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
