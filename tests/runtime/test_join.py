"""Programs with their own event loop that take the place of a process."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from stillframe import Due, Outbox, join
from stillframe.errors import Refused, Unavailable, UsageError
from stillframe.model import Abandoned, Snapshot
from stillframe.runtime import events
from stillframe.runtime.control import OutputDirs
from stillframe.runtime.process.join import JoinedProcess
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.store import Store
from tests.runtime.links import until
from tests.runtime.programs import Books, Orders, Source, Tick, joining, ordering, sending
from tests.runtime.watch import Watch, new_store, program, take


async def pass_on(me: JoinedProcess, books: Books) -> None:
    """Receive ticks, which must come in order, and send each on."""
    async for channel, message in me:
        assert channel.source == "A"
        books.received += 1
        assert message == Tick(books.received)
        books.sent += 1
        await me.send("S", message)


def books_in(snapshot: Snapshot) -> Books:
    """Return what J recorded."""
    state = next(state for state in snapshot.state.processes if state.process == "J")
    return msgspec.msgpack.decode(state.encoded, type=Books)


def check_books(snapshot: Snapshot) -> None:
    """Check that what J says of its channels is what was recorded of them."""
    books = books_in(snapshot)
    incoming, outgoing = snapshot.state.channels
    assert incoming.received_count == books.received == books.sent == outgoing.sent_count


@contextlib.asynccontextmanager
async def waiting_system(
    directory: Path, name: str, log: Path | None = None, fragments: Path | None = None
) -> AsyncIterator[tuple[Supervisor, Watch]]:
    """Start a system that waits for J; it runs when J has joined."""
    watch, store = Watch(), new_store(directory, name)
    traces = OutputDirs(
        log=None if log is None else str(log),
        fragments=None if fragments is None else str(fragments),
    )
    system = Supervisor(program(name), store, SupervisorConfig(outputs=traces), emit=watch.emit)
    starting = asyncio.get_running_loop().create_task(system.__aenter__())
    try:
        async with asyncio.timeout(60):
            await watch.until(lambda: bool(watch.of(events.AwaitingProcesses)))
            assert watch.of(events.AwaitingProcesses)[0].processes == ("J",)
            assert not starting.done()
            yield system, watch
    finally:
        await asyncio.wait([starting])
        await system.__aexit__()
        store.close()


@pytest.mark.parametrize(
    ("name", "awaited"),
    [
        ("joining", "J to join (start its program), and for A, S to start"),
        ("all_joining", "J2, J10 to join (start their programs)"),
    ],
)
def test_only_programs_of_others_are_to_join(tmp_path: Path, name: str, awaited: str) -> None:
    """The supervisor starts the other processes itself, and says so, in natural order."""
    watch, store, said = Watch(), new_store(tmp_path, name), list[str]()

    def emit(event: events.Event) -> None:
        watch.emit(event)
        if isinstance(event, events.AwaitingProcesses):
            said.append(system.waiting_for)
            assert str(event) == awaited

    system = Supervisor(program(name), store, emit=emit)

    async def main() -> None:
        starting = asyncio.get_running_loop().create_task(system.__aenter__())
        async with asyncio.timeout(60):
            await watch.until(lambda: bool(said))
        starting.cancel()
        await asyncio.wait([starting])

    asyncio.run(main())
    store.close()
    assert said[0] == awaited


async def until_the_end(me: JoinedProcess, books: Books, system: Supervisor) -> list[Snapshot]:
    """Pass on while snapshots are taken; then kill S, and hear that the epoch is over."""
    passing = asyncio.get_running_loop().create_task(pass_on(me, books))
    snapshots = [await take(system) for _ in range(5)]
    os.kill(system.children["S"].pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="this epoch of the system has ended"):
        await passing
    return snapshots


@pytest.mark.slow
def test_a_program_joins_and_joins_again_after_a_death(tmp_path: Path) -> None:
    """The system waits for the program; snapshots hold its state between its actions; after a
    death it hears that the epoch is over, joins again and begins with its recorded state."""
    place, books = tmp_path / "store", Books()

    async def main() -> None:
        async with waiting_system(tmp_path, "joining") as (system, watch):
            async with join("J", topology=joining, store=place, state=books) as me:
                assert (me.id, me.incoming, me.outgoing) == ("J", ("A",), ("S",))
                snapshots = await until_the_end(me, books, system)
            for snapshot in snapshots:
                check_books(snapshot)
            await watch.until(lambda: len(watch.of(events.AwaitingProcesses)) == 2)
            recorded = books_in(snapshots[-1])
            assert books.received >= recorded.received
            books.received = books.sent = -1
            async with join("J", topology=joining, store=str(place), state=books) as me:
                assert books == recorded
                for snapshot in await until_the_end(me, books, system):
                    check_books(snapshot)
                assert books.received > recorded.received
            await watch.until(lambda: len(watch.of(events.AwaitingProcesses)) == 3)
            async with join("J", topology=joining, store=place, state=books) as me:
                await system.until_running()

    asyncio.run(main())


@pytest.mark.slow
def test_a_program_that_only_sends_says_where_its_actions_end(tmp_path: Path) -> None:
    """A snapshot records its state at a ``boundary`` and nowhere else; when the system has ended,
    ``boundary`` says so, as often as it is called."""
    books = Books()

    async def main() -> None:
        async with (
            waiting_system(tmp_path, "sending") as (system, _),
            join("J", topology=sending, store=tmp_path / "store", state=books) as me,
        ):
            for number in range(1, 6):
                wanted = await system.begin_snapshot("J")
                while not wanted.done():
                    books.received = number
                    await asyncio.sleep(0)
                    books.sent += 1
                    await me.send("S", Tick(books.sent))
                    books.received = 0
                    await me.boundary()
                outcome = wanted.result()
                assert not isinstance(outcome, Abandoned)
                snapshot = system.store.load(outcome.id)
                assert books_in(snapshot) == Books(0, snapshot.state.channels[0].sent_count)
            await system.__aexit__()
            await until(lambda: me._host.error is not None)
            for _ in range(2):
                with pytest.raises(Unavailable, match="this epoch of the system has ended"):
                    await me.boundary()

    asyncio.run(main())


@pytest.mark.slow
def test_a_wait_that_is_cut_short_leaves_the_program_inside_an_action(tmp_path: Path) -> None:
    """A loop that is cancelled while it waits can be entered again, and no snapshot is recorded
    until then."""
    books = Books()

    async def main() -> None:
        async with (
            waiting_system(tmp_path, "joining") as (system, _),
            join("J", topology=joining, store=tmp_path / "store", state=books) as me,
        ):
            await system.until_running()
            os.kill(system.children["A"].pid, signal.SIGSTOP)
            passing = asyncio.get_running_loop().create_task(pass_on(me, books))
            await until(lambda: not me._host.action.locked() and not me._host.mailbox)
            passing.cancel()
            await asyncio.wait([passing])
            assert passing.cancelled()
            assert me._host.action.locked()
            books.received += 1
            wanted = await system.begin_snapshot("J")
            await until(lambda: bool(me._host.mailbox))
            books.received -= 1
            os.kill(system.children["A"].pid, signal.SIGCONT)
            passing = asyncio.get_running_loop().create_task(pass_on(me, books))
            outcome = await wanted
            assert not isinstance(outcome, Abandoned)
            check_books(system.store.load(outcome.id))
            passing.cancel()
            await asyncio.wait([passing])

    asyncio.run(main())


async def receive_all(me: JoinedProcess) -> None:
    """Let snapshots be recorded, until the epoch is over."""
    async for _ in me:
        pass


@pytest.mark.slow
def test_a_program_knows_when_what_it_did_is_safe(tmp_path: Path) -> None:
    """``until_safe`` returns when a snapshot is published that was recorded after the call, and its
    effects are committed then. At a death it raises, and the restored state shows which requests
    happened."""
    place = tmp_path / "store"
    committed: list[str] = []
    marks = [""]

    async def commit(due: Due[str]) -> None:
        due = due.after(marks[-1])
        committed.extend(due.items)
        marks.append(due.mark)

    async def order(me: JoinedProcess, orders: Orders, name: str) -> None:
        orders.names.append(name)
        orders.effects.put(name)
        await me.send("A", Tick(len(orders.names)))
        await me.until_safe()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with waiting_system(tmp_path, "ordering") as (system, watch):
            orders = Orders(Outbox(commit))
            async with join("J", topology=ordering, store=place, state=orders) as me:
                with pytest.raises(UsageError, match=r"until_safe\(\) was called inside an action"):
                    await me.until_safe()
                receiving = loop.create_task(receive_all(me))
                await system.until_running()
                first = loop.create_task(order(me, orders, "first"))
                await until(lambda: orders.names == ["first"])
                assert not first.done()
                await take(system)
                await first
                await until(lambda: committed == ["first"] and not list(orders.effects))
                second = loop.create_task(order(me, orders, "second"))
                await until(lambda: len(orders.names) == 2)
                os.kill(system.children["A"].pid, signal.SIGKILL)
                with pytest.raises(Unavailable, match="this epoch of the system has ended"):
                    await second
                with pytest.raises(Unavailable, match="this epoch of the system has ended"):
                    await receiving
                with pytest.raises(Unavailable, match="this epoch of the system has ended"):
                    await me.until_safe()
            await watch.until(lambda: len(watch.of(events.AwaitingProcesses)) == 2)
            async with join("J", topology=ordering, store=place, state=orders) as me:
                assert orders.names == ["first"]
                receiving = loop.create_task(receive_all(me))
                await system.until_running()
                third = loop.create_task(order(me, orders, "third"))
                await until(lambda: len(orders.names) == 2)
                await take(system)
                await third
                await until(lambda: committed == ["first", "third"])
                assert len(marks) == 4  # "first" came again, with its key
                # This task has begun the action in which the program joined, and is in none now.
                taking = loop.create_task(take(system))
                await me.until_safe()
                await taking
                waiting = loop.create_task(me.until_safe())
                await asyncio.sleep(0)
                receiving.cancel()
                await asyncio.wait([receiving])
            for asked in (waiting, me.until_safe()):
                with pytest.raises(Unavailable, match="process J has left the system"):
                    await asked

    asyncio.run(main())


@pytest.mark.slow
def test_the_last_snapshot_answers_who_waits(tmp_path: Path) -> None:
    """A stop in order makes everything safe before the epoch is over. Who no longer waits is
    forgotten."""
    committed: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with waiting_system(tmp_path, "ordering") as (system, _):
            orders = Orders(Outbox(lambda due: committed.extend(due.items)))
            place = tmp_path / "store"
            async with join("J", topology=ordering, store=place, state=orders) as me:
                receiving = loop.create_task(receive_all(me))
                await system.until_running()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0):
                        await me.until_safe()
                assert not me._host._waiters
                orders.effects.put("last")
                waiting = loop.create_task(me.until_safe())
                await asyncio.sleep(0)
                await system.last_snapshot("J")
                await waiting
                assert committed == ["last"]
                receiving.cancel()
                await asyncio.wait([receiving])

    asyncio.run(main())


@pytest.mark.slow
def test_what_does_not_fit_a_running_system_cannot_join(tmp_path: Path) -> None:
    """A process can join once, and only with the topology of the system; the system goes on."""
    place = tmp_path / "store"
    books = Books()

    async def main() -> None:
        async with waiting_system(tmp_path, "joining") as (system, watch):
            with pytest.raises(Refused, match="start every process from the same topology") as no:
                async with join("J", topology=sending, store=place, state=Books()):
                    raise AssertionError("it joined")
            assert (no.value.process, no.value.path) == ("J", str(place))
            async with join("J", topology=joining, store=place, state=books) as me:
                await system.until_running()
                with pytest.raises(
                    Refused, match="'J' has joined already: each process can join once"
                ):
                    async with join("J", topology=joining, store=place, state=Books()):
                        raise AssertionError("it joined")
                with pytest.raises(UsageError, match="no channel to 'A'; outgoing: S"):
                    await me.send("A", Tick(1))
                passing = asyncio.get_running_loop().create_task(pass_on(me, books))
                check_books(await take(system))
                passing.cancel()
                await asyncio.wait([passing])
            assert len(watch.of(events.ConnectionWarning)) == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("process", "state", "words"),
    [
        ("Z", Books(), "there is no process 'Z'; there are A, J, S"),
        ("A", Books(), "process 'A' is started by the system"),
        ("J", Source(), "process 'J' has a state of type Books, not Source"),
    ],
)
def test_a_call_of_join_that_does_not_fit_its_topology_is_refused(
    tmp_path: Path, process: str, state: object, words: str
) -> None:
    """Before anything is connected the error says what does not fit."""

    async def main() -> None:
        with pytest.raises(UsageError) as caught:
            async with join(process, topology=joining, store=tmp_path, state=state):
                raise AssertionError("it joined")
        assert words in str(caught.value)

    asyncio.run(main())


def test_joining_what_is_not_running_is_refused(tmp_path: Path) -> None:
    """A store without a running system, or no store at all: the error says how to start it."""
    Store.create(tmp_path / "store", description=joining.description).close()

    async def main() -> None:
        for place in ("store", "nowhere"):
            with pytest.raises(Unavailable, match="start one with 'stillframe run'"):
                async with join("J", topology=joining, store=tmp_path / place, state=Books()):
                    raise AssertionError("it joined")

    asyncio.run(main())
