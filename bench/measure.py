"""What every contender offers, and how it is measured.

A contender is four operating-system processes that forward messages for ever: in a ring each to the
next, in a mesh each to all others in turn. Each puts `IN_FLIGHT_COUNT` messages under way at the
start. Each writes how many it has received into its slot of a shared file; the processor time of
its threads is what the kernel says.
"""

import asyncio
import mmap
import os
import statistics
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

PROCESS_COUNT = 4
IN_FLIGHT_COUNT = 64
WARM_UP_S = 1.0
WINDOW_S = 2.0
SHAPES = ("ring", "mesh")
COUNTS_VARIABLE = "STILLFRAME_BENCH_COUNTS"
_SLOT = struct.Struct("@Q")


class Counts:
    """A shared file with one number for each process."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def write(self, slot: int, count: int) -> None:
        """Set the number of `slot`."""
        _SLOT.pack_into(self._map, slot * _SLOT.size, count)

    def total(self) -> int:
        """Return the sum of all numbers."""
        return sum(number for (number,) in _SLOT.iter_unpack(self._map[:]))


@asynccontextmanager
async def shared_counts(slot_count: int) -> AsyncIterator[Counts]:
    """Make the shared file; child processes find it by the environment variable."""
    with tempfile.NamedTemporaryFile(prefix="stillframe-bench-") as file:
        file.write(bytes(slot_count * _SLOT.size))
        file.flush()
        os.environ[COUNTS_VARIABLE] = file.name
        yield Counts(file.name)


def my_counts() -> Counts:
    """Return the shared file, in a child process."""
    return Counts(os.environ[COUNTS_VARIABLE])


def targets(shape: str, index: int, count: int = PROCESS_COUNT) -> list[int]:
    """Return to whom process `index` forwards, in turn."""
    if shape == "ring":
        return [(index + 1) % count]
    return [other for other in range(count) if other != index]


@dataclass(frozen=True)
class Running:
    """A contender that runs: its process ids and its counts."""

    pids: Sequence[int]
    counts: Counts


Contender = Callable[[str], AbstractAsyncContextManager[Running]]
"""Given a shape, starts the processes; leaving the context ends them."""


@dataclass(frozen=True)
class Rate:
    """What one window showed: messages per second of the wall clock, and of all processors."""

    per_second: float
    per_core_second: float


def core_seconds(pids: Sequence[int]) -> float:
    """Return the processor time that the processes have used, all their threads together."""
    return sum(
        int(task.joinpath("schedstat").read_text().split()[0]) / 1e9
        for pid in pids
        for task in Path(f"/proc/{pid}/task").iterdir()
    )


async def window(running: Running, seconds: float = WINDOW_S) -> Rate:
    """Measure for so many seconds."""
    began, used, count = time.monotonic(), core_seconds(running.pids), running.counts.total()
    await asyncio.sleep(seconds)
    count = running.counts.total() - count
    used = core_seconds(running.pids) - used
    return Rate(count / (time.monotonic() - began), count / used if used else 0.0)


def median(values: Sequence[float]) -> float:
    """Return the median, 0 if there is none."""
    return statistics.median(values) if values else 0.0


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of `values` lie; the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
