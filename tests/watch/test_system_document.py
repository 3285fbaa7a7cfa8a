"""What the page shows of a running system is what its processes said, and nothing is made up."""

import pytest

from stillframe import Channel, Topology
from stillframe.model import MarkerTimes, SnapshotId
from stillframe.protocol.recorder import Phase
from stillframe.protocol.stragglers import (
    EndpointStatus,
    PendingSnapshot,
    ProcessStatus,
    RecordingStatus,
)
from stillframe.runtime.coordinator.snapshot_monitor import SnapshotTimeline
from stillframe.runtime.supervisor.admin_socket import SystemStatus
from stillframe.watch import system_document as document
from tests.runtime.programs import Sink, Source

DESCRIPTION = Topology({"A": Source(), "B": Sink()}, [("A", "B")]).description
S = SnapshotId("A", 7)


def status(
    *,
    sent: int = 0,
    received: int | None = None,
    is_busy: bool = False,
    quantities: dict[str, float] | str | None = None,
    recording: RecordingStatus | None = None,
    moment_s: float = 0.0,
) -> ProcessStatus:
    """Return what A says, or B if something was received."""
    incoming, outgoing = {}, {"B": EndpointStatus(is_connected=True, unhandled_bytes=5, count=sent)}
    if received is not None:
        incoming, outgoing = {"A": EndpointStatus(True, 9, count=received)}, {}
    return ProcessStatus(
        is_busy, (recording,) if recording else (), incoming, outgoing, quantities or {}, moment_s
    )


def observed(**statuses: ProcessStatus) -> SystemStatus:
    """Return the answer of a system that runs."""
    return SystemStatus(3, is_running=True, statuses=statuses)


def test_a_channel_is_told_of_by_both_ends() -> None:
    """Messages on their way, and the rate since the last look; no number is negative."""
    before = observed(A=status(sent=100, moment_s=7.0), B=status(received=90))
    now = observed(A=status(sent=150, moment_s=7.5), B=status(received=160))
    assert document.channel_columns(DESCRIPTION, now, before) == {
        "sent": [150],
        "rate": [100.0],
        "in_transit": [0],
        "bytes": [9],
        "is_connected": [1],
    }
    assert document.channel_columns(DESCRIPTION, before, None)["in_transit"] == [10]
    assert document.channel_columns(DESCRIPTION, before, None)["rate"] == [None]


def test_large_amounts_reach_the_browser_as_they_are() -> None:
    """It rounds whole numbers above 2^53: such come as text, and others as they are."""
    assert document.exact_amounts({"a": 2**53 + 1, "b": 2**53, "c": -(2**60), "d": 0.5}) == {
        "a": "9007199254740993",
        "b": 2**53,
        "c": "-1152921504606846976",
        "d": 0.5,
    }


def test_what_nobody_told_is_not_known() -> None:
    """Of a silent process only the other end is."""
    silent = observed(A=status(sent=7))
    columns = document.channel_columns(DESCRIPTION, silent, silent)
    assert columns["sent"] == [7]
    assert columns["in_transit"] == [None]
    assert columns["is_connected"] == [1]
    nothing = document.channel_columns(DESCRIPTION, observed(), None)
    assert {name: column for name, (column,) in nothing.items()} == dict.fromkeys(nothing)


def test_each_process_has_one_status() -> None:
    """Whether it runs, is busy, silent, dead, starting, or stopped with the system."""
    nobody: frozenset[str] = frozenset()
    some = observed(A=status(is_busy=True))
    assert document.process_statuses(DESCRIPTION, some, nobody) == ["busy", "silent"]
    starting = SystemStatus(4, is_running=False)
    assert document.process_statuses(DESCRIPTION, starting, frozenset("B")) == ["starting", "dead"]
    assert document.process_statuses(DESCRIPTION, None, frozenset("B")) == ["stopped", "stopped"]
    unheard = document.process_statuses(DESCRIPTION, None, frozenset("B"), unreachable="silent")
    assert unheard == ["silent", "silent"]
    both = observed(A=status(), B=status(received=0))
    assert document.process_statuses(DESCRIPTION, both, frozenset("B")) == ["running", "running"]


def test_a_naive_total_needs_every_answer() -> None:
    """One that is missing, or cannot say, makes it no total; the trouble is told."""
    a, b = status(quantities={"money": 3}), status(received=1, quantities={"money": 4})
    assert document.naive_totals(DESCRIPTION, observed(A=a, B=b)) == {"money": 7}
    assert document.naive_totals(DESCRIPTION, observed(A=a)) == {}
    lost = observed(A=a, B=status(received=1, quantities="B cannot say"))
    assert document.naive_totals(DESCRIPTION, lost) == {}
    assert document.quantities_error(lost) == "B cannot say"
    assert document.quantities_error(observed(A=a, B=b)) == ""


def test_a_snapshot_under_way_says_who_is_awaited() -> None:
    """How far each process is, and the sentences of who holds it up."""
    recording = RecordingStatus(S, Phase.RECORDING, ("A",), 0.5)
    answers = observed(
        A=status(recording=RecordingStatus(S, Phase.RECORDED)),
        B=status(received=0, recording=recording),
    )
    pending = PendingSnapshot(S, initiated_at=10.0, deadline=20.0, missing=("B",))
    (told,) = document.pending_snapshots(
        SystemStatus(3, True, answers.statuses, pending=(pending,), now=11.0)
    )
    assert told["phases"] == {"A": "recorded", "B": "recording"}
    assert told["waits_for"] == {"B": ("A",)}
    assert (told["id"], told["missing"]) == ("A-7", ("B",))


@pytest.mark.parametrize("shift", [0.0, -5.0])
def test_a_wave_is_told_in_seconds_after_its_beginning(shift: float) -> None:
    """Never before it, whatever the clock of a process says."""
    wave = SnapshotTimeline(
        S,
        100.0,
        ended_at=100.5,
        is_published=True,
        times={
            "A": MarkerTimes(100.25 + shift, None, {}),
            "B": MarkerTimes(100.5 + shift, "A", {"A": 0.125}),
        },
    )
    told = document.timeline_document(wave)
    assert told["duration_s"] == 0.5
    assert told["marked_by"] == {"A": None, "B": "A"}
    cut = max(0.0, 0.5 + shift)
    assert told["cuts"] == {"A": max(0.0, 0.25 + shift), "B": cut}
    assert told["arrivals"] == [["A", "B", cut + 0.125]]
    assert Channel("A", "B") in DESCRIPTION.channels
