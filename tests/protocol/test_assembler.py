"""Parts in; a whole snapshot or ``Abandoned`` out."""

import math

import pytest
from msgspec import structs

from stillframe.errors import ProtocolViolation
from stillframe.model import (
    Abandoned,
    Fragment,
    IncomingRecord,
    ProcessState,
    Reason,
    Snapshot,
    SnapshotId,
)
from stillframe.protocol.assembler import Assembler
from tests.protocol.execution import describe

S1 = SnapshotId("P", 1)
S2 = SnapshotId("Q", 2)
PAIR = describe("PQ", [("P", "Q"), ("Q", "P")])


def part(
    process: str,
    snapshot: SnapshotId = S1,
    *,
    sent: int = 0,
    received: int = 0,
    kind: str = "Account",
) -> Fragment:
    """Return the part of one of the pair."""
    other = "Q" if process == "P" else "P"
    return Fragment(
        snapshot,
        ProcessState(process, kind, b"\x80"),
        {other: sent},
        (IncomingRecord(other, received, ()),),
    )


def assembler(*begun: SnapshotId) -> Assembler:
    """Return an assembler in which snapshots have begun at 100 s, with 10 s to go."""
    made = Assembler(PAIR, epoch=4)
    for snapshot in begun:
        made.begin(snapshot, 100.0, timeout_s=10.0)
    return made


def test_the_last_part_makes_it_whole() -> None:
    """With the epoch, the times, and every process and channel."""
    made = assembler(S1)
    assert made.add(part("P"), 101.0) is None
    assert made.missing(S1) == ("Q",)
    snapshot = made.add(part("Q"), 102.0)
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.epoch, snapshot.initiated_at, snapshot.completed_at) == (4, 100.0, 102.0)
    assert [state.process for state in snapshot.state.processes] == ["P", "Q"]
    assert [str(state.channel) for state in snapshot.state.channels] == ["P->Q", "Q->P"]
    assert made.pending == ()


def test_at_the_deadline_it_is_abandoned_and_names_who_is_missing() -> None:
    """The others go on; what comes late is dropped."""
    made = assembler(S1)
    made.begin(S2, 105.0, timeout_s=10.0)
    made.add(part("P"), 101.0)
    assert made.next_deadline() == 110.0
    assert made.expire(109.9) == []
    assert made.expire(110.0) == [Abandoned(S1, Reason.DEADLINE, ("Q",))]
    assert made.add(part("Q"), 111.0) is None
    assert made.pending == (S2,)


def test_who_is_missing_is_named_in_natural_order() -> None:
    """P2 comes before P10."""
    made = Assembler(describe(["P10", "P2"], []), epoch=1)
    made.begin(S1, 100.0, timeout_s=10.0)
    assert made.missing(S1) == ("P2", "P10")


def test_books_that_do_not_balance_are_never_published() -> None:
    """More received than sent: an effect without its cause."""
    made = assembler(S1)
    made.add(part("P", sent=1), 101.0)
    ended = made.add(part("Q", received=2), 101.0)
    assert isinstance(ended, Abandoned)
    assert ended.reason is Reason.NOT_CONSISTENT
    assert "P->Q: the target had received 2" in ended.detail


def test_giving_up_says_why_and_only_once() -> None:
    """What is not pending cannot be given up."""
    made = assembler(S1)
    assert made.abandon(S1, Reason.PROCESS_DIED, "P1") == Abandoned(
        S1, Reason.PROCESS_DIED, ("P", "Q"), "P1"
    )
    assert made.abandon(S1, Reason.PROCESS_DIED) is None
    assert made.next_deadline() is None


def test_snapshots_overlap() -> None:
    """Parts find their own."""
    made = assembler(S1, S2)
    made.add(part("P", S2), 101.0)
    made.add(part("P", S1), 101.0)
    second = made.add(part("Q", S2), 101.0)
    assert isinstance(second, Snapshot)
    assert second.id == S2
    assert made.pending == (S1,)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (part("R"), "no such process"),
        (part("P", kind="Other"), "not those agreed on"),
        (Fragment(S1, ProcessState("P", "Account", b""), {}, ()), "not those agreed on"),
        (
            structs.replace(part("P"), pause_s=math.inf),
            "it reports a pause of inf s and a capture of 0.0 s",
        ),
        (
            structs.replace(part("P"), capture_s=math.nan),
            "it reports a pause of 0.0 s and a capture of nan s",
        ),
        (structs.replace(part("P"), capture_s=-1.0), "a capture of -1.0 s"),
    ],
)
def test_a_part_that_does_not_fit_is_a_violation(wrong: Fragment, found: str) -> None:
    """By process, class or channels, or by times that no manifest could be read with again."""
    with pytest.raises(ProtocolViolation, match=found):
        assembler(S1).add(wrong, 101.0)


def test_a_part_that_comes_twice_is_a_violation() -> None:
    """Each process has one."""
    made = assembler(S1)
    made.add(part("P"), 101.0)
    with pytest.raises(ProtocolViolation, match="it arrived twice"):
        made.add(part("P"), 101.0)
