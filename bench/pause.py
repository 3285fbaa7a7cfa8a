"""How long a process handles no message while a snapshot of it is taken: the pause.

Two processes: one asks, as fast as the other answers; that one holds the state, and changes 1 % of
it a second. It notes every gap between two moments at which it handles a message or would, if there
were one: so what is measured is how long a message may wait, whoever sends it and when. The pause
of a snapshot is the longest gap in its window; a window without one shows what the machine does by
itself. Of each gap the processor time is noted as well: what the process itself did, and not what
others kept it from.
"""

import asyncio
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.forward import system
from bench.measure import WARM_UP_S, median, quantile
from stillframe import Channel, Keyed, Message, Process, Topology, every
from stillframe.errors import StillframeError
from stillframe.model import Abandoned
from stillframe.runtime.supervisor.supervisor import Supervisor

ROUND_COUNT = 20
WINDOW_S = 1.0
ARM_S_MAX = 300.0
ROW_BYTES = 18
KEY_BASE = 2**40
STEP = 7_919
"""A prime: the keys that change lie scattered."""
CHANGED_SHARE = 0.01
PERIOD_MS = 10.0
IN_FLIGHT_COUNT = 64
GAP_S_MIN = 0.0001
GAPS_VARIABLE = "STILLFRAME_BENCH_GAPS"
GAP_COUNT_MAX = 2**18
_COUNT = struct.Struct("@Q")
_GAP = struct.Struct("@ddd")
SIZES_MB = (1, 10, 100)


class Ask(Message):
    """The question."""


class Answer(Message):
    """The answer."""


class Asker(Process):
    """Keeps some questions under way."""

    def start(self) -> None:
        """Ask the first."""
        for _ in range(IN_FLIGHT_COUNT):
            self.send("holder", Ask())

    def receive(self, channel: Channel, message: Answer) -> None:
        """Ask the next."""
        self.send("holder", Ask())


class Holder(Process):
    """Answers, changes some rows with each answer, and notes when it did not."""

    row_count: int = 0
    place: int = 0

    def start(self) -> None:
        """Make the rows."""
        self._rows().update({KEY_BASE + number: KEY_BASE for number in range(self.row_count)})
        self._gaps = Gaps(os.environ[GAPS_VARIABLE])
        self._due_count = 0
        self._last, self._last_own = time.monotonic(), time.thread_time()
        self._turn()

    def _rows(self) -> Any:
        raise NotImplementedError

    def _note(self) -> None:
        now, own = time.monotonic(), time.thread_time()
        if now - self._last > GAP_S_MIN:
            self._gaps.note(now, now - self._last, own - self._last_own)
        self._last, self._last_own = now, own

    def _turn(self) -> None:
        """A message would be handled now; look again in the next turn of the loop."""
        self._note()
        asyncio.get_running_loop().call_soon(self._turn)

    @every(ms=PERIOD_MS)
    def allow(self) -> None:
        """Let so many rows change in the messages that come."""
        self._due_count = int(self.row_count * CHANGED_SHARE * PERIOD_MS / 1000)

    def receive(self, channel: Channel, message: Ask) -> None:
        """Note the gap, change some rows, answer."""
        self._note()
        if self._due_count > 0:
            self._due_count -= 4
            rows, place = self._rows(), self.place
            for _ in range(4):
                place = (place + STEP) % self.row_count
                rows[KEY_BASE + place] += 1
            self.place = place
        self.send("asker", Answer())


class KeyedHolder(Holder):
    """Holds its rows in a keyed field."""

    rows: Keyed[int, int] = field(default_factory=Keyed)

    def _rows(self) -> Any:
        return self.rows


class OpaqueHolder(Holder):
    """Holds its rows in a dict."""

    rows: dict[int, int] = field(default_factory=dict)

    def _rows(self) -> Any:
        return self.rows


