"""A demonstration: run a pipeline over Kafka, take snapshots, kill all of it twice, and restore it.

The first restore is to a snapshot, the second one to the newest consistent point, for which none
was taken. It checks every claim that it prints, and exits with 0 only if all claims hold.
"""

import contextlib
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from examples.claims import demonstrate_flights, range_of, show_claims
from examples.flights.demo import FLIGHT_COUNT
from examples.flights.tables import read_flights
from examples.kafka.flows import FLIGHT, SENT_COUNT, TOPICS, create
from examples.kafka.outputs import (
    Outputs,
    feed_state,
    is_in_transit,
    ledger_state,
    outputs_at,
)
from examples.kafka.servers import Servers, servers, spark_variables
from examples.processes import FEED, Processes
from stillframe.model import Abandoned
from stillframe.pipeline.kafka import Broker
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.protocol.aligner import Mode

FLIGHTS_PER_S = 5_000.0
EVERY_S = 3.0
LOOK_S = 0.5
KILL_AFTER = (0.3, 0.25)
"""The share of the flights that must be sent before the first kill, and between both."""
PAUSE_AT = (0.5, 0.8, 1.0)
"""The share after which the feed waits, after each of the three starts. On a slow machine it is far
ahead of Spark, and must not be at its end before a kill."""


@dataclass
class Findings:
    """The measurements of the run. `snapshots` were taken while everything ran."""

    snapshots: list[Manifest] = field(default_factory=list)
    abandoned: list[Abandoned] = field(default_factory=list)
    taken_s: list[float] = field(default_factory=list)
    restored: list[Manifest] = field(default_factory=list)
    restore_s: list[float] = field(default_factory=list)


class Run:
    """The pipeline and its programs.

    Args:
        directory: the directory of what the programs say.
        found: the servers.
        broker: a connection to the broker among them.
        flight_count: the number of flights to send.
        flights_per_s: the rate of the feed.
        console: the console for progress.
    """

    def __init__(
        self,
        directory: Path,
        found: Servers,
        broker: Broker,
        *,
        flight_count: int,
        flights_per_s: float,
        console: Console,
    ) -> None:
        self.pipeline = create(f"{found.bucket}/flights", found.broker)
        self.findings = Findings()
        self._broker = broker
        self._flight_count = flight_count
        self._flights_per_s = flights_per_s
        self._console = console
        self._start_count = 0
        self._processes = Processes(
            "examples.kafka", self.pipeline.path, directory / "logs", spark_variables()
        )

    def start(self) -> None:
        """Start the driver and the services, each as its own process."""
        replay = ("--per-second", str(self._flights_per_s), "--flights", str(self._flight_count))
        pause_at = round(PAUSE_AT[self._start_count] * self._flight_count)
        self._start_count += 1
        with self._console.status("starting Spark and the services (about 10 s)"):
            self._processes.start(
                (FEED, *replay, "--pause-at", str(pause_at)), ("queries",), ("ledger",)
            )

    def kill(self) -> int:
        """Kill all of them with SIGKILL; return the number of processes."""
        return self._processes.kill()

    def take_snapshots(self, until: Callable[[Manifest], bool]) -> Manifest:
        """Take snapshots at regular intervals, and return the last one.

        Args:
            until: whether a snapshot is the last one.
        """
        while True:
            began = time.monotonic()
            outcome = self.pipeline.snapshot()
            took_s = time.monotonic() - began
            self._processes.check()
            if isinstance(outcome, Abandoned):
                self.findings.abandoned.append(outcome)
                self._say(f"  {outcome}")
            else:
                self.findings.snapshots.append(outcome)
                self.findings.taken_s.append(took_s)
                self._say(f"  {line_of(outcome, took_s)}")
                if until(outcome):
                    return outcome
            time.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))

    def ends(self) -> tuple[int, int]:
        """Return the sum of the offsets at which the topics of flights and of entries end."""
        names = (TOPICS["flights"], TOPICS["entries"])
        sent, booked = (sum(self._broker.end_offsets(name).values()) for name in names)
        return sent, booked

    def wait_for_work(self, before: tuple[int, int]) -> None:
        """Wait until enough flights were sent for the second kill, and some were booked.

        Args:
            before: the ends of the topics before the programs started.
        """
        sent, booked = before
        enough = sent + SENT_COUNT * KILL_AFTER[1] * self._flight_count
        with self._console.status("running, without snapshots"):
            while sent < enough or booked == before[1]:
                self._processes.check()
                time.sleep(LOOK_S)
                sent, booked = self.ends()

    def restore(self, which: str, *, newest_consistent: bool = False) -> None:
        """Restore the pipeline to its latest snapshot, or to the newest consistent point."""
        began = time.monotonic()
        restored = self.pipeline.restore(newest_consistent=newest_consistent)
        took_s = time.monotonic() - began
        self.findings.restore_s.append(took_s)
        self.findings.restored.append(restored)
        self._console.print(f"\n[bold]restored {which}[/bold] in {took_s:.2f} s")
        self._say(f"  {restored.snapshot!s:<11} {'':7}   {contents_of(restored)}")

    def is_under_way(self, manifest: Manifest) -> bool:
        """Return whether enough was sent for the first kill, and something was booked."""
        is_sent = feed_state(manifest).flight_count >= KILL_AFTER[0] * self._flight_count
        return is_sent and ledger_state(manifest).flight_count > 0

    def is_finished(self, manifest: Manifest) -> bool:
        """Return whether the pipeline has finished: all flights were sent, and no topic has records
        in transit. Once true at one consistent cut, it stays true."""
        is_sent = feed_state(manifest).flight_count == self._flight_count
        return is_sent and not is_in_transit(self.pipeline, manifest)

    def _say(self, words: str) -> None:
        self._console.print(words, highlight=False, soft_wrap=True)


