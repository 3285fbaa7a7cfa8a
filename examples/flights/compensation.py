"""The service `compensation`, which pays the passengers of very late flights and keeps the books.

It follows European law (EC 261/2004): the amount per passenger depends on the distance.
"""

import argparse
from pathlib import Path
from typing import Any

import pyarrow as pa

from examples.flights.flows import PAYMENTS, Books
from examples.flights.tables import read_seats
from examples.processes import READY
from stillframe import Pipeline

EUROS_BY_MILES = ((932, 250), (2175, 400))
EUROS_BEYOND = 600
SEATS_IF_UNKNOWN = 100


def euros_for(flight: dict[str, Any], seats: dict[str, int]) -> int:
    """Return the total for all passengers of a flight, if every seat is taken."""
    each = next((e for miles, e in EUROS_BY_MILES if flight["distance"] <= miles), EUROS_BEYOND)
    return each * seats.get(flight["tailnum"], SEATS_IF_UNKNOWN)


def run(pipeline: Path) -> None:
    """Pay for every flight among the alerts, until the program is stopped."""
    seats = read_seats()
    books = Books()
    with Pipeline(pipeline).join_service("compensation", state=books) as me:
        print(READY, flush=True)
        for _, late in me:
            payments = []
            for flight in late.to_pylist():
                carrier, amount = flight["carrier"], euros_for(flight, seats)
                payments.append({"id": flight["id"], "carrier": carrier, "amount": amount})
                books.flight_count += 1
                books.total += amount
                books.by_carrier[carrier] = books.by_carrier.get(carrier, 0) + amount
            me.append("payments", pa.Table.from_pylist(payments, schema=PAYMENTS))


def main() -> None:
    """Run the service from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipeline", type=Path)
    run(parser.parse_args().pipeline)


if __name__ == "__main__":
    main()
