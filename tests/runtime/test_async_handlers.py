"""A coroutine handler is one atomic action from its start to its end, whatever it waits for."""

import asyncio
from pathlib import Path

import msgspec

from stillframe import Channel, Message, Process, SnapshotId, Topology, every
from stillframe.model import Abandoned, Reason, Snapshot
from tests.runtime.links import turn
from tests.runtime.local import LocalSystem
from tests.runtime.programs import Sink, Source, Tick

START_BALANCE = 1000


class Transfer(Message):
    """Money on its way."""

    amount: int
    serial: int


class Teller(Process):
    """Moves money in two steps, with a wait between them in which it is nowhere."""

    cash: int = START_BALANCE
    safe: int = 0
    paid: int = 0
    received: int = 0
    published_count: int = 0
    _is_inside: bool = False

    async def start(self) -> None:
        """Begin with a step that takes a while."""
        await self._move(10)

    async def receive(self, channel: Channel, message: Transfer) -> None:
        """Take the next payment, in two steps."""
        self.received += 1
        assert message.serial == self.received
        self.cash += message.amount
        await self._move(message.amount)

    @every(ms=0)
    async def pay(self) -> None:
        """Pay some, in two steps."""
        amount = self.paid % 3
        self.cash -= amount
        self.paid += 1
        await self._move(1)
        self.send(self.outgoing[0], Transfer(amount, self.paid))

    @every(ms=1)
    async def count(self) -> None:
        """Move some money to and fro."""
        await self._move(5)
        await self._move(-5)

    async def on_published(self, snapshot: SnapshotId) -> None:
        """Move some more."""
        await self._move(1)
        self.published_count += 1

    async def _move(self, amount: int) -> None:
        assert not self._is_inside, "another action has begun"
        self._is_inside = True
        self.cash -= amount
        for _ in range(3):
            await turn()
        self.safe += amount
        self._is_inside = False


def total(snapshot: Snapshot) -> int:
    """Return all the money in a snapshot."""
    states = [msgspec.msgpack.decode(state.encoded) for state in snapshot.state.processes]
    batches = [batch for state in snapshot.state.channels for batch in state.batches]
    transfers = [msgspec.msgpack.decode(batch.encoded, type=list[Transfer]) for batch in batches]
    caught: int = sum(transfer.amount for batch in transfers for transfer in batch)
    held: int = sum(state["cash"] + state["safe"] for state in states)
    return held + caught


def test_no_snapshot_sees_the_middle_of_a_coroutine(tmp_path: Path) -> None:
    """Actions follow one another; a snapshot that is wanted in the middle of one waits for its
    end; and in each the money is all there."""
    tellers = {"A": Teller(), "B": Teller()}

    async def main() -> None:
        async with asyncio.timeout(30), LocalSystem(Topology.mesh(tellers), tmp_path) as system:
            caught_count, inside_count = 0, 0
            for number in range(30):
                initiator = "AB"[number % 2]
                await system.until(lambda name=initiator: tellers[name]._is_inside)  # type: ignore[misc]
                inside_count += tellers[initiator]._is_inside
                snapshot = await system.take(initiator)
                assert total(snapshot) == 2 * START_BALANCE
                caught_count += snapshot.state.message_count
            assert inside_count == 30
            assert caught_count > 0
            await system.until(lambda: tellers["A"].published_count == 30)

    asyncio.run(main())


class Gated(Process):
    """Handles a message only while its gate is open."""

    received: int = 0
    _gate: asyncio.Event | None = None

    async def receive(self, channel: Channel, message: Tick) -> None:
        """Wait for the gate, then count."""
        assert self._gate is not None
        await self._gate.wait()
        self.received += 1
        assert message.serial == self.received


def test_a_process_that_takes_too_long_is_named_at_the_deadline(tmp_path: Path) -> None:
    """A snapshot is given up at its deadline and says who was missing; when that process goes on,
    the next snapshot is published."""
    gated = Gated()

    async def main() -> None:
        gate = gated._gate = asyncio.Event()
        topology = Topology(
            {"A": Source(limit=3), "B": Sink(), "C": gated}, [("A", "B"), ("A", "C")]
        )
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path, timeout_s=25) as system:
            await system.until(lambda: system.hosts["C"].mailbox != [] and _is_acting(system))
            result = system.coordinator.begin("A")
            await _let_deadline_pass(system, missing=("C",))
            await system.until(result.done)
            outcome = result.result()
            assert isinstance(outcome, Abandoned)
            assert outcome.reason is Reason.DEADLINE
            assert outcome.missing == ("C",)
            assert "missing: C" in str(outcome)
            gate.set()
            await system.until(lambda: gated.received == 3)
            snapshot = await system.take()
            assert [state.received_count for state in snapshot.state.channels] == [3, 3]

    asyncio.run(main())


async def _let_deadline_pass(system: LocalSystem, missing: tuple[str, ...]) -> None:
    """Wait until no other parts of the one snapshot are missing; then its time is over."""
    while [under_way.missing for under_way in await system.coordinator.monitor.poll_pending()] != [
        missing
    ]:
        pass
    (pending,) = system.coordinator._assembler._pending.values()
    pending.deadline = pending.initiated_at
    system.coordinator.monitor.set_timer()


def _is_acting(system: LocalSystem) -> bool:
    action: asyncio.Lock = system.hosts["C"].action  # type: ignore[attr-defined]
    return action.locked()


def test_a_full_channel_waits_for_a_slow_coroutine(tmp_path: Path) -> None:
    """While a message is being waited for its source stops at the window; then all is handled, in
    order."""
    gated, source = Gated(), Source(limit=20_000)

    async def main() -> None:
        gate = gated._gate = asyncio.Event()
        topology = Topology({"A": source, "C": gated}, [("A", "C")])
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path) as system:
            await system.until(lambda: not system.hosts["A"].has_room)
            assert source.sent < 20_000
            gate.set()
            snapshot = await system.take("C")
            assert snapshot.state.message_count > 0
            await system.until(lambda: gated.received == 20_000)

    asyncio.run(main())
