"""Agents and their collector over real connections."""

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest

from stillframe.errors import Refused, StoreError, UsageError
from stillframe.protocol.activities import InstanceState
from stillframe.protocol.calls import (
    Acknowledgement,
    AnswerHeader,
    Baseline,
    CallId,
    CallLedger,
    Observation,
    ReceivedAnswers,
    RequestHeader,
)
from stillframe.protocol.handshake import Hello, Listener
from stillframe.runtime.network import connection
from stillframe.runtime.network.addresses import Address
from stillframe.services import agent_connection as agents
from stillframe.services import attachment, control
from stillframe.services import observer as collectors
from stillframe.services.agent import SECRET_BYTES_MIN, Agent, Message
from stillframe.services.agent_connection import FRAGMENT_COUNT_MAX, CollectorLink
from stillframe.services.asgi import ObservedApplication, endpoint_begins
from stillframe.services.attachment import connected_agent
from stillframe.services.observer import UNSENT_BYTES_MAX, Observer, ObserverConfig
from stillframe.services.thread_steps import IN_THREAD
from tests.ports import free_port

SECRET = b"the secret of a test"
ANYWHERE = Address("127.0.0.1", 0)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an instance that ends wait for a busy machine."""
    monkeypatch.setattr(attachment, "LEAVE_S", 60.0)


class Collected:
    """A collector, what it has published, and what it has said."""

    def __init__(self, **settings: float | str) -> None:
        self.config = ObserverConfig(secret=SECRET, **settings)  # type: ignore[arg-type]
        self.published: list[Observation] = []
        self.abandoned: list[tuple[int, str]] = []
        self.warnings: list[str] = []
        self.stored = b""
        self.members: list[tuple[str, str]] = []
        self.may_publish = threading.Event()
        self.may_publish.set()
        self.failures: list[Exception] = []
        """Errors of the next attempts to store something."""
        self.observer = self.make(None)
        self.address = ANYWHERE

    def make(self, ledger: CallLedger | None) -> Observer:
        """Make the collector, with what another one has stored."""
        return Observer(
            self.config,
            ledger=ledger,
            number=self.published[-1].number if self.published else 0,
            publish=self._publish,
            store=self._store,
            abandoned=lambda number, why: self.abandoned.append((number, why)),
            warn=self.warnings.append,
            member=lambda name, change: self.members.append((name, change)),
        )

    def _publish(
        self, observation: Observation, times: tuple[float, float], ledger: CallLedger
    ) -> None:
        assert 0 < times[0] <= times[1]
        assert self.may_publish.wait(20)
        self._store(ledger)
        self.published.append(observation)

    def _store(self, ledger: CallLedger) -> None:
        if self.failures:
            raise self.failures.pop()
        self.stored = msgspec.msgpack.encode(ledger)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Listen while the body runs; again at the address where it did before."""
        self.address = await self.observer.open(self.address)
        try:
            yield
        finally:
            await self.observer.close()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition."""
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110 - what is awaited is not ours to change
                await asyncio.sleep(0.01)

    async def connected(self, count: int) -> None:
        """Wait until so many agents are connected."""
        await self.until(lambda: len(self.observer.collector.ledger.members) == count)


def agent(name: str, secret: bytes = SECRET) -> Agent:
    """Return an agent."""
    return Agent(name, dict, secret=secret)


@contextlib.asynccontextmanager
async def linked(
    address: Address, *agents: Agent, certificates: Path | None = None
) -> AsyncIterator[list[str]]:
    """Keep agents connected while the body runs; yields what they warn of."""
    warnings: list[str] = []
    directory = None if certificates is None else str(certificates)
    links = [
        CollectorLink(one, address, certificates=directory, warn=warnings.append) for one in agents
    ]
    tasks = [asyncio.create_task(link.run()) for link in links]
    try:
        yield warnings
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in links:
            link.close()


def run(body: Callable[[], object]) -> None:
    """Run a test."""
    asyncio.run(body())  # type: ignore[arg-type]


def test_every_agent_that_is_connected_takes_part() -> None:
    """An observation has a fragment of each, and the next one has the next number."""
    collected = Collected()

    async def body() -> None:
        first, second = agent("A"), agent("B")
        async with collected.listening(), linked(collected.address, first, second):
            await collected.connected(2)
            for _ in range(2):
                await collected.observer.observe()
        assert [one.number for one in collected.published] == [1, 2]
        assert {*collected.published[0].fragments} == {first.rules.name, second.rules.name}

    run(body)


def test_a_stranger_is_refused() -> None:
    """An agent with another secret takes part in nothing. It says why, and so does the collector:
    one sentence for all attempts from an address."""
    collected = Collected()
    lost: list[object] = []
    collected.observer.on_lost = lost.append  # type: ignore[assignment, method-assign]

    async def body() -> None:
        stranger = agent("A", b"some other secret")
        async with collected.listening(), linked(collected.address, stranger) as warnings:
            await collected.until(lambda: len(lost) > 1)
        [warning] = warnings
        where = f"the connection to the collector at {collected.address} was closed"
        assert f"{where}: it has another secret: give this service, as secret=" in warning
        [sentence] = collected.warnings
        assert "an agent of 'A' at 127.0.0.1 has closed its connection" in sentence
        assert "STILLFRAME_SECRET" in sentence
        assert collected.observer.collector.ledger.members == set()

    run(body)


def test_an_instance_that_does_not_answer_is_named() -> None:
    """The observation is abandoned at its deadline; the next one is not delayed by it."""
    collected = Collected(timeout_s=0.2)

    async def body() -> None:
        silent, other = agent("A"), agent("B")
        async with collected.listening(), linked(collected.address, silent, other):
            await collected.connected(2)
            report, silent.on_fragment = silent.on_fragment, lambda fragment: None
            await collected.observer.observe()
            silent.on_fragment = report
            await collected.observer.observe()
        assert collected.abandoned == [(1, f"no fragment of {silent.rules.name} in 0.2 s")]
        assert [one.number for one in collected.published] == [2]

    run(body)


def test_an_instance_that_is_disconnected_ends_the_observation() -> None:
    """At once, and by name."""
    collected = Collected(timeout_s=60)

    async def body() -> None:
        dying, other = agent("A"), agent("B")
        async with collected.listening(), linked(collected.address, other):
            async with linked(collected.address, dying):
                await collected.connected(2)
                dying.on_fragment = lambda fragment: None
                observing = asyncio.create_task(collected.observer.observe())
                await collected.until(lambda: dying.rules.colour == 1)
            await observing
            await collected.observer.observe()
        assert collected.abandoned == [(1, f"{dying.rules.name} was disconnected")]
        assert collected.published[0].disconnected == (dying.rules.name,)

    run(body)


def test_an_instance_comes_back_under_its_name_unless_it_was_away_for_too_long() -> None:
    """Then it is another one."""
    collected = Collected(retire_s=0.3)

    async def body() -> None:
        one = agent("A")
        name = one.rules.name
        async with collected.listening():
            for _ in range(2):
                async with linked(collected.address, one):
                    await collected.connected(1)
                    assert one.rules.name == name
                await collected.connected(0)
            await collected.until(lambda: name in collected.observer.collector.ledger.retired)
            async with linked(collected.address, one):
                await collected.connected(1)
            assert one.rules.name != name

    run(body)


def test_an_instance_that_others_have_heard_of_and_that_never_connects_is_retired() -> None:
    """Observations are partial until then. Afterwards it may connect with another name only."""
    collected = Collected(retire_s=0.2)

    async def body() -> None:
        one, late = agent("A"), agent("B")
        name = late.rules.name
        async with collected.listening(), linked(collected.address, one):
            await collected.connected(1)
            one.rules.accept(late.rules.request("a:80"))
            await collected.observer.observe()
            await collected.until(lambda: name in collected.observer.collector.ledger.retired)
            await collected.observer.observe()
            async with linked(collected.address, late):
                await collected.connected(2)
            assert late.rules.name != name
        reason = f"{one.rules.name} exchanges messages with {name}, which is not connected"
        assert [one.partial for one in collected.published] == [(reason,), ()]
        assert [one.disconnected for one in collected.published] == [(), (name,)]

    run(body)


def test_a_collector_that_starts_again_continues() -> None:
    """Agents connect again, and numbers go on."""
    collected = Collected()

    async def body() -> None:
        one = agent("A")
        async with collected.listening():
            address = collected.address
            async with linked(address, one):
                await collected.connected(1)
                await collected.observer.observe()
                await collected.observer.close()
                ledger = msgspec.msgpack.decode(collected.stored, type=CallLedger)
                collected.observer = collected.make(ledger)
                assert collected.observer.acceptor._expected_count == len(ledger.members) == 1
                async with collected.listening():
                    await collected.connected(1)
                    await collected.observer.observe()
        assert [one.number for one in collected.published] == [1, 2]
        assert one.rules.colour == 2

    run(body)


def test_an_observation_that_cannot_be_stored_settles_nothing() -> None:
    """It is abandoned with the cause, and the next one shows the same calls."""
    collected = Collected()

    async def body() -> None:
        one = agent("A")
        one.rules.stop_waiting(one.rules.request("pay:80", carries={"EUR": 5}).call.number)
        async with collected.listening(), linked(collected.address, one):
            await collected.connected(1)
            one.rules.accept(RequestHeader(0, CallId("B-1", 7)))
            collected.observer.collector.left("B-1")
            before = msgspec.msgpack.encode(collected.observer.collector.ledger)
            collected.failures.append(StoreError("the disk is full"))
            await collected.observer.observe()
            assert msgspec.msgpack.encode(collected.observer.collector.ledger) == before
            await collected.observer.observe()
        assert collected.abandoned == [(1, "the disk is full")]
        [observation] = collected.published
        assert [call.record.target for call in observation.calls] == ["pay:80"]
        assert msgspec.msgpack.decode(collected.stored, type=CallLedger).released

    run(body)


def test_an_agent_joins_when_that_is_stored() -> None:
    """Otherwise a collector that starts again would not miss it. The agent tries again."""
    collected = Collected()

    async def body() -> None:
        one = agent("A")
        # The second one is about its leaving.
        collected.failures += [StoreError("the disk is full"), StoreError("the disk is full")]
        async with collected.listening(), linked(collected.address, one):
            await collected.until(lambda: not collected.failures)
            await collected.connected(1)
            await collected.observer.observe()
        name = one.rules.name
        assert any(f"{name} was closed: the disk is full" in text for text in collected.warnings)
        assert collected.members[-1] == (name, "joined")
        assert len(collected.published) == 1

    run(body)


def test_who_joins_and_leaves_is_reported() -> None:
    """Not those that are connected when the collector ends."""
    collected = Collected()

    async def body() -> None:
        one, other = agent("A"), agent("B")
        async with collected.listening(), linked(collected.address, one):
            await collected.connected(1)
            async with linked(collected.address, other):
                await collected.connected(2)
            await collected.connected(1)
        ledger = msgspec.msgpack.decode(collected.stored, type=CallLedger)
        assert ledger.members == {one.rules.name}
        names = one.rules.name, other.rules.name
        assert collected.members == [
            (names[0], "joined"),
            (names[1], "joined"),
            (names[1], "left"),
        ]

    run(body)


def test_without_a_collector_little_is_kept() -> None:
    """Requests are served as always."""
    one = agent("A")

    async def body() -> None:
        link = CollectorLink(one, Address("127.0.0.1", 9), warn=lambda text: None)
        for colour in range(1, 100):
            one.report(one.rules.meet(colour))
        assert link.waiting_count == FRAGMENT_COUNT_MAX

    run(body)


def test_a_short_secret_is_refused() -> None:
    """It could be guessed."""
    with pytest.raises(UsageError, match=f"the secret has 5 bytes: use {SECRET_BYTES_MIN} or more"):
        agent("A", b"short")


@pytest.mark.parametrize("name", ["", "the bank", "bank\n", "bank-"])
def test_a_service_has_the_name_of_a_process(name: str) -> None:
    """A certificate can be for it, and a terminal can show it."""
    with pytest.raises(UsageError, match="cannot name a service"):
        agent(name)


@pytest.mark.parametrize("turn_count", range(6))
def test_an_agent_ends_when_its_connection_closes_at_the_same_time(turn_count: int) -> None:
    """Whichever step of the event loop it is cancelled in."""
    collected = Collected()

    async def body() -> None:
        async with collected.listening():
            link = CollectorLink(agent("A"), collected.address, warn=collected.warnings.append)
            running = asyncio.create_task(link.run())
            await collected.connected(1)
            link.close()
            for _ in range(turn_count):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait([running], timeout=5)
            assert running.cancelled()

    run(body)


def test_calls_that_an_instance_had_under_another_name_are_noted() -> None:
    """Until an observation is stored in which none of them is open."""

    async def body() -> None:
        one = Agent("A", dict, secret=SECRET, targets=["b:80"])
        message = Message(method="POST", path="/it", body=b"")
        call, text = one.request("b:80", message)
        other = Agent("B", dict, secret=SECRET)
        header = other.headers.decode(RequestHeader, text or "")
        assert header is not None
        incoming = other.accept(header, message)
        one.rename()
        reasons = [one.rules.meet(1)]
        other.rules.meet(5)
        answer = one.headers.decode(AnswerHeader, incoming.answer(message))
        assert answer is not None
        call.accept_answer(answer)
        assert one.rules.colour == 5, "an answer to the old name brought no colour"
        one.stored(4)
        reasons.append(one.rules.meet(6))
        one.stored(6)
        reasons.append(one.rules.meet(7))
        assert [bool(fragment and fragment.partial) for fragment in reasons] == [True, True, False]

    run(body)


def test_an_unexpected_error_of_the_store_settles_nothing() -> None:
    """The observation is abandoned, and the next one is taken."""
    collected = Collected()

    async def body() -> None:
        async with collected.listening(), linked(collected.address, agent("A")):
            await collected.connected(1)
            before = msgspec.msgpack.encode(collected.observer.collector.ledger)
            collected.failures.append(OverflowError("too large"))
            await collected.observer.observe()
            assert collected.abandoned == [(1, "OverflowError: too large")]
            assert msgspec.msgpack.encode(collected.observer.collector.ledger) == before
            await collected.observer.observe()
        assert [one.number for one in collected.published] == [2]

    run(body)


def test_a_collector_that_cannot_be_reached_is_named_once() -> None:
    """The address may be wrong."""

    async def body() -> None:
        nobody = Address("127.0.0.1", free_port())
        async with linked(nobody, agent("A")) as warnings:
            while not warnings:  # noqa: ASYNC110 - the agent makes it hold
                await asyncio.sleep(0)
        assert len(warnings) == 1
        assert f"the collector at {nobody} cannot be reached" in warnings[0]

    run(body)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, ""),
        (b"", ""),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", r" \(.*this is not Stillframe's wire format.*\)"),
    ],
    ids=["silence", "end", "http"],
)
def test_an_agent_that_no_collector_answers_says_so_once(
    answer: bytes | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is another program at this address, or a collector that uses TLS."""
    if answer is None:
        # With this time-out, an answer could come too late on a busy machine.
        monkeypatch.setattr(connection, "HANDSHAKE_TIMEOUT_S", 0.01)
    attempts = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.append(writer)
        if answer is not None:
            writer.write(answer)
            writer.close()

    async def body() -> None:
        other = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = Address(*other.sockets[0].getsockname())
        async with other, linked(address, agent("A")) as warnings:
            await Collected().until(lambda: len(attempts) > 2)
        for one in attempts:
            one.close()
        [warning] = warnings
        begin = f"the connection to {address} was closed before a collector had answered"
        assert re.fullmatch(f"{begin}{why}: check that 'stillframe observe' .*", warning)

    run(body)


