"""Whole systems whose money lies in keyed fields: the books balance in every snapshot, of which the
store has only what changed."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Callable, Coroutine
from dataclasses import field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stillframe import join
from stillframe.errors import StoreError
from stillframe.keyed import Keyed
from stillframe.model import Abandoned, Channel, Reason, Snapshot
from stillframe.process import Message, Process, every
from stillframe.restore import start_states
from stillframe.runtime.events import SystemRunning
from stillframe.runtime.process.join import JoinedProcess
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from stillframe.topology import Topology
from tests.runtime.local import LocalSystem
from tests.runtime.programs import Shelf, Tick, shelving
from tests.runtime.test_join import waiting_system
from tests.runtime.watch import Watch, take

ACCOUNT_COUNT = 1_000
STARTED_WITH = 10
TOTAL = 3 * ACCOUNT_COUNT * STARTED_WITH


class Coin(Message):
    """Money on its way to an account."""

    account: int
    amount: int


class Branch(Process):
    """Some accounts; those that hold nothing are not there."""

    accounts: Keyed[int, int] = field(
        default_factory=lambda: Keyed(dict.fromkeys(range(ACCOUNT_COUNT), STARTED_WITH))
    )
    received_count: int = 0
    seed: int = 0

    @every(ms=5)
    def pay(self) -> None:
        """Take money out of some accounts, and send it to others elsewhere."""
        if "_chance" not in vars(self):
            self._chance = random.Random(self.seed)
        for _ in range(20):
            account = self._chance.randrange(ACCOUNT_COUNT)
            amount = self.accounts.pop(account, 0)
            if amount > 1:
                self.accounts[account] = amount - 1
            if amount:
                other = self._chance.choice(self.outgoing)
                self.send(other, Coin(self._chance.randrange(ACCOUNT_COUNT), 1))

    def receive(self, channel: Channel, message: Coin) -> None:
        """Put it in."""
        self.accounts[message.account] = self.accounts.get(message.account, 0) + message.amount
        self.received_count += 1


class SlowBranch(Branch):
    """The same with a handler that waits: a capture goes on in the middle of its actions."""

    async def receive(self, channel: Channel, message: Coin) -> None:  # type: ignore[override]
        """Take it in two steps, between which the loop goes round."""
        self.accounts[message.account] = self.accounts.get(message.account, 0) + message.amount
        await asyncio.sleep(0)
        self.received_count += 1


def bank(kind: type[Branch] = Branch) -> Topology:
    """Return three branches, each connected with both others."""
    return Topology.mesh({name: kind(seed=seed) for seed, name in enumerate("ABC")})


system = bank()
"""For processes of their own."""


def balance(snapshot: Snapshot) -> int:
    """Return all money in a snapshot: on accounts and on channels."""
    decode = msgspec.msgpack.decode
    held = sum(
        sum(decode(state.encoded, strict=False)["accounts"].values())
        for state in snapshot.state.processes
    )
    moving = sum(
        coin[2]
        for channel in snapshot.state.channels
        for batch in channel.batches
        for coin in decode(batch.encoded)
    )
    return int(held + moving)


def asyncio_test(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine with a limit."""

    async def limited() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(limited())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Branch, SlowBranch])
def test_the_books_balance_in_every_snapshot(tmp_path: Path, kind: type[Branch]) -> None:
    """While money moves through accounts of which captures are open; snapshots overlap, and each is
    based on the newest that was published; a restore from the last goes on so."""

    async def main() -> None:
        async with LocalSystem(bank(kind), tmp_path) as system:
            publish, published = system.store.publish, []

            def note(snapshot: Snapshot) -> SnapshotEntry:
                published.append(snapshot)
                return publish(snapshot)

            system.store.publish = note  # type: ignore[method-assign]
            for _ in range(2):
                for outcome in [system.coordinator.begin(name) for name in "ABC"]:
                    await system.until(outcome.done)
                    entry = outcome.result()
                    assert isinstance(entry, SnapshotEntry), str(entry)
                    assert balance(system.store.load(entry.id)) == TOTAL
            bases = [state.base for snapshot in published for state in snapshot.state.processes]
            assert bases[:3] == [None] * 3
            assert any(base is not None for base in bases)
            assert any(s.pause_s > 0 and s.capture_s > 0 for s in published)
            last = system.store.load(published[-1].id)
        starts = start_states(last, system.topology.description)
        async with LocalSystem(bank(kind), tmp_path / "again", starts=starts) as system:
            assert balance(await system.take()) == TOTAL

    asyncio_test(main)


