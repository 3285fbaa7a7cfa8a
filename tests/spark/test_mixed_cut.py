"""One cut through logs, topics of Kafka and TCP, with two drivers and services of every kind."""

import asyncio
import concurrent.futures
import contextlib
import json
import os
import secrets
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stillframe.errors import Unavailable, UsageError
from stillframe.model import Abandoned
from stillframe.pipeline import Manifest, Pipeline
from stillframe.pipeline.cut_view import termination
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.participant_logs import reported_positions
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.storage.location import locate
from stillframe.store.store import Store
from tests.kafka_topics import create_topics
from tests.soak.pipeline_programs import Program
from tests.spark.flows import wait_until
from tests.spark.mixed_shop import (
    FEE,
    RECEIPT,
    TOPICS,
    amount_of,
    create,
    is_cash,
    rounds_of,
    system,
    topic_of,
)

pytestmark = [pytest.mark.slow, pytest.mark.spark]
REFERENCE = "tests.spark.mixed_shop:system"
LOGS = {"orders": "first", "returns": "first", "cash": "back", "totals": "clerk"}
"""The logs that carry orders, and their readers."""
TOPICS_READ = ("unique", "entries")
"""The topics that carry orders."""
SNAPSHOT_COUNT = 4
MORE = 10
"""How many orders are sent after the restore."""
TIMEOUT_S = 480


class Cut:
    """What a snapshot has: each order in transit with its carrier, and the states."""

    def __init__(self, pipeline: Pipeline, manifest: Manifest) -> None:
        self._pipeline = pipeline
        self._manifest = manifest
        self.view = pipeline.view(str(manifest.snapshot))
        (part,) = manifest.systems
        self._system = Store.open(locate(part.store)).load(part.snapshot).state
        self.in_transit: list[tuple[str, int, int]] = list(self._orders())
        """Carrier, serial and amount."""

    def state(self, service: str) -> Any:
        """Return the fields of a service."""
        (state,) = self.view.states(service)
        return state

    def messages(self, source: str) -> list[list[Any]]:
        """Return the messages in transit that the clerk or the vault has sent."""
        (found,) = [one for one in self._system.channels if one.channel.source == source]
        return [one for batch in found.batches for one in msgspec.msgpack.decode(batch.encoded)]

    def _orders(self) -> Iterator[tuple[str, int, int]]:
        passed = self._passed()
        for log, target in LOGS.items():
            for row in self.view.in_flight(log, target):
                one = json.loads(row["value"]) if log == "totals" else row
                if log == "orders" and one["serial"] in passed:
                    continue  # it is there once more
                if log == "orders":
                    passed.add(one["serial"])
                yield log, one["serial"], one["amount"]
        for topic in TOPICS_READ:
            for record in self.view.in_flight(topic):
                one = json.loads(record.value)
                yield topic, one["serial"], one["amount"]
        for *_, serial, amount, _hops in self.messages("clerk"):
            yield "TCP", serial, amount

    def _passed(self) -> set[int]:
        """Return the orders that ``first`` has read from the log of the till."""
        end = self._manifest.cut("orders", "first").position
        batches = self._pipeline.records("orders", snapshot=self._manifest.snapshot)
        rows = [row for one in batches if one.position < end for row in one.records.to_pylist()]
        return {row["serial"] for row in rows}

    def check(self) -> None:
        """Check that each order is in one place, and all the money is somewhere."""
        sent = self.state("till")["sent"]
        kept = self.state("vault")["kept"]
        places = Counter([*kept, *(serial for _, serial, _ in self.in_transit)])
        assert places == Counter(range(sent)), self._manifest.snapshot
        receipts = sum(amount for *_, amount in self.messages("vault"))
        fees = sum(self.state(name)["fees"] for name in ("ledger", "clerk"))
        money = fees + receipts + self.state("vault")["balance"]
        money += sum(amount for *_, amount in self.in_transit)
        assert money == sum(map(amount_of, range(sent))), self._manifest.snapshot
        # That an order has ended is known to the till, or the record of it is in transit.
        waiting = [row["serial"] for row in self.view.in_flight("done")]
        assert self.state("till")["done"] + len(waiting) == len(kept)
        assert waiting == kept[len(kept) - len(waiting) :]


