"""The diagram of an observation: instances by service, and each open call where it is at the cut.

It shows the order of causes and effects and not times, because every instance has its own clock.
Left of the cut are the requests that were accepted: the calls that are being served. What is in
transit crosses the cut: a request ends at the address that was called, since no instance has
accepted it, and an answer at its caller. A call to a target that shows nothing ends at its address
left of the cut. Every activity has a dot on the line of its instance, so a deadlock is a ring of
arrows: calls go to the right, and a wait for a lock goes to the activity that holds it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from stillframe.detect.call_waits import CallDeadlock
from stillframe.diagram import text_metrics
from stillframe.diagram.layout import (
    CROWDED_ABOVE,
    WIDTH_MIN,
    Row,
    place_legend,
    place_notices,
)
from stillframe.diagram.scene import CUT_OVERHANG, DOT_RADIUS, PADDING, TEXT_ROW, Rows
from stillframe.diagram.shapes import (
    Curve,
    Diagram,
    Dot,
    Extent,
    Label,
    LockArrow,
    MessageArrow,
    Path,
    Point,
    Role,
    Sample,
    midpoint,
)
from stillframe.diagram.text_metrics import count
from stillframe.diagram.window import PROCESS_COUNT_MAX
from stillframe.model import Channel
from stillframe.protocol.activities import service_of
from stillframe.protocol.calls import CallPlace, Located, Observation
from stillframe.store.observation_tables import served_by, state_of
from stillframe.trace import MessageId, Position

CALL_COUNT_MAX, CROWDED_COUNT_MAX, LABELLED_COUNT_MAX = 120, 60, 24
"""Calls drawn; if there are many lines; and how many are drawn at most if each has its name."""
LOCK_COUNT_MAX = 60
_NAME_CHARS_MAX = 28
_LAYER, _NEAR, _ARCH = 44.0, 26.0, 34.0
_SLOT_MIN, _SLOT_MAX, _SIDE = 9.0, 24.0, 600.0
_TEXT_WIDTH_MAX = 1100.0
_SHORT = 14.0
"""How far from a line what was not accepted ends: on the line it would look accepted."""
_SAMPLES = {
    CallPlace.SERVED: (Sample.MESSAGE, "call that is being served: its request was accepted"),
    CallPlace.REQUESTED: (Sample.CAUGHT, "in transit: a request to an address, or an answer"),
    CallPlace.ANSWERED: (Sample.CAUGHT, "in transit: a request to an address, or an answer"),
    CallPlace.UNKNOWN: (Sample.UNKNOWN, "unknown: an instance may have accepted it and died"),
    CallPlace.OUTSIDE: (Sample.UNSEEN, "outside: the target has no agent, or has not shown one"),
}
_ROLES = {
    CallPlace.SERVED: Role.PLAIN,
    CallPlace.REQUESTED: Role.CAUGHT,
    CallPlace.ANSWERED: Role.CAUGHT,
    CallPlace.OUTSIDE: Role.UNSEEN,
    CallPlace.UNKNOWN: Role.UNSEEN,
}
_Spot = tuple[str, str]
"""A line, and an activity or a call that ends there."""


class CallDiagram(msgspec.Struct, frozen=True):
    """The diagram of an observation, and a sentence on what is not drawn."""

    diagram: Diagram
    left_out: str


class _Drawn(NamedTuple):
    """A call that is drawn: where its arrow begins and ends, and whether it is part of a ring."""

    located: Located
    begin: _Spot
    end: _Spot
    is_blocked: bool

    @property
    def place(self) -> CallPlace:
        """Where the call is."""
        return self.located.place

    @property
    def is_crossing(self) -> bool:
        """Whether its arrow crosses the cut."""
        return self.place in (CallPlace.REQUESTED, CallPlace.ANSWERED)

    @property
    def name(self) -> str:
        """Its name as the diagram shows it."""
        return text_metrics.clean(
            self.located.record.details.name or str(self.located.call),
            char_count_max=_NAME_CHARS_MAX,
        )


def call_words(located: Located) -> str:
    """Return where an open call is, as a sentence without a full stop."""
    record, caller, by = located.record, located.call.caller, served_by(located)
    where = {
        CallPlace.REQUESTED: f"its request from {caller} to {record.target} is in transit",
        CallPlace.SERVED: f"{by} serves it, and {caller} waits for the answer",
        CallPlace.ANSWERED: f"the answer of {by} to {caller} is in transit",
        CallPlace.UNKNOWN: "it is unknown whether an instance has accepted it, which died or has "
        f"dropped its record; {caller} waits for {record.target}",
        CallPlace.OUTSIDE: f"{caller} waits for {record.target}, which has "
        + ("answered without a header" if record.was_answered else "never answered with a header"),
    }[located.place]
    name = f"{record.details.name} ({located.call})" if record.details.name else str(located.call)
    return f"{name}: {where}"


def ring_of(deadlock: CallDeadlock | None) -> frozenset[str]:
    """Return the activities that are part of a ring."""
    return frozenset(name for ring in deadlock.rings for name in ring) if deadlock else frozenset()


def is_blocked(located: Located, ring: frozenset[str]) -> bool:
    """Return whether the wait for a call is part of a ring."""
    return (
        located.place is CallPlace.SERVED
        and any(served.details.activity in ring for _, served in located.served)
        and located.record.details.activity in ring
    )


def draw_calls(
    observation: Observation, deadlock: CallDeadlock | None, notices: Sequence[str] = ()
) -> CallDiagram:
    """Return the diagram of an observation.

    Args:
        observation: the observation.
        deadlock: the deadlock in it, if there is one.
        notices: sentences to be shown above it.
    """
    plan = _Plan(observation, deadlock)
    texts = [*notices, *([plan.left_out] if plan.left_out else [])]
    return CallDiagram(plan.draw(texts), plan.left_out)


class _Plan:
    """The choice of what is drawn, and its places."""

    def __init__(self, observation: Observation, deadlock: CallDeadlock | None) -> None:
        self._observation = observation
        self._deadlock = deadlock
        self._ring = ring_of(deadlock)
        self._open = [one for one in observation.calls if one.record.is_awaited]
        self._lines, self._calls = self._choose()
        self._has_names = len(self._calls) <= LABELLED_COUNT_MAX
        self.left_out = self._left_out()

    def _choose(self) -> tuple[list[str], list[_Drawn]]:
        """Return the lines and the calls: rings first, then some of each kind."""
        fragments = self._observation.fragments
        waits = self._deadlock.waits if self._deadlock else {}
        inside = sorted({waits[name].instance for name in self._ring} & fragments.keys())
        lines = set(inside[:PROCESS_COUNT_MAX])
        seen: Counter[tuple[str, str, CallPlace]] = Counter()
        ranked = []
        for located in self._open:
            kind = service_of(located.call.caller), located.record.target, located.place
            seen[kind] += 1
            drawn = self._drawn(located)
            ranked.append((not drawn.is_blocked, seen[kind], located.call, drawn))
        calls: list[_Drawn] = []
        for _, _, _, drawn in sorted(ranked, key=lambda each: each[:3]):
            more = {drawn.begin[0], drawn.end[0]} - lines
            count_max = CROWDED_COUNT_MAX if len(lines | more) > CROWDED_ABOVE else CALL_COUNT_MAX
            if len(lines) + len(more) <= PROCESS_COUNT_MAX and len(calls) < count_max:
                lines |= more
                calls.append(drawn)
        for name in sorted(fragments.keys() - lines)[: PROCESS_COUNT_MAX - len(lines)]:
            lines.add(name)
        instances = sorted(lines & fragments.keys(), key=lambda name: (service_of(name), name))
        return [*instances, *sorted(lines - fragments.keys())], calls

    def _drawn(self, located: Located) -> _Drawn:
        call, record = located.call, located.record
        caller = call.caller, record.details.activity or f"call {call}"
        if located.place is CallPlace.ANSWERED:
            server = located.served[0][0]
            begin, end = (server, f"answer {call}"), (call.caller, str(call))
            return _Drawn(located, begin, end, is_blocked=False)
        end = f"at {record.target}", str(call)
        if located.place is CallPlace.SERVED:
            name, served = next(one for one in located.served if not one[1].number)
            end = name, served.details.activity or str(call)
        blocked = is_blocked(located, self._ring)
        return _Drawn(located, caller, end, is_blocked=blocked)

    def _left_out(self) -> str:
        instances = self._observation.fragments.keys()
        sentences = []
        if len(self._calls) < len(self._open):
            sentences.append(
                f"{len(self._calls):,} of {count(len(self._open), 'open call')} are drawn"
            )
        if shown := len(instances - set(self._lines)):
            drawn = f"{len(instances) - shown:,} of {count(len(instances), 'instance')}"
            sentences.append(f"{drawn} have a line")
        return "; ".join(sentences)

    # --- places

    def _room(self) -> dict[_Spot, float]:
        """Return the spots left of the cut and the width that each needs, callers first."""
        slot = self._slot()
        found: dict[_Spot, float] = {}
        for drawn in self._calls:
            found.setdefault(drawn.begin, slot)
        for drawn in self._calls:
            if not drawn.is_crossing:
                found[drawn.end] = self._width(drawn)
        waits = self._deadlock.waits if self._deadlock else {}
        for name in sorted(self._ring):
            if waits[name].instance in self._lines:
                found.setdefault((waits[name].instance, name), slot)
        return found

    def _slot(self) -> float:
        ends = Counter(spot[0] for drawn in self._calls for spot in (drawn.begin, drawn.end))
        return min(_SLOT_MAX, max(_SLOT_MIN, _SIDE / max(ends.values(), default=1)))

    def _width(self, drawn: _Drawn) -> float:
        return text_metrics.width(drawn.name) + 12 if self._has_names else self._slot()

    def _columns(self, x_from: float) -> dict[_Spot, float]:
        """Return the x of each spot: what is called is to the right of its caller."""
        parents = {d.end: d.begin for d in self._calls if not d.is_crossing}
        room = self._room()

        def depth(spot: _Spot) -> int:
            seen = {spot}
            while (spot := parents.get(spot, spot)) not in seen:
                seen.add(spot)
            return len(seen)

        free = dict.fromkeys(self._lines, x_from + DOT_RADIUS)
        xs: dict[_Spot, float] = {}
        for spot in sorted(room, key=depth):
            after_caller = xs.get(parents.get(spot, spot), x_from) + _LAYER
            xs[spot] = max(after_caller, free[spot[0]] + room[spot] / 2)
            free[spot[0]] = xs[spot] + room[spot] / 2
        return xs

    def draw(self, texts: Sequence[str]) -> Diagram:
        """Return the diagram, with these texts above it."""
        rows = Rows(self._lines, top=PADDING + TEXT_ROW * len(texts))
        services = list(self._services(rows))
        widths = [PADDING + text_metrics.width(label.text) for label in services]
        rows.x_from = max((*widths, rows.x_from))
        xs = self._columns(rows.x_from)
        x_cut = max((*xs.values(), rows.x_from + WIDTH_MIN / 3)) + 2 * _NEAR
        messages, x_to = self._messages(rows, xs, x_cut)
        wished = max(map(text_metrics.width, texts), default=0.0) + PADDING
        x_to = max(x_to, x_cut + 3 * _NEAR, WIDTH_MIN - PADDING, min(wished, _TEXT_WIDTH_MAX))
        width = x_to + PADDING
        number = self._observation.number
        what = (
            f"the cut of observation {number} through "
            f"{count(len(self._observation.fragments), 'instance')}, with "
            f"{count(len(self._open), 'open call')}"
        )
        locks = list(self._locks(rows.ys, xs))
        legend = list(self._legend(what, locks))
        curves: tuple[Curve, ...] = ()
        if rows.ys:
            begin = min(rows.ys.values()) - CUT_OVERHANG
            points = tuple((x_cut, y) for y in (begin, *rows.ys.values(), rows.bottom))
            name = f"observation {number}"
            label = Label(x_cut + 6, begin - 3, name)  # above the names of calls
            curves = (Curve(name, 0, points, label, is_faint=False, full=what),)
        return Diagram(
            width=width,
            height=rows.bottom + TEXT_ROW * (len(legend) + 1) + PADDING,
            title=f"Observation {number}: the open calls of {count(len(rows.ys), 'line')}",
            description=". ".join([what, *texts, *map(call_words, self._ringed())]) + ".",
            notices=(*place_notices(texts, width), *services),
            is_crowded=len(rows.ys) > CROWDED_ABOVE,
            lines=tuple(rows.line(name, x_to) for name in rows.ys),
            curves=curves,
            messages=tuple(messages),
            locks=tuple(locks),
            dots=tuple(self._dots(rows.ys, xs)),
            legend=place_legend(legend, rows.bottom, width),
        )

    def _ringed(self) -> Iterator[Located]:
        return (drawn.located for drawn in self._calls if drawn.is_blocked)

    def _services(self, rows: Rows) -> Iterator[Label]:
        """Yield the name of each service above its first line."""
        fragments = self._observation.fragments
        totals = Counter(map(service_of, fragments))
        for service, group in groupby(
            rows.ys, key=lambda name: service_of(name) if name in fragments else None
        ):
            text = "addresses"
            if service is not None:
                name = text_metrics.clean(service, char_count_max=_NAME_CHARS_MAX)
                text = f"{name}: {count(totals[service], 'instance')}"
            yield Label(PADDING, rows.ys[next(group)] - 16, text)

    def _messages(
        self, rows: Rows, xs: Mapping[_Spot, float], x_cut: float
    ) -> tuple[list[MessageArrow], float]:
        """Return the arrows, and the x at which the last one ends."""
        free = dict.fromkeys(rows.ys, x_cut + _NEAR)
        arrows = []
        for drawn in sorted(self._calls, key=lambda one: one.located.call):
            begin = xs[drawn.begin], rows.ys[drawn.begin[0]]
            line = drawn.end[0]
            extent = Extent.WHOLE
            if drawn.is_crossing:
                width = self._width(drawn)
                end = free[line] + width / 2, rows.ys[line]
                free[line] += width
            else:
                end = xs[drawn.end], rows.ys[line]
            if drawn.place in (CallPlace.REQUESTED, CallPlace.UNKNOWN):
                extent = Extent.LEAVING
                end = end[0], end[1] - _SHORT if begin[1] < end[1] else end[1] + _SHORT
            label = None
            if self._has_names:  # on the side from which the arrow does not come
                y = rows.ys[line] + (21 if begin[1] < end[1] else -13)
                label = Label(end[0], y, drawn.name, "middle")
            role = Role.BLOCKED if drawn.is_blocked else _ROLES[drawn.place]
            path, full = _path(begin, end), call_words(drawn.located)
            arrows.append(MessageArrow(_message_id(drawn), path, extent, role, full, label))
        return arrows, max(free.values(), default=x_cut)

    def _locks(self, ys: Mapping[str, float], xs: Mapping[_Spot, float]) -> Iterator[LockArrow]:
        """Yield waits of activities that are drawn for locks of others, those of rings first."""
        found = []
        for name in ys.keys() & self._observation.fragments.keys():
            for lock in state_of(self._observation.fragments[name]).locks:
                for waiting in lock.waiting:
                    for holder in lock.holders:
                        is_ringed = waiting in self._ring and holder in self._ring
                        if (name, waiting) in xs and (name, holder) in xs:
                            found.append((not is_ringed, name, lock.name, waiting, holder))
        for is_free, name, lock_name, waiting, holder in sorted(found)[:LOCK_COUNT_MAX]:
            y, begin, end = ys[name], xs[name, waiting], xs[name, holder]
            path = Path((begin, y), ((begin + end) / 2, y + _ARCH), (end, y))
            text = text_metrics.clean(f"lock {lock_name}", char_count_max=_NAME_CHARS_MAX)
            label = Label((begin + end) / 2, y + _ARCH + 4, text, "middle")
            full = f"{waiting} waits for the lock {lock_name!r}, which {holder} holds"
            yield LockArrow(lock_name, name, path, label, not is_free, full)

    def _dots(self, ys: Mapping[str, float], xs: Mapping[_Spot, float]) -> Iterator[Dot]:
        """Yield the activities."""
        unseen = {d.end for d in self._calls if d.place in (CallPlace.OUTSIDE, CallPlace.UNKNOWN)}
        numbers: Counter[str] = Counter()
        for spot, x in xs.items():
            line, name = spot
            if spot not in unseen:
                numbers[line] += 1
                position = Position(line, numbers[line])
                full = name if name.startswith(("call ", "answer ")) else f"activity {name}"
                yield Dot(position, x, ys[line], None, is_recorded=name in self._ring, full=full)

    def _legend(self, what: str, locks: Sequence[LockArrow]) -> Iterator[Row]:
        yield Row(Sample.CUT, 0, what)
        places = [drawn.place for drawn in self._calls if not drawn.is_blocked]
        for sample, text in dict.fromkeys(
            _SAMPLES[place] for place in CallPlace if place in places
        ):
            yield Row(sample, 0, text)
        if locks:
            yield Row(Sample.LOCK, 0, "wait for a lock, to the activity that holds it")
        if self._ring:
            yield Row(Sample.BLOCKED, 0, "wait in a deadlock")
            yield Row(Sample.RECORDED, 0, "activity in a deadlock")


def _path(begin: Point, end: Point) -> Path:
    middle = midpoint(begin, end)
    if begin[1] == end[1]:
        middle = middle[0], begin[1] - _ARCH
    return Path(begin, middle, end)


def _message_id(drawn: _Drawn) -> MessageId:
    """Return the name of the message in the diagram: of a request, or of an answer."""
    located = drawn.located
    number = located.call.number
    if located.place is CallPlace.ANSWERED:
        number = located.served[0][1].number
    return MessageId(Channel(drawn.begin[0], drawn.end[0]), number)
