"""The vector clocks of a log, checked (Mattern 1989; Fidge 1988).

The clock of an event counts the events of each host that happened before it, including itself. So
the clocks of an execution obey rules that a damaged or wrong log breaks:

- the events of a host have 1, 2, 3... in their own entries: each number once, none left out;
- the entry for another host is an event that this host had;
- along a host, no entry falls;
- an event that knows another one knows what that one knew (transitive), and none knows its future.

The order of the lines does not matter. Clocks are kept in flat arrays, 12 bytes for an entry: a
log of a million events fits into memory.
"""

import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate, chain, filterfalse, pairwise
from typing import Any, NoReturn

import msgspec

from stillframe.errors import NotConsistent, UsageError

HOST_COUNT_MAX = 4096
_SHOWN_CHARS_MAX = 80
FILLED_MAX = 1_000_000
"""Maximum number of events that are filled in for all hosts of an execution together."""
PROGRESS_STEP = 20_000
Progress = Callable[[str, int, int], None]
"""Called now and then with what is being done, how much of it is done, and how much there is."""


_decode_clock = msgspec.json.Decoder(dict[str, int]).decode


def decode_clock(text: str) -> dict[str, int]:
    """Decode a vector clock; msgspec.DecodeError if `text` is none, or has a host twice."""
    clock = _decode_clock(text)
    # Few hosts have a comma in their names: only such a clock, or one with doubles, is read again.
    if text.count(",") >= len(clock) > 0:
        seen = set()
        for host, _ in json.loads(text, object_pairs_hook=list):
            if host in seen:
                raise msgspec.ValidationError(f"it has host {show_host(host)} twice")
            seen.add(host)
    return clock


class ClockedEvent(msgspec.Struct):
    """One event, as a log has it in a line, counted from 1.

    Hosts that its vector clock leaves out count as 0. `fields` are what else the log says of it,
    `sent_to` and `received_from` the hosts of a message, if the log says so, and `content`
    distinguishes the messages of a channel. `file` is which of several files the line is in, and
    `time` when the event happened by the physical clock of its host, as the log has it.
    """

    line: int
    host: str
    clock: dict[str, int]
    label: str
    fields: dict[str, Any] | None = None
    sent_to: str | None = None
    received_from: str | None = None
    content: Any = None
    file: str = ""
    time: str | None = None


class Step(msgspec.Struct, gc=False):
    """An event on a walk along a host: their numbers, and what the event learned.

    `known` is, for each host, how many of its events the clock knows; valid until the next step.
    `causes` are the newest events of other hosts that it learned of and that none of the others
    that it learned of knew: who must have sent it something.
    """

    host: int
    event: int
    known: list[int]
    causes: list[int]


