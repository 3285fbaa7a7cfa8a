"""Outboxes of running processes: what commits their entries, and when."""

import asyncio
import json
import re
import threading
from collections.abc import Callable
from dataclasses import field
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from stillframe import Channel, Due, Message, Outbox, Process, Topology, every
from stillframe.cli.app import app
from stillframe.errors import StoreError, UsageError
from stillframe.model import Abandoned, Batch, IncomingRecord, Reason, Snapshot, SnapshotId
from stillframe.outbox import SafePoint, no_commit
from stillframe.pipeline import Pipeline
from stillframe.pipeline.service import join as join_service
from stillframe.restore import start_states
from stillframe.runtime import control
from stillframe.runtime.coordinator.membership import Membership
from stillframe.runtime.process.loop_host import LoopHost
from stillframe.sim import SmallSystem, World, explore, initiations
from stillframe.sim.campaign import RunConfig, run_seed
from stillframe.sim.checker import Invariant
from stillframe.sim.choices import Initiate
from stillframe.sim.exploration import invariants_hold
from stillframe.sim.scheduler import Load
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from tests.runtime.local import LocalSystem


class Beat(Message):
    """One."""

    count: int


class Source(Process):
    """Sends numbered beats."""

    count: int = 0

    @every(ms=0)
    def beat(self) -> None:
        """Send one more."""
        self.count += 1
        for target in self.outgoing:
            self.send(target, Beat(self.count))


class Till(Process):
    """Puts every beat, up to a limit."""

    beats: Outbox[int] = field(default_factory=lambda: Outbox(no_commit))
    count: int = 0

    def receive(self, channel: Channel, message: Beat) -> None:
        """Put it."""
        self.count = message.count
        if message.count <= 1000:
            self.beats.put(message.count)


def system_of(commit: Callable[[Due[int]], Any]) -> tuple[Till, Topology]:
    """Return a source and a till that commits like this."""
    till = Till(beats=Outbox(commit))
    return till, Topology({"A": Source(), "till": till}, [("A", "till")])


def recorded_of(taken: Snapshot, topology: Topology) -> Outbox[int]:
    """Return what a snapshot has of the outbox."""
    [state] = [state for state in taken.state.processes if state.process == "till"]
    beats = topology.codecs["till"].decode(state.encoded)["beats"]
    assert isinstance(beats, Outbox)
    return beats


