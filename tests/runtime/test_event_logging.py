"""What processes write into an event log while they run is what they did."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from stillframe import Process, Topology, join
from stillframe.errors import UsageError
from stillframe.eventlog import writer
from stillframe.eventlog.reader import epochs, list_segments, read_segment
from stillframe.eventlog.to_trace import read_trace
from stillframe.model import Channel, Snapshot, SnapshotId
from stillframe.runtime import events
from stillframe.runtime.control import OutputDirs
from stillframe.runtime.process import event_logging, host
from stillframe.runtime.process.event_logging import check_epoch_unused
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.storage.location import Location
from stillframe.store.store import Store
from stillframe.trace import MessageId, Trace
from tests.runtime.links import until
from tests.runtime.local import LocalSystem
from tests.runtime.programs import Books, Player, Raises, Relay, Sink, Source, joining
from tests.runtime.test_async_handlers import Teller
from tests.runtime.test_join import pass_on, until_the_end, waiting_system
from tests.runtime.test_system import fill_up, small_disk  # noqa: F401 - a fixture
from tests.runtime.watch import Watch, new_store, program, take

DELIBERATED = [0.0]


class Deliberate(Process):
    """Takes a quarter of a second of its own to record."""

    def on_cut(self, snapshot: SnapshotId) -> None:
        """Let the time go by."""
        DELIBERATED[0] += 0.25


PAGE = Path(__file__).parent.parent.parent / "docs" / "history.md"


def check_log(log: Location, place: Path, epoch: int = 1) -> Trace:
    """Check every snapshot that was published in an epoch against the event log, and return the
    trace: the cut is consistent, and the channels hold exactly what was on the way."""
    store = Store.open(place)
    trace = read_trace(log, epoch)
    for entry in store.entries():
        if entry.epoch != epoch:
            continue
        snapshot = store.load(entry.id)
        cut = trace.cut_of(entry.id)
        assert trace.is_consistent(cut)
        assert trace.in_transit(cut) == {
            state.channel: tuple(
                MessageId(state.channel, number)
                for number in range(state.received_count + 1, state.sent_count + 1)
            )
            for state in snapshot.state.channels
        }
    return trace


MANY = {
    "handlers": lambda: Topology(
        {"A": Source(limit=2000), "B": Relay(), "C": Relay(), "D": Sink()},
        [("A", "B"), ("B", "C"), ("C", "D"), ("B", "D")],
    ),
    "players": lambda: Topology.mesh({"A": Player(serves=True), "B": Player(), "C": Sink()}),
    "async handlers": lambda: Topology.mesh({"A": Teller(), "B": Teller()}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_the_log_explains_every_snapshot(tmp_path: Path, name: str) -> None:
    """Whatever the handlers are like, and with snapshots that overlap: what the log says was on
    the way at a cut is what the snapshot holds."""
    topology = MANY[name]()

    async def main() -> None:
        system = LocalSystem(topology, tmp_path, traces=OutputDirs(str(tmp_path / "log")))
        async with asyncio.timeout(60), system:
            begun = [system.coordinator.begin(p) for _ in range(3) for p in topology.processes]
            await system.until(lambda: all(future.done() for future in begun))
            await system.take()
            assert system.troubles() == []

    asyncio.run(main())
    trace = check_log(tmp_path / "log", tmp_path / "store")
    assert trace.processes == tuple(topology.processes)
    assert len(trace.snapshots) == 3 * len(topology.processes) + 1
    assert trace.message_count > 0


def test_every_action_is_in_the_log(tmp_path: Path) -> None:
    """``start``, each message, what is done every now and then, and ``on_published``; and each
    message bears its number."""
    topology = Topology.mesh({"A": Player(serves=True), "B": Player()})

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            LocalSystem(topology, tmp_path, traces=OutputDirs(str(tmp_path / "log"))) as system,
        ):
            await system.take()
            await system.until(lambda: all(p.published for p in players))

    players = [p for p in topology.processes.values() if isinstance(p, Player)]
    asyncio.run(main())
    trace = check_log(tmp_path / "log", tmp_path / "store")
    lines = trace.lines
    assert lines["A"][0].sent == (MessageId(Channel("A", "B"), 1),)
    assert lines["B"][0].sent == lines["B"][0].accepted == ()
    assert lines["B"][1].accepted == (MessageId(Channel("A", "B"), 1),)
    assert lines["B"][1].sent == (MessageId(Channel("B", "A"), 1),)
    for player, name in zip(players, "AB", strict=True):
        accepted = sum(len(event.accepted) for event in lines[name])
        assert accepted == player.hit_count
        assert len(lines[name]) == accepted + 1 + len(player.published)


def test_the_action_that_failed_is_the_last_in_the_log(tmp_path: Path) -> None:
    """Whoever looks for the message on which a process failed finds it."""
    topology = Topology({"A": Source(limit=9), "B": Raises()}, [("A", "B")])

    async def main() -> None:
        system = LocalSystem(
            topology, tmp_path, may_fail=True, traces=OutputDirs(str(tmp_path / "log"))
        )
        async with asyncio.timeout(60), system:
            await system.until(lambda: bool(system.failures))

    asyncio.run(main())
    trace = read_trace(tmp_path / "log", 1)
    assert trace.lines["B"][-1].accepted == (MessageId(Channel("A", "B"), 7),)


def test_a_full_disk_is_told_and_stops_nothing(
    tmp_path: Path,
    small_disk: Path,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The processes go on, each says it once, and when there is room again the log says what it
    lacks; what there was before is still there."""
    monkeypatch.setattr(writer, "RETRY_S", 0.0)
    topology, log = Topology.mesh({"A": Player(serves=True), "B": Player()}), small_disk / "log"
    filler = small_disk / "filler"

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            LocalSystem(topology, tmp_path, traces=OutputDirs(str(log))) as system,
        ):

            def hand_over_until(condition: Callable[[], bool]) -> Awaitable[None]:
                for host in system.hosts.values():
                    host._tend_log()
                return system.until(condition)

            await hand_over_until(lambda: has_rows(log, "A") and has_rows(log, "B"))
            fill_up(filler)
            await hand_over_until(lambda: len(troubles(system.events)) == 2)
            filler.unlink()
            await system.take()

    asyncio.run(main())
    for process in "AB":
        first, *_, last = [p for p in list_segments(log) if p.header.process == process]
        assert first.row_count
        assert last.row_count
        assert last.header.lost_count > 0


