"""The recovery line: the newest consistent cut through the versions that participants retain.

Participants of a dataflow that record their states without barriers each retain some versions, for
example one after each micro-batch. A cut chooses one version of each. It is consistent if no
participant has consumed a record that its source had not yet written: for each channel, the target
has consumed only from versions up to the chosen one of the source. Randell (1975) calls such a cut
a recovery line.

*There is one newest line.* Of two consistent cuts, take the later version of each participant. That
cut is consistent too: a target consumes no more than in one of the two cuts, and its source is at
least as late as there. So the consistent cuts have a maximum, the maximum recoverable system state
of Johnson, Keleher & Zwaenepoel (1990).

*The search* starts at the newest versions and only rules out versions that are in no consistent
cut. If a target has consumed something newer than its source's choice, the target's versions are
ruled out, down to the newest that has not. Then the targets of this target are checked again. When
nothing changes, the line is found. If no version of a participant is left, there is no consistent
cut, and only older versions can help. A cycle in which each version needs a little less of the
other participant leads there step by step: the domino effect.

*The cost* is that of reading from a log which versions a target has consumed from. The search does
that at most once per channel and version of the target. On a dataflow without cycles it handles
each channel once, upstream first. Most lines are close to the newest versions, so the search steps
back by 1, 2, 4, ... versions, and ends with a bisection of the last step. If the line is d versions
back, it makes at most 2 + 2 * floor(log2(d)) calls, or one if d is 0. One more checks the line, or
estimates how many versions are missing.
"""

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from stillframe.errors import NotConsistent, UsageError


class Edge(msgspec.Struct, frozen=True):
    """A channel as one of its targets reads it. Several edges may join the same participants."""

    channel: str
    source: str
    target: str


Consumed = Callable[[Edge, int], int]
"""Returns the newest version of `edge.source` from which a version of `edge.target` has consumed a
record, or a number below all versions if it has consumed none. It never falls while the target's
version rises."""


class Line(msgspec.Struct, frozen=True):
    """The newest consistent cut.

    Attributes:
        versions: the version of each participant.
        needed_counts: how many of its newest versions each participant must retain for this line
            to be found; 1 if it is at its newest. A value close to the number that it does retain
            is an early warning.
    """

    versions: dict[str, int]
    needed_counts: dict[str, int]


class NoLine(msgspec.Struct, frozen=True):
    """The reason why there is no consistent cut: a participant retains too few versions.

    Attributes:
        participant: the participant that has no retained version left: each was ruled out.
        edge: the channel that ruled out the oldest of them.
        wanted: the newest version of `edge.source` from which this oldest version has consumed.
        chosen: the newest version of `edge.source` that can be in a consistent cut.
        oldest: the oldest version that the participant retains.
        retained_count: how many versions it retains.
        needed_count: an estimate of how many it has to retain, for the participant to reach back
            to `chosen`. It assumes that the participant consumed as fast before its oldest version
            as after it, and is None if nothing is known about that. Other participants may need
            more versions too.
        limited_by: the participant whose newest version leads to `chosen`, over any number of
            channels: `edge.source` itself, or one upstream of it.
    """

    participant: str
    edge: Edge
    wanted: int
    chosen: int
    oldest: int
    retained_count: int
    needed_count: int | None
    limited_by: str

    def __str__(self) -> str:
        source = self.edge.source
        return (
            f"there is no consistent cut: the oldest version that {self.participant} retains, "
            f"{self.oldest}, has read from version {self.wanted} of {source} on channel "
            f"{self.edge.channel}, but the newest version of {source} that can be in a cut is "
            f"{self.chosen}, limited by the newest version of {self.limited_by}"
        )


def newest_line(
    retained: Mapping[str, Sequence[int]], edges: Iterable[Edge], consumed: Consumed
) -> Line | NoLine:
    """Return the newest consistent cut.

    Args:
        retained: the versions of each participant, in rising order, at least one. A participant
            that can be started from nothing retains a version for that, such as -1.
        edges: each channel once for each of its targets. Cycles are allowed.
        consumed: what a target has consumed from a channel. It may be expensive: it is called only
            for versions that the search looks at, and at most once for each edge and version.

    Raises:
        UsageError: `retained` or `edges` cannot be right.
        NotConsistent: `consumed` falls while a version rises; or the line that was found is not
            consistent, which is a bug.
    """
    kept = {participant: tuple(versions) for participant, versions in retained.items()}
    edges = tuple(edges)
    _check_arguments(kept, edges)
    consumed = _Memo(consumed)
    outgoing: dict[str, list[Edge]] = {participant: [] for participant in kept}
    for edge in edges:
        outgoing[edge.source].append(edge)
    order = _upstream_first(outgoing)
    places = {participant: len(versions) - 1 for participant, versions in kept.items()}
    limits = {participant: participant for participant in kept}
    pending = set(kept)
    while pending:
        source = next(participant for participant in order if participant in pending)
        pending.remove(source)
        for edge in outgoing[source]:
            target = edge.target
            chosen = kept[source][places[source]]
            place = _newest_place(edge, kept[target], places[target], chosen, consumed)
            if place is None:
                return _no_line(edge, kept[target], chosen, limits[source], consumed)
            if place < places[target]:
                places[target] = place
                limits[target] = limits[source]
                pending.add(target)
    line = Line(
        versions={name: kept[name][place] for name, place in places.items()},
        needed_counts={name: len(kept[name]) - place for name, place in places.items()},
    )
    check_line(line.versions, edges, consumed)
    return line


