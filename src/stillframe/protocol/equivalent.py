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

import msgspec

from stillframe.errors import NotConsistent
from stillframe.model import GlobalState, Snapshot
from stillframe.protocol.replay import Replay, compare
from stillframe.topology import Topology
from stillframe.trace import Cut, Event, MessageId, Position, Trace, named

INTERCHANGE_COUNT_MAX = 1_000_000
"""More interchanges than these are not made one by one in a proof: it takes under a second."""

_Coloured = tuple[Position, Event, bool]
"""An event at its position, and whether it is white."""


class Interchange(msgspec.Struct, frozen=True, gc=False):
    """Two neighbours were interchanged: `white`, an action before its process's cut, now precedes
    `red`, one after its process's cut. `inversion_count` inversions remain."""

    red: Position
    white: Position
    inversion_count: int


class Equivalent(msgspec.Struct, frozen=True):
    """The computation with every white action before every red one.

    `white` and `red` are the events in their new order; the state between them is the snapshot's.
    `inversion_count` is how many pairs of a red and a later white event the trace has.
    `interchange_count` is the total number of places that white events moved, in interchanges of
    neighbours. It is counted in another way than the inversions, and is equal.
    """

    white: tuple[Position, ...]
    red: tuple[Position, ...]
    inversion_count: int
    interchange_count: int

    @property
    def positions(self) -> tuple[Position, ...]:
        """All events in their new order."""
        return self.white + self.red


def interchanges(trace: Trace, cut: Cut) -> Iterator[Interchange]:
    """Return the interchanges of neighbours that bring all white events before all red ones. Each
    white event, from the first on, moves to the front past the red ones before it. There may be
    quadratically many interchanges, so they are found lazily. For the outcome alone, ``equivalent``
    takes linear time; it raises the same."""
    _check_colours(trace, cut)
    return _interchange(trace, _coloured(trace, cut))


def _interchange(trace: Trace, events: list[_Coloured]) -> Iterator[Interchange]:
    inversion_count = _count_inversions(events)
    reds: list[Position] = []
    for position, event, is_white in events:
        if not is_white:
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
    accepts a red message; UsageError if `cut` is not one of this trace."""
    _check_colours(trace, cut)
    events = _coloured(trace, cut)
    reordered = sorted(events, key=lambda each: not each[2])
    Trace(trace.processes, (event for _, event, _ in reordered), trace.channels)
    inversion_count = _count_inversions(events)
    white_at = [index for index, (_, _, is_white) in enumerate(events) if is_white]
    interchange_count = sum(before - after for after, before in enumerate(white_at))
    assert interchange_count == inversion_count, (interchange_count, inversion_count)
    positions = tuple(position for position, _, _ in reordered)
    white, red = positions[: len(white_at)], positions[len(white_at) :]
    return Equivalent(white, red, inversion_count, interchange_count)


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
        "with the white events first, the trace ends differently; a process is not a function of "
        "the messages that it accepts",
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


def _count_inversions(events: list[_Coloured]) -> int:
    """Return how many white events come after each red one, added up."""
    inversion_count = white_behind_count = 0
    for _, _, is_white in reversed(events):
        if is_white:
            white_behind_count += 1
        else:
            inversion_count += white_behind_count
    return inversion_count


def _coloured(trace: Trace, cut: Cut) -> list[_Coloured]:
    return [
        (position, event, position.index <= cut[trace.index_of[position.process]])
        for position, event in trace.positions()
    ]


def _check_colours(trace: Trace, cut: Cut) -> None:
    trace.check_cut(cut)
    for message in trace.orphans(cut):
        sender, accepter = trace.sent_in(message), trace.accepted_in(message)
        assert accepter is not None, message
        raise NotConsistent(
            f"message {message} is red: {sender.process} sent it in "
            f"{named(sender, trace.event(sender))}, after its cut; and {accepter.process} "
            f"accepted it in {named(accepter, trace.event(accepter))}, a white action, before its "
            "own: the cut is not consistent"
        )


def _check_commute(trace: Trace, red: Position, white: Position, action: Event) -> None:
    """Check that a red event and the white one right after it can be interchanged. A channel has
    one process at each end, so two processes never touch the same end. Only if one adds the message
    to a channel that the other takes from it, the order matters."""
    assert red.process != white.process, (red, white)
    for message in action.accepted:
        if trace.sent_in(message) == red:
            raise NotConsistent(
                f"{named(red, trace.event(red))} and {named(white, action)} cannot be "
                f"interchanged: the second accepts message {message}, which the first sends"
            )
