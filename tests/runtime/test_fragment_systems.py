"""Whole systems whose processes write what they record of snapshots themselves."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from stillframe import Topology, join
from stillframe.errors import StoreError
from stillframe.eventlog import writer
from stillframe.imports import load_topology
from stillframe.model import Abandoned, ProcessId, Reason, Snapshot, SnapshotId
from stillframe.runtime import control, events
from stillframe.runtime.control import OutputDirs
from stillframe.runtime.supervisor import child_processes, supervisor
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.fragments import FragmentManifest, FragmentPlace
from stillframe.store.manifest import CHANNELS, SnapshotEntry
from stillframe.store.parquet import read_parquet
from stillframe.store.store import Store
from stillframe.store.writer import local
from tests.runtime.local import LocalSystem
from tests.runtime.programs import Books, Player, Relay, Sink, Source, joining
from tests.runtime.test_async_handlers import Teller
from tests.runtime.test_join import pass_on, waiting_system
from tests.runtime.test_keyed_systems import Branch, SlowBranch, bank
from tests.runtime.test_system import fill_up, small_disk  # noqa: F401 - a fixture
from tests.runtime.test_takeover import kill_a_supervisor, resumed
from tests.runtime.watch import Watch, new_store, program, take
from tests.store.test_fragments import read_all

Found = dict[FragmentPlace, FragmentManifest]
OWNER = {"processes": "_process", "channels": "target", "messages": "_target"}
SYSTEMS: dict[str, Callable[[], Topology]] = {
    "handlers": lambda: Topology(
        {"A": Source(limit=2000), "B": Relay(), "C": Relay(), "D": Sink()},
        [("A", "B"), ("B", "C"), ("C", "D"), ("B", "D")],
    ),
    "players": lambda: Topology.mesh({"A": Player(serves=True), "B": Player(), "C": Sink()}),
    "async handlers": lambda: Topology.mesh({"A": Teller(), "B": Teller()}),
    "keyed": lambda: bank(Branch),
    "keyed, async handlers": lambda: bank(SlowBranch),
}


def rows_of(directory: Path, process: ProcessId) -> dict[str, list[dict[str, object]]]:
    """Return the rows in the files of a snapshot that its process `process` has recorded, by
    table; those of whole keyed fields and of changes side by side."""
    found = {}
    for path in directory.glob("*.parquet"):
        table = path.name.partition(".")[0]
        rows = read_parquet(path.read_bytes()).to_pylist()
        if path.name == CHANNELS:  # what was sent is what the other end has recorded
            rows = [{k: v for k, v in row.items() if k != "sent_count"} for row in rows]
        own = [row for row in rows if row[OWNER.get(table, "_process")] == process]
        if own or table in OWNER:
            found[table] = own
    return found


def check(directory: Path, entries: list[SnapshotEntry], snapshots: list[Snapshot]) -> Found:
    """Check that the fragments of each snapshot say what was published, and return all."""
    found = read_all(directory)
    for entry, snapshot in zip(entries, snapshots, strict=True):
        for process in (state.process for state in snapshot.state.processes):
            place = FragmentPlace(entry.epoch, entry.id, process)
            manifest = found[place]
            assert rows_of(place.path(directory), process) == rows_of(
                local(entry.directory), process
            )
            for state in snapshot.state.channels:
                if state.channel.source == process:
                    assert manifest.sent[state.channel.target] == state.sent_count
                if state.channel.target == process:
                    received = manifest.received[state.channel.source]
                    assert received.count == state.received_count
                    assert received.recorded_count == state.message_count
    return found


def check_store(directory: Path, path: Path) -> Found:
    """Do the same for every snapshot in a store."""
    store = Store.open(path)
    entries = store.entries()
    return check(directory, entries, [store.load(entry.id) for entry in entries])


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_fragments_are_what_is_published(tmp_path: Path, name: str) -> None:
    """Of every process, with snapshots that overlap, whatever the handlers and fields are like."""
    topology, directory = SYSTEMS[name](), tmp_path / "fragments"

    async def main() -> None:
        system = LocalSystem(topology, tmp_path, traces=OutputDirs(fragments=str(directory)))
        async with asyncio.timeout(60), system:
            begun = [system.coordinator.begin(process) for process in topology.processes]
            await system.until(lambda: all(future.done() for future in begun))
            for _ in range(3):
                await system.take()
            assert troubles(system.events) == []

    asyncio.run(main())
    found = check_store(directory, tmp_path / "store")
    assert len(found) == len(topology.processes) * (len(topology.processes) + 3)
    assert any(one.base is not None for one in found.values()) == name.startswith("keyed")
    assert all(
        one.base is None or FragmentPlace(1, one.base, place.process) in found
        for place, one in found.items()
    )


def troubles(told: list[events.Event]) -> list[str]:
    """Return what was said of what cannot be written."""
    return [event.detail for event in told if isinstance(event, events.OutputFailed)]


def test_what_the_coordinator_gives_up_is_there(tmp_path: Path) -> None:
    """A snapshot that could not be published, though every process had recorded its part."""
    topology, directory = SYSTEMS["keyed"](), tmp_path / "fragments"

    def refuse(snapshot: Snapshot) -> SnapshotEntry:
        raise StoreError("the disk failed")

    async def main() -> SnapshotId:
        system = LocalSystem(topology, tmp_path, traces=OutputDirs(fragments=str(directory)))
        async with asyncio.timeout(60), system:
            await system.take()
            publish, system.store.publish = system.store.publish, refuse  # type: ignore[method-assign]
            outcome = await system.try_to_take()
            assert isinstance(outcome, Abandoned)
            assert outcome.reason is Reason.NOT_PUBLISHED
            system.store.publish = publish  # type: ignore[method-assign]
            await system.take()
            return outcome.snapshot

    lost = asyncio.run(main())
    found = check_store(directory, tmp_path / "store")
    given_up = {p.process: one for p, one in found.items() if p.snapshot == lost}
    assert given_up.keys() == topology.processes.keys()
    for source, one in given_up.items():
        for target, sent in one.sent.items():
            received = given_up[target].received[source]
            assert sent == received.count + received.recorded_count


def test_a_directory_that_cannot_be_is_told_once(tmp_path: Path) -> None:
    """By each process; the system goes on, and its snapshots are published."""
    (tmp_path / "file").touch()
    topology, directory = SYSTEMS["players"](), tmp_path / "file" / "fragments"

    async def main() -> None:
        system = LocalSystem(topology, tmp_path, traces=OutputDirs(fragments=str(directory)))
        async with asyncio.timeout(60), system:
            for _ in range(3):
                await system.take()
            await system.until(lambda: len(troubles(system.events)) == 3)
            await system.take()
        told = troubles(system.events)
        assert [words.split()[1] for words in sorted(told)] == ["A", "B", "C"]
        assert all("Not a directory" in words for words in told)

    asyncio.run(main())


def test_a_full_disk_costs_what_is_lost(
    tmp_path: Path,
    small_disk: Path,  # noqa: F811 - the fixture
) -> None:
    """It is told once by each process, snapshots are published as ever, and the next fragments are
    whole when there is room again."""
    directory, filler = small_disk / "fragments", small_disk / "filler"

    async def main() -> tuple[SnapshotId, SnapshotId]:
        system = LocalSystem(bank(), tmp_path, traces=OutputDirs(fragments=str(directory)))
        async with asyncio.timeout(60), system:
            await system.take()
            await system.until(lambda: len(list(directory.glob("e1/*/A-*"))) == 3)
            fill_up(filler)
            lost = (await system.take()).id
            await system.until(lambda: len(troubles(system.events)) == 3)
            filler.unlink()
            whole = (await system.take()).id
            await system.take()
            assert all("No space left" in words for words in troubles(system.events))
            assert len(troubles(system.events)) == 3
            return lost, whole

    lost, whole = asyncio.run(main())
    found = read_all(directory)
    assert len(found) == 9
    assert lost not in {place.snapshot for place in found}
    assert {place.process for place, one in found.items() if one.base is None} == set("ABC")
    assert all(one.base is None for place, one in found.items() if place.snapshot == whole)
    assert all(one.base in (None, whole) for one in found.values())


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes end by themselves, however busy the machine is."""
    monkeypatch.setattr(supervisor, "LOG_END_S", 60.0)


