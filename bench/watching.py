"""``bench/run watching``: how quick the live page is, measured in the browser that shows it.

A page without anything, in the same browser beside the same system, says how many pictures a second
there could be at most: five processes that pay each other as fast as they can leave the browser
little of two cores.
"""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.measure import median
from stillframe.imports import load_topology
from stillframe.model import Channel, ChannelState, GlobalState, ProcessState, Snapshot, SnapshotId
from stillframe.state_codec import StateCodec
from stillframe.store.store import Store

STILLFRAME = Path(sys.executable).with_name("stillframe")
BANK, RING = "stillframe.examples.bank:bank", "bench.watching_ring:ring"
SNAPSHOT_COUNT = 10_000
ROUND_COUNT = 5
WINDOW_MS = 3000
START_S_MAX = 120.0
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
PICTURES = """(window_ms) => new Promise((resolve) => {
  const begin = performance.now();
  let last = begin, count = 0, longest = 0;
  function step(now) {
    count += 1;
    longest = Math.max(longest, now - last);
    last = now;
    if (now - begin < window_ms) requestAnimationFrame(step);
    else resolve([1000 * count / (now - begin), longest]);
  }
  requestAnimationFrame(step);
})"""
FIRST = """() => performance.getEntriesByName("first-contentful-paint")[0].startTime"""
WEIGHT = """() => performance.getEntriesByType("resource").concat(
  performance.getEntriesByType("navigation")).filter((e) => !e.name.endsWith("/events")).reduce(
  (sum, entry) => sum + entry.encodedBodySize, 0)"""


def main() -> None:
    """Measure, and print it."""
    table = Table(
        title=f"the live page, median of {ROUND_COUNT} rounds",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    for column in ("what", "bank, 5 processes", f"ring of 50, {SNAPSHOT_COUNT:,} snapshots"):
        table.add_column(column, justify="left" if column == "what" else "right")
    with (
        tempfile.TemporaryDirectory(prefix="stillframe-bench-") as name,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        bank = Path(name) / "bank"
        ring = Path(name) / "ring"
        fill(ring, progress)
        columns = [measure(bank, BANK, progress), measure(ring, RING, progress)]
    for what in columns[0]:
        table.add_row(what, *(column[what] for column in columns))
    Console(width=110).print(table)


def fill(path: Path, progress: Progress) -> None:
    """Publish many snapshots of the ring, which no system has taken."""
    description = load_topology(RING).description
    task = progress.add_task("publishing snapshots", total=SNAPSHOT_COUNT)
    (kind,) = description.states
    topology = load_topology(RING)
    codec = StateCodec(type(next(iter(topology.processes.values()))))
    states = tuple(
        ProcessState(process, kind, codec.capture(topology.processes[process]))
        for process in sorted(description.processes)
    )
    channels = tuple(
        ChannelState(Channel(c.source, c.target), 0, 0, ()) for c in sorted(description.channels)
    )
    with contextlib.closing(Store.create(path, description=description, reference=RING)) as store:
        store.raise_epoch(None)
        for number in range(1, SNAPSHOT_COUNT + 1):
            at = time.time()
            state = GlobalState(states, channels)
            store.publish(Snapshot(SnapshotId("P1", number), store.epoch, at, at, state))
            progress.advance(task)


def measure(store: Path, topology: str, progress: Progress) -> dict[str, str]:
    """Return what was measured of the page of one system, in words."""
    task = progress.add_task(topology, total=ROUND_COUNT)
    rounds: list[dict[str, float]] = []
    command = ["restore", str(store)]
    if not store.exists():
        command = ["run", topology, "--store", str(store)]
    with started(command), served(store) as (link, watcher), browser() as opened:
        began, used_before_s = time.monotonic(), processor_s(watcher.pid)
        for _ in range(ROUND_COUNT):
            with contextlib.closing(opened.new_context()) as context:
                empty = context.new_page()
                most, _ = empty.evaluate(PICTURES, WINDOW_MS)
                empty.close()
                found = look(context.new_page(), link)
            rounds.append(found | {"most": most})
            progress.advance(task)
        used_s = processor_s(watcher.pid) - used_before_s
        alive_s = time.monotonic() - began

    def middle(name: str) -> float:
        return median([turn[name] for turn in rounds])

    return {
        "weight of the page": f"{middle('weight') / 1000:,.0f} kB",
        "until the first picture": f"{middle('first'):,.0f} ms",
        "until the graph and the list are there": f"{middle('ready'):,.0f} ms",
        "pictures a second": f"{middle('pictures'):.1f}",
        "of an empty page beside it": f"{middle('most'):.1f}",
        "longest time without a picture": f"{middle('longest'):,.0f} ms",
        "processor of the server": f"{100 * used_s / alive_s:.0f} %",
    }


def look(page: Page, link: str) -> dict[str, float]:
    """Open the page, and return what the browser measured."""
    page.set_default_timeout(START_S_MAX * 1000)
    began = time.monotonic()
    page.goto(link)
    page.locator(".graph .process").first.wait_for()
    page.locator(".snapshots tbody tr").first.wait_for()
    ready_ms = (time.monotonic() - began) * 1000
    first, weight = page.evaluate(FIRST), page.evaluate(WEIGHT)
    pictures, longest = page.evaluate(PICTURES, WINDOW_MS)
    return {
        "first": first,
        "ready": ready_ms,
        "weight": weight,
        "pictures": pictures,
        "longest": longest,
    }


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[None]:
    """Run a system until the end of the body."""
    with subprocess.Popen(
        [STILLFRAME, *command, "--every", "1s"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            store = command[-1]
            deadline = time.monotonic() + START_S_MAX
            while subprocess.run(
                [STILLFRAME, "snapshot", store], capture_output=True, check=False
            ).returncode:
                if time.monotonic() > deadline:
                    raise SystemExit(f"the system on {store} did not start")
            yield
        finally:
            process.send_signal(signal.SIGINT)


@contextlib.contextmanager
def served(store: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Serve the page of a system; yield its link, and the server."""
    with subprocess.Popen(
        [STILLFRAME, "watch", str(store), "--listen", "127.0.0.1:0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            link: str = json.loads(process.stdout.readline())["link"]
            yield link, process
        finally:
            process.send_signal(signal.SIGINT)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Start Debian's Chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise SystemExit("Chromium is missing: on Debian, apt install chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield opened
        opened.close()


def processor_s(pid: int) -> float:
    """Return how much processor time a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


if __name__ == "__main__":
    main()
