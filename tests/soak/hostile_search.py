"""The search for inputs that a place cannot take: how many, how long, how much memory.

Inputs that reach lines of the package which none reached before become seeds of further ones.
"""

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
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)
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


async def timed(
    tally: Tally, take: Callable[[], Awaitable[str]], name: str, *, bytes_max: int
) -> None:
    """Let one input be taken; note what became of it, and refuse one that took too much memory.

    Raises:
        MemoryError: the memory of this operating-system process grew by more than `bytes_max`.
    """
    before_kb, began = peak_kb(), time.perf_counter()
    outcome = await take()
    tally.note(f"{name}: {outcome}", time.perf_counter() - began)
    after_kb = tally.peak_kb = peak_kb()
    if (after_kb - before_kb) * 1024 > bytes_max:
        raise MemoryError(f"{(after_kb - before_kb) / 1024:.0f} MiB for one input at {name}")
