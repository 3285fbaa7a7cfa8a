"""A demonstration: run a pipeline, take snapshots, kill all programs, restore, finish, and compare.

It checks every claim that it prints, and exits with 0 only if all claims hold.
"""

import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from examples.claims import demonstrate_flights, range_of, show_claims
from examples.flights.flows import Books, Replay, create
from examples.flights.outputs import Outputs, outputs_at, records, service_state
from examples.processes import FEED, Processes
from stillframe.model import Abandoned
from stillframe.pipeline import Pipeline
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.pipeline.stopped import NotAtRest
from stillframe.protocol.aligner import Mode
from stillframe.spark import spark_session

FLIGHT_COUNT = 336_776
"""The number of flights in the data."""

FLIGHTS_PER_S = 12_000.0
EVERY_S = 2.0
KILL_AT = 0.4
"""The share of the flights that must be replayed before all programs are killed."""

MODES = (Mode.ALIGNED, Mode.UNALIGNED)


@dataclass
class Findings:
    """The measurements of one run."""

    snapshots: list[Manifest] = field(default_factory=list)
    abandoned: list[Abandoned] = field(default_factory=list)
    restore_s: float = 0.0


class Run:
    """One run of the pipeline in its own directory.

    Args:
        directory: the directory of all files of the run.
        flight_count: the number of flights to replay.
        flights_per_s: the rate of the replay.
        console: the console for progress.
    """

    def __init__(
        self, directory: Path, flight_count: int, flights_per_s: float, console: Console
    ) -> None:
        self.pipeline = create(directory / "flights.pipeline")
        self.findings = Findings()
        self._flight_count = flight_count
        self._flights_per_s = flights_per_s
        self._console = console
        self._processes = Processes("examples.flights", self.pipeline.path, directory / "logs")

    def start(self) -> None:
        """Start the driver and the services, each as its own process."""
        with self._console.status("starting Spark and the services (about 10 s)"):
            self._processes.start(("queries",))
            self._processes.start(("compensation",))
            replay = ("--per-second", str(self._flights_per_s))
            self._processes.start((FEED, *replay, "--flights", str(self._flight_count)))

    def kill(self) -> int:
        """Kill all of them with SIGKILL; return the number of processes."""
        return self._processes.kill()

    def wait_for_feed(self) -> None:
        """Wait until every flight was replayed."""
        with self._console.status("running"):
            self._processes.wait_for_feed()

    def take_snapshots(
        self, until: Callable[[Manifest], bool], modes: Sequence[Mode] = MODES
    ) -> Manifest:
        """Take snapshots at regular intervals, in each mode in turn, and return the last one.

        Args:
            until: whether a snapshot is the last one.
            modes: the modes, used in turn.
        """
        while True:
            began = time.monotonic()
            mode = modes[len(self.findings.snapshots) % len(modes)]
            outcome = self.pipeline.snapshot(mode)
            self._processes.check()
            if isinstance(outcome, Abandoned):
                self.findings.abandoned.append(outcome)
                self._console.print(f"  {outcome}", highlight=False, soft_wrap=True)
            else:
                self.findings.snapshots.append(outcome)
                self._console.print(f"  {line_of(outcome)}", highlight=False, soft_wrap=True)
                if until(outcome):
                    return outcome
            time.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))

    def is_finished(self, manifest: Manifest) -> bool:
        """Return whether the pipeline has finished: all flights are replayed, and no channel has
        records. Once true in one consistent snapshot, it stays true.

        An aligned snapshot never has records in transit, so it cannot tell.
        """
        replayed = service_state(manifest, "feed", Replay).flight_count
        is_quiet = manifest.mode is Mode.UNALIGNED and manifest.record_count == 0
        return is_quiet and replayed == self._flight_count

    def is_under_way(self, manifest: Manifest) -> bool:
        """Return whether enough was replayed for the kill, with records in transit."""
        replayed = service_state(manifest, "feed", Replay).flight_count
        if replayed == self._flight_count:
            return True
        return replayed >= KILL_AT * self._flight_count and manifest.record_count > 0


def latency_s(manifest: Manifest) -> float:
    """Return the seconds from the request until every participant had recorded."""
    return manifest.completed_at - manifest.initiated_at


def line_of(manifest: Manifest) -> str:
    """Return a line that describes a snapshot."""
    replay = service_state(manifest, "feed", Replay)
    books = service_state(manifest, "compensation", Books)
    return (
        f"{manifest.snapshot!s:<10} {manifest.mode!s:<9} {latency_s(manifest):5.2f} s   "
        f"{replay.flight_count:>7,} flights   {manifest.record_count:>7,} records in transit   "
        f"{books.total:>10,} EUR booked"
    )


