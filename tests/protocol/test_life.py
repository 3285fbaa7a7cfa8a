"""The life of a recording: every row of the table, what is not in it, and what is forgotten."""

import msgspec
import pytest

from stillframe.errors import ProtocolViolation
from stillframe.model import Batch, Marker, SnapshotId
from stillframe.protocol.recorder import (
    ENDED_COUNT_MAX,
    TRANSITIONS,
    Phase,
    Recorded,
    Recorder,
    Stimulus,
)
from tests.protocol.execution import state_of

S = SnapshotId("P", 1)
MARKER = Marker(S)
ROWS = [
    (before, stimulus, after)
    for before, row in TRANSITIONS.items()
    for stimulus, after in row.items()
]


def in_phase(phase: Phase) -> Recorder:
    """Return a recorder of P, with channels from A and B, for which S is in `phase`."""
    made = Recorder(
        "P", incoming={"A": 0, "B": 0}, outgoing={"A": 0}, capture=lambda: state_of("P", 7)
    )
    if phase in (Phase.RECORDING, Phase.RECORDED):
        made.initiate(S)
    if phase is Phase.RECORDED:
        made.marker("A", MARKER)
        made.marker("B", MARKER)
    if phase is Phase.ABANDONED:
        made.abandon(S)
    assert made.phase(S) is phase
    return made


def apply(recorder: Recorder, stimulus: Stimulus) -> None:
    """Let `stimulus` happen to S."""
    match stimulus:
        case Stimulus.INITIATE:
            recorder.initiate(S)
        case Stimulus.MARKER:
            recorder.marker("A", MARKER)
        case Stimulus.LAST_MARKER:
            recorder.marker("A", MARKER)
            recorder.marker("B", MARKER)
        case Stimulus.ABANDON:
            recorder.abandon(S)


@pytest.mark.parametrize(("before", "stimulus", "after"), ROWS)
def test_every_row_of_the_table(before: Phase, stimulus: Stimulus, after: Phase) -> None:
    """What happens in a phase leads to the phase that the table says."""
    recorder = in_phase(before)
    apply(recorder, stimulus)
    assert recorder.phase(S) is after


def test_what_is_not_in_the_table() -> None:
    """A marker too many; the last marker is one only while markers are awaited."""
    missing = {(p, s) for p in Phase for s in Stimulus} - {(p, s) for p, s, _ in ROWS}
    assert missing == {
        (Phase.IDLE, Stimulus.LAST_MARKER),
        (Phase.RECORDED, Stimulus.MARKER),
        (Phase.RECORDED, Stimulus.LAST_MARKER),
        (Phase.ABANDONED, Stimulus.LAST_MARKER),
    }


@pytest.mark.parametrize("source", ["A", "B"])
def test_a_marker_too_many_names_channel_and_snapshot(source: str) -> None:
    """After the part was recorded there is nothing more to come on any channel."""
    with pytest.raises(ProtocolViolation, match=f"channel {source}->P: a second marker of .* P-1"):
        in_phase(Phase.RECORDED).marker(source, MARKER)


def test_a_marker_too_many_changes_nothing() -> None:
    """The recording goes on as if it had not come."""
    recorder = in_phase(Phase.RECORDING)
    recorder.marker("A", MARKER)
    with pytest.raises(ProtocolViolation, match="A->P: a second marker"):
        recorder.marker("A", MARKER)
    recorder.receive("B", Batch.of(1, [msgspec.msgpack.encode("m")]))
    (recorded,) = recorder.marker("B", MARKER)
    assert isinstance(recorded, Recorded)
    assert [len(r.batches) for r in recorded.fragment.incoming] == [0, 1]


def test_a_late_marker_of_an_ended_snapshot_begins_nothing() -> None:
    """Also when it is forgotten: numbers rise, so what is as old as a forgotten one is over."""
    recorder = in_phase(Phase.ABANDONED)
    for number in range(2, ENDED_COUNT_MAX + 1):
        recorder.abandon(SnapshotId("P", number))
    assert recorder.phase(S) is Phase.ABANDONED
    assert recorder.marker("A", MARKER) == []
    recorder.abandon(SnapshotId("P", ENDED_COUNT_MAX + 1))
    assert recorder.phase(S) is Phase.ABANDONED
    assert recorder.marker("B", MARKER) == []
    assert recorder.phase(SnapshotId("P", ENDED_COUNT_MAX + 2)) is Phase.IDLE


def test_messages_go_on_where_a_restore_left_off() -> None:
    """Counts begin where the recorded ones ended, and so do the books."""
    recorder = Recorder("P", incoming={"A": 4}, outgoing={"A": 9}, capture=lambda: state_of("P", 7))
    with pytest.raises(ProtocolViolation, match="message 5 should come next, but 1 came"):
        recorder.receive("A", Batch.of(1, [b"\x01"]))
    recorder.initiate(S)
    recorder.receive("A", Batch.of(5, [b"\x01", b"\x02"]))
    (recorded,) = recorder.marker("A", MARKER)
    assert isinstance(recorded, Recorded)
    (incoming,) = recorded.fragment.incoming
    assert recorded.fragment.sent_counts == {"A": 9}
    assert (incoming.received_count, [b.first for b in incoming.batches]) == (4, [5])
