"""The equivalent computation: every white action before every red one (Dijkstra, EWD 864a, 1983).

An action is *white* if its process had not recorded its state yet, and *red* afterwards; a message
has the colour of the action that sends it. Where no white action accepts a red message, a red
action and the white one right behind it can be interchanged: they are of different processes, and
the white one needs nothing of what the red one sent. That takes one *inversion* away (a pair of a
red action and a white one somewhere behind it); when none is left, all white actions precede all
red ones. It is still a computation of the same system, from the same beginning to the same end, and
the state between the colours is the one that the snapshot recorded: a state that could have been.

Where a white action does accept a red message, the cut is not consistent: that message says why.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

import msgspec

from stillframe.errors import NotConsistent
from stillframe.model import GlobalState, Snapshot
from stillframe.protocol.replay import Replay, compare
from stillframe.topology import Topology
from stillframe.trace import Cut, Event, MessageId, Position, Trace

INTERCHANGE_COUNT_MAX = 1_000_000
"""More interchanges than these are not made one by one in a proof: it takes under a second."""


class Interchange(msgspec.Struct, frozen=True, gc=False):
    """Two neighbours were interchanged: `white`, an action before its process's cut, now precedes
    `red`, one after its process's cut. `inversion_count` inversions remain."""

    red: Position
    white: Position
    inversion_count: int


class Equivalent(msgspec.Struct, frozen=True):
    """The computation with every white action before every red one.

    `positions` are the events in their new order; the state after the first `white_count` is the
    snapshot's. `inversion_count` is how many pairs of a red and a later white event the trace has.
    `interchange_count` is the total number of places that white events moved, in interchanges of
    neighbours. It is counted in another way than the inversions, and is equal.
    """

    positions: tuple[Position, ...]
    white_count: int
    inversion_count: int
    interchange_count: int

    @property
    def white(self) -> tuple[Position, ...]:
        """The white events, which come first."""
        return self.positions[: self.white_count]

    @property
    def red(self) -> tuple[Position, ...]:
        """The red events, which come last."""
        return self.positions[self.white_count :]


def interchanges(trace: Trace, cut: Cut) -> Iterator[Interchange]:
    """Return the interchanges of neighbours that bring all white events before all red ones.

    Each white event, from the first on, moves to the front past the red ones before it. There may
    be quadratically many interchanges, so they are found lazily. For the outcome alone,
    ``equivalent`` takes linear time; it raises the same.
    """
    _check_colours(trace, cut)
    return _interchange(trace, cut)


def _interchange(trace: Trace, cut: Cut) -> Iterator[Interchange]:
    order = list(trace.positions())
    inversion_count = _count_inversions([_is_white(trace, cut, position) for position, _ in order])
    reds: list[Position] = []
    for position, event in order:
        if not _is_white(trace, cut, position):
            reds.append(position)
            continue
        # What is before this event now: all earlier white ones, then all earlier red ones.
        for red in reversed(reds):
            _check_commute(trace, red, position, event)
            inversion_count -= 1
            yield Interchange(red, position, inversion_count)


def equivalent(trace: Trace, cut: Cut) -> Equivalent:
    """Return the computation with the white events first, in the order of the trace, then the red.

    It takes linear time: every event moves to its place at once, and only the result is checked to
    be an execution in which nothing is accepted before it was sent. NotConsistent if a white action
    accepts a red message; UsageError if `cut` is not one of this trace.
    """
    _check_colours(trace, cut)
    order = list(trace.positions())
    colours = [_is_white(trace, cut, position) for position, _ in order]
    white_at = [index for index, is_white in enumerate(colours) if is_white]
    red_at = [index for index, is_white in enumerate(colours) if not is_white]
    reordered = [order[index] for index in chain(white_at, red_at)]
    Trace(trace.processes, (event for _, event in reordered), trace.channels)
    inversion_count = _count_inversions(colours)
    interchange_count = sum(before - after for after, before in enumerate(white_at))
    assert interchange_count == inversion_count, (interchange_count, inversion_count)
    return Equivalent(
        positions=tuple(position for position, _ in reordered),
        white_count=len(white_at),
        inversion_count=inversion_count,
        interchange_count=interchange_count,
    )


