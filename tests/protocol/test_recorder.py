"""The recorder, rule by rule; test_life.py has its phases, test_oracle.py whole executions."""

import msgspec
import pytest

from stillframe.errors import ProtocolViolation, UsageError
from stillframe.model import Batch, Marker, ProcessState, SnapshotId
from stillframe.protocol.recorder import (
    ENDED_COUNT_MAX,
    NotRecorded,
    Phase,
    Recorded,
    Recorder,
    SendMarker,
)

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


def test_what_was_given_up_meanwhile_is_not_recorded_any_more() -> None:
    """Up to a number nothing is recorded: not what had begun, and not what is heard of later; what
    was recorded stays so, and newer snapshots are recorded, also those that have begun already."""
    p = recorder(incoming="A", outgoing="")
    (recorded,) = p.initiate(S1) + p.marker("A", Marker(S1))
    assert isinstance(recorded, Recorded)
    p.initiate(S2)
    late, new = SnapshotId("P", 3), SnapshotId("P", 5)
    p.initiate(SnapshotId("P", 4))
    p.settle(3)
    assert p.phase(SnapshotId("P", 4)) is Phase.RECORDING
    assert [p.phase(s) for s in (S1, S2, late)] == [
        Phase.RECORDED,
        Phase.ABANDONED,
        Phase.ABANDONED,
    ]
    assert p.progress(S2) is None
    assert p.marker("A", Marker(S2)) == p.marker("A", Marker(late)) == p.initiate(late) == []
    assert p.initiate(new) == []
    assert p.phase(new) is Phase.RECORDING


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
