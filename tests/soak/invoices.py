"""The kill soak of effects outside: payments in an SQLite file that no restore takes back.

``python -m tests.soak.invoices --kills 50 --seed 1`` prints ``SEED=`` first. After so many kills it
compares the table with what the last snapshot says was paid: nothing is missing, nothing is there
twice, every amount is right. Then it goes back to older snapshots by hand, kills again, and looks
again. It exits with 1 and says what is wrong. The short form runs with the tests.
"""

import argparse
import asyncio
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec
import uvloop

from stillframe import Due, Outbox
from stillframe.examples.invoices import Payment, connect, settle
from stillframe.model import Abandoned, Snapshot
from stillframe.runtime import events
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.store import Store
from tests.soak import invoices_shop

MOMENTS = (*invoices_shop.PRECISE_MOMENTS, "any", "a customer", "snapshot")
STEP_TIMEOUT_S = 60.0
PERIOD_S = 0.05


def paid_in(snapshot: Snapshot) -> dict[str, int]:
    """Return invoice -> amount for every payment that the till had received at its cut."""
    paid: dict[str, int] = {}
    for state in snapshot.state.processes:
        if state.kind == "Customer":
            paid.update(msgspec.msgpack.decode(state.encoded)["paid"])
    for channel in snapshot.state.channels:
        if channel.channel.target == "till":
            for batch in channel.batches:
                for payment in msgspec.msgpack.decode(batch.encoded, type=list[Payment]):
                    assert paid.pop(payment.invoice) == payment.amount
    return paid


def due_in(snapshot: Snapshot) -> Due[Payment] | None:
    """Return what was to be committed at the cut of the till; None if that is nothing."""
    [state] = [state for state in snapshot.state.processes if state.process == "till"]
    payments = invoices_shop.shop.codecs["till"].decode(state.encoded)["payments"]
    assert isinstance(payments, Outbox)
    return payments.due()


