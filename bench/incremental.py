"""What a snapshot writes and how long a process stands still for it: all against what changed.

One process holds a mapping and changes a share of it after each published snapshot, before the next
is taken; values are random numbers, which no compression makes small. As a ``Keyed`` field only
what changed is written; as a dict, all.
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.forward import system
from bench.measure import median
from bench.pause import KEY_BASE, ROW_BYTES, SIZES_MB, STEP
from stillframe import Channel, Keyed, Message, Process, SnapshotId, Topology
from stillframe.errors import StillframeError
from stillframe.model import Abandoned
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.manifest import SnapshotEntry

SHARES = (0.01, 1.0)
SNAPSHOT_COUNT = 7
TURN_S_MAX = 300.0
KINDS = ("keyed", "opaque")


def _number() -> int:
    return random.getrandbits(62)


class Silence(Message):
    """A message that nobody sends."""


class Listener(Process):
    """The other end of the channels."""

    def receive(self, channel: Channel, message: Silence) -> None:
        """Nothing comes."""


class Changer(Process):
    """Changes a share of its rows after each snapshot."""

    row_count: int = 0
    share: float = 0.0
    place: int = 0

    def start(self) -> None:
        """Make the rows."""
        first = {KEY_BASE + number: _number() for number in range(self.row_count)}
        self._rows().update(first)

    def receive(self, channel: Channel, message: Silence) -> None:
        """Nothing comes."""

    def on_published(self, snapshot: SnapshotId) -> None:
        """Change the rows for the next snapshot, which cannot be recorded before this has ended."""
        rows, place = self._rows(), self.place
        for _ in range(int(self.row_count * self.share)):
            place = (place + STEP) % self.row_count
            rows[KEY_BASE + place] = _number()
        self.place = place

    def _rows(self) -> Any:
        raise NotImplementedError


class KeyedChanger(Changer):
    """Holds its rows in a keyed field."""

    rows: Keyed[int, int] = field(default_factory=Keyed)

    def _rows(self) -> Any:
        return self.rows


class OpaqueChanger(Changer):
    """Holds its rows in a dict."""

    rows: dict[int, int] = field(default_factory=dict)

    def _rows(self) -> Any:
        return self.rows


def _topology(kind: type[Changer], size_mb: int, share: float) -> Topology:
    changer = kind(row_count=size_mb * 10**6 // ROW_BYTES, share=share)
    return Topology.mesh({"changer": changer, "listener": Listener()})


TOPOLOGIES = {
    f"{name}_{size_mb}_{share:.0%}".removesuffix("%"): _topology(kind, size_mb, share)
    for name, kind in zip(KINDS, (KeyedChanger, OpaqueChanger), strict=True)
    for size_mb in SIZES_MB
    for share in SHARES
}
globals().update(TOPOLOGIES)


@dataclass
class Taken:
    """The snapshots of one system: the first, which holds everything, and those after it."""

    first: SnapshotEntry | None = None
    after: list[SnapshotEntry] = field(default_factory=list)
    abandoned_count: int = 0


async def measure(progress: Progress) -> dict[str, Taken]:
    """Take snapshots of each system, one after the other."""
    seen = {name: Taken() for name in TOPOLOGIES}
    task = progress.add_task("incremental", total=len(TOPOLOGIES) * SNAPSHOT_COUNT)
    for name, taken in seen.items():
        try:
            async with (
                asyncio.timeout(TURN_S_MAX),
                system(f"bench.incremental:{name}", timeout_s=TURN_S_MAX) as running,
            ):
                await _take(running, taken, progress, task)
        except (StillframeError, OSError) as error:
            progress.console.print(
                f"incremental, {name}: stopped early: {str(error) or type(error).__name__}",
                markup=False,
            )
    return seen


async def _take(running: Supervisor, taken: Taken, progress: Progress, task: Any) -> None:
    for _ in range(SNAPSHOT_COUNT):
        entry = await running.snapshot()
        if isinstance(entry, Abandoned):
            taken.abandoned_count += 1
        elif taken.first is None:
            taken.first = entry
        else:
            taken.after.append(entry)
        progress.advance(task)


def report(seen: dict[str, Taken], console: Console) -> dict[str, Any]:
    """Print the table; return the figures."""
    table = Table(title="one snapshot: all, against what changed since the one before; medians")
    for column in ("state", "changed", "field", "snapshots", "MB", "of opaque"):
        table.add_column(column, justify="right")
    for column in ("sync, ms", "async, ms"):
        table.add_column(column, justify="right")
    figures: dict[str, Any] = {}
    for size_mb in SIZES_MB:
        for share in SHARES:
            changed = f"{share:.0%}"
            rows = {kind: seen[f"{kind}_{size_mb}_{changed[:-1]}"] for kind in KINDS}
            opaque = median([entry.bytes for entry in rows["opaque"].after])
            for kind, taken in rows.items():
                written = median([entry.bytes for entry in taken.after])
                figures[f"{size_mb} MB, {changed}, {kind}"] = found = {
                    "snapshot_count": len(taken.after),
                    "abandoned_count": taken.abandoned_count,
                    "first_bytes": taken.first.bytes if taken.first else 0,
                    "bytes": written,
                    "bytes_share": written / opaque,
                    "sync_ms": 1000 * median([entry.pause_s for entry in taken.after]),
                    "async_ms": 1000 * median([entry.capture_s for entry in taken.after]),
                }
                table.add_row(
                    f"{size_mb} MB",
                    changed,
                    kind,
                    str(found["snapshot_count"]),
                    f"{written / 1e6:.2f}",
                    f"{found['bytes_share']:.2f}",
                    *(f"{found[k]:.1f}" for k in ("sync_ms", "async_ms")),
                )
    console.print(table)
    return figures
