"""Events as lines for people and as JSON for programs."""

import json
import time
from pathlib import Path

import msgspec
import pytest

from stillframe.cli.supervision import SKIPPED_REPORT_S, EventPrinter, sentence
from stillframe.model import Abandoned, Reason, SnapshotId
from stillframe.runtime import events
from stillframe.store.manifest import SnapshotEntry


def published(number: int, epoch: int = 1) -> events.SnapshotPublished:
    """A snapshot with 1234 messages that took 20 ms, and 30 to publish."""
    return events.SnapshotPublished(
        SnapshotEntry(
            id=SnapshotId("P1", number),
            sequence=number,
            epoch=epoch,
            initiated_at=1000.0,
            completed_at=1000.02,
            published_at=1000.03,
            is_restore_point=True,
            process_count=5,
            channel_count=20,
            message_count=1234,
            bytes=9489,
            directory=Path("snapshots"),
        )
    )


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (events.NotShared("it is slower"), "it is slower"),
        (events.EpochBegan(1, None), "epoch 1: starting from the initial states"),
        (events.EpochBegan(2, SnapshotId("P1", 7)), "epoch 2: starting from snapshot P1-7"),
        (
            events.SystemRunning(1, 0.35, None, 0.2, 0.05, 0.1),
            (
                "epoch 1: the system runs, 350 ms after its start (processes 200 ms, state 50 ms, "
                "connections 100 ms)"
            ),
        ),
        (
            events.SystemRunning(2, 1.5, SnapshotId("P1", 7), 0.25, 1.0, 0.25),
            (
                "epoch 2: the system runs from snapshot P1-7, after 1.50 s (processes 250 ms, "
                "state 1.00 s, connections 250 ms)"
            ),
        ),
        (events.AwaitingProcesses(("A", "B")), "waiting for A, B to join (start their programs)"),
        (events.AwaitingProcesses((), ("A", "B")), "waiting for A, B to start"),
        (
            events.AwaitingProcesses(("J",), ("A",)),
            "waiting for J to join (start its program), and for A to start",
        ),
        (events.AwaitingProcesses(()), "waiting for the processes to connect to each other"),
        (
            events.AwaitingProcesses((), tuple(f"P{number}" for number in range(200))),
            "waiting for P0, P1, P2, P3, P4 and 195 more to start",
        ),
        (
            published(7),
            (
                "snapshot P1-7: 1,234 messages in transit, recorded in 20 ms, "
                "published after 30 ms, 9.5 kB"
            ),
        ),
        (
            events.SnapshotAbandoned(
                Abandoned(SnapshotId("P1", 7), Reason.NOT_RECORDED), SnapshotId("P2", 8)
            ),
            (
                "snapshot P1-7 was abandoned: a process could not record its state; tried again "
                "as P2-8"
            ),
        ),
        (
            events.SnapshotAbandoned(Abandoned(SnapshotId("P1", 7), Reason.DEADLINE, ("P3",))),
            (
                "snapshot P1-7 was abandoned: the deadline passed before every process had "
                "recorded its fragment; missing: P3"
            ),
        ),
        (
            events.SnapshotSkipped(SnapshotId("P1", 7)),
            "a snapshot was due and skipped, because P1-7 was still pending",
        ),
        (
            events.ProcessDied("P3", "it was killed by SIGKILL"),
            "process P3 died: it was killed by SIGKILL; restoring the latest snapshot",
        ),
        (
            events.ProcessDied("P3", "it raised", "Traceback\n  line\n"),
            "process P3 died: it raised; restoring the latest snapshot\nTraceback\n  line",
        ),
        (events.ConnectionWarning("a frame was too long"), "a frame was too long"),
    ],
)
def test_every_event_is_a_sentence(event: events.Event, line: str) -> None:
    """Each says who, what and how long."""
    assert sentence(event) == line


def test_a_snapshot_that_is_no_restore_point_says_so() -> None:
    """A restore without its name would go back to another one."""
    entry = msgspec.structs.replace(published(7).entry, is_restore_point=False)
    assert sentence(events.SnapshotPublished(entry)).endswith(
        "9.5 kB; it overlapped another and is not a restore point: to restore it, name it"
    )


def test_only_the_first_snapshot_of_an_epoch_gets_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Periodic snapshots do not fill the screen."""
    printer = EventPrinter(process_count=5, is_json=False)
    for event in (published(1), published(2), published(3), published(4, epoch=2)):
        printer.emit(event)
    captured = capsys.readouterr()
    assert [line.split(":")[0] for line in captured.err.splitlines()] == [
        "snapshot P1-1",
        "snapshot P1-4",
    ]
    assert captured.out == ""


def test_skipped_snapshots_are_counted_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is reported at once, and of those that follow only how many there were."""
    printer = EventPrinter(process_count=5, is_json=False)
    for _ in range(8):
        printer.emit(events.SnapshotSkipped(SnapshotId("P1", 7)))
    assert capsys.readouterr().err == (
        "a snapshot was due and skipped, because P1-7 was still pending\n"
    )
    later = time.monotonic() + SKIPPED_REPORT_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    for _ in range(2):
        printer.emit(events.SnapshotSkipped(SnapshotId("P1", 8)))
    eight = (
        "8 more snapshots were due and skipped, the last because P1-8 was still pending; snapshots "
        "take longer than --interval\n"
    )
    assert capsys.readouterr().err == eight
    printer.say("stopping")
    assert capsys.readouterr().err == (
        "1 more snapshot was due and skipped, because P1-8 was still pending\nstopping\n"
    )


def test_skipped_snapshots_are_counted_when_no_other_one_is_skipped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next published snapshot reports them."""
    printer = EventPrinter(process_count=5, is_json=False)
    printer.emit(published(1))
    for _ in range(9):
        printer.emit(events.SnapshotSkipped(SnapshotId("P1", 8)))
    capsys.readouterr()
    printer.emit(published(2))
    assert capsys.readouterr().err == ""
    later = time.monotonic() + SKIPPED_REPORT_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    printer.emit(published(3))
    assert capsys.readouterr().err.startswith("8 more snapshots were due and skipped, the last")


def test_json_has_every_event_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A program sees all snapshots; people still get their words on stderr."""
    printer = EventPrinter(process_count=5, is_json=True)
    printer.emit(events.SystemRunning(1, 0.35, None, 0.1, 0.1, 0.1))
    printer.emit(published(1))
    printer.emit(published(2))
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert [line["event"] for line in lines] == [
        "SystemRunning",
        "SnapshotPublished",
        "SnapshotPublished",
    ]
    assert lines[2]["entry"]["id"] == "P1-2"
    assert all(line["at"] > 0 for line in lines)
    assert len(captured.err.splitlines()) == 2


def test_the_status_line_tells_where_the_system_is() -> None:
    """Epoch, processes, how many snapshots, and what the last one was."""
    printer = EventPrinter(process_count=5, is_json=False)
    printer.emit(events.EpochBegan(1, None))
    assert str(printer.__rich__()).startswith("epoch 1 starting | ")
    printer.emit(events.SystemRunning(1, 0.35, None, 0.1, 0.1, 0.1))
    assert str(printer.__rich__()) == "epoch 1 | 5 processes | 0 snapshots"
    printer.emit(published(1))
    assert "epoch 1 | 5 processes | 1 snapshot | P1-1 " in str(printer.__rich__())
    assert " s ago in 30 ms, 1,234 messages" in str(printer.__rich__())
    printer.emit(events.ProcessDied("P3", "it was killed by SIGKILL"))
    assert str(printer.__rich__()).startswith("epoch 1 starting | ")
