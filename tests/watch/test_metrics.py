"""What the watcher tells of a system is what the system and its store say of themselves."""

import asyncio
import os
import re
import signal
import urllib.error
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from stillframe import Topology
from stillframe.cli.app import app
from stillframe.errors import StillframeError, Unavailable
from stillframe.imports import load_topology
from stillframe.protocol.stragglers import EndpointStatus, ProcessStatus
from stillframe.runtime.coordinator import snapshot_monitor
from stillframe.runtime.supervisor.admin_socket import (
    RestoreSnapshot,
    SystemStatus,
    send_command,
    serve_commands,
)
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.history import EventCounts
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from stillframe.store.writer import local
from stillframe.watch import metrics, system_target, target
from stillframe.watch.metrics import (
    COUNTER,
    METRICS,
    OBJECT_STORE,
    OBSERVATIONS,
    PIPELINES,
    TRACES,
    Histogram,
    MetricSet,
    MonotonicCounter,
    SystemCounters,
    exposition,
)
from stillframe.watch.predicate_status import DEFAULT_PREDICATES, PredicateMonitor
from stillframe.watch.system_target import ANSWER_S_MAX, SystemTarget
from tests.calm import BANK, TOTAL
from tests.runtime.programs import Sink
from tests.watch.scraping import (
    OPEN_METRICS,
    SCRAPE_EVERY_S,
    Scrape,
    Watcher,
    watching,
    watching_program,
)

TIMEOUT_S = 120
PLAIN = "text/plain;version=0.0.4"


def asked(*arguments: str) -> list[dict[str, Any]]:
    """Return the rows that a command of stillframe writes with ``--json``."""
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.stderr
    document = msgspec.json.decode(result.stdout)
    rows: list[dict[str, Any]] = document.get("snapshots") or document["history"]
    return rows


def check_store(scrape: Scrape, store: Store) -> None:
    """Check what is said of the store against ``stillframe list`` and ``stillframe events``."""
    listed, happened = asked("list", str(store.path)), asked("events", str(store.path))
    counts = Counter(row["event"] for row in happened)
    restores = [row for row in happened if row.get("restored_from") is not None]
    assert scrape.of("store_snapshots") == len(listed)
    assert scrape.of("snapshots_started_total") == counts["SnapshotBegan"]
    assert scrape.of("snapshots_published_total") == counts["SnapshotPublished"]
    abandoned = scrape.all_of("snapshots_abandoned_total")
    assert sum(abandoned.values()) == counts["SnapshotAbandoned"]
    assert sum(scrape.all_of("process_deaths_total").values()) == counts["ProcessDied"]
    assert scrape.of("restores_total") == len(restores)
    last = max(listed, key=lambda row: row["sequence"])
    assert scrape.of("last_snapshot_timestamp_seconds") == last["completed_at"]
    assert scrape.of("last_snapshot_size_bytes") == last["bytes"]
    assert scrape.of("last_snapshot_messages") == last["message_count"]
    assert scrape.of("last_snapshot_pause_seconds") == last["pause_s"]


async def until_messages_flow(watcher: Watcher, before: Scrape) -> Scrape:
    """Scrape until on each channel more was sent and received than `before`."""
    names = ("channel_sent_messages_total", "channel_received_messages_total")
    while True:
        now = await watcher.scrape()
        pairs = [(now.all_of(n)[k], v) for n in names for k, v in before.all_of(n).items()]
        if all(value > earlier for value, earlier in pairs):
            return now
        await asyncio.sleep(SCRAPE_EVERY_S)


