"""The demonstration on real flights: killed and restored, it makes what the unbroken run makes."""

import dataclasses
import io
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from examples.flights import demo
from examples.flights.compensation import euros_for
from examples.flights.demo import demonstrate
from examples.flights.flows import PAYMENTS, Books, Replay, create
from examples.flights.outputs import CHANNELS, Outputs
from examples.flights.tables import read_flights, read_weather
from tests.nightly import by_night

pytestmark = pytest.mark.spark

FLIGHT_COUNT = by_night(30_000, check=2_000)
FLIGHTS_PER_S = 600.0


@pytest.mark.slow
@pytest.mark.nightly(part="pipelines")
def test_the_demonstration_ends_well(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every output of the run that was killed and restored equals that of the unbroken one."""
    monkeypatch.setattr(demo, "EVERY_S", by_night(demo.EVERY_S, check=0.5))
    said = io.StringIO()
    console = Console(file=said, width=200)
    assert demonstrate(tmp_path, FLIGHT_COUNT, FLIGHTS_PER_S, console) == 0, said.getvalue()
    found = re.search(r"produced the same as the unbroken run: ([\d,]+) flights", said.getvalue())
    assert found is not None
    assert int(found[1].replace(",", "")) > 0.95 * FLIGHT_COUNT


def test_the_feed_keeps_to_the_order_of_hours() -> None:
    """Flights and weather come in the order of hours: so nothing is behind a watermark."""
    for table in (read_flights(FLIGHT_COUNT), read_weather()):
        hours = table["hour"]
        assert pc.all(pc.less_equal(hours.slice(0, len(hours) - 1), hours.slice(1))).as_py()


def test_the_amount_depends_on_distance_and_aircraft() -> None:
    """Each seat gets what the law gives for the distance; an unknown aircraft has 100 seats."""
    seats = {"N1": 2}
    amounts = [
        euros_for({"tailnum": tailnum, "distance": miles}, seats)
        for tailnum, miles in (("N1", 932), ("N1", 933), ("N1", 2176), ("", 100))
    ]
    assert amounts == [500, 800, 1200, 25_000]


def outputs(path: Path, amounts: list[int]) -> Outputs:
    """Return what a pipeline might have made that paid these amounts to one carrier."""
    flow = create(path).dataflow
    payments = [{"id": i, "carrier": "UA", "amount": amount} for i, amount in enumerate(amounts)]
    empty = {name: flow.log(name).arrow_schema.empty_table() for name in CHANNELS}
    return Outputs(
        channels={**empty, "payments": pa.Table.from_pylist(payments, schema=PAYMENTS)},
        totals={"UA": {"carrier": "UA", "paid": 300}},
        state={"UA": (2, 0, 2, 300)},
        replay=Replay(),
        books=Books(flight_count=2, total=300, by_carrier={"UA": 300}),
    )


def test_a_payment_too_many_is_found(tmp_path: Path) -> None:
    """A payment that was made twice differs from the other run, and from the books."""
    once, twice = (outputs(tmp_path / "p", amounts) for amounts in ([100, 200], [100, 200, 200]))
    assert once.differences(once) == []
    assert once.differences(twice) == ["channel payments"]
    assert once.disagreements() == []
    assert twice.disagreements() == ["the books", "the channel totals", "the state of carriers"]


def test_books_that_differ_are_found(tmp_path: Path) -> None:
    """States are compared as well as channels."""
    one = outputs(tmp_path / "p", [100, 200])
    other = dataclasses.replace(one, books=Books(), state={})
    assert one.differences(other) == ["state", "books"]
