"""Each snapshot is one trace, with all its processes and markers, whatever the endpoint does."""

import asyncio
import hashlib
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from stillframe.cli import watch
from stillframe.errors import UsageError
from stillframe.imports import load_topology
from stillframe.model import Abandoned, MarkerTimes, SnapshotId
from stillframe.runtime.coordinator.snapshot_monitor import TIMELINE_COUNT_MAX, SnapshotTimeline
from stillframe.runtime.supervisor.admin_socket import SystemStatus, serve_commands
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.history import SnapshotAbandoned, SnapshotPublished
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from stillframe.store.writer import local
from stillframe.topology import Description
from stillframe.watch import span_exporter
from stillframe.watch.event_feed import SnapshotOutcome
from stillframe.watch.snapshot_traces import (
    ATTRIBUTES,
    FRAGMENT,
    MARKER,
    ROOT,
    EndedSnapshot,
    TraceBuilder,
)
from stillframe.watch.span_exporter import SpanFactory
from tests.calm import BANK
from tests.nightly import by_night
from tests.watch.endpoint import Endpoint, plain
from tests.watch.scraping import watching, watching_program

TIMEOUT_S = 120
FIRST, SECOND = SnapshotId("P1", 1), SnapshotId("P2", 2)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """An endpoint that listens."""
    found = Endpoint()
    with found.open():
        yield found


def by_trace(spans: list[Span]) -> dict[bytes, list[Span]]:
    """Return the spans by trace; one that was sent twice counts once, and is the same."""
    found: dict[bytes, dict[bytes, Span]] = defaultdict(dict)
    for span in spans:
        known = found[span.trace_id].setdefault(span.span_id, span)
        assert known == span
    return {trace: list(parts.values()) for trace, parts in found.items()}


def root_of(spans: list[Span]) -> Span:
    """Return the one span that has no parent."""
    (root,) = [span for span in spans if not span.parent_span_id]
    return root


def check_published(spans: list[Span], entry: SnapshotEntry, description: Description) -> None:
    """Check the trace of a snapshot that was published."""
    root = root_of(spans)
    seed = f"{entry.id} {entry.initiated_at}"
    assert root.trace_id.hex() == hashlib.sha256(seed.encode()).hexdigest()[:32]
    assert root.name == ROOT
    assert root.status.code == Status.STATUS_CODE_OK
    told = plain(root.attributes)
    assert told == {
        "stillframe.snapshot.id": str(entry.id),
        "stillframe.snapshot.initiator": entry.id.initiator,
        "stillframe.snapshot.epoch": entry.epoch,
        "stillframe.snapshot.outcome": "published",
        "stillframe.snapshot.has_markers": True,
        "stillframe.snapshot.bytes": entry.bytes,
        "stillframe.snapshot.messages": entry.message_count,
        "stillframe.snapshot.pause_s": entry.pause_s,
        "stillframe.snapshot.capture_s": entry.capture_s,
    }
    assert abs(root.start_time_unix_nano - entry.initiated_at * 1e9) < 1000
    parts = {plain(s.attributes)["stillframe.process"]: s for s in spans if s is not root}
    assert parts.keys() == description.processes.keys()
    for process, part in parts.items():
        assert part.parent_span_id == root.span_id
        assert part.name == f"{FRAGMENT} {process}"
        sources = [plain(event.attributes)["stillframe.source"] for event in part.events]
        assert sorted(sources) == sorted(description.incoming(process))
        assert {event.name for event in part.events} == {MARKER}
        assert plain(part.attributes).get("stillframe.marked_by") == (
            None if process == entry.id.initiator else sources[0]
        )
        times = [event.time_unix_nano for event in part.events]
        assert times == sorted(times)
        assert root.start_time_unix_nano <= part.start_time_unix_nano <= times[0]
        assert times[-1] <= part.end_time_unix_nano <= root.end_time_unix_nano


def check_attributes(spans: list[Span]) -> None:
    """Check that nothing is told that the page does not have."""
    for span in spans:
        kind = span.name.partition(" ")[0]
        assert plain(span.attributes).keys() <= ATTRIBUTES[kind].keys()
        for event in span.events:
            assert plain(event.attributes).keys() == ATTRIBUTES[event.name].keys()