def run(main: Any) -> None:
    """Run it, but not forever."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main

    asyncio.run(bounded())


def test_entries_are_committed_when_their_snapshot_is_published(tmp_path: Path) -> None:
    """Those before the cut, in the order of ``put`` and once; the rest waits for the next."""
    calls: list[list[int]] = []
    till, topology = system_of(lambda due: calls.append(due.items))

    async def main() -> None:
        async with LocalSystem(topology, tmp_path) as system:
            await system.until(lambda: till.count > 10)
            assert calls == []
            for round_count in (1, 2):
                taken = await system.take()
                recorded = list(recorded_of(taken, topology))
                await system.until(lambda count=round_count: len(calls) == count)  # type: ignore[misc]
                assert calls[-1] == recorded
            committed = list(chain(*calls))
            assert committed == list(range(1, len(committed) + 1))

    run(main())


class Two(Process):
    """Puts odd beats into one outbox, and even ones into another."""

    odd: Outbox[int] = field(default_factory=lambda: Outbox(no_commit))
    even: Outbox[int] = field(default_factory=lambda: Outbox(no_commit))

    def receive(self, channel: Channel, message: Beat) -> None:
        """Put it."""
        (self.odd if message.count % 2 else self.even).put(message.count)


@pytest.mark.parametrize("is_async", [False, True])
def test_each_outbox_of_a_process_is_committed_alone(tmp_path: Path, *, is_async: bool) -> None:
    """In its own order, with its own marks, and one that waits for its receiver holds no other
    up."""
    calls: list[Due[int]] = []

    def note(due: Due[int]) -> None:
        calls.append(due)

    two = Two(odd=Outbox(never if is_async else note), even=Outbox(note))
    topology = Topology({"A": Quiet(), "two": two}, [("A", "two")])

    async def main() -> None:
        async with LocalSystem(topology, tmp_path) as system:
            for first in (1, 5):
                for count in range(first, first + 4):
                    system.hosts["A"].send("two", Beat(count))
                system.hosts["A"].flush()
                await system.until(lambda first=first: first + 3 in [*two.even])  # type: ignore[misc]
                await system.take()
                await system.until(lambda: not len(two.even))
            assert [*two.odd] == ([1, 3, 5, 7] if is_async else [])

    run(main())
    found = [(due.outbox, due.items) for due in calls]
    odd = [] if is_async else [("two.odd", [1, 3]), ("two.odd", [5, 7])]
    assert sorted(found) == sorted([("two.even", [2, 4]), ("two.even", [6, 8]), *odd])
    for name in ("two.odd", "two.even"):
        dues = [due for due in calls if due.outbox == name]
        assert [due.before for due in dues] == ["", *(due.mark for due in dues)][: len(dues)]


class Quiet(Process):
    """Sends what the test sends."""


@pytest.mark.parametrize("is_async", [False, True])
def test_a_notice_commits_nothing_behind_its_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_async: bool
) -> None:
    """Though a later snapshot was recorded before it came: that one is abandoned, and its entry
    waits for the next. Nor does ``until_safe`` return."""
    calls: list[list[int]] = []
    gate = threading.Event()
    waiting: list[asyncio.Future[None]] = []

    def note(due: Due[int]) -> None:
        calls.append(due.items)

    async def note_later(due: Due[int]) -> None:
        note(due)

    till = Till(beats=Outbox(note_later if is_async else note))
    topology = Topology({"A": Quiet(), "till": till}, [("A", "till")])

    async def main() -> None:
        async with LocalSystem(topology, tmp_path) as system:
            publish = system.store.publish

            def publish_late(snapshot: Snapshot) -> SnapshotEntry:
                assert gate.wait(30)
                if snapshot.id.number == 2:
                    raise StoreError("the disk is full")
                return publish(snapshot)

            monkeypatch.setattr(system.store, "publish", publish_late)
            for count in (1, 2):
                system.hosts["A"].send("till", Beat(count))
                system.hosts["A"].flush()
                await system.until(lambda count=count: till.count == count)  # type: ignore[misc]
                if isinstance(host := system.hosts["till"], LoopHost):
                    waiting.append(asyncio.ensure_future(host.until_safe()))
                    await asyncio.sleep(0)
                result = system.coordinator.begin("A")
                await system.until(lambda count=count: len(till.beats._safe._cuts) == count)  # type: ignore[misc]
            assert calls == []
            gate.set()
            await system.until(result.done)
            assert isinstance(result.result(), Abandoned)
            await system.until(lambda: not till.beats._safe._cuts and bool(calls))
            if isinstance(host, LoopHost):
                assert host._safe._cuts == {}
            assert [done.done() for done in waiting] == [True, False][: len(waiting)]
            await system.take()
            await system.until(lambda: len(calls) == 2)
            assert calls == [[1], [2]]
            await asyncio.gather(*waiting)

    run(main())


def test_an_outbox_that_was_replaced_is_named(tmp_path: Path) -> None:
    """Nothing would commit its entries, so the reason of the abandoned snapshot says it; in the
    simulator too."""
    calls: list[list[int]] = []
    till, topology = system_of(lambda due: calls.append(due.items))
    words = r"till: Till\.beats holds another Outbox than when the process began"

    async def main() -> None:
        async with LocalSystem(topology, tmp_path) as system:
            first, till.beats = till.beats, Outbox(no_commit)
            outcome = await system.try_to_take()
            assert isinstance(outcome, Abandoned)
            assert re.search(words, outcome.detail)
            till.beats = first
            await system.until(lambda: till.count > 10)
            await system.take()
            await system.until(lambda: bool(calls))

    run(main())
    world = World(topology)
    world.runners["till"].process.beats = Outbox(no_commit)  # type: ignore[attr-defined]
    world.take(Initiate("till", SnapshotId("till", 1)))
    assert isinstance(outcome := world.epoch.outcomes[SnapshotId("till", 1)], Abandoned)
    assert re.search(words.removeprefix("till: "), outcome.detail)


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_notice_waits_for_an_older_snapshot_and_none_follows_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_complete: bool
) -> None:
    """It could show the notice at one process, and not its cause at another. When it ends, complete
    or abandoned, the notice comes; it is no restore point itself, since the two overlap."""
    calls: list[list[int]] = []
    till, topology = system_of(lambda due: calls.append(due.items))
    old = SnapshotId("A", 1)
    mine, held = ("A", old), list[control.SnapshotMessage]()

    async def main() -> None:
        async with LocalSystem(topology, tmp_path) as system:
            membership = system.coordinator.membership
            take, told = membership._on_message, record_notices(membership, monkeypatch)

            def hold(process: str, message: control.SnapshotMessage) -> None:
                match message:
                    case control.FragmentComplete(fragment) if (process, fragment.snapshot) == mine:
                        held.append(message)
                    case _:
                        take(process, message)

            monkeypatch.setattr(membership, "_on_message", hold)
            await system.until(lambda: till.count > 10)
            older, newer = system.coordinator.begin("A"), system.coordinator.begin("A")
            await system.until(lambda: newer.done() and bool(held))
            assert (told, calls, older.done()) == ([], [], False)
            if is_complete:
                take("A", held[0])
            else:
                system.coordinator._abandon(old, Reason.DEADLINE)
            await system.until(lambda: older.done() and bool(calls))
            assert told == [SnapshotId("A", 2)]
            assert isinstance(older.result(), SnapshotEntry) is is_complete

    run(main())


def record_notices(membership: Membership, patch: pytest.MonkeyPatch) -> list[SnapshotId]:
    """Return a list to which each snapshot is added of which processes are notified."""
    told: list[SnapshotId] = []
    broadcast = membership.broadcast

    def record(message: control.ToProcess, **options: Any) -> None:
        if isinstance(message, control.Published):
            told.append(message.snapshot)
        broadcast(message, **options)

    patch.setattr(membership, "broadcast", record)
    return told


async def never(due: Due[int]) -> None:
    """Wait for a receiver that does not answer."""
    await asyncio.Event().wait()


def test_an_async_commit_does_not_hold_the_process_up(tmp_path: Path) -> None:
    """While it waits, messages are handled and snapshots published; its entries stay recorded."""
    till, topology = system_of(never)

    async def main() -> None:
        async with LocalSystem(topology, tmp_path) as system:
            await system.until(lambda: till.count > 10)
            await system.take()
            before = till.count
            await system.until(lambda: till.count > before)
            taken = await system.take()
            assert list(recorded_of(taken, topology))[:10] == list(range(1, 11))

    run(main())


def test_an_async_commit_is_followed_by_the_next(tmp_path: Path) -> None:
    """Entries that become safe while it waits come in the next call, after it has returned."""
    calls: list[list[int]] = []
    gate = asyncio.Event()

    async def commit(due: Due[int]) -> None:
        calls.append(due.items)
        await gate.wait()

    till, topology = system_of(commit)

    async def main() -> None:
        async with LocalSystem(topology, tmp_path) as system:
            for count in (1, 10, 20):
                await system.until(lambda count=count: till.count > count)  # type: ignore[misc]
                await system.take()
            assert len(calls) == 1
            gate.set()
            await system.until(lambda: len(calls) == 2)
            committed = list(chain(*calls))
            assert committed == list(range(1, len(committed) + 1))
            assert len(committed) >= 20
            await system.until(lambda: not list(till.beats) or next(iter(till.beats)) > 20)

    run(main())


def refuse(due: Due[int]) -> None:
    """Raise."""
    raise OSError("no connection")


async def refuse_later(due: Due[int]) -> None:
    """Raise after a while."""
    await asyncio.sleep(0)
    raise OSError("no connection")


def returns(due: Due[int]) -> int:
    """Return what nobody reads."""
    return 1


@pytest.mark.parametrize(
    ("commit", "words"),
    [
        (refuse, r"process till: till\.beats\.commit\(\) raised OSError: no connection"),
        (refuse_later, r"process till: till\.beats\.commit\(\) raised OSError: no connection"),
        (returns, r"till\.beats\.commit\(\) raised TypeError: it returned a value"),
    ],
)
def test_a_commit_that_raises_fails_the_process(
    tmp_path: Path, commit: Callable[[Due[int]], Any], words: str
) -> None:
    """As a handler that raises does; the entries are kept for the restore."""
    till, topology = system_of(commit)

    async def main() -> None:
        async with LocalSystem(topology, tmp_path, may_fail=True) as system:
            await system.until(lambda: till.count > 0)
            _ = system.coordinator.begin("A")
            await system.until(lambda: bool(system.failures))
            with pytest.raises(type(system.failures[0]), match=words):
                raise system.failures[0]
            assert next(iter(till.beats)) == 1

    run(main())


@pytest.mark.parametrize("is_async", [False, True])
def test_recorded_entries_are_committed_after_a_restore(tmp_path: Path, *, is_async: bool) -> None:
    """Without another snapshot, with the keys that they had before the death."""
    first, topology = system_of(never)
    calls: list[tuple[str, ...]] = []

    def note(due: Due[int]) -> None:
        calls.append(tuple(entry.key for entry in due.entries))

    async def note_later(due: Due[int]) -> None:
        note(due)

    _, later = system_of(note_later if is_async else note)
    keys: list[str] = []

    async def main() -> None:
        async with LocalSystem(topology, tmp_path / "one") as system:
            await system.until(lambda: first.count > 5)
            taken = await system.take()
            entries = recorded_of(taken, topology).recorded()["entries"]
            keys.extend(entry.key for entry in entries)
        starts = start_states(taken, topology.description)
        async with LocalSystem(later, tmp_path / "two", starts=starts) as system:
            await system.until(lambda: bool(calls))
            assert [*calls[0]] == keys

    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    run(main())


def test_a_process_whose_first_commit_raises_receives_nothing(tmp_path: Path) -> None:
    """What was in transit waits for the next restore, too: no step follows a failure."""
    first = Till()
    topology = Topology({"A": Quiet(), "till": first}, [("A", "till")])
    again = Till(beats=Outbox(refuse))
    later = Topology({"A": Quiet(), "till": again}, [("A", "till")])

    async def main() -> None:
        async with LocalSystem(topology, tmp_path / "one") as system:
            system.hosts["A"].send("till", Beat(1))
            system.hosts["A"].flush()
            await system.until(lambda: first.count == 1)
            taken = await system.take()
        starts = start_states(taken, topology.description)
        in_transit = Batch.of(2, [msgspec.msgpack.encode(Beat(2))])
        incoming = (IncomingRecord("A", 1, (in_transit,)),)
        starts["till"] = msgspec.structs.replace(starts["till"], incoming=incoming)
        starts["A"] = msgspec.structs.replace(starts["A"], sent_counts={"till": 2})
        async with LocalSystem(later, tmp_path / "two", starts=starts, may_fail=True) as system:
            await system.until(lambda: bool(system.failures))
            assert again.count == 1

    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    run(main())


class Payer(Process):
    """Beats for the others, puts what it receives, and draws chance from a field."""

    beats: Outbox[Beat] = field(default_factory=lambda: Outbox(no_commit))
    count: int = 0

    @every(ms=0)
    def beat(self) -> None:
        """Send one more to each."""
        self.count += 1
        for target in self.outgoing:
            self.send(target, Beat(self.count))

    def receive(self, channel: Channel, message: Beat) -> None:
        """Put it."""
        self.beats.put(message)


MESH = RunConfig(
    topology=Topology.mesh({name: Payer() for name in "ABC"}), load=Load(safety_ms=40.0)
)
PAIR = Topology.mesh({name: Payer() for name in "AB"})
OVERLAPPING = SmallSystem(
    topology=PAIR, acts={"A": ("beat",)}, initiations=initiations(PAIR, "A", "B")
)


def test_simulated_outboxes_commit_nothing_that_is_taken_back() -> None:
    """Over crashes, restores and overlapping snapshots every commit continues the one before, and
    the checker finds every promise kept."""
    runs = [run_seed(seed, MESH) for seed in range(10)]
    assert [str(run.violation) for run in runs if run.violation is not None] == []
    committed_count = 0
    for simulated in runs:
        marks: dict[str, str] = {}
        for epoch in simulated.world.epochs:
            for _, due in epoch.committed:
                rest = due.after(marks.get(due.outbox))
                committed_count += len(rest.entries)
                marks[due.outbox] = rest.mark
    assert committed_count > 100
    assert any(len(simulated.world.epochs) > 1 for simulated in runs)


def test_no_interleaving_of_two_snapshots_commits_too_early() -> None:
    """The checker judges each commit by the state in the snapshot that was published."""
    found = explore(
        OVERLAPPING, always={"invariants": invariants_hold}, sometimes={"commits": commits}
    )
    assert found.broken == {}
    assert "commits" in found.seen


def commits(world: World) -> str:
    """*Sometimes*: an outbox has committed something."""
    return "it does" if world.epoch.committed else ""


def take_cut_for_published(safe: SafePoint, snapshot: SnapshotId, count: int) -> None:
    """Break the rule of ``SafePoint.cut``."""
    safe.count = max(safe.count, count)


def test_the_checker_finds_what_is_committed_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both by chance and in every interleaving: here an outbox takes its cut for published."""
    monkeypatch.setattr(SafePoint, "cut", take_cut_for_published)
    violations = [run_seed(seed, MESH).violation for seed in range(10)]
    assert Invariant.SAFE in {found.invariant for found in violations if found is not None}
    broken = explore(OVERLAPPING, always={"invariants": invariants_hold}).broken
    assert Invariant.SAFE.value in broken["invariants"].what