class Clocks:
    """All clocks of one execution: ``add`` every event, then ``sort``, then ``walk``. Errors call
    the log `where`, or by the file of an event; `separation` is how to separate its executions.

    For each event, `owners` has the index of its host, `owns` its number among the events of that,
    from 1, and `totals` how many events happened before it, itself counted in: more than for any of
    those, so this orders the events as they could have happened. `order` has the events of each
    host.

    Events that the log leaves out can be filled in, with the next numbers. By its clock, such an
    event learned nothing: it knows what the one before it on its host knew. So of two events in the
    log, one happened before the other exactly if it did by their own clocks.
    """

    def __init__(self, where: str, separation: str) -> None:
        self.owners = array("H")
        self.owns = array("q")
        self.totals = array("q")
        self.order: list[array[int]] = []
        self._where = where
        self._separation = separation
        self._index_of: dict[str, int] = {}
        self._columns = array("H")
        self._values = array("q")
        self._offsets = array("q", [0])
        self._lines = array("q")
        self._files: list[str] = []
        self._times: list[float | None] = []
        self._bases = array("q")
        self._unread_time_count = 0
        self._first_unread_time = ""

    @property
    def hosts(self) -> list[str]:
        """Every host that was named, in the order of its index."""
        return list(self._index_of)

    def index_of(self, host: str) -> int:
        """Return the index of a host, which may be new. UsageError: there are too many."""
        return self._indexes([host])[0]

    def _indexes(self, hosts: Iterable[str]) -> list[int]:
        index = self._index_of
        found = [index.setdefault(host, len(index)) for host in hosts]
        if len(index) > HOST_COUNT_MAX:
            raise UsageError(
                f"{self._place(len(self._lines) - 1)}: more than {HOST_COUNT_MAX} hosts are "
                f"named up to here: is {show_host(self.hosts[HOST_COUNT_MAX])} really one? If "
                "not, correct the expression or paths that find them"
            )
        return found

    def add(self, event: ClockedEvent) -> int:
        """Add the clock of `event`, which must count that itself, and return its number: 0, 1,
        2..."""
        number = len(self._lines)
        own = event.clock.get(event.host, 0)
        self._lines.append(event.line)
        self._files.append(event.file or self._where)
        self._times.append(None if event.time is None else _parse_time(event.time))
        if event.time is not None and self._times[-1] is None:
            self._unread_time_count += 1
            place = f"{self._place(number)}: the physical time {show_host(event.time)}"
            self._first_unread_time = self._first_unread_time or place
        self.owners.append(self.index_of(event.host))
        try:
            self.owns.append(own)
            self._values.extend(event.clock.values())
            self.totals.append(sum(event.clock.values()))
        except OverflowError:
            self.refuse(number, f"the clock counts more than {2**63 - 1} events")
        self._columns.extend(self._indexes(event.clock))
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

    @property
    def filled_count(self) -> int:
        """How many events were filled in that the log leaves out."""
        return len(self._bases)

    def sort(self, *, fill_gaps: bool = False) -> None:
        """Find the `order` of the events of each host: each number must be there once, or it is
        filled in."""
        self.order = [array("q") for _ in self._index_of]
        for event in sorted(range(len(self.owns)), key=self.owns.__getitem__):
            line, own = self.order[self.owners[event]], self.owns[event]
            if own <= len(line):
                self.refuse(
                    event,
                    f"the clock has {own} for its own host, as "
                    f"{self._line(line[own - 1], event)} has: each event of a host has a "
                    "different number. Likely causes: the log has several executions "
                    f"({self._separation}); two processes have one name (give each its own); or a "
                    "process restarted and counted from 1 again (give it a new name, or import "
                    "the log of each start separately)",
                )
            if own > len(line) + 1:
                if not fill_gaps:
                    self.refuse(
                        event,
                        f"the clock has {own} for its own host, but no event of this host has "
                        f"{len(line) + 1}: numbers go 1, 2, 3... without a gap. Is a line missing? "
                        "If the log leaves out events, give --fill-gaps",
                    )
                self._fill(self.owners[event], own - 1, event)
            line.append(event)
        if fill_gaps:
            reached = [*map(len, self.order)]
            for event in range(len(self._lines)):
                for other, value in self._entries(event):
                    if value > reached[other]:
                        self._fill(other, value, event)
                        reached[other] = value

    def _fill(self, host: int, count: int, event: int) -> None:
        """Give a host events up to this count, which the clock of `event` knows."""
        line = self.order[host]
        base = line[-1] if line else -1
        if base >= len(self._lines):
            base = self._bases[base - len(self._lines)]
        if (filled := self.filled_count + count - len(line)) > FILLED_MAX:
            raise UsageError(
                f"{self._place(event)}: the clock has {count:,} for host {self.name(host)}. Up to "
                f"here the log leaves out {filled:,} events of this execution: at most "
                f"{FILLED_MAX:,} are filled in. Is it really a count of events?"
            )
        total = 0 if base < 0 else self.totals[base] - self.owns[base]
        for own in range(len(line) + 1, count + 1):
            line.append(len(self.owners))
            self.owners.append(host)
            self.owns.append(own)
            self.totals.append(total + own)
            self._bases.append(base)

    def is_filled(self, event: int) -> bool:
        """Return whether the log leaves out this event."""
        return event >= len(self._lines)

    def walk(self, progress: Progress) -> Iterator[Step]:
        """Yield the events of every host in their order, host by host; NotConsistent: a clock
        breaks a rule."""
        steps = chain.from_iterable(map(self._walk_along, range(len(self.order))))
        for done, step in enumerate(steps, 1):
            yield step
            if not done % PROGRESS_STEP:
                progress("checking", done, len(self._lines))

    def _walk_along(self, host: int) -> Iterator[Step]:
        known = [0] * len(self.order)
        total = 0
        for event in self.order[host]:
            if self.is_filled(event):
                known[host] += 1
                total += 1
                yield Step(host, event, known, [])
                continue
            learned = []
            for other, value in self._entries(event):
                if value > known[other]:
                    total += value - known[other]
                    known[other] = value
                    if other != host:
                        learned.append(other)
            # No entry of `known` ever falls: less than their sum, and one of the clock is lower.
            if self.totals[event] != total:
                self._refuse_fall(event, known)
            causes = self._causes(event, host, known, learned) if learned else []
            yield Step(host, event, known, causes)

    def _entries(self, event: int) -> Iterator[tuple[int, int]]:
        """Return the entries of a clock: index of the host, and number. One that was filled in has
        those of the event before it."""
        if self.is_filled(event):
            event = self._bases[event - len(self._lines)]
            if event < 0:
                return zip((), (), strict=True)
        begin, end = self._offsets[event], self._offsets[event + 1]
        return zip(self._columns[begin:end], self._values[begin:end], strict=True)

    def _causes(self, event: int, host: int, known: list[int], learned: list[int]) -> list[int]:
        newest = []
        for other in learned:
            if known[other] > (count := len(self.order[other])):
                what = (
                    f"reached only {count}: is a line missing? If the log leaves out events, give "
                    "--fill-gaps"
                    if count
                    else "is unknown: it has no event in this log. Import all files of the log "
                    "together. If it leaves out this host's events, give --fill-gaps"
                )
                self.refuse(
                    event, f"the clock has {known[other]} for host {self.name(other)}, which {what}"
                )
            newest.append(self.order[other][known[other] - 1])
        if len(newest) > 1:
            newest.sort(key=self.totals.__getitem__, reverse=True)
        implied = set()
        causes = []
        for cause in newest:
            # Whoever knows it has been, or will be, checked to know all that it knew.
            if self.owners[cause] in implied:
                continue
            causes.append(cause)
            for third, value in self._entries(cause):
                if value >= known[third]:
                    if value > known[third] or third == host:
                        self._refuse_cause(event, cause, third, value, known[third])
                    implied.add(third)
        return causes

    def time_warnings(self) -> Iterator[str]:
        """Yield a sentence on physical times of unknown form, one on times that contradict the
        order between hosts, and one on each host with backward times.

        Such an event happened after another one by the vector clocks, and before it by its time.
        """
        if self._unread_time_count:
            yield (
                f"{self._first_unread_time} has an unknown form: {self._unread_time_count:,} of "
                f"{len(self._times):,} events are not compared by time. Known forms are numbers, "
                "ISO 8601, and month/day/year with a time"
            )
        yield from self._contradictions_between_hosts()
        logged = [[e for e in order if not self.is_filled(e)] for order in self.order]
        for host, order in enumerate(logged):
            timed = [event for event in order if self._times[event] is not None]
            falls = [
                (before, after)
                for before, after in pairwise(timed)
                if (self._times[after] or 0) < (self._times[before] or 0)
            ]
            if falls:
                before, after = falls[0]
                yield (
                    f"{self._files[after]}, host {self.name(host)}: physical time runs backwards "
                    f"at {len(falls):,} of {len(timed):,} events, first at line "
                    f"{self._lines[after]}, which happened after {self._line(before, after)}"
                )

    def _contradictions_between_hosts(self) -> Iterator[str]:
        times = [-math.inf if time is None else time for time in self._times]
        if math.isinf(max(times)):
            return
        times += [-math.inf] * self.filled_count

        def later(one: int, other: int) -> int:
            return other if times[other] > times[one] else one

        latest = [[*accumulate(order, later)] for order in self.order]
        found: list[tuple[float, int, int]] = []
        for host, order in enumerate(self.order):
            cause = order[0] if order else 0
            most = -math.inf
            # One that was filled in learned nothing.
            for event in filterfalse(self.is_filled, order):
                for other, value in self._entries(event):
                    if other != host and value and times[latest[other][value - 1]] > most:
                        cause = latest[other][value - 1]
                        most = times[cause]
                if -math.inf < times[event] < most:
                    found.append((most - times[event], event, cause))
        if found:
            _, event, cause = max(found)
            timed_count = sum(time is not None for time in self._times)
            yield (
                f"physical times contradict the order between hosts at {len(found):,} of "
                f"{timed_count:,} events, most at {self._place(event)} (host "
                f"{self.name(self.owners[event])}), which happened after "
                f"{self._line(cause, event)} (host {self.name(self.owners[cause])}) by the vector "
                "clocks, and before it by its time: the clocks of these hosts differ"
            )

    def describe(self, event: int, neighbour: int) -> str:
        """Return how errors of another event, `neighbour`, name this one."""
        host = self.name(self.owners[event])
        return f"event {self.owns[event]} of host {host} ({self._line(event, neighbour)})"

    def _line(self, event: int, neighbour: int) -> str:
        if self.is_filled(event):
            base = self._bases[event - len(self._lines)]
            return "left out" if base < 0 else f"left out after {self._line(base, neighbour)}"
        file = self._files[event]
        return f"line {self._lines[event]}{'' if file == self._files[neighbour] else f' of {file}'}"

    def _place(self, event: int) -> str:
        return f"{self._files[event]}, line {self._lines[event]}"

    def name(self, host: int) -> str:
        """Return how errors name a host."""
        return show_host(self.hosts[host])

    def refuse(self, event: int, sentence: str) -> NoReturn:
        """Raise the error that the clock of `event` is wrong, with log, line and host."""
        host = self.name(self.owners[event])
        raise NotConsistent(f"{self._place(event)}, host {host}: {sentence}")

    def _refuse_fall(self, event: int, known: list[int]) -> NoReturn:
        row = dict(self._entries(event))
        fallen = next(other for other, most in enumerate(known) if row.get(other, 0) < most)
        before = self.order[self.owners[event]][self.owns[event] - 2]
        if self.is_filled(before):
            before = self._bases[before - len(self._lines)]
        self.refuse(
            event,
            f"the clock has {row.get(fallen, 0)} for host {self.name(fallen)}, but "
            f"{self._line(before, event)}, earlier on this host, has {known[fallen]}: entries "
            "never decrease",
        )

    def _refuse_cause(self, event: int, cause: int, third: int, value: int, known: int) -> NoReturn:
        if third == self.owners[event]:
            self.refuse(
                event,
                f"the clock knows {self.describe(cause, event)}, which knows event {value} of this "
                f"host: event {self.owns[event]} would have happened before itself",
            )
        self.refuse(
            event,
            f"the clocks are not transitive: this one knows {self.describe(cause, event)}, which "
            f"has {value} for host {self.name(third)}, but has only {known} itself",
        )


def show_host(host: str) -> str:
    """Return a host for a message, in quotes and shortened: it may be any text."""
    if len(host) > _SHOWN_CHARS_MAX:
        host = f"{host[: _SHOWN_CHARS_MAX - 1]}\N{HORIZONTAL ELLIPSIS}"
    return repr(host)


def _parse_date(form: str, text: str) -> datetime:
    return datetime.strptime(f"{text} +0000", f"{form} %z")


_TIME_FORMATS = ("%m/%d/%Y %H:%M:%S.%f", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p")
_TIME_PARSERS: tuple[Callable[[str], float | datetime], ...] = (
    int,
    float,
    datetime.fromisoformat,
    *(partial(_parse_date, form) for form in _TIME_FORMATS),
)


_TIME_MAX = 2**127


def _parse_time(text: str) -> float | None:
    """Return a physical time to compare with others of its host; None if its form is unknown."""
    for parse in _TIME_PARSERS:
        try:
            found = parse(text.strip())
        except (ValueError, OverflowError):
            continue
        if isinstance(found, datetime):
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        # Neither infinite, nor no number, nor too large to subtract.
        return found if abs(found) < _TIME_MAX else None
    return None