async def live_through(system: Supervisor, store: Store, watcher: Watcher) -> Scrape:
    """Let the system take snapshots, lose a process, and be restored; return the last scrape."""
    bank = load_topology(BANK).description
    first = await watcher.scrape()
    assert (first.of("up"), first.of("epoch"), first.of("restores_total")) == (1, 1, 0)
    assert first.of("snapshot_duration_seconds_count") == 0  # those were there before
    assert first.of("channels") == len(bank.channels) == len(first.all_of("channel_connected"))
    assert all(value == 1 for value in first.all_of("channel_connected").values())
    assert all(value == 1 for value in first.all_of("process_up").values())
    assert [e async for e in taken(system, 3)][-1] == store.entries()[-1]
    new = store.entries()[-3:]
    second = await watcher.scrape(PLAIN)
    check_store(second, store)
    assert second.of("snapshot_duration_seconds_count") == 3
    assert second.of("snapshot_duration_seconds_sum") == pytest.approx(
        sum(entry.completed_at - entry.initiated_at for entry in new)
    )
    assert second.of("snapshot_size_bytes_sum") == sum(entry.bytes for entry in new)
    assert second.of("snapshot_messages_sum") == sum(entry.message_count for entry in new)
    judged = await watcher.until("evaluated_snapshot_number", new[-1].id.number)
    assert judged.of("conserved_amount", quantity="money") == TOTAL
    assert set(judged.all_of("predicate_holds").values()) == {0}
    assert len(judged.all_of("predicate_holds")) == len(DEFAULT_PREDICATES)
    flowing = await until_messages_flow(watcher, judged)
    os.kill(system.children["P3"].pid, signal.SIGKILL)
    dead = await watcher.until("process_deaths_total", 1, process="P3")
    await system.until_running()
    assert dead.of("process_deaths_total", process="P2") == 0
    back = await watcher.until("up", 1)
    back = await watcher.until("epoch", 2)
    assert back.of("restores_total") == 1
    back = await until_messages_flow(watcher, flowing)
    await send_command(store.path, RestoreSnapshot(new[0].id))
    restored = await watcher.until("epoch", 3)
    assert restored.of("restores_total") == 2
    assert [e async for e in taken(system, 2)]
    last = await until_messages_flow(watcher, restored)
    assert last.of("snapshot_duration_seconds_count") == 5
    return last


async def taken(system: Supervisor, count: int) -> AsyncIterator[SnapshotEntry]:
    """Take some snapshots, which must be published."""
    for _ in range(count):
        outcome = await system.snapshot()
        assert isinstance(outcome, SnapshotEntry), str(outcome)
        yield outcome