@pytest.mark.slow
@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=str)
def test_a_process_that_is_ended_leaves_whole_fragments(
    tmp_path: Path, number: signal.Signals
) -> None:
    """All that was put aside if it is asked to end, what was written if not; the next epoch is
    beside it, and nothing of it is based on what was before."""
    directory = tmp_path / "fragments"

    async def main() -> None:
        watch, store = Watch(), new_store(tmp_path, "rally")
        traces = OutputDirs(fragments=str(directory))
        async with (
            asyncio.timeout(60),
            Supervisor(
                program("rally"), store, SupervisorConfig(outputs=traces), emit=watch.emit
            ) as system,
        ):
            await take(system)
            os.kill(system.children["B"].pid, number)
            await watch.until_epoch(2)
            await take(system)
        store.close()

    asyncio.run(main())
    store = Store.open(tmp_path / "store")
    first, second = store.entries()
    found = read_all(directory)
    if number == signal.SIGTERM:
        assert FragmentPlace(1, first.id, "B") in found
    wanted = {FragmentPlace(2, second.id, process) for process in "AB"}
    assert wanted <= found.keys()
    assert check(directory, [second], [store.load(second.id)]) == found


@pytest.mark.slow
def test_a_stop_waits_until_fragments_are_written(tmp_path: Path) -> None:
    """On a busy machine the first takes seconds: a process that is killed meanwhile leaves none."""
    directory = tmp_path / "fragments"

    async def main() -> SnapshotId:
        reference, traces = (
            "tests.runtime.slow_disk:slow_disk",
            OutputDirs(fragments=str(directory)),
        )
        description = load_topology(reference).description
        store = Store.create(tmp_path / "store", description=description, reference=reference)
        async with (
            asyncio.timeout(60),
            Supervisor(reference, store, SupervisorConfig(outputs=traces)) as it,
        ):
            taken = await take(it)
        store.close()
        return taken.id

    snapshot = asyncio.run(main())
    assert read_all(directory).keys() == {FragmentPlace(1, snapshot, "A")}