@pytest.mark.slow
def test_a_kill_takes_all_back_to_a_snapshot_of_changes(tmp_path: Path) -> None:
    """To exactly what the chain of snapshots holds; the next one is based on that one."""
    reference = "tests.runtime.test_keyed_systems:system"
    store = Store.create(tmp_path / "store", description=system.description, reference=reference)

    async def main() -> None:
        watch = Watch()
        async with Supervisor(reference, store, emit=watch.emit) as running:
            for _ in range(3):
                assert balance(await take(running)) == TOTAL
            os.kill(running.children["B"].pid, signal.SIGKILL)
            await watch.until_epoch(2)
            begun_with = watch.of(SystemRunning)[-1].restored_from
            assert begun_with is not None
            assert balance(await take(running)) == TOTAL
            assert store.entries()[-1].bases == (begun_with,)

    with contextlib.closing(store):
        asyncio_test(main)


@pytest.mark.slow
def test_a_joined_program_has_keyed_fields_too(tmp_path: Path) -> None:
    """Each snapshot has exactly the rows that the messages before its cut have set."""
    place_count = 700

    async def receive(me: JoinedProcess, shelf: Shelf) -> None:
        async for _, message in me:
            assert isinstance(message, Tick)
            shelf.received += 1
            shelf.places[message.serial % place_count] = message.serial

    async def main() -> None:
        shelf = Shelf()
        async with (
            waiting_system(tmp_path, "shelving") as (running, watch),
            join("J", topology=shelving, store=tmp_path / "store", state=shelf) as me,
        ):
            receiving = asyncio.get_running_loop().create_task(receive(me, shelf))
            await watch.until_epoch(1)
            for _ in range(3):
                snapshot = await take(running)
                encoded = snapshot.state.processes[1].encoded
                recorded = msgspec.msgpack.decode(encoded, type=dict[str, Any], strict=False)
                count = recorded["received"]
                serials = range(max(1, count - place_count + 1), count + 1)
                assert recorded["places"] == {serial % place_count: serial for serial in serials}
            assert running.store.entries()[-1].bases
            receiving.cancel()
            await asyncio.wait([receiving])

    asyncio_test(main)


@pytest.mark.slow
def test_a_store_that_lost_a_base_gets_everything_again(tmp_path: Path) -> None:
    """The snapshot that was based on it is abandoned, with the cause; the next one is whole."""

    async def main() -> None:
        async with LocalSystem(bank(), tmp_path) as system:
            await system.take()
            publish, published = system.store.publish, []

            def refuse(snapshot: Snapshot) -> SnapshotEntry:
                published.append(snapshot)
                system.store.publish = accept  # type: ignore[method-assign]
                raise StoreError("a base is missing")

            def accept(snapshot: Snapshot) -> SnapshotEntry:
                published.append(snapshot)
                return publish(snapshot)

            system.store.publish = refuse  # type: ignore[method-assign]
            outcome = await system.try_to_take()
            assert isinstance(outcome, Abandoned)
            assert (outcome.reason, outcome.detail) == (Reason.NOT_PUBLISHED, "a base is missing")
            assert balance(await system.take()) == TOTAL
            bases = [[state.base is None for state in s.state.processes] for s in published]
            assert bases == [[False] * 3, [True] * 3]

    asyncio_test(main)
