"""The service `feed`, which replays the flights and the weather of a year in their order."""

import argparse
import time
from pathlib import Path

import pyarrow as pa

from examples.flights.flows import Replay
from examples.flights.tables import read_flights, read_weather
from examples.processes import READY
from stillframe import Pipeline

FLIGHTS_AT_ONCE = 500


def run(pipeline: Path, flight_count: int | None, flights_per_s: float) -> None:
    """Append the remaining rows, then leave the pipeline.

    Args:
        pipeline: its directory.
        flight_count: how many flights there are in all; None for the whole year.
        flights_per_s: how fast they come.
    """
    flights, weather = read_flights(flight_count), read_weather()
    state = Replay()
    with Pipeline(pipeline).join_service("feed", state=state) as me:
        print(READY, flush=True)
        began, first = time.monotonic(), state.flight_count
        while state.flight_count < flights.num_rows:
            new = flights.slice(state.flight_count, FLIGHTS_AT_ONCE)
            known = _weather_until(weather, new["hour"][-1])
            # The weather goes first, so that each flight finds it. Both appends and the new state
            # are one action: a snapshot has all of it or nothing.
            me.append("weather", weather.slice(state.weather_count, known - state.weather_count))
            me.append("flights", new)
            state.weather_count = known
            state.flight_count += new.num_rows
            me.boundary()
            due = began + (state.flight_count - first) / flights_per_s
            time.sleep(max(0.0, due - time.monotonic()))


def _weather_until(weather: pa.Table, hour: pa.Scalar) -> int:
    """Return the number of weather rows up to `hour`."""
    return int(pa.compute.sum(pa.compute.less_equal(weather["hour"], hour)).as_py() or 0)


def main() -> None:
    """Run the service from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipeline", type=Path)
    parser.add_argument("--flights", type=int)
    parser.add_argument("--per-second", type=float, required=True)
    arguments = parser.parse_args()
    run(arguments.pipeline, arguments.flights, arguments.per_second)


if __name__ == "__main__":
    main()