def test_a_process_has_as_long_as_it_waits_for_its_disk() -> None:
    """It gives up before it is killed: what it has to write for longer than that is lost."""
    assert child_processes.LOG_END_S > writer.CLOSE_S_MAX + control.CLOSE_S_MAX


@pytest.mark.slow
@pytest.mark.usefixtures("unhurried")
def test_a_joined_program_writes_its_fragments(tmp_path: Path) -> None:
    """Beside those of the processes that the system starts itself."""
    directory, books, place = tmp_path / "fragments", Books(), tmp_path / "store"

    async def main() -> None:
        async with (
            waiting_system(tmp_path, "joining", fragments=directory) as (system, _),
            join("J", topology=joining, store=place, state=books, fragments=directory) as me,
        ):
            passing = asyncio.get_running_loop().create_task(pass_on(me, books))
            for _ in range(3):
                await take(system)
            passing.cancel()
            await asyncio.wait([passing])

    asyncio.run(main())
    found = check_store(directory, place)
    assert {place.process for place in found} == {"A", "J", "S"}


@pytest.mark.slow
@pytest.mark.usefixtures("unhurried")
def test_who_is_taken_over_goes_on_writing(tmp_path: Path) -> None:
    """The processes outlive their coordinator, and so does what they write."""
    directory = tmp_path / "fragments"

    async def main() -> None:
        await kill_a_supervisor(tmp_path, "rally", "waits", "60", str(directory))
        traces = OutputDirs(fragments=str(directory))
        async with (
            asyncio.timeout(60),
            resumed(tmp_path, "rally", traces=traces) as (system, watch),
        ):
            await take(system)
            assert len(watch.of(events.TakenOver)) == 1

    asyncio.run(main())
    found = check_store(directory, tmp_path / "store")
    assert {(place.epoch, str(place.snapshot)) for place in found} == {(1, "A-1"), (1, "A-2")}
