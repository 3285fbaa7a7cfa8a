"""The consistent cuts of a trace: enumerate them, count them, find the nearest to another cut.

The consistent cuts form a lattice (Mattern 1989): of two, the larger count of each process gives
one, and the smaller count, too. So those in which a process has a given count have a smallest and a
largest among them, and tables of these bounds are all that enumeration and counting need.
"""

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from stillframe.errors import UsageError
from stillframe.model import ProcessId
from stillframe.trace import Cut, Event, Trace

BOUNDS_MAX = 20_000_000
"""Maximum number of bounds in a table, which has one of each process for each event."""
LIMITS_MAX = 5_000_000
"""Maximum number of limits in memory while cuts are counted, one of each process per choice."""
LIMIT_STEPS_MAX = 200_000_000
"""Maximum number of limits that are visited in all."""
_STOPPED = -1


def consistent_cuts(trace: Trace) -> Iterator[Cut]:
    """Yield every consistent cut once, in the order of their counts, the first process's first:
    from the empty cut to ``trace.end``.

    There may be far too many to wait for: stop when you have enough. Memory is taken
    for events x processes, whatever their number. The order is that of Garg, *Enumerating Global
    States of a Distributed Computation*, 2003; here no choice of counts turns out to be impossible
    later, because each next count is taken between the bounds that those before it leave.

    Raises:
        UsageError: there are too many events and processes for a table; when the first is taken.
    """
    if not trace.processes:
        yield ()
        return
    lowest, highest = _lowest(trace), _highest(trace)
    last = len(trace.processes) - 1
    begun: list[tuple[Cut, Cut, Cut]] = [((), _empty(trace), trace.end)]
    while begun:
        head, low, high = begun.pop()
        index = len(head)
        if index == last:
            for count in range(low[index], high[index] + 1):
                yield (*head, count)
            continue
        for count in range(high[index], low[index] - 1, -1):
            above = tuple(map(max, low, lowest[index][count]))
            below = tuple(map(min, high, highest[index][count]))
            begun.append(((*head, count), above, below))


