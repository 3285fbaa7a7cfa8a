"""The interchanges of EWD 864a for a page: which neighbours change places, one by one."""

from itertools import islice
from typing import Any

from stillframe.errors import NotConsistent, UsageError
from stillframe.protocol.equivalent import equivalent, interchanges
from stillframe.trace import Position, Trace, clean_label
from stillframe.view import legend
from stillframe.view.recording import Choice

EVENT_COUNT_MAX = 200
"""The events of a longer trace are not shown in a row."""
INTERCHANGE_COUNT_MAX = 500
"""So many interchanges are shown; a page says how many there would be."""


def document(trace: Trace, choice: Choice) -> dict[str, Any]:
    """Return the row of events, and the interchanges that bring the white ones before the red.

    ``swaps`` has for each interchange the place, from 0, of the red event that changes places with
    the white one behind it. ``problem`` is a sentence, if there are none to show; ``broken`` has
    the places of the two events that make them impossible.
    """
    if trace.event_count > EVENT_COUNT_MAX:
        events = legend.count(trace.event_count, "event")
        return _without(
            f"Not shown: there are {events}, and a row of up to {EVENT_COUNT_MAX} can be read."
        )
    try:
        cut = trace.cut_of(choice.snapshot) if choice.snapshot is not None else choice.cut
    except UsageError as error:
        return _without(clean_label(f"Not possible: {error}."))
    assert cut is not None, choice
    order = [position for position, _ in trace.positions()]
    whites = dict(zip(trace.processes, cut, strict=True))
    found = {
        "events": [
            [
                trace.index_of[position.process],
                clean_label(trace.event(position).label or str(position)),
                position.index <= whites[position.process],
            ]
            for position in order
        ]
    }
    try:
        total = equivalent(trace, cut).inversion_count
    except NotConsistent as error:
        orphan = next(trace.orphans(cut))
        accepter = trace.accepted_in(orphan)
        assert accepter is not None, orphan
        broken = [order.index(trace.sent_in(orphan)), order.index(accepter)]
        return found | _without(clean_label(f"Not possible: {error}.")) | {"broken": broken}
    places = {position: place for place, position in enumerate(order)}
    swaps = [
        _swap(places, change.red, change.white)
        for change in islice(interchanges(trace, cut), INTERCHANGE_COUNT_MAX)
    ]
    return found | {"swaps": swaps, "total": total, "problem": "", "broken": []}


def _without(problem: str) -> dict[str, Any]:
    return {"swaps": [], "total": 0, "problem": problem, "broken": []}


def _swap(places: dict[Position, int], red: Position, white: Position) -> int:
    """Let two neighbours change places; return where the first of them was."""
    place = places[red]
    assert places[white] == place + 1, (red, white)
    places[red], places[white] = place + 1, place
    return place