def test_an_agent_that_has_warned_says_when_it_is_connected() -> None:
    """Under its name; again after each time without a collector."""
    collected = Collected()
    collected.address = Address("127.0.0.1", free_port())

    async def body() -> None:
        one = agent("A")
        async with linked(collected.address, one) as warnings:
            for _ in range(2):
                await collected.until(lambda: len(warnings) % 2 == 1)
                async with collected.listening():
                    await collected.until(lambda: len(warnings) % 2 == 0)
                collected.observer = collected.make(collected.observer.collector.ledger)
        connected = f"connected to the collector at {collected.address} as {one.rules.name}"
        assert warnings[1::2] == [connected] * 2
        assert all("cannot be reached" in one for one in warnings[::2])

    run(body)


def test_an_agent_that_connects_at_once_says_nothing() -> None:
    """Also if it must take another name."""
    collected = Collected()

    async def body() -> None:
        one = agent("A")
        one.was_connected = True
        name = one.rules.name
        async with collected.listening(), linked(collected.address, one) as warnings:
            await collected.connected(1)
            await collected.observer.observe()
        assert one.rules.name != name
        assert warnings == []

    run(body)


def test_a_second_event_loop_connects_when_the_first_is_closed() -> None:
    """``asyncio.run`` may be called twice."""
    address = Address("127.0.0.1", free_port())
    one = connected_agent(service="A", state={}, collector=str(address), secret=SECRET)
    for _ in range(2):
        collected = Collected()
        collected.address = address

        async def body(collected: Collected = collected) -> None:
            async with collected.listening():
                one.start()
                await collected.connected(1)
                await collected.observer.observe()

        run(body)
        [observation] = collected.published
        assert observation.partial == ()