@pytest.mark.slow
def test_a_life_of_a_bank_in_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is scraped is what the store says; counters go up only, through a death, a restore and
    another watcher; and when the system is stopped that is told as well."""
    monkeypatch.setattr(snapshot_monitor, "ANSWER_S", 0.9 * ANSWER_S_MAX)  # the machine may be busy

    async def main() -> None:
        description = load_topology(BANK).description
        store = Store.create(tmp_path / "store", description=description, reference=BANK)
        async with asyncio.timeout(TIMEOUT_S):
            async with Supervisor(BANK, store) as system, serve_commands(system):
                assert [e async for e in taken(system, 2)]
                async with watching(local(store.path)) as watcher:
                    last = await live_through(system, store, watcher)
                check_store(last, store)
                async with watching(local(store.path)) as watcher:
                    again = await watcher.scrape()
                check_store(again, store)
                for name in ("restores_total", "snapshots_published_total", "epoch"):
                    assert again.of(name) == last.of(name)
            async with watching(local(store.path)) as watcher:
                stopped = await watcher.scrape()
                told = {name for name, _ in stopped.samples}
        assert (stopped.of("up"), stopped.of("epoch")) == (0, 3)
        assert stopped.of("processes", status="stopped") == len(description.processes)
        assert "stillframe_channel_connected" not in told
        check_store(stopped, store)
        unused = [
            name
            for name, metric in METRICS.items()
            if name not in TRACES | PIPELINES | OBSERVATIONS | OBJECT_STORE
            and not told_of(last, name, is_histogram=bool(metric.bounds))
        ]
        assert unused == []
        store.close()

    asyncio.run(main())


def told_of(scrape: Scrape, name: str, *, is_histogram: bool) -> bool:
    """Return whether anything is said of a metric."""
    return bool(scrape.all_of(f"{name}_count" if is_histogram else name))


@pytest.mark.slow
def test_a_snapshot_that_is_held_up_is_told_with_who_holds_it_up(tmp_path: Path) -> None:
    """While a process is stopped it is silent, and awaited; and then the reason is counted."""

    async def main() -> None:
        description = load_topology(BANK).description
        store = Store.create(tmp_path / "store", description=description, reference=BANK)
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor(BANK, store, SupervisorConfig(timeout_s=TIMEOUT_S)) as system,
            serve_commands(system),
            watching(local(store.path)) as watcher,
        ):
            os.kill(system.children["P4"].pid, signal.SIGSTOP)
            result = await system.begin_snapshot("P2")
            held = await watcher.until("process_silent", 1, process="P4")
            held = await watcher.until("process_straggler", 1, process="P4")
            assert held.of("process_up", process="P4") == 0
            assert held.of("process_pending", process="P4") == 1
            assert held.of("snapshots_pending") == 1
            assert 0 < held.of("oldest_pending_snapshot_seconds") < TIMEOUT_S
            os.kill(system.children["P4"].pid, signal.SIGCONT)
            assert isinstance(await result, SnapshotEntry)
            free = await watcher.until("snapshots_pending", 0)
            assert free.of("pending_processes") == 0
            os.kill(system.children["P4"].pid, signal.SIGSTOP)
            result = await system.begin_snapshot("P2")
            os.kill(system.children["P4"].pid, signal.SIGKILL)
            assert not isinstance(await result, SnapshotEntry)
            await watcher.until("snapshots_abandoned_total", 1, reason="process_died")
        store.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_scrape_with_a_token_needs_the_token(tmp_path: Path) -> None:
    """As Prometheus sends it; without it nothing is told."""

    async def main() -> None:
        description = load_topology(BANK).description
        Store.create(tmp_path / "store", description=description, reference=BANK).close()
        token = tmp_path / "token"
        async with (
            asyncio.timeout(TIMEOUT_S),
            watching_program(tmp_path / "store", "--token-file", str(token)) as watcher,
        ):
            bearer = {"Authorization": f"Bearer {token.read_text().strip()}"}
            scrape = await watcher.scrape(headers=bearer)
            assert scrape.of("up") == scrape.of("epoch") == scrape.of("store_snapshots") == 0
            with pytest.raises(urllib.error.HTTPError, match="401"):
                await watcher.scrape()

    asyncio.run(main())


def target_of(directory: Path) -> SystemTarget:
    """Return what observes a system that never ran."""
    description = load_topology(BANK).description
    Store.create(directory / "store", description=description, reference=BANK).close()
    store = Store.open(directory / "store")
    return SystemTarget(store, PredicateMonitor(store, DEFAULT_PREDICATES, None), None)


def parsed(found: MetricSet) -> Scrape:
    """Return what is said, as whoever scrapes reads it."""
    text, kind = exposition(found, OPEN_METRICS)
    assert kind.startswith("application/openmetrics-text")
    return Scrape(text.decode(), is_open=True)


def test_those_who_scrape_at_once_share_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so do those who come right after it."""
    observed = target_of(tmp_path)

    async def main() -> list[MetricSet]:
        return await asyncio.gather(*(observed.metrics() for _ in range(20)))

    monkeypatch.setattr(target, "FRESH_S", 60.0)
    assert {parsed(f).of("watch_polls_total") for f in asyncio.run(main())} == {1}