class Books:
    """The SQLite file, as an outsider reads it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wrong(self, truth: dict[str, int], *, is_forked: bool) -> list[str]:
        """Return what is wrong with the table, one sentence each.

        Args:
            truth: invoice -> amount that is to be there.
            is_forked: somebody went back by hand: then what was paid before may be there as well,
                and an invoice may have been paid when it had another amount.
        """
        with closing(connect(self._path)) as books:
            rows = books.execute("select invoice, amount from paid").fetchall()
            [(mark,)] = books.execute("select mark from mark").fetchall()
        counts = Counter(invoice for invoice, _ in rows)
        paid = dict(rows)
        wrong = [f"{name} was paid {count} times" for name, count in counts.items() if count > 1]
        wrong += [f"{name} is missing" for name in truth if name not in paid]
        if not is_forked:
            wrong += [f"{name} was never to be paid" for name in paid if name not in truth]
            wrong += [
                f"{name} was paid with {paid[name]}, not {amount}"
                for name, amount in truth.items()
                if paid.get(name, amount) != amount
            ]
            wrong += ["invoices were looked up, though nobody went back by hand"] * (
                "forked" in mark
            )
        return wrong

    def has_doubles(self) -> bool:
        """Return whether an invoice was paid more than once. It may be called while the till
        writes: a reader only waits for a commit, and a writer would wait for a gap between two."""
        uri = f"file:{self._path}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=STEP_TIMEOUT_S)) as books:
            query = "select invoice from paid group by invoice having count(*) > 1"
            return books.execute(query).fetchone() is not None

    def settle_the_rest(self, snapshot: Snapshot) -> int:
        """Commit what is due in a published snapshot, as the till would; return how many rows
        that made."""
        with closing(connect(self._path)) as books:
            count = "select count(*) from paid"
            [(before,)] = books.execute(count).fetchall()
            if (due := due_in(snapshot)) is not None:
                settle(books, due)
            [(after,)] = books.execute(count).fetchall()
        return int(after - before)


class Soak:
    """One run: what was done, and what was seen."""

    def __init__(self, seed: int, directory: Path, *, is_naive: bool = False) -> None:
        self.random = random.Random(seed)
        topology = "naive_shop" if is_naive else "shop"
        self.is_naive = is_naive
        self.reference = f"tests.soak.invoices_shop:{topology}"
        os.environ["INVOICES"] = str(directory / f"{topology}.sqlite")
        self.books = Books(directory / f"{topology}.sqlite")
        description = getattr(invoices_shop, topology).description
        self.store = Store.create(
            directory / topology, description=description, reference=self.reference
        )
        self.done: Counter[str] = Counter()
        self.died = asyncio.Event()
        self.published = asyncio.Event()

    def emit(self, event: events.Event) -> None:
        """Note what happens; a failure of the application is the end."""
        match event:
            case events.ProcessDied(process, cause, story):
                self.died.set()
                assert "SIGKILL" in cause, f"{process} died by itself: {cause}\n{story}"
            case events.SnapshotPublished():
                self.published.set()
                self.done["snapshots"] += 1

    async def kill(self, system: Supervisor, moment: str) -> None:
        """Kill -9 one process at a moment of one kind; wait until the system is back."""
        self.died.clear()
        if moment in invoices_shop.PRECISE_MOMENTS:
            invoices_shop.doom(moment)
            while not self.died.is_set():
                await self.snapshot(system)
        else:
            await asyncio.sleep(self.random.random() * PERIOD_S)
            if moment == "snapshot":
                _ = await system.begin_snapshot(self.random.choice(sorted(system.children)))
                await asyncio.sleep(self.random.random() * 0.02)
            names = [n for n in sorted(system.children) if n[0] == "C" or moment != "a customer"]
            os.kill(system.children[self.random.choice(names)].pid, signal.SIGKILL)
            await self.died.wait()
        self.done[f"kills: {moment}"] += 1
        await system.until_running()

    async def snapshot(self, system: Supervisor) -> None:
        """Take a snapshot; it is abandoned if somebody dies meanwhile."""
        outcome = await system.snapshot(self.random.choice(sorted(system.children)))
        self.done["snapshots abandoned"] += isinstance(outcome, Abandoned)

    async def work(self, system: Supervisor) -> None:
        """Let the shop go on for some snapshots."""
        for _ in range(self.random.randrange(1, 4)):
            await asyncio.sleep(PERIOD_S * self.random.random())
            await self.snapshot(system)

    async def run(self, kill_count: int, return_count: int) -> list[str]:
        """Kill so often, look; go back by hand so often, look again; return what is wrong."""
        moments = [MOMENTS[index % len(MOMENTS)] for index in range(kill_count)]
        if self.is_naive:
            moments = [invoices_shop.AFTER] * kill_count
        self.random.shuffle(moments)
        async with Supervisor(self.reference, self.store, emit=self.emit) as system:
            for index, moment in enumerate(moments):
                async with asyncio.timeout(STEP_TIMEOUT_S):
                    await self.work(system)
                    await self.kill(system, moment)
                print(f"{time.strftime('%H:%M:%S')} {index + 1:>3} {moment}", flush=True)
            await self.snapshot(system)
            async with asyncio.timeout(STEP_TIMEOUT_S):
                # What was paid when the till died comes again: from a channel of the restored
                # snapshot, or because the customer gets as far as that invoice once more.
                while self.is_naive and not self.books.has_doubles():
                    await self.snapshot(system)
        wrong = self.look(is_forked=False)
        if wrong or not return_count:
            return wrong
        async with Supervisor(self.reference, self.store, emit=self.emit) as system:
            for index in range(return_count):
                async with asyncio.timeout(STEP_TIMEOUT_S):
                    await self.work(system)
                    await system.restore(self.random.choice(self.store.entries()[:-1]).id)
                    self.done["restores by hand"] += 1
                    await self.work(system)
                    await self.kill(system, self.random.choice(MOMENTS))
                print(f"{time.strftime('%H:%M:%S')} {index + 1:>3} restore by hand", flush=True)
            await self.snapshot(system)
        return self.look(is_forked=True)

    def look(self, *, is_forked: bool) -> list[str]:
        """Compare the table with the last restore point, when what was due there is committed."""
        current = self.store.current()
        assert current is not None
        snapshot = self.store.load(current.id)
        if not self.is_naive:
            self.done["payments committed behind the end"] += self.books.settle_the_rest(snapshot)
        truth = paid_in(snapshot)
        phase = "restores by hand" if is_forked else "kills"
        self.done[f"payments at the end of the {phase}"] = len(truth)
        return self.books.wrong(truth, is_forked=is_forked)


def soak(
    seed: int, *, kill_count: int, return_count: int, directory: Path, is_naive: bool = False
) -> tuple[Soak, list[str]]:
    """Run the soak; return what was done and what is wrong."""
    print(f"SEED={seed}", flush=True)
    run = Soak(seed, directory, is_naive=is_naive)
    try:
        return run, uvloop.run(run.run(kill_count, return_count))
    finally:
        run.store.close()


def main() -> None:
    """Run the full form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--returns", type=int, default=10, help="restores by hand afterwards")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**31)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stillframe-soak-") as directory:
        run, wrong = soak(
            seed, kill_count=options.kills, return_count=options.returns, directory=Path(directory)
        )
    for what, count in sorted(run.done.items()):
        print(f"{what:40} {count:>8,}")
    print(f"{'all of it':40} {time.monotonic() - began:>8.0f} s")
    if wrong:
        print("\nwrong:", *wrong[:20], sep="\n")
        sys.exit(1)
    print("every payment is in the table once, and with its amount before the restores by hand")


if __name__ == "__main__":
    main()