def test_a_second_event_loop_at_the_same_time_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Once in the log, and in each observation until one of them is closed."""
    address = Address("127.0.0.1", free_port())
    one = connected_agent(service="A", state={}, collector=str(address), secret=SECRET)
    collected = Collected()
    collected.address = address

    async def serve() -> None:
        one.start()
        one.start()

    async def body() -> None:
        async with collected.listening():
            one.start()
            await collected.connected(1)
            other = asyncio.new_event_loop()
            await asyncio.to_thread(other.run_until_complete, serve())
            await collected.observer.observe()
            other.close()
            await collected.observer.observe()

    run(body)
    observation, later = collected.published
    assert later.partial == ()
    [reason] = observation.partial
    assert f"{one.rules.name}: it is served by a second event loop" in reason
    [warning] = [text for text in caplog.messages if "second event loop" in text]
    assert "use one event loop, or a process for each" in warning


def test_a_service_whose_task_was_cancelled_connects_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next start. If there is none, one warning names the service."""
    monkeypatch.setattr(attachment, "WARN_AFTER_S", 0.0)
    collected = Collected()

    async def body() -> None:
        connections = collected.observer._connections

        async def cancelled(*, is_started: bool) -> None:
            [(_, former)] = connections.items()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            if is_started:
                one.start()
            await collected.until(lambda: former not in connections.values())

        async with collected.listening():
            one = connected_agent(
                service="A", state={}, collector=str(collected.address), secret=SECRET
            )
            one.start()
            await collected.until(lambda: bool(connections))
            await cancelled(is_started=True)
            await collected.until(lambda: bool(connections))
            assert not caplog.messages
            await cancelled(is_started=False)
            await collected.until(lambda: bool(caplog.messages))
            one.start()
            await collected.until(lambda: bool(connections))
            [warning] = caplog.messages
        assert "connects A to the collector was cancelled" in warning

    run(body)


