"""A demonstration: snapshots of a running bank, kill -9, recovery, and an audit on Spark.

It checks every claim that it prints, and exits with 0 only if all claims hold.
"""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.live import Live
from rich.table import Table

from examples.claims import exit_code_of, show_claims
from stillframe.examples.bank import ACCOUNT_COUNT, TOTAL, bank
from stillframe.model import Abandoned, Snapshot
from stillframe.runtime import events
from stillframe.runtime.supervisor.supervisor import Supervisor, trigger_periodically
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store

REFERENCE = "stillframe.examples.bank:bank"
EVERY_S = 0.25
BEFORE_KILL_S = 14.0
AFTER_KILL_S = 8.0
OVERLAP_EVERY_S = 2.0
AUDIT = ("--states", "sum(balance)", "--messages", "sum(amount)")


@dataclass
class Findings:
    """The measurements of the demo so far."""

    entries: list[SnapshotEntry] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    caught_count: int = 0
    received: list[tuple[float, int]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    naive_totals: list[int] = field(default_factory=list)
    naive_seen_count: int = 0
    abandoned: list[Abandoned] = field(default_factory=list)
    skipped_count: int = 0
    recovered_s: float | None = None
    killed: str = ""
    trouble: list[str] = field(default_factory=list)
    died: asyncio.Event = field(default_factory=asyncio.Event)

    def look_at(self, snapshot: Snapshot) -> None:
        """Add up the money in a snapshot from the store, and collect the other measurements."""
        states = [msgspec.msgpack.decode(s.encoded) for s in snapshot.state.processes]
        messages = [
            message
            for channel in snapshot.state.channels
            for batch in channel.batches
            for message in msgspec.msgpack.decode(batch.encoded)
        ]
        in_accounts = sum(state["balance"] for state in states)
        in_channels = sum(message[1] for message in messages if message[0] == "Transfer")
        self.totals[str(snapshot.id)] = in_accounts + in_channels
        self.caught_count += snapshot.state.message_count
        received = sum(channel.received_count for channel in snapshot.state.channels)
        self._note_rate(snapshot.completed_at, received)
        naive = next(s["naive_totals"] for s in states if "naive_totals" in s)
        # The restore also rolled back the auditor and its list.
        self.naive_seen_count = min(self.naive_seen_count, len(naive))
        self.naive_totals += naive[self.naive_seen_count :]
        self.naive_seen_count = len(naive)

    def _note_rate(self, at: float, received: int) -> None:
        if self.received:
            before, count = self.received[-1]
            if at - before > EVERY_S / 2 and received > count:
                self.rates.append((received - count) / (at - before))
        self.received.append((at, received))

    @property
    def rate(self) -> float:
        """Messages per second: the median over the intervals between snapshots."""
        rates = sorted(self.rates)
        return rates[len(rates) // 2] if rates else 0.0

    @property
    def wrong_naive_count(self) -> int:
        """The number of wrong naive totals."""
        return sum(total != TOTAL for total in self.naive_totals)

    @property
    def overlap_count(self) -> int:
        """The number of consecutive snapshots that were in progress at the same time."""
        ordered = sorted(self.entries, key=lambda entry: entry.initiated_at)
        pairs = pairwise(ordered)
        return sum(later.initiated_at < earlier.completed_at for earlier, later in pairs)


def _progress(findings: Findings, phase: str, began: float) -> Table:
    table = Table.grid(padding=(0, 2))
    naive = f"{findings.wrong_naive_count} of {len(findings.naive_totals)} wrong"
    last = f", the last {findings.naive_totals[-1]:,}" if findings.naive_totals else ""
    right = sum(total == TOTAL for total in findings.totals.values())
    rows = {
        "phase": f"[bold]{phase}[/bold]  ({time.monotonic() - began:.0f} s)",
        "messages per second": f"{findings.rate:,.0f}",
        "snapshots": f"{len(findings.entries)}, {findings.overlap_count} overlapping",
        "messages in transit": f"{findings.caught_count:,}",
        "total by querying accounts": naive + last,
        "total in snapshots": f"{right} of {len(findings.totals)} correct ({TOTAL:,})",
    }
    if findings.recovered_s is not None:
        rows["recovery"] = f"{findings.recovered_s:.2f} s after kill -9 of {findings.killed}"
    for name, value in rows.items():
        table.add_row(name, value)
    return table


async def _look(
    store: Store, findings: Findings, published: "asyncio.Queue[SnapshotEntry]"
) -> None:
    """Load every published snapshot from the store and measure it."""
    while True:
        entry = await published.get()
        findings.look_at(await asyncio.to_thread(store.load, entry.id))
        findings.entries.append(entry)
        published.task_done()


async def _overlap(system: Supervisor) -> None:
    """Start two snapshots at once, from two initiators, at regular intervals."""
    while True:
        await asyncio.sleep(OVERLAP_EVERY_S)
        await asyncio.wait([await system.begin_snapshot(p) for p in ("P1", "P2")])


async def _kill_and_recover(system: Supervisor, findings: Findings) -> None:
    """Kill one process with SIGKILL and wait until the whole system runs again."""
    findings.killed = "P3"
    began = time.monotonic()
    os.kill(system.children["P3"].pid, signal.SIGKILL)
    await findings.died.wait()
    await system.until_running()
    findings.recovered_s = time.monotonic() - began


async def _run(path: Path, findings: Findings, show: Callable[[str], None]) -> None:
    """Run the bank with snapshots, and kill a process halfway."""
    published: asyncio.Queue[SnapshotEntry] = asyncio.Queue()

    def emit(event: events.Event) -> None:
        match event:
            case events.SnapshotPublished(entry):
                published.put_nowait(entry)
            case events.SnapshotAbandoned(abandoned):
                findings.abandoned.append(abandoned)
            case events.SnapshotSkipped():
                findings.skipped_count += 1
            case events.ProcessDied():
                findings.died.set()
            case events.ConnectionWarning(detail):
                findings.trouble.append(detail)

    store = Store.create(path, description=bank.description, reference=REFERENCE)
    try:
        show("starting 5 processes, 20 channels")
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(_look(store, findings, published))
            async with Supervisor(REFERENCE, store, emit=emit) as system:
                periodic = trigger_periodically(
                    system, every_s=EVERY_S, initiators=("P1", "P2"), emit=emit
                )
                tasks = [group.create_task(periodic), group.create_task(_overlap(system))]
                await _wait(BEFORE_KILL_S, lambda: show("running, with snapshots"))
                show("kill -9 P3, rolling back to the latest snapshot")
                await _kill_and_recover(system, findings)
                await _wait(AFTER_KILL_S, lambda: show("running after the restore"))
                for task in tasks:
                    task.cancel()
            # The last snapshots may be published after the system stopped.
            await published.join()
            looking.cancel()
    finally:
        store.close()


async def _wait(seconds: float, show: Callable[[], None]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        show()
        await asyncio.sleep(0.25)


def _claims(findings: Findings, audit_exit_code: int, audited_count: int) -> dict[str, bool]:
    """Return each claim of the demo, and whether it holds."""
    right = sum(total == TOTAL for total in findings.totals.values())
    after = sum(entry.epoch > 1 for entry in findings.entries)
    naive_count = len(findings.naive_totals)
    return {
        f"the bank handled {findings.rate:,.0f} messages per second": findings.rate > 0,
        f"{len(findings.entries)} snapshots were taken, "
        f"{findings.overlap_count} of them overlapping the previous one": (
            len(findings.entries) > 0 and findings.overlap_count >= 2
        ),
        f"they recorded {findings.caught_count:,} messages in transit": findings.caught_count > 0,
        f"querying the accounts gave a wrong total {findings.wrong_naive_count} of {naive_count} "
        "times": (findings.wrong_naive_count > 0),
        f"the total was correct in {right} of {len(findings.totals)} snapshots ({TOTAL:,})": (
            0 < right == len(findings.totals)
        ),
        f"after kill -9 of {findings.killed}, all {ACCOUNT_COUNT} processes ran again in "
        f"{findings.recovered_s or 0:.2f} s, and {after} more snapshots were taken": (
            findings.recovered_s is not None and after > 0
        ),
        f"Spark audited {audited_count} snapshots and found no errors (exit code "
        f"{audit_exit_code})": audit_exit_code == 0 and audited_count == len(findings.entries),
    }


def _audit(console: Console, path: Path) -> tuple[int, int]:
    """Run the audit command; return its exit code and the number of snapshots it checked."""
    stillframe = Path(sys.executable).with_name("stillframe")
    command = [str(stillframe), "store", "audit", str(path), *AUDIT, "--json"]
    with console.status("auditing all snapshots on Spark (about 20 s, mostly to start Spark)"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return done.returncode, len(json.loads(done.stdout)["snapshots"])
    except (json.JSONDecodeError, KeyError):
        console.print(done.stderr)
        return done.returncode, 0


def _by_hand(path: Path, findings: Findings) -> list[str]:
    last = str(findings.entries[-1].id) if findings.entries else "P1-1"
    store = shlex.quote(str(path))
    return [
        f"stillframe list {store}",
        f"stillframe show {store} {last}",
        f"stillframe verify {store}",
        f"stillframe store audit {store} --states 'sum(balance)' --messages 'sum(amount)'",
        f"stillframe restore {store}",
    ]


def main() -> int:
    """Run the demo; return 0 if every claim holds."""
    console = Console()
    path = Path(tempfile.mkdtemp(prefix="stillframe-demo-")) / "bank.store"
    return exit_code_of(lambda: demonstrate(path, console), path, console)


def demonstrate(path: Path, console: Console) -> int:
    """Run the bank with its store at `path`, and show every claim; return the exit code."""
    findings = Findings()
    began = time.monotonic()
    console.print(
        f"[bold]Stillframe[/bold]: {ACCOUNT_COUNT} processes pay each other over "
        f"{len(bank.description.channels)} channels; a snapshot every {EVERY_S * 1000:.0f} ms\n"
    )
    with Live(console=console, refresh_per_second=4) as live:
        uvloop.run(
            _run(path, findings, lambda phase: live.update(_progress(findings, phase, began)))
        )
    exit_code, audited_count = _audit(console, path)
    holding = show_claims(console, _claims(findings, exit_code, audited_count))
    if findings.naive_totals and not findings.wrong_naive_count:
        console.print("querying the accounts was never wrong this time: run the demo again")
    for abandoned in findings.abandoned:
        console.print(f"note: {abandoned}")
    if findings.skipped_count:
        console.print(f"note: {findings.skipped_count} periodic snapshots were skipped")
    for detail in findings.trouble[:5]:
        console.print(f"note: {detail}")
    console.print("\nInspect the store:")
    for command in _by_hand(path, findings):
        console.print(f"  .venv/bin/{command}", soft_wrap=True, highlight=False)
    return holding


if __name__ == "__main__":
    sys.exit(main())
