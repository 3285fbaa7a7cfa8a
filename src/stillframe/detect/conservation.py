"""Loss: there is more or less of a conserved quantity than there should be.

Processes and messages report their amounts (``conserved``). A consistent snapshot counts each
amount once: in a process, or on a channel.
"""

import math
from collections.abc import Mapping

import msgspec

from stillframe.detect.view import View, conserved

ROUNDING = 1e-9
"""Sums of floating-point numbers are equal if they differ by less than this fraction of the sum of
all absolute amounts. Whole numbers are compared exactly."""

Number = int | float
Places = dict[str, dict[str, Number]]
"""Quantity -> name of the process or channel -> amount."""


class Discrepancy(msgspec.Struct, frozen=True):
    """A quantity of which there is too much or too little; `places` has the amount that was found
    in each process and channel."""

    quantity: str
    expected: Number
    found: Number
    places: dict[str, Number]

    def __str__(self) -> str:
        missing = self.expected - self.found
        word = "lost" if missing > 0 else "too much"
        places = ", ".join(f"{place} {amount}" for place, amount in self.places.items())
        return f"{abs(missing)} {self.quantity} {word}: {places or 'nowhere'}"


def places_of(view: View) -> Places:
    """Return where each conserved quantity is. Raises an ApplicationError if a process or message
    does not report its amounts."""
    found: Places = {}
    owners = [(name, f"process {name}", process) for name, process in view.processes.items()]
    owners += [
        (str(channel), f"a {type(message).__name__} on channel {channel}", message)
        for channel, message in view.in_transit()
    ]
    for place, where, owner in owners:
        for quantity, amount in conserved(owner, where, view.snapshot).items():
            if amount:
                places = found.setdefault(quantity, {})
                places[place] = places.get(place, 0) + amount
    return found


def find_loss(view: View, expected: Mapping[str, Mapping[str, Number]]) -> tuple[Discrepancy, ...]:
    """Return every quantity whose amount is not the `expected` one, which ``places_of`` returned
    for a snapshot without loss; by name. Raises as ``places_of``."""
    places = places_of(view)
    found = []
    for quantity in sorted({*expected, *places}):
        before, now = expected.get(quantity, {}), places.get(quantity, {})
        if not _is_equal(before, now):
            found.append(Discrepancy(quantity, total(before), total(now), dict(now)))
    return tuple(found)


def total(places: Mapping[str, Number]) -> Number:
    """Return the sum of amounts: exact for whole numbers, rounded once for others."""
    amounts = list(places.values())
    if all(isinstance(amount, int) for amount in amounts):
        return sum(amounts)
    return math.fsum(amounts)


def _is_equal(before: Mapping[str, Number], now: Mapping[str, Number]) -> bool:
    first, second = total(before), total(now)
    if isinstance(first, int) and isinstance(second, int):
        return first == second
    gross = math.fsum(abs(amount) for amount in (*before.values(), *now.values()))
    return abs(first - second) <= ROUNDING * gross