class Publishing(Collected):
    """A collector that is storing an observation of the agents A and B, until it is released."""

    def __init__(self) -> None:
        super().__init__(retire_s=60, timeout_s=0.2)
        self.first, self.second = agent("A"), agent("B")
        self.call = self.first.rules.request("b:80").call
        self.first.rules.stop_waiting(self.call.number)
        self.first.rules.accept(RequestHeader(0, CallId("C-1", 7)))

    @contextlib.asynccontextmanager
    async def begun(self) -> AsyncIterator["asyncio.Task[None]"]:
        """Run the body while an observation is stored; yields what waits for it."""
        async with self.listening(), linked(self.address, self.first, self.second):
            await self.connected(2)
            self.may_publish.clear()
            observing = asyncio.create_task(self.observer.observe())
            await self.until(lambda: self.observer._publishing is not None)
            try:
                yield observing
            finally:
                self.may_publish.set()
            await asyncio.wait([observing])


def test_agents_are_heard_while_an_observation_is_stored() -> None:
    """Acknowledgements pass. Who joins or leaves does so afterwards, in order; the stored ledger
    does not show it."""
    collected = Publishing()

    async def body() -> None:
        first, second, third = collected.first, collected.second, agent("C")
        async with collected.begun() as observing:
            ticket, _ = second.rules.accept(first.rules.request("b:80"))
            kept = second.rules._others[first.rules.name].kept
            number = max(first.rules._calls)
            first.rules.accept_answer(number, second.rules.answer(ticket))
            assert kept
            await collected.until(lambda: not kept)
            async with linked(collected.address, third):
                await collected.until(lambda: len(collected.observer._postponed) == 1)
                assert len(collected.observer.collector.ledger.members) == 2
                assert not collected.observer.collector.ledger.disconnected
                collected.may_publish.set()
                await observing
                assert third.rules.name in collected.observer.collector.ledger.members
                await collected.observer.observe()
        assert [len(one.fragments) for one in collected.published] == [2, 3]
        assert collected.abandoned == []

    run(body)