def _topology(kind: type[Holder], size_mb: int) -> Topology:
    holder = kind(row_count=size_mb * 10**6 // ROW_BYTES)
    return Topology.mesh({"asker": Asker(), "holder": holder})


keyed_1, keyed_10, keyed_100 = (_topology(KeyedHolder, size_mb) for size_mb in SIZES_MB)
opaque_1, opaque_10, opaque_100 = (_topology(OpaqueHolder, size_mb) for size_mb in SIZES_MB)
ARMS = {
    (way, size_mb): f"bench.pause:{way}_{size_mb}"
    for way in ("keyed", "opaque")
    for size_mb in SIZES_MB
}
ASIDE = ", written aside"
"""Arms of which the processes write what they record of snapshots themselves as well."""
ARMS |= {(f"{way}{ASIDE}", size): ARMS[way, size] for way, size in (("keyed", 100), ("opaque", 1))}


class Gaps:
    """A shared file of gaps: when each ended, its length and its processor time, in seconds."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._count = 0

    def note(self, ended: float, gap_s: float, own_s: float) -> None:
        """Add one; the oldest are overwritten."""
        offset = _COUNT.size + self._count % GAP_COUNT_MAX * _GAP.size
        _GAP.pack_into(self._map, offset, ended, gap_s, own_s)
        self._count += 1
        _COUNT.pack_into(self._map, 0, self._count)

    def longest_s(self, began: float) -> tuple[float, float]:
        """Return the longest gap since `began`, and the longest by processor time, in seconds."""
        (count,) = _COUNT.unpack_from(self._map)
        stored = self._map[_COUNT.size : _COUNT.size + min(count, GAP_COUNT_MAX) * _GAP.size]
        since = [(gap_s, own_s) for when, gap_s, own_s in _GAP.iter_unpack(stored) if when >= began]
        gaps_s, owns_s = zip((0.0, 0.0), *since, strict=True)
        return max(gaps_s), max(owns_s)


@contextmanager
def _shared_gaps() -> Iterator[Gaps]:
    with tempfile.NamedTemporaryFile(prefix="stillframe-bench-") as file:
        file.truncate(_COUNT.size + GAP_COUNT_MAX * _GAP.size)
        os.environ[GAPS_VARIABLE] = file.name
        yield Gaps(file.name)


@dataclass
class Pauses:
    """What one arm showed, in s: the longest gaps of windows with and without a snapshot (by the
    clock, by processor time), and what the store lists of each snapshot; the first one, which
    records everything, apart."""

    first_s: tuple[float, float] = (0.0, 0.0)
    with_s: list[tuple[float, float]] = field(default_factory=list)
    without_s: list[tuple[float, float]] = field(default_factory=list)
    pause_s: list[float] = field(default_factory=list)
    capture_s: list[float] = field(default_factory=list)
    abandoned_count: int = 0


async def measure(progress: Progress) -> dict[tuple[str, int], Pauses]:
    """Measure every way and size, windows with a snapshot and without in turn."""
    seen: dict[tuple[str, int], Pauses] = {}
    task = progress.add_task("pause", total=ROUND_COUNT * len(ARMS))
    for arm, reference in ARMS.items():
        seen[arm] = Pauses()
        try:
            async with asyncio.timeout(ARM_S_MAX):
                running = system(reference, has_fragments=arm[0].endswith(ASIDE))
                await _measure_arm(running, seen[arm], progress, task)
        except (StillframeError, OSError) as error:
            progress.console.print(
                f"pause, {arm}: stopped early: {str(error) or type(error).__name__}", markup=False
            )
    return seen


async def _measure_arm(
    started: AbstractAsyncContextManager[Supervisor], pauses: Pauses, progress: Progress, task: Any
) -> None:
    with _shared_gaps() as gaps:
        async with started as running:
            await asyncio.sleep(WARM_UP_S)
            began = time.monotonic()
            await running.snapshot()
            pauses.first_s = gaps.longest_s(began)
            for _ in range(ROUND_COUNT):
                await asyncio.sleep(WINDOW_S / 4)
                began = time.monotonic()
                await asyncio.sleep(WINDOW_S)
                pauses.without_s.append(gaps.longest_s(began))
                began = time.monotonic()
                entry, _ = await asyncio.gather(running.snapshot(), asyncio.sleep(WINDOW_S))
                pauses.with_s.append(gaps.longest_s(began))
                if isinstance(entry, Abandoned):
                    pauses.abandoned_count += 1
                else:
                    pauses.pause_s.append(entry.pause_s)
                    pauses.capture_s.append(entry.capture_s)
                progress.advance(task)


def report(seen: dict[tuple[str, int], Pauses], console: Console) -> dict[str, Any]:
    """Print the table; return the figures."""
    table = Table(title="the longest gap in message handling around a snapshot, in ms")
    for column in ("state", "", "snapshots"):
        table.add_column(column)
    for column in ("p50", "p99", "max", "without: p50", "p99", "max", "the first"):
        table.add_column(column, justify="right")
    for column in ("sync p50", "async p50"):
        table.add_column(column, justify="right")
    figures: dict[str, Any] = {}
    for (way, size_mb), pauses in seen.items():
        name = f"{way}, {size_mb} MB"
        listed = {
            "sync_p50_ms": median(pauses.pause_s) * 1000,
            "async_p50_ms": median(pauses.capture_s) * 1000,
        }
        counts = {"snapshot_count": len(pauses.pause_s), "abandoned_count": pauses.abandoned_count}
        figures[name] = counts | listed
        for index, clock in enumerate(("clock", "processor")):
            ms = {
                f"{which}_{part}_ms": quantile([gap[index] for gap in gaps], share) * 1000
                for which, gaps in (("with", pauses.with_s), ("without", pauses.without_s))
                for part, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            }
            ms["first_ms"] = pauses.first_s[index] * 1000
            figures[name][clock] = ms
            table.add_row(
                *((name, clock, str(counts["snapshot_count"])) if not index else ("", clock, "")),
                *(f"{value:.1f}" for value in ms.values()),
                *((f"{value:.1f}" for value in listed.values()) if not index else ("", "")),
            )
    console.print(table)
    return figures