def line_of(manifest: Manifest, took_s: float) -> str:
    """Return a line that describes a snapshot."""
    assert manifest.staleness_s is not None
    return (
        f"{manifest.snapshot!s:<11} {took_s:5.2f} s   {contents_of(manifest)}   "
        f"{manifest.staleness_s:4.1f} s stale"
    )


def contents_of(manifest: Manifest) -> str:
    """Return what is in a snapshot, in words."""
    sent, booked = feed_state(manifest).flight_count, ledger_state(manifest).flight_count
    return f"{sent:>7,} flights sent   {booked:>7,} booked"


def run(one: Run, console: Console) -> Manifest:
    """Run the pipeline, kill and restore it twice, and finish it; return the last snapshot."""
    try:
        console.print(f"[bold]Running[/bold], with a snapshot every {EVERY_S:.0f} s")
        one.start()
        one.take_snapshots(one.is_under_way)
        time.sleep(random.uniform(0, EVERY_S))
        console.print(f"\n[bold]kill -9[/bold] of all {one.kill()} processes")
        one.restore("the latest snapshot")
        before = one.ends()
        one.start()
        one.wait_for_work(before)
        time.sleep(random.uniform(0, EVERY_S))
        console.print(
            f"\n[bold]kill -9[/bold] of all {one.kill()} processes, and no snapshot since"
        )
        one.restore("the newest consistent point", newest_consistent=True)
        one.start()
        return one.take_snapshots(one.is_finished)
    finally:
        one.kill()


def main() -> int:
    """Run the demonstration; return 0 if every claim holds."""
    return demonstrate_flights(
        "examples.kafka",
        __doc__,
        demonstrate,
        flight_count=FLIGHT_COUNT,
        flights_per_s=FLIGHTS_PER_S,
    )


def demonstrate(directory: Path, flight_count: int, flights_per_s: float, console: Console) -> int:
    """Run the pipeline with its files below `directory`, and return 0 if all outputs are right."""
    began = time.monotonic()
    console.print(
        f"[bold]Stillframe[/bold]: {flight_count:,} flights, sent twice, through topics of Kafka; "
        "2 Spark queries, 2 Python services\n"
    )
    with contextlib.ExitStack() as stack:
        with console.status("starting Kafka and S3"):
            found = stack.enter_context(servers())
        broker = stack.enter_context(Broker(found.broker))
        one = Run(
            directory,
            found,
            broker,
            flight_count=flight_count,
            flights_per_s=flights_per_s,
            console=console,
        )
        last = run(one, console)
        with console.status("reading all topics"):
            outputs = outputs_at(one.pipeline, last)
            errors = outputs.errors(read_flights(flight_count).select(FLIGHT.names))
    exit_code = show_claims(console, _claims(outputs, errors, one.findings))
    _print_figures(console, outputs, one.findings, time.monotonic() - began)
    return exit_code


def _claims(found: Outputs, errors: list[str], findings: Findings) -> dict[str, bool]:
    """Return each claim of the demonstration, and whether it holds."""
    first, second = findings.restored
    sent, sent_later = (feed_state(one).flight_count for one in (first, second))
    return {
        f"every output is as without a kill: {len(found.sent):,} flights, each sent {SENT_COUNT} "
        f"times and once among the unique ones; the totals of {len(found.totals)} carriers; "
        f"{found.entry_count:,} entries in the ledger, one for each new total, with the same sums"
        + (f"; these differ: {', '.join(errors)}" if errors else ""): not errors,
        f"{len(findings.snapshots)} snapshots were taken while everything ran, without barriers": (
            {manifest.mode for manifest in findings.snapshots} == {Mode.RETAINED}
        ),
        f"the newest consistent point, found after the second kill, has {sent_later - sent:,} "
        f"flights more than the last snapshot before it, {first.snapshot}": sent_later > sent,
    }


def _print_figures(console: Console, found: Outputs, findings: Findings, took_s: float) -> None:
    stalest_s = max(manifest.staleness_s or 0.0 for manifest in findings.snapshots)
    abandoned = ", ".join(f"{count:,} in {name}" for name, count in found.abandoned.items())
    console.print(
        f"\n  snapshots  {range_of(findings.taken_s)}, at most {stalest_s:.1f} s stale\n"
        f"  restores   {' and '.join(f'{each:.2f} s' for each in findings.restore_s)}\n"
        f"  left over  {abandoned}: records from after the cuts, which no longer count\n"
        f"  in total   {took_s:.0f} s",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    sys.exit(main())