def test_who_leaves_while_an_observation_is_stored_is_missed_afterwards() -> None:
    """Also if it could not be stored, which settles nothing."""
    collected = Publishing()

    async def body() -> None:
        async with collected.listening(), linked(collected.address, collected.first):
            await collected.connected(1)
            async with linked(collected.address, collected.second):
                await collected.connected(2)
                collected.may_publish.clear()
                collected.failures.append(StoreError("the disk is full"))
                observing = asyncio.create_task(collected.observer.observe())
                await collected.until(lambda: collected.observer._publishing is not None)
            await collected.until(lambda: len(collected.observer._postponed) == 1)
            ledger = collected.observer.collector.ledger
            assert (len(ledger.members), ledger.released) == (2, {collected.call})
            collected.may_publish.set()
            await observing
            ledger = collected.observer.collector.ledger
            assert (len(ledger.members), ledger.released) == (1, set())
            assert [*ledger.disconnected] == [collected.second.rules.name]
            await collected.observer.observe()
        assert collected.abandoned == [(1, "the disk is full")]
        [observation] = collected.published
        assert observation.disconnected == (collected.second.rules.name,)
        assert [one.call for one in observation.calls] == [collected.call]

    run(body)


def test_a_join_that_cannot_be_stored_after_an_observation_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection is closed, as always."""
    collected = Publishing()

    def fail(ledger: CallLedger) -> None:
        monkeypatch.undo()
        raise StoreError("the disk is full")

    async def body() -> None:
        third = agent("C")
        async with collected.begun(), linked(collected.address, third):
            await collected.until(lambda: len(collected.observer._postponed) == 1)
            monkeypatch.setattr(collected.observer, "_store", fail)
            collected.may_publish.set()
            await collected.connected(3)
        [warning] = collected.warnings
        assert f"{third.rules.name} was closed: the disk is full" in warning

    run(body)


def test_a_collector_that_ends_stores_what_is_complete() -> None:
    """Ctrl-C cancels what observes, and waits for the disk. Agents have settled it then."""
    collected = Publishing()

    async def body() -> None:
        async with collected.begun() as observing:
            observing.cancel()
            await asyncio.wait([observing])
            closing = asyncio.create_task(collected.observer.close())
            await asyncio.sleep(0)
            assert not closing.done()
            collected.may_publish.set()
            await closing
            await collected.until(lambda: not collected.first.rules._unresolved)
        assert [one.number for one in collected.published] == [1]

    run(body)


class Till:
    """A state with money, which an application loads when it starts and stores when it ends."""

    stored = 100

    def __init__(self) -> None:
        self.euros = 0

    def conserved(self) -> dict[str, int]:
        """Return its money."""
        return {"EUR": self.euros}

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        """Start and end."""
        await receive()
        await asyncio.sleep(0)
        self.euros = Till.stored
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await asyncio.sleep(0)
        Till.stored = self.euros
        await send({"type": "lifespan.shutdown.complete"})


PAY = Message(method="POST", path="/pay", body=b"")


def total_of(observation: Observation) -> int:
    """Return all money in an observation."""
    states: int = sum(one.state.conserved["EUR"] for one in observation.fragments.values())
    ended = sum(amounts["EUR"] for amounts in observation.ended.values())
    return states + ended + observation.outside_states().get("EUR", 0)


def pay(payer: Agent, payee: Agent, *, is_answered: bool = True) -> None:
    """Pay one euro. Without an answer the payer does not know whether it has."""
    payer._state.euros -= 1  # type: ignore[attr-defined]
    call, text = payer.request("b:80", PAY)
    header = payee.headers.decode(RequestHeader, text or "")
    assert header is not None
    incoming = payee.accept(header, PAY)
    payee._state.euros += 1  # type: ignore[attr-defined]
    answer = payer.headers.decode(AnswerHeader, incoming.answer(None))
    assert answer is not None
    if is_answered:
        call.accept_answer(answer)
    else:
        call.stop_waiting()


class Restarting(Collected):
    """A collector, a bank, and a till that is served again and again."""

    bank: Agent

    def __init__(self) -> None:
        super().__init__()
        Till.stored = 100
        self.said: list[dict[str, Any]] = []

    def agent(self, service: str, till: Till) -> Agent:
        """Return an agent that is to connect."""
        return connected_agent(
            service=service,
            state=till,
            collector=str(self.address),
            secret=SECRET,
            targets=["b:80"],
            carries=lambda message: {} if message.is_answer else {"EUR": 1},
        )

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[Agent]:
        """Run an instance of the till while the body runs, from its start to its end."""
        till = Till()
        one = self.agent("A", till)
        received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        async def send(event: Any) -> None:
            self.said.append(event)

        application = ObservedApplication(till.serve, one)
        serving = asyncio.create_task(application({"type": "lifespan"}, received.get, send))
        await received.put({"type": "lifespan.startup"})
        await self.until(lambda: one.rules.name in self.observer.collector.ledger.members)
        assert self.said[-1] == {"type": "lifespan.startup.complete"}
        try:
            yield one
        finally:
            await received.put({"type": "lifespan.shutdown"})
            await serving
            assert self.said[-1] == {"type": "lifespan.shutdown.complete"}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the collector and the bank while the body runs."""
        async with self.listening():
            self.bank = self.agent("B", Till())
            self.bank.begin()
            await self.connected(1)
            yield

    async def observe(self) -> Observation:
        """Take an observation."""
        await self.observer.observe()
        return self.published[-1]


