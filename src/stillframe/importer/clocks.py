"""The vector clocks of a log, checked (Mattern 1989; Fidge 1988).

The clock of an event counts the events of each host that happened before it, including itself. So
the clocks of an execution obey rules that a damaged or wrong log breaks:

- the events of a host have 1, 2, 3... in their own entries: each number once, none left out;
- what a clock knows of another host is an event that this host had;
- along a host, no entry falls;
- an event that knows another one knows what that one knew (transitive), and none knows its future.

The order of the lines does not matter. Clocks are kept in flat arrays, 12 bytes for an entry: a
log of a million events fits into memory.
"""

from array import array
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import msgspec

from stillframe.errors import NotConsistent, UsageError
from stillframe.importer.names import show_host

HOST_COUNT_MAX = 4096
PROGRESS_STEP = 20_000
Progress = Callable[[str, int, int], None]
"""Called now and then with what is being done, how much of it is done, and how much there is."""


class ClockedEvent(msgspec.Struct):
    """One event, as a log has it in a line, counted from 1.

    Attributes:
        clock: its vector clock; hosts that are left out count as 0.
        fields: everything else that the log says of it.
        sent_to: the host to which it sent a message, if the log says so.
        received_from: the host from which it received one, if the log says so.
        content: of the message; distinguishes the messages of a channel.
    """

    line: int
    host: str
    clock: dict[str, int]
    label: str
    fields: dict[str, Any] | None = None
    sent_to: str | None = None
    received_from: str | None = None
    content: Any = None


class Step(msgspec.Struct, gc=False):
    """An event on a walk along a host: their numbers, and what the event learned.

    Attributes:
        known: for each host, how many of its events the clock knows; valid until the next step.
        causes: the newest events of other hosts that it learned of and that none of the others
            that it learned of knew: who must have sent it something.
    """

    host: int
    event: int
    known: list[int]
    causes: list[int]


