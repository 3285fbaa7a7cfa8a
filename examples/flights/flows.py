"""The pipeline: its services, queries and channels.

    feed ── flights ──┐                ┌── alerts ── late ── compensation ── payments ──┐
                      ├─ enrich ─ enriched                                              │
    feed ── weather ──┘                └──────────────── carriers ──────────────────────┘
                                                            └── totals

`feed` and `compensation` are Python services, `enrich`, `alerts` and `carriers` are streaming
queries on Spark. The payments that the compensation makes come back to a query, `carriers`, which
does not lead to the compensation again: there is no cycle, so that every mode of snapshots fits.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from stillframe.pipeline import Pipeline, channel

_HOUR = pa.timestamp("us", tz="UTC")

FLIGHTS = pa.schema(
    [
        ("id", pa.int64()),  # in the order of scheduled hours, from 0
        ("carrier", pa.string()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("distance", pa.int64()),  # in miles
        ("hour", _HOUR),  # the scheduled departure, cut to the hour
        ("arr_delay", pa.int64()),  # in minutes; null: cancelled or diverted
    ]
)
WEATHER = pa.schema(
    [
        ("origin", pa.string()),
        ("hour", _HOUR),
        ("wind_speed", pa.float64()),  # in miles per hour
        ("visib", pa.float64()),  # in miles
        ("precip", pa.float64()),  # in inches
    ]
)
ENRICHED = pa.schema([*FLIGHTS, *list(WEATHER)[2:]])
LATE = pa.schema([field for field in FLIGHTS if field.name not in ("origin", "dest", "hour")])
PAYMENTS = pa.schema([("id", pa.int64()), ("carrier", pa.string()), ("amount", pa.int64())])
TOTALS = pa.schema(
    [
        ("carrier", pa.string()),
        ("flight_count", pa.int64()),
        ("late_minutes", pa.int64()),
        ("payment_count", pa.int64()),
        ("paid", pa.int64()),  # in euros
    ]
)


@dataclass
class Replay:
    """The state of the service `feed`: its position."""

    flight_count: int = 0
    weather_count: int = 0


@dataclass
class Books:
    """The state of the service `compensation`: the sums booked, in euros."""

    flight_count: int = 0
    total: int = 0
    by_carrier: dict[str, int] = field(default_factory=dict)


def create(path: Path) -> Pipeline:
    """Create the pipeline in a directory, or open an existing one."""
    return Pipeline.create(
        path,
        queries=["enrich", "alerts", "carriers"],
        services={"feed": Replay, "compensation": Books},
        channels=[
            channel("flights", FLIGHTS, source="feed", targets=["enrich"]),
            channel("weather", WEATHER, source="feed", targets=["enrich"]),
            channel("enriched", ENRICHED, source="enrich", targets=["alerts", "carriers"]),
            channel("late", LATE, source="alerts", targets=["compensation"]),
            channel("payments", PAYMENTS, source="compensation", targets=["carriers"]),
            channel("totals", TOTALS, source="carriers"),
        ],
    )