def troubles(told: list[events.Event]) -> list[str]:
    """Return what was said of event logs."""
    return [event.detail for event in told if isinstance(event, events.OutputFailed)]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A system does not begin with an event log that holds an epoch which is to come."""
    check_epoch_unused(tmp_path / "none", 1)
    (tmp_path / "e3").mkdir()
    check_epoch_unused(tmp_path, 4)
    with pytest.raises(
        UsageError,
        match=r"already holds the event log of epoch 3.*starts epoch 2.*another directory",
    ):
        check_epoch_unused(tmp_path, 2)


def has_rows(log: Path, process: str) -> bool:
    """Return whether `process` has written something."""
    found = list_segments(log) if epochs(log) else []
    return any(part.header.process == process and part.row_count for part in found)


@pytest.mark.slow
def test_a_killed_process_and_its_system_leave_a_log(tmp_path: Path) -> None:
    """After kill -9 what was handed over is there, and the next epoch is beside it; what the others
    accepted and nobody can explain any more is no part of the trace."""
    log = tmp_path / "log"

    async def main() -> None:
        watch, store = Watch(), new_store(tmp_path, "rally")
        async with (
            asyncio.timeout(60),
            Supervisor(
                program("rally"),
                store,
                SupervisorConfig(outputs=OutputDirs(str(log))),
                emit=watch.emit,
            ) as system,
        ):
            await take(system)
            await until(lambda: has_rows(log, "B"))
            os.kill(system.children["B"].pid, signal.SIGKILL)
            await watch.until_epoch(2)
            await take(system)
            await system.restore(None)
            await take(system)
        store.close()

    asyncio.run(main())
    traces = {epoch: read_trace(log, epoch) for epoch in epochs(log)}
    assert [*traces] == [1, 2, 3]
    assert all(trace.event_count for trace in traces.values())
    endings = {(p.header.epoch, p.header.process): p.path.suffix for p in list_segments(log)}
    assert endings == {
        (epoch, process): ".arrows" if (epoch, process) == (1, "B") else ".parquet"
        for epoch in (1, 2, 3)
        for process in "AB"
    }
    for epoch in (2, 3):
        check_log(log, tmp_path / "store", epoch)


@pytest.mark.slow
def test_a_joined_program_writes_its_log(tmp_path: Path) -> None:
    """Each turn of its loop is one action, and the first is what it does before that."""
    log, books = tmp_path / "log", Books()

    async def main() -> None:
        async with waiting_system(tmp_path, "joining", log=log) as (system, watch):
            place = tmp_path / "store"
            async with join("J", topology=joining, store=place, state=books, log=log) as me:
                await until_the_end(me, books, system)
            await watch.until(lambda: len(watch.of(events.AwaitingProcesses)) == 2)
            async with join("J", topology=joining, store=place, state=books, log=log) as me:
                passing = asyncio.get_running_loop().create_task(pass_on(me, books))
                for _ in range(3):
                    await take(system)
                passing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await passing

    asyncio.run(main())
    trace = check_log(log, tmp_path / "store", 2)
    for event in trace.lines["J"]:
        assert len(event.accepted) <= 1
        assert not event.accepted or len(event.sent) == 1 or event == trace.lines["J"][-1]


@pytest.mark.slow
def test_a_process_that_is_terminated_writes_its_log_to_the_end(tmp_path: Path) -> None:
    """SIGTERM ends it as it always does, and its log has all that it did."""
    log = tmp_path / "log"

    async def main() -> None:
        watch, store = Watch(), new_store(tmp_path, "rally")
        async with (
            asyncio.timeout(60),
            Supervisor(
                program("rally"),
                store,
                SupervisorConfig(outputs=OutputDirs(str(log))),
                emit=watch.emit,
            ) as system,
        ):
            await take(system)
            os.kill(system.children["B"].pid, signal.SIGTERM)
            await watch.until_epoch(2)
            (died,) = watch.of(events.ProcessDied)
            assert (died.process, died.cause) == ("B", "it was killed by SIGTERM")
        store.close()

    asyncio.run(main())
    check_log(log, tmp_path / "store")


@pytest.mark.parametrize("process", ["A", "B"])
def test_without_a_log_nothing_is_noted(tmp_path: Path, process: str) -> None:
    """Who asks for no event log gets the functions that know of none."""
    topology = Topology.mesh({"A": Player(serves=True), "B": Player()})

    async def main() -> None:
        async with asyncio.timeout(60), LocalSystem(topology, tmp_path) as system:
            assert system.hosts[process].log is None
            subject = system.hosts[process].subject
            assert isinstance(subject, Process)
            assert system.hosts[process].send.__name__ == "send"

    asyncio.run(main())


def test_what_recording_takes_is_held_and_does_not_travel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker comes and the state is that when a step begins; markers are sent when it is over."""
    topology = Topology.mesh({"A": Deliberate(), "B": Deliberate()})
    clock = SimpleNamespace(perf_counter=lambda: DELIBERATED[0], time=lambda: DELIBERATED[0])
    DELIBERATED[0] = 1000.0
    monkeypatch.setattr(host, "time", clock)
    monkeypatch.setattr(event_logging, "time", clock)

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            LocalSystem(topology, tmp_path, traces=OutputDirs(str(tmp_path / "log"))) as system,
        ):
            await system.take()

    asyncio.run(main())
    rows = [
        row
        for p in list_segments(tmp_path / "log")
        for t in read_segment(p)
        for row in t.to_pylist()
    ]
    rows = [row for row in rows if row["snapshot"]]
    assert [(row["kind"], row["channel"], row["at"].timestamp()) for row in rows] == [
        ("recorded", None, 1000.0),
        ("marker sent", "A->B", 1000.25),
        ("marker accepted", "B->A", 1000.5),
        ("marker accepted", "A->B", 1000.25),
        ("recorded", None, 1000.25),
        ("marker sent", "B->A", 1000.5),
    ]


def test_the_documented_question_is_answered(tmp_path: Path) -> None:
    """The SQL of docs/history.md says what was in transit, and the snapshot holds that."""
    duckdb = pytest.importorskip("duckdb", reason="needs the extra 'sql'")
    blocks = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (statement,) = [block for block in blocks if "bank.log/e1" in block]

    async def main() -> Snapshot:
        topology, log = MANY["handlers"](), tmp_path / "bank.log"
        async with (
            asyncio.timeout(60),
            LocalSystem(topology, tmp_path, traces=OutputDirs(str(log))) as system,
        ):
            return await system.take()

    snapshot = asyncio.run(main())
    statement = statement.replace("bank.log", str(tmp_path / "bank.log"))
    found = duckdb.sql(statement.replace("P1-17", str(snapshot.id))).fetchall()
    held = {str(state.channel): state.message_count for state in snapshot.state.channels}
    assert {channel: count for channel, count in found if count} == {
        channel: count for channel, count in held.items() if count
    }