def check_line(versions: Mapping[str, int], edges: Iterable[Edge], consumed: Consumed) -> None:
    """Raise NotConsistent unless a cut is consistent: `versions` are those of each participant."""
    for edge in edges:
        chosen, target = versions[edge.source], versions[edge.target]
        wanted = consumed(edge, target)
        if wanted > chosen:
            raise NotConsistent(
                f"the cut is not consistent: version {target} of {edge.target} has read from "
                f"version {wanted} of {edge.source} on channel {edge.channel}, but {edge.source} "
                f"is at version {chosen}",
                process=edge.target,
            )


def _newest_place(
    edge: Edge, versions: Sequence[int], place: int, chosen: int, consumed: Consumed
) -> int | None:
    """Return the place of the newest of `versions`, up to `place`, that has consumed nothing newer
    than `chosen`; None if all have."""
    if consumed(edge, versions[place]) <= chosen:
        return place
    first_out, step = place, 1
    while first_out > 0:
        start = max(0, first_out - step)
        if consumed(edge, versions[start]) <= chosen:
            within = start + 1, first_out
            return bisect.bisect_right(versions, chosen, *within, key=partial(consumed, edge)) - 1
        first_out, step = start, step * 2
    return None


def _no_line(
    edge: Edge, versions: Sequence[int], chosen: int, limited_by: str, consumed: Consumed
) -> NoLine:
    """Return why there is no line, with an estimate of the versions that are missing. The newest
    version is looked at for it, if it was not before."""
    wanted = consumed(edge, versions[0])
    advanced = consumed(edge, versions[-1]) - wanted
    needed_count = None
    if advanced:
        missing = math.ceil((wanted - chosen) * (len(versions) - 1) / advanced)
        needed_count = len(versions) + missing
    return NoLine(
        participant=edge.target,
        edge=edge,
        wanted=wanted,
        chosen=chosen,
        oldest=versions[0],
        retained_count=len(versions),
        needed_count=needed_count,
        limited_by=limited_by,
    )


def _upstream_first(outgoing: Mapping[str, Sequence[Edge]]) -> list[str]:
    """Return the participants in an order in which each comes before its targets, as far as cycles
    allow: the reverse of the order in which a depth-first search leaves them."""
    left: dict[str, None] = {}
    entered = set()
    for root in outgoing:
        stack = [root]
        while stack:
            participant = stack[-1]
            if participant in entered:
                left.setdefault(stack.pop())
            else:
                entered.add(participant)
                targets = [edge.target for edge in outgoing[participant]]
                stack += [target for target in targets if target not in entered]
    return list(reversed(left))


def _check_arguments(kept: Mapping[str, Sequence[int]], edges: Sequence[Edge]) -> None:
    """Raise a UsageError if a line for these arguments could be wrong."""
    if not kept:
        raise UsageError("a recovery line needs at least one participant")
    for participant, versions in kept.items():
        if not versions:
            raise UsageError(f"{participant} retains no version: give at least one")
        for older, newer in itertools.pairwise(versions):
            if older >= newer:
                raise UsageError(
                    f"the versions of {participant} do not rise: {newer} comes after {older}"
                )
    for edge in edges:
        for participant in (edge.source, edge.target):
            if participant not in kept:
                raise UsageError(
                    f"channel {edge.channel} joins {edge.source} and {edge.target}, but no "
                    f"versions of {participant} are given"
                )


class _Memo:
    """Answers of `consumed`. It is called once for each edge and version, and each answer is
    checked against the others of its edge."""

    def __init__(self, consumed: Consumed) -> None:
        self._consumed = consumed
        self._seen: dict[Edge, list[tuple[int, int]]] = {}
        self._answers: dict[tuple[Edge, int], int] = {}

    def __call__(self, edge: Edge, version: int) -> int:
        if (edge, version) not in self._answers:
            answer = self._consumed(edge, version)
            self._check_rising(edge, version, answer)
            self._answers[edge, version] = answer
        return self._answers[edge, version]

    def _check_rising(self, edge: Edge, version: int, answer: int) -> None:
        seen = self._seen.setdefault(edge, [])
        place = bisect.bisect(seen, (version, answer))
        seen.insert(place, (version, answer))
        for (older, first), (newer, second) in itertools.pairwise(seen[max(place - 1, 0) :][:3]):
            if first > second:
                raise NotConsistent(
                    f"on channel {edge.channel}, {edge.target} has read from version {first} of "
                    f"{edge.source} at its version {older}, but only from {second} at {newer}",
                    process=edge.target,
                    remedy=f"check that only {edge.source} writes to the channel, and that no "
                    "records were removed from it or written twice",
                )
