"""Predicates on cuts: where one holds, and whether it possibly or definitely held.

The events could have happened in many orders, called observations; each goes through consistent
cuts from the empty one to the last, with one more event each (Cooper & Marzullo, *Consistent
Detection of Global Predicates*, 1991).
"""

from collections.abc import Callable, Iterator
from itertools import accumulate

from stillframe.cuts.lattice import consistent_cuts
from stillframe.errors import UsageError
from stillframe.model import Channel, ProcessId
from stillframe.trace import Cut, Event, MessageId, Trace


class _Traffic:
    """The messages of one channel, indexed so that those that cross a cut are found quickly.

    Each is kept with its place in the order of sending, and with the count of the target at which
    it is accepted. Those that never are accepted are kept separately, so that one lost message does
    not make every cut visit all later ones.
    """

    __slots__ = ("lost", "lost_counts", "met", "met_counts", "settled_counts")

    def __init__(self, sent: list[tuple[MessageId, int, int | None]], lengths: Cut) -> None:
        source_length, target_length = lengths
        self.met: list[tuple[int, MessageId, int]] = []
        self.lost: list[tuple[int, MessageId]] = []
        met_at, lost_at, accepted_at = [], [], []
        for place, (message, sent_count, accepted_count) in enumerate(sent):
            if accepted_count is None:
                self.lost.append((place, message))
                lost_at.append(sent_count)
            else:
                self.met.append((place, message, accepted_count))
                met_at.append(sent_count)
                accepted_at.append(accepted_count)
        self.met_counts = _counts_up_to(met_at, source_length)
        self.lost_counts = _counts_up_to(lost_at, source_length)
        # A message is settled when it and all before it are accepted: later cuts do not visit it.
        # Without order on the channel the latest of them decides.
        self.settled_counts = _counts_up_to(list(accumulate(accepted_at, max)), target_length)

    def crossing(self, source_count: int, target_count: int) -> list[MessageId]:
        """Return what was sent in the first events of the source and not accepted in the first ones
        of the target, in the order of sending."""
        met = self.met[self.settled_counts[target_count] : self.met_counts[source_count]]
        lost = self.lost[: self.lost_counts[source_count]]
        late = [(place, message) for place, message, at in met if at > target_count]
        return [message for _, message in (sorted(late + lost) if lost else late)]


class CutView:
    """The argument of a predicate: one cut of a trace, with its events and messages in transit.

    The first view of a trace visits every message; `at` makes the others cheaply.

    Args:
        trace: what happened.
        cut: one of its cuts.

    Raises:
        UsageError: `cut` is no cut of this trace.
    """

    __slots__ = ("_traffic", "cut", "trace")

    def __init__(self, trace: Trace, cut: Cut) -> None:
        trace.check_cut(cut)
        self.trace = trace
        self.cut = cut
        sent: dict[Channel, list[tuple[MessageId, int, int | None]]] = {
            channel: [] for channel in trace.channels
        }
        for position, event in trace.positions():
            for message in event.sent:
                accepted = trace.accepted_in(message)
                accepted_count = None if accepted is None else accepted.index
                sent[message.channel].append((message, position.index, accepted_count))
        self._traffic = {
            channel: _Traffic(messages, self._lengths(channel))
            for channel, messages in sent.items()
        }

    def _lengths(self, channel: Channel) -> Cut:
        lines = self.trace.lines
        return len(lines.get(channel.source, ())), len(lines.get(channel.target, ()))

    def at(self, cut: Cut) -> "CutView":
        """Return the view of another cut of the same trace."""
        view = object.__new__(CutView)
        view.trace, view.cut, view._traffic = self.trace, cut, self._traffic
        return view

    def count(self, process: ProcessId) -> int:
        """Return how many events of a process lie before the cut.

        Raises:
            UsageError: there is no such process.
        """
        index = self.trace.index_of.get(process)
        if index is None:
            raise UsageError(
                f"there is no process {process!r} in this trace: its processes are "
                f"{', '.join(self.trace.processes)}"
            )
        return self.cut[index]

    def last(self, process: ProcessId) -> Event | None:
        """Return the last event of a process before the cut; None if it has none there.

        Raises:
            UsageError: there is no such process.
        """
        count = self.count(process)
        return self.trace.lines[process][count - 1] if count else None

    def events(self, process: ProcessId) -> tuple[Event, ...]:
        """Return the events of a process before the cut.

        Raises:
            UsageError: there is no such process.
        """
        count = self.count(process)
        return self.trace.lines[process][:count]

    def in_transit(self, channel: Channel | None = None) -> tuple[MessageId, ...]:
        """Return what was sent before the cut and not accepted before it: of one channel in the
        order of sending, or of all, channel by channel.

        Raises:
            UsageError: there is no such channel.
        """
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

    It visits every consistent cut, of which there may be far too many: stop when you have enough.
    """
    view = _initial_view(trace)
    return (cut for cut in consistent_cuts(trace) if predicate(view.at(cut)))


def possibly(trace: Trace, predicate: Predicate, *, count_max: int | None = None) -> Cut | None:
    """Return a consistent cut in which `predicate` holds, one with the fewest events; None if it
    holds in none (Cooper & Marzullo 1991).

    Args:
        trace: what happened.
        predicate: the condition.
        count_max: how many cuts may be visited; None: all. Those with the same number of events
            are in memory at the same time.

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
    happened, goes through a cut in which `predicate` holds (Cooper & Marzullo 1991).

    If not, ``observation_without`` gives one that does not; arguments and errors are the same.
    """
    return observation_without(trace, predicate, count_max=count_max) is None


def observation_without(
    trace: Trace, predicate: Predicate, *, count_max: int | None = None
) -> list[Cut] | None:
    """Return the cuts of an observation, from the empty cut to ``trace.end`` with one more event
    each, such that `predicate` holds in none of them; None if there is no such observation.

    Args:
        trace: what happened.
        predicate: what is to be avoided.
        count_max: how many cuts may be visited; None: all. They are all kept in memory.

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
    return CutView(trace, (0,) * len(trace.processes))


def _check_count(visited_count: int, count_max: int | None) -> None:
    if count_max is not None and visited_count > count_max:
        raise UsageError(
            f"there is no answer after looking at {count_max} consistent cuts: raise count_max, or "
            "ask about a shorter trace"
        )


def _counts_up_to(places: list[int], length: int) -> list[int]:
    """Return for each count 0 .. `length` how many of `places` are not above it."""
    counts = [0] * (length + 1)
    for place in places:
        counts[place] += 1
    return list(accumulate(counts))


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
