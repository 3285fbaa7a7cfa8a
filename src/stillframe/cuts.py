"""The consistent cuts of a trace: enumerate them, count them, and ask where a predicate holds.

The consistent cuts form a lattice (Mattern 1989): of two, the larger count of each process gives
one, and the smaller count, too. So those in which a process has a given count have a smallest and a
largest among them, and tables of these bounds are all that enumeration and counting need.

There can be as many as the product of the lengths of all lines: 10 processes of 100 events that
exchange no message have 10^20. So a function that visits single cuts is an iterator, or takes a
maximum.

The events could have happened in many orders, called observations; each goes through consistent
cuts from the empty one to the last, with one more event each (Cooper & Marzullo, *Consistent
Detection of Global Predicates*, 1991). A predicate possibly held if it holds at a cut of some
observation, and definitely if it holds at a cut of every one.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate

import msgspec

from stillframe.errors import UsageError, check_assertions
from stillframe.model import Channel, ProcessId
from stillframe.trace import Cut, Event, MessageId, Trace

__all__ = [
    "CutView",
    "Predicate",
    "consistent_cuts",
    "count_consistent_cuts",
    "cuts_where",
    "definitely",
    "explain",
    "interior",
    "observation_without",
    "possibly",
]

check_assertions()

BOUNDS_MAX = 20_000_000
"""Maximum number of bounds in a table, which has one of each process for each event."""
STEP_MAX = 10_000_000
"""Maximum number of steps of counting: visits of a choice of limits, by one event each. A visit of
the limits of more than a dozen processes counts for more, in proportion to their number."""
STEPS_PER_CHOICE = 25
"""For each step that a visit of all choices in memory takes, counting may take this many."""
_PROGRESS_STEP = 64
_PROCESSES_PER_STEP = 12
_DIGITS_MAX = 40
_STOPPED = -1


def consistent_cuts(trace: Trace) -> Iterator[Cut]:
    """Yield every consistent cut once, in the order of their counts, the first process's first:
    from the empty cut to ``trace.end``.

    There may be far too many to wait for: stop when you have enough. Memory is taken
    for events x processes, whatever their number. The order is that of Garg, *Enumerating Global
    States of a Distributed Computation*, 2003; here no choice of counts turns out to be impossible
    later, because each next count is taken between the bounds that those before it leave.

    Raises:
        UsageError: with the first cut, if there are too many events and processes for a table.
    """
    if not trace.processes:
        yield ()
        return
    highest, clocks = _highest(trace), trace.clocks()
    # For each process and count of it the smallest consistent cut with that count.
    lowest = [[_empty(trace), *clocks[process]] for process in trace.processes]
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


def count_consistent_cuts(
    trace: Trace, *, count_max: int | None = None, step_max: int = STEP_MAX
) -> int:
    """Return how many consistent cuts there are, without enumerating them.

    Groups of processes that exchange no message are counted separately, and the numbers multiplied.

    Otherwise the events are swept in a possible order. A cut stops each process somewhere; what
    matters of the processes that have stopped is only how far they let the others go. So cuts that
    leave the others the same limits are counted together, and for the last process that continues,
    its whole interval at once. Events that neither send nor accept are counted with the one before
    them. Time and memory grow with the number of different limits. That depends on how many
    messages are in transit at a time, not on how long the lines are; but each additional process
    can double it: above a dozen with few messages, give a maximum.

    Args:
        trace: the execution.
        count_max: stop above this number.
        step_max: stop with an error after this number of steps. A million take one to three
            seconds, and bound memory to some 20 MB. With more than a dozen processes, a visit
            counts as more steps, in proportion to their number.

    Returns:
        The number of consistent cuts; ``count_max + 1`` if there are more than `count_max`.

    Raises:
        UsageError: the number cannot be found with a bounded table or within `step_max` steps.
    """
    count, is_exact = count_at_least(trace, count_max=count_max, step_max=step_max)
    if count_max is not None and count > count_max:
        return count_max + 1
    if not is_exact:
        raise UsageError(
            f"{len(trace.processes)} processes with {trace.event_count:,} events have at least "
            f"{shown_count(count)} consistent cuts, and {step_max:,} steps do not count them all: "
            "raise step_max (--steps), or use fewer processes or events"
        )
    return count


def shown_count(count: int) -> str:
    """Return a count as text: of large ones, four digits and the power of ten."""
    if count < 10**_DIGITS_MAX:
        return f"{count:,}"
    power = math.log10(count)
    return f"{math.floor(10 ** (power % 1) * 1000) / 1000:.3f}e+{math.floor(power)}"


def count_at_least(
    trace: Trace,
    *,
    count_max: int | None = None,
    step_max: int = STEP_MAX,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> tuple[int, bool]:
    """Return the number of consistent cuts, and True; or how many there are at least, and False, if
    those are more than `count_max` or counting took `step_max` steps. `progress` is called with the
    number of events that were swept, and of all."""
    groups = sorted(_independent(trace), key=lambda group: len(group[0].processes))
    total = sum(group.event_count for group, _ in groups)
    count, step_count, swept_count = 1, 0, 0
    for group, weights in groups:
        most = None if count_max is None else count_max // count
        found = 1
        scale = max(_PROCESSES_PER_STEP, len(weights))
        for found, choice_count in _sweep(group, weights):
            new_step_count = choice_count * scale // _PROCESSES_PER_STEP
            step_count += new_step_count
            swept_count += 1
            if not swept_count % _PROGRESS_STEP:
                progress(min(swept_count, total), total)
            if (
                (most is not None and found > most)
                or step_count > step_max
                or new_step_count * STEPS_PER_CHOICE > step_max
            ):
                return count * found, False
        count *= found
    return count, True


def _sweep(trace: Trace, weights: list[list[int]]) -> Iterator[tuple[int, int]]:
    """Yield after each event how many consistent cuts were found, and how many choices of limits
    may lead to more; after the last one, the number of all. A count of a process stands for as many
    counts as its weight."""
    sums = [[0, *accumulate(line)] for line in weights]
    if len(weights) == 1:
        yield sums[0][-1], 0
        return
    found = 0
    swept = [0] * len(weights)
    highest = _highest(trace)
    # For each set of processes that continue, as bits: their limits, and in how many ways.
    tables: dict[int, dict[Cut, int]] = {(1 << len(weights)) - 1: {trace.end: 1}}
    for index, count in _balanced_order(trace, highest):
        bound = list(highest[index][count - 1])
        bound[index] = _STOPPED
        weight = weights[index][count - 1]
        for going, table in list(tables.items()):
            rest = going & ~(1 << index)
            if rest == going:
                continue
            if rest & (rest - 1):
                stopped = tables.setdefault(rest, {})
                for limits, ways in table.items():
                    lower = tuple(map(min, limits, bound))
                    stopped[lower] = stopped.get(lower, 0) + ways * weight
            else:
                last = rest.bit_length() - 1
                until, most = sums[last], bound[last]
                for limits, ways in table.items():
                    counted = until[min(limits[last], most) + 1] - until[swept[last]]
                    found += ways * weight * counted
            for limits in [limits for limits in table if limits[index] < count]:
                del table[limits]
            if not table:
                del tables[going]
        swept[index] = count
        at_least = found + sum(sum(table.values()) for table in tables.values())
        yield at_least, sum(map(len, tables.values()))
    for going, table in tables.items():
        ends = (line[-1] for index, line in enumerate(weights) if going >> index & 1)
        found += sum(table.values()) * math.prod(ends)
    yield found, 0


def interior(trace: Trace, cut: Cut) -> Cut:
    """Return the largest consistent cut that has no event outside `cut`; UsageError if that is no
    cut of this trace."""
    trace.check_cut(cut)
    counts = list(cut)
    # Whoever accepts is met after the sender, so one way is enough.
    for position, event in trace.positions():
        if position.index > counts[trace.index_of[position.process]]:
            for accepted in filter(None, map(trace.accepted_in, event.sent)):
                target = trace.index_of[accepted.process]
                counts[target] = min(counts[target], accepted.index - 1)
    return tuple(counts)


def explain(trace: Trace, cut: Cut) -> str:
    """Return in a sentence why a cut is not consistent: a message that it shows as accepted but not
    as sent, and the nearest consistent cuts on either side. Or that it is consistent. UsageError if
    it is no cut of this trace."""
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


def _independent(trace: Trace) -> Iterator[tuple[Trace, list[list[int]]]]:
    """Yield the groups of processes that accept no message of each other, each as a trace.

    It has what matters to consistency: no messages that were never accepted, and no events that
    accept and send none. With it, for each process and count, how many counts that stands for: its
    own, and those of the events that were left out after it.
    """
    group_of: dict[ProcessId, set[ProcessId]] = {name: {name} for name in trace.processes}
    for position, event in trace.positions():
        group = group_of[position.process]
        for message in event.accepted:
            other = group_of[message.channel.source]
            if other is not group:
                small, group = sorted((group, other), key=len)
                group |= small
                group_of.update(dict.fromkeys(small, group))
    events: dict[ProcessId, list[Event]] = {_first(group): [] for group in group_of.values()}
    weights = {name: [1] for name in trace.processes}
    for position, event in trace.positions():
        sent = tuple(message for message in event.sent if trace.accepted_in(message) is not None)
        if sent or event.accepted:
            weights[position.process].append(1)
            first = _first(group_of[position.process])
            events[first].append(msgspec.structs.replace(event, sent=sent))
        else:
            weights[position.process][-1] += 1
    for first, those in events.items():
        names = sorted(group_of[first], key=trace.index_of.__getitem__)
        yield Trace(names, those), [weights[name] for name in names]


def _first(group: set[ProcessId]) -> ProcessId:
    return next(iter(group))


def _highest(trace: Trace) -> list[list[Cut]]:
    """Return for each process and count of it the largest consistent cut with that count."""
    bounds = trace.event_count * len(trace.processes)
    if bounds > BOUNDS_MAX:
        raise UsageError(
            f"{trace.event_count:,} events of {len(trace.processes):,} processes have {bounds:,} "
            f"bounds, and at most {BOUNDS_MAX:,} are kept: use fewer processes or events"
        )
    end = trace.end
    highest = [[end] * (length + 1) for length in end]
    for position, event in reversed(list(trace.positions())):
        own = trace.index_of[position.process]
        bound = highest[own][position.index]
        for accepted in filter(None, map(trace.accepted_in, event.sent)):
            target = trace.index_of[accepted.process]
            bound = tuple(map(min, bound, highest[target][accepted.index - 1]))
        highest[own][position.index - 1] = (*bound[:own], position.index - 1, *bound[own + 1 :])
    return highest


def _balanced_order(trace: Trace, highest: list[list[Cut]]) -> list[tuple[int, int]]:
    """Return every event, as the index of its process and its count there, in a possible order.
    Each is in the middle between its earliest and its latest possible place. So few messages are in
    transit at a time, whatever the order of the trace is."""
    clocks = trace.clocks()
    places = [
        (sum(clock) + sum(highest[index][count - 1]), index, count)
        for index, process in enumerate(trace.processes)
        for count, clock in enumerate(clocks[process], start=1)
    ]
    return [(index, count) for _, index, count in sorted(places)]


# --- predicates


class _Traffic:
    """The messages of one channel in the order of sending, each with its place in it; `met_at` and
    `lost_at` have the counts of the source at which they are sent.

    Those that never are accepted are kept separately, so that one `lost` message does not make
    every cut visit all later ones. The others have the count of the target at which they are
    accepted, and are settled when they and all before them are: later cuts do not visit them.
    Without order on the channel the latest of them decides.
    """

    __slots__ = ("lost", "lost_at", "met", "met_at", "settled_at")

    def __init__(self) -> None:
        self.met: list[tuple[int, MessageId, int]] = []
        self.met_at: list[int] = []
        self.settled_at: list[int] = []
        self.lost: list[tuple[int, MessageId]] = []
        self.lost_at: list[int] = []

    def add(self, message: MessageId, sent_at: int, accepted_at: int | None) -> None:
        """Add the next message."""
        place = len(self.met) + len(self.lost)
        if accepted_at is None:
            self.lost.append((place, message))
            self.lost_at.append(sent_at)
        else:
            self.met.append((place, message, accepted_at))
            self.met_at.append(sent_at)
            self.settled_at.append(max([accepted_at, *self.settled_at[-1:]]))

    def crossing(self, source_count: int, target_count: int) -> list[MessageId]:
        """Return what was sent in the first events of the source and not accepted in the first ones
        of the target, in the order of sending."""
        begin = bisect_right(self.settled_at, target_count)
        met = self.met[begin : bisect_right(self.met_at, source_count)]
        lost = self.lost[: bisect_right(self.lost_at, source_count)]
        late = [(place, message) for place, message, at in met if at > target_count]
        return [message for _, message in (sorted(late + lost) if lost else late)]


class CutView:
    """The argument of a predicate: one cut of a trace, with its events and messages in transit.

    The first view of a trace visits every message; `at` makes the others cheaply.

    Args:
        trace: the execution.
        cut: how many events of each process lie before the cut.

    Raises:
        UsageError: `cut` is not a cut of this trace.
    """

    __slots__ = ("_traffic", "cut", "trace")

    def __init__(self, trace: Trace, cut: Cut) -> None:
        trace.check_cut(cut)
        self.trace = trace
        self.cut = cut
        self._traffic = {channel: _Traffic() for channel in trace.channels}
        for position, event in trace.positions():
            for message in event.sent:
                accepted = trace.accepted_in(message)
                accepted_at = None if accepted is None else accepted.index
                self._traffic[message.channel].add(message, position.index, accepted_at)

    def at(self, cut: Cut) -> "CutView":
        """Return the view of another cut of the same trace."""
        view = object.__new__(CutView)
        view.trace, view.cut, view._traffic = self.trace, cut, self._traffic
        return view

    def count(self, process: ProcessId) -> int:
        """Return how many events of a process lie before the cut; UsageError if there is no such
        process."""
        index = self.trace.index_of.get(process)
        if index is None:
            raise UsageError(
                f"there is no process {process!r} in this trace: its processes are "
                f"{', '.join(self.trace.processes)}"
            )
        return self.cut[index]

    def last(self, process: ProcessId) -> Event | None:
        """Return the last event of a process before the cut; None if it has none there. UsageError
        if there is no such process."""
        count = self.count(process)
        return self.trace.lines[process][count - 1] if count else None

    def events(self, process: ProcessId) -> tuple[Event, ...]:
        """Return the events of a process before the cut; UsageError if there is no such process."""
        count = self.count(process)
        return self.trace.lines[process][:count]

    def in_transit(self, channel: Channel | None = None) -> tuple[MessageId, ...]:
        """Return what was sent before the cut and not accepted before it: of one channel in the
        order of sending, or of all, channel by channel. If the messages of the trace are implied
        by clocks, there may have been more. UsageError if there is no such channel."""
        if channel is not None and channel not in self._traffic:
            raise UsageError(
                f"there is no channel {channel} in this trace: its channels are "
                f"{', '.join(map(str, self.trace.channels))}"
            )
        index_of = self.trace.index_of
        found: list[MessageId] = []
        for each in self._traffic if channel is None else (channel,):
            if each.source in index_of and each.target in index_of:
                sent_until = self.cut[index_of[each.source]]
                accepted_until = self.cut[index_of[each.target]]
                found += self._traffic[each].crossing(sent_until, accepted_until)
        return tuple(found)


Predicate = Callable[[CutView], bool]
"""A condition on one cut. It is evaluated once for each cut that is visited, in no fixed order."""


def cuts_where(trace: Trace, predicate: Predicate) -> Iterator[Cut]:
    """Yield the consistent cuts in which `predicate` holds, in the order of ``consistent_cuts``.

    Every consistent cut is visited, and there may be far too many: stop when you have enough.
    """
    view = _initial_view(trace)
    return (cut for cut in consistent_cuts(trace) if predicate(view.at(cut)))


def possibly(trace: Trace, predicate: Predicate, *, count_max: int | None = None) -> Cut | None:
    """Return a consistent cut in which `predicate` holds (Cooper & Marzullo 1991).

    Cuts with the same number of events are in memory at the same time.

    Args:
        trace: the execution.
        predicate: the condition.
        count_max: how many cuts to visit at most; None visits all.

    Returns:
        One with the fewest events; None if the condition holds in none.

    Raises:
        UsageError: there is no answer after `count_max` cuts.
    """
    view, successors = _initial_view(trace), _successors(trace)
    level = {view.cut: None}
    visited_count = 0
    while level:
        for cut in level:
            visited_count += 1
            _check_count(visited_count, count_max)
            if predicate(view.at(cut)):
                return cut
        level = dict.fromkeys(after for cut in level for after in successors(cut))
    return None


def definitely(trace: Trace, predicate: Predicate, *, count_max: int | None = None) -> bool:
    """Return whether every observation, that is every order in which the events could have
    happened, goes through a cut in which `predicate` holds (Cooper & Marzullo 1991). If not,
    ``observation_without`` gives one that does not; arguments and errors are the same."""
    return observation_without(trace, predicate, count_max=count_max) is None


def observation_without(
    trace: Trace, predicate: Predicate, *, count_max: int | None = None
) -> list[Cut] | None:
    """Return an observation that passes no cut in which `predicate` holds.

    All visited cuts are kept in memory.

    Args:
        trace: the execution.
        predicate: the condition.
        count_max: how many cuts to visit at most; None visits all.

    Returns:
        Its cuts, from the empty one to ``trace.end`` with one more event each; None if every
        observation passes a cut in which the condition holds.

    Raises:
        UsageError: there is no answer after `count_max` cuts.
    """
    view, successors = _initial_view(trace), _successors(trace)
    seen: set[Cut] = set()

    def may_pass(cut: Cut) -> bool:
        if cut in seen:
            return False
        seen.add(cut)
        _check_count(len(seen), count_max)
        return not predicate(view.at(cut))

    path = [view.cut] if may_pass(view.cut) else []
    choices = [successors(cut) for cut in path]
    while path and path[-1] != trace.end:
        onward = next(filter(may_pass, choices[-1]), None)
        if onward is None:
            path.pop()
            choices.pop()
        else:
            path.append(onward)
            choices.append(successors(onward))
    return path or None


def _initial_view(trace: Trace) -> CutView:
    return CutView(trace, _empty(trace))


def _check_count(visited_count: int, count_max: int | None) -> None:
    if count_max is not None and visited_count > count_max:
        raise UsageError(
            f"there is no answer after {count_max} consistent cuts: raise count_max, or use a "
            "shorter trace"
        )


def _successors(trace: Trace) -> Callable[[Cut], Iterator[Cut]]:
    """Return a function that yields the consistent cuts with one event more than a given one."""
    needs: list[list[list[tuple[int, int]]]] = []
    for process in trace.processes:
        senders = [[trace.sent_in(m) for m in event.accepted] for event in trace.lines[process]]
        needs.append([[(trace.index_of[p.process], p.index) for p in each] for each in senders])

    def successors(cut: Cut) -> Iterator[Cut]:
        for index, count in enumerate(cut):
            if count < len(needs[index]) and all(
                cut[source] >= least for source, least in needs[index][count]
            ):
                yield (*cut[:index], count + 1, *cut[index + 1 :])

    return successors