def test_a_service_has_no_outbox(tmp_path: Path) -> None:
    """Only processes of a system commit the entries of one."""
    root = Pipeline.create(tmp_path / "p", services={"till": Till}, channels=()).path
    with (
        pytest.raises(UsageError, match=r"service till: Till\.beats is an Outbox"),
        join_service("till", pipeline=root, state=Till()),
    ):
        raise AssertionError("it joined")


def test_entries_can_be_read_in_a_store(tmp_path: Path) -> None:
    """``show``, ``diff`` and SQL see the items, first of all."""
    till = Till(beats=Outbox(never))
    topology = Topology({"A": Quiet(), "till": till}, [("A", "till")])

    async def main() -> None:
        async with LocalSystem(topology, tmp_path) as system:
            for count in (7, 8):
                system.hosts["A"].send("till", Beat(count))
                system.hosts["A"].flush()
                await system.until(lambda count=count: till.count == count)  # type: ignore[misc]
                taken.append(await system.take())

    taken: list[Snapshot] = []
    run(main())
    store, (first, second) = tmp_path / "store", taken

    def printed(*command: object) -> str:
        return CliRunner().invoke(app, [*map(str, command)]).output

    assert '{"entries":[{"item":7,"key":"' in printed("show", store, first.id).replace("'", '"')
    [field, _] = json.loads(printed("diff", store, first.id, second.id, "--json").splitlines()[0])[
        "fields"
    ]
    assert [entry["item"] for entry in field["before"]["entries"]] == [7]
    assert [entry["item"] for entry in field["after"]["entries"]] == [7, 8]
    column = Store.open(store).tables(second.id)["processes"]["beats"].to_pylist()[1]
    assert [entry["item"] for entry in json.loads(column)["entries"]] == [7, 8]