@pytest.mark.parametrize("how", ["broken", "hanging", "stopped"])
def test_a_system_that_cannot_be_asked_is_trouble_and_one_that_was_stopped_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The scrape comes all the same."""

    async def observe(*_: object) -> SystemStatus:
        if how == "broken":
            raise StillframeError("what it says cannot be read")
        if how == "stopped":
            raise Unavailable("no system runs")
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(system_target, "query_status", observe)
    monkeypatch.setattr(system_target, "ANSWER_S_MAX", 0.01)
    scrape = parsed(asyncio.run(target_of(tmp_path).metrics()))
    assert scrape.of("up") == 0
    assert scrape.of("watch_error", about="system") == (how != "stopped")
    assert scrape.of("process_silent", process="P1") == (how != "stopped")


def test_a_damaged_store_is_trouble(tmp_path: Path) -> None:
    """What can be told is told."""
    observed = target_of(tmp_path)
    (tmp_path / "store" / "history.ndjson").write_text("?\n")
    scrape = parsed(asyncio.run(observed.metrics()))
    assert scrape.of("watch_error", about="store") == 1


def mesh(count: int) -> Topology:
    """Return so many processes that may all send to each other."""
    return Topology.mesh({f"P{number}": Sink() for number in range(count)})


def test_series_are_bounded_and_what_is_left_out_is_added_up() -> None:
    """In a series without source and target, so that sums over all channels stay right."""
    description = mesh(40).description
    counters = SystemCounters()
    for count in (100, 103):
        end = EndpointStatus(is_connected=True, unhandled_bytes=2, count=count)
        behind = EndpointStatus(is_connected=True, unhandled_bytes=5, count=count - 1)
        observed = SystemStatus(
            1,
            is_running=True,
            statuses={
                process: ProcessStatus(
                    is_busy=False,
                    snapshots=(),
                    incoming=dict.fromkeys(description.incoming(process), behind),
                    outgoing=dict.fromkeys(description.outgoing(process), end),
                )
                for process in description.processes
            },
        )
        counters.add_messages(observed)
    found = MetricSet()
    sample = metrics.SystemSample(
        description=description,
        epoch=1,
        status=observed,
        process_statuses=["running"] * len(description.processes),
        counts=EventCounts(deaths={"P1": 2, "gone": 3}, abandoned={"DEADLINE": 1, "LATER": 2}),
        predicates=None,
        snapshot_count=0,
        savepoint_count=0,
    )
    metrics.collect_system(found, sample, counters)
    scrape = parsed(found)
    count = len(description.channels)
    assert count > metrics.CHANNEL_COUNT_MAX
    for name, each in (
        ("channel_sent_messages_total", 3),
        ("channel_in_transit_messages", 1),
        ("channel_unhandled_bytes", 5),
    ):
        values = scrape.all_of(name)
        assert len(values) == metrics.CHANNEL_COUNT_MAX + 1
        assert sum(values.values()) == count * each
    assert scrape.of("left_out", kind="channel") == count - metrics.CHANNEL_COUNT_MAX
    assert scrape.of("channel_connected", source="", target="") == 1
    assert scrape.of("process_deaths_total", process="P1") == 2
    assert scrape.of("process_deaths_total", process="") == 3
    assert scrape.of("snapshots_abandoned_total", reason="deadline") == 1
    assert scrape.of("snapshots_abandoned_total", reason="other") == 2


def test_what_a_restore_takes_back_is_not_taken_for_a_rise() -> None:
    """Neither is what was counted before the watcher began."""
    counter = MonotonicCounter()
    for epoch, count, total in [(1, 50, 0), (1, 70, 20), (2, 60, 20), (2, 61, 21), (4, 99, 21)]:
        counter.update(epoch, count)
        assert counter.total == total


def test_a_value_is_in_all_buckets_that_reach_it() -> None:
    """The bound of a bucket belongs to it, and the last one has all."""
    histogram = Histogram("snapshot_messages")
    for value in (0, 1, 2, 10, 11, 1e9):
        histogram.observe(value)
    assert histogram.buckets()[:4] == [("0.0", 1), ("1.0", 2), ("10.0", 4), ("100.0", 5)]
    assert histogram.buckets()[-1] == ("+Inf", 6)


def test_names_follow_the_rules_of_prometheus() -> None:
    """Only counters end with `_total`; base units come last; each says what it means."""
    for name, metric in METRICS.items():
        assert re.fullmatch(r"[a-z][a-z_]*", name)
        assert (metric.kind == COUNTER) == name.endswith("_total")
        assert metric.help.endswith(".")
        if metric.unit in ("seconds", "bytes"):
            assert name.removesuffix("_total").endswith(metric.unit)
        assert not {"le", "quantile", "job", "instance"} & set(metric.labels)