class Run:
    """The shop, and the programs that run."""

    def __init__(self, directory: Path, servers: str) -> None:
        prefix = f"mixed-{secrets.token_hex(4)}"
        create_topics(servers, *(topic_of(prefix, name) for name in TOPICS))
        self._directory = directory
        self._end_file = directory / "end"
        self.pipeline = create(directory / "mixed.pipeline", servers, prefix)
        self.store = Store.create(
            directory / "store", description=system.description, reference=REFERENCE
        )
        self._ever: list[Program] = []
        self._driver: Program | None = None

    def close(self) -> None:
        """End everything."""
        for program in self._ever:
            program.close()
        self.store.close()

    def supervisor(self) -> Supervisor:
        """Return the system of the clerk and the vault, which has not started."""
        return Supervisor(REFERENCE, self.store, SupervisorConfig(pipeline=self.pipeline.path))

    def start(self, module: str, name: str) -> Program:
        """Start one of the programs: a service, or the driver of a query."""
        arguments = [str(self.pipeline.path), *([str(self._end_file)] if name == "till" else [])]
        log = self._directory / f"{name}.log"
        program = Program(f"tests.spark.{module}", name, *arguments, log=log)
        self._ever.append(program)
        return program

    def end_after(self, count: int) -> None:
        """Let the till end after so many orders."""
        self._end_file.write_text(str(count))

    def snapshot(self) -> Cut:
        """Take a snapshot and check it."""
        outcome = self.pipeline.snapshot(timeout_s=60)
        assert isinstance(outcome, Manifest), outcome
        cut = Cut(self.pipeline, outcome)
        cut.check()
        return cut

    def take_snapshots(self) -> list[Cut]:
        """Take snapshots until there are some, and a log and a topic carried orders in them."""
        taken: list[Cut] = []
        carriers: set[str] = set()
        while len(taken) < SNAPSHOT_COUNT or not (carriers & {*LOGS} and carriers & {*TOPICS_READ}):
            taken.append(self.snapshot())
            carriers |= {carrier for carrier, *_ in taken[-1].in_transit}
        return taken

    def snapshot_over_tcp(self, vault: int) -> tuple[Program, Cut]:
        """Start the till with a frozen vault, and take a snapshot when the clerk has sent orders to
        it. The vault wakes when the clerk has recorded: orders are in transit to the vault, or what
        it sends to the clerk is."""
        os.kill(vault, signal.SIGSTOP)
        till = self.start("mixed_shop", "till")
        till.expect("joined")
        wait_until(self._clerk_has_read)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            taking = pool.submit(self.snapshot)
            wait_until(lambda: taking.done() or "clerk" in self._recorded())
            os.kill(vault, signal.SIGCONT)
            cut = taking.result()
        assert cut.messages("clerk") or cut.messages("vault")
        return till, cut

    def _clerk_has_read(self) -> bool:
        head = read_metadata(self.pipeline.path)
        found = reported_positions(self.pipeline.path, head, "clerk")
        return found is not None and found[0]["totals"] > 0

    def _recorded(self) -> Mapping[str, float]:
        progress = self.pipeline.status()
        return {} if progress is None else progress.recorded

    def run_and_kill(self, vault: int) -> list[Cut]:
        """Start all programs but the system, take snapshots, and kill -9 all of them but the driver
        of ``first``."""
        drivers = {name: self.start("mixed_driver", name) for name in ("first", "back")}
        ledger = self.start("mixed_shop", "ledger")
        ledger.expect("joined")
        for driver in drivers.values():
            driver.expect("running")
        till, first = self.snapshot_over_tcp(vault)
        till.expect("done")
        taken = [first, *self.take_snapshots()]
        for program in (till, ledger, drivers["back"]):
            program.check_alive()
            program.kill()
        self._driver = drivers["first"]
        self._driver.tell("stop")
        self._driver.expect("stopped")
        return taken

    def run_to_the_end(self) -> Cut:
        """Start all programs but the system, both queries in the driver that is left; return a
        snapshot that is taken when they have come to their ends."""
        assert self._driver is not None
        driver = self._driver
        driver.tell("start first back")
        ledger = self.start("mixed_shop", "ledger")
        ledger.expect("joined")
        till = self.start("mixed_shop", "till")
        driver.expect("running")
        till.end()
        driver.tell("finish")
        driver.end()
        ledger.process.terminate()
        ledger.end()
        return self.snapshot()


def check_end(pipeline: Pipeline, cut: Cut, count: int) -> None:
    """Compare everything with what is computed from the orders."""
    assert termination(cut.view).holds
    rounds = [one for serial in range(count) for one in rounds_of(serial)]
    records = (json.loads(one.value or b"") for one in pipeline.topic_records("audit"))
    assert Counter(tuple(one.values()) for one in records) == Counter(rounds)
    assert cut.state("till") == {"sent": count, "done": count}
    kept = len(rounds) - sum(map(is_cash, range(count)))
    assert cut.state("ledger") == {"fees": FEE * kept}
    assert sorted(cut.state("vault")["kept"]) == list(range(count))
    rest = sum(amount - FEE - RECEIPT for _, amount, hops in rounds if hops == 0)
    assert cut.state("vault")["balance"] == rest


def test_every_order_is_in_one_place(tmp_path: Path, kafka_address: str) -> None:
    """Each snapshot has each order once, in a state or in transit, and all the money. After kills
    and a restore the end is as computed from the orders alone."""
    run = Run(tmp_path, kafka_address)

    async def first_epoch() -> list[Cut]:
        async with asyncio.timeout(TIMEOUT_S), run.supervisor() as running:
            vault = running.children["vault"].pid
            taken = await asyncio.to_thread(run.run_and_kill, vault)
            os.kill(vault, signal.SIGKILL)
            with pytest.raises(Unavailable, match="process vault died"):
                await running.finished
        return taken

    async def second_epoch() -> Cut:
        async with asyncio.timeout(TIMEOUT_S), run.supervisor():
            return await asyncio.to_thread(run.run_to_the_end)

    with contextlib.closing(run):
        taken = asyncio.run(first_epoch())
        dead = run.pipeline.snapshot()
        assert isinstance(dead, Abandoned)
        with pytest.raises(UsageError, match="the service clerk, which keeps its state in memory"):
            run.pipeline.restore(newest_consistent=True)
        chosen = taken[len(taken) // 2]
        run.pipeline.restore(str(chosen.view.snapshot))
        count = chosen.state("till")["sent"] + MORE
        run.end_after(count)
        last = asyncio.run(second_epoch())
        assert run.pipeline.epoch == 2
        check_end(run.pipeline, last, count)