async def live_through(system: Supervisor) -> list[SnapshotEntry | Abandoned]:
    """Take snapshots one after the other and at once, and lose a process during the last."""
    ended = [await system.snapshot(f"P{number}") for number in (1, 2, 3)]
    ended += await asyncio.gather(*[await system.begin_snapshot(p) for p in ("P4", "P5")])
    killed = system.children["P3"]
    os.kill(killed.pid, signal.SIGSTOP)
    last = await system.begin_snapshot("P1")
    os.kill(killed.pid, signal.SIGKILL)
    return [*ended, await last]


@pytest.mark.slow
def test_each_snapshot_of_a_bank_is_one_trace(tmp_path: Path, endpoint: Endpoint) -> None:
    """Published or abandoned; and it is the same trace when another watcher sends it again."""
    description = load_topology(BANK).description

    async def main() -> list[SnapshotEntry | Abandoned]:
        store = Store.create(tmp_path / "store", description=description, reference=BANK)
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor(BANK, store, SupervisorConfig(timeout_s=TIMEOUT_S)) as system,
            serve_commands(system),
        ):
            before = await system.snapshot()
            async with watching(local(store.path), otlp=endpoint.url) as watcher:
                await watcher.until("traced_snapshots_total", 1)
                ended = await live_through(system)
                scrape = await watcher.until("traced_snapshots_total", len(ended) + 1)
                await asyncio.to_thread(endpoint.until, lambda: len(roots(endpoint)) == 7)
                assert scrape.of("traced_snapshots_missed_total") == 0
                assert scrape.of("watch_error", about="traces") == 0
            await system.until_running()
            last = await system.snapshot()
            async with watching_program(local(store.path), "--otlp", endpoint.url):
                await asyncio.to_thread(endpoint.until, lambda: len(roots(endpoint)) == 15)
        store.close()
        return [before, *ended, last]

    ended = asyncio.run(main())
    traces = by_trace(endpoint.spans)
    check_attributes(endpoint.spans)
    assert len(traces) == len(ended) == 8
    by_id = {
        plain(root_of(spans).attributes)["stillframe.snapshot.id"]: spans
        for spans in traces.values()
    }
    for outcome in ended:
        if isinstance(outcome, SnapshotEntry):
            check_published(by_id[str(outcome.id)], outcome, description)
            continue
        root = root_of(by_id[str(outcome.snapshot)])
        told = plain(root.attributes)
        assert told["stillframe.snapshot.outcome"] == "abandoned"
        assert told["stillframe.snapshot.reason"] == "process_died"
        assert told["stillframe.snapshot.missing"] == list(outcome.missing)
        assert root.status.code == Status.STATUS_CODE_ERROR
        assert str(outcome.snapshot) in root.status.message
        assert root.start_time_unix_nano < root.end_time_unix_nano
    for resource in endpoint.resources:
        assert resource["service.name"] == "stillframe"
        assert resource["stillframe.store"] == str(tmp_path / "store")


def roots(endpoint: Endpoint) -> list[bytes]:
    """Return of which traces the span of the snapshot has come, as often as it has."""
    return [span.trace_id for span in endpoint.spans if not span.parent_span_id]


@pytest.mark.slow
@pytest.mark.nightly(part="soak")
def test_snapshots_in_quick_succession_are_all_traced_and_what_was_missed_is_counted(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    """More than the system remembers: each has a trace, and the count says how many are bare."""
    count = by_night(100, check=40)
    assert count > TIMELINE_COUNT_MAX

    async def main() -> float:
        description = load_topology(BANK).description
        store = Store.create(tmp_path / "store", description=description, reference=BANK)
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor(BANK, store, SupervisorConfig(timeout_s=TIMEOUT_S)) as system,
            serve_commands(system),
            watching(local(store.path), otlp=endpoint.url) as watcher,
        ):
            await watcher.scrape()
            for _ in range(count):
                assert isinstance(await system.snapshot(), SnapshotEntry)
            scrape = await watcher.until("traced_snapshots_total", count)
            await asyncio.to_thread(endpoint.until, lambda: len(set(roots(endpoint))) == count)
        store.close()
        return scrape.of("traced_snapshots_missed_total")

    missed_count = asyncio.run(main())
    told = [plain(span.attributes) for span in endpoint.spans if not span.parent_span_id]
    assert len({attributes["stillframe.snapshot.id"] for attributes in told}) == count
    bare = [a for a in told if not a["stillframe.snapshot.has_markers"]]
    assert len(bare) == missed_count < count