def test_observations_stay_exact_while_instances_restart_in_order() -> None:
    """With the same total, whatever their last calls were: the state is loaded before an instance
    begins and stored before it ends."""
    collected = Restarting()

    async def body() -> None:
        names = []
        async with collected.running():
            for _ in range(3):
                async with collected.served() as one:
                    names.append(one.rules.name)
                    pay(one, collected.bank)
                    await collected.observe()
                    pay(one, collected.bank)
                    pay(one, collected.bank, is_answered=False)
                assert one.rules.name != names[-1], "it could serve calls under its old name"
                await collected.observe()
        changes = [change for change in collected.members if change[0] in names]
        assert changes == [(name, change) for name in names for change in ("joined", "ended")]
        assert [one.partial for one in collected.published] == [()] * 6
        assert all(one.is_exact for one in collected.published)
        assert {(one.baseline, total_of(one)) for one in collected.published} == {(1, 100)}
        assert collected.published[-1].ended == {"A": {"EUR": 91}}
        assert collected.warnings == []

    run(body)


def test_after_an_instance_was_killed_nothing_is_exact_until_an_operator_decides() -> None:
    """Its successor may have read what it has stored last. The new baseline is named and stored."""
    collected = Restarting()

    async def body() -> None:
        async with collected.running():
            dead = collected.agent("A", till := Till())
            till.euros = 100
            name, dead.start = dead.rules.name, lambda: None  # the link is one that can be cut
            async with linked(collected.address, dead):
                await collected.connected(2)
                pay(dead, collected.bank)
                assert (await collected.observe()).is_exact
                pay(dead, collected.bank)
            await collected.until(lambda: name in collected.observer.collector.ledger.gone)
            async with collected.served():
                unknown = await collected.observe()
                decision = Baseline(0, "the money was counted", "Ada", 7.0)
                observing = asyncio.create_task(collected.observer.observe())
                await asyncio.sleep(0)
                collected.failures.append(StoreError("the disk is full"))
                with pytest.raises(StoreError, match="the disk is full"):
                    await collected.observer.rebase(decision)
                await observing
                assert (await collected.observe()).gone == unknown.gone == (name,)
                assert not unknown.is_exact
                assert await collected.observer.rebase(decision) == (name,)
                decided = await collected.observe()
                assert decided.is_exact
                assert decided.since == Baseline(
                    decided.number, "the money was counted", "Ada", 7.0
                )
                assert collected.abandoned == [(3, "a new baseline begins")]
                assert not collected.observer._timers.keys() & {name}

    run(body)


def test_a_baseline_begins_after_what_is_being_stored() -> None:
    """The stored ledger does not show it."""
    collected = Publishing()

    async def body() -> None:
        async with collected.begun() as observing:
            rebasing = asyncio.create_task(collected.observer.rebase(Baseline(0, "why", "Ada")))
            await collected.until(lambda: len(collected.observer._postponed) == 1)
            collected.may_publish.set()
            await observing
            assert await rebasing == ()
            await collected.observer.observe()
        assert [one.since.by for one in collected.published] == ["", "Ada"]

    run(body)