class Clocks:
    """All clocks of one execution: ``add`` every event, then ``sort``, then ``walk``.

    Args:
        where: what errors call the log.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._index_of = _Indexes(where)
        self._columns = array("H")
        self._values = array("q")
        self._offsets = array("q", [0])
        self._lines = array("q")
        self._owners = array("H")
        self._owns = array("q")
        self._order: list[array[int]] = []
        self.totals = array("q")
        """For each event how many events happened before it, itself counted in: more than for any
        of those, so this orders the events as they could have happened."""

    @property
    def hosts(self) -> list[str]:
        """Every host that was named, in the order of its index."""
        return list(self._index_of)

    def index_of(self, host: str) -> int:
        """Return the index of a host; a new one is added.

        Raises:
            UsageError: there are too many.
        """
        return self._index_of[host]

    def add(self, event: ClockedEvent) -> int:
        """Add the clock of `event` and return its number: 0, 1, 2...

        Raises:
            NotConsistent: it does not count itself.
            UsageError: there are too many hosts.
        """
        number = len(self._lines)
        self._index_of.line = event.line
        own = event.clock.get(event.host, 0)
        self._lines.append(event.line)
        self._owners.append(self._index_of[event.host])
        try:
            self._owns.append(own)
            self._values.extend(event.clock.values())
            self.totals.append(sum(event.clock.values()))
        except OverflowError:
            self.refuse(number, f"the clock counts more than {2**63 - 1} events")
        self._columns.extend(map(self._index_of.__getitem__, event.clock))
        self._offsets.append(len(self._values))
        if event.clock and min(event.clock.values()) < 0:
            self.refuse(number, "the clock has a number below 0")
        if own < 1:
            self.refuse(
                number,
                "the clock has no entry for its own host"
                if event.host not in event.clock
                else f"the clock has {own} for its own host: an event counts itself, from 1",
            )
        return number

    def sort(self) -> "list[array[int]]":
        """Return for each host its events in their order, and remember it.

        Raises:
            NotConsistent: a number is left out or is there twice.
        """
        lines: list[list[int]] = [[] for _ in self._index_of]
        for event, owner in enumerate(self._owners):
            lines[owner].append(event)
        owns = self._owns
        for line in lines:
            line.sort(key=owns.__getitem__)
            for expected, event in enumerate(line, 1):
                if owns[event] != expected:
                    self._refuse_number(event, expected, line)
        self._order = [array("q", line) for line in lines]
        return self._order

    def walk(self, progress: Progress) -> Iterator[Step]:
        """Yield the events of every host in their order, host by host.

        Raises:
            NotConsistent: a clock breaks a rule.
        """
        done = 0
        for host in range(len(self._order)):
            for step in self._walk_along(host):
                yield step
                done += 1
                if not done % PROGRESS_STEP:
                    progress("checking", done, len(self._lines))

    def _walk_along(self, host: int) -> Iterator[Step]:
        values, columns, offsets, totals = self._values, self._columns, self._offsets, self.totals
        known = [0] * len(self._order)
        total = 0
        for event in self._order[host]:
            begin, end = offsets[event], offsets[event + 1]
            learned = []
            for other, value in zip(columns[begin:end], values[begin:end], strict=True):
                if value > known[other]:
                    total += value - known[other]
                    known[other] = value
                    if other != host:
                        learned.append(other)
            # No entry of `known` ever falls: less than their sum, and one of the clock is lower.
            if totals[event] != total:
                self._refuse_fall(event, known)
            causes = self._causes(event, host, known, learned) if learned else []
            yield Step(host, event, known, causes)

    def _causes(self, event: int, host: int, known: list[int], learned: list[int]) -> list[int]:
        values, columns, offsets = self._values, self._columns, self._offsets
        newest = []
        for other in learned:
            if known[other] > len(self._order[other]):
                self._refuse_unreached(event, other, known[other])
            newest.append(self._order[other][known[other] - 1])
        if len(newest) > 1:
            newest.sort(key=self.totals.__getitem__, reverse=True)
        implied = set()
        causes = []
        for cause in newest:
            other = self._owners[cause]
            # Whoever knows it has been, or will be, checked to know all that it knew.
            if other in implied:
                continue
            causes.append(cause)
            begin, end = offsets[cause], offsets[cause + 1]
            for third, value in zip(columns[begin:end], values[begin:end], strict=True):
                if value >= known[third]:
                    if value > known[third] or third == host:
                        self._refuse_cause(event, cause, third, value, known)
                    implied.add(third)
        return causes

    def describe(self, event: int) -> str:
        """Return how errors of another event name this one."""
        host = show_host(self.hosts[self._owners[event]])
        return f"event {self._owns[event]} of host {host} (line {self._lines[event]})"

    def owner(self, event: int) -> int:
        """Return the index of the host whose event it is."""
        return self._owners[event]

    def count(self, host: int) -> int:
        """Return how many events a host has."""
        return len(self._order[host])

    def own(self, event: int) -> int:
        """Return its number among the events of its host, from 1."""
        return self._owns[event]

    def refuse(self, event: int, sentence: str) -> NoReturn:
        """Raise the error that the clock of `event` is wrong, with log, line and host."""
        host = show_host(self.hosts[self._owners[event]])
        raise NotConsistent(f"{self._where}, line {self._lines[event]}, host {host}: {sentence}")

    def _refuse_number(self, event: int, expected: int, line: list[int]) -> NoReturn:
        own = self._owns[event]
        if own < expected:
            twin = line[expected - 2]
            self.refuse(
                event,
                f"the clock has {own} for its own host, as line {self._lines[twin]} has: "
                "each event of a host has a number of its own",
            )
        self.refuse(
            event,
            f"the clock has {own} for its own host, but no event of this host has {expected}: "
            "numbers go 1, 2, 3... without a gap; is a line missing?",
        )

    def _refuse_fall(self, event: int, known: list[int]) -> NoReturn:
        begin, end = self._offsets[event], self._offsets[event + 1]
        row = dict(zip(self._columns[begin:end], self._values[begin:end], strict=True))
        fallen = next(other for other, most in enumerate(known) if row.get(other, 0) < most)
        before = self._order[self._owners[event]][self._owns[event] - 2]
        self.refuse(
            event,
            f"the clock has {row.get(fallen, 0)} for host {show_host(self.hosts[fallen])}, but "
            f"line {self._lines[before]}, one event earlier, has {known[fallen]}: no entry "
            "ever falls",
        )

    def _refuse_unreached(self, event: int, other: int, value: int) -> NoReturn:
        count = len(self._order[other])
        self.refuse(
            event,
            f"the clock has {value} for host {show_host(self.hosts[other])}, "
            + (
                f"which reached only {count}: is a line missing?"
                if count
                else "which is unknown: it has no event in this log"
            ),
        )

    def _refuse_cause(
        self, event: int, cause: int, third: int, value: int, known: list[int]
    ) -> NoReturn:
        if third == self._owners[event]:
            self.refuse(
                event,
                f"the clock knows {self.describe(cause)}, which knows event {value} of this host: "
                f"event {self._owns[event]} would have happened before itself",
            )
        self.refuse(
            event,
            f"the clocks are not transitive: this one knows {self.describe(cause)}, which has "
            f"{value} for host {show_host(self.hosts[third])}, but has only {known[third]} itself",
        )


class _Indexes(dict[str, int]):
    """Gives each new host the next index; errors name the log and the current line."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where
        self.line = 0

    def __missing__(self, host: str) -> int:
        if len(self) == HOST_COUNT_MAX:
            raise UsageError(
                f"{self._where}, line {self.line}: more than {HOST_COUNT_MAX} hosts are named up "
                f"to here: is {show_host(host)} really one? If not, say better where the log has "
                "its hosts"
            )
        self[host] = index = len(self)
        return index