def prove(
    trace: Trace,
    snapshot: Snapshot,
    topology: Topology,
    start: GlobalState | None = None,
    *,
    contents: Mapping[MessageId, bytes] | None = None,
) -> Equivalent:
    """Prove on a trace that the system could have been in the state that `snapshot` recorded.

    Up to `INTERCHANGE_COUNT_MAX` interchanges, each is made and checked to be of actions that
    commute; beyond that, only the result. The real processes perform the trace twice, in its own
    order and with the white events first. Both times the messages and the end must be the same, and
    the state between the white events and the red ones must be the recorded one.

    `trace` is of the epoch of the snapshot, with its recording steps; `start` and `contents` are as
    for ``Replay``. With `contents`, a process that sends something else in the replay is named at
    once; without them, possibly one that it influenced. NotConsistent if there is no proof: it
    names the message, event, process or channel. ApplicationError if a handler raised in the
    replay; UsageError if trace, snapshot, topology and start do not belong together.
    """
    cut = trace.cut_of(snapshot.id)
    result = equivalent(trace, cut)
    if result.inversion_count <= INTERCHANGE_COUNT_MAX:
        made_count = sum(1 for _ in interchanges(trace, cut))
        assert made_count == result.inversion_count, (made_count, result)
    original = Replay(topology, start, contents=contents, trace=trace)
    for _, event in trace.positions():
        original.perform(event)
    # First that the processes are functions of what they accept: if one is not, the state between
    # the colours says nothing about the snapshot.
    replay = Replay(topology, start, contents=original.contents, trace=trace)
    for position in result.white:
        replay.perform(trace.event(position))
    between = replay.state()
    for position in result.red:
        replay.perform(trace.event(position))
    _compare(
        "performed with the white events first, the trace does not end as it did in its own order; "
        "a process is no function of what it accepts",
        original.state(),
        replay.state(),
    )
    _compare(
        f"snapshot {snapshot.id} is not the state between its white and its red events",
        snapshot.state,
        between,
    )
    return result


def _compare(failure: str, recorded: GlobalState, replayed: GlobalState) -> None:
    try:
        compare(recorded, replayed)
    except NotConsistent as error:
        raise NotConsistent(f"{failure}: {error}") from error


def _is_white(trace: Trace, cut: Cut, position: Position) -> bool:
    return position.index <= cut[trace.index_of[position.process]]


def _count_inversions(colours: list[bool]) -> int:
    """Return how many white events (True) come after each red one, added up."""
    inversion_count = white_behind_count = 0
    for is_white in reversed(colours):
        if is_white:
            white_behind_count += 1
        else:
            inversion_count += white_behind_count
    return inversion_count


def _check_colours(trace: Trace, cut: Cut) -> None:
    trace.check_cut(cut)
    for message in trace.orphans(cut):
        sender, accepter = trace.sent_in(message), trace.accepted_in(message)
        assert accepter is not None, message
        raise NotConsistent(
            f"message {message} is red: {sender.process} sent it in "
            f"{_named(sender, trace.event(sender))}, after its cut; and {accepter.process} "
            f"accepted it in {_named(accepter, trace.event(accepter))}, a white action, before its "
            "own: the cut is not consistent"
        )


def _named(position: Position, event: Event) -> str:
    return f"event {position}{f' ({event.label})' if event.label else ''}"


def _check_commute(trace: Trace, red: Position, white: Position, action: Event) -> None:
    """Check that a red event and the white one right after it can be interchanged.

    A channel has one process at each end, so two processes never touch the same end. Only if one
    adds the message to a channel that the other takes from it, the order matters.
    """
    assert red.process != white.process, (red, white)
    for message in action.accepted:
        if trace.sent_in(message) == red:
            raise NotConsistent(
                f"{_named(red, trace.event(red))} and {_named(white, action)} cannot be "
                f"interchanged: the second accepts message {message}, which the first sends"
            )