def show_loss(console: Console, pipeline: Pipeline) -> None:
    """Print what is on disk after the kill, and why it cannot be continued without a restore."""
    tables = {name: records(pipeline, name) for name in ("flights", "enriched", "late", "payments")}
    counts = {name: f"{table.num_rows:,}" for name, table in tables.items()}
    paid = sum(tables["payments"]["amount"].to_pylist())
    console.print(
        f"  left on disk, each from a different moment: {counts['flights']} flights replayed, "
        f"{counts['enriched']} enriched, {counts['late']} very late, {counts['payments']} paid\n"
        "  lost with the memory of the services: the position of the feed, and the books\n"
        f"  with empty books, passengers would be paid a second time: {paid:,} EUR",
        highlight=False,
        soft_wrap=True,
    )
    try:
        with pipeline.join_service("compensation", state=Books()):
            raise AssertionError("a service that died joined without a restore")
    except NotAtRest as error:
        console.print(f"  so this is refused: {error}", highlight=False, soft_wrap=True)


def run_unbroken(run: Run) -> Manifest:
    """Run the pipeline to its end, and return a snapshot of the finished pipeline."""
    run.start()
    try:
        run.wait_for_feed()
        return run.take_snapshots(run.is_finished, modes=(Mode.UNALIGNED,))
    finally:
        run.kill()


def run_broken(run: Run, console: Console) -> Manifest:
    """Run the pipeline, kill it halfway, restore and finish it; return the last snapshot."""
    run.start()
    try:
        run.take_snapshots(run.is_under_way)
        time.sleep(random.uniform(0, EVERY_S))
        killed_count = run.kill()
        console.print(f"\n[bold]kill -9[/bold] of all {killed_count} processes")
        show_loss(console, run.pipeline)
        began = time.monotonic()
        restored = run.pipeline.restore()
        run.findings.restore_s = time.monotonic() - began
        console.print(
            f"\n[bold]restored {restored.snapshot}[/bold] in {run.findings.restore_s:.2f} s, with "
            f"{restored.record_count:,} records in transit"
        )
        run.start()
        return run.take_snapshots(run.is_finished)
    finally:
        run.kill()


def main() -> int:
    """Run the demonstration; return 0 if every claim holds."""
    return demonstrate_flights(
        "examples.flights",
        __doc__,
        demonstrate,
        flight_count=FLIGHT_COUNT,
        flights_per_s=FLIGHTS_PER_S,
    )


def demonstrate(directory: Path, flight_count: int, flights_per_s: float, console: Console) -> int:
    """Run the pipeline twice below `directory`, and return 0 if both results are equal."""
    began = time.monotonic()
    console.print(
        f"[bold]Stillframe[/bold]: {flight_count:,} flights, 3 Spark queries and 2 Python services;"
        " one snapshot for all of them\n"
    )
    unbroken = Run(directory / "unbroken", flight_count, math.inf, console)
    broken = Run(directory / "broken", flight_count, flights_per_s, console)
    console.print(
        "[bold]Without interruption[/bold], at full speed, no snapshot until the feed ends"
    )
    expected = run_unbroken(unbroken)
    console.print(
        f"\n[bold]With kill -9[/bold], {flights_per_s:,.0f} flights per second, and a snapshot "
        f"every {EVERY_S:.0f} s"
    )
    found = run_broken(broken, console)
    with console.status("comparing (Spark reads its own states)"):
        spark = spark_session(app_name="flights", master="local[2]")
        one = outputs_at(spark, unbroken.pipeline, expected)
        other = outputs_at(spark, broken.pipeline, found)
    exit_code = show_claims(console, _claims(one, other, broken.findings))
    _print_figures(console, broken, time.monotonic() - began)
    return exit_code


def _claims(expected: Outputs, found: Outputs, findings: Findings) -> dict[str, bool]:
    """Return each claim of the demonstration, and whether it holds."""
    counts = {name: f"{table.num_rows:,}" for name, table in found.channels.items()}
    different = expected.differences(found)
    contradicting = found.disagreements()
    return {
        f"the restored run produced the same as the unbroken run: {counts['enriched']} flights "
        f"with weather, {counts['late']} of them very late, {counts['payments']} payments"
        + (f"; these differ: {', '.join(different)}" if different else ""): not different,
        f"the payments, the books, the totals and Spark's state all say {found.books.total:,} EUR"
        + (f", but not {', '.join(contradicting)}" if contradicting else ""): not contradicting,
        f"{len(findings.snapshots)} snapshots were taken, in every mode": (
            {manifest.mode for manifest in findings.snapshots} == set(MODES)
        ),
    }


def _print_figures(console: Console, run: Run, took_s: float) -> None:
    console.print()
    for mode in MODES:
        taken = [manifest for manifest in run.findings.snapshots if manifest.mode is mode]
        caught = [manifest.record_count for manifest in taken]
        console.print(
            f"  {mode!s:<9}  {len(taken)} snapshots in {range_of([latency_s(m) for m in taken])}, "
            f"{min(caught):,} to {max(caught):,} records in transit",
            highlight=False,
            soft_wrap=True,
        )
    console.print(
        f"  restore    {run.findings.restore_s:.2f} s\n"
        f"  in total   {took_s:.0f} s\n\nInspect the pipeline: {run.pipeline.path}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    sys.exit(main())
