"""An event log of several processes is a trace again."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stillframe.errors import NotConsistent, UsageError
from stillframe.eventlog.row_encoder import BY_ITSELF, StepRow
from stillframe.eventlog.segments import MARKER_ACCEPTED, MARKER_SENT, RECORDED
from stillframe.eventlog.to_trace import EARLIER, read_trace
from stillframe.eventlog.writer import Writer
from stillframe.model import Channel, SnapshotId
from stillframe.trace import Event, MarkerStep, MessageId, Trace

AB, BA = Channel("A", "B"), Channel("B", "A")
ID = SnapshotId("A", 1)


def pair(log: Path, earlier: tuple[int, int] = (0, 0)) -> tuple[Writer, Writer]:
    """Return the writers of A and B; `earlier`: what A had sent and B had received by then."""

    def trouble(detail: str) -> None:
        raise AssertionError(detail)

    sent, received = earlier
    a = Writer(log, "A", 1, received={"B": 0}, sent={"B": sent}, on_error=trouble)
    b = Writer(log, "B", 1, received={"A": received}, sent={"A": 0}, on_error=trouble)
    return a, b


def test_messages_and_markers_come_after_they_were_sent(tmp_path: Path) -> None:
    """The lines are merged, with the steps of a snapshot where they were."""
    a, b = pair(tmp_path)
    b.record(b.accepting["A"])
    b.record_step(StepRow(MARKER_ACCEPTED, b.accepting["A"], str(ID), 2.5, ()))
    b.record_step(StepRow(RECORDED, BY_ITSELF, str(ID), 2.5))
    b.record_step(StepRow(MARKER_SENT, b.sending["A"], str(ID), 2.5))
    b.record(BY_ITSELF)
    b.record(b.sending["A"])
    a.record(BY_ITSELF)
    a.record(a.sending["B"])
    a.record_step(StepRow(RECORDED, BY_ITSELF, str(ID), 1.5))
    a.record_step(StepRow(MARKER_SENT, a.sending["B"], str(ID), 1.5))
    a.record(BY_ITSELF)
    a.record_step(StepRow(MARKER_ACCEPTED, a.accepting["B"], str(ID), 3.5, ()))
    a.record(a.accepting["B"])
    a.close()
    b.close()
    trace = read_trace(tmp_path, 1)
    assert trace.lines == {
        "A": (
            Event("A", sent=(MessageId(AB, 1),)),
            Event("A"),
            Event("A", accepted=(MessageId(BA, 1),)),
        ),
        "B": (Event("B", accepted=(MessageId(AB, 1),)), Event("B", sent=(MessageId(BA, 1),))),
    }
    assert [step for step in trace.steps if isinstance(step, MarkerStep)] == [
        MarkerStep("A", ID, is_cut=True, targets=("B",), at=1.5),
        MarkerStep("B", ID, source="A", is_cut=True, targets=("A",), at=2.5),
        MarkerStep("A", ID, source="B", at=3.5),
    ]
    assert trace.cut_of(ID) == (1, 1)
    assert trace.channels == (AB, BA)


def test_what_was_on_the_way_at_the_beginning_was_sent_before(tmp_path: Path) -> None:
    """After a restore the first messages come from before this log."""
    a, b = pair(tmp_path, earlier=(7, 5))
    b.record(b.accepting["A"])
    a.record(BY_ITSELF)
    a.record(a.sending["B"])
    a.close()
    b.close()
    trace = read_trace(tmp_path, 1)
    assert trace.lines["A"] == (
        Event("A", label=EARLIER, sent=(MessageId(AB, 6), MessageId(AB, 7))),
        Event("A", sent=(MessageId(AB, 8),)),
    )
    assert trace.lines["B"] == (Event("B", accepted=(MessageId(AB, 6),)),)


def test_what_depends_on_a_lost_end_is_left_out(tmp_path: Path) -> None:
    """A was killed before it could write that it sent what B accepted."""
    a, b = pair(tmp_path)
    a.record(a.accepting["B"])
    b.record(b.sending["A"])
    b.record(b.accepting["A"])
    b.record(b.sending["A"])
    a.record(a.accepting["B"])
    a.close()
    b.close()
    trace = read_trace(tmp_path, 1)
    assert trace.end == (1, 1)


def test_a_circle_is_no_execution(tmp_path: Path) -> None:
    """Each of two processes accepts first what the other sends after that."""
    for writer, other in zip(pair(tmp_path), "BA", strict=True):
        writer.record(writer.accepting[other])
        writer.record(writer.sending[other])
        writer.close()
    with pytest.raises(NotConsistent, match="each of A, B"):
        read_trace(tmp_path, 1)


def begin(log: Path) -> Trace:
    """Let two processes do one thing each, and read that."""
    a, b = pair(log)
    a.record(BY_ITSELF)
    b.record(BY_ITSELF)
    a.close()
    b.close()
    return read_trace(log, 1)


def test_what_is_no_trace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another epoch, more rows than may be read, a process without a log, rows that were lost."""
    assert begin(tmp_path / "log").end == (1, 1)
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: read_trace(tmp_path / "log", 2), "nothing of epoch 2: it has 1"),
        (lambda: read_trace(tmp_path / "log", 1, row_count_max=1), "2 rows"),
    ]
    for call, words in refusals:
        with pytest.raises(UsageError, match=words):
            call()
    a, b = pair(tmp_path / "lost", earlier=(10**7, 0))
    for writer in (a, b):
        writer.record(BY_ITSELF)
        writer.close()
    with pytest.raises(UsageError, match="10,000,000 messages were in transit"):
        read_trace(tmp_path / "lost", 1)
    monkeypatch.setattr("stillframe.eventlog.writer.STREAM_ROW_COUNT", 1)
    monkeypatch.setattr("stillframe.eventlog.writer.JOINED_COUNT_MAX", 1)
    a, b = pair(tmp_path / "gap")
    b.close()
    for _ in range(3):
        a.record(BY_ITSELF)
        a.hand_over({"B": 0}, {"B": 0})
    a.close()
    with pytest.raises(UsageError, match="no log of process B"):
        read_trace(tmp_path / "gap", 1)
    _, b = pair(tmp_path / "gap")
    b.record(BY_ITSELF)
    b.close()
    assert read_trace(tmp_path / "gap", 1).end == (3, 1)
    (tmp_path / "gap" / "e1" / "A" / "events-000002.parquet").unlink()
    with pytest.raises(UsageError, match="the actions in between were lost"):
        read_trace(tmp_path / "gap", 1)
