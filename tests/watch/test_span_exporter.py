"""Traces are sent to an endpoint that may be slow, refuse, or not be there at all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stillframe.errors import UsageError
from stillframe.model import MarkerTimes, SnapshotId
from stillframe.runtime.coordinator.snapshot_monitor import SnapshotTimeline
from stillframe.store.history import SnapshotPublished
from stillframe.watch import span_exporter
from stillframe.watch.event_feed import SnapshotOutcome
from stillframe.watch.snapshot_traces import EndedSnapshot
from stillframe.watch.span_exporter import SpanExporter, SpanFactory, traces_url
from tests.watch.endpoint import Endpoint


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """An endpoint that listens."""
    found = Endpoint()
    with found.open():
        yield found


def trace(number: int, part_count: int = 1, marker_count: int = 1) -> EndedSnapshot:
    """Return a trace of so many processes, to each of which so many markers came."""
    snapshot = SnapshotId("P1", number)
    sources = [f"S{index}" for index in range(marker_count)]
    times = MarkerTimes(10.0, sources[0], {s: i / 1e4 for i, s in enumerate(sources)})
    processes = [f"P{index}" for index in range(part_count)]
    wave = SnapshotTimeline(
        *(snapshot, 9.0, 12.0, True),
        dict.fromkeys(processes, times),
        dict.fromkeys(processes, 11.0),
    )
    outcome = SnapshotOutcome(SnapshotPublished(snapshot), 9.0, 12.0, "")
    return EndedSnapshot(wave, outcome, None)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the exporter try again at once."""
    monkeypatch.setattr(span_exporter, "RETRY_S", 0.01)
    monkeypatch.setattr(span_exporter, "TIMEOUT_S", 1.0)
    monkeypatch.setattr(span_exporter, "TRY_COUNT", 10_000)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("how", ["refuses", "is not there"])
def test_what_an_endpoint_does_not_take_is_sent_again(tmp_path: Path, how: str) -> None:
    """It is said once that it does not, and once that it does again."""
    said: list[str] = []
    endpoint = Endpoint()
    endpoint.status = 500
    with endpoint.open():
        exporter = SpanExporter(endpoint.url, tmp_path, said.append)
        if how == "refuses":
            exporter.put(trace(1))
            endpoint.until(lambda: endpoint.request_count >= 3)
    if how == "is not there":
        exporter.put(trace(1))
    while not said:
        pass
    endpoint.status = 200
    with endpoint.open():
        exporter.put(trace(2))
        endpoint.until(lambda: len({span.span_id for span in endpoint.spans}) == 4)
        while exporter.sent_count < 4:
            pass
        exporter.close()
    assert (exporter.sent_count, exporter.dropped_count, exporter.is_failing) == (4, 0, False)
    assert [line.partition(" accepts")[0].partition(" does")[0] for line in said] == [
        f"{endpoint.url}/v1/traces"
    ] * 2
    assert len({span.trace_id for span in endpoint.spans}) == 2


def test_an_endpoint_that_refuses_for_ever_costs_what_it_refuses(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some tries the traces are given up, and counted."""
    monkeypatch.setattr(span_exporter, "RETRY_S", 0.0)
    monkeypatch.setattr(span_exporter, "TRY_COUNT", 3)
    endpoint.status = 400
    said: list[str] = []
    exporter = SpanExporter(endpoint.url, tmp_path, said.append)
    exporter.put(trace(1, part_count=4))
    endpoint.until(lambda: endpoint.request_count == 3)
    exporter.close()
    assert (exporter.sent_count, exporter.dropped_count, len(said)) == (0, 5, 1)
    assert "400" in said[0]


def test_a_slow_endpoint_keeps_nobody_waiting(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit into the queue is dropped, the oldest first; closing does not wait long."""
    monkeypatch.setattr(span_exporter, "SPAN_COUNT_MAX", 10)
    monkeypatch.setattr(span_exporter, "CLOSE_S_MAX", 0.01)
    endpoint.may_answer.clear()
    exporter = SpanExporter(endpoint.url, tmp_path, lambda line: None)
    exporter.put(trace(1))
    endpoint.until(lambda: endpoint.request_count == 1)
    for number in range(2, 12):
        exporter.put(trace(number))
    assert (exporter.sent_count, exporter.dropped_count) == (0, 10)
    exporter.close()
    assert endpoint.request_count == 1


def test_no_marker_of_a_large_system_is_left_out(tmp_path: Path) -> None:
    """However many channels lead to a process."""
    part, root = SpanFactory(tmp_path).spans(trace(1, marker_count=1000))
    assert len(part.events) == 1000
    assert (part.name, root.name) == ("fragment P0", "snapshot")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("https://tempo.example/", "https://tempo.example/v1/traces"),
        ("https://tempo.example/otlp/v1/traces", "https://tempo.example/otlp/v1/traces"),
    ],
)
def test_the_path_is_added_if_there_is_none(url: str, expected: str) -> None:
    """As everybody who takes OTLP has it."""
    assert traces_url(url) == expected


@pytest.mark.parametrize("url", ["localhost:4318", "http://", "http://x:y", "grpc://x", "[", ""])
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    """The error says how one is given."""
    with pytest.raises(UsageError, match="give one such as http://localhost:4318"):
        traces_url(url)
