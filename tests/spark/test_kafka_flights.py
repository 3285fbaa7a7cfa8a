"""The demonstration on Kafka: killed and restored twice, it makes what follows from the data."""

import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from examples.kafka import demo
from examples.kafka.demo import demonstrate
from examples.kafka.flows import FLIGHT, SENT_COUNT, Account, Ledger, Replay
from examples.kafka.outputs import Outputs, accounts_of
from tests.nightly import by_night

FLIGHT_COUNT = by_night(60_000, check=3_000)
FLIGHTS_PER_S = by_night(3_000.0, check=500.0)
TEN = pa.Table.from_pylist(
    [
        {"id": number, "carrier": "AU"[number % 2] + "A", "distance": 100, "arr_delay": number - 3}
        for number in range(10)
    ],
    schema=FLIGHT,
)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.nightly(part="pipelines", only=True)
def test_the_demonstration_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every output is right after restores to a snapshot and to the newest consistent point."""
    monkeypatch.setattr(demo, "EVERY_S", by_night(demo.EVERY_S, check=2.0))
    said = io.StringIO()
    console = Console(file=said, width=200)
    assert demonstrate(tmp_path, FLIGHT_COUNT, FLIGHTS_PER_S, console) == 0, said.getvalue()
    assert "restored the newest consistent point" in said.getvalue()


def test_a_change_is_booked_once() -> None:
    """An entry is the difference to the last total of the carrier, and 0 if it is repeated."""
    ledger = Ledger()
    totals = [
        {"carrier": carrier, "flight_count": count, "late_minutes": 10 * count, "miles": 0}
        for carrier, count in (("UA", 2), ("AA", 1), ("UA", 5), ("UA", 5))
    ]
    assert [ledger.book(total)["flight_count"] for total in totals] == [2, 1, 3, 0]
    assert ledger.accounts == {"UA": Account(5, 50, 0), "AA": Account(1, 10, 0)}
    assert (ledger.entry_count, ledger.flight_count) == (4, 6)


def right_outputs() -> Outputs:
    """Return what a pipeline makes of `TEN`, with one total for each carrier."""
    accounts = accounts_of(TEN)
    outputs = Outputs(unique=TEN, totals=dict(accounts), entries=dict(accounts))
    outputs.sent.update(dict.fromkeys(range(10), SENT_COUNT))
    outputs.total_count = outputs.entry_count = len(accounts)
    outputs.replay = Replay(10)
    outputs.ledger = Ledger(len(accounts), dict(accounts))
    return outputs


def lose_a_flight(outputs: Outputs) -> None:
    """Leave one flight out of those that are unique."""
    assert outputs.unique is not None
    outputs.unique = outputs.unique.slice(1)


def book_twice(outputs: Outputs) -> None:
    """Book the changes of a carrier twice."""
    carrier = next(iter(outputs.entries))
    outputs.entries[carrier] = outputs.entries[carrier].plus(outputs.entries[carrier])
    outputs.entry_count += 1


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda outputs: None, []),
        (lambda outputs: outputs.sent.update([7]), ["topic flights"]),
        (lose_a_flight, ["topic unique"]),
        (lambda outputs: outputs.totals.popitem(), ["topic totals"]),
        (book_twice, ["topic entries", "the number of entries", "the ledger"]),
        (lambda outputs: setattr(outputs, "replay", Replay(9)), ["the feed"]),
    ],
)
def test_every_wrong_output_is_found(damage: Callable[[Outputs], None], found: list[str]) -> None:
    """Each is compared with the data, and the ledger with the totals that it booked."""
    outputs = right_outputs()
    damage(outputs)
    assert outputs.errors(TEN) == found
