"""What every contender offers, and how it is measured.

A contender is four operating-system processes that forward messages for ever: in a ring each to the
next, in a mesh each to all others in turn. Each puts `IN_FLIGHT_COUNT` messages under way at the
start. Each writes how many it has received into its slot of a shared file; its processor time is
what the kernel says. Contenders take turns, and ratios are taken between windows of the same round:
the machine drifts.
"""

import asyncio
import mmap
import os
import statistics
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

PROCESS_COUNT = 4
IN_FLIGHT_COUNT = 64
WARM_UP_S = 0.5
WINDOW_S = 2.0
TURN_S_MAX = 20.0
"""Starting, warming up, measuring and ending one contender may take so long, in seconds."""
SHAPES = ("ring", "mesh")
COUNTS_VARIABLE = "STILLFRAME_BENCH_COUNTS"
ALONE_VARIABLE = "STILLFRAME_BENCH_MARKERS"
_SLOT = struct.Struct("@Q")
_CPU_CLOCK = 2
Key = TypeVar("Key", bound=Hashable)


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
async def shared_counts(slot_count: int, variable: str = COUNTS_VARIABLE) -> AsyncIterator[Counts]:
    """Make a shared file; child processes find it by the environment variable."""
    with tempfile.NamedTemporaryFile(prefix="stillframe-bench-") as file:
        file.write(bytes(slot_count * _SLOT.size))
        file.flush()
        os.environ[variable] = file.name
        yield Counts(file.name)


def my_counts(variable: str = COUNTS_VARIABLE) -> Counts:
    """Return the shared file, in a child process."""
    return Counts(os.environ[variable])


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
    """Return the processor time that the processes have used, with all threads they ever had.

    Raises:
        OSError: a process is gone.
    """
    # The clock of another process, as clock_getcpuclockid(3) names it on Linux.
    return sum(time.clock_gettime(~pid << 3 | _CPU_CLOCK) for pid in pids)


async def window(running: Running, seconds: float = WINDOW_S) -> Rate:
    """Measure for so many seconds.

    Raises:
        OSError: a process is gone.
        RuntimeError: no message was received: it does not run, so it has no rate.
    """
    began, used, count = time.monotonic(), core_seconds(running.pids), running.counts.total()
    await asyncio.sleep(seconds)
    count = running.counts.total() - count
    used = core_seconds(running.pids) - used
    if not count:
        raise RuntimeError("no message was received")
    return Rate(count / (time.monotonic() - began), count / used if used else 0.0)


def median(values: Sequence[float]) -> float:
    """Return the median, 0 if there is none."""
    return statistics.median(values) if values else 0.0


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of `values` lie (nearest rank), 0 if there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def ratios(
    rounds: Sequence[Mapping[Key, Rate]], one: Key, other: Key, figure: Callable[[Rate], float]
) -> list[float]:
    """Return `one` divided by `other` for each round that has both."""
    pairs = [(figure(turn[one]), figure(turn[other])) for turn in rounds if {one, other} <= {*turn}]
    return [ours / theirs for ours, theirs in pairs if theirs]