def count_consistent_cuts(trace: Trace, *, count_max: int | None = None) -> int:
    """Return how many consistent cuts there are, without enumerating them.

    Groups of processes that exchange no message are counted separately, and the numbers multiplied.

    Otherwise the events are swept in a possible order. A cut stops each process somewhere; what
    matters of the processes that have stopped is only how far they let the others go. So cuts that
    leave the others the same limits are counted together, and for the last process that continues,
    its whole interval at once. Time and memory grow with the number of different limits. That
    depends on how many messages are in transit at a time, not on how long the lines are; but each
    additional process can double it, so above a dozen with few messages, give a maximum.

    Args:
        trace: what happened.
        count_max: stop when there are more than this many, and return ``count_max + 1``; this
            bounds the time, too. None: count all.

    Returns:
        Their number, or ``count_max + 1``, which means: more than `count_max`.

    Raises:
        UsageError: neither is found out with a bounded table.
    """
    count = 1
    for group in sorted(_independent(trace), key=lambda group: len(group.processes)):
        count *= _count_connected(group, None if count_max is None else count_max // count)
        if count_max is not None and count > count_max:
            return count_max + 1
    return count


def _count_connected(trace: Trace, count_max: int | None) -> int:
    size, found = len(trace.processes), 0
    swept = [0] * size
    ways_of: dict[Cut, int] = {}

    def put(limits: Cut, ways: int) -> int:
        """Add limits that can be reached; return how many cuts that completes."""
        going_count = size - limits.count(_STOPPED)
        if going_count > 1:
            ways_of[limits] = ways_of.get(limits, 0) + ways
            return 0
        if going_count == 0:
            return ways
        limit = max(limits)
        return ways * (limit - swept[limits.index(limit)] + 1)

    found += put(trace.end, 1)
    limit_steps = 0
    highest = _highest(trace)
    for index, count in _balanced_order(trace, highest):
        limit_of_others = list(highest[index][count - 1])
        limit_of_others[index] = _STOPPED
        for limits, ways in list(ways_of.items()):
            if limits[index] == _STOPPED:
                continue
            if limits[index] < count:
                del ways_of[limits]
            found += put(tuple(map(min, limits, limit_of_others)), ways)
        swept[index] = count
        limit_steps += len(ways_of) * size
        if len(ways_of) * size > LIMITS_MAX or limit_steps > LIMIT_STEPS_MAX:
            raise UsageError(
                f"{size} processes with {trace.event_count:,} events have more than "
                f"{found + sum(ways_of.values()):,} consistent cuts, and to count them all takes "
                "too long: ask about fewer processes, or about fewer events"
            )
        if not ways_of:
            break
        if count_max is not None and found + sum(ways_of.values()) > count_max:
            return count_max + 1
    found += sum(ways_of.values())
    return found if count_max is None else min(found, count_max + 1)


def interior(trace: Trace, cut: Cut) -> Cut:
    """Return the largest consistent cut that has no event outside `cut`.

    Raises:
        UsageError: `cut` is no cut of this trace.
    """
    trace.check_cut(cut)
    counts = list(cut)
    looked_at = list(trace.end)
    frontier = [index for index, count in enumerate(counts) if count < looked_at[index]]
    while frontier:
        index = frontier.pop()
        outside = trace.lines[trace.processes[index]][counts[index] : looked_at[index]]
        looked_at[index] = counts[index]
        for event in outside:
            for message in event.sent:
                accepted = trace.accepted_in(message)
                if accepted is None:
                    continue
                target = trace.index_of[accepted.process]
                if accepted.index <= counts[target]:
                    counts[target] = accepted.index - 1
                    frontier.append(target)
    return tuple(counts)


def explain(trace: Trace, cut: Cut) -> str:
    """Return in a sentence why a cut is not consistent: a message that it shows as accepted but not
    as sent, and the nearest consistent cuts on either side. Or that it is consistent.

    Raises:
        UsageError: `cut` is no cut of this trace.
    """
    trace.check_cut(cut)
    orphan = next(trace.orphans(cut), None)
    if orphan is None:
        return f"the cut {_shown(trace, cut)} is consistent"
    accepted, sent = trace.accepted_in(orphan), trace.sent_in(orphan)
    assert accepted is not None, "an orphan is accepted somewhere"
    inside, outside = (
        f"{position} ({label})" if (label := trace.event(position).label) else f"{position}"
        for position in (accepted, sent)
    )
    return (
        f"the cut {_shown(trace, cut)} is not consistent: message {orphan} is accepted inside, in "
        f"event {inside}, but sent outside, in event {outside}; the smallest consistent cut with "
        f"all of its events is {_shown(trace, trace.closure(cut))}, the largest inside it is "
        f"{_shown(trace, interior(trace, cut))}"
    )


def _empty(trace: Trace) -> Cut:
    return (0,) * len(trace.processes)


def _shown(trace: Trace, cut: Cut) -> str:
    return ", ".join(f"{p}={count}" for p, count in zip(trace.processes, cut, strict=True))


def _independent(trace: Trace) -> Iterator[Trace]:
    """Yield the groups of processes that accept no message of each other, each as a trace, without
    messages that were never accepted: those do not matter to consistency."""
    group_of: dict[ProcessId, set[ProcessId]] = {name: {name} for name in trace.processes}
    events: dict[ProcessId, list[Event]] = defaultdict(list)
    for position, event in trace.positions():
        group = group_of[position.process]
        for message in event.accepted:
            other = group_of[message.channel.source]
            if other is not group:
                small, group = sorted((group, other), key=len)
                group |= small
                group_of.update(dict.fromkeys(small, group))
    for position, event in trace.positions():
        sent = tuple(message for message in event.sent if trace.accepted_in(message) is not None)
        first = next(iter(group_of[position.process]))
        events[first].append(msgspec.structs.replace(event, sent=sent))
    for first, those in events.items():
        yield Trace(sorted(group_of[first], key=trace.index_of.__getitem__), those)


def _check_size(trace: Trace) -> None:
    bounds = trace.event_count * len(trace.processes)
    if bounds > BOUNDS_MAX:
        raise UsageError(
            f"{trace.event_count:,} events of {len(trace.processes):,} processes have {bounds:,} "
            f"bounds, and at most {BOUNDS_MAX:,} are kept: ask about fewer processes, or about "
            "fewer events"
        )


def _lowest(trace: Trace) -> list[list[Cut]]:
    """Return for each process and count of it the smallest consistent cut with that count."""
    _check_size(trace)
    clocks = trace.clocks()
    return [[_empty(trace), *clocks[process]] for process in trace.processes]


def _highest(trace: Trace) -> list[list[Cut]]:
    """Return for each process and count of it the largest consistent cut with that count."""
    _check_size(trace)
    end = trace.end
    highest = [[end] * (length + 1) for length in end]
    for position, event in reversed(list(trace.positions())):
        own = trace.index_of[position.process]
        bound = highest[own][position.index]
        for message in event.sent:
            accepted = trace.accepted_in(message)
            if accepted is not None:
                target = trace.index_of[accepted.process]
                bound = tuple(map(min, bound, highest[target][accepted.index - 1]))
        highest[own][position.index - 1] = (*bound[:own], position.index - 1, *bound[own + 1 :])
    return highest


def _balanced_order(trace: Trace, highest: list[list[Cut]]) -> list[tuple[int, int]]:
    """Return every event, as the index of its process and its count there, in a possible order:
    each in the middle between the earliest and the latest place that it could have in one. So few
    messages are in transit at a time, whatever the order of the trace is.
    """
    clocks = trace.clocks()
    places = [
        (sum(clock) + sum(highest[index][count - 1]), index, count)
        for index, process in enumerate(trace.processes)
        for count, clock in enumerate(clocks[process], start=1)
    ]
    return [(index, count) for _, index, count in sorted(places)]
