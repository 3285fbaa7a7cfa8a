"""``python -m bench.verifying``: verifying 1,000 snapshots from event logs of 10^6 to 10^8 rows.

Ours on Spark, against Spark reading the same columns and nothing else (the floor), DuckDB and
Polars on this machine, and a plain program with numpy in one thread: see ``verifiers``. Each is a
program that goes on, and they take turns on the same files; the first turn of each length warms up
and does not count. Printed are medians, ratios within a round, and the most memory of one process.

``--at s3://bucket/place`` copies each log there, and ours and the floor read it from there. The
floor needs Hadoop's S3A: see docs/spark-cluster.md.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.made_log import SNAPSHOT_COUNT, make_log
from bench.measure import median
from bench.verifiers import VERIFIERS
from stillframe.storage.location import Location, locate
from stillframe.storage.opened import storage_of

EVENT_COUNTS = (10**6, 10**7, 10**8)
ROUND_COUNT = 3
FLOOR = "scan"
OURS = "spark"
WANTED = {"scan": 3.0, "duckdb": 1.0, "polars": 1.0, "numpy": 2.0}
"""How many times as long as each of the others ours may take at so many rows (`WANTED_AT`)."""

WANTED_AT = 10**8
WANTED_REMOTE = {"scan": 1.3}
REMOTE = ("scan", "spark")

Turn = dict[str, dict[str, float]]
"""Who -> what one turn showed."""


class Program:
    """A verifier that goes on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._program = subprocess.Popen(
            [sys.executable, "-m", "bench.verifiers", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def verify(self, log: Location) -> dict[str, float]:
        """Return seconds and the most memory of one process.

        Raises:
            RuntimeError: it ended, or does not find every snapshot consistent.
        """
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(f"{log}\n")
        self._program.stdin.flush()
        line = self._program.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended")
        figures: dict[str, float] = json.loads(line)
        if self.name != FLOOR and figures["count"] != SNAPSHOT_COUNT:
            raise RuntimeError(f"{self.name} finds {figures['count']} snapshots consistent")
        return figures

    def end(self) -> None:
        """Let it end."""
        assert self._program.stdin is not None
        self._program.stdin.close()
        self._program.wait()


def copied(log: Path, place: Location) -> Location:
    """Copy a log to another place."""
    for path in sorted(log.rglob("*.parquet")):
        target = place
        for name in path.relative_to(log).parts:
            target = target / name
        storage_of(target).put(target, path.read_bytes())
    return place


def measure(
    names: list[str], event_counts: list[int], at: Location | None
) -> dict[int, list[Turn]]:
    """Return the rounds of each length; a verifier that fails at a length is left out of it."""
    figures: dict[int, list[Turn]] = {count: [] for count in event_counts}
    with (
        tempfile.TemporaryDirectory(prefix="stillframe-bench-") as folder,
        Progress(console=Console(stderr=True), transient=True) as bar,
    ):
        task = bar.add_task("", total=len(event_counts) * len(names) * (ROUND_COUNT + 1))
        for count in event_counts:
            made = Path(folder) / str(count)
            bar.update(task, description=f"making {count:,} rows")
            make_log(made, count)
            log = made if at is None else copied(made, at / str(count))
            programs = [Program(name) for name in names]
            for number in range(ROUND_COUNT + 1):
                turn: Turn = {}
                for program in list(programs):
                    bar.update(task, description=f"{program.name}, {count:,} rows", advance=1)
                    try:
                        turn[program.name] = program.verify(log)
                    except RuntimeError as error:
                        Console(stderr=True).print(f"left out at {count:,} rows: {error}")
                        programs.remove(program)
                        program.end()
                if number:
                    figures[count].append(turn)
            for program in programs:
                program.end()
    return figures


def ratio(turns: list[Turn], other: str) -> float:
    """Return how many times as long as `other` ours took: the median over the rounds, or 0."""
    both = [turn for turn in turns if OURS in turn and other in turn]
    return median([turn[OURS]["took_s"] / turn[other]["took_s"] for turn in both])


def report(figures: dict[int, list[Turn]], console: Console, wanted: Mapping[str, float]) -> None:
    """Print the figures, and whether they are what is wanted."""
    table = Table(box=SIMPLE_HEAD, title=f"Verifying {SNAPSHOT_COUNT:,} snapshots")
    for column in ("rows", "way", "took", "rows/s", "most memory", "ours takes"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for row_count, turns in figures.items():
        for name in dict.fromkeys(name for turn in turns for name in turn):
            found = [turn[name] for turn in turns if name in turn]
            took_s = median([figure["took_s"] for figure in found])
            most = max(figure["peak_bytes"] for figure in found)
            table.add_row(
                f"{row_count:,}",
                name,
                f"{took_s:.2f} s",
                f"{row_count / took_s:,.0f}",
                f"{most / 1e6:,.0f} MB",
                "" if name == OURS else f"{ratio(turns, name):.2f} x",
            )
    console.print(table)
    greatest = max(figures)
    for name, most_times in wanted.items() if greatest >= WANTED_AT else ():
        if times := ratio(figures[greatest], name):
            word = "as wanted" if times <= most_times else "MORE than wanted"
            console.print(
                f"{greatest:,} rows: ours takes {times:.2f} times as long as {name}; wanted: at "
                f"most {most_times}: {word}"
            )


def main() -> int:
    """Measure, and print tables or figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.verifying", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print figures instead of a table")
    parser.add_argument("--rows", type=float, nargs="*", help="lengths; default 1e6 1e7 1e8")
    parser.add_argument("--ways", nargs="*", choices=list(VERIFIERS), help="default: all")
    parser.add_argument("--at", type=locate, help="an object store, such as s3://bucket/place")
    options = parser.parse_args()
    counts = [int(count) for count in options.rows or EVENT_COUNTS]
    names = options.ways or list(VERIFIERS if options.at is None else REMOTE)
    figures = measure(names, counts, options.at)
    wanted = WANTED if options.at is None else WANTED_REMOTE
    report(figures, Console(stderr=options.json, width=110), wanted)
    if options.json:
        print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
