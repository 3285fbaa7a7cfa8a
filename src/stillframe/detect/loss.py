"""Loss: of a conserved quantity there is more or less than there should be.

Processes and messages say what they have (``conserved``). A consistent snapshot counts each thing
once: in a process, or on a channel.
"""

import math
from collections.abc import Mapping

import msgspec

from stillframe.detect.view import View

ROUNDING = 1e-9
"""Relative difference up to which two sums of floating-point numbers are taken for equal."""


class Difference(msgspec.Struct, frozen=True):
    """One quantity of which there is too much or too little.

    `places` says how much of it is where: at processes and on channels, by name.
    """

    quantity: str
    expected: int | float
    found: int | float
    places: dict[str, int | float]

    def __str__(self) -> str:
        missing = self.expected - self.found
        word = "lost" if missing > 0 else "too much"
        places = ", ".join(f"{place} {amount}" for place, amount in self.places.items())
        return f"{abs(missing)} {self.quantity} {word}: {places or 'nowhere'}"


def places_of(view: View) -> dict[str, dict[str, int | float]]:
    """Return how much of each conserved quantity is where: quantity -> place -> amount."""
    found: dict[str, dict[str, int | float]] = {}
    owners = [
        *((name, process) for name, process in view.processes.items()),
        *((str(channel), message) for channel, message in view.in_transit()),
    ]
    for place, owner in owners:
        asked = getattr(owner, "conserved", None)
        amounts: Mapping[str, int | float] = {} if asked is None else asked()
        for quantity, amount in amounts.items():
            if amount:
                places = found.setdefault(quantity, {})
                places[place] = places.get(place, 0) + amount
    return found


def totals_of(view: View) -> dict[str, int | float]:
    """Return how much there is of each conserved quantity."""
    return {quantity: _sum(places) for quantity, places in places_of(view).items()}


def find_loss(view: View, expected: Mapping[str, int | float]) -> tuple[Difference, ...]:
    """Return every quantity of which there is another amount than expected, by name."""
    places = places_of(view)
    return tuple(
        Difference(quantity, wanted, total, places.get(quantity, {}))
        for quantity in sorted({*expected, *places})
        if not _is_equal(
            wanted := expected.get(quantity, 0), total := _sum(places.get(quantity, {}))
        )
    )


def _is_equal(first: float, second: float) -> bool:
    if isinstance(first, int) and isinstance(second, int):
        return first == second
    return math.isclose(first, second, rel_tol=ROUNDING)


def _sum(places: Mapping[str, int | float]) -> int | float:
    amounts = list(places.values())
    if all(isinstance(amount, int) for amount in amounts):
        return sum(amounts)
    return math.fsum(amounts)
