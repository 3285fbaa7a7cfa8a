"""The search for inputs that a place cannot take: how many, how long, how much memory.

Inputs that reach lines of the package which none reached before become seeds of further ones.
"""

import faulthandler
import gc
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

PACKAGE = f"{Path('src') / 'stillframe'}/"
TRACED_SHARE = 0.03
SEED_COUNT_MAX = 2_000
SEED_BYTES_MAX = 20_000
FEW_COUNT = 100
HANG_S = 60
"""So long may a few inputs take together."""


class Tally(msgspec.Struct):
    """What became of a number of inputs."""

    outcomes: dict[str, int] = {}
    longest_s: float = 0.0
    longest: str = ""
    begun_kb: int = 0
    peak_kb: int = 0
    line_count: int = 0
    kept_count: int = 0

    def note(self, outcome: str, seconds: float) -> None:
        """Count one."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if seconds > self.longest_s:
            self.longest_s, self.longest = seconds, outcome

    def add(self, other: "Tally") -> None:
        """Add what somebody else has counted."""
        self.outcomes = dict(Counter(self.outcomes) + Counter(other.outcomes))
        if other.longest_s > self.longest_s:
            self.longest_s, self.longest = other.longest_s, other.longest
        self.begun_kb = max(self.begun_kb, other.begun_kb)
        self.peak_kb = max(self.peak_kb, other.peak_kb)
        self.line_count = max(self.line_count, other.line_count)
        self.kept_count += other.kept_count

    @property
    def count(self) -> int:
        """How many inputs."""
        return sum(self.outcomes.values())


def peak_kb() -> int:
    """Return the most memory that this operating-system process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Corpus:
    """The seeds of one place, which grow with what reaches new lines."""

    def __init__(self, seeds: list[bytes], chance: random.Random) -> None:
        self.seeds = list(seeds)
        self.kept_count = 0
        self._chance = chance
        self.lines: set[tuple[str, int]] = set()
        self._fresh = False

    def is_traced(self) -> bool:
        """Return whether to look where the next input goes; that is slow, so seldom."""
        return self._chance.random() < TRACED_SHARE

    @contextmanager
    def traced(self, data: bytes) -> Iterator[None]:
        """Look which lines the body reaches, and keep `data` if there are new ones."""
        self._fresh = False
        former = sys.gettrace()  # of who measures what tests reach
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(former)
            is_room = len(self.seeds) < SEED_COUNT_MAX and len(data) <= SEED_BYTES_MAX
            if self._fresh and is_room:
                self.seeds.append(data)
                self.kept_count += 1

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if PACKAGE not in frame.f_code.co_filename:
            return None
        line = (frame.f_code.co_filename, frame.f_lineno)
        if line not in self.lines:
            self.lines.add(line)
            self._fresh = True
        return self._trace


class Watch:
    """Notes what became of inputs, one after the other, and how much time and memory they took.

    To ask for the memory, and to set the alarm for one that hangs, takes longer than most inputs:
    so both are done once for each few of them.

    Args:
        bytes_max: how much the memory may grow with a few inputs.
        tell: called with how many were taken.
    """

    def __init__(self, bytes_max: int, tell: Callable[[int], None]) -> None:
        self.tally = Tally(begun_kb=peak_kb(), peak_kb=peak_kb())
        self._bytes_max = bytes_max
        self._tell = tell
        self._few = 0

    async def take(self, take: Callable[[], Awaitable[str]], name: str) -> None:
        """Let one input be taken.

        Raises:
            MemoryError: the memory of this operating-system process has grown too much.
        """
        if self._few == 0:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
        began = time.perf_counter()
        outcome = await take()
        self.tally.note(f"{name}: {outcome}", time.perf_counter() - began)
        self._few += 1
        if self._few == FEW_COUNT:
            self.look()

    def look(self) -> None:
        """Look at the memory."""
        faulthandler.cancel_dump_traceback_later()
        gc.collect()
        before_kb, self.tally.peak_kb = self.tally.peak_kb, peak_kb()
        grown = (self.tally.peak_kb - before_kb) * 1024
        if grown > self._bytes_max:
            raise MemoryError(f"{grown / 2**20:.0f} MiB for one of {self._few} inputs")
        self._tell(self._few)
        self._few = 0