def test_a_goodbye_is_confirmed_when_it_is_stored(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the instance counts as gone; its log says so."""
    collected = Restarting()

    async def body() -> None:
        async with collected.running():
            name = collected.bank.rules.name
            collected.failures.append(StoreError("the disk is full"))
            observing = asyncio.create_task(collected.observer.observe())
            assert not await collected.bank.leave()
            await observing
            await collected.until(lambda: collected.members[1:] == [(name, "left")])
            ledger = msgspec.msgpack.decode(collected.stored, type=CallLedger)
            assert (ledger.members, list(ledger.gone), ledger.ended) == (set(), [name], {})
            collected.bank.begin()
            await collected.connected(1)
            assert await collected.bank.leave()
            assert not await collected.bank.leave(), "it was not connected again"
        assert collected.abandoned == [(1, f"the end of {name} could not be stored")]
        [warning] = collected.warnings
        assert f"the connection of {name} was closed: the disk is full" in warning
        [warning] = caplog.messages
        assert f"{name} ends, and calls of it are still open, or the collector has not" in warning

    run(body)


def test_an_instance_that_may_still_act_says_no_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of it is open, or a thread cannot be cancelled that serves one."""
    monkeypatch.setattr("stillframe.services.attachment.LEAVE_S", 0.1)
    collected = Restarting()

    async def body() -> None:
        async with collected.running():
            bank, calls = collected.bank, []
            calls.append(bank.request("b:80", PAY)[0])
            assert not await bank.leave()
            calls.pop().stop_waiting()
            assert await bank.until_idle()
            serving = bank.threads.begin()
            token = IN_THREAD.set(serving)
            with pytest.raises(asyncio.CancelledError), endpoint_begins(pay, is_in_thread=True):
                raise asyncio.CancelledError
            IN_THREAD.reset(token)
            bank.threads.end(serving)
            assert not await bank.until_idle()

    run(body)


def test_what_an_application_sends_before_it_has_started_begins_a_baseline() -> None:
    """It does not connect the instance, which would say what it begins with too early."""
    collected = Restarting()

    async def body() -> None:
        async with collected.running():
            await collected.observe()
            till = Till()
            one = collected.agent("A", till)

            async def serve(scope: Any, receive: Any, send: Any) -> None:
                call, _ = one.request("c:80", PAY)
                call.stop_waiting()
                await asyncio.sleep(0)
                assert one.rules.name not in collected.observer.collector.ledger.members
                till.euros = 100
                await send({"type": "lifespan.startup.complete"})

            async def send(event: Any) -> None:
                assert one.was_connected, "it has joined before it serves anything"

            receive: asyncio.Queue[Any] = asyncio.Queue()
            await ObservedApplication(serve, one)({"type": "lifespan"}, receive.get, send)
            why = f"the amounts with which {one.rules.name} began are not known"
            assert (await collected.observe()).since.why == why
            assert await one.leave()

    run(body)


def test_a_goodbye_counts_when_what_is_being_stored_is_stored() -> None:
    """What the collector sends meanwhile does not concern the next instance of the process."""
    collected = Restarting()

    async def body() -> None:
        async with collected.running():
            name = collected.bank.rules.name
            collected.may_publish.clear()
            observing = asyncio.create_task(collected.observer.observe())
            await collected.until(lambda: collected.observer._publishing is not None)
            leaving = asyncio.create_task(collected.bank.leave())
            await collected.until(lambda: len(collected.observer._postponed) == 1)
            collected.may_publish.set()
            await observing
            assert await leaving
            assert collected.bank.rules.colour == 0
        assert [*collected.published[0].fragments] == [name]
        assert collected.members[-1] == (name, "ended")

    run(body)


def test_amounts_that_are_not_known_make_observations_partial() -> None:
    """At the begin and at the end of an instance. Nothing fails in its application."""
    collected = Restarting()
    state = Till()
    state.euros = 2**60

    async def body() -> None:
        async with collected.running():
            one = collected.agent("A", state)
            one.begin()
            await collected.connected(2)
            began = await collected.observe()
            state.euros = 0
            await collected.observe()
            state.euros = 2**60
            assert await one.leave()
            ended = await collected.observe()
        for observation in (began, ended):
            assert "the amounts of its state are not known" in " ".join(observation.partial)
        assert collected.published[1].partial == ()

    run(body)


@pytest.mark.parametrize(
    ("of_agent", "of_collector"),
    [("observations 2", "observations 1"), ("observations 1", "observations 2")],
)
def test_agents_and_collectors_of_two_versions_refuse_each_other(
    of_agent: str, of_collector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each says once which version each has, and what to do. The first version only knew that
    something differs."""
    monkeypatch.setattr(agents, "PROTOCOL", of_agent)
    monkeypatch.setattr(collectors, "PROTOCOL", of_collector)
    is_first = of_collector == "observations 1"
    if is_first:
        monkeypatch.setattr(collectors, "other_protocol", _first_refusal)
    collected = Collected()
    lost: list[object] = []
    collected.observer.on_lost = lost.append  # type: ignore[assignment, method-assign]

    async def body() -> None:
        async with collected.listening(), linked(collected.address, agent("A")) as warnings:
            await collected.until(lambda: len(lost) > 1)
        sentence = (
            f"this service speaks '{of_agent}', and the collector '{of_collector}': use the same "
            "version of stillframe in both"
        )
        [warning] = warnings
        assert f"the collector at {collected.address} was closed: " in warning
        assert sentence in warning
        [warning] = collected.warnings
        assert is_first or f"an agent of 'A' at 127.0.0.1 was refused: {sentence}" in warning

    run(body)


def _first_refusal(there: str, here: str) -> str:
    """Return what the first version says."""
    listener = Listener(
        secret=SECRET, epoch=0, topology_hash=here, target=None, sources=None, nonce=b""
    )
    with pytest.raises(Refused) as refusal:
        listener.receive(Hello("A", None, 0, there, b""))
    return str(refusal.value)


def test_an_abandoned_observation_leaves_every_part_of_the_ledger_as_it_was() -> None:
    """Nothing in the copy is a part of the original that can change."""
    fields = {field.name: field.type for field in msgspec.structs.fields(CallLedger)}
    maps = {name: get_args(kind)[1] for name, kind in fields.items() if get_origin(kind) is dict}
    nested = [name for name, kind in maps.items() if get_origin(kind) is dict]
    values: dict[str, Any] = {name: {"A": {"B": 1}} for name in nested}
    ledger = CallLedger(**values)
    copied: Any = collectors._copy_of(ledger)
    assert copied == ledger
    for name in nested:
        assert getattr(copied, name)["A"] is not getattr(ledger, name)["A"]
    for name in fields:
        value = getattr(ledger, name)
        assert not isinstance(value, dict | set) or getattr(copied, name) is not value


LIES: dict[str, dict[str, Any]] = {
    "a negative count": {"sent_count": -1},
    "a count of more than 64 bits hold when added": {"highest_accepted": {"B-1": 2**64 - 1}},
    "a long name": {"answer_counts": {"B" * 81: 1}},
    "too much": {"lost": {"EUR": 2**60}},
    "a state that is none": {"state": InstanceState(b"\xc1")},
    "an amount in a state": {"state": InstanceState(b"\x80", held={"EUR": 2**60})},
    "an observation that was never begun": {"observation": 2**53},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_service_that_sends_nonsense_is_disconnected(lie: dict[str, Any]) -> None:
    """It is named, and the others are observed without it."""
    collected = Collected()

    async def body() -> None:
        liar, honest = agent("A"), agent("B")
        name = liar.rules.name
        async with collected.listening(), linked(collected.address, honest):
            async with linked(collected.address, liar):
                await collected.connected(2)
                report = liar.on_fragment
                liar.on_fragment = lambda one: report(msgspec.structs.replace(one, **lie))
                await collected.observer.observe()
            await collected.connected(1)
            await collected.observer.observe()
        assert collected.abandoned[0] == (1, f"{name} was disconnected")
        assert f"the connection of {name} was closed: " in collected.warnings[0]
        assert [*collected.published[-1].fragments] == [honest.rules.name]

    run(body)


@pytest.mark.parametrize("field", ["colour", "retirement_count"])
def test_an_instance_cannot_join_with_a_count_that_leaves_no_room(field: str) -> None:
    """The next observation could have no number."""
    collected = Collected()

    async def body() -> None:
        liar, honest = agent("A"), agent("B")
        setattr(liar.rules, field, 2**53)
        async with collected.listening(), linked(collected.address, honest):
            async with linked(collected.address, liar):
                await collected.until(lambda: bool(collected.warnings))
            await collected.connected(1)
            await collected.observer.observe()
        assert "no collector has counted to 9007199254740992" in collected.warnings[0]
        assert [one.number for one in collected.published] == [1]

    run(body)


def test_an_agent_that_does_not_read_is_sent_little() -> None:
    """Another one can send it any number of acknowledgements."""
    collected = Collected()

    async def body() -> None:
        reader, sender = agent("A"), agent("B")
        gaps = frozenset(range(10**6, 10**6 + 10**5))
        received = ReceivedAnswers(2 * 10**6, gaps)
        acknowledgement = Acknowledgement(0, sender.rules.name, received)
        async with collected.listening(), linked(collected.address, reader, sender):
            await collected.connected(2)
            connection = collected.observer._connections[reader.rules.name]
            sending = collected.observer._connections[sender.rules.name]
            forward = control.Forward(reader.rules.name, acknowledgement)
            for _ in range(100):
                collected.observer.on_message(sending, forward)
            assert 0 < connection.unsent_bytes < 2 * UNSENT_BYTES_MAX
            await collected.until(lambda: connection.unsent_bytes == 0)
            await collected.observer.observe()
        assert len(collected.published) == 1

    run(body)
