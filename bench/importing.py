"""``python -m bench.importing``: does importing a log take time and memory in proportion?

A log of `HOST_COUNT` hosts that send each other messages, in each form that is read, is imported
and checked in a process of its own; printed are events per second, from the file to the checked
trace, and the most memory that the process had. In proportion means: with ten times the events,
about ten times the time and memory.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stillframe.importer.execution import Imported
from stillframe.importer.jsonlines import read_json_lines
from stillframe.importer.shiviz import read_shiviz

EVENT_COUNTS = (100_000, 300_000, 1_000_000)
HOST_COUNT = 8
SEND_SHARE = 0.3
SEED = 864
ROUND_COUNT = 3
"""Each log is imported so often, and the least time counts: other programs only add to it."""
PROPORTION_MAX = 1.5
"""How much more time or memory an event of the longest log may take than one of the shortest. Less
would leave no room for memory that no longer fits into caches; out of proportion would be 10."""
KIB = 1024
FORMS: dict[str, Callable[[Path], Imported]] = {
    "shiviz": read_shiviz,
    "json-lines": read_json_lines,
}


def write_log(file: TextIO, form: str, event_count: int) -> None:
    """Write an execution in which hosts act by chance, and messages keep their order."""
    chance = random.Random(SEED)
    hosts = [f"p{index}" for index in range(HOST_COUNT)]
    clocks: list[dict[str, int]] = [{} for _ in hosts]
    inboxes: list[deque[tuple[int, dict[str, int]]]] = [deque() for _ in hosts]
    for _ in range(event_count):
        host = chance.randrange(HOST_COUNT)
        clock = clocks[host]
        clock[hosts[host]] = clock.get(hosts[host], 0) + 1
        document: dict[str, object] = {"event": "d", "node": hosts[host]}
        packet: dict[str, object] = {"vc": clock}
        if chance.random() < SEND_SHARE:
            target = (host + chance.randrange(1, HOST_COUNT)) % HOST_COUNT
            inboxes[target].append((host, dict(clock)))
            document["event"] = ">"
            packet |= {"snd": hosts[host], "rcv": hosts[target]}
        elif inboxes[host]:
            source, sent = inboxes[host].popleft()
            for name, count in sent.items():
                clock[name] = max(clock.get(name, 0), count)
            document["event"] = "<"
            packet |= {"snd": hosts[source], "rcv": hosts[host]}
        if form == "shiviz":
            file.write(f"{document['event']} something\n{hosts[host]} {json.dumps(clock)}\n")
        else:
            file.write(f"{json.dumps(document | {'pkt': packet})}\n")


def measure_here(form: str, path: Path) -> dict[str, float]:
    """Import the log at `path` in this process."""
    empty_bytes = _peak_bytes()
    began = time.perf_counter()
    trace = FORMS[form](path).executions[0].trace
    return {
        "took_s": time.perf_counter() - began,
        "peak_bytes": _peak_bytes() - empty_bytes,
        "event_count": trace.event_count,
        "message_count": trace.message_count,
    }


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def _measure_apart(form: str, path: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.importing", "--here", form, str(path)]
    rounds = [json.loads(subprocess.check_output(command)) for _ in range(ROUND_COUNT)]
    figures: dict[str, float] = min(rounds, key=lambda figures: float(figures["took_s"]))
    return figures


def measure() -> dict[str, list[dict[str, float]]]:
    """Write and import a log of each length in each form."""
    figures: dict[str, list[dict[str, float]]] = {form: [] for form in FORMS}
    runs = [(form, count) for form in FORMS for count in EVENT_COUNTS]
    with (
        tempfile.TemporaryDirectory(prefix="stillframe-bench-") as folder,
        Progress(console=Console(stderr=True), transient=True) as bar,
    ):
        for form, count in bar.track(runs, description="importing"):
            path = Path(folder) / "log"
            with path.open("w", encoding="utf-8") as file:
                write_log(file, form, count)
            log_bytes = path.stat().st_size
            figures[form].append({"log_bytes": log_bytes} | _measure_apart(form, path))
    return figures


def report(figures: dict[str, list[dict[str, float]]], console: Console) -> bool:
    """Print the figures, and return whether time and memory grew in proportion."""
    table = Table(box=SIMPLE_HEAD, title="Importing and checking a log", title_justify="left")
    for column in ("form", "events", "log", "took", "events/s", "memory", "bytes/event"):
        table.add_column(column, justify="left" if column == "form" else "right")
    is_in_proportion = True
    for form, rows in figures.items():
        for row in rows:
            count = row["event_count"]
            table.add_row(
                form,
                f"{count:,.0f}",
                f"{row['log_bytes'] / 1e6:,.1f} MB",
                f"{row['took_s']:.2f} s",
                f"{count / row['took_s']:,.0f}",
                f"{row['peak_bytes'] / 1e6:,.0f} MB",
                f"{row['peak_bytes'] / count:,.0f}",
            )
        for figure in ("took_s", "peak_bytes"):
            least, most = (rows[index][figure] / rows[index]["event_count"] for index in (0, -1))
            is_in_proportion &= most <= PROPORTION_MAX * least
            console.print(f"{form}: {figure} per event grew by a factor of {most / least:.2f}")
    console.print(table)
    console.print(f"in proportion: {'yes' if is_in_proportion else 'no'}")
    return is_in_proportion


def main() -> int:
    """Run the bench; exit 1 if time or memory is out of proportion."""
    parser = argparse.ArgumentParser(prog="python -m bench.importing", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print figures instead of a table")
    parser.add_argument("--here", nargs=2, metavar=("FORM", "LOG"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure_here(options.here[0], Path(options.here[1]))))
        return 0
    figures = measure()
    is_in_proportion = report(figures, Console(stderr=options.json, width=100))
    if options.json:
        print(json.dumps(figures, indent=2))
    return 0 if is_in_proportion else 1


if __name__ == "__main__":
    sys.exit(main())