@pytest.mark.slow
def test_an_endpoint_that_is_not_there_costs_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The watcher serves, says that once, and ends when it is told to."""
    monkeypatch.setattr(span_exporter, "TIMEOUT_S", 2.0)  # room for a second try, after a second
    gone = Endpoint()
    with gone.open():
        pass

    async def main() -> None:
        description = load_topology(BANK).description
        store = Store.create(tmp_path / "store", description=description, reference=BANK)
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor(BANK, store) as system,
            serve_commands(system),
            watching(local(store.path), otlp=gone.url) as watcher,
        ):
            await system.snapshot()
            await watcher.until("watch_error", 1, about="traces")
            await system.snapshot()
            await watcher.until("traced_snapshots_total", 2)
        store.close()

    asyncio.run(main())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{gone.url}/v1/traces does not accept traces: ")
    assert "Connection refused" in line


def test_clocks_that_differ_leave_times_in_order(tmp_path: Path) -> None:
    """The times of a process are moved to where the coordinator's clock has room for them."""
    waves = [
        SnapshotTimeline(
            *(FIRST, 100.0, 102.0, True),
            {"P2": MarkerTimes(cut_at, "P1", {"P3": 5.0, "P1": 0.0})},
            {"P2": 101.0},
        )
        for cut_at in (90.0, 100.5, 110.0)
    ]
    factory, outcome = (
        SpanFactory(tmp_path),
        SnapshotOutcome(SnapshotPublished(FIRST), 100, 102, ""),
    )
    parts = [factory.spans(EndedSnapshot(wave, outcome, None))[0] for wave in waves]
    assert [(part.start_time, part.end_time) for part in parts] == [
        (100.0e9, 101.0e9),
        (100.5e9, 101.0e9),
        (101.0e9, 101.0e9),
    ]
    told = [dict(part.attributes or {}) for part in parts]
    assert [one.get("stillframe.moved_s") for one in told] == [10.0, None, -9.0]
    for part in parts:
        sources = [dict(event.attributes or {})["stillframe.source"] for event in part.events]
        assert (sources, part.events[1].timestamp) == (["P1", "P3"], part.end_time)


def test_what_the_system_has_forgotten_is_traced_as_the_history_has_it(tmp_path: Path) -> None:
    """Without processes, counted, and said once; what ended before the watcher began is left."""
    exporter, said = mock.Mock(), list[str]()
    builder = TraceBuilder(lambda snapshot: None, exporter, said.append)
    old = {FIRST: SnapshotOutcome(SnapshotPublished(FIRST), 1.0, 2.0, "")}
    given_up = SnapshotAbandoned(SECOND, "DEADLINE", ("P3",), "")
    third, fourth = SnapshotId("P1", 3), SnapshotId("P1", 4)
    new = {
        SECOND: SnapshotOutcome(given_up, 3.0, 4.0, "snapshot P2-2 was abandoned"),
        third: SnapshotOutcome(SnapshotPublished(third), 5.0, 6.0, ""),
    }
    assert builder.update(old, None) == 0
    assert builder.update(old | new, SystemStatus(2, is_running=False)) == 0
    waves = (
        SnapshotTimeline(third, 5.0, 6.0, True, epoch=3),
        SnapshotTimeline(fourth, 7.0, 8.0, True),
        SnapshotTimeline(FIRST, 9.0),
    )
    running = SystemStatus(3, is_running=True, timelines=waves)
    assert builder.update(old | new, running) == 2
    assert builder.update(old | new, None) == 0
    late = {fourth: SnapshotOutcome(SnapshotPublished(fourth), 7.1, 8.1, "")}
    assert builder.update(old | new | late, None) == 1
    assert (builder.traced_count, builder.missed_count, len(said)) == (3, 1, 1)
    factory = SpanFactory(tmp_path)
    first, second, last = [factory.spans(*call.args) for call in exporter.put.call_args_list]
    (root,) = first
    assert (root.start_time, root.end_time) == (3e9, 4e9)
    assert root.status.description == "snapshot P2-2 was abandoned"
    assert dict(root.attributes or {})["stillframe.snapshot.missing"] == ("P3",)
    assert dict(second[-1].attributes or {})["stillframe.snapshot.epoch"] == 3
    assert (last[-1].start_time, last[-1].end_time) == (7e9, 8e9)


def test_without_the_extra_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of OpenTelemetry is needed otherwise."""
    monkeypatch.setitem(sys.modules, "stillframe.watch.span_exporter", None)
    store = Store.create(tmp_path / "store", description=load_topology(BANK).description)
    with (
        pytest.raises(UsageError, match=r"pip install 'stillframe\[otel\]'"),
        watch._exporter(store.path, "http://localhost:4318"),
    ):
        pass
    store.close()
